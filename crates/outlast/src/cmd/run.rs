//! `outlast run`.

use crate::cli::ProcessArgs;
use crate::cli::values::{byte_count, duration, more_than_none, positive};
use crate::exit::Code;
use crate::run;
use crate::run::limits::Limit;
use crate::run::names;
use anyhow::Result;
use clap::{Args, ValueEnum};
use outlast_restart::Death;
use outlast_restart::policy::INTENSITY_MAX;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// `outlast run`, or a `[[run]]` section.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
    /// Name for `outlast status` and `outlast upgrade` [default: that of the program's file]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    #[command(flatten)]
    pub restart: RestartArgs,
    #[command(flatten)]
    pub stop: StopArgs,
    #[command(flatten)]
    pub ready: ReadyArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub surroundings: SurroundingsArgs,
    #[command(flatten)]
    pub preload: PreloadArgs,
}

/// When it is started again.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Restarting the program")]
pub struct RestartArgs {
    /// When to restart the program [default: on-failure]
    #[arg(long, value_name = "WHEN")]
    pub restart: Option<When>,
    /// Exit codes, and signals such as TERM, that are not failures; 143 also means killed by TERM [default: 0]
    #[arg(long, value_name = "CODES", value_delimiter = ',', value_parser = names::ending)]
    pub success_codes: Vec<Death>,
    /// Tolerate this many crashes per --window, 1 to 20 [default: 5]. Past the limit the program is given up; a server that
    /// uses the library first keeps progressively less (finally only its listening sockets), and is then restarted from
    /// scratch. With --restart always, clean exits count too
    #[arg(long, value_name = "NUMBER", value_parser = intensity)]
    pub intensity: Option<usize>,
    /// Period over which --intensity counts crashes [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = more_than_none)]
    pub window: Option<Duration>,
    /// Treat a crash this long after the previous one as unrelated to it [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub transient_after: Option<Duration>,
    /// Pause before the second restart in a row, doubled each time; the first restart is immediate [default: 50ms]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub backoff_min: Option<Duration>,
    /// Longest pause before a restart [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub backoff_max: Option<Duration>,
    /// Kill a server that keeps its connections when one request has kept it busy for this long; its next generation takes over; 0s: never [default: as the server itself says]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub hang_timeout: Option<Duration>,
}

/// After which ends a program is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// After every exit that is not in --success-codes.
    OnFailure,
    /// After every exit, unless the program was asked to stop.
    Always,
    /// Never.
    Never,
}

/// How it is told to end.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Stopping the program")]
pub struct StopArgs {
    /// Signal to send to the program when this process gets SIGTERM (or this signal); others are passed on unchanged [default: TERM]
    #[arg(long, value_name = "SIGNAL", value_parser = names::signal)]
    pub stop_signal: Option<i32>,
    /// Time to stop after that signal; then the program and all its descendants are killed; 0s: never [default: 45s]
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub stop_timeout: Option<Duration>,
}

/// When it serves, and whether it is alive.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Readiness and liveness")]
pub struct ReadyArgs {
    /// The program reports readiness and state itself, as to systemd (sd_notify: READY=1, STATUS=, WATCHDOG=1); its messages are passed on. For servers that listen before they can serve, too
    #[arg(long)]
    pub notify: bool,
    /// Time to become ready: by --notify, or by waiting for clients with the library or preloaded. If the first start takes longer, exit with code 8; a later one counts as a crash [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = more_than_none)]
    pub start_timeout: Option<Duration>,
    /// Kill and restart a program that is ready and sends no WATCHDOG=1 for this long
    #[arg(long, value_name = "TIME", value_parser = more_than_none, requires = "notify")]
    pub watchdog: Option<Duration>,
}

/// Where its output goes.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Logging the output")]
pub struct OutputArgs {
    /// Append standard output and error to this file, rotated at line ends without losing any [default: those of this process]
    #[arg(long, value_name = "FILE")]
    pub log_to: Option<PathBuf>,
    /// Rotate the file to FILE.1 at this size [default: 16M]
    #[arg(long, value_name = "BYTES", value_parser = size, requires = "log_to")]
    pub log_size: Option<usize>,
    /// Number of old files to keep [default: 4]
    #[arg(long, value_name = "NUMBER", requires = "log_to")]
    pub log_keep: Option<u32>,
}

/// What it is started with.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Environment and limits")]
pub struct SurroundingsArgs {
    /// NAME=SOFT[:HARD]: as, core, cpu, data, fsize, memlock, nofile, nproc, rss, sigpending, msgqueue or stack; units K, M, G, or unlimited; may be repeated. Where core dumps go to a program (`kernel.core_pattern` begins with |), core=0 does not prevent them, and 1 is set instead, which does
    #[arg(long, value_name = "LIMIT")]
    pub limit: Vec<Limit>,
    /// Environment variable to set, NAME=VALUE; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub environment: Vec<(String, String)>,
    /// Working directory of the program
    #[arg(long, value_name = "FOLDER")]
    pub working_directory: Option<PathBuf>,
    /// Nice value, -20 (highest priority) to 19
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(i8).range(-20..=19))]
    pub nice: Option<i8>,
    /// Adjust the kernel's choice when memory runs out (OOM killer), -1000 (never) to 1000 (first)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(i16).range(-1000..=1000))]
    pub oom_score_adjust: Option<i16>,
}

