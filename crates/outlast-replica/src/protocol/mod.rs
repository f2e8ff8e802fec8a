//! What a node understands of the bytes between clients and its server: whether the server has answered all that it was asked.

#[cfg(test)]
pub(crate) mod counted;
pub(crate) mod database;
pub(crate) mod determinism;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub(crate) mod mysql;
pub(crate) mod postgres;
mod redis;
mod refused;
mod session;
#[cfg(test)]
mod tests;

use crate::connection::Piece;
use crate::connection::comparison::{NAME_BYTES, Part};
use crate::entry::Again;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use database::{Database, Given};
use determinism::Class;
use mysql::OfMysql;
use postgres::OfPostgres;
use redis::{Ended, Replies, Requests};
pub use session::Resume;
use session::Session;

/// Which protocol clients and the server speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Any: whatever the server says answers all that was asked on that connection.
    #[default]
    Raw,
    /// That of Redis (RESP 2 and 3): each request has one reply, and one that has not come as a whole has none.
    Redis,
    /// That of MySQL and MariaDB: a greeting, and then one reply to each request.
    Mysql,
    /// That of PostgreSQL: one reply to each request, or to several that are closed by one more (Sync).
    Postgres,
    /// That of the simulation: each byte has three bytes of an answer, and the server greets each client with one.
    #[cfg(test)]
    Counted,
    /// The same; the server can be asked whether it has worked off what it was given.
    #[cfg(test)]
    CountedAsked,
    /// The same; clients take turns with the server, as those of MySQL do.
    #[cfg(test)]
    CountedTurns,
}

impl Protocol {
    /// Whether the server has something that a copy of its data lacks, and can forget it: of Redis, scripts.
    pub(crate) fn forgets(self) -> bool {
        match self {
            Self::Raw | Self::Mysql | Self::Postgres => false,
            Self::Redis => true,
            #[cfg(test)]
            Self::Counted | Self::CountedAsked | Self::CountedTurns => true,
        }
    }

    /// Whether it is known where replies end, so that each can be compared by itself. Else bytes are.
    pub(crate) fn counts_replies(self) -> bool {
        matches!(self, Self::Redis | Self::Mysql | Self::Postgres)
    }

    /// Whether the server says, on a connection of its own, when it has worked off what it was given on others: it reads all before it answers.
    pub(crate) fn asks_server(self) -> bool {
        match self {
            Self::Raw => false,
            Self::Redis | Self::Mysql | Self::Postgres => true,
            #[cfg(test)]
            Self::Counted => false,
            #[cfg(test)]
            Self::CountedAsked | Self::CountedTurns => true,
        }
    }

    /// Whether the time of day that the server knows may have it answer what it has not: databases wait by another clock.
    pub(crate) fn answers_by_time(self) -> bool {
        self.asks_server() && !self.is_database()
    }

    /// Whether a client has a reply to each request before it says the next, and to none but a greeting of the server's before the first.
    pub(crate) fn takes_turns(self) -> bool {
        match self {
            Self::Mysql | Self::Postgres => true,
            #[cfg(test)]
            Self::CountedTurns => true,
            _ => false,
        }
    }

    /// Whether clients prove who they are in a way that is another one at each server, and statements may wait for each other.
    pub fn is_database(self) -> bool {
        matches!(self, Self::Mysql | Self::Postgres)
    }

    /// Whether the server says something before clients do.
    pub(crate) fn greets(self) -> bool {
        self.takes_turns() && !matches!(self, Self::Postgres)
    }

    /// Whether a server that answers one client may go on with another one that was passed, beside what it is given next: one with threads does.
    pub(crate) fn works_on_several(self) -> bool {
        self.takes_turns()
    }
}

/// What is open on one connection.
#[derive(Debug)]
pub(crate) enum Questions {
    Raw {
        is_open: bool,
    },
    Redis(Box<OfRedis>),
    Database(Box<dyn Database>),
    #[cfg(test)]
    Counted(Box<counted::OfCounted>),
}

