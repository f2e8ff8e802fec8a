//! A program that is kept running: from its settings to its end.

mod attend;
pub mod capture;
mod check;
mod elf;
mod launch;
pub mod limits;
pub mod manager;
pub mod names;
mod notify;
pub mod parts;
pub mod pipe_signal;
pub mod preload;
mod state;
mod tell;
pub mod upgrade;

use crate::admin_folder::LinkFolders;
use crate::cli::ProcessArgs;
use crate::cmd::run::When;
use crate::cmd::run::{KeepConnections, Preload, RunArgs};
use crate::exit::{Code, Failure};
use crate::narrate::seconds;
use anyhow::Result;
use capture::{Capture, Place};
use launch::Launch;
use manager::Manager;
use notify::Notify;
use outlast_restart::board::Backend;
use outlast_restart::supervisor::{
    Attempt, Event, Hold, Left, Outcome, Readiness, Restart, Settings, Supervisor, TakenOver,
    without_supervisor,
};
use outlast_session::relay::dial::plain;
use preload::Choice;
use state::State;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use upgrade::Preloaded;

/// After SIGTERM, time for the program to end. Default 45 s: servers that give their clients 30 s to finish (gunicorn, squid) need a moment
/// more to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(45);
/// What is left to do then.
const STOPS_WITHIN: Duration = Duration::from_secs(5);
/// A library that was loaded unasked into a program that never waits for clients says nothing: that one is ready, too.
const READY_UNTOLD: Duration = Duration::from_secs(10);

/// What `outlast run` will do.
#[derive(Debug)]
pub struct Plan {
    name: String,
    settings: Settings,
    launch: Launch,
    output: Option<Place>,
    notify: bool,
    /// Why no library is loaded into it, and whether nobody expects one.
    bare: Option<(String, bool)>,
}

impl Plan {
    /// By which `outlast status` and `outlast upgrade` know it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it would end with, each with the setting that is to blame. Nothing is started, opened or made.
    pub fn check(&self) -> Vec<(&'static str, anyhow::Error)> {
        let limits = self.launch.limits.iter().filter_map(|limit| limit.check().err());
        let mut faults: Vec<_> = limits.map(|why| ("limit", Failure::system(why))).collect();
        if let Err(error) = check::executable(&self.launch) {
            let (code, why) = why_not(self, error.raw_os_error().unwrap_or(libc::EIO));
            faults.push(("program", Failure::new(code, why).into()));
        }
        let file = self.output.as_ref().map(|place| place.file.as_path());
        if let Some((file, Err(error))) = file.map(|file| (file, check::writable(file))) {
            faults.push(("log-to", capture::cannot_write(file, &error)));
        }
        faults
    }
}

/// Checks the settings of `outlast run`. Nothing is started.
pub fn plan(args: &RunArgs) -> Result<Plan> {
    let Some((program, arguments)) = args.program.split_first() else {
        let how = "give it behind --, as in `outlast run -- ./my-server --port 80` (in a file: program)";
        return Err(Failure::usage(format!("no program to run: {how}")));
    };
    let surroundings = &args.surroundings;
    if let Some(folder) = surroundings.working_directory.as_deref().filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        return Err(Failure::usage(format!("there is no folder {folder} to run in (--working-directory)")));
    }
    let mut launch = Launch {
        program: program.clone(),
        arguments: arguments.to_vec(),
        environment: surroundings.environment.clone(),
        directory: surroundings.working_directory.clone(),
        limits: surroundings.limit.clone(),
        nice: surroundings.nice,
        oom_score_adjust: surroundings.oom_score_adjust,
        watchdog: args.ready.watchdog,
        ..Launch::default()
    };
    let when = args.preload.preload.unwrap_or_default();
    let path = launch.variable("PATH").unwrap_or_default();
    let choice = preload::choose(when, args.preload.preload_library.as_deref(), program, &path)?;
    let bare = match choice {
        Choice::Load(library) => {
            launch.preload = Some(library);
            None
        }
        Choice::Without { why, is_expected } => Some((why, is_expected)),
    };
    let file_name = || Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
    let name = args.name.clone().unwrap_or_else(file_name);
    let settings = settings(args, launch.preload.is_some(), when)?;
    Ok(Plan {
        settings: Settings {
            // What is loaded into it lets it live on.
            orphan_signal: launch.preload.is_none().then_some(settings.stop_signal),
            name: name.clone(),
            // Of programs that are called by their file there may be several.
            key: Some(key(&name)),
            is_exclusive: args.name.is_some(),
            hold: launch.preload.as_ref().map(|_| match args.preload.keep_connections {
                Some(KeepConnections::Listeners) => Hold::Listeners,
                _ => Hold::Idle,
            }),
            ..settings
        },
        name,
        output: args.output.log_to.as_ref().map(|file| Place {
            file: file.clone(),
            size_bytes: args.output.log_size.map_or(capture::SIZE_BYTES, |size| size as u64),
            keep: args.output.log_keep.unwrap_or(capture::KEEP),
        }),
        notify: args.ready.notify,
        launch,
        bare,
    })
}

