//! What a session tells about itself: a snapshot on request, and events as they happen.

use crate::error::Error;
use crate::proto::{LinkMode, SessionId, State};
use ::tokio::sync::broadcast;
use std::net::SocketAddr;
use std::time::Duration;

/// Which end of the session this is. Only clients make links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Opened the session, and reconnects it.
    Client,
    /// Accepted it, and waits for the client.
    Server,
}

/// Where in its life a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// On its first link, not welcomed yet.
    Opening,
    /// Carried by a link.
    Connected,
    /// Without a link; reconnecting, or waiting for the client to.
    Lost,
    /// Without a link on purpose, until the next byte.
    Passive,
    /// Ended in order: everything was delivered.
    Closed,
    /// Ended by an error.
    Failed,
}

impl From<State> for SessionState {
    fn from(state: State) -> Self {
        match state {
            State::Opening => Self::Opening,
            State::Connected => Self::Connected,
            State::Lost | State::Resuming => Self::Lost,
            State::Passive => Self::Passive,
            State::Closed => Self::Closed,
            State::Failed => Self::Failed,
        }
    }
}

/// A snapshot of a session.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Info {
    /// Name of the session, the same at both ends. In `open` security it is a bearer secret.
    #[serde(serialize_with = "as_text")]
    pub id: SessionId,
    /// Which end this is.
    pub role: Role,
    /// Where in its life it is.
    pub state: SessionState,
    /// How the present link acknowledges; none without a link.
    #[serde(serialize_with = "mode_as_text")]
    pub mode: Option<LinkMode>,
    /// Number of the present or last link, from 1.
    pub epoch: u64,
    /// `open`, `psk` or `tls`.
    pub security: &'static str,
    /// Bytes written by the application.
    pub written_bytes: u64,
    /// Bytes read by the application, or ready to be.
    pub read_bytes: u64,
    /// Bytes written and not known to be delivered.
    pub unacked_bytes: u64,
    /// For how long, at least, the oldest of them has waited.
    pub unacked_age_ms: u64,
    /// Total time writers were held up by a full ring or a missing link.
    pub blocked_ms: u64,
    /// Links lost so far.
    pub outages: u64,
    /// How long the present outage has lasted, from the last that is known to have passed; none while connected.
    pub pause_now_ms: Option<u64>,
    /// The longest outage so far, the present one included.
    pub pause_longest_ms: u64,
    /// All outages together.
    pub pause_total_ms: u64,
    /// Bytes that were sent more than once.
    pub resent_bytes: u64,
    /// Bytes of either direction that a relay passed on without copying them.
    pub spliced_bytes: u64,
    /// Own address of the present link.
    pub local_addr: Option<SocketAddr>,
    /// The peer's address on the present or last link.
    pub peer_addr: Option<SocketAddr>,
    /// Time since the session was opened.
    pub age_ms: u64,
}

fn as_text<S: serde::Serializer>(id: &SessionId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn mode_as_text<S: serde::Serializer>(mode: &Option<LinkMode>, serializer: S) -> Result<S::Ok, S::Error> {
    match mode {
        Some(mode) => serializer.collect_str(mode),
        None => serializer.serialize_none(),
    }
}

/// Something that happened to a session.
#[derive(Clone, Debug)]
pub struct Event {
    /// To which.
    pub session: SessionId,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The first link is up and welcomed.
    Connected {
        /// Number of the link.
        epoch: u64,
        /// How it acknowledges.
        mode: LinkMode,
        /// The other end.
        peer: SocketAddr,
    },
    /// The link is gone; the session waits.
    Lost {
        /// Why, as far as this side can tell.
        cause: String,
    },
    /// Another attempt failed.
    Retry {
        /// Attempts in this outage so far.
        attempt: u32,
        /// What went wrong.
        error: String,
        /// Time until the next one.
        next: Duration,
    },
    /// A new link carries the session on.
    Resumed {
        /// Number of the link.
        epoch: u64,
        /// How it acknowledges.
        mode: LinkMode,
        /// From the last that is known to have passed to now: the time until the loss was noticed is part of it.
        pause: Duration,
        /// Bytes that this side has to send again.
        resent_bytes: u64,
        /// The other end.
        peer: SocketAddr,
    },
    /// The link was dropped on purpose.
    Passivated,
    /// Both directions ended and everything was delivered.
    Closed,
    /// The session cannot go on.
    Failed(Error),
}

/// A subscription to events.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
}

impl Events {
    pub(crate) fn new(receiver: broadcast::Receiver<Event>) -> Self {
        Self { receiver }
    }

    /// The next event; `None` when there can be no more. A subscriber that lags loses the oldest ones.
    pub async fn recv(&mut self) -> Option<Event> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// As [`recv`](Self::recv), for threads. Must not be called in asynchronous code.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        loop {
            match self.receiver.blocking_recv() {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The next event if there is one already.
    pub fn try_recv(&mut self) -> Option<Event> {
        loop {
            match self.receiver.try_recv() {
                Ok(event) => return Some(event),
                Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(_) => return None,
            }
        }
    }
}
