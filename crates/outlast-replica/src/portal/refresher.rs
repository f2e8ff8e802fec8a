//! Redis forgets its scripts, at the same place in the order on all nodes: a copy of its data lacks them, and `EVALSHA` would do something at one
//! server and nothing at another.
//!
//! A primary first tries whether its server lets it, with a command that changes nothing, and keeps that connection: so a copy is refused before
//! anything is done for it.

use super::machine::{Machine, REFRESHER};
use super::stream::{Input, Stream};
use mio::net::TcpStream;
use std::io;
use std::time::{Duration, Instant};

const LINE_BYTES_MAX: usize = 1024;
/// One that could not be asked is asked again.
const AGAIN: Duration = Duration::from_millis(100);
/// A server that has not answered by then hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// So a server answers that can do it later.
const LATER: [&[u8]; 3] = [b"-ERR max number of clients", b"-BUSY", b"-LOADING"];
/// With another option than those that it has, redis (6.2 and later) looks whether the command is allowed, and changes nothing.
const PROBE: &[u8] = b"SCRIPT FLUSH PROBE\r\n";
const PROBED: &[u8] = b"-ERR SCRIPT FLUSH only support";
const FLUSH: &[u8] = b"SCRIPT FLUSH\r\n";

/// What it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Whether the server would do it.
    Probe,
    /// At a node that joins, whatever has given its server the data.
    Join,
    /// For this entry.
    Entry(u64),
}

/// The connection on which the server is asked.
#[derive(Debug)]
pub(super) struct Refresher {
    /// None: it could not be asked.
    stream: Option<Stream>,
    said: Vec<u8>,
    /// So many lines come before the one that counts.
    lines: usize,
    /// None: it has answered, and the connection is kept.
    purpose: Option<Purpose>,
    begun: Instant,
    /// When the connection was last made.
    tried: Instant,
}

impl Refresher {
    pub(super) fn note_ready(&mut self, readable: bool, writable: bool) {
        if let Some(stream) = &mut self.stream {
            stream.note_ready(readable, writable);
        }
    }

    /// The server has not answered what it was asked for this.
    pub(super) fn is_asked(&self) -> bool {
        self.purpose.is_some()
    }

    /// What the server says to it, when it has.
    fn answer(&mut self, room: &mut [u8]) -> Option<Vec<u8>> {
        let mut is_broken = self.stream.as_mut()?.flush().is_err();
        while !is_broken && self.said.len() <= LINE_BYTES_MAX {
            match self.stream.as_mut()?.read(room) {
                Input::Bytes(count) => self.said.extend_from_slice(room.get(..count).unwrap_or_default()),
                Input::Nothing => break,
                Input::End | Input::Broken => is_broken = true,
            }
        }
        if is_broken {
            self.stream = None;
        }
        let mut lines = self.said.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let first = lines.clone().next().filter(|line| LATER.iter().any(|later| line.starts_with(later)));
        first.or_else(|| lines.nth(self.lines)).map(<[u8]>::to_vec)
    }
}

impl Machine {
    /// There is no copy, or it is made: the connection is not needed any more.
    pub(super) fn forget_refresher(&mut self) {
        let is_needed = |refresher: &Refresher| !matches!(refresher.purpose, None | Some(Purpose::Probe));
        self.refresher = self.refresher.take().filter(is_needed);
    }

    /// The server is asked for this.
    pub(super) fn ask_to_refresh(&mut self, purpose: Purpose) {
        let words = if purpose == Purpose::Probe { PROBE } else { FLUSH };
        let now = Instant::now();
        if let Some(kept) = self.refresher.as_mut().filter(|kept| !kept.is_asked())
            && let Some(stream) = &mut kept.stream
        {
            stream.push(words);
            let _ = stream.flush();
            kept.said.clear();
            // Should it be broken, another one is made at once.
            kept.tried = now.checked_sub(AGAIN).unwrap_or(now);
            (kept.lines, kept.purpose, kept.begun) = (0, Some(purpose), now);
            return;
        }
        self.refresher = Some(self.connect_refresher(purpose, now));
    }

