//! The protocol of MySQL and MariaDB: one request, one reply, and a greeting before the first.
//!
//! What is ordered is what clients say. A server gets each request as a whole, so what must not come to it can be kept from it; and proofs of who a client is
//! are made anew for each server ([`login`]). Results are those of the primary's server: others may find rows in another order. Names and numbers are
//! those of MariaDB's documentation of the protocol ("Client/Server Protocol").

pub(crate) mod login;
pub(crate) mod packet;
mod replies;
mod statements;
#[cfg(test)]
pub(crate) mod tests;

use crate::connection::Piece;
use crate::connection::comparison::{NAME_BYTES, Part};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
pub(crate) use login::Login;
use login::{Hash, Proof};
use packet::{HEADER_BYTES, Packets, Step, packet};
use replies::{Compare, Kind, Replies};
use statements::{KILL, Verdict};

/// A request that is longer, so that it has several parts, is given to the server piece by piece, and not looked into.
const WITHHELD_BYTES_MAX: usize = packet::PART_BYTES_MAX - 1;
/// An end of rows begins as a question for another proof does, and is shorter.
const ASKS_BYTES_MIN: usize = 9;
/// A proof of who a client is, and what comes with it, is shorter.
const LOGIN_BYTES_MAX: usize = 64 << 10;

/// What a server says of a statement that was ended (ER_QUERY_INTERRUPTED), and what clients hear in its place (ER_LOCK_WAIT_TIMEOUT: the
/// statement has had no effect, and the transaction goes on).
const INTERRUPTED: u16 = 1317;
const TRY_AGAIN: &[u8] = b"\xff\xb5\x04#HY000Lock wait timeout exceeded; try restarting transaction (outlast: another client waits already)";

/// Commands, by the first byte of a request.
const QUIT: u8 = 0x01;
const USE: u8 = 0x02;
const QUERY: u8 = 0x03;
const FIELD_LIST: u8 = 0x04;
const PROCESSES: u8 = 0x0a;
const KILL_PROCESS: u8 = 0x0c;
const CHANGE_USER: u8 = 0x11;
const BINLOG_DUMP: u8 = 0x12;
const TABLE_DUMP: u8 = 0x13;
const REGISTER_SLAVE: u8 = 0x15;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;
const LONG_DATA: u8 = 0x18;
const CLOSE_STATEMENT: u8 = 0x19;
const FETCH: u8 = 0x1c;
const BINLOG_DUMP_GTID: u8 = 0x1e;
const BULK_EXECUTE: u8 = 0xfa;
const NAMES: [(u8, &[u8]); 10] = [
    (QUERY, b"query"),
    (USE, b"use"),
    (FIELD_LIST, b"field list"),
    (CHANGE_USER, b"change user"),
    (PREPARE, b"prepare"),
    (EXECUTE, b"execute"),
    (FETCH, b"fetch"),
    (BULK_EXECUTE, b"execute"),
    (0x0e, b"ping"),
    (0x1f, b"reset"),
];
const BINLOG: &str = "a copy of the binary log: another one at each server";

/// What the server gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Bytes(Vec<u8>),
    LogIn(Login),
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    kind: Kind,
    /// If it is ended by an error, it has had no effect, and nothing else has.
    is_repeatable: bool,
    compare: Compare,
    name: [u8; NAME_BYTES],
}

impl Asked {
    fn new(kind: Kind, compare: Compare, name: &[u8]) -> Self {
        let mut padded = [0; NAME_BYTES];
        padded.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte);
        Self { kind, is_repeatable: false, compare, name: padded }
    }
}

/// Who the client is.
#[derive(Debug, Default)]
struct Identity {
    /// What it says next is a proof.
    is_asked: bool,
    /// It was asked for another one than the first, and that is one that is understood.
    again: Option<bool>,
    user: Vec<u8>,
    /// What it was greeted with, or asked again with, and as the how-many-th reply of its own kind; and what this node's server has said.
    said: Option<(u64, Hash)>,
    own: Option<Hash>,
    /// The number that the server has for the connection.
    number: Option<u32>,
}

