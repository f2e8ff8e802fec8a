//! `outlast upgrade`.

use crate::admin::ask;
use crate::cli::ProcessArgs;
use crate::cli::values::more_than_none;
use crate::exit::{Code, Failure, clean};
use crate::narrate::seconds;
use crate::pages::program::under_way;
use crate::run::upgrade::TIMEOUT;
use anyhow::{Context, Result};
use clap::Args;
use outlast_admin::exchange::Withdrawn;
use outlast_admin::program::{Generation, Program};
use outlast_admin::upgrade::{
    CLOSES_CONNECTIONS, Keeps, RESTARTING, UpgradeAnswer, UpgradeBegun, UpgradeOutcome, UpgradeRefused,
    WhyNot,
};
use outlast_admin::{Page, Request};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// `outlast upgrade`.
#[derive(Debug, Args)]
#[command(after_help = UPGRADE_EXAMPLES)]
pub struct UpgradeArgs {
    /// Name or PID of the program, as in `outlast status`; not needed if only one program is supervised
    #[arg(value_name = "NAME|PID")]
    pub which: Option<String>,
    /// The new binary; it is also the one that is restarted and upgraded until `outlast run` itself ends [default: the path of the running program, as it is on disk now]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Time for the new binary to serve, during which clients wait; after that the old binary keeps serving. It begins when an old binary that has to be stopped has ended (see --stop-timeout of `outlast run`) [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = more_than_none)]
    pub timeout: Option<Duration>,
    /// Stop and start a program that cannot keep its connections, which closes them
    #[arg(long)]
    pub force: bool,
}

const UPGRADE_EXAMPLES: &str = "\
Examples:
  outlast upgrade
  outlast upgrade my-server --program ./my-server-2.0

The arguments stay those of `outlast run`. If the new binary fails to start, exits, or does not serve
within --timeout, the old one keeps serving. What is kept depends on the program:

  - A program that uses the library `outlast-restart` hands over all connections, with the input it
    has received and its state. Clients wait until the new binary serves. If it does not, the old
    binary keeps serving with all of that, as after a crash.
  - An unmodified, preloaded program is asked to stop (--stop-signal). When it has ended, the new
    binary is started with its listening sockets and idle connections: new clients wait meanwhile,
    none is refused. The two never run at the same time.
    Anything that was only in memory is lost. If the new binary does not serve, the old one is
    started again.
  - Any other program (also with roles) needs --force: it is stopped and the new binary is started,
    which closes all connections. If the new binary exits at once or does not become ready, the old
    one is started again. Without --notify the new binary counts as ready after 1s, unless the old
    one is known to have waited for clients.

Ctrl-C or SIGTERM withdraws the upgrade, and the old program keeps serving. So does anything else
that ends `outlast upgrade` before the upgrade is decided (SIGKILL, a closed terminal). `outlast
status` shows an upgrade in progress, and the program that serves if it is not that of the command
line. Once the new binary serves, the upgrade is over: a later crash is handled like any other. A
program that is waiting for a restart after crashes starts as the new binary at once, without --force.

Exit codes: 0 the new binary serves; 8 it does not, and the old one keeps serving; 130 the upgrade
was withdrawn, and the old one keeps serving; 2 there is no such program, another upgrade is in
progress, or --force is needed; 7 the supervisor has ended meanwhile, or does not answer.";

/// Between two questions whether it is done.
const POLL: Duration = Duration::from_millis(20);
/// After its time, for the supervisor to say what became of it.
const LATE: Duration = Duration::from_secs(15);
/// For the supervisor to bury the binary that did not serve, and to say how it has ended.
const BURIAL: Duration = Duration::from_millis(500);

/// For a program that has crashed to serve again.
const RESTART: Duration = Duration::from_secs(5);

/// Of a path in a message.
const SHOWN_CHARS: usize = 200;

