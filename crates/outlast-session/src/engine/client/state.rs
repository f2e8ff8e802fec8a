//! What the attempts of one session remember from each other: numbers, modes, addresses.

use super::modes::Choice;
use super::{LAST_WORD_EPOCH, NOT_DIRECT_MAX, Verdict};
use crate::config::Config;
use crate::engine::fruitless::Fruitless;
use crate::engine::place::Place;
use crate::engine::{Engine, Link};
use crate::error::Error;
use crate::proto::{LastWord, LinkMode};
use outlast_stream::Backoff;
use rand::RngExt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attempts at one opening, in other modes or after broken connections, before it counts as a failure.
const OPENINGS_MAX: u32 = 8;

/// So many addresses are remembered for being silent.
const PUT_OFF_MAX: usize = 64;

/// What the attempts of one session remember from each other.
#[derive(Debug)]
pub(crate) struct ClientState {
    /// Mode for the next link; changes when a path is not direct, or the server does not offer it.
    pub(super) mode: LinkMode,
    /// It is `kernel` because that is what `auto` likes best.
    pub(in crate::engine) auto: bool,
    pub(in crate::engine) choice: Choice,
    /// Numbers given to links so far.
    epochs: u64,
    /// The nonce of all openings of this session (over TLS it becomes the session's key).
    pub(super) open_nonce: [u8; 32],
    /// Why the session was given up, as long as the server has to hear of it.
    pub(in crate::engine) owed_abort: Option<String>,
    /// With what, if that is all there is of a session of another process.
    pub(super) last_word: Option<LastWord>,
    /// Openings that were refused because the path seemed not to be direct.
    pub(super) not_direct: u32,
    /// The last attempt had a connection, and that broke before an answer came.
    broken: bool,
    /// Handshakes of TLS that seemed to show that this side and the server cannot agree.
    tls_doubts: u32,
    /// A link of mode `kernel` was welcomed: there was a direct path.
    pub(super) was_direct: bool,
    /// Refusals in a row of links that the mode `auto` wanted to be `kernel` again.
    pub(super) fallbacks: u32,
    /// Addresses that took a connection and gave no answer: they are tried when no other works.
    put_off: Vec<SocketAddr>,
    /// Links that carried nothing.
    pub(in crate::engine) fruitless: Fruitless,
    /// Where the server is that has the session.
    welcomed_by: Option<SocketAddr>,
    /// Its place among several servers.
    server_index: Option<usize>,
    /// It may be opened at another server if the first one does not answer.
    several_servers: bool,
    /// Other servers that have said, in this round over all addresses, that they do not have it; and what that means if nobody
    /// else has it either.
    strangers: (Vec<SocketAddr>, Option<Error>),
    /// The server has asked for some time.
    pub(in crate::engine) not_before: Option<Instant>,
    /// Where links are made, if threads make them.
    pub(in crate::engine) place: Option<Arc<Place>>,
}

impl ClientState {
    pub(crate) fn new(config: &Config) -> Self {
        let choice = Choice::new(config);
        let mode = choice.best().unwrap_or(LinkMode::Inband);
        let auto = choice.is_free() && mode == LinkMode::Kernel;
        Self {
            mode,
            auto,
            choice,
            epochs: 0,
            open_nonce: rand::rng().random(),
            owed_abort: None,
            last_word: None,
            not_direct: 0,
            broken: false,
            tls_doubts: 0,
            was_direct: false,
            fallbacks: 0,
            put_off: Vec::new(),
            fruitless: Fruitless::default(),
            welcomed_by: None,
            server_index: None,
            several_servers: false,
            strangers: (Vec::new(), None),
            not_before: None,
            place: None,
        }
    }

    /// Whether the server has to hear that the session was given up.
    pub(crate) fn owes_abort(&self) -> bool {
        self.owed_abort.is_some()
    }

    /// All that is left to do is to say that the session was given up.
    pub(in crate::engine) fn only_abort(&mut self, word: LastWord, reason: String) {
        self.epochs = LAST_WORD_EPOCH;
        self.last_word = Some(word);
        self.owed_abort = Some(reason);
    }

