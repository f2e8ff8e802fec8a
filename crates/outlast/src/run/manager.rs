//! What our own service manager is told: systemd, or whoever has set NOTIFY_SOCKET.

use outlast_session::relay::dial::plain;
use sd_notify::NotifyState;
use std::time::Duration;

/// A service manager, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Manager {
    listens: bool,
}

impl Manager {
    /// Whoever has started this process.
    pub fn of_this_process() -> Self {
        Self { listens: std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty()) }
    }

    /// How often it wants to hear that all is well: half of the time after which it thinks otherwise.
    pub fn alive_interval(self) -> Option<Duration> {
        sd_notify::watchdog_enabled().filter(|_| self.listens).map(|time| time / 2)
    }

    pub fn ready(self) {
        self.tell(&[NotifyState::Ready]);
    }

    pub fn stopping(self) {
        self.tell(&[NotifyState::Stopping]);
    }

    pub fn alive(self) {
        self.tell(&[NotifyState::Watchdog]);
    }

    pub fn status(self, text: &str) {
        self.tell(&[NotifyState::Status(text)]);
    }

    fn tell(self, what: &[NotifyState<'_>]) {
        if self.listens
            && let Err(error) = sd_notify::notify(what)
        {
            tracing::debug!("the service manager does not listen: {}", plain(&error));
        }
    }
}
