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
    /// None: whoever has started the program has it ignored, as nohup(1) does.
    hang_up: Option<Signal>,
    draining: bool,
}

impl Signals {
    /// From now on the signals are ours. Needs a tokio runtime.
    pub fn new() -> Result<Self> {
        let on = |kind| signal(kind).context("cannot handle signals");
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hang_up: if is_hang_up_ignored() { None } else { Some(on(SignalKind::hangup())?) },
            draining: false,
        })
    }

    /// The next request.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.interrupt.recv() => return Request::Now(Code::Interrupted),
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

/// As proc(5) tells: a bit for each signal, the lowest one is that of signal 1.
fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(ignored.trim(), 16).is_ok_and(|ignored| ignored & 1 << (libc::SIGHUP - 1) != 0)
}