fn settings(args: &RunArgs, preloaded: bool, preload: Preload) -> Result<Settings> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut settings = Settings { stop_timeout: Some(STOP_TIMEOUT), ..Settings::default() };
    let (restart, stop, ready) = (&args.restart, &args.stop, &args.ready);
    let policy = &mut settings.policy;
    policy.intensity = restart.intensity.unwrap_or(policy.intensity);
    policy.intensity_window_ms = restart.window.map_or(policy.intensity_window_ms, millis);
    policy.transient_after_ms = restart.transient_after.map_or(policy.transient_after_ms, millis);
    policy.hang_timeout_ms = restart.hang_timeout.map_or(policy.hang_timeout_ms, millis);
    settings.own_hang_timeout = restart.hang_timeout.is_none();
    settings.restart = match restart.restart {
        None | Some(When::OnFailure) => Restart::OnFailure,
        Some(When::Always) => Restart::Always,
        Some(When::Never) => Restart::Never,
    };
    if !restart.success_codes.is_empty() {
        settings.success = names::with_signals(&restart.success_codes).collect();
    }
    settings.backoff_min = restart.backoff_min.unwrap_or(settings.backoff_min);
    settings.backoff_max = restart.backoff_max.unwrap_or(settings.backoff_max.max(settings.backoff_min));
    if settings.backoff_max < settings.backoff_min {
        return Err(Failure::usage("--backoff-max is less than --backoff-min"));
    }
    settings.stop_signal = stop.stop_signal.unwrap_or(settings.stop_signal);
    settings.stop_timeout = stop.stop_timeout.or(settings.stop_timeout).filter(|time| !time.is_zero());
    settings.start_timeout = ready.start_timeout;
    settings.watchdog_timeout = ready.watchdog;
    let tells_board = preloaded || ready.start_timeout.is_some();
    settings.readiness = match (ready.notify, tells_board) {
        (true, _) => Readiness::Told,
        (false, true) => Readiness::Board,
        (false, false) => Readiness::Started,
    };
    let unsure = settings.readiness == Readiness::Board && preload == Preload::Auto;
    settings.assume_ready_after = Some(READY_UNTOLD).filter(|_| unsure && ready.start_timeout.is_none());
    Ok(settings)
}

/// By these a program dies that has a fault.
const FAULTS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGILL, libc::SIGFPE];

/// Runs the program until it ends in order, is told to end, or fails too often. Ends with its code.
pub fn run(mut plan: Plan, process: &ProcessArgs) -> Result<Code> {
    let manager = Manager::of_this_process();
    plan.settings.alive_interval = manager.alive_interval();
    let link_folders = plan.settings.hold.is_some().then(LinkFolders::new).unwrap_or_default();
    plan.settings.link_folders = link_folders.paths().to_vec();
    // Before any thread: they hold back the signals that this one does.
    let supervisor = Supervisor::new(plan.settings.clone()).map_err(|error| taken(&plan.name, error))?;
    say_what_is_not_kept(&plan, &supervisor);
    // What an earlier one has left serves still: it is not ended for a start that cannot be.
    if plan.settings.is_exclusive
        && let Some((_, fault)) = plan.check().into_iter().next()
    {
        return Err(fault);
    }
    for left in without_supervisor(&plan.name) {
        let (name, Left { pid, supervisor, .. }) = (&plan.name, left);
        let taken_over = if plan.settings.hold.is_some() && !plan.settings.is_exclusive {
            format!("if this {name} listens at the same address, its sockets are taken over; ")
        } else {
            String::new()
        };
        tracing::warn!(
            "process {pid} of an earlier {name} still runs, without its supervisor (process {supervisor}), which is gone: \
             {taken_over}kill {pid} ends it"
        );
    }
    let shown = [&plan.launch.program].into_iter().chain(&plan.launch.arguments);
    let shown = shown.map(|word| word.to_string_lossy().into_owned()).collect();
    let state = Arc::new(State::new(
        (plan.name.clone(), shown),
        plan.launch.preload.clone().map(|library| Preloaded { library, hold: plan.settings.hold }),
        supervisor.board(),
        supervisor.handle(),
        manager,
    ));
    let attendant = attend::attend(Arc::clone(&state), process)?;
    let notify = plan.notify.then(|| Notify::new(supervisor.handle(), Arc::clone(&state))).transpose()?;
    let capture = plan.output.take().map(|place| Capture::start(place, supervisor.handle())).transpose()?;
    supervisor.take_over(|taken| say_what_is_taken_over(&plan, taken));
    let outcome = supervise(&plan, supervisor, &state, manager, (capture, notify));
    drop(attendant);
    drop(link_folders);
    conclude(&plan, outcome?)
}

