//! A server that answers nearly each byte, and does the same wherever it gets the same: its answers tell in which order it has worked. It takes
//! whatever of its connections it likes first.

use crate::ConnectionId;
use outlast_stream::SplitMix64;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;
extern crate std;

/// A client that sends this byte has its stream ended, or its connection reset.
pub const QUIT: u8 = 255;
pub use crate::protocol::counted::{ABORT, ENDED, OWN, SAME, SILENT, WAIT, own_bytes};
/// The answer to this follows from the time of day that the server knows.
pub const TIME: u8 = 193;
/// [`WAIT`] is answered when so much time has passed, as the server knows it; what comes behind it on the connection waits.
const WAIT_MS: u64 = 15;
/// What has come with the first of these is known from then on, until it is forgotten, and not in a copy. The answer to the second says whether it is.
pub const LOAD: u8 = 197;
pub const KNOWN: u8 = 196;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Connect,
    Bytes(Vec<u8>),
    End,
    /// The replica has closed the connection.
    Close,
    /// It is to forget what a copy lacks: for this entry.
    Refresh(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Bytes(Vec<u8>),
    /// As no other server does.
    Own(Vec<u8>),
    End,
    Reset,
    /// To one whose client is gone.
    Closed,
    /// It has forgotten.
    Refreshed(u64),
}

#[derive(Clone, Debug, Default)]
pub struct Server {
    /// What has come and was not looked at yet, of each connection.
    inbox: BTreeMap<ConnectionId, VecDeque<Request>>,
    worked: u8,
    /// Something that a copy lacks.
    is_loaded: bool,
    ended: BTreeMap<ConnectionId, ()>,
    /// Connections on which it says nothing of its own.
    same: BTreeMap<ConnectionId, ()>,
    /// Clients that wait, until when, and what they have said since.
    waiting: BTreeMap<ConnectionId, (u64, VecDeque<Request>)>,
    /// It answers those whose time is over, all of them, and then goes on with what they have said since, in the same order.
    ends_waits: bool,
    resumed: VecDeque<ConnectionId>,
    /// Those whose wait it has ended: what it was asked comes again.
    interrupted: BTreeSet<ConnectionId>,
    /// Of this server alone; not 0.
    pub own: u8,
    /// The time of day, as it knows it.
    pub clock_ms: u64,
}

impl Server {
    /// Something comes.
    pub fn give(&mut self, connection: ConnectionId, request: Request) {
        match self.waiting.get_mut(&connection) {
            Some((_, behind)) if request != Request::Close => behind.push_back(request),
            _ => {
                self.waiting.remove(&connection);
                self.inbox.entry(connection).or_default().push_back(request);
            }
        }
    }

    /// A client has waited for long enough.
    fn due(&self) -> Option<ConnectionId> {
        let first = self.waiting.iter().min_by_key(|(connection, (until_ms, _))| (*until_ms, **connection));
        first.filter(|(_, (until_ms, _))| *until_ms <= self.clock_ms).map(|(connection, _)| *connection)
    }

    /// It is answered now, and goes on.
    fn end_wait(&mut self, connection: ConnectionId) -> Option<(ConnectionId, Vec<u8>, Vec<Answer>)> {
        let (_, behind) = self.waiting.remove(&connection)?;
        if !behind.is_empty() {
            self.inbox.insert(connection, behind);
            self.resumed.push_back(connection);
        }
        let count = self.count();
        Some((connection, Vec::new(), std::vec![Answer::Bytes(std::vec![WAIT, count, WAIT ^ count])]))
    }

    /// Ends that wait, if there is one, and goes on with what the client has said since. Its answer.
    pub fn interrupt(&mut self, connection: ConnectionId) -> Option<Vec<u8>> {
        let (_, behind) = self.waiting.remove(&connection)?;
        if !behind.is_empty() {
            self.inbox.insert(connection, behind);
        }
        Some(std::vec![WAIT, 0, WAIT ^ ENDED])
    }

    /// What it was asked then comes again.
    pub fn expect_again(&mut self, connection: ConnectionId) {
        self.interrupted.insert(connection);
    }

    /// One with the same data, and nothing else.
    pub fn copy(&self) -> Self {
        Self { is_loaded: false, ..self.clone() }
    }

    /// A copy of it lacks something.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// It has worked off all.
    pub fn is_idle(&self) -> bool {
        self.inbox.is_empty() && self.due().is_none()
    }

