//! What clients say, and what servers get of it.

use super::login::{Login, PROOF};
use super::message::{HEADER_BYTES, KIND_BYTES, LENGTH_BYTES, four, message, text};
use super::replies::{Compare, Kind};
use super::statements::{self, Verdict};
use super::{
    COPY_BYTES_MAX, NAME_BYTES_MAX, OfPostgres, Phase, REQUEST_BYTES_MAX, Statement, known, name_of, remember,
};
use crate::protocol::database::{self as databases, Given, give};
use alloc::vec::Vec;

/// What a client says first: a version, or one of these in its place.
const STARTUP_BYTES_MAX: usize = 10_000;
/// Of a proof of who a client is.
const LOGIN_BYTES_MAX: usize = 64 << 10;
const VERSION: u32 = 3;
const CANCEL: u32 = 80_877_102;
const ENCRYPTS_BY_TLS: u32 = 80_877_103;
const ENCRYPTS_BY_GSS: u32 = 80_877_104;

/// Kinds of messages.
const QUERY: u8 = b'Q';
const PARSE: u8 = b'P';
const BIND: u8 = b'B';
const DESCRIBE: u8 = b'D';
const EXECUTE: u8 = b'E';
const CLOSE: u8 = b'C';
const SYNC: u8 = b'S';
const FLUSH: u8 = b'H';
const FUNCTION: u8 = b'F';
const COPY_DATA: u8 = b'd';
const COPY_DONE: u8 = b'c';
const COPY_FAIL: u8 = b'f';
const TERMINATE: u8 = b'X';

const FUNCTION_CALL: &str =
    "a function that is called by its number (large objects of libpq and of JDBC): what it does is not known";
const TOO_LONG: &str = "a request of more than 64 MiB: the connection is ended";
const NOT_UNDERSTOOD: &str =
    "what is no request of PostgreSQL's protocol, version 3: the connection is ended";
const REPLICATION: &str = "a connection for replication by PostgreSQL's own means: it is about one server";

