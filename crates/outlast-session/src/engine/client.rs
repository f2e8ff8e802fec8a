//! The client's side of making links: what a shell asks before, between and after its system calls.
//!
//! # Contract
//! For every attempt: connect a socket, [`client_link`](Engine::client_link), under TLS drive
//! [`Link::handshake`] to its end, then [`client_begin`](Engine::client_begin). [`Begun::Installed`]: the link is in
//! service and the Welcome will be found by the first read. [`Begun::Shake`]: send, receive and feed until
//! [`client_feed`](Engine::client_feed) gives a [`Verdict`], or call [`client_give_up`](Engine::client_give_up).

mod modes;
mod state;

pub(crate) use state::{ClientState, OpeningAttempts};

use super::switch::{PeerPosition, Position};
use super::tls::client_tls;
use super::{Ctl, Engine, Link, Role, Waiting, millis, set_link_options};
use crate::config::Security;
use crate::error::{Error, Result};
use crate::proto::{
    BINDING_LABEL, ClientHandshake, ClientStep, Credentials, HANDSHAKE_BYTES_MAX, HandshakeError, Happening,
    Hello, Intent, LastWord, LinkMode, Refusal, Refuse, SessionId, SessionKey, Welcomed, WireError,
};
use crate::sys;
use parking_lot::MutexGuard;
use rand::RngExt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Above every number that a client that has lived may have given to a link (PROTOCOL 3.4).
const LAST_WORD_EPOCH: u64 = 1 << 62;

/// So many refusals of an opening for a path that is not direct are believed.
const NOT_DIRECT_MAX: u32 = 3;

/// A name for a new session.
pub(crate) fn new_session_id() -> SessionId {
    SessionId::from_bytes(rand::rng().random())
}

/// How a link begins its service.
pub(crate) enum Begun {
    /// At once.
    Installed,
    /// After the handshake: send these bytes first.
    Shake(Arc<Link>, Box<Shake>),
}

/// A handshake under way, outside of the session.
#[derive(Debug)]
pub(crate) struct Shake {
    handshake: ClientHandshake,
    /// To be sent.
    pub(crate) output: Vec<u8>,
    input: Vec<u8>,
    read_bytes: u64,
    /// To say that the session is given up, not to make a link.
    aborts: bool,
}

impl Shake {
    pub(super) fn new(handshake: ClientHandshake, aborts: bool) -> Self {
        let output = handshake.start().to_vec();
        Self { handshake, output, input: Vec::new(), read_bytes: 0, aborts }
    }