    /// Works off one request.
    pub fn work(&mut self, random: &mut SplitMix64) -> Option<(ConnectionId, Vec<u8>, Vec<Answer>)> {
        while self.resumed.pop_front_if(|connection| !self.inbox.contains_key(connection)).is_some() {}
        let due = self.due();
        self.ends_waits &= due.is_some();
        self.ends_waits |=
            self.resumed.is_empty() && (self.inbox.is_empty() || random.next_u64().is_multiple_of(2));
        if let Some(connection) = due.filter(|_| self.ends_waits) {
            return self.end_wait(connection);
        }
        let waiting: Vec<ConnectionId> = self.inbox.keys().copied().collect();
        let at = random.next_u64().checked_rem(waiting.len() as u64)?;
        let connection = self.resumed.front().copied().unwrap_or(waiting[at as usize]);
        let requests = self.inbox.get_mut(&connection)?;
        let request = requests.pop_front()?;
        if requests.is_empty() {
            self.inbox.remove(&connection);
        }
        let mut answers = Vec::new();
        if let Request::Refresh(index) = request {
            self.is_loaded = false;
            return Some((connection, Vec::new(), std::vec![Answer::Refreshed(index)]));
        }
        if self.ended.contains_key(&connection) {
            answers.extend((request == Request::Close).then_some(Answer::Closed));
            return Some((connection, Vec::new(), answers));
        }
        let mut read = Vec::new();
        match request {
            Request::Connect => answers.push(Answer::Bytes(std::vec![0])),
            Request::Bytes(bytes) => {
                let mut bytes = bytes.into_iter();
                while let Some(byte) = bytes.next() {
                    // It counts as read once.
                    if byte != WAIT || !self.interrupted.remove(&connection) {
                        read.push(byte);
                    }
                    if byte == WAIT && self.clock_ms > 0 {
                        let mut behind = self.inbox.remove(&connection).unwrap_or_default();
                        if behind.contains(&Request::Close) {
                            // It notices that nobody is there any more.
                            self.inbox.insert(connection, VecDeque::from([Request::Close]));
                            break;
                        }
                        let rest: Vec<u8> = bytes.collect();
                        if !rest.is_empty() {
                            behind.push_front(Request::Bytes(rest));
                        }
                        self.waiting.insert(connection, (self.clock_ms + WAIT_MS, behind));
                        break;
                    }
                    if byte >= ABORT {
                        self.ended.insert(connection, ());
                        answers.push(if byte == QUIT { Answer::End } else { Answer::Reset });
                        break;
                    }
                    self.is_loaded |= byte == LOAD;
                    if byte == SAME {
                        self.same.insert(connection, ());
                    }
                    if byte == OWN {
                        self.count();
                        // Where nothing is of its own any more, all servers say the same.
                        let own = if self.same.contains_key(&connection) { 0 } else { self.own };
                        let mut answer = std::vec![own; own_bytes(own)];
                        answer[0] = byte;
                        answer[own_bytes(own) - 1] = byte ^ own;
                        answers.push(if own == 0 { Answer::Bytes(answer) } else { Answer::Own(answer) });
                    } else if byte != SILENT {
                        let known = if byte == KNOWN && self.is_loaded { 0x80 } else { 0 };
                        let time = if byte == TIME { self.clock_ms as u8 } else { 0 };
                        let count = self.count() ^ known ^ time;
                        answers.push(Answer::Bytes(std::vec![byte, count, byte ^ count]));
                    }
                }
            }
            Request::Refresh(_) => {}
            Request::Close => {
                self.ended.insert(connection, ());
                answers.push(Answer::Closed);
            }
            Request::End => {
                self.ended.insert(connection, ());
                answers.push(Answer::Bytes(std::vec![self.count()]));
                answers.push(Answer::End);
            }
        }
        Some((connection, read, answers))
    }

    /// Ends the stream of a client for a reason of its own, as after a time-out. Whether it could.
    pub fn quit(&mut self, connection: ConnectionId) -> bool {
        let is_idle = !self.inbox.contains_key(&connection) && !self.waiting.contains_key(&connection);
        is_idle && self.ended.insert(connection, ()).is_none()
    }

    /// It has other data from now on.
    pub fn alter(&mut self) {
        self.worked = self.worked.wrapping_add(100);
    }

    fn count(&mut self) -> u8 {
        self.worked = self.worked.wrapping_add(1);
        self.worked
    }
}