/// The same of Redis.
#[derive(Debug, Default)]
pub(crate) struct OfRedis {
    requests: Requests,
    replies: Replies,
    session: Session,
    open: u64,
    /// Replies to what was passed: they come first.
    owed: u64,
    /// One has come, since something was passed last.
    is_paid: bool,
    /// Something was passed, and it is not known whether it has been answered.
    is_doubtful: bool,
    /// Which commands the next replies answer, in what form they are compared, and how many replies each has.
    asked: VecDeque<Asked>,
    /// Of a reply that each server gives in its own way, so much has come.
    own: Vec<u8>,
    /// Where what the server is given has to be other bytes ([`refused`]).
    altered: Vec<(usize, u8)>,
    /// A client has sent what is no request: from then on any bytes answer all. Whether something is open.
    broken: Option<bool>,
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    class: Class,
    name: [u8; NAME_BYTES],
    replies: u64,
}

impl OfRedis {
    fn pass(&mut self) {
        let more = core::mem::take(&mut self.open);
        if self.session.is_compared() {
            // Each has one reply.
            self.owed += more;
            self.is_paid = false;
            return;
        }
        self.is_doubtful |= self.is_paid && more > 0;
        // Redis answers in order: what has not come before that never will, as after SUBSCRIBE.
        self.owed = if core::mem::take(&mut self.is_paid) { 0 } else { self.owed + more };
    }

    /// None: it is no such protocol.
    fn ask(&mut self, bytes: &[u8]) -> Option<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let before = rest;
            let ends = self.requests.take(&mut rest)?;
            let now = before.get(..before.len() - rest.len()).unwrap_or_default();
            let replies = match refused::altered(self.session.partial(), now) {
                None => self.session.take(now, ends),
                Some((at, byte)) => {
                    self.altered.push((bytes.len() - before.len() + at, byte));
                    // Another server that is to go on with the connection gets what this one has had.
                    let mut now = now.to_vec();
                    now[at] = byte;
                    self.session.take(&now, ends)
                }
            };
            self.open += replies;
            if replies > 0 && self.session.is_compared() {
                let (class, name) = self.session.last();
                self.asked.push_back(Asked { class, name, replies });
            }
        }
        Some(())
    }

    /// How the next reply is compared.
    fn class(&self) -> Class {
        self.asked.front().map_or(Class::Same, |asked| asked.class)
    }

    /// None: it is no such protocol. What has come is handed on.
    fn answer<'a>(&mut self, bytes: &'a [u8], mut takes: impl FnMut(Piece<'_>)) -> Option<()> {
        let (mut rest, mut count) = (bytes, 0);
        // What was not handed on.
        let mut same = bytes;
        while !rest.is_empty() {
            let before = rest;
            let is_own = !self.own.is_empty() || self.replies.is_at_end() && self.class() != Class::Same;
            let taken = self.replies.take(&mut rest, self.class());
            let Some(ended) = taken else {
                takes(Piece::Bytes(&core::mem::take(&mut self.own)));
                takes(Piece::Bytes(same));
                return None;
            };
            let now: &'a [u8] = before.get(..before.len() - rest.len()).unwrap_or_default();
            if is_own {
                takes(Piece::Bytes(same.get(..same.len() - before.len()).unwrap_or_default()));
                same = rest;
                self.own.extend_from_slice(now);
            }
            if is_own && ended == Some(Ended::Push) {
                takes(Piece::Bytes(&core::mem::take(&mut self.own)));
            }
            let Some(Ended::Reply(digest)) = ended else { continue };
            count += 1;
            let name = self.asked.front().map_or([0; NAME_BYTES], |asked| asked.name);
            let part = Part { digest, end: 0, name };
            if is_own {
                takes(Piece::Own(&core::mem::take(&mut self.own), part));
            } else if self.session.is_compared() {
                takes(Piece::Bytes(same.get(..same.len() - rest.len()).unwrap_or_default()));
                takes(Piece::Part(part));
                same = rest;
            }
            if let Some(asked) = self.asked.front_mut() {
                asked.replies -= 1;
                if asked.replies == 0 {
                    self.asked.pop_front();
                }
            }
        }
        if !same.is_empty() {
            takes(Piece::Bytes(same));
        }
        // It says more where a client has subscribed to something.
        let late = count.min(self.owed);
        self.owed -= late;
        self.open = self.open.saturating_sub(count - late);
        // When all is answered, what was paid was right.
        self.is_paid = (self.is_paid || late > 0) && self.open > 0;
        Some(())
    }
}

