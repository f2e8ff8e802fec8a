//! What is asked of a supervisor.

use crate::death::Death;
use crate::policy::Policy;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// After which ends the program is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    /// All but those that count as [success](Settings::success).
    #[default]
    OnFailure,
    /// All of them, unless it was told to end.
    Always,
    /// None.
    Never,
}

/// How it is known that the program serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// It was started.
    #[default]
    Started,
    /// Its [board](crate::board::Board::is_ready) says so.
    Board,
    /// Somebody says so: [`Handle::ready`](super::Handle::ready).
    Told,
}

/// What of a program's sockets is held while it is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Those that listen, and connections on which nobody waits for an answer.
    Idle,
    /// Those that listen.
    Listeners,
}

/// The settings. Times are kept to the millisecond.
#[derive(Clone, Debug)]
pub struct Settings {
    /// By which others find what is left of it ([`without_supervisor`](super::without_supervisor)).
    pub name: String,
    /// What a supervisor of this key has left that was killed is taken over: with [`Settings::is_exclusive`] when this one
    /// begins, or else when its program binds to an address where that listens. None: nothing is. Supervisors of another PID
    /// namespace, as in a container, have keys of their own.
    pub key: Option<String>,
    /// Nobody else of this user may supervise by this key at the same time.
    pub is_exclusive: bool,
    /// What is held for a program that was not changed, into which `liboutlast_preload.so` is loaded. None: nothing.
    pub hold: Option<Hold>,
    /// Folders of this supervisor alone, for second names of the files of UNIX sockets that are held: by these a file is put back that
    /// the program has removed. Where none is in the same file system and mount, the second name is beside the file.
    pub link_folders: Vec<PathBuf>,
    /// How many crashes are too many. The server's own generations keep to it, too.
    pub policy: Policy,
    /// [`Policy::hang_timeout_ms`] is left to the server, which knows best how long it takes.
    pub own_hang_timeout: bool,
    /// After which ends it is started again.
    pub restart: Restart,
    /// Ends that are no failures.
    pub success: BTreeSet<Death>,
    /// Before the second restart in a row; it doubles with each. The first one is at once.
    pub backoff_min: Duration,
    /// And does not grow beyond this.
    pub backoff_max: Duration,
    /// What the program gets when this process gets SIGTERM, or this signal. SIGINT and SIGQUIT are passed on as they are: a
    /// program that ends for one of them, in order, is not started again; one may also go on. Behind SIGQUIT any other code
    /// than 0 and 131 is a crash.
    pub stop_signal: i32,
    /// What the program gets when this process is killed. None: nothing. One that lives on by itself
    /// ([`register`](crate::register)) gets nothing either, and says that it goes on without a supervisor.
    pub orphan_signal: Option<i32>,
    /// A program that was told to end and has not for so long is killed, with all that is below it. None: never.
    pub stop_timeout: Option<Duration>,
    /// A program that is not ready for so long after it was started is killed. None: never.
    pub start_timeout: Option<Duration>,
    /// When it is ready.
    pub readiness: Readiness,
    /// A program that has never said that it is ready, and lives, is taken to be ready after so long. None: never.
    pub assume_ready_after: Option<Duration>,
    /// A program that is ready and gives no [sign of life](super::Handle::sign_of_life) for so long is killed. None: never.
    pub watchdog_timeout: Option<Duration>,
    /// Between two events that say that all is well. None: there are none.
    pub alive_interval: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: String::new(),
            key: None,
            link_folders: Vec::new(),
            is_exclusive: false,
            hold: None,
            policy: Policy::default(),
            own_hang_timeout: true,
            restart: Restart::OnFailure,
            success: BTreeSet::from([Death::Exited(0)]),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            stop_signal: libc::SIGTERM,
            orphan_signal: None,
            stop_timeout: None,
            start_timeout: None,
            readiness: Readiness::Started,
            assume_ready_after: None,
            watchdog_timeout: None,
            alive_interval: None,
        }
    }
}

impl Settings {
    /// Doubles with every crash in a row.
    pub(super) fn pause_before(&self, in_a_row: u32) -> Duration {
        match in_a_row {
            0 | 1 => Duration::ZERO,
            more => self.backoff_min.saturating_mul(1 << (more - 2).min(16)).min(self.backoff_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_at_once_and_later_ones_wait_longer_and_longer() {
        let settings = Settings::default();
        let pauses: Vec<u128> = (1..=12).map(|row| settings.pause_before(row).as_millis()).collect();
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]);
        assert_eq!(settings.pause_before(u32::MAX), settings.backoff_max);
    }
}