/// An instance that runs a program.
#[derive(Debug)]
struct Runner {
    /// Where it is asked.
    socket: PathBuf,
    pid: u32,
    program: Program,
}

/// Of whoever waits for the upgrade: Ctrl-C, or SIGTERM.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn new() -> Result<Self> {
        let on = |kind| signal(kind).context("cannot handle signals");
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Asks for another binary, and waits until it serves, or does not.
pub async fn run(args: &UpgradeArgs, process: &ProcessArgs) -> Result<Code> {
    let program = args.program.as_deref().map(checked).transpose()?.unwrap_or_default();
    let runner = find(args.which.as_deref(), process.admin_socket.as_deref()).await?;
    let Runner { socket, pid: supervisor, program: before } = &runner;
    let mut interrupts = Interrupts::new()?;
    let name = clean(&before.runs);
    let timeout_ms = args.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let request = Request::Upgrade { program, force: args.force, timeout_ms };
    let begun = match begin(socket, &request, &mut interrupts).await? {
        UpgradeAnswer::Begun(begun) => begun,
        UpgradeAnswer::Refused(answer) => return Err(refused(&name, &answer)),
    };
    let wish = begun.wish;
    let timeout = args.timeout.unwrap_or(TIMEOUT);
    let (began, mut deadline) = (Instant::now(), Instant::now() + timeout + LATE);
    let (mut interrupted, mut ended, mut is_told) = (false, None, false);
    loop {
        let answer = ask::one(socket, &Request::Outcome { wish }).await;
        let progress: UpgradeOutcome = answer.map_err(|_| gone(&name, *supervisor))?;
        if progress.old_ends {
            // Its time has not begun.
            deadline = Instant::now() + timeout + LATE;
            if began.elapsed() >= timeout && !std::mem::replace(&mut is_told, true) {
                // Whoever hears it may be gone, which changes nothing.
                let _ = writeln!(
                    io::stderr(),
                    "{name}: the old one has not ended yet; the new one is started when it has, or is killed \
                     (--stop-timeout of `outlast run`), and has {} then: new clients wait; Ctrl-C withdraws the upgrade",
                    seconds(timeout)
                );
            }
        }
        match progress.done {
            Some(true) => {
                let _ = writeln!(io::stdout(), "{}", told(&name, before, &progress, &begun));
                return Ok(Code::Ok);
            }
            Some(false) => {
                // How the new binary has ended is told soon.
                let since = ended.get_or_insert_with(Instant::now).elapsed();
                let known =
                    progress.kind != Some(WhyNot::Ended) || progress.how.is_some() || progress.stopping;
                if known || since >= BURIAL {
                    return Err(failed(&name, &progress, &begun, timeout));
                }
            }
            None if Instant::now() >= deadline => {
                let limit = seconds(timeout);
                let what = format!(
                    "{name} has not said within {limit} (--timeout) whether it is upgraded: see its log"
                );
                return Err(Failure::new(Code::NotReady, what).into());
            }
            None => {}
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = interrupts.next() => {
                if std::mem::replace(&mut interrupted, true) {
                    let what = format!("{name}: interrupted before the old program served again: see `outlast status`");
                    return Err(Failure::new(Code::Interrupted, what).into());
                }
                let answer = ask::one::<Withdrawn>(socket, &Request::Withdraw { wish }).await;
                answer.map_err(|_| gone(&name, *supervisor))?;
            }
        }
    }
}

/// Asks for it, once more after a moment as long as the program is being started again after a crash.
async fn begin(socket: &Path, request: &Request, interrupts: &mut Interrupts) -> Result<UpgradeAnswer> {
    let began = Instant::now();
    loop {
        let answer = serde_json::from_value(ask::anything(socket, request).await?)?;
        let is_restarting =
            matches!(&answer, UpgradeAnswer::Refused(UpgradeRefused { error, .. }) if error == RESTARTING);
        if !is_restarting || began.elapsed() >= RESTART {
            return Ok(answer);
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = interrupts.next() => return Ok(answer),
        }
    }
}

