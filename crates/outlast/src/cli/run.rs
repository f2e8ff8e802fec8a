//! The command line of `outlast run`, and of what belongs to it.

use super::{byte_count, duration, positive};
use crate::run::limits::Limit;
use crate::run::names;
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
#[command(next_help_heading = "Starting it again")]
pub struct RestartArgs {
    /// After which ends it is started again [default: on-failure]
    #[arg(long, value_name = "WHEN")]
    pub restart: Option<When>,
    /// Ends that are no failures: exit codes, and signals such as TERM; 143 means killed by TERM, too [default: 0]
    #[arg(long, value_name = "CODES", value_delimiter = ',', value_parser = names::ending)]
    pub success_codes: Vec<Death>,
    /// Crashes within --window that are put up with, 1 to 20; one more, and it is given up [default: 5]. With --restart
    /// always, ends in order count, too. A server with the library is then taken over with less, at last its listening
    /// sockets alone, and started anew, before that
    #[arg(long, value_name = "NUMBER", value_parser = intensity)]
    pub intensity: Option<usize>,
    /// Time in which crashes count together [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = more_than_none)]
    pub window: Option<Duration>,
    /// A crash so long after the last one has nothing to do with it [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub transient_after: Option<Duration>,
    /// Pause before the second restart in a row, doubled with each; the first is at once [default: 50ms]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub backoff_min: Option<Duration>,
    /// The longest such pause [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub backoff_max: Option<Duration>,
    /// A server that keeps its connections and is busy with one request for so long is killed and succeeded; 0s: never [default: as the server itself says]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub hang_timeout: Option<Duration>,
}

/// After which ends a program is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// After all that are not in --success-codes.
    OnFailure,
    /// After all, unless it was told to end.
    Always,
    /// After none.
    Never,
}

/// How it is told to end.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Ending it")]
pub struct StopArgs {
    /// What it gets when this process gets SIGTERM; other signals are passed on as they are [default: TERM]
    #[arg(long, value_name = "SIGNAL", value_parser = names::signal)]
    pub stop_signal: Option<i32>,
    /// Time to end after that; then it is killed, with all processes below it; 0s: never [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub stop_timeout: Option<Duration>,
}

/// When it serves, and whether it is alive.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Being ready and alive")]
pub struct ReadyArgs {
    /// It says itself that it is ready, as programs do to systemd (sd_notify): READY=1, STATUS=, WATCHDOG=1. What it says is passed on
    #[arg(long)]
    pub notify: bool,
    /// It has to be ready in so long a time: by --notify, or by waiting for clients with the library or preloaded. If it never was, this ends with code 8; later, it counts as a crash [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = more_than_none)]
    pub start_timeout: Option<Duration>,
    /// It has to say WATCHDOG=1 at least so often once it is ready, or it hangs, is killed and started again
    #[arg(long, value_name = "TIME", value_parser = more_than_none, requires = "notify")]
    pub watchdog: Option<Duration>,
}

/// Where its output goes.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Its output")]
pub struct OutputArgs {
    /// File for its standard output and error; appended to, rotated at line ends, nothing is lost [default: where this process writes to]
    #[arg(long, value_name = "FILE")]
    pub log_to: Option<PathBuf>,
    /// Size at which that is renamed to FILE.1, and a new one begun [default: 16M]
    #[arg(long, value_name = "BYTES", value_parser = size, requires = "log_to")]
    pub log_size: Option<usize>,
    /// How many old ones are kept [default: 4]
    #[arg(long, value_name = "NUMBER", requires = "log_to")]
    pub log_keep: Option<u32>,
}

/// What it is started with.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Its surroundings")]
pub struct SurroundingsArgs {
    /// NAME=SOFT[:HARD]: as, core, cpu, data, fsize, memlock, nofile, nproc, rss, sigpending, msgqueue or stack; units K, M, G, or unlimited; may be repeated. Where core dumps go to a program (`kernel.core_pattern` begins with |), core=0 does not prevent them, and 1 is set instead, which does
    #[arg(long, value_name = "LIMIT")]
    pub limit: Vec<Limit>,
    /// NAME=VALUE of its environment; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub environment: Vec<(String, String)>,
    /// Folder that it runs in
    #[arg(long, value_name = "FOLDER")]
    pub working_directory: Option<PathBuf>,
    /// How much it gives way to others, -20 to 19
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(i8).range(-20..=19))]
    pub nice: Option<i8>,
    /// How soon the kernel kills it when memory is short, -1000 (never) to 1000 (first)
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