/// What is open on one connection.
#[derive(Debug)]
pub(crate) struct OfMysql {
    identity: Identity,
    requests: Packets,
    /// A request that has not come as a whole.
    partial: Vec<u8>,
    /// One that is too long is given to the server as it comes: its command.
    passing: Option<u8>,
    given: Vec<Given>,
    refused: Option<&'static str>,
    replies: Replies,
    /// Of the reply that has not come as a whole.
    reply: Vec<u8>,
    /// Replies are for nobody any more.
    is_given_up: bool,
    asked: VecDeque<Asked>,
    open: u64,
    /// What was passed, and has no reply: they come first.
    owed: u64,
    /// A statement that was prepared is not compared.
    prepares_own: bool,
    /// The database that was chosen is one that is about the server.
    is_about_server: bool,
    /// All statements that were prepared can be repeated ([`Asked::is_repeatable`]).
    prepares_odd: bool,
    /// The server is to end the connection.
    quits: bool,
    /// The server was asked to end what is open by an error, so that nobody waits.
    is_interrupted: bool,
    /// Nobody is let in on this connection, and nothing more of it comes to any server.
    is_refused: bool,
    /// What has come behind a request that has no reply yet.
    rest: Vec<u8>,
    /// Somebody says what is none of this protocol. Any bytes answer all from then on: whether something is open.
    broken: Option<bool>,
}

impl Default for OfMysql {
    fn default() -> Self {
        Self {
            identity: Identity::default(),
            requests: Packets::default(),
            partial: Vec::new(),
            passing: None,
            given: Vec::new(),
            refused: None,
            replies: Replies::default(),
            reply: Vec::new(),
            is_given_up: false,
            asked: VecDeque::from([Asked::new(Kind::Greeting, Compare::Form, b"greeting")]),
            open: 1,
            owed: 0,
            prepares_own: false,
            is_about_server: false,
            prepares_odd: false,
            quits: false,
            is_interrupted: false,
            is_refused: false,
            rest: Vec::new(),
            broken: None,
        }
    }
}

impl OfMysql {
    /// The server has greeted the client, or has refused it.
    pub(crate) fn is_greeted(&self) -> bool {
        self.identity.own.is_some() || self.broken.is_some()
    }

    pub(crate) fn server_number(&self) -> Option<u32> {
        self.identity.number
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub(crate) fn pass(&mut self) {
        self.broken = self.broken.map(|_| false);
        self.owed += core::mem::take(&mut self.open);
    }

    pub(crate) fn owes(&self) -> bool {
        self.owed > 0
    }

    pub(crate) fn are_answered(&self) -> bool {
        self.broken.map_or(self.open == 0, |is_open| !is_open)
    }

    /// So much has come of a reply that has not ended.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.reply.len()
    }

    /// Replies are for nobody any more. It is still looked where they end.
    pub(crate) fn give_up(&mut self) {
        (self.is_given_up, self.reply) = (true, Vec::new());
    }

    /// What the server gets of what was asked.
    pub(crate) fn given(&mut self) -> Vec<Given> {
        core::mem::take(&mut self.given)
    }

