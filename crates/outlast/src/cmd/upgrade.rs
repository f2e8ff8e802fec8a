//! `outlast upgrade`.

use crate::admin::{Request, ask_all};
use crate::cli::{ProcessArgs, UpgradeArgs};
use crate::exit::{Code, Failure, clean};
use crate::narrate::seconds;
use crate::run::upgrade::{RESTARTING, TIMEOUT};
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};

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

/// What is asked of an instance that runs a program.
#[derive(Debug, Deserialize)]
struct View {
    pid: u32,
    runs: String,
    main_pid: u32,
    generations: Vec<GenerationView>,
}

#[derive(Debug, Deserialize)]
struct GenerationView {
    number: u32,
    pid: u32,
    pause_ns: u64,
    /// An earlier version does not say it.
    #[serde(default)]
    pause_until: String,
}

/// The answer to a wish.
#[derive(Debug, Deserialize)]
struct Begun {
    wish: Option<u32>,
    replaced: Option<bool>,
    /// What a new generation has of the old one.
    keeps: Option<String>,
    /// The file that was meant.
    program: Option<String>,
    error: Option<String>,
    why: Option<String>,
    upgrade: Option<UnderWay>,
}

/// An upgrade that is not over.
#[derive(Debug, Deserialize)]
pub struct UnderWay {
    program: Option<String>,
    began_ms: u64,
    timeout_ms: u64,
    /// Its time begins when the old one has ended. No instance of an earlier version says so.
    #[serde(default)]
    old_ends: bool,
}

impl UnderWay {
    /// To which program, and since when.
    pub fn told(&self) -> String {
        let program = self.program.as_deref().map_or_else(|| "what is at its path now".to_owned(), clean);
        let began = SystemTime::UNIX_EPOCH + Duration::from_millis(self.began_ms);
        let since = SystemTime::now().duration_since(began).unwrap_or_default();
        let (began, limit) =
            (humantime::format_rfc3339_seconds(began), Duration::from_millis(self.timeout_ms));
        if self.old_ends {
            return format!("to {program}, since {began}, as soon as the old one has ended");
        }
        format!("to {program}, since {began} ({} of {} at the most)", seconds(since), seconds(limit))
    }
}

/// The answer to the question how it went.
#[derive(Debug, Deserialize)]
struct Progress {
    done: Option<bool>,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    why: String,
    /// The new binary's end.
    how: Option<String>,
    #[serde(default)]
    untouched: bool,
    #[serde(default)]
    stopping: bool,
    /// The old one is told to end, and has not yet. No instance of an earlier version says so.
    #[serde(default)]
    old_ends: bool,
    main_pid: u32,
    generation: Option<GenerationView>,
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
    let (socket, view) = find(args.which.as_deref(), process.admin_socket.as_deref()).await?;
    let mut interrupts = Interrupts::new()?;
    let name = clean(&view.runs);
    let timeout_ms = args.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let request = Request::Upgrade { program, force: args.force, timeout_ms };
    let begun = begin(&socket, &request, &mut interrupts).await?;
    let Some(wish) = begun.wish else { return Err(refused(&name, &begun)) };
    let timeout = args.timeout.unwrap_or(TIMEOUT);
    let (began, mut deadline) = (Instant::now(), Instant::now() + timeout + LATE);
    let (mut interrupted, mut ended, mut is_told) = (false, None, false);
    loop {
        let answer = ask(&socket, &Request::Outcome { wish }).await.map_err(|_| gone(&name, view.pid))?;
        let progress = Progress::deserialize(answer)?;
        if progress.old_ends {
            // Its time has not begun.
            deadline = Instant::now() + timeout + LATE;
            if began.elapsed() >= timeout && !std::mem::replace(&mut is_told, true) {
                eprintln!(
                    "{name}: the old one has not ended yet; the new one is started when it has, or is killed \
                     (--stop-timeout of `outlast run`), and has {} then: new clients wait; Ctrl-C withdraws the upgrade",
                    seconds(timeout)
                );
            }
        }
        match progress.done {
            Some(true) => {
                println!("{}", told(&name, &view, &progress, &begun));
                return Ok(Code::Ok);
            }
            Some(false) => {
                // How the new binary has ended is told soon.
                let since = ended.get_or_insert_with(Instant::now).elapsed();
                let known = progress.kind != "ended" || progress.how.is_some() || progress.stopping;
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
                ask(&socket, &Request::Withdraw { wish }).await.map_err(|_| gone(&name, view.pid))?;
            }
        }
    }
}

/// Asks for it, once more after a moment as long as the program is being started again after a crash.
async fn begin(socket: &Path, request: &Request, interrupts: &mut Interrupts) -> Result<Begun> {
    let began = Instant::now();
    loop {
        let begun = Begun::deserialize(ask(socket, request).await?)?;
        if begun.error.as_deref() != Some(RESTARTING) || began.elapsed() >= RESTART {
            return Ok(begun);
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = interrupts.next() => return Ok(begun),
        }
    }
}

/// Why it was not begun.
fn refused(name: &str, begun: &Begun) -> anyhow::Error {
    if begun.error.as_deref() == Some(RESTARTING) {
        let what = format!(
            "{name} is not upgraded: {RESTARTING}; try again when it serves, or --force, which does not wait for that"
        );
        return Failure::new(Code::NotReady, what).into();
    }
    Failure::usage(match (begun.error.as_deref(), &begun.upgrade) {
        (Some("closes connections"), _) => {
            let why = begun.why.as_ref().map(|why| format!(" ({})", clean(why))).unwrap_or_default();
            format!(
                "{name} cannot hand its connections over{why}: --force stops it and starts it again, which closes them"
            )
        }
        (Some(error), Some(upgrade)) => format!("{name}: {error}, {}", upgrade.told()),
        (error, _) => format!("{name}: {}", error.unwrap_or("it does not answer the question")),
    })
}