Exits with 0 when the program ends in a way that counts as success. When it was told to end,
crashes too often or is not to be started again: with its code, or 128 and the signal that killed
it, as a shell does. Signals are passed on. As the first process of a container it buries orphans;
for systemd it is Type=notify, with its watchdog.

What a program that has died leaves running (workers that hold its port) ends before it is started
again: it gets --stop-signal, and is killed after --stop-timeout, 5s at the most. So does what is
left when it was told to end or is given up, by TERM, within --stop-timeout. A server that keeps its
connections is not started again but succeeded by its next generation, which nobody ends.

A program that uses the library `outlast-restart` keeps its connections over a crash, with or
without this. For one that was not changed and is linked dynamically (--preload) this process holds
its listening sockets and idle HTTP/1 connections while it is down. Its processes, their parents and
their exit codes are what they are without this. Connections with TLS, HTTP/2 or of databases, and
those on which somebody waits for an answer, are closed when their process dies.

When this process itself is killed: a program that uses the library goes on, survives crashes as
before, and says so on its standard error; one that was not changed gets --stop-signal, unless it is
preloaded. What still runs then is named by the next `outlast run` of the same --name. Two with the
same --name at a time: the second one ends. A program has to stay in the foreground, unless it is
preloaded and listens before it goes into the background.";

/// `outlast upgrade`.
#[derive(Debug, Args)]
#[command(after_help = UPGRADE_EXAMPLES)]
pub struct UpgradeArgs {
    /// Which one: its name or a process in `outlast status`; not needed if there is only one
    #[arg(value_name = "NAME|PID")]
    pub which: Option<String>,
    /// The new binary; it stays the program that is started again and upgraded, until `outlast run` itself ends [default: the file that serves, or what is at its path now]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Time for the new one to serve, during which clients wait; then the old one goes on [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = more_than_none)]
    pub timeout: Option<Duration>,
    /// A program that cannot keep its connections is stopped and started, which closes them
    #[arg(long)]
    pub force: bool,
}

const UPGRADE_EXAMPLES: &str = "\
Examples:
  outlast upgrade
  outlast upgrade my-server --program ./my-server-2.0

The arguments stay those of `outlast run`. What it means depends on the program:

  - One that uses the library `outlast-restart` hands all connections over, with what was received
    on them and its state. Clients wait until the new binary serves. If it does not, the old one
    goes on, with all of that, as after a crash.
  - One that was not changed and is preloaded is told to end (--stop-signal), and the new binary is
    started with its listening sockets and idle connections: new clients wait meanwhile, and none is
    refused. What it had only in memory is lost, unless it writes it to disk itself. If the new one
    does not serve, the old one is started anew.
  - Any other (also with roles) needs --force: it is stopped and the new binary is
    started, which closes all connections. If that ends at once or does not become ready, the old
    one is started again. Without --notify it counts as ready when it has run for 1s, unless the
    old one is known to have waited for clients.

Ctrl-C or SIGTERM withdraws the upgrade: the old program goes on at once, as above. So does whatever
else ends `outlast upgrade` before it is decided (SIGKILL, a terminal that is closed). `outlast status`
shows an upgrade that is under way, and which program serves if it is not that of the command line.
Once the new binary serves the upgrade is over: a crash of it is one like any other. A program that
waits to be started again after crashes is started as the new binary at once, without --force.

Exits with 0 when the new binary serves; with 8 when it does not, and the old one goes on; with 130
when it was withdrawn, and the old one goes on; with 2 when there is no such program, another
upgrade is under way, or it could only be stopped and started (--force); with 7 when its supervisor
has ended meanwhile, or does not answer.";

/// `outlast keep-log`.
#[derive(Debug, Args)]
pub struct KeepLogArgs {
    /// The file
    pub file: PathBuf,
    /// Size at which it is rotated
    #[arg(long)]
    pub size: u64,
    /// How many old ones are kept
    #[arg(long)]
    pub keep: u32,
}

fn more_than_none(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it takes more time than none".into()),
        time => Ok(time),
    }
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