    fn connect_refresher(&self, purpose: Purpose, begun: Instant) -> Refresher {
        let login = |password: &String| format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{password}\r\n", password.len());
        let login = self.password.as_ref().map(login);
        let lines = usize::from(login.is_some());
        let connected = || -> io::Result<Stream> {
            let mut stream = Stream::new(TcpStream::connect(self.server)?, self.registry(), REFRESHER)?;
            stream.push(login.unwrap_or_default().as_bytes());
            stream.push(if purpose == Purpose::Probe { PROBE } else { FLUSH });
            Ok(stream)
        };
        let stream = connected().ok();
        Refresher { stream, said: Vec::new(), lines, purpose: Some(purpose), begun, tried: Instant::now() }
    }

    /// Hears what it says.
    pub(super) fn look_at_refresher(&mut self) {
        let Some(refresher) = &mut self.refresher else { return };
        let Some(purpose) = refresher.purpose else { return };
        let mut answer = refresher.answer(&mut self.room);
        if answer.as_ref().is_some_and(|answer| LATER.iter().any(|later| answer.starts_with(later))) {
            // It works, and does not hang.
            (answer, refresher.stream, refresher.begun) = (None, None, Instant::now());
            refresher.said.clear();
        }
        let (begun, tried) = (refresher.begun, refresher.tried);
        let is_gone = refresher.stream.is_none();
        match answer {
            // The connection is there for the entry that follows: there may be no other one then.
            Some(answer) if purpose == Purpose::Probe && answer.starts_with(PROBED) => {
                refresher.purpose = None
            }
            Some(answer) if purpose != Purpose::Probe && answer.starts_with(b"+") => {
                self.refresher = None;
                self.is_refreshed(purpose);
            }
            Some(answer) => {
                self.refresher = None;
                self.is_not_refreshed(purpose, String::from_utf8_lossy(&answer).trim());
            }
            // Nobody says that the servers of the others are better.
            None if begun.elapsed() > ANSWER_WITHIN && self.replica.is_serving() => {
                refresher.begun = Instant::now();
                tracing::error!(server = %self.server, "redis does not answer: no client is served");
            }
            None if begun.elapsed() > ANSWER_WITHIN => {
                self.refresher = None;
                self.is_not_refreshed(purpose, "nothing");
            }
            // What was sent on a connection that is there still may be worked off at any time.
            None if is_gone && tried.elapsed() > AGAIN => {
                tracing::debug!(server = %self.server, "redis is asked once more to forget its scripts");
                self.refresher = Some(self.connect_refresher(purpose, begun));
            }
            None => {}
        }
    }

    fn is_refreshed(&mut self, purpose: Purpose) {
        if let Purpose::Entry(index) = purpose {
            let now_ms = self.now_ms();
            self.replica.handle_refreshed(index, now_ms);
        }
    }

    fn is_not_refreshed(&mut self, purpose: Purpose, answer: &str) {
        let why = format!(
            "redis answers {answer:?} to SCRIPT, by which servers forget what a copy lacks (with a password it needs --server-password-file)"
        );
        let is_only_member = self.replica.order().view().members == [self.settings.me];
        match purpose {
            Purpose::Probe => self.refuse_copy(&why),
            Purpose::Join => self.join_fails(&why),
            // Nobody else has forgotten anything.
            Purpose::Entry(index) if is_only_member => {
                self.refuse_copy(&why);
                let now_ms = self.now_ms();
                self.replica.handle_refreshed(index, now_ms);
            }
            // The servers of the others have: EVALSHA would do something here alone.
            Purpose::Entry(_) => {
                tracing::error!(why, server = %self.server, "this node leaves");
                self.known.is_server_hanging = true;
            }
        }
    }
}
