//! Between a client's attempts at a link: who makes them, when, and when no more.

use super::{Ctl, Engine, EventKind};
use crate::config::AckMode;
use crate::error::Error;
use crate::proto::State;
use crate::targets::Targets;
use outlast_stream::Backoff;
use rand::RngExt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

impl Engine {
    /// Whether the last refusal changed the mode, so that another attempt at once makes sense.
    pub(crate) fn has_other_mode(&self) -> bool {
        let ctl = self.ctl.lock();
        let tls = matches!(self.config.security, crate::config::Security::Tls(_));
        self.config.ack == AckMode::Auto && !tls && !ctl.client.auto && !ctl.welcomed
    }

    /// Whether the server has welcomed the session.
    pub(crate) fn is_established(&self) -> bool {
        self.ctl.lock().welcomed
    }

    /// Claims the making of a new link. False if somebody is at it, or the session is over.
    pub(crate) fn begin_reconnecting(&self) -> bool {
        let mut ctl = self.ctl.lock();
        let over = ctl.life.is_over() || ctl.life.state() == State::Passive;
        !over && !std::mem::replace(&mut ctl.reconnecting, true)
    }

    /// A fresh back-off for one outage.
    pub(crate) fn backoff(&self) -> Backoff {
        let seed = self.config.seed.unwrap_or_else(|| rand::rng().random());
        Backoff::new(self.config.backoff_base, self.config.backoff_max, seed)
    }

    /// Sleeps between two attempts, unless the network changes or the session ends.
    pub(crate) fn wait_backoff(&self, delay: Duration) {
        let deadline = std::time::Instant::now() + delay;
        let hurry = self.ctl.lock().hurry;
        self.wait_change(Some(deadline), |ctl| ctl.failure.is_some() || ctl.hurry != hurry);
    }

    /// The network changed: whoever waits to try again does so now.
    pub(crate) fn interrupt_backoff(&self) {
        self.interrupt_wait(&mut self.ctl.lock());
    }

    /// Wakes whoever waits between two attempts, or for the last word.
    pub(super) fn interrupt_wait(&self, ctl: &mut Ctl) {
        ctl.hurry += 1;
        self.changed.notify_all();
        self.hurry.notify_waiters();
    }

    /// An attempt failed: says so.
    pub(crate) fn note_retry(&self, attempt: u32, error: &str, next: Duration) {
        let ctl = self.ctl.lock();
        self.emit(&ctl, EventKind::Retry { attempt, error: error.to_owned(), next });
    }

    /// Whether the kernel would now choose another source address for the peer than the present link has, or cannot
    /// reach it at all.
    pub(crate) fn path_changed(&self) -> bool {
        let Some(link) = self.link() else { return true };
        match source_address_for(link.peer_addr) {
            Ok(address) => link.local_addr().is_none_or(|local| address.ip() != local.ip()),
            Err(_) => false,
        }
    }

    /// Texts for an error about all addresses.
    pub(crate) fn give_up(&self, targets: &Targets, last: String) -> Error {
        let patience = match self.config.patience {
            crate::config::Patience::For(limit) => limit,
            crate::config::Patience::Forever => Duration::MAX,
        };
        let tx = self.tx.lock();
        let unacked_bytes = tx.sender.end_offset() - tx.sender.acked_offset();
        Error::PatienceExhausted { targets: targets.to_string(), patience, last, unacked_bytes }
    }
}

/// Which address the host would send from: a connected datagram socket sends nothing.
fn source_address_for(peer: SocketAddr) -> io::Result<SocketAddr> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(peer)?;
    socket.local_addr()
}
