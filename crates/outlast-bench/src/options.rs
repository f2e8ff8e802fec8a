//! The command line.

use crate::wire::{Endpoint, Face, Mode};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Experiments with sessions, raw TCP and peers, side by side. The last line of the output is one JSON object.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
pub struct Cli {
    /// What to run.
    #[command(subcommand)]
    pub command: Command,
    /// How to run it.
    #[command(flatten)]
    pub options: Options,
}

/// What can be run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// One experiment, or all.
    #[command(flatten)]
    Experiment(Experiment),
    /// The other end of an experiment, in its own process.
    #[command(hide = true)]
    Serve(ServeArguments),
    /// A process that holds idle connections.
    #[command(hide = true)]
    Hold(HoldArguments),
    /// A relay that only splices, to compare the session relay with.
    #[command(hide = true)]
    SpliceRelay(RelayArguments),
    /// A server that can be told to die.
    #[command(hide = true)]
    RestartServe(RestartServeArguments),
    /// What starts that again, without Outlast.
    #[command(hide = true)]
    RestartSupervise(RestartSuperviseArguments),
}

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Experiment {
    /// 1-byte round trips against raw TCP.
    SessionRr,
    /// Bulk data in writes of 1 byte to 1 MiB against raw TCP.
    SessionStream,
    /// Connect, request, response, close, against raw TCP.
    SessionCrr,
    /// From a broken link to bytes flowing in both directions again.
    SessionResume,
    /// 10,000 idle sessions, and the server's load with 1 to 100 calm clients.
    SessionIdle,
    /// 1 to 1,000 clients: latency and throughput of a session server against the same server on plain TCP.
    SessionClients,
    /// Sessions and the relay pair against MPTCP, QUIC, ssh, HAProxy, nginx and socat.
    SessionPeers,
    /// A server with Outlast against the same server without: throughput, latency, memory.
    RestartOverhead,
    /// The same load while the server crashes once, and every second.
    RestartFaults,
    /// From a fault to the next generation, and to the first byte that it answers.
    RestartLatency,
    /// Outlast against restarting, socket activation, a store of descriptors, and HAProxy's retries.
    RestartPeers,
    /// Round trips through a replicated server, on one machine to four, against the same server alone.
    ReplicaLatency,
    /// Bulk data to and from a replicated server, on two machines, against the same server alone.
    ReplicaBulk,
    /// A replicated MariaDB, on two machines, against the same server alone: tables, rows, updates.
    ReplicaDb,
    /// How long clients of a replicated server wait when its primary dies, and how long the next one works.
    ReplicaFailover,
    /// All of them, one after the other.
    All,
}

impl Experiment {
    /// Every single experiment, in the order of `all`.
    pub const EACH: [Experiment; 15] = [
        Experiment::SessionRr,
        Experiment::SessionStream,
        Experiment::SessionCrr,
        Experiment::SessionResume,
        Experiment::SessionIdle,
        Experiment::SessionClients,
        Experiment::SessionPeers,
        Experiment::RestartOverhead,
        Experiment::RestartFaults,
        Experiment::RestartLatency,
        Experiment::RestartPeers,
        Experiment::ReplicaLatency,
        Experiment::ReplicaBulk,
        Experiment::ReplicaDb,
        Experiment::ReplicaFailover,
    ];

    /// The name on the command line, in files and in results.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::SessionRr => "session-rr",
            Experiment::SessionStream => "session-stream",
            Experiment::SessionCrr => "session-crr",
            Experiment::SessionResume => "session-resume",
            Experiment::SessionIdle => "session-idle",
            Experiment::SessionClients => "session-clients",
            Experiment::SessionPeers => "session-peers",
            Experiment::RestartOverhead => "restart-overhead",
            Experiment::RestartFaults => "restart-faults",
            Experiment::RestartLatency => "restart-latency",
            Experiment::RestartPeers => "restart-peers",
            Experiment::ReplicaLatency => "replica-latency",
            Experiment::ReplicaBulk => "replica-bulk",
            Experiment::ReplicaDb => "replica-db",
            Experiment::ReplicaFailover => "replica-failover",
            Experiment::All => "all",
        }
    }
}