impl OfPostgres {
    /// Up to the first request that is answered.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        let open = self.open;
        self.partial.extend_from_slice(bytes);
        let all = core::mem::take(&mut self.partial);
        let mut at = 0;
        while self.open == open && !self.is_refused && !self.quits {
            let rest = all.get(at..).unwrap_or_default();
            match self.length(rest) {
                Err(why) => self.refuse_client(why),
                Ok(None) => break,
                Ok(Some(length)) => {
                    at += length;
                    self.take_message(rest.get(..length).unwrap_or_default());
                }
            }
        }
        if self.is_refused || self.quits {
            return;
        }
        if self.open > open {
            self.rest = all.get(at..).unwrap_or_default().to_vec();
        } else {
            self.partial = if at == 0 { all } else { all.get(at..).unwrap_or_default().to_vec() };
        }
    }

    /// Of the message that begins here, if that is there as a whole.
    fn length(&self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        let is_first = self.phase == Phase::Startup;
        let before = if is_first { 0 } else { KIND_BYTES };
        let Some(length) = bytes.get(before..).and_then(four) else { return Ok(None) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length < LENGTH_BYTES || is_first && !(2 * LENGTH_BYTES..=STARTUP_BYTES_MAX).contains(&length) {
            return Err(NOT_UNDERSTOOD);
        }
        let length = before.saturating_add(length);
        let most = if self.phase == Phase::Ready { REQUEST_BYTES_MAX } else { LOGIN_BYTES_MAX };
        if length.saturating_add(self.request.len()) > most {
            return Err(TOO_LONG);
        }
        Ok((bytes.len() >= length).then_some(length))
    }

    /// Servers get nothing more of this client: one might understand what is not understood here, and another one not.
    fn refuse_client(&mut self, why: &'static str) {
        (self.is_refused, self.refused) = (true, Some(why));
    }

    fn take_message(&mut self, message: &[u8]) {
        match self.phase {
            Phase::Startup => self.begin(message),
            Phase::Login => self.log_in(message),
            Phase::Ready => self.take_request(message),
        }
    }

    /// The first message, or another one in front of that.
    fn begin(&mut self, message: &[u8]) {
        let said = message.get(LENGTH_BYTES..).unwrap_or_default();
        let (code, parameters) = (four(said).unwrap_or(0), said.get(LENGTH_BYTES..).unwrap_or_default());
        match code {
            ENCRYPTS_BY_TLS | ENCRYPTS_BY_GSS => {
                // A server may encrypt by the latter without being told to. None does by the former, as they have no keys that are alike.
                let asks = [8_u32.to_be_bytes(), ENCRYPTS_BY_TLS.to_be_bytes()].concat();
                self.request = asks;
                self.end_request(Kind::Encryption, b"encryption", false);
            }
            CANCEL => {
                // Of no connection: each server has another number for each, and would end something else.
                let mut nobody = message.to_vec();
                nobody.get_mut(2 * LENGTH_BYTES..).unwrap_or_default().fill(0);
                give(&mut self.given, &nobody);
                self.quits = true;
            }
            code if code >> 16 == VERSION => {
                let mut rest = parameters;
                while let Some((name, behind)) = text(rest).filter(|(name, _)| !name.is_empty()) {
                    let Some((value, behind)) = text(behind) else { break };
                    match name {
                        // As the server cuts it off.
                        b"user" => {
                            self.identity.user = value.get(..NAME_BYTES_MAX).unwrap_or(value).to_vec();
                        }
                        b"replication" if !matches!(value, b"0" | b"no" | b"off" | b"false") => {
                            return self.refuse_client(REPLICATION);
                        }
                        _ => {}
                    }
                    rest = behind;
                }
                self.phase = Phase::Login;
                self.request = message.to_vec();
                self.end_request(Kind::Login, b"login", false);
            }
            _ => self.refuse_client(NOT_UNDERSTOOD),
        }
    }

    /// A proof has come.
    fn log_in(&mut self, message: &[u8]) {
        match message.first() {
            Some(&PROOF) => {}
            Some(&TERMINATE) => return self.quit(message),
            _ => return self.refuse_client(NOT_UNDERSTOOD),
        }
        let given = if self.identity.is_asked_alike {
            self.note_first(message);
            Given::Bytes(message.to_vec())
        } else {
            let Some(((_, said), own)) = self.identity.said.as_ref().zip(self.identity.own.as_ref()) else {
                return self.refuse_client(NOT_UNDERSTOOD);
            };
            let login = Login::new(&self.identity.user, message, (said, own), &self.identity.first);
            let Some(login) = login else { return self.refuse_client(NOT_UNDERSTOOD) };
            Given::LogIn(databases::Login::Postgres(login))
        };
        self.end_request(Kind::Login, b"login", false);
        self.given.push(given);
    }

    /// What a client says first of SCRAM: how it proves it, and behind two commas what is signed later.
    fn note_first(&mut self, message: &[u8]) {
        let first = name_of(message).and_then(|(_, behind)| behind.get(LENGTH_BYTES..));
        let bare = first.and_then(|first| {
            let mut commas = first.iter().enumerate().filter(|(_, byte)| **byte == b',').map(|(at, _)| at);
            first.get(commas.nth(1)? + 1..)
        });
        self.identity.first = bare.unwrap_or_default().to_vec();
    }

    fn quit(&mut self, message: &[u8]) {
        let request = core::mem::take(&mut self.request);
        give(&mut self.given, &request);
        give(&mut self.given, message);
        self.quits = true;
    }

    fn take_request(&mut self, said: &[u8]) {
        let kind = said.first().copied().unwrap_or(0);
        if self.skips && !matches!(kind, SYNC | TERMINATE) {
            // The server passes over it.
            return;
        }
        if let Some(copying) = self.copying {
            return self.copy(kind, said, copying.is_closed_by_sync);
        }
        match kind {
            QUERY => {
                let sql = name_of(said).map_or(&b""[..], |(sql, _)| sql);
                let verdict = statements::verdict(sql);
                let statement = Statement {
                    compare: if let Verdict::Goes(compare) = verdict { compare } else { Compare::Form },
                    is_repeatable: statements::is_repeatable(sql) && self.request.is_empty(),
                };
                self.note(statement);
                self.names_locks |= statements::names_locks(sql);
                if let Verdict::Refused(why) = verdict {
                    self.refused = Some(why);
                    self.request.extend_from_slice(&raising(b"0A000", "outlast refuses ", why));
                } else {
                    self.request.extend_from_slice(said);
                }
                self.end_request(Kind::Query, b"query", false);
            }
            PARSE => self.prepare(said),
            BIND => {
                // Of which rows, and of which statement.
                if let Some((portal, behind)) = name_of(said)
                    && let Some((name, _)) = text(behind)
                {
                    let statement = known(&self.statements, name);
                    remember(&mut self.portals, portal, statement);
                }
                self.add(said);
            }
            EXECUTE => {
                let statement = name_of(said).map(|(portal, _)| known(&self.portals, portal));
                self.note(statement.unwrap_or(Statement::UNKNOWN));
                self.add(said);
            }
            DESCRIBE => self.add(said),
            CLOSE => {
                match said.get(HEADER_BYTES..).and_then(|said| Some((said.first()?, text(said.get(1..)?)?.0)))
                {
                    Some((b'S', name)) => _ = self.statements.remove(name),
                    Some((_, name)) => _ = self.portals.remove(name),
                    None => {}
                }
                self.add(said);
            }
            SYNC => {
                self.request.extend_from_slice(said);
                self.skips = false;
                self.end_request(Kind::Query, b"execute", true);
            }
            FLUSH => {
                self.request.extend_from_slice(said);
                if self.unanswered > 0 && !self.skips {
                    let count = self.unanswered;
                    self.end_request(Kind::Flush { count }, b"execute", true);
                }
            }
            FUNCTION => {
                // By its number: nobody knows here what it does.
                self.refused = Some(FUNCTION_CALL);
                self.request.extend_from_slice(&raising(b"0A000", "outlast refuses ", FUNCTION_CALL));
                self.note(Statement::UNKNOWN);
                self.end_request(Kind::Query, b"function", false);
            }
            // The server passes over it: it has said that it takes nothing more.
            COPY_DATA | COPY_DONE | COPY_FAIL => {}
            TERMINATE => self.quit(said),
            _ => self.refuse_client(NOT_UNDERSTOOD),
        }
    }

    /// Adds a message that is answered by itself, behind others.
    fn add(&mut self, message: &[u8]) {
        self.request.extend_from_slice(message);
        self.unanswered += 1;
    }

    /// What belongs to the request is known to be so; what belongs to it as well may be less.
    fn note(&mut self, statement: Statement) {
        let all = self.statement.map_or(statement, |before| Statement {
            compare: before.compare.max(statement.compare),
            is_repeatable: false,
        });
        self.statement = Some(all);
    }

    fn prepare(&mut self, said: &[u8]) {
        let Some((name, behind)) = name_of(said) else { return self.refuse_client(NOT_UNDERSTOOD) };
        let Some((sql, types)) = text(behind) else { return self.refuse_client(NOT_UNDERSTOOD) };
        self.names |= !name.is_empty();
        self.names_locks |= statements::names_locks(sql);
        let statement = match statements::verdict(sql) {
            Verdict::Goes(compare) => {
                self.add(said);
                Statement { compare, is_repeatable: statements::is_repeatable(sql) }
            }
            Verdict::Refused(why) => {
                self.refused = Some(why);
                // An error at once: what is bound to it may have other values than this one wants.
                let sql = alloc::format!("SELECT 'outlast refuses {}'::int", without_quotes(why));
                self.add(&message(PARSE, &[name, &[0], sql.as_bytes(), &[0], types].concat()));
                Statement::UNKNOWN
            }
        };
        remember(&mut self.statements, name, statement);
    }

    /// What is copied to the server.
    fn copy(&mut self, kind: u8, said: &[u8], is_closed_by_sync: bool) {
        match kind {
            COPY_DATA => {
                self.request.extend_from_slice(said);
                if self.request.len() > COPY_BYTES_MAX {
                    let request = core::mem::take(&mut self.request);
                    give(&mut self.given, &request);
                }
            }
            COPY_DONE | COPY_FAIL => {
                self.request.extend_from_slice(said);
                if is_closed_by_sync {
                    if let Some(copying) = &mut self.copying {
                        copying.is_done = true;
                    }
                } else {
                    self.copying = None;
                    self.end_request(Kind::Query, b"copy", false);
                }
            }
            SYNC if self.copying.is_some_and(|copying| copying.is_done) => {
                self.request.extend_from_slice(said);
                self.copying = None;
                self.end_request(Kind::Query, b"copy", true);
            }
            // The server passes over them.
            SYNC | FLUSH => {}
            TERMINATE => self.quit(said),
            // It ends the copy by an error, and the connection, too.
            _ => self.refuse_client(NOT_UNDERSTOOD),
        }
    }
}

fn without_quotes(why: &str) -> alloc::string::String {
    why.chars().filter(|character| !matches!(character, '\'' | '$')).collect()
}

/// A request to which every server says the same error.
pub(super) fn raising(state: &[u8], begin: &str, why: &str) -> Vec<u8> {
    let state = core::str::from_utf8(state).unwrap_or("XX000");
    let sql = alloc::format!(
        "DO $outlast$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = '{begin}{}'; END $outlast$\0",
        without_quotes(why)
    );
    message(QUERY, sql.as_bytes())
}
