//! In front of the table: who waits there, who has to leave, and what is said to those who are turned away.

use super::super::{Link, memory};
use super::{Acceptor, Outcome, RETRY_AFTER_MS, is_due};
use crate::config::Security;
use crate::proto::{
    Descriptors, Door, DoorLimits, Hello, LinkMode, Message, Modes, Refusal, Refuse, SessionId, Shortage,
    TurnedAway,
};
use crate::sys;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

impl Acceptor {
    /// A door for a listener's connections.
    pub(crate) fn door(&self) -> Door {
        Door::new(DoorLimits {
            places: Descriptors { most: sys::descriptors_max() }.places(self.config.handshakes_max),
            handshake_timeout: self.config.handshake_timeout,
            ..DoorLimits::default()
        })
    }

    /// Whether this peer has a session here.
    pub(crate) fn knows(&self, peer_addr: SocketAddr) -> bool {
        self.registry.lock().knows(peer_addr.ip())
    }

    /// A connection had to leave the door.
    pub(crate) fn note_turned_away(&self, conn: u64, why: TurnedAway) {
        match why {
            TurnedAway::Crowded => &self.crowded_out,
            TurnedAway::Late => &self.failed_handshakes,
        }
        .fetch_add(1, Ordering::Relaxed);
        if why == TurnedAway::Crowded && is_due(&self.crowd_warned_ms) {
            tracing::warn!(
                "many connections say nothing, or not enough: the oldest are reset, sessions go on (rate-limited, \
                 counted always)"
            );
        } else {
            tracing::debug!(conn, ?why, "a connection ended before its handshake");
        }
    }

    /// A peer with a wrong key or another protocol is worth a warning, but not a log full of them.
    pub(in crate::engine) fn note_failed(&self, link: Option<&Link>, error: &dyn std::fmt::Display) {
        let peer = link.map(|link| link.peer_addr.to_string()).unwrap_or_default();
        if is_due(&self.warned_ms) {
            tracing::warn!(peer, %error, "handshake failed (rate-limited; see metrics for the count)");
        } else {
            tracing::info!(peer, %error, "handshake failed");
        }
    }

    /// Connections cannot be accepted now, most likely for lack of descriptors. They stay in the kernel's queue.
    pub(crate) fn note_not_accepted(&self, error: &std::io::Error) {
        if error.raw_os_error() == Some(libc::EMFILE) {
            // Sessions without a link make room.
            memory::want_descriptors(sys::descriptors_max());
            memory::look();
        }
        if is_due(&self.accept_warned_ms) {
            tracing::warn!(
                "cannot accept connections: {error}; new clients queue until descriptors are free (rate-limited; for too many \
                 open files raise ulimit -n, or lower --max-sessions)"
            );
        }
    }

    /// The client hears that it should come back; why is for the log.
    pub(super) fn note_full(&self, link: &Link, session: SessionId, shortage: Shortage) {
        let peer = link.peer_addr;
        if self.full_warned_ms.get(shortage as usize).is_some_and(is_due) {
            tracing::warn!(%session, %peer, "no new session, the client has to try again: {shortage} (rate-limited)");
        } else {
            tracing::info!(%session, %peer, "no new session, the client has to try again: {shortage}");
        }
    }

    /// The modes on offer now.
    pub(super) fn modes(&self) -> Modes {
        if self.mailbox.get().is_some() {
            self.policy.modes
        } else {
            self.policy.modes.without(LinkMode::Udp)
        }
    }

    /// This mode is not on offer, or not to this client.
    pub(super) fn refuse_mode(&self, link: &Link, hello: &Hello, offered: Modes) -> Outcome {
        self.note_mode_refused(link, hello, offered);
        self.turn_away(Some(link), Refusal::ModeRefused { offered })
    }

    /// A client that can do with another mode asks for that next; one that cannot is set up in another way than this server.
    pub(super) fn note_mode_refused(&self, link: &Link, hello: &Hello, offered: Modes) {
        if !hello.auto && is_due(&self.mode_warned_ms) {
            tracing::warn!(
                session = %hello.id, peer = %link.peer_addr,
                "refused: the client insists on the acknowledgement mode {} (--ack there), --ack here allows {offered} \
                 (rate-limited)",
                hello.mode
            );
        }
    }

    /// Without a descriptor nothing can be accepted: one client hears so, by the one that is kept for that.
    pub(crate) fn turn_one_away(
        &self,
        error: &io::Error,
        accept: impl FnOnce() -> io::Result<(socket2::Socket, SocketAddr)>,
    ) {
        if !sys::is_short(error) {
            return;
        }
        let told = self.spare.lock().lend(|| {
            let (socket, peer_addr) = accept().ok()?;
            // Under TLS it would not understand it.
            if self.admits(peer_addr) && !matches!(self.config.security, Security::Tls(_)) {
                let link = Link::new(socket, None, 0, LinkMode::Inband, peer_addr, true);
                self.turn_away(Some(&link), Refusal::Busy { retry_after_ms: RETRY_AFTER_MS });
            }
            Some(())
        });
        if told.flatten().is_none() {
            tracing::debug!("no descriptor to say so with");
        }
    }

    pub(super) fn turn_away(&self, link: Option<&Link>, refuse: impl Into<Refuse>) -> Outcome {
        let refuse = refuse.into();
        self.count_refusal(&refuse.refusal);
        if let Some(link) = link {
            say_no(link, refuse);
        }
        Outcome::Closed
    }

    /// A connection broke off, took too long or was no use.
    pub(crate) fn count_failed(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::engine) fn count_refusal(&self, refusal: &Refusal) {
        self.registry.lock().count_refusal(refusal);
    }
}

/// Sends a refusal so that it arrives even though the connection is closed right after it: what the peer's kernel has
/// received before a reset stays readable.
pub(super) fn say_no(link: &Link, refuse: impl Into<Refuse>) {
    say_no_by(link, refuse.into(), Link::send_one);
}

/// The same by another way of sending.
pub(in crate::engine) fn say_no_by(link: &Link, refuse: Refuse, send: fn(&Link, &[u8]) -> io::Result<usize>) {
    let _ = sys::reset_on_close(link, false);
    let _ = send(link, &Message::Refuse(refuse).to_bytes());
    let _ = sys::shut_write(link);
}
