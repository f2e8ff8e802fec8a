//! The protocol of PostgreSQL: a client's requests, and their replies. What is ordered is what clients say. A server gets a request as a whole, and with it
//! all up to where it answers: a statement, or several messages that are closed by Sync. Proofs of who a client is are made for each server
//! ([`login`]). Results are those of the primary's server: others may find rows in another order. Names and numbers are those of PostgreSQL's
//! documentation (PostgreSQL 15, chapter 55).

mod database;
pub(crate) mod login;
mod message;
mod replies;
mod requests;
mod statements;
#[cfg(test)]
pub(crate) mod tests;

use super::database::{Given, give};
use crate::connection::Piece;
use crate::connection::comparison::{NAME_BYTES, Part};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use login::Question;
use message::text;
use replies::{Compare, Kind, Replies};

/// What a client says up to where the server answers is kept as a whole, up to so much; one that says more is refused.
const REQUEST_BYTES_MAX: usize = 64 << 20;
/// What is copied to the server comes to it as a whole, too, if it is no longer than that: else piece by piece.
const COPY_BYTES_MAX: usize = 16 << 20;
/// Statements that were prepared, and rows that are fetched later: what is known of more is forgotten, so they are not compared, and not said again.
const NAMES_MAX: usize = 4_096;
const NAME_BYTES_MAX: usize = 63;
/// A longer request is not said again.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// States of SQL: what a server says of a statement that was ended (query_canceled), and what clients hear in its place (serialization_failure): they
/// try the transaction again.
const CANCELED: [u8; 5] = *b"57014";
const WAITS: &[u8] = b"40001";
const WAITS_SAID: &[u8] = b"could not serialize access: another statement waits for a lock already";
const WAITS_HINT: &[u8] =
    b"One statement waits inside a replicated server at a time. Try the transaction again.";

/// Of a connection, behind each reply: no transaction is under way; one is; one is that takes nothing more.
const IDLE: u8 = b'I';
const IN_TRANSACTION: u8 = b'T';
const FAILED: u8 = b'E';

/// How far a client has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Startup,
    Login,
    Ready,
}

/// What a client copies to the server ends with its last message, or with Sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copying {
    is_closed_by_sync: bool,
    /// The last message has come.
    is_done: bool,
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    kind: Kind,
    /// If it is ended by an error, it has had no effect, and can be said again.
    is_repeatable: bool,
    /// The server awaits Sync behind it.
    is_extended: bool,
    compare: Compare,
    name: [u8; NAME_BYTES],
}

impl Asked {
    fn new(kind: Kind, compare: Compare, name: &[u8]) -> Self {
        let mut padded = [0; NAME_BYTES];
        padded.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte);
        Self { kind, is_repeatable: false, is_extended: false, compare, name: padded }
    }
}

/// What is known of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Statement {
    compare: Compare,
    is_repeatable: bool,
}

impl Statement {
    const UNKNOWN: Self = Self { compare: Compare::Form, is_repeatable: false };
}

/// Who the client is.
#[derive(Debug, Default)]
struct Identity {
    user: Vec<u8>,
    /// What it has said first of SCRAM.
    first: Vec<u8>,
    /// What it was asked, and by the how-many-th reply of its own kind; and what this node's server has asked.
    said: Option<(u64, Question)>,
    own: Option<Question>,
    /// It was asked for its password in clear, or for the first part of SCRAM.
    is_asked_alike: bool,
    /// The number that the server has for the connection.
    number: Option<u32>,
}

/// What is open on one connection.
#[derive(Debug, Default)]
pub(crate) struct OfPostgres {
    phase: Phase,
    identity: Identity,
    /// A message that has not come as a whole.
    partial: Vec<u8>,
    /// Messages to which the server says nothing before others come.
    request: Vec<u8>,
    /// So many of them are answered each.
    unanswered: u64,
    /// What is known of the request.
    statement: Option<Statement>,
    /// It names a statement, which stays when it has failed.
    names: bool,
    /// An error has come: the server passes over what comes, up to Sync.
    skips: bool,
    copying: Option<Copying>,
    statements: BTreeMap<Vec<u8>, Statement>,
    portals: BTreeMap<Vec<u8>, Statement>,
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
    /// Whether a transaction is under way.
    status: u8,
    /// Something may be locked for longer than a transaction.
    names_locks: bool,
    /// The last request, if it can be said again, until it has a reply.
    last: Vec<u8>,
    /// It was ended, and can be given again.
    kept: Option<Asked>,
    /// The server was asked to end what is open by an error; whether it gets that again.
    interrupted: Option<bool>,
    quits: bool,
    is_refused: bool,
    /// What has come behind a request that has no reply yet.
    rest: Vec<u8>,
    /// Somebody says what is none of this protocol. Any bytes answer all from then on: whether something is open.
    broken: Option<bool>,
}

