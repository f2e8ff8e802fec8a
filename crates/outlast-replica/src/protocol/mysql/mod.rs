//! The protocol of MySQL and MariaDB: one request, one reply, and a greeting before the first.
//!
//! What is ordered is what clients say. A server gets each request as a whole, so what must not come to it can be kept from it; and proofs of who a client is
//! are made anew for each server ([`login`]). Results are those of the primary's server: others may find rows in another order. Names and numbers are
//! those of MariaDB's documentation of the protocol ("Client/Server Protocol").

mod database;
mod kept;
pub(crate) mod login;
pub(crate) mod packet;
mod replies;
mod requests;
mod statements;
#[cfg(test)]
pub(crate) mod tests;

use crate::connection::Piece;
use crate::connection::comparison::{NAME_BYTES, Part};
use crate::protocol::database::Given;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use login::Hash;
use login::Login;
use packet::{HEADER_BYTES, Packets, packet};
use replies::{Compare, Kind, Replies};

/// A request that is longer, so that it has several parts, is given to the server piece by piece, and not looked into.
const WITHHELD_BYTES_MAX: usize = packet::PART_BYTES_MAX - 1;
/// An end of rows begins as a question for another proof does, and is shorter.
const ASKS_BYTES_MIN: usize = 9;
/// Requests without a reply wait for the next one, up to so many bytes.
const UNGIVEN_BYTES_MAX: usize = 64 << 10;
/// A proof of who a client is, and what comes with it, is shorter.
const LOGIN_BYTES_MAX: usize = 64 << 10;

/// What a server says of a statement that was ended (ER_QUERY_INTERRUPTED), and what clients hear in its place (ER_LOCK_WAIT_TIMEOUT: the
/// statement has had no effect, and the transaction goes on).
const INTERRUPTED: u16 = 1317;
const WAITED: &[u8] = b"\xff\xb5\x04#HY000Lock wait timeout exceeded; try restarting transaction";
/// What servers say who see one by themselves (ER_LOCK_DEADLOCK): they have rolled back.
const DEADLOCK: u16 = 1213;
/// More statements that have long data cannot be repeated.
const LONG_DATA_MAX: usize = 64;
/// A longer request is not kept, and its client hears that it was ended.
const KEPT_BYTES_MAX: usize = 1 << 20;

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
const PING: u8 = 0x0e;
const RESET: u8 = 0x1f;
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
    (PING, b"ping"),
    (RESET, b"reset"),
];
const BINLOG: &str = "a copy of the binary log: another one at each server";

/// What others may have to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    #[default]
    Nothing,
    /// Tables that were read: those wait who want to alter them.
    Reads,
    Locks,
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    kind: Kind,
    /// If it is ended by an error, it has had no effect, and nothing else has.
    is_repeatable: bool,
    /// It does not wait for ever.
    times_out: bool,
    /// What its transaction may have from then on.
    holds: Holds,
    /// By the node, and not by the client.
    is_of_node: bool,
    compare: Compare,
    name: [u8; NAME_BYTES],
}

impl Asked {
    fn new(kind: Kind, compare: Compare, name: &[u8]) -> Self {
        let mut padded = [0; NAME_BYTES];
        padded.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte);
        Self {
            kind,
            is_repeatable: false,
            times_out: false,
            holds: Holds::Nothing,
            is_of_node: false,
            compare,
            name: padded,
        }
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
    /// Requests that have no reply: the server gets them with the next one that has, as nobody would know when it has worked them off.
    ungiven: Vec<u8>,
    /// What the node itself asks.
    of_node: Vec<u8>,
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
    /// A statement that was prepared cannot be repeated ([`Asked::is_repeatable`]).
    prepares_odd: bool,
    /// A statement that was prepared is not kept.
    prepares_unkept: bool,
    /// A statement may wait for as long as its client has said, and what it locks is locked for longer than a transaction.
    names_locks: bool,
    /// A statement that was prepared may lock something.
    prepares_locking: bool,
    /// Reads may lock rows.
    has_reads_lock: bool,
    /// What the transaction may have.
    holds: Holds,
    /// What the server has said last of the connection.
    status: u16,
    /// Statements whose next execution has parts that have come before, and that a server forgets then.
    long_data: Vec<u32>,
    /// The last request, if it can be repeated, until it has a reply.
    last: Vec<u8>,
    /// It was ended, and can be given again.
    kept: Option<Asked>,
    /// The server is to end the connection.
    quits: bool,
    /// The server was asked to end what is open by an error, so that nobody waits; whether it gets that again.
    interrupted: Option<bool>,
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
            ungiven: Vec::new(),
            of_node: Vec::new(),
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
            prepares_unkept: false,
            has_reads_lock: false,
            names_locks: false,
            prepares_locking: false,
            holds: Holds::Nothing,
            status: replies::AUTOCOMMIT,
            long_data: Vec::new(),
            last: Vec::new(),
            kept: None,
            quits: false,
            interrupted: None,
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
            let interrupted = self.interrupted.take().filter(|_| asked.is_repeatable);
            let mut digest = ended.digest;
            if let Some(keeps) = interrupted.filter(|_| ended.error == Some(INTERRUPTED)) {
                // Rows may have come before, and nobody has heard of them.
                if keeps && !self.last.is_empty() && self.owed == 0 {
                    // Rows that it has come to before stay locked.
                    self.note_status(None, asked.holds, false);
                    self.kept = self.asked.pop_front();
                    self.open = self.open.saturating_sub(1);
                    continue;
                }
                // Clients know this one, and try again.
                (reply, digest) = (packet(1, WAITED), 0);
            }
            self.last = Vec::new();
            self.note_status(ended.status, asked.holds, ended.error == Some(DEADLOCK));
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
            if asked.kind == Kind::Login && !ended.asks && !is_refusal(&reply) {
                // It notes the time for that connection once more behind this reply, or a little later.
                self.of_node = self.ping();
            }
            let part = Part { digest, end: 0, name: asked.name };
            // Where nothing else is asked an error says that the server ends the connection, and why.
            if self.is_given_up || asked.is_of_node && (ended.error.is_none() || self.open > 0) {
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

fn is_refusal(reply: &[u8]) -> bool {
    reply.get(HEADER_BYTES) == Some(&0xff)
}