    /// Why a request was refused.
    pub(crate) fn refused(&mut self) -> Option<&'static str> {
        self.refused.take()
    }

    /// The client says this.
    pub(crate) fn ask(&mut self, bytes: &[u8]) {
        if self.broken.is_none() {
            return self.take(bytes);
        }
        let partial = core::mem::take(&mut self.partial);
        self.give_bytes(&partial);
        self.give_bytes(bytes);
        self.broken = Some(true);
    }

    /// Up to the first request that has a reply.
    fn take(&mut self, mut bytes: &[u8]) {
        let open = self.open;
        while !bytes.is_empty() && !self.is_refused && !self.quits {
            if self.open > open {
                self.rest = bytes.to_vec();
                return;
            }
            let before = bytes;
            let (step, is_end) = self.requests.take(&mut bytes);
            let now = before.get(..before.len() - bytes.len()).unwrap_or_default();
            if let Some(command) = self.passing {
                self.give_bytes(now);
                if is_end {
                    self.passing = None;
                    self.prepares_own |= command == PREPARE;
                    self.note(command, Compare::Form);
                }
                continue;
            }
            self.partial.extend_from_slice(now);
            if !is_end {
                let is_long = self.partial.len() > HEADER_BYTES
                    && packet::length(&self.partial).is_some_and(|length| length > WITHHELD_BYTES_MAX);
                if matches!(step, Step::Payload(_)) && is_long {
                    let command = self.partial.get(HEADER_BYTES).copied().unwrap_or(0);
                    let begun = core::mem::take(&mut self.partial);
                    let is_statement =
                        matches!(command, QUERY | PREPARE | EXECUTE | LONG_DATA | BULK_EXECUTE);
                    if self.identity.is_asked || !is_statement {
                        self.refuse_client();
                        return;
                    }
                    self.passing = Some(command);
                    self.give_bytes(&begun);
                }
                continue;
            }
            let request = core::mem::take(&mut self.partial);
            if self.identity.is_asked {
                match self.log_in(request) {
                    Some(given) => self.give(given),
                    None => self.refuse_client(),
                }
            } else {
                self.take_request(request);
            }
        }
    }

    /// The client says too much at a time: nothing more of it comes to any server.
    pub(crate) fn refuse(&mut self) {
        self.is_refused = true;
    }

    /// Servers get what none of them takes, and nothing more: one might understand what is not understood here, and another one not.
    fn refuse_client(&mut self) {
        self.is_refused = true;
        self.open += 1;
        self.asked.push_back(Asked::new(Kind::Login, Compare::All, b"login"));
        self.give_bytes(&packet(1, &[]));
    }

    /// A proof has come as a whole.
    fn log_in(&mut self, mut request: Vec<u8>) -> Option<Given> {
        if request.len() > LOGIN_BYTES_MAX {
            return None;
        }
        let proof = match self.identity.again {
            Some(is_native) => Proof::again(&request, self.identity.user.clone(), is_native),
            None => Proof::of_response(&request)?,
        };
        if self.identity.again.is_none() {
            login::hide_wishes(&mut request);
        }
        self.is_about_server |= statements::is_about_server(&proof.database);
        self.identity.is_asked = false;
        self.open += 1;
        self.asked.push_back(Asked::new(Kind::Login, Compare::All, b"login"));
        Some(self.proved(request, proof))
    }

    fn proved(&mut self, mut request: Vec<u8>, proof: Proof) -> Given {
        self.identity.user.clone_from(&proof.user);
        match (self.identity.said, self.identity.own) {
            // It has none.
            _ if proof.place.is_empty() => Given::Bytes(request),
            (Some((_, said)), Some(own)) if proof.is_native => {
                Given::LogIn(Login::new(request, proof, said, own))
            }
            // It would be right at one server at the most.
            _ => {
                request.get_mut(proof.place).unwrap_or_default().fill(0);
                Given::Bytes(request)
            }
        }
    }

    fn take_request(&mut self, request: Vec<u8>) {
        let (command, said) = match request.get(HEADER_BYTES..) {
            Some([command, said @ ..]) => (*command, said),
            // The server says that it is none.
            _ => (0, &[][..]),
        };
        let verdict = match command {
            QUERY | PREPARE => statements::verdict(said),
            EXECUTE | BULK_EXECUTE if self.prepares_own => Verdict::Goes(Compare::Form),
            // Another server may have other rows in front.
            FETCH | PROCESSES => Verdict::Goes(Compare::Form),
            KILL_PROCESS => Verdict::Refused(KILL),
            BINLOG_DUMP | TABLE_DUMP | REGISTER_SLAVE | BINLOG_DUMP_GTID => Verdict::Refused(BINLOG),
            _ => Verdict::Goes(Compare::All),
        };
        match verdict {
            Verdict::Refused(why) => {
                self.refused = Some(why);
                self.note(QUERY, Compare::All);
                self.give_bytes(&refusal(request.get(3).copied().unwrap_or(0), why));
            }
            Verdict::Goes(compare) => {
                let chosen = if command == USE { said } else { statements::chosen(command == QUERY, said) };
                self.is_about_server |= statements::is_about_server(chosen);
                let compare = if self.is_about_server { Compare::Form } else { compare };
                self.prepares_own |= command == PREPARE && compare == Compare::Form;
                let is_statement = matches!(command, QUERY | PREPARE);
                let is_odd = is_statement && !statements::is_repeatable(said);
                self.prepares_odd |= command == PREPARE && is_odd;
                let is_repeatable = match command {
                    QUERY => !is_odd,
                    EXECUTE => !self.prepares_odd,
                    _ => false,
                };
                if command == CHANGE_USER {
                    let Some(proof) = Proof::of_change(&request) else { return self.refuse_client() };
                    self.is_about_server |= statements::is_about_server(&proof.database);
                    self.note(command, compare);
                    let given = self.proved(request, proof);
                    return self.give(given);
                }
                self.quits |= command == QUIT;
                let open = self.open;
                self.note(command, compare);
                if let Some(asked) = self.asked.back_mut().filter(|_| self.open > open) {
                    asked.is_repeatable = is_repeatable;
                }
                self.give_bytes(&request);
            }
        }
    }

    /// The server has such a request as a whole.
    fn note(&mut self, command: u8, compare: Compare) {
        let kind = match command {
            QUIT | LONG_DATA | CLOSE_STATEMENT => return,
            QUERY | EXECUTE | BULK_EXECUTE | PROCESSES => Kind::Statement,
            CHANGE_USER => Kind::Login,
            PREPARE => Kind::Prepare,
            FETCH | FIELD_LIST => Kind::Rows,
            _ => Kind::Line,
        };
        let name =
            NAMES.iter().find(|(known, _)| *known == command).map_or(&b"command"[..], |(_, name)| name);
        self.open += 1;
        self.asked.push_back(Asked::new(kind, compare, name));
    }

    fn give_bytes(&mut self, bytes: &[u8]) {
        if let Some(Given::Bytes(last)) = self.given.last_mut() {
            last.extend_from_slice(bytes);
        } else if !bytes.is_empty() {
            self.given.push(Given::Bytes(bytes.to_vec()));
        }
    }

    fn give(&mut self, given: Given) {
        match given {
            Given::Bytes(bytes) => self.give_bytes(&bytes),
            given @ Given::LogIn(_) => self.given.push(given),
        }
    }

    /// The server says this.
    pub(crate) fn answer(&mut self, bytes: &[u8], mut takes: impl FnMut(Piece<'_>)) {
        if self.broken.is_none() && self.hear(bytes, &mut takes).is_some() {
            return;
        }
        if self.broken.is_none() {
            takes(Piece::Bytes(&core::mem::take(&mut self.reply)));
        } else {
            takes(Piece::Bytes(bytes));
        }
        self.broken = Some(false);
    }

    /// None: it is no such protocol. What was not handed on is in `reply`.
    fn hear(&mut self, mut bytes: &[u8], takes: &mut impl FnMut(Piece<'_>)) -> Option<()> {
        while !bytes.is_empty() {
            let before = bytes;
            // A server says something by itself when it ends a connection: an error.
            let asked = self.asked.front().copied();
            let asked = asked.unwrap_or_else(|| Asked::new(Kind::Unasked, Compare::Form, b""));
            let Some(ended) = self.replies.take(&mut bytes, asked.kind, asked.compare) else {
                self.reply.extend_from_slice(before);
                return None;
            };
            if !self.is_given_up {
                self.reply.extend_from_slice(before.get(..before.len() - bytes.len()).unwrap_or_default());
            }
            let Some(ended) = ended else { break };
            let mut reply = core::mem::take(&mut self.reply);
            let is_greeting = asked.kind == Kind::Greeting && !is_refusal(&reply);
            if is_greeting && login::hide_capabilities(&mut reply).is_none() {
                reply.extend_from_slice(bytes);
                self.reply = reply;
                return None;
            }
            let is_interrupted = core::mem::take(&mut self.is_interrupted) && asked.is_repeatable;
            if is_interrupted && is_error(&reply, INTERRUPTED) {
                // What it was at one server alone: clients know this one, and try again.
                reply = packet(reply.get(3).copied().unwrap_or(1), TRY_AGAIN);
            }
            if ended.asks {
                self.note_question(&reply);
            } else if asked.kind == Kind::Greeting {
                // It does not take this client.
                self.identity.own = Some(Hash::default());
            }
            self.asked.pop_front();
            if self.owed > 0 {
                self.owed -= 1;
            } else {
                self.open = self.open.saturating_sub(1);
            }
            let part = Part { digest: ended.digest, end: 0, name: asked.name };
            if self.is_given_up {
                continue;
            }
            if ended.is_own {
                takes(Piece::Own(&reply, part));
            } else {
                takes(Piece::Bytes(&reply));
                takes(Piece::Part(part));
            }
        }
        Some(())
    }

    /// The server asks who the client is.
    fn note_question(&mut self, reply: &[u8]) {
        let is_first = self.identity.own.is_none();
        self.identity.number = self.identity.number.or_else(|| login::number(reply));
        let salt = login::salt(reply);
        self.identity.is_asked = true;
        self.identity.again = (!is_first).then(|| salt.is_some_and(|(_, is_native)| is_native));
        self.identity.own = Some(salt.map_or(Hash::default(), |(salt, _)| salt));
    }

    /// Clients get this in the place of a reply that every server gives in its own way.
    pub(crate) fn note_canonical(&mut self, number: u64, reply: &[u8]) {
        // The first is the greeting; a result may begin with the same byte, but not with that of a question.
        let asks = reply.get(HEADER_BYTES) == Some(&login::ASKS_AGAIN)
            && reply.len() > HEADER_BYTES + ASKS_BYTES_MIN;
        let is_new = self.identity.said.is_none_or(|(known, _)| known < number);
        if is_new && (number == 0 || asks) {
            self.identity.said = login::salt(reply).map(|(salt, _)| (number, salt)).or(self.identity.said);
        }
    }

    /// What the client has said behind a request that had no reply.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.rest)
    }

    /// The server is asked to end what is open by an error.
    pub(crate) fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// The server has been asked to end the connection, or is to.
    pub(crate) fn quits(&self) -> bool {
        self.quits || self.is_refused
    }

    /// Nothing more of it comes to any server.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }
}

/// The salt of a greeting, or of a packet that asks for the proof that is understood here.
#[cfg(feature = "io")]
pub(crate) fn salt_of(packet: &[u8]) -> Option<Hash> {
    login::salt(packet).filter(|(_, is_native)| *is_native).map(|(salt, _)| salt)
}

fn is_error(reply: &[u8], number: u16) -> bool {
    let [low, high] = number.to_le_bytes();
    reply.get(HEADER_BYTES..).is_some_and(|payload| payload.starts_with(&[0xff, low, high]))
}

fn is_refusal(reply: &[u8]) -> bool {
    reply.get(HEADER_BYTES) == Some(&0xff)
}

/// A statement by which every server says the same error.
fn refusal(number: u8, why: &str) -> Vec<u8> {
    let mut request = Vec::from([QUERY]);
    request.extend_from_slice(b"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'outlast refuses ");
    request.extend(why.bytes().filter(|byte| *byte != b'\''));
    request.push(b'\'');
    packet(number, &request)
}