    /// Whether another server may open the session.
    pub(super) const fn several_servers(&self) -> bool {
        self.several_servers
    }

    /// Whether the path may be direct, though the last link could not show that. PROTOCOL 7.6: a lost packet spoils the proof, and
    /// the next connection may lose none.
    const fn may_be_direct(&self) -> bool {
        if self.was_direct { self.fallbacks < NOT_DIRECT_MAX } else { self.fallbacks == 1 }
    }

    /// The server has welcomed a link. Whether the next one is `kernel` again.
    pub(in crate::engine) fn welcomed(&mut self, link: &Link) -> bool {
        self.put_off.retain(|address| *address != link.peer_addr);
        self.welcomed_by = Some(link.peer_addr);
        self.choice.welcomed();
        match link.mode() {
            LinkMode::Kernel if self.auto => {
                self.was_direct = true;
                self.fallbacks = 0;
                false
            }
            LinkMode::Inband if !self.auto && self.may_be_direct() => {
                self.auto = true;
                self.mode = LinkMode::Kernel;
                true
            }
            _ => false,
        }
    }

    /// The path is not direct, or seems not to be.
    pub(super) fn fall_back(&mut self, next: LinkMode) {
        if self.auto {
            self.fallbacks += 1;
        }
        self.use_mode(next);
    }

    /// For the next link, and for all after one that is welcomed.
    pub(super) fn use_mode(&mut self, next: LinkMode) {
        self.auto = next == LinkMode::Kernel;
        self.mode = next;
    }

    /// Whether the next link asks for another mode than the first one did, or would have if the kernel could freeze.
    pub(in crate::engine) const fn has_changed_mode(&self) -> bool {
        self.choice.is_narrowed() || self.choice.is_free() && !self.auto
    }

    /// The last attempt's connection carried its handshake damaged: as good as broken.
    pub(in crate::engine) fn broken_by(&mut self, error: String) -> Verdict {
        self.broken = true;
        Verdict::Elsewhere { error: format!("{error}: bytes were changed on the way") }
    }

    /// The last attempt's handshake says that there is no use in trying; damage can say the same. None when so many have
    /// said so that it is believed.
    pub(in crate::engine) fn doubted(&mut self, doubts_max: u32, error: &Error) -> Option<Verdict> {
        self.tls_doubts += 1;
        (self.tls_doubts < doubts_max).then(|| {
            self.broken = true;
            Verdict::Elsewhere { error: error.to_string() }
        })
    }

    /// Whoever is at `address` does not have the session. Whether that means nothing yet: another one had it.
    pub(in crate::engine) fn is_stranger(&mut self, address: SocketAddr, error: &Error) -> bool {
        let is_stranger = self.welcomed_by.is_some_and(|server| server != address);
        if is_stranger {
            self.strangers.0.push(address);
            self.strangers.1 = Some(error.clone());
        }
        is_stranger
    }

    /// The same for a session that was given up: its watcher has opened none, and does not know which server has it.
    pub(in crate::engine) fn may_be_stranger(&mut self, address: SocketAddr, error: &Error) -> bool {
        let is_stranger = self.welcomed_by != Some(address);
        if is_stranger {
            // The round of a resume may be under way yet, and ask the same servers.
            if !self.strangers.0.contains(&address) {
                self.strangers.0.push(address);
            }
            self.strangers.1 = Some(error.clone());
        }
        is_stranger
    }

    /// The number of the next link.
    pub(in crate::engine) fn next_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs
    }

    /// Another attempt of ours got there first, or its Welcome was lost: the next number is higher.
    pub(in crate::engine) fn saw_epoch(&mut self, epoch: u64) {
        self.epochs = self.epochs.max(epoch);
    }
}

impl Engine {
    /// Addresses that are tried when no other works.
    pub(crate) fn put_off(&self) -> Vec<SocketAddr> {
        self.ctl.lock().client.put_off.clone()
    }

    /// Of several servers, the one that has the session.
    pub(crate) fn server_index(&self) -> Option<usize> {
        self.ctl.lock().client.server_index
    }

