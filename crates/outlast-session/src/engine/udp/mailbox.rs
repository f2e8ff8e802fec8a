//! Sockets for datagrams: each serves many sessions.

use crate::engine::{Engine, Helper};
use crate::proto::{Datagram, EncodedDatagram, SessionId, SessionKey};
use crate::sys;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Datagrams read in one go, so that a flood does not keep the helper thread from its work.
const RECEIVE_MAX: usize = 1024;

/// A socket for the datagrams of many sessions.
#[derive(Debug)]
pub(crate) struct Mailbox {
    socket: UdpSocket,
    port: u16,
    is_ipv4: bool,
    sessions: Mutex<Sessions>,
    /// Datagrams for nobody, of another link, without a MAC, or with offsets that cannot be.
    ignored: AtomicU64,
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: HashMap<SessionId, Recipient>,
    /// Sweep out what is gone at this size.
    sweep_at: usize,
}

/// Whom a datagram is for.
#[derive(Clone, Debug)]
pub(super) struct Recipient {
    engine: Weak<Engine>,
    /// Once the session is over, and for when it is gone.
    last_answer: Option<LastAnswer>,
}

/// What the peer of a session that is over said last. It may not have heard that this has arrived, and says it again.
#[derive(Clone, Debug)]
pub(super) struct LastAnswer {
    pub(super) last_word: Datagram,
    pub(super) key: Option<SessionKey>,
    pub(super) is_server: bool,
    pub(super) until_ms: u64,
}

impl Recipient {
    pub(super) fn living(engine: Weak<Engine>) -> Self {
        Self { engine, last_answer: None }
    }

    /// The session may be dropped; its peer's last word is still answered.
    pub(super) fn leaving(engine: Weak<Engine>, last_answer: LastAnswer) -> Self {
        Self { engine, last_answer: Some(last_answer) }
    }

    fn is_gone(&self, now_ms: u64) -> bool {
        self.engine.strong_count() == 0
            && self.last_answer.as_ref().is_none_or(|last_answer| last_answer.until_ms < now_ms)
    }
}

impl LastAnswer {
    /// PROTOCOL 5.4: the answer, if the peer repeats itself.
    fn answer(&self, bytes: &[u8]) -> Option<EncodedDatagram> {
        let said = Datagram::decode(bytes, self.key.as_ref(), self.is_server).ok()?;
        let confirmation = self.last_word.confirmation().filter(|_| said == self.last_word)?;
        Some(confirmation.encode(self.key.as_ref(), !self.is_server))
    }
}

/// The clients' sockets.
static CLIENTS: Mutex<Vec<(PathBuf, Weak<Mailbox>)>> = Mutex::new(Vec::new());

impl Mailbox {
    fn open(address: SocketAddr) -> io::Result<Arc<Self>> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let mailbox = Arc::new(Self {
            port: socket.local_addr()?.port(),
            socket,
            is_ipv4: address.is_ipv4(),
            sessions: Mutex::default(),
            ignored: AtomicU64::new(0),
        });
        Helper::get().watch_mailbox(&mailbox);
        Ok(mailbox)
    }

    /// For a listener: on its address, with its port number if that is free (one rule less for firewalls).
    pub(crate) fn for_listener(address: SocketAddr) -> io::Result<Arc<Self>> {
        Self::open(address).or_else(|_| Self::open(SocketAddr::new(address.ip(), 0)))
    }

    /// For a client in the calling thread's network namespace.
    pub(crate) fn for_client(peer: SocketAddr) -> io::Result<Arc<Self>> {
        // Without /proc there is one namespace, as far as this process can tell.
        let namespace = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
        let mut clients = CLIENTS.lock();
        clients.retain(|(_, mailbox)| mailbox.strong_count() > 0);
        let known = clients.iter().filter(|(place, _)| *place == namespace);
        // A socket keeps its namespace alive: the name of a living one is not given to another.
        let fitting = known.filter_map(|(_, mailbox)| mailbox.upgrade()).find(|known| known.fits(peer));
        if let Some(mailbox) = fitting {
            return Ok(mailbox);
        }
        let any = if peer.is_ipv4() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        } else {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        let mailbox = Self::open(SocketAddr::new(any, 0))?;
        clients.push((namespace, Arc::downgrade(&mailbox)));
        Ok(mailbox)
    }

    fn fits(&self, peer: SocketAddr) -> bool {
        self.is_ipv4 == peer.is_ipv4()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Datagrams that were dropped.
    pub(crate) fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }

    pub(super) fn enter(&self, id: SessionId, recipient: Recipient) {
        let mut sessions = self.sessions.lock();
        if sessions.by_id.len() >= sessions.sweep_at {
            let now_ms = sys::coarse_now_ms();
            sessions.by_id.retain(|_, known| !known.is_gone(now_ms));
            sessions.sweep_at = 64.max(sessions.by_id.len() * 2);
        }
        sessions.by_id.insert(id, recipient);
    }

    /// True if it was worth anything.
    fn deliver(&self, bytes: &[u8], sender: SocketAddr) -> bool {
        let Some(id) = Datagram::claimed_id(bytes) else { return false };
        let Some(recipient) = self.sessions.lock().by_id.get(&id).cloned() else { return false };
        if let Some(engine) = recipient.engine.upgrade() {
            return engine.take_datagram(bytes, sender);
        }
        let answer = recipient.last_answer.and_then(|last_answer| last_answer.answer(bytes));
        answer.is_some_and(|answer| self.socket.send_to(answer.as_ref(), sender).is_ok())
    }

    pub(super) fn send(&self, datagram: &EncodedDatagram, peer: SocketAddr) -> io::Result<()> {
        self.socket.send_to(datagram.as_ref(), peer).map(drop)
    }

    /// Takes in what has arrived. True if there may be more.
    pub(crate) fn receive(&self) -> bool {
        // One byte more than the longest, so that a longer one is seen to be longer.
        let mut buffer = [0; crate::proto::DATAGRAM_BYTES_MAX + 1];
        for _ in 0..RECEIVE_MAX {
            let (count, sender) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // A signal, or news of an earlier datagram that did not get through.
                Err(_) => continue,
            };
            if !self.deliver(buffer.get(..count).unwrap_or_default(), sender) {
                self.ignored.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
