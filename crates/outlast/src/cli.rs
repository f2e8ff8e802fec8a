//! The command line: what all commands have. The arguments of each are beside it, in `cmd`. Settings have no defaults here: those of the libraries hold, and a configuration file
//! can tell what was given from what was not.

mod applies;
pub mod values;

use crate::cmd::completions::CompletionsArgs;
use crate::cmd::config::ConfigCommand;
use crate::cmd::connect::ConnectArgs;
use crate::cmd::hold::HoldArgs;
use crate::cmd::kill::KillArgs;
use crate::cmd::listen::ListenArgs;
use crate::cmd::man::ManArgs;
use crate::cmd::replicate::ReplicateArgs;
use crate::cmd::run::RunArgs;
use crate::cmd::status::StatusArgs;
use crate::cmd::upgrade::UpgradeArgs;
use crate::handover::KeepArgs;
use crate::run::capture::KeepLogArgs;
use crate::watcher::WatchArgs;
pub use applies::{command, for_completions, refuse_what_does_not};
use clap::{Args, Parser, Subcommand, ValueEnum};
use outlast_session::AckMode;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use values::{byte_count, duration, log_filter, own_address, positive};

/// Keep TCP connections alive when the network drops or the server process crashes: clients see a short pause, not a disconnect.
#[derive(Debug, Parser)]
#[command(name = "outlast", version, after_help = crate::exit::HELP, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub process: ProcessArgs,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Accept sessions and connect each to a service
    Listen(Box<ListenArgs>),
    /// Carry local connections, or standard input and output, over sessions
    Connect(Box<ConnectArgs>),
    /// List the sessions of all instances on this machine, their outages and unacknowledged bytes, and sessions that wait for the next listener
    Status(StatusArgs),
    /// End a session at once
    Kill(KillArgs),
    /// Check a configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run programs in a private network whose links break on schedule
    Lab(Box<outlast_lab::cli::LabArgs>),
    /// Write the manual pages into a folder
    Man(ManArgs),
    /// Supervise a program: restart it when it crashes, and keep its connections where possible
    Run(Box<RunArgs>),
    /// Replace a supervised program's binary without dropping connections
    Upgrade(UpgradeArgs),
    /// Run a server on several machines, so that clients keep their TCP connections when one of them dies
    Replicate(Box<ReplicateArgs>),
    /// Hold the file descriptors of services, in any language, and give them back after a crash
    Hold(HoldArgs),
    /// Print the completions for a shell
    Completions(CompletionsArgs),
    /// Hold the sessions of a stopped listener for the next one; started by `listen`
    #[command(hide = true)]
    KeepDetached(KeepArgs),
    /// Give up the sessions of a process that dies; started by `connect`
    #[command(hide = true)]
    WatchRelay(WatchArgs),
    /// Run the `[[listen]]` and `[[connect]]` sections of a file that has others, too; started by `--config`
    #[command(hide = true)]
    Relays,
    /// Write standard input into a file that is rotated; started by `run`
    #[command(hide = true)]
    KeepLog(KeepLogArgs),
}

/// Settings of the process. At the top of a configuration file.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options of the process")]
pub struct ProcessArgs {
    /// Configuration file (TOML): alone, everything in it is run; with listen, connect or run, flags override it
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace, or a filter such as outlast_session=debug [default: warn]
    #[arg(long, global = true, value_name = "FILTER", env = "OUTLAST_LOG", hide_env_values = true, value_parser = log_filter)]
    pub log: Option<String>,
    /// How to log [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Say nothing but errors
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Socket for status and kill; `none` for none [default: one per process in $XDG_RUNTIME_DIR/outlast; of a system service, in its RuntimeDirectory; else in /run/outlast (root) or /tmp/outlast-UID]
    #[arg(long, global = true, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
    /// Serve Prometheus metrics at this address, under /metrics
    #[arg(long, global = true, value_name = "ADDRESS", value_parser = own_address)]
    pub metrics: Option<SocketAddr>,
    /// After SIGTERM (at `listen`, Ctrl-C too; not with --stdio, which ends when what it has taken is delivered, within 7s), wait this long for sessions to end by themselves; a second signal ends the wait [default: 0s at `listen`, which hands its sessions to the next one; 30s where no other process can take them over]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub drain_timeout: Option<Duration>,
    /// How long the sessions of `listen` then wait for the next one at the same address; 0s: they are ended [default: 5m]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub hand_over_timeout: Option<Duration>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Settings of a session that both ends have.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options of sessions")]
pub struct SessionArgs {
    /// How delivery is acknowledged: auto, kernel, window, udp or inband; without a key or TLS, inband is the one to take where relays on the path are not trusted [default: auto]
    #[arg(long, value_name = "MODE")]
    pub ack: Option<AckMode>,
    /// File with a key that both sides hold. It proves who opens and resumes; the content is neither encrypted nor protected from changes (--tls does both)
    #[arg(long, value_name = "FILE")]
    pub psk_file: Option<PathBuf>,
    /// Declare a link lost after this much silence [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub detect: Option<Duration>,
    /// Most bytes kept per direction until they are acknowledged [default: 4160K, or what the path takes (net.ipv4.tcp_wmem)]
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub retain: Option<usize>,
    /// Most bytes that all sessions of this process hold in memory, and those without a link in the kernel [default: a quarter of
    /// the memory, 1G at most]
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub memory: Option<usize>,
    /// Most sessions at a time; more are refused, or wait [default: 65536]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub max_sessions: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn defaults_in_the_help_are_those_of_the_library() {
        let config = outlast_session::Config::default();
        assert_eq!(config.retain_bytes_max, 4160 << 10);
        assert_eq!(config.detect_timeout, Duration::from_secs(10));
        assert_eq!(config.keep, Duration::from_secs(24 * 3600));
        assert_eq!(config.sessions_max, 65536);
        assert_eq!(config.patience, outlast_session::Patience::Forever);
    }
}
