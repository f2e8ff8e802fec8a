//! SIGTERM asks to drain; a second one, or SIGINT, to end now. What that means is for the command to decide: `listen`
//! never ends the sessions of others at once, unless it is asked three times.

use crate::exit::Code;
use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Drain,
    Now(Code),
}

/// The signals that the program heeds.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    draining: bool,
}

impl Signals {
    /// From now on the signals are ours. Needs a tokio runtime.
    pub fn new() -> Result<Self> {
        let on = |kind| signal(kind).context("cannot handle signals");
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hang_up: on(SignalKind::hangup())?,
            draining: false,
        })
    }

    /// The next request.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.interrupt.recv() => return Request::Now(Code::Interrupted),
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
        if std::mem::replace(&mut self.draining, true) { Request::Now(Code::Ok) } else { Request::Drain }
    }
}
