//! Another binary for the program that is kept running: what is asked for, what becomes of it, and which one serves now.

use super::names::how;
use super::preload;
use outlast_admin::upgrade::{
    self, CLOSES_CONNECTIONS, Keeps, UnderWay, UpgradeAnswer, UpgradeBegun, UpgradeOutcome, UpgradeRefused,
};
use outlast_restart::Death;
use outlast_restart::board::{Backend, Board, PROGRAM_BYTES_MAX, UpgradeEnd, WhyNot};
use outlast_restart::supervisor::{Event, Handle, Hold};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For the new binary to serve; then the old one goes on.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// A program that has crashed has so long to serve again before nobody waits for that.
const RESTARTS_FOR: Duration = Duration::from_secs(30);
/// And so long to be started: where its supervisor pauses longer, another binary may be what it needs.
const STARTS_FOR: Duration = Duration::from_millis(300);
/// A program that was just started has so long to say that it listens before it counts as one that does not.
const LISTENS_FOR: Duration = Duration::from_secs(2);
/// What the kernel says of a file that was replaced.
const REPLACED: &str = " (deleted)";

/// What is loaded into the program.
#[derive(Debug)]
pub struct Preloaded {
    pub library: PathBuf,
    pub hold: Option<Hold>,
}

/// The upgrades of one program.
#[derive(Debug)]
pub struct Upgrades {
    board: &'static Board,
    handle: Handle,
    preloaded: Option<Preloaded>,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// The last wish, and for which program.
    last: Option<(u32, String)>,
    /// Another program than at first.
    serves: Option<String>,
    /// How the last binary has ended that the old one went on after.
    rolled_back: Option<Death>,
    /// The old program is told to end, and the new one is not started before it has.
    old_ends: bool,
}

impl Upgrades {
    pub fn new(board: &'static Board, handle: Handle, preloaded: Option<Preloaded>) -> Self {
        Self { board, handle, preloaded, now: Mutex::default() }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let done = |wish: &u32| self.board.upgrade_end(*wish) == Some(UpgradeEnd::Done);
        if let Some((_, program)) = now.last.take_if(|(wish, _)| done(wish))
            && !program.is_empty()
        {
            now.serves = Some(program);
        }
        now
    }

    pub fn on(&self, event: Event) {
        match event {
            Event::RolledBack { death, .. } => self.now().rolled_back = Some(death),
            Event::Stopping { for_good, .. } => self.now().old_ends = !for_good,
            Event::Started { .. } | Event::Ended { .. } => self.now().old_ends = false,
            _ => {}
        }
    }

    /// Whether the old program is ending, for another one or for itself to be started again.
    pub fn old_ends(&self) -> bool {
        self.now().old_ends
    }

    pub fn is_preloaded(&self) -> bool {
        self.preloaded.is_some()
    }

    /// The program that serves, if it is not the one of the command line.
    pub fn serves(&self) -> Option<String> {
        self.now().serves.clone()
    }

    /// The upgrade that is under way.
    pub fn under_way(&self) -> Option<UnderWay> {
        self.board.upgrade_wanted().map(|wish| {
            let program = wish.program.to_string_lossy().into_owned();
            UnderWay {
                program: (!program.is_empty()).then_some(program),
                began_ms: wish.began_ms,
                timeout_ms: u64::try_from(wish.timeout.as_millis()).unwrap_or(u64::MAX),
                old_ends: self.old_ends(),
            }
        })
    }

    /// Whether the program has crashed, so long ago or just now, and has not said since what of it can be kept.
    pub fn is_restarting(&self, main_pid: u32, crashed_ago: Option<Duration>) -> bool {
        let is_silent = self.hold().is_some() && self.board.backend() == Backend::None;
        match crashed_ago {
            Some(ago) if main_pid == 0 => ago < STARTS_FOR,
            Some(ago) if is_silent && ago < RESTARTS_FOR => true,
            _ => main_pid != 0 && is_dead(main_pid),
        }
    }