fn gone(name: &str, supervisor: u32) -> anyhow::Error {
    Failure::system(format!(
        "{name} is not upgraded, as far as is known: its supervisor (process {supervisor}) has ended meanwhile, or \
         does not answer"
    ))
}

fn told(name: &str, before: &View, after: &Progress, begun: &Begun) -> String {
    let pid = after.main_pid;
    let last = before.generations.last().map_or(0, |last| last.number);
    match &after.generation {
        // It may say that it serves before it listens: then it is not counted yet.
        Some(GenerationView { number, pid, pause_ns, pause_until })
            if begun.replaced != Some(true) && *number > last =>
        {
            let pause = Duration::from_nanos(*pause_ns);
            // Of a new program nobody knows.
            let pause = match pause_until.as_str() {
                _ if pause.is_zero() => String::new(),
                "listens" => format!(", listening again after {pause:?}"),
                _ => format!(", pause {pause:?}"),
            };
            let anew = match begun.keeps.as_deref() {
                Some("idle" | "listeners") => {
                    "; it was restarted from scratch, without what the old one had only in memory"
                }
                _ => "",
            };
            format!(
                "{name} is upgraded: generation {number} (process {pid}) serves after {last}{pause}{anew}"
            )
        }
        _ if before.main_pid == 0 => format!("{name}, which did not run, is started: process {pid} serves"),
        _ => format!("{name} was stopped and started: process {pid} serves after {}", before.main_pid),
    }
}

/// What has happened instead, and who serves now.
fn failed(name: &str, progress: &Progress, begun: &Begun, timeout: Duration) -> anyhow::Error {
    let limit = seconds(timeout);
    let why = match (progress.kind.as_str(), &progress.how) {
        ("too late", _) if progress.untouched => {
            format!("there was no time to begin within {limit} (--timeout)")
        }
        ("too late", _) => format!("the new binary did not serve within {limit} (--timeout)"),
        ("cancelled", _) => "interrupted".to_owned(),
        ("cannot run", _) => {
            let program =
                begun.program.as_deref().map(clean).map_or_else(String::new, |file| format!(" ({file})"));
            let why = clean(&progress.why);
            why.replacen("the new binary", &format!("the new binary{program}"), 1)
        }
        ("ended", Some(how)) => format!("the new binary has ended before it served ({how})"),
        ("", _) => "the new binary does not serve".to_owned(),
        _ => clean(&progress.why),
    };
    let now = match begun.keeps.as_deref() {
        _ if progress.stopping || progress.kind == "stopped" => "it is being stopped",
        _ if progress.kind == "unanswered" => "its log and `outlast status` say who serves",
        _ if progress.kind == "old killed" => "it is started again: its state and connections are lost",
        _ if progress.untouched => "the old one keeps serving, and was not stopped",
        // The new one was never started.
        _ if progress.old_ends => {
            "the old one was told to end already, and is started again when it has (at most --stop-timeout of \
             `outlast run` later): new clients wait until then"
        }
        Some("everything") => "the old one keeps serving, with all connections",
        Some("idle") => {
            "the old one keeps serving, but was restarted from scratch: with its listening sockets and idle connections, without what it \
             had only in memory"
        }
        Some("listeners") => {
            "the old one keeps serving, but was restarted from scratch: with its listening sockets, without connections, and without what \
             it had only in memory"
        }
        Some("nothing") => "the old one was stopped and is started again: its connections are closed",
        _ => "the old one keeps serving",
    };
    let code = if progress.kind == "cancelled" { Code::Interrupted } else { Code::NotReady };
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
async fn find(which: Option<&str>, socket: Option<&Path>) -> Result<(PathBuf, View)> {
    let answers = ask_all(socket, &Request::Status {}).await?;
    let runs = answers.answers.iter().filter(|(_, status)| status.get("runs").is_some());
    let mut found = Vec::new();
    for (path, status) in runs {
        let view = View::deserialize(status)?;
        let pids = [view.pid, view.main_pid].map(|pid| pid.to_string());
        let serving = view.generations.last().map(|last| last.pid.to_string());
        let meant = which.is_none_or(|which| {
            which == view.runs || pids.iter().any(|pid| pid == which) || serving.as_deref() == Some(which)
        });
        if meant {
            found.push((path.clone(), view));
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
fn several(found: &[(PathBuf, View)]) -> String {
    let have_number = |pid| found.iter().filter(|(_, view)| view.pid == pid).count();
    if found.iter().any(|(_, view)| have_number(view.pid) > 1) {
        let all = found.iter().map(|(socket, view)| {
            let socket = socket.display().to_string();
            format!("{} (process {}): --admin-socket {}", clean(&view.runs), view.pid, clean(&socket))
        });
        let all: Vec<String> = all.collect();
        return format!("several programs match, in several PID namespaces; add one of {}", all.join(", "));
    }
    let all = found.iter().map(|(_, view)| format!("{} (process {})", clean(&view.runs), view.pid));
    format!("several programs match; name one of {}", all.collect::<Vec<_>>().join(", "))
}

async fn ask(socket: &Path, request: &Request) -> Result<Value> {
    let answers = ask_all(Some(socket), request).await?;
    answers.answers.into_iter().next().map(|(_, answer)| answer).context("no answer")
}