/// A name is one's own where instances are found: below the folder of their sockets, and for a user.
fn key(name: &str) -> String {
    use std::hash::{Hash, Hasher};
    let mut hasher = std::hash::DefaultHasher::new();
    // The folder of a login is not chosen: a service and a cron job of the same user have none.
    (crate::admin_folder::places::chosen(), std::env::var_os("RUNTIME_DIRECTORY")).hash(&mut hasher);
    rustix::process::geteuid().as_raw().hash(&mut hasher);
    name.hash(&mut hasher);
    let shown: String = name.chars().take(12).collect();
    format!("{:016x} {shown}", hasher.finish())
}

/// Another one runs a program by this name.
fn taken(name: &str, error: outlast_restart::Error) -> anyhow::Error {
    match error {
        outlast_restart::Error::Taken { pid } => Failure::usage(format!(
            "another `outlast run` (process {pid}) keeps {name} running: end that one, or give this one another --name"
        )),
        error => error.into(),
    }
}

/// Of an earlier supervisor of this name.
fn say_what_is_taken_over(plan: &Plan, TakenOver { pids, sockets, refuses }: &TakenOver) {
    let name = &plan.name;
    let shown = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match sockets {
        0 if *refuses => tracing::warn!(
            "{name} of before still runs without its supervisor (process {shown}), and its listening sockets cannot be taken \
             over: it is told to end, and killed if it does not within 5 s; clients are refused until the new one listens"
        ),
        0 => tracing::warn!(
            "{name} of before still runs without its supervisor (process {shown}): it is told to end, \
             and killed if it does not within 5 s"
        ),
        sockets => {
            let limit = plan.settings.stop_timeout.map_or_else(String::new, |time| {
                format!(", and killed after {} (--stop-timeout)", humantime::format_duration(time))
            });
            tracing::warn!(
                "{name} of before still runs without its supervisor (process {shown}): {sockets} of its listening sockets are \
                 taken over, so that nobody is refused: new clients wait until the next one listens. It is told to end{limit}"
            );
        }
    }
}

/// Whoever has not said so expects that the program is protected.
fn say_what_is_not_kept(plan: &Plan, supervisor: &Supervisor) {
    let name = &plan.name;
    match (&plan.bare, supervisor.without_custody()) {
        (Some((why, true)), _) => tracing::info!("{name} runs without the preload library: {why}"),
        (Some((why, false)), _) => tracing::warn!(
            "{name} is started again when it crashes, but its listening sockets and connections are closed then: {why} \
             (--preload never: as it is, without this warning)"
        ),
        (None, Some(error)) => tracing::warn!(
            "{name} is started again when it crashes, but its listening sockets and connections are closed then: \
             they cannot be held here: {}",
            why_not_shared(error)
        ),
        (None, None) => {}
    }
    // Otherwise that was said for the same reason.
    let is_said =
        matches!((&plan.bare, supervisor.without_custody()), (Some((_, false)), _) | (None, Some(_)));
    if let Some(error) = supervisor.without_board().filter(|_| !is_said) {
        tracing::warn!(
            "{name} is started again when it crashes, but if it uses the library its crashes are not known here: there is no \
             memory to share with it: {}",
            why_not_shared(error)
        );
    }
}

/// Why there is no memory that two processes can have.
fn why_not_shared(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            "the limit of the size of files is too small for the memory that they need (raise it: `ulimit -f`, LimitFSIZE= in \
             a unit)"
                .to_owned()
        }
        _ => plain(error).to_string(),
    }
}

