//! `outlast lab`: users' own programs between links that break.

mod quantity;
mod run;
mod topology;

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};

use self::quantity::{fraction, rate, time};
use crate::{Fault, Lab, Schedule, WireSpec};

const EXAMPLES: &str = "\
Examples:
  Fetch a page over a slow link that is cut for two seconds again and again:
    outlast lab --delay 20ms --loss 1% --fault 'drop both every 5s for 2s' \\
        --server 'python3 -m http.server 8000' -- curl http://server:8000/

  Abort the connection every second and see what your program makes of it:
    outlast lab --fault 'reset both every 1s' --server 'nc -lk 7000' -- nc server 7000

  A client at home behind a NAT that restarts, on a 10 Mbit/s line:
    outlast lab --nat --rate 10mbit --delay 8ms --fault 'nat rebind at 3s' --server ./server -- ./client server

  A telephone that moves from one network to another:
    outlast lab --two-paths --fault 'roam at 5s for 10s' --server ./server -- ./client server

  Look around by hand until Ctrl-C:
    outlast lab --delay 50ms

Names: every program finds the hosts as `client` and `server` (IPv6: `client6` and `server6`), and `nat`, \
`relay` or `middle` where there is one.

Needs root. Everything that the lab makes is removed when it ends.";

/// Run your own programs between hosts whose link is slow, loses packets and breaks.
///
/// Makes two hosts inside this machine, `client` and `server`, joined by a link of your choice; runs a server in
/// one and the command after `--` in the other; breaks things on schedule, and says when. Ends with the exit
/// code of the command.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_long_help = EXAMPLES, after_help = "More, with examples: --help")]
pub struct LabArgs {
    #[command(subcommand)]
    action: Option<Action>,

    /// How long a packet takes one way, like 20ms
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = time, help_heading = "The link")]
    delay: Duration,

    /// By how much the delay varies, up and down
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = time, help_heading = "The link")]
    jitter: Duration,

    /// How many packets are lost, like 1%
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = fraction, help_heading = "The link")]
    loss: f64,

    /// How many packets are overtaken by later ones, like 2%
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = fraction, help_heading = "The link")]
    reorder: f64,

    /// How many packets arrive twice, like 0.5%
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = fraction, help_heading = "The link")]
    duplicate: f64,

    /// How much fits through, like 10mbit or 1.2MB (a second)
    #[arg(long, value_name = "RATE", value_parser = rate, help_heading = "The link")]
    rate: Option<u64>,

    /// How many bytes may wait for a link with a rate
    #[arg(long, value_name = "BYTES", default_value_t = WireSpec::default().queue_bytes, help_heading = "The link")]
    queue: u64,

    /// The largest packet
    #[arg(long, value_name = "BYTES", default_value_t = WireSpec::default().mtu_bytes, help_heading = "The link")]
    mtu: u16,

    /// Where chance starts: the same seed loses the same packets, and draws the same faults with --random
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = "The link")]
    seed: u64,

    /// Put a NAT called `nat` in front of the client
    #[arg(long, conflicts_with_all = ["relay", "two_paths"], help_heading = "The hosts")]
    nat: bool,

    /// Put a host called `relay` in the middle and run this shell command in it
    #[arg(long, value_name = "COMMAND", conflicts_with = "two_paths", help_heading = "The hosts")]
    relay: Option<String>,

    /// Give the client a second link, to roam to
    #[arg(long, help_heading = "The hosts")]
    two_paths: bool,

    /// Run this shell command on the server; the client starts once it accepts connections and has nothing left to do
    #[arg(long, value_name = "COMMAND", help_heading = "The hosts")]
    server: Option<String>,

    /// How long to wait for the server
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time, help_heading = "The hosts")]
    server_wait: Duration,

    /// Use the congestion control `cubic` on all hosts instead of the machine's default
    #[arg(long, help_heading = "The hosts")]
    cubic: bool,

    /// Break something: 'FAULT [at TIME] [every TIME] [for TIME]'; repeat for more. `outlast lab faults` lists all
    #[arg(long = "fault", value_name = "SCHEDULE", help_heading = "Faults")]
    faults: Vec<Schedule>,

    /// Break one thing after another at random (see --seed), among those that suit the hosts
    #[arg(long, help_heading = "Faults")]
    random: bool,

    /// What to run on the client; without it, the lab stays until Ctrl-C
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Action {
    /// List all faults, with what each does
    Faults,
    /// Remove what killed labs have left behind
    Sweep,
}

impl LabArgs {
    fn spec(&self) -> WireSpec {
        WireSpec {
            delay: self.delay,
            jitter: self.jitter,
            loss: self.loss,
            reorder: self.reorder,
            duplicate: self.duplicate,
            rate_bytes_per_s: self.rate,
            queue_bytes: self.queue,
            mtu_bytes: self.mtu,
            seed: self.seed,
            ..WireSpec::default()
        }
    }
}

/// Carries out `outlast lab` and returns the exit code: that of the client's command, or 128 and the number of the
/// signal that ended it. `quiet`: nothing but errors is printed, besides what the programs print.
///
/// Call it before any other thread has been started: it takes over SIGINT, SIGTERM and SIGHUP.
///
/// # Errors
/// When the lab cannot be made, a program cannot be started, or a fault does not suit the hosts.
pub fn run(args: LabArgs, quiet: bool) -> anyhow::Result<i32> {
    match args.action {
        Some(Action::Faults) => {
            let width = Fault::all().iter().map(|(words, _)| words.len()).max().unwrap_or(0);
            let mut out = std::io::stdout().lock();
            for (words, meaning) in Fault::all() {
                writeln!(out, "{words:width$}  {meaning}")?;
            }
            Ok(0)
        }
        Some(Action::Sweep) => {
            let swept = Lab::sweep()?;
            let mut out = std::io::stdout().lock();
            for name in &swept {
                writeln!(out, "removed {name}")?;
            }
            Ok(0)
        }
        None => run::run(&args, quiet),
    }
}
