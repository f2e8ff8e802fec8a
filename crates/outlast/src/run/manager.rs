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

    /// Whether there is one that wants to hear of this process.
    pub fn listens(self) -> bool {
        self.listens
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

    /// Stopping may take this long: systemd would kill it at TimeoutStopSec= otherwise.
    pub fn stops_within(self, time: Duration) {
        // The crate's own has 32 bits, which are 71 minutes.
        self.tell(&[NotifyState::Custom(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()))]);
    }

    pub fn alive(self) {
        self.tell(&[NotifyState::Watchdog]);
    }

    pub fn status(self, text: &str) {
        self.tell(&[NotifyState::Status(text)]);
    }

    /// Says that all is well for as long as this is polled, if it is asked to. Does not return.
    pub async fn keep_alive(self) {
        let Some(interval) = self.alive_interval() else { return std::future::pending().await };
        loop {
            self.alive();
            tokio::time::sleep(interval).await;
        }
    }

    fn tell(self, what: &[NotifyState<'_>]) {
        if self.listens
            && let Err(error) = sd_notify::notify(what)
        {
            tracing::debug!("the service manager does not listen: {}", plain(&error));
        }
    }
}