/// Whether it keeps its connections without knowing.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Keeping the connections of a program that was not changed")]
pub struct PreloadArgs {
    /// Load a library into it that tells which of its sockets can be held over a crash; auto: if there is one and it can be [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub preload: Option<Preload>,
    /// That library [default: liboutlast_preload.so beside this program, or in ../lib/outlast]
    #[arg(long, value_name = "FILE", env = "OUTLAST_PRELOAD_LIBRARY", hide_env_values = true)]
    pub preload_library: Option<PathBuf>,
    /// Which connections are held: idle ones of HTTP/1 (nobody waits for an answer on them), or none but the sockets that listen [default: idle]
    #[arg(long, value_name = "WHICH")]
    pub keep_connections: Option<KeepConnections>,
}

/// What is kept of an unmodified program's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KeepConnections {
    /// Those on which nobody waits for an answer.
    #[default]
    Idle,
    /// None.
    Listeners,
}

/// When a library is loaded into a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Preload {
    /// If it is there, and the program is one that can load it.
    #[default]
    Auto,
    /// Or the program is not started.
    Always,
    /// Not at all.
    Never,
}

const EXAMPLES: &str = "\
Examples:
  outlast run -- ./my-server --port 8080
  outlast run --notify --watchdog 10s --limit nofile=100000 --log-to server.log -- ./my-server
  outlast run --success-codes 0,143 --stop-timeout 60s -- java -jar server.jar

The exit code is 0 when the program ends in a way that counts as success. When the program was asked
to stop, crashes too often or is not to be restarted, the exit code is its own, or 128 plus the signal
that killed it, as in a shell (1 where --restart always gives up a program that ends with 0). Signals are passed on to the program. SIGTERM stops it. INT and QUIT
(Ctrl-C, thread dumps of a JVM) leave it to the program whether it ends: if it exits within
--stop-timeout or dies of that very signal, outlast ends with it; if it goes on, so does outlast.
As PID 1 of a container this process reaps orphans; for systemd it is Type=notify and supports the
watchdog.

A program that dies may leave processes running (workers that hold its port). Outlast stops them
before it restarts the program: they get --stop-signal, and are killed after --stop-timeout, 5s at
most. Workers of a preloaded program are killed without that signal, which keeps their idle
connections open, as soon as no client waits for an answer of theirs, after 5s at most. Processes that
serve one client each and do not listen (sessions of sshd) are left alone. Processes left behind by a program that was stopped or given up get TERM and --stop-timeout. A server
that keeps its connections is not restarted: its next generation takes over, and its processes are
left alone.

A program that uses the library `outlast-restart` keeps its connections when it crashes, with or
without this supervisor. For an unmodified, dynamically linked program (--preload) this process holds
the listening sockets and idle HTTP/1 connections while the program is down. Its processes, their
parents and their exit codes are as without Outlast. Connections with TLS, HTTP/2 or a database, and
those on which a client waits for an answer, are closed when their process dies. A warning names what
a program has of these, once, and programs into which no library can be loaded (static ones).

When this process itself is killed, a program that uses the library keeps serving, survives crashes
as before, and says so on its standard error. An unmodified program gets --stop-signal, unless it is
preloaded: then it keeps serving, and the next `outlast run` of the same --name takes its listening
sockets over and stops it, so that no client is refused. (Without --name, when the new program binds
to the same address.) Two supervisors of one --name: the second one exits with 2. The program has to
stay in the foreground, unless it is preloaded and listens before it goes into the background.";

/// Runs a program until it ends in order, is told to end, or crashes too often. Ends with its code.
pub fn run(args: &RunArgs, process: &ProcessArgs) -> Result<Code> {
    run::run(run::plan(args)?, process)
}

fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("a name has at least one letter".into()) } else { Ok(text.to_owned()) }
}

fn intensity(text: &str) -> Result<usize, String> {
    match positive(text) {
        Ok(number) if number <= INTENSITY_MAX => Ok(number),
        Ok(_) => Err(format!("{text} crashes are more than servers remember: give 1 to {INTENSITY_MAX}")),
        Err(_) => Err(format!("{text:?} is no number of crashes: give 1 to {INTENSITY_MAX}")),
    }
}

fn size(text: &str) -> Result<usize, String> {
    match byte_count(text)? {
        0..4096 => Err(format!("{text:?} is less than 4K")),
        size => Ok(size),
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no NAME=VALUE")),
    }
}