    /// Sends `output`, then receives into `buffer`, without waiting for either.
    pub(crate) fn step(&mut self, link: &Link, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = if self.output.is_empty() {
                link.receive(buffer, &mut Waiting::Never)
            } else {
                link.send_one(&self.output).map(|count| {
                    self.output.drain(..count);
                    usize::MAX
                })
            };
            match result {
                Ok(usize::MAX) => {}
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

/// What became of an attempt.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// More has to be received (and `output` sent).
    More(Box<Shake>),
    /// The link is in service.
    Installed,
    /// Try again, for instance in another mode.
    Again {
        /// Why this attempt failed.
        error: String,
        /// Not before so long has passed; zero: at once.
        after: Duration,
    },
    /// No answer came: try the other addresses, then again.
    Elsewhere {
        /// Why this attempt failed.
        error: String,
    },
    /// The session has failed.
    Fatal(Error),
}

impl Engine {
    /// A link from a socket that is connected to `peer_addr`, or connecting, in no mode yet, with TLS around it if so
    /// configured.
    pub(crate) fn client_link(
        &self,
        socket: socket2::Socket,
        target: &str,
        peer_addr: SocketAddr,
    ) -> Result<Link> {
        set_link_options(&socket)?;
        let tls = match &self.config.security {
            Security::Tls(tls) => Some(client_tls(tls, target)?),
            Security::Open | Security::Psk(_) => None,
        };
        Ok(Link::new(socket, tls, 0, LinkMode::Inband, peer_addr, false))
    }

    /// The link is connected (and encrypted): takes the old one out of service and begins the handshake.
    pub(crate) fn client_begin(&self, mut link: Link) -> Result<Begun> {
        link.name_peer();
        loop {
            let mut ctl = self.ctl.lock();
            if let Some(reason) = ctl.client.owed_abort.clone() {
                return self.begin_abort(&mut ctl, link, reason);
            }
            if ctl.life.is_over() {
                return Err(ctl.failure.clone().unwrap_or(Error::Closed { id: self.id }));
            }
            let retired = self.retire(&mut ctl, "replaced by a new link");
            let Some((old, answer)) = retired.answer else {
                return self.begin_link(ctl, link, &retired.position);
            };
            // Found on the old link: it may want another mode, or be the end of the session.
            drop(ctl);
            self.act_on_refusal(answer, &old);
        }
    }

    /// Number, mode and position go into one Hello: nothing may come between them.
    fn begin_link(&self, mut ctl: MutexGuard<'_, Ctl>, mut link: Link, position: &Position) -> Result<Begun> {
        link.mark(ctl.client.next_epoch(), ctl.client.mode);
        if link.mode() == LinkMode::Window {
            let pinned = link.pin_buffers(self.config.window_buffer_bytes);
            pinned.map_err(|error| Error::system("set socket buffers", &error))?;
        }
        let link = &Arc::new(link);
        let (send_buffer_bytes, receive_buffer_bytes) = link.buffer_bytes();
        let direct = link.mode().needs_direct_path();
        let mut hello = Hello::open(self.id, link.mode());
        hello.epoch = link.epoch;
        hello.intent = if ctl.welcomed { Intent::Resume } else { Intent::Open };
        if ctl.welcomed {
            // PROTOCOL 3.17
            hello.paused_ms = ctl.paused_at.map(|at| millis(at.elapsed()));
        }
        // Whoever can do with another mode says so, whichever this link has.
        hello.auto = ctl.client.choice.is_free();
        hello.takes_urgent = link.takes_urgent(&self.config);
        hello.next_offset = position.next_offset;
        hello.retained_offset = position.retained_offset;
        hello.sent_offset = position.sent_offset;
        hello.end_offset = position.end_offset;
        hello.send_buffer_bytes = send_buffer_bytes;
        hello.receive_buffer_bytes = receive_buffer_bytes;
        hello.direct_proof = if direct { sys::tcp_timestamp(&**link).ok() } else { None };
        hello.source_port = link.local_addr().map(|address| address.port());
        if link.mode() == LinkMode::Udp {
            let mailbox = self.need_client_mailbox(&mut ctl, link.peer_addr);
            mailbox
                .map_err(|error| Error::Config(format!("mode udp needs a socket for datagrams: {error}")))?;
        }
        hello.udp_port = ctl.udp_port(link.mode());
        let credentials = self.credentials(&ctl, link)?;
        let nonce = if ctl.welcomed || matches!(self.config.security, Security::Psk(_)) {
            rand::rng().random()
        } else {
            ctl.client.open_nonce
        };
        let handshake = ClientHandshake::new(hello, credentials, nonce)
            .map_err(|error| self.protocol_error(link, &error.to_string()))?;
        if !handshake.carries_early_data() {
            return Ok(Begun::Shake(link.clone(), Box::new(Shake::new(handshake, false))));
        }
        let output = handshake.start().to_vec();
        // PROTOCOL 3.2: the first link carries data at once.
        let nothing = PeerPosition {
            next_offset: 0,
            end_offset: None,
            receive_buffer_bytes: 0,
            rest: &[],
            read_bytes: 0,
            takes_urgent: false,
        };
        self.install(&mut ctl, link, &nothing, &output, Some(Box::new(handshake)))?;
        drop(ctl);
        self.flush_with_first_write();
        self.wake_all();
        Ok(Begun::Installed)
    }

    /// What this end proves itself with on `link`.
    pub(super) fn credentials(&self, ctl: &Ctl, link: &Link) -> Result<Credentials> {
        if let Some(word) = &ctl.client.last_word {
            return Ok(word.credentials(link.exporter(BINDING_LABEL)));
        }
        let key = ctl.key.clone();
        Ok(match &self.config.security {
            Security::Open => Credentials::Open,
            Security::Psk(psk) => Credentials::Psk { psk: psk.clone(), key },
            Security::Tls(_) => {
                let binding =
                    link.exporter(BINDING_LABEL).ok_or_else(|| self.protocol_error(link, "no tls keys"))?;
                // PROTOCOL 6.5: the key is known before the server has welcomed the session.
                let key = key.or_else(|| Some(SessionKey::from_opening(&self.id, &ctl.client.open_nonce)));
                Credentials::Tls { binding, key }
            }
        })
    }

    /// The right to give the session up, for another process. None at a server, and before a session with a shared key
    /// has one of its own.
    pub(crate) fn last_word(&self) -> Option<LastWord> {
        if self.role == Role::Server {
            return None;
        }
        let ctl = self.ctl.lock();
        let security = self.config.security.kind();
        let key = match (&self.config.security, &ctl.key) {
            (Security::Open, _) => None,
            (_, Some(key)) => Some(key.abort_key(&self.id)),
            (Security::Tls(_), None) => {
                Some(SessionKey::from_opening(&self.id, &ctl.client.open_nonce).abort_key(&self.id))
            }
            (Security::Psk(_), None) => return None,
        };
        Some(LastWord { id: self.id, security, key })
    }

    /// More was received in a handshake.
    pub(crate) fn client_feed(&self, mut shake: Box<Shake>, link: &Arc<Link>, bytes: &[u8]) -> Verdict {
        shake.input.extend_from_slice(bytes);
        shake.read_bytes += bytes.len() as u64;
        loop {
            match shake.handshake.feed(&shake.input) {
                ClientStep::NeedMore if shake.input.len() > HANDSHAKE_BYTES_MAX => {
                    return Verdict::Fatal(self.protocol_error(link, "an endless handshake"));
                }
                ClientStep::NeedMore => return Verdict::More(shake),
                ClientStep::Send { bytes, consumed_bytes } => {
                    shake.output.extend_from_slice(&bytes);
                    shake.input.drain(..consumed_bytes.min(shake.input.len()));
                }
                step if shake.aborts => return self.abort_answered(&step, link),
                ClientStep::Welcomed(welcomed) => return self.client_welcomed(*welcomed, link, &shake),
                other => return self.client_refused(&other, link),
            }
        }
    }

    /// The shell will not wait for the answer any longer, or its link has failed. What that has received counts all the
    /// same: a server that has welcomed the link sends, and takes for delivered what this kernel has acknowledged.
    pub(crate) fn client_give_up(
        &self,
        mut shake: Box<Shake>,
        link: &Arc<Link>,
        error: io::Error,
    ) -> Verdict {
        if error.kind() == io::ErrorKind::InvalidData {
            return self.tls_failed(link, &error);
        }
        let cause = match error.kind() {
            io::ErrorKind::TimedOut => "the handshake took too long".to_owned(),
            io::ErrorKind::UnexpectedEof => "connection closed during the handshake".to_owned(),
            _ => error.to_string(),
        };
        // PROTOCOL 3.5: without freezing it the answer could come just behind the last look.
        if let Err(error) = link.freeze()
            && !link.mode().is_acked_by_peer()
        {
            tracing::warn!(session = %self.id, %error, "cannot freeze a link");
        }
        let mut buffer = [0u8; HANDSHAKE_BYTES_MAX];
        loop {
            let received = match link.receive(&mut buffer, &mut Waiting::Never) {
                Ok(0) => break,
                Ok(count) => buffer.get(..count).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            match self.client_feed(shake, link, received) {
                Verdict::More(more) => shake = more,
                Verdict::Installed => {
                    // Its bytes are taken over by the next link.
                    self.lost(link, &cause);
                    return Verdict::Installed;
                }
                verdict => return verdict,
            }
        }
        self.note_broken(&error);
        self.put_off_address(link.peer_addr);
        Verdict::Elsewhere { error: cause }
    }

    fn client_welcomed(&self, welcomed: Welcomed, link: &Arc<Link>, shake: &Shake) -> Verdict {
        let mut ctl = self.ctl.lock();
        if ctl.life.is_over() {
            return Verdict::Fatal(ctl.failure.clone().unwrap_or(Error::Closed { id: self.id }));
        }
        let welcome = &welcomed.welcome;
        if link.mode() == LinkMode::Window
            && !Engine::holds_window(&self.config, link, welcome.receive_buffer_bytes)
        {
            drop(ctl);
            return self.fatal(self.window_error(link));
        }
        let position = self.position();
        if welcome.retained_offset > position.next_offset {
            drop(ctl);
            return self.fatal(Error::BytesMissing {
                id: self.id,
                missing_bytes: welcome.retained_offset - position.next_offset,
                delivered_offset: position.next_offset,
            });
        }
        ctl.key = welcomed.session_key.clone().or_else(|| ctl.key.take());
        self.note_welcome(&mut ctl, link);
        ctl.peer_udp_port = welcome.udp_port;
        self.hear_of_pause(&mut ctl, welcome.paused_ms);
        let peer = PeerPosition {
            next_offset: welcome.next_offset,
            end_offset: welcome.end_offset,
            receive_buffer_bytes: welcome.receive_buffer_bytes,
            rest: shake.input.get(welcomed.consumed_bytes..).unwrap_or_default(),
            read_bytes: shake.read_bytes,
            takes_urgent: welcome.takes_urgent && self.config.urgent,
        };
        match self.install(&mut ctl, link, &peer, &[], None) {
            Ok(()) => {
                drop(ctl);
                self.resume_io();
                Verdict::Installed
            }
            Err(error) => {
                drop(ctl);
                self.fatal(error)
            }
        }
    }

    /// The server has welcomed `link`.
    pub(super) fn note_welcome(&self, ctl: &mut Ctl, link: &Link) {
        ctl.welcomed = true;
        if ctl.client.welcomed(link) {
            tracing::info!(session = %self.id, "the next link tries kernel again");
        }
    }

    pub(super) fn client_refused(&self, step: &ClientStep, link: &Arc<Link>) -> Verdict {
        match step {
            ClientStep::Refused(refuse) => self.refused(refuse, link),
            ClientStep::Failed(error) => {
                // Before the first Welcome a wrong peer is a wrong address; later something is in the way.
                let welcomed = self.ctl.lock().welcomed;
                if welcomed && matches!(error, HandshakeError::Wire(_)) {
                    return Verdict::Again { error: error.to_string(), after: Duration::ZERO };
                }
                self.fatal(match error {
                    HandshakeError::BadProof => self.untrusted(link, error.to_string()),
                    HandshakeError::Wire(WireError::Version(_)) => {
                        Error::Version { peer: link.peer_addr.to_string(), what: error.to_string() }
                    }
                    _ => self.protocol_error(link, &error.to_string()),
                })
            }
            ClientStep::NeedMore | ClientStep::Send { .. } | ClientStep::Welcomed(_) => {
                Verdict::Again { error: "handshake out of order".into(), after: Duration::ZERO }
            }
        }
    }

    fn refused(&self, Refuse { refusal, why }: &Refuse, link: &Arc<Link>) -> Verdict {
        let (refusal, why) = (*refusal, why.clone());
        let (peer, id) = (link.peer_addr.to_string(), self.id);
        let error = Error::Refused { peer, id, refusal, why: why.clone() };
        let error = {
            let mut ctl = self.ctl.lock();
            // What this link has asked for decides: the next one may be on its way before its refusal is acted on, and is
            // refused as well.
            if let Some(error) = self.other_mode(&mut ctl, refusal, link) {
                return Verdict::Again { error, after: Duration::ZERO };
            }
            if let Refusal::Ended { offset } = refusal
                && self.learn_ended(offset)
            {
                // Only the confirmation was lost with the link.
                self.conclude(ctl, Happening::Finished);
                return Verdict::Installed;
            }
            if let (Refusal::Ended { .. }, true, Some(reason)) = (refusal, ctl.welcomed, &why) {
                let reset = Error::Reset { id: self.id, reason: reason.clone() };
                drop(ctl);
                return self.fatal(reset);
            }
            if let Refusal::StaleEpoch { current } = refusal {
                ctl.client.saw_epoch(current);
                return Verdict::Again { error: error.to_string(), after: Duration::ZERO };
            }
            // PROTOCOL 3.14: several servers may be tried, and one of them has it.
            if refusal == Refusal::UnknownSession && ctl.client.is_stranger(link.peer_addr, &error) {
                return Verdict::Elsewhere { error: "this server does not have the session".into() };
            }
            // A server that restarts is as good as one that is not there for the moment; and a packet that was lost when the
            // connection was made spoils the proof that nothing is in between.
            let restarts = match refusal {
                Refusal::Draining { .. } => true,
                Refusal::Busy { .. } | Refusal::Quota => {
                    self.config.retry_busy || ctl.client.several_servers()
                }
                _ => false,
            };
            let passes = match refusal {
                Refusal::NotDirect if link.mode().needs_direct_path() => {
                    ctl.client.not_direct += 1;
                    ctl.client.not_direct < NOT_DIRECT_MAX
                }
                _ => restarts,
            };
            if refusal.is_passing() && (ctl.welcomed || passes) {
                let pause_ms = if ctl.welcomed || restarts { 1000 } else { 0 };
                let after = Duration::from_millis(refusal.retry_after_ms().unwrap_or(pause_ms));
                return Verdict::Again { error: error.to_string(), after };
            }
            self.with_modes(&ctl, error)
        };
        self.fatal(error)
    }

    /// Whether everything has arrived on both sides, given that the peer ended with `peer_offset` bytes of ours.
    fn learn_ended(&self, peer_offset: u64) -> bool {
        let mut tx = self.tx.lock();
        let rx = self.rx.lock();
        let through =
            tx.sender.is_ended() && tx.sender.end_offset() == peer_offset && rx.receiver.is_complete();
        if through && tx.sender.acked(peer_offset).is_ok() {
            // finish() waits for it.
            tx.sender.end_acked();
        }
        through
    }

    pub(super) fn fatal(&self, error: Error) -> Verdict {
        self.fail(error.clone());
        Verdict::Fatal(error)
    }

    pub(super) fn window_error(&self, link: &Link) -> Error {
        self.protocol_error(link, "it has receive buffers that no window here can cover: use another mode")
    }

    pub(super) fn protocol_error(&self, link: &Link, what: &str) -> Error {
        Error::Protocol { peer: link.peer_addr.to_string(), what: what.to_owned() }
    }

    /// A socket to connect to `address` with.
    pub(crate) fn client_socket(&self, address: SocketAddr, nonblocking: bool) -> Result<socket2::Socket> {
        let failed = |error: io::Error| Error::system("make a socket", &error);
        let domain = socket2::Domain::for_address(address);
        let kind = socket2::Type::STREAM;
        let kind = if nonblocking { kind.nonblocking() } else { kind };
        let socket = socket2::Socket::new(domain, kind, Some(socket2::Protocol::TCP)).map_err(failed)?;
        if let Some(local) = self.config.local_address {
            socket.bind(&local.into()).map_err(|error| Error::system("bind the local address", &error))?;
        }
        Ok(socket)
    }
}

#[cfg(test)]
mod tests;