    /// This one of several servers has taken a link.
    pub(crate) fn note_server(&self, index: usize) {
        self.ctl.lock().client.server_index = Some(index);
    }

    /// PROTOCOL 3.15: there are several servers. What was sent to one of them with its Hello would be sent to the next one
    /// again if the first one's Welcome were lost; and both would pass it on.
    pub(crate) fn open_without_data(&self) {
        let client = &mut self.ctl.lock().client;
        client.several_servers = true;
        // PROTOCOL 3.2: only the link with number 1 carries data before its Welcome.
        client.saw_epoch(1);
    }

    /// Whether another server will do as well, as none has the session.
    pub(crate) fn may_open_elsewhere(&self) -> bool {
        let ctl = self.ctl.lock();
        ctl.client.several_servers && !ctl.welcomed && !ctl.client.owes_abort()
    }

    /// A round over all addresses begins.
    pub(crate) fn begin_round(&self) {
        self.ctl.lock().client.strangers = (Vec::new(), None);
    }

    /// Every one of so many addresses of so many targets was tried: what that means if nobody has the session.
    pub(crate) fn end_round(&self, tried: u32, targets: usize) -> Option<Verdict> {
        let mut ctl = self.ctl.lock();
        let (strangers, error) = std::mem::take(&mut ctl.client.strangers);
        let error = error?;
        let all = strangers.len() >= usize::try_from(tried).unwrap_or(usize::MAX);
        if ctl.client.owes_abort() {
            // One of a name's addresses often leads nowhere: a watcher does not wait for that, as it cannot know that the session
            // was elsewhere.
            let enough = all || (targets == 1 && ctl.client.welcomed_by.is_none());
            return enough.then(|| self.abort_is_told(&mut ctl, error));
        }
        drop(ctl);
        all.then(|| self.fatal(error))
    }

    /// This address has taken a connection, and no answer came.
    pub(in crate::engine) fn put_off_address(&self, address: SocketAddr) {
        let put_off = &mut self.ctl.lock().client.put_off;
        if !put_off.contains(&address) && put_off.len() < PUT_OFF_MAX {
            put_off.push(address);
        }
    }

    /// An attempt's connection was made, and broke before the server's answer was there.
    pub(crate) fn note_broken(&self, error: &io::Error) {
        let kind = error.kind();
        let broken = matches!(
            kind,
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected
                | io::ErrorKind::UnexpectedEof
        );
        if broken {
            self.ctl.lock().client.broken = true;
        }
    }

    /// Whether one did since this was last asked.
    fn take_broken(&self) -> bool {
        std::mem::take(&mut self.ctl.lock().client.broken)
    }
}

/// The attempts of one opening: asked after every one that failed.
#[derive(Debug)]
pub(crate) struct OpeningAttempts {
    left: u32,
    /// Broken connections are replaced so long.
    deadline: Instant,
    backoff: Backoff,
}

impl OpeningAttempts {
    pub(crate) fn new(engine: &Engine) -> Self {
        let deadline = Instant::now() + engine.config.handshake_timeout;
        Self { left: OPENINGS_MAX - 1, deadline, backoff: engine.backoff() }
    }

    /// After how long to try again: in another mode, or as the connection broke. None if nobody is there, or willing.
    /// `after` is what a server has asked for.
    pub(crate) fn again(&mut self, engine: &Engine, after: Duration) -> Option<Duration> {
        let broken = engine.take_broken();
        self.left = self.left.checked_sub(1)?;
        if (broken || !after.is_zero()) && Instant::now() + after < self.deadline {
            return Some(self.backoff.next_delay().max(after));
        }
        engine.has_other_mode().then_some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_was_never_direct_is_tried_once_more() {
        if !crate::sys::can_freeze() {
            return;
        }
        let mut state = ClientState::new(&Config::default());
        assert!(state.auto && !state.may_be_direct());
        state.fall_back(LinkMode::Inband);
        assert!(state.may_be_direct());
        state.use_mode(LinkMode::Kernel);
        state.fall_back(LinkMode::Inband);
        assert!(!state.may_be_direct());
        // One that was direct has more patience.
        state.was_direct = true;
        assert!(state.may_be_direct());
    }
}