impl Questions {
    pub(crate) fn new(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Raw => Self::Raw { is_open: false },
            Protocol::Redis => Self::Redis(Box::default()),
            Protocol::Mysql => Self::Database(Box::<OfMysql>::default()),
            Protocol::Postgres => Self::Database(Box::<OfPostgres>::default()),
            #[cfg(test)]
            Protocol::Counted | Protocol::CountedAsked | Protocol::CountedTurns => {
                Self::Counted(Box::new(counted::OfCounted::new(protocol.takes_turns())))
            }
        }
    }

    /// Of a connection that was brought into this state.
    pub(crate) fn resumed(protocol: Protocol, resume: &Resume) -> Self {
        let mut questions = Self::new(protocol);
        questions.pass();
        #[cfg(test)]
        if let Self::Counted(of) = &mut questions {
            of.resume(resume);
        }
        if let Self::Redis(of) = &mut questions {
            // It is known that it can be understood.
            let _ = of.requests.take(&mut &*resume.partial);
            of.session = Session::resumed(resume);
        }
        questions
    }

    /// How another server is brought into the state that this one has for the connection, where nothing is under way; none: it cannot be.
    pub(crate) fn resume(&self) -> Option<Resume> {
        match self {
            Self::Raw { .. } | Self::Database(_) => None,
            // What was passed may come yet: a client waits for it.
            Self::Redis(of) if of.broken.is_some() => None,
            Self::Redis(of) if of.open == 0 && of.owed == 0 && !of.is_doubtful && of.replies.is_at_end() => {
                of.session.resume()
            }
            Self::Redis(_) => None,
            #[cfg(test)]
            Self::Counted(of) => of.resumes(),
        }
    }

    /// What is open is not waited for.
    pub(crate) fn pass(&mut self) {
        match self {
            Self::Raw { is_open } => *is_open = false,
            Self::Redis(of) => {
                of.broken = of.broken.map(|_| false);
                of.pass();
            }
            Self::Database(of) => of.pass(),
            #[cfg(test)]
            Self::Counted(of) => of.pass(),
        }
    }

    /// So many bytes have come of a request that is not whole.
    pub(crate) fn partial_bytes(&self) -> usize {
        if let Self::Redis(of) = self { of.session.begun_bytes() } else { 0 }
    }

    /// The server is given this.
    pub(crate) fn ask(&mut self, bytes: &[u8]) {
        match self {
            Self::Raw { is_open } => *is_open = true,
            Self::Redis(of) => {
                if of.broken.is_some() || of.ask(bytes).is_none() {
                    // What was asked before is answered before.
                    of.session.end_comparison();
                    of.broken = Some(true);
                }
            }
            Self::Database(of) => of.ask(bytes),
            #[cfg(test)]
            Self::Counted(of) => of.ask(bytes),
        }
    }

    /// What the server is given in the place of what was asked last, if that is not to come to it as it is.
    pub(crate) fn instead_of(&mut self, bytes: &[u8]) -> Option<Vec<Given>> {
        if let Self::Database(of) = self {
            return Some(of.given());
        }
        #[cfg(test)]
        if let Self::Counted(of) = self {
            return of.instead().map(|bytes| Vec::from([Given::Bytes(bytes)]));
        }
        let Self::Redis(of) = self else { return None };
        if of.altered.is_empty() {
            return None;
        }
        let mut instead = bytes.to_vec();
        for (at, byte) in of.altered.drain(..) {
            if let Some(place) = instead.get_mut(at) {
                *place = byte;
            }
        }
        Some(Vec::from([Given::Bytes(instead)]))
    }

    /// Why a request that was asked last is not let through, if one is not.
    pub(crate) fn refused(&mut self) -> Option<&'static str> {
        match self {
            Self::Redis(of) => (!of.altered.is_empty()).then_some(refused::WHY),
            Self::Database(of) => of.refused(),
            _ => None,
        }
    }

    /// The server has greeted the client, if it does so before anything else.
    pub(crate) fn is_greeted(&self) -> bool {
        match self {
            Self::Database(of) => of.is_greeted(),
            #[cfg(test)]
            Self::Counted(of) => of.is_greeted(),
            _ => true,
        }
    }

    /// The number that the server has for the connection, if it has said it.
    pub(crate) fn server_number(&self) -> Option<u32> {
        match self {
            Self::Database(of) => of.server_number(),
            #[cfg(test)]
            Self::Counted(of) => of.server_number(),
            _ => None,
        }
    }

    /// What was asked last, and is to be asked again when all before it is answered: a server gets one request at a time.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        match self {
            Self::Database(of) => of.rest(),
            #[cfg(test)]
            Self::Counted(of) => of.rest(),
            _ => Vec::new(),
        }
    }

    /// What the node asks the server for itself.
    pub(crate) fn of_node(&mut self) -> Vec<u8> {
        if let Self::Database(of) = self { of.of_node() } else { Vec::new() }
    }

    /// The server is asked to end what is open by an error; whether it gets that again, or the client hears of it.
    pub(crate) fn interrupt(&mut self, keeps: bool) {
        match self {
            Self::Database(of) => of.interrupt(keeps),
            #[cfg(test)]
            Self::Counted(of) => of.interrupt(keeps),
            _ => {}
        }
    }

    /// It has ended a request, which is kept.
    pub(crate) fn is_kept(&self) -> bool {
        match self {
            Self::Database(of) => of.is_kept(),
            #[cfg(test)]
            Self::Counted(of) => of.is_kept(),
            _ => false,
        }
    }

    /// It gets that again; or something that it answers with an error.
    pub(crate) fn give_again(&mut self, how: Again) {
        match self {
            Self::Database(of) => of.give_again(how),
            #[cfg(test)]
            Self::Counted(of) => of.give_again(),
            _ => {}
        }
    }

    /// It does not.
    pub(crate) fn forget_kept(&mut self) {
        match self {
            Self::Database(of) => of.forget_kept(),
            #[cfg(test)]
            Self::Counted(of) => of.forget_kept(),
            _ => {}
        }
    }

    /// The client may have locked something that others wait for; or has read something, where that matters.
    pub(crate) fn may_hold_locks(&self, reads_matter: bool) -> bool {
        if let Self::Database(of) = self { of.may_hold_locks(reads_matter) } else { false }
    }

    /// The client is within a transaction.
    pub(crate) fn is_in_transaction(&self) -> bool {
        match self {
            Self::Database(of) => of.is_in_transaction(),
            #[cfg(test)]
            Self::Counted(of) => of.is_in_transaction(),
            _ => false,
        }
    }

    /// What waits may wait for clients that have only read.
    pub(crate) fn waits_for_readers(&self) -> bool {
        if let Self::Database(of) = self { of.waits_for_readers() } else { false }
    }

    /// What is asked, and has no reply, is over after some time.
    pub(crate) fn times_out(&self) -> bool {
        if let Self::Database(of) = self { of.times_out() } else { false }
    }

    /// Replies are for nobody any more.
    pub(crate) fn give_up(&mut self) {
        if let Self::Database(of) = self {
            of.give_up();
        }
    }

    /// The client is to be refused: it says too much at a time.
    pub(crate) fn refuse(&mut self) {
        if let Self::Database(of) = self {
            of.refuse();
        }
    }

    /// The client is refused: the server gets an end, and nothing more.
    pub(crate) fn is_refused(&self) -> bool {
        if let Self::Database(of) = self { of.is_refused() } else { false }
    }

    /// The server was asked to end the connection.
    pub(crate) fn quits(&self) -> bool {
        if let Self::Database(of) = self { of.quits() } else { false }
    }

    /// So much is kept of a reply that has not come to its end.
    pub(crate) fn reply_bytes(&self) -> usize {
        match self {
            Self::Redis(of) => of.own.len(),
            Self::Database(of) => of.reply_bytes(),
            _ => 0,
        }
    }

    /// Clients get this in the place of a reply that every server gives in its own way.
    pub(crate) fn note_canonical(&mut self, number: u64, reply: &[u8]) {
        if let Self::Database(of) = self {
            of.note_canonical(number, reply);
        }
    }

    /// The server says this. What of it is for clients, and what is told apart, is handed on.
    pub(crate) fn answer(&mut self, bytes: &[u8], mut takes: impl FnMut(Piece<'_>)) {
        match self {
            Self::Raw { is_open } => {
                *is_open = false;
                takes(Piece::Bytes(bytes));
            }
            Self::Redis(of) => {
                of.broken = of.broken.map(|_| false);
                if of.answer(bytes, takes).is_none() {
                    *self = Self::Raw { is_open: false };
                }
            }
            Self::Database(of) => of.answer(bytes, &mut takes),
            #[cfg(test)]
            Self::Counted(of) => of.answer(bytes, takes),
        }
    }

    /// Whether answers can be compared with those of another server.
    pub(crate) fn are_compared(&self, protocol: Protocol) -> bool {
        match self {
            Self::Redis(of) => of.session.is_compared(),
            Self::Database(of) => !of.is_broken(),
            Self::Raw { .. } => !protocol.counts_replies(),
            #[cfg(test)]
            Self::Counted(_) => true,
        }
    }

    #[cfg(test)]
    pub(crate) fn answer_all(&mut self, bytes: &[u8]) {
        self.answer(bytes, |_| {});
    }

    /// Whether something was passed that has not been answered.
    pub(crate) fn owes(&self) -> bool {
        match self {
            Self::Raw { .. } => false,
            Self::Redis(of) => of.owed > 0,
            Self::Database(of) => of.owes(),
            #[cfg(test)]
            Self::Counted(of) => of.owes(),
        }
    }

    /// Whether the server has nothing left to answer.
    pub(crate) fn are_answered(&self) -> bool {
        match self {
            Self::Raw { is_open } => !is_open,
            Self::Redis(of) => of.broken.map_or(of.open == 0, |is_open| !is_open),
            Self::Database(of) => of.are_answered(),
            #[cfg(test)]
            Self::Counted(of) => of.are_answered(),
        }
    }
}

/// Replies to what brings a connection into its state ([`Resume`]): the client has had them.
#[derive(Debug)]
pub struct Resumes(Questions);

impl Resumes {
    /// None has come.
    #[must_use]
    pub fn new(protocol: Protocol, resume: &Resume) -> Self {
        let mut questions = Questions::new(protocol);
        questions.ask(&resume.setup);
        questions.ask(&resume.queued);
        Self(questions)
    }

    /// How many of these bytes belong to them.
    pub fn take(&mut self, bytes: &[u8]) -> usize {
        let mut count = 0;
        while !self.are_over()
            && let Some(byte) = bytes.get(count..=count)
        {
            self.0.answer(byte, |_| {});
            count += 1;
        }
        count
    }

    /// All have come.
    #[must_use]
    pub fn are_over(&self) -> bool {
        self.0.are_answered()
    }
}