    /// What of its sockets is held while it is down.
    fn hold(&self) -> Option<Hold> {
        self.preloaded.as_ref().and_then(|preloaded| preloaded.hold)
    }

    /// Waits until the supervisor knows that a preloaded program listens, for [`LISTENS_FOR`] at the most. The caller of
    /// `outlast upgrade` may have connected to the program before the supervisor has read the message that says so.
    pub async fn wait_until_it_listens(&self) {
        let deadline = Instant::now() + LISTENS_FOR;
        while self.hold().is_some() && self.board.backend() == Backend::None && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Begins one, or says why it does not.
    pub fn begin(&self, main_pid: u32, program: &str, force: bool, timeout: Duration) -> UpgradeAnswer {
        if program.len() > PROGRAM_BYTES_MAX {
            let error = format!("the program's path is longer than {PROGRAM_BYTES_MAX} bytes");
            return UpgradeAnswer::Refused(UpgradeRefused::new(error));
        }
        // While the old one ends, and the new one begins, it can tell of itself neither way.
        let under_way = || {
            let upgrade = self.under_way();
            UpgradeAnswer::Refused(UpgradeRefused {
                upgrade,
                ..UpgradeRefused::new("another upgrade is under way")
            })
        };
        if self.board.upgrade_wanted().is_some() {
            return under_way();
        }
        let hindrance = self.hindrance(main_pid, program);
        // While it waits to be started again it has no connections.
        let runs = main_pid != 0;
        if let Some(why) = hindrance.as_ref().filter(|_| runs && !force) {
            let why = Some(why.clone());
            return UpgradeAnswer::Refused(UpgradeRefused { why, ..UpgradeRefused::new(CLOSES_CONNECTIONS) });
        }
        let replaced = hindrance.is_some() || !runs;
        // Its sockets are held while it is stopped and the new one is started.
        let starts_again = replaced || self.board.backend() == Backend::Exec;
        let mut now = self.now();
        let Some(wish) = self.handle.upgrade(Path::new(program), starts_again, timeout) else {
            drop(now);
            return under_way();
        };
        (now.last, now.rolled_back) = (Some((wish, program.to_owned())), None);
        let keeps = match (self.board.backend(), self.hold()) {
            // What is held of a crashed one stays so.
            (Backend::None | Backend::Exec, Some(Hold::Idle)) if !runs => Keeps::Idle,
            (Backend::None | Backend::Exec, Some(Hold::Listeners)) if !runs => Keeps::Listeners,
            _ if replaced => Keeps::Nothing,
            (Backend::Library, _) => Keeps::Everything,
            (_, Some(Hold::Listeners)) => Keeps::Listeners,
            _ => Keeps::Idle,
        };
        let file = if program.is_empty() { file_of(main_pid) } else { Some(program.into()) };
        let program = file.map(|file| file.to_string_lossy().into_owned());
        UpgradeAnswer::Begun(UpgradeBegun { wish, replaced, keeps, program })
    }

    /// Whether the process that starts its generations was killed, and one of those is the main process.
    pub fn is_without_zygote(&self, main_pid: u32) -> bool {
        self.board.backend() == Backend::Library && !self.board.takes_upgrades(main_pid)
    }

    /// Why the program has to be stopped for another one, if so.
    fn hindrance(&self, main_pid: u32, program: &str) -> Option<String> {
        match self.board.backend() {
            Backend::None if self.hold().is_some() => {
                return Some("the library is preloaded, and knows of no listening socket of it".into());
            }
            Backend::None => return Some("it does not use the library, nor is it preloaded".into()),
            Backend::Roles => return Some("it has several processes with roles".into()),
            Backend::Library => {}
            Backend::Exec => {
                let file = if program.is_empty() { file_of(main_pid) } else { Some(program.into()) };
                if let (Some(Preloaded { library, .. }), Some(file)) = (&self.preloaded, file)
                    && let Some(why) = preload::obstacle(library, file.as_os_str(), OsStr::new(""))
                {
                    return Some(format!("the library cannot be preloaded into the new binary: {why}"));
                }
            }
        }
        self.is_without_zygote(main_pid)
            .then(|| "its zygote, which would become the new binary, was killed".into())
    }

    /// The wish is no longer one. Only the one that is under way can be withdrawn.
    /// Whether it was.
    pub fn cancel(&self, wish: u32) -> bool {
        withdraw(self.board, &self.handle, wish)
    }

    /// Withdraws the wish when whoever has asked for it ends before it does. Where the system does not tell, it stays.
    pub fn withdraw_without(&self, asker: Pid, wish: u32, name: &str) {
        let (board, handle, name) = (self.board, self.handle.clone(), name.to_owned());
        let watch = move || {
            if has_ended(asker) && withdraw(board, &handle, wish) {
                let asker = asker.as_raw_nonzero();
                tracing::warn!(
                    "process {asker}, which wants {name} to be upgraded, has ended: that is withdrawn"
                );
            }
        };
        if let Err(error) = std::thread::Builder::new().name("asker".into()).spawn(watch) {
            tracing::warn!("whether who asks for the upgrade goes on waiting is not known: {error}");
        }
    }

    /// How a wish has ended.
    pub fn outcome(&self, wish: u32) -> UpgradeOutcome {
        let rolled_back = self.now().rolled_back;
        let old_ends = self.old_ends();
        let Some(end) = self.board.upgrade_end(wish) else {
            return UpgradeOutcome { old_ends, ..UpgradeOutcome::default() };
        };
        let UpgradeEnd::Failed { why, untouched } = end else {
            return UpgradeOutcome { done: Some(true), ..UpgradeOutcome::default() };
        };
        // Only who buries the new binary knows how it has ended.
        let why = match why {
            WhyNot::Ended { death: None } => WhyNot::Ended { death: rolled_back },
            why => why,
        };
        let (kind, died) = match why {
            WhyNot::Unable => (upgrade::WhyNot::Unable, None),
            WhyNot::CannotRun { .. } => (upgrade::WhyNot::CannotRun, None),
            WhyNot::Ended { death } => (upgrade::WhyNot::Ended, death.map(how)),
            WhyNot::TooLate => (upgrade::WhyNot::TooLate, None),
            WhyNot::Cancelled => (upgrade::WhyNot::Cancelled, None),
            WhyNot::Unanswered => (upgrade::WhyNot::Unanswered, None),
            WhyNot::OldKilled => (upgrade::WhyNot::OldKilled, None),
            WhyNot::Stopped => (upgrade::WhyNot::Stopped, None),
        };
        UpgradeOutcome {
            done: Some(false),
            kind: Some(kind),
            why: why.to_string(),
            how: died,
            untouched,
            old_ends,
            ..UpgradeOutcome::default()
        }
    }
}

/// Whether a process has ended, and its end may not be known to its parent yet.
fn is_dead(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Whether the wish was under way.
fn withdraw(board: &Board, handle: &Handle, wish: u32) -> bool {
    let is_under_way = board.upgrade_wanted().is_some_and(|wanted| wanted.number == wish);
    if is_under_way {
        handle.cancel_upgrade(wish);
    }
    is_under_way
}

/// Waits for a process to end. False, and at once, where that cannot be known.
fn has_ended(pid: Pid) -> bool {
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(error) => return error == Errno::SRCH,
    };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            polled => return polled.is_ok(),
        }
    }
}

/// The file that a process executes, or what is by its name now.
fn file_of(pid: u32) -> Option<PathBuf> {
    let file = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let shown = file.to_str()?;
    Some(shown.strip_suffix(REPLACED).unwrap_or(shown).into())
}