/// How the two ends reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathKind {
    /// The loopback device.
    Lo,
    /// A cable (veth pair) between two network namespaces.
    Veth,
}

impl PathKind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PathKind::Lo => "lo",
            PathKind::Veth => "veth",
        }
    }
}

/// On which cores the two ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Both on one core: shows what a message costs in processor time. The strict test.
    Same,
    /// One core each: shows latency with wake-ups, which hide most costs.
    Cross,
}

/// Congestion control of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Congestion {
    /// Does not limit bulk on lo and veth.
    Cubic,
    /// Limits raw TCP on lo and veth, so that anything that bounds data in flight looks better than it is.
    Bbr,
}

impl Congestion {
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Congestion::Cubic => "cubic",
            Congestion::Bbr => "bbr",
        }
    }
}

/// How the scheduler treats both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scheduling {
    /// As every program.
    Normal,
    /// `SCHED_BATCH`: nobody preempts the other end when woken, so small writes pile up before they are read.
    Batch,
}

/// Which programming interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Faces {
    /// `std`-like blocking calls.
    Blocking,
    /// tokio.
    Tokio,
    /// One after the other, each against raw TCP with the same interface.
    Both,
}

impl Faces {
    /// The single faces.
    pub fn each(self) -> &'static [Face] {
        match self {
            Faces::Blocking => &[Face::Blocking],
            Faces::Tokio => &[Face::Tokio],
            Faces::Both => &[Face::Blocking, Face::Tokio],
        }
    }
}

/// Options of every experiment.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Finish each experiment within 40 seconds.
    #[arg(long, global = true)]
    pub quick: bool,
    /// Only show that everything runs: milliseconds, no conclusions.
    #[arg(long, global = true, hide = true)]
    pub smoke: bool,
    /// Where CSV files and plots go.
    #[arg(long, global = true, value_name = "DIR", default_value = "out/bench")]
    pub out: PathBuf,
    /// Repeats of every series [default: 11, with --quick 5 or more as time allows].
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: Option<u32>,
    /// Where the bytes go [default: lo, veth for session-resume and session-peers].
    #[arg(long, global = true, value_enum)]
    pub path: Option<PathKind>,
    /// On which cores the ends run [default: same, cross for session-clients, session-idle and, but for restart-latency, restart-*].
    #[arg(long, global = true, value_enum)]
    pub placement: Option<Placement>,
    /// Congestion control of both ends.
    #[arg(long, global = true, value_enum, default_value = "cubic")]
    pub cc: Congestion,
    /// Whether a woken thread may preempt the other end.
    #[arg(long, global = true, value_enum, default_value = "normal")]
    pub sched: Scheduling,
    /// Sizes of writes in bytes, separated by commas, for session-stream, session-peers and replica-latency.
    #[arg(long, global = true, value_name = "BYTES", value_delimiter = ',')]
    pub size: Vec<usize>,
    /// Programming interface [default: both, blocking for session-stream with --quick].
    #[arg(long, global = true, value_enum)]
    pub face: Option<Faces>,
    /// Acknowledgement modes, separated by commas [default: those that have targets].
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    pub mode: Vec<Mode>,
    /// The `outlast` program for the relay pair and for replicas [default: the one beside this program].
    #[arg(long, global = true, value_name = "PROGRAM")]
    pub outlast: Option<PathBuf>,
}

impl Options {
    /// One of three, for a smoke test, a quick run and a full run.
    pub fn pick<T>(&self, smoke: T, quick: T, full: T) -> T {
        if self.smoke {
            smoke
        } else if self.quick {
            quick
        } else {
            full
        }
    }

    /// How long a single measurement of one variant takes.
    pub fn window(&self) -> Duration {
        Duration::from_millis(self.pick(4, 100, 150))
    }