impl OfPostgres {
    /// None: it is no such protocol. What was not handed on is in `reply`.
    fn hear(&mut self, mut bytes: &[u8], takes: &mut dyn FnMut(Piece<'_>)) -> Option<()> {
        while !bytes.is_empty() {
            let before = bytes;
            let unasked = Kind::Unasked { copies: self.copying.is_some() };
            let asked =
                self.asked.front().copied().unwrap_or_else(|| Asked::new(unasked, Compare::Form, b""));
            let Some(ended) = self.replies.take(&mut bytes, asked.kind, asked.compare) else {
                self.reply.extend_from_slice(before);
                return None;
            };
            if !self.is_given_up {
                self.reply.extend_from_slice(before.get(..before.len() - bytes.len()).unwrap_or_default());
            }
            let Some(ended) = ended else { break };
            let mut reply = core::mem::take(&mut self.reply);
            if ended.is_aside {
                // Each server says it when it likes, and none has to.
                continue;
            }
            let mut digest = ended.digest;
            let interrupted = self.interrupted.filter(|_| !self.asked.is_empty());
            if let Some(keeps) = interrupted
                && ended.error == Some(CANCELED)
            {
                self.interrupted = None;
                if keeps && asked.is_repeatable && !self.last.is_empty() && self.owed == 0 {
                    self.kept = self.asked.pop_front();
                    self.open = self.open.saturating_sub(1);
                    continue;
                }
                // Rows may have come before. Clients know this one, and try again.
                reply = replies::with_error(&reply, &replies::error(WAITS, WAITS_SAID, WAITS_HINT));
                digest = 0;
            }
            self.interrupted = None;
            self.last = Vec::new();
            self.status = ended.status.unwrap_or(self.status);
            if ended.status == Some(IDLE) {
                // They end with their transaction.
                self.portals.clear();
            }
            self.identity.number = ended.number.or(self.identity.number);
            if matches!(asked.kind, Kind::Flush { .. }) && ended.error.is_some() {
                self.skip_flushed();
            }
            if asked.kind == Kind::Login && ended.asks {
                self.note_question(&reply);
            } else if asked.kind == Kind::Login && ended.error.is_none() {
                self.phase = Phase::Ready;
            }
            let copying = Copying { is_closed_by_sync: asked.is_extended, is_done: false };
            self.copying = ended.copies.then_some(copying);
            if self.asked.pop_front().is_some() {
                if self.owed > 0 {
                    self.owed -= 1;
                } else {
                    self.open = self.open.saturating_sub(1);
                }
            }
            if self.is_given_up {
                continue;
            }
            let part = Part { digest, end: 0, name: asked.name };
            // What may be there at one server and not at another one is decided by what was asked, and not by what has come.
            if ended.is_own || asked.compare == Compare::Form && asked.kind != Kind::Encryption {
                takes(Piece::Own(&reply, part));
            } else {
                takes(Piece::Bytes(&reply));
                takes(Piece::Part(part));
            }
        }
        Some(())
    }

    /// The server passes over all up to Sync, also over what it has already.
    fn skip_flushed(&mut self) {
        self.skips = !self.asked.iter().any(|asked| asked.kind == Kind::Query);
        while let Some(at) =
            self.asked.iter().skip(1).position(|asked| matches!(asked.kind, Kind::Flush { .. }))
        {
            self.asked.remove(at + 1);
            if self.owed > 1 {
                self.owed -= 1;
            } else {
                self.open = self.open.saturating_sub(1);
            }
        }
    }

    /// The server asks who the client is.
    fn note_question(&mut self, reply: &[u8]) {
        let last = message::each(reply).filter(|(kind, _)| *kind == login::QUESTION).last();
        self.identity.own = last.and_then(|(_, message)| Question::of(message));
        self.identity.is_asked_alike = self.identity.own.is_none();
    }

    /// The server gets a request, and answers it.
    fn end_request(&mut self, kind: Kind, name: &[u8], is_extended: bool) {
        let request = core::mem::take(&mut self.request);
        let statement = self.statement.take().unwrap_or(Statement::UNKNOWN);
        let names = core::mem::take(&mut self.names);
        let is_repeatable = statement.is_repeatable
            && kind == Kind::Query
            && self.status == IDLE
            && !names
            && request.len() <= KEPT_BYTES_MAX;
        self.open += 1;
        self.unanswered = 0;
        let asked = Asked::new(kind, statement.compare, name);
        self.asked.push_back(Asked { is_repeatable, is_extended, ..asked });
        give(&mut self.given, &request);
        self.last = if is_repeatable { request } else { Vec::new() };
    }
}

/// One that is known by this name.
fn known(names: &BTreeMap<Vec<u8>, Statement>, name: &[u8]) -> Statement {
    names.get(name).copied().unwrap_or(Statement::UNKNOWN)
}

fn remember(names: &mut BTreeMap<Vec<u8>, Statement>, name: &[u8], statement: Statement) {
    // A server cuts longer ones off.
    if name.len() <= NAME_BYTES_MAX && (names.len() < NAMES_MAX || names.contains_key(name)) {
        names.insert(name.to_vec(), statement);
    }
}

/// The first text of a message, and what is behind it.
fn name_of(message: &[u8]) -> Option<(&[u8], &[u8])> {
    text(message.get(message::HEADER_BYTES..)?)
}
