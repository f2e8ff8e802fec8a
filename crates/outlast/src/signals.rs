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
    /// None: it was ignored when the program was started, as a shell without job control does for `outlast listen &`.
    interrupt: Option<Signal>,
    /// None: as nohup(1) does.
    hang_up: Option<Signal>,
    draining: bool,
}

impl Signals {
    /// From now on the signals are ours. Needs a tokio runtime.
    pub fn new() -> Result<Self> {
        let on = |kind| signal(kind).context("cannot handle signals");
        let ignored = ignored_signals();
        // A log that has become larger than a file may (RLIMIT_FSIZE) is no reason to end: from here on writing it fails. Programs that are
        // executed do not inherit that.
        drop(on(SignalKind::from_raw(libc::SIGXFSZ))?);
        let unless_ignored = |kind: SignalKind| {
            let bit = 1 << (kind.as_raw_value() - 1);
            if ignored & bit == 0 { on(kind).map(Some) } else { Ok(None) }
        };
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: unless_ignored(SignalKind::interrupt())?,
            hang_up: unless_ignored(SignalKind::hangup())?,
            draining: false,
        })
    }

    /// The next request.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            () = heard(&mut self.interrupt) => return Request::Now(Code::Interrupted),
            _ = self.terminate.recv() => {}
            () = heard(&mut self.hang_up) => {}
        }
        if std::mem::replace(&mut self.draining, true) { Request::Now(Code::Ok) } else { Request::Drain }
    }
}

async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// A bit for each signal; the lowest one is that of signal 1, as proc(5) has it.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(ignored.trim(), 16).unwrap_or_default()
}