fn supervise(
    plan: &Plan,
    supervisor: Supervisor,
    state: &State,
    manager: Manager,
    (capture, mut notify): (Option<Capture>, Option<Notify>),
) -> Result<Outcome> {
    let board = supervisor.board();
    let capture = std::cell::RefCell::new(capture);
    let make = |attempt: Attempt<'_>| -> Command {
        let socket = notify.as_mut().map(|notify| notify.listen(attempt.number)).transpose();
        let socket = socket.unwrap_or_else(|error| {
            tracing::error!("{error}");
            None
        });
        let mut command = plan.launch.command(attempt.program, socket.as_deref());
        if let Some(Err(error)) = capture.borrow().as_ref().map(|capture| capture.attach(&mut command)) {
            tracing::error!("the program's output is not captured: {}", plain(&error));
        }
        command
    };
    let tell = |event| {
        state.on(event);
        if let (Event::Buried { pid }, Some(capture)) = (event, capture.borrow_mut().as_mut()) {
            capture.on_buried(pid);
        }
        match event {
            Event::Ready | Event::Awaits { .. } => manager.ready(),
            Event::Stopping { for_good: true, .. } => {
                manager.stopping();
                if let Some(time) = plan.settings.stop_timeout {
                    manager.stops_within(time + STOPS_WITHIN);
                }
            }
            Event::Alive => manager.alive(),
            _ => {}
        }
        tell::log(plan, board, manager, state.why_old_does_not_serve(), event);
    };
    let outcome = supervisor.run(make, tell);
    if let Some(capture) = capture.into_inner() {
        capture.finish();
    }
    if let Ok(Outcome::Finished | Outcome::Ended(_) | Outcome::GaveUp(_)) = outcome
        && board.backend() == Backend::Exec
    {
        tell::log_closed(&plan.name, board.held().0);
    }
    Ok(outcome?)
}

fn conclude(plan: &Plan, outcome: Outcome) -> Result<Code> {
    let Plan { name, settings, .. } = plan;
    match outcome {
        Outcome::Finished => Ok(Code::Ok),
        Outcome::Stopped(death) | Outcome::Ended(death) => {
            // By the signal that it was sent, or killed as it did not end, which was said.
            if let outlast_restart::Death::Signal(number) = death
                && FAULTS.contains(&number)
            {
                tracing::warn!("{name} has {death} while it was ending");
            }
            std::process::exit(death.exit_code())
        }
        Outcome::GaveUp(death) => {
            let (intensity, window) = tell::intensity(plan);
            // With --restart always some of them may be ends in order.
            let others = if settings.restart == Restart::Always { "ends" } else { "crashes" };
            tracing::error!(
                "{name} has {death}, after {intensity} other {others} within {window}: it is not started again"
            );
            std::process::exit(death.exit_code())
        }
        Outcome::CannotStart { code } => {
            let (code, why) = why_not(plan, code);
            Err(Failure::new(code, why).into())
        }
        Outcome::NotReady => {
            let limit = seconds(settings.start_timeout.unwrap_or_default());
            let what = format!("{name} was not ready within {limit} (--start-timeout), and is ended");
            Err(Failure::new(Code::NotReady, what).into())
        }
        Outcome::Background { pid } => Err(Failure::usage(format!(
            "{name} has gone into the background, where it cannot be kept running, nor its connections: process {pid} and \
             those below it are ended. Have it stay in the foreground, such as by `daemon off;` (nginx) or \
             `daemonize no` (redis)"
        ))),
        // Whatever else there may be one day.
        other => Err(anyhow::anyhow!("{name}: {other:?}")),
    }
}

/// Why the program cannot be started, from the system's error, and what that is to whoever wants it.
fn why_not(plan: &Plan, code: i32) -> (Code, String) {
    let Launch { program, .. } = &plan.launch;
    let shown = program.to_string_lossy();
    if let Some(why) = plan.launch.explain(code) {
        return (Code::System, format!("cannot run {shown}: it {}", crate::exit::clean(&why)));
    }
    let error = io::Error::from_raw_os_error(code);
    let path = plan.launch.variable("PATH").unwrap_or_default();
    let (code, why) = match error.kind() {
        io::ErrorKind::NotFound if preload::find(program, &path).is_some() => {
            (Code::Usage, "what its first line or its header names to run it is not there".to_owned())
        }
        io::ErrorKind::NotFound if program.as_encoded_bytes().starts_with(b"-") => {
            (Code::Usage, "there is no such option, and no such program".to_owned())
        }
        io::ErrorKind::NotFound => {
            (Code::Usage, format!("there is no such program{}", as_words(&plan.launch)))
        }
        _ => (Code::System, plain(&error)),
    };
    (code, format!("cannot run {shown}: {why}"))
}

/// A command line that was given as one word is no program: how it is meant.
fn as_words(launch: &Launch) -> String {
    let program = launch.program.to_string_lossy();
    let words: Vec<String> = program.split_whitespace().map(|word| format!("{word:?}")).collect();
    match (words.as_slice(), launch.arguments.as_slice()) {
        ([_, _, ..], []) => {
            format!(
                ": each argument is a word of its own, in a file a list: program = [{}]",
                words.join(", ")
            )
        }
        _ => String::new(),
    }
}