/// Why it was not begun.
fn refused(name: &str, answer: &UpgradeRefused) -> anyhow::Error {
    let UpgradeRefused { error, why, upgrade } = answer;
    if error == RESTARTING {
        let what = format!(
            "{name} is not upgraded: {RESTARTING}; try again when it serves, or --force, which does not wait for that"
        );
        return Failure::new(Code::NotReady, what).into();
    }
    Failure::usage(match upgrade {
        _ if error == CLOSES_CONNECTIONS => {
            let why = why.as_ref().map(|why| format!(" ({})", clean(why))).unwrap_or_default();
            format!(
                "{name} cannot hand its connections over{why}: --force stops it and starts it again, which closes them"
            )
        }
        Some(upgrade) => format!("{name}: {}, {}", clean(error), under_way(upgrade)),
        None => format!("{name}: {}", clean(error)),
    })
}

fn gone(name: &str, supervisor: u32) -> anyhow::Error {
    Failure::system(format!(
        "{name} is not upgraded, as far as is known: its supervisor (process {supervisor}) has ended meanwhile, or \
         does not answer"
    ))
}

fn told(name: &str, before: &Program, after: &UpgradeOutcome, begun: &UpgradeBegun) -> String {
    let pid = after.main_pid;
    let last = before.generations.last().map_or(0, |last| last.number);
    match &after.generation {
        // It may say that it serves before it listens: then it is not counted yet.
        Some(Generation { number, pid, pause_ns, pause_until, .. }) if !begun.replaced && *number > last => {
            let pause = Duration::from_nanos(*pause_ns);
            // Of a new program nobody knows.
            let pause = match pause_until.as_str() {
                _ if pause.is_zero() => String::new(),
                "listens" => format!(", listening again after {pause:.1?}"),
                _ => format!(", pause {pause:.1?}"),
            };
            let lost = match begun.keeps {
                Keeps::Idle | Keeps::Listeners => {
                    "; it was restarted from scratch, without what the old one had only in memory"
                }
                _ => "",
            };
            format!(
                "{name} is upgraded: generation {number} (process {pid}) serves after {last}{pause}{lost}"
            )
        }
        _ if before.main_pid == 0 => format!("{name}, which did not run, is started: process {pid} serves"),
        _ => format!("{name} was stopped and started: process {pid} serves after {}", before.main_pid),
    }
}

/// What has happened instead, and who serves now.
fn failed(name: &str, progress: &UpgradeOutcome, begun: &UpgradeBegun, timeout: Duration) -> anyhow::Error {
    let limit = seconds(timeout);
    let why = match (progress.kind, &progress.how) {
        (Some(WhyNot::TooLate), _) if progress.untouched => {
            format!("there was no time to begin within {limit} (--timeout)")
        }
        (Some(WhyNot::TooLate), _) => format!("the new binary did not serve within {limit} (--timeout)"),
        (Some(WhyNot::Cancelled), _) => "interrupted".to_owned(),
        (Some(WhyNot::CannotRun), _) => {
            let program =
                begun.program.as_deref().map(clean).map_or_else(String::new, |file| format!(" ({file})"));
            let why = clean(&progress.why);
            why.replacen("the new binary", &format!("the new binary{program}"), 1)
        }
        (Some(WhyNot::Ended), Some(how)) => format!("the new binary has ended before it served ({how})"),
        (None, _) => "the new binary does not serve".to_owned(),
        _ => clean(&progress.why),
    };
    let now = match begun.keeps {
        _ if progress.stopping || progress.kind == Some(WhyNot::Stopped) => "it is being stopped",
        _ if progress.kind == Some(WhyNot::Unanswered) => "its log and `outlast status` say who serves",
        _ if progress.kind == Some(WhyNot::OldKilled) => {
            "it is started again: its state and connections are lost"
        }
        _ if progress.untouched => "the old one keeps serving, and was not stopped",
        // The new one was never started.
        _ if progress.old_ends => {
            "the old one was told to end already, and is started again when it has (at most --stop-timeout of \
             `outlast run` later): new clients wait until then"
        }
        Keeps::Everything => "the old one keeps serving, with all connections",
        Keeps::Idle => {
            "the old one keeps serving, but was restarted from scratch: with its listening sockets and idle connections, without what it \
             had only in memory"
        }
        Keeps::Listeners => {
            "the old one keeps serving, but was restarted from scratch: with its listening sockets, without connections, and without what \
             it had only in memory"
        }
        Keeps::Nothing => "the old one was stopped and is started again: its connections are closed",
        Keeps::Unknown => "the old one keeps serving",
    };
    let code = if progress.kind == Some(WhyNot::Cancelled) { Code::Interrupted } else { Code::NotReady };
    Failure::new(code, format!("{name} is not upgraded: {why}; {now}")).into()
}