    /// The modes asked for, or `default`.
    pub fn modes(&self, default: &[Mode]) -> Vec<Mode> {
        if self.mode.is_empty() { default.to_vec() } else { self.mode.clone() }
    }

    /// The sizes asked for, or `default`.
    pub fn sizes(&self, default: &[usize]) -> Vec<usize> {
        let asked: Vec<usize> = self.size.iter().copied().filter(|size| *size > 0).collect();
        if asked.is_empty() { default.to_vec() } else { asked }
    }

    /// The faces asked for, or `default`.
    pub fn faces(&self, default: Faces) -> &'static [Face] {
        self.face.unwrap_or(default).each()
    }
}

/// Arguments of the serving process.
#[derive(Clone, Debug, Args)]
pub struct ServeArguments {
    /// Address to listen on.
    #[arg(long)]
    pub address: IpAddr,
    /// What to listen with; ports are chosen by the system and printed.
    #[arg(long = "endpoint")]
    pub endpoints: Vec<Endpoint>,
    /// Threads of the tokio runtime; 1 is a current-thread runtime.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Folder with `cert.der` and `key.der`.
    #[arg(long)]
    pub identity: Option<PathBuf>,
}

/// Arguments of the process that holds connections.
#[derive(Clone, Debug, Args)]
pub struct HoldArguments {
    /// Where to connect.
    #[arg(long)]
    pub to: SocketAddr,
    /// How to connect.
    #[arg(long)]
    pub endpoint: Endpoint,
    /// How often to connect.
    #[arg(long)]
    pub count: usize,
}

/// Arguments of the splicing relay.
#[derive(Clone, Debug, Args)]
pub struct RelayArguments {
    /// Where to listen.
    #[arg(long)]
    pub listen: SocketAddr,
    /// Where to connect for every client.
    #[arg(long)]
    pub to: SocketAddr,
}

/// How a server dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// It touches memory that is not there.
    Fault,
    /// By `abort`.
    Abort,
    /// By SIGKILL.
    Kill,
    /// It exits with a code that is not 0.
    Exit,
}

impl Death {
    /// As the server is told.
    pub fn name(self) -> &'static str {
        match self {
            Death::Fault => "fault",
            Death::Abort => "abort",
            Death::Kill => "kill",
            Death::Exit => "exit",
        }
    }
}

impl std::str::FromStr for Death {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Death::Fault, Death::Abort, Death::Kill, Death::Exit];
        all.into_iter().find(|death| death.name() == name).ok_or_else(|| format!("nobody dies by {name}"))
    }
}

/// Arguments of the server that can be told to die.
#[derive(Clone, Debug, Args)]
pub struct RestartServeArguments {
    /// Where to listen.
    #[arg(long)]
    pub address: SocketAddr,
    /// The number of a socket that listens already.
    #[arg(long)]
    pub listener: Option<i32>,
    /// The socket of a manager that keeps connections.
    #[arg(long)]
    pub store: Option<PathBuf>,
    /// With Outlast.
    #[arg(long)]
    pub registered: bool,
    /// Leave a dump of the memory at every crash.
    #[arg(long)]
    pub core_dumps: bool,
}

/// What is left of a server when it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kept {
    /// Nothing.
    Nothing,
    /// The socket that listens.
    Listener,
    /// That, and all connections.
    Everything,
}

/// Arguments of a supervisor.
#[derive(Clone, Debug, Args)]
pub struct RestartSuperviseArguments {
    /// Where to listen.
    #[arg(long)]
    pub address: SocketAddr,
    /// What it keeps.
    #[arg(long, value_enum)]
    pub kept: Kept,
    /// A folder of its own.
    #[arg(long)]
    pub scratch: PathBuf,
}

#[cfg(test)]
impl Options {
    /// A full run with the defaults.
    pub fn for_tests() -> Self {
        Cli::parse_from(["outlast-bench", "session-rr"]).options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