/// The binary as the instance will find it.
fn checked(program: &Path) -> Result<String> {
    let shown = program.display();
    let metadata = std::fs::metadata(program).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::usage(format!("there is no program {shown} (--program)")),
        _ => Failure::usage(format!("cannot look at {}: {error} (--program)", shortened(program))),
    })?;
    if !metadata.is_file() {
        return Err(Failure::usage(format!("{shown} is no program, but something else (--program)")));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(Failure::usage(format!("{shown} cannot be executed: chmod +x it (--program)")));
    }
    let absolute = std::path::absolute(program)?;
    let text = absolute.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::usage(format!("the path {shown} is not UTF-8: rename the program")))
}

/// For a message: some paths are too long for the system, and for people.
fn shortened(path: &Path) -> String {
    let shown = path.display().to_string();
    let head: String = shown.chars().take(SHOWN_CHARS).collect();
    if head.len() < shown.len() { format!("{head}… ({} bytes)", shown.len()) } else { shown }
}

/// The one instance that is meant.
async fn find(which: Option<&str>, socket: Option<&Path>) -> Result<Runner> {
    let answers = ask::all(socket).await?;
    let is_meant = |pid: u32, program: &Program| {
        which.is_none_or(|which| {
            which == program.runs || program.pids().chain([pid]).any(|pid| which == pid.to_string())
        })
    };
    let mut found = Vec::new();
    for ask::Instance { path, status, .. } in &answers.instances {
        if let Page::Program(program) = &status.page
            && is_meant(status.pid, program)
        {
            found.push(Runner { socket: path.clone(), pid: status.pid, program: program.clone() });
        }
    }
    let count = found.len();
    match (found.pop(), count) {
        (Some(one), 1) => Ok(one),
        (Some(last), _) => {
            found.push(last);
            Err(Failure::usage(several(&found)))
        }
        (None, _) => {
            answers.complete()?;
            let what =
                which.map_or_else(|| "a program".to_owned(), |which| format!("anything called {which:?}"));
            Err(Failure::usage(format!("no `outlast run` here supervises {what}: see `outlast status`")))
        }
    }
}

/// How to name one of them.
fn several(found: &[Runner]) -> String {
    let have_number = |pid| found.iter().filter(|runner| runner.pid == pid).count();
    if found.iter().any(|runner| have_number(runner.pid) > 1) {
        let all = found.iter().map(|Runner { socket, pid, program }| {
            let socket = socket.display().to_string();
            format!("{} (process {pid}): --admin-socket {}", clean(&program.runs), clean(&socket))
        });
        let all: Vec<String> = all.collect();
        return format!("several programs match, in several PID namespaces; add one of {}", all.join(", "));
    }
    let all = found.iter().map(|runner| format!("{} (process {})", clean(&runner.program.runs), runner.pid));
    format!("several programs match; name one of {}", all.collect::<Vec<_>>().join(", "))
}
