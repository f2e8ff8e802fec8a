//! What clients say, and what servers get of it.

use super::login::{self, Proof};
use super::packet::{self, Fields, HEADER_BYTES, Step, packet};
use super::replies::{self, Compare, Kind};
use super::statements::{self, KILL, Verdict};
use super::{
    Asked, BINLOG, BINLOG_DUMP, BINLOG_DUMP_GTID, BULK_EXECUTE, CHANGE_USER, CLOSE_STATEMENT, EXECUTE, FETCH,
    FIELD_LIST, Holds, KEPT_BYTES_MAX, KILL_PROCESS, LOGIN_BYTES_MAX, LONG_DATA, LONG_DATA_MAX, Login, NAMES,
    OfMysql, PING, PREPARE, PROCESSES, QUERY, QUIT, REGISTER_SLAVE, RESET, TABLE_DUMP, UNGIVEN_BYTES_MAX,
    USE, WITHHELD_BYTES_MAX,
};
use crate::protocol::database::{self as databases, Given};
use alloc::vec::Vec;

impl OfMysql {
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
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
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
                    self.prepares_odd |= command == PREPARE;
                    self.prepares_locking |= command == PREPARE;
                    self.note(command, Compare::Form);
                    if command == LONG_DATA {
                        // Which one it is was given to the server already.
                        self.prepares_odd = true;
                        self.give_ping();
                    }
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
                    self.give_ungiven();
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
    pub(super) fn refuse_client(&mut self) {
        self.is_refused = true;
        self.open += 1;
        self.asked.push_back(Asked::new(Kind::Login, Compare::All, b"login"));
        self.give_bytes(&packet(1, &[]));
    }

    /// A proof has come as a whole.
    pub(super) fn log_in(&mut self, mut request: Vec<u8>) -> Option<Given> {
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

    pub(super) fn proved(&mut self, mut request: Vec<u8>, proof: Proof) -> Given {
        self.identity.user.clone_from(&proof.user);
        match (self.identity.said, self.identity.own) {
            // It has none.
            _ if proof.place.is_empty() => Given::Bytes(request),
            (Some((_, said)), Some(own)) if proof.is_native => {
                Given::LogIn(databases::Login::Mysql(Login::new(request, proof, said, own)))
            }
            // It would be right at one server at the most.
            _ => {
                request.get_mut(proof.place).unwrap_or_default().fill(0);
                Given::Bytes(request)
            }
        }
    }

    pub(super) fn take_request(&mut self, request: Vec<u8>) {
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
                self.give_ungiven();
                self.give_bytes(&refusal(request.get(3).copied().unwrap_or(0), why));
            }
            Verdict::Goes(_) if matches!(command, LONG_DATA | CLOSE_STATEMENT) => {
                self.note_long_data(command, said);
                self.ungiven.extend_from_slice(&request);
                if self.ungiven.len() > UNGIVEN_BYTES_MAX {
                    self.give_ungiven();
                    self.give_ping();
                }
            }
            Verdict::Goes(compare) => {
                self.give_ungiven();
                let chosen = if command == USE { said } else { statements::chosen(command == QUERY, said) };
                self.is_about_server |= statements::is_about_server(chosen);
                let compare = if self.is_about_server { Compare::Form } else { compare };
                self.prepares_own |= command == PREPARE && compare == Compare::Form;
                let is_statement = matches!(command, QUERY | PREPARE);
                let is_odd = is_statement && !statements::is_repeatable(said);
                self.prepares_odd |= command == PREPARE && is_odd;
                self.names_locks |= is_statement && statements::names_locks(said);
                self.has_reads_lock |= is_statement && statements::has_reads_lock(said);
                let holds = if is_statement { statements::holds(said) } else { Holds::Nothing };
                self.prepares_locking |= command == PREPARE && holds == Holds::Locks;
                let holds = match command {
                    QUERY => holds,
                    EXECUTE | BULK_EXECUTE if self.prepares_locking => Holds::Locks,
                    EXECUTE | BULK_EXECUTE => Holds::Reads,
                    _ => Holds::Nothing,
                };
                let locks = holds == Holds::Reads && self.has_reads_lock;
                let holds = if locks { Holds::Locks } else { holds };
                if matches!(command, RESET | CHANGE_USER) {
                    (self.holds, self.status) = (Holds::Nothing, replies::AUTOCOMMIT);
                    (self.names_locks, self.has_reads_lock) = (false, false);
                }
                let has_long_data = command == EXECUTE && self.take_long_data(said);
                let is_repeatable = match command {
                    QUERY => !is_odd,
                    PREPARE => true,
                    EXECUTE => !self.prepares_odd,
                    _ => false,
                };
                // Another one may mean something else then.
                self.prepares_unkept |= command == PREPARE && !statements::may_be_kept(said);
                let is_kept = is_repeatable
                    && !has_long_data
                    && match command {
                        QUERY => statements::may_be_kept(said),
                        EXECUTE => !self.prepares_unkept,
                        _ => true,
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
                    asked.times_out = is_repeatable && !self.names_locks;
                    asked.holds = holds;
                }
                self.give_bytes(&request);
                self.last = if is_kept && request.len() <= KEPT_BYTES_MAX { request } else { Vec::new() };
            }
        }
    }

    /// A part of what a statement is executed with has come, or the statement is no more.
    fn note_long_data(&mut self, command: u8, said: &[u8]) {
        let is_known = self.take_long_data(said);
        if command == LONG_DATA
            && let Some(number) = Fields(said).four()
        {
            self.prepares_odd |= !is_known && self.long_data.len() >= LONG_DATA_MAX;
            self.long_data.push(number);
            self.long_data.truncate(LONG_DATA_MAX);
        }
    }

    /// Whether parts have come of what this statement is executed with.
    fn take_long_data(&mut self, said: &[u8]) -> bool {
        let before = self.long_data.len();
        if let Some(number) = Fields(said).four() {
            self.long_data.retain(|known| *known != number);
        }
        self.long_data.len() < before
    }

    pub(super) fn give_ungiven(&mut self) {
        let ungiven = core::mem::take(&mut self.ungiven);
        self.give_bytes(&ungiven);
    }

    /// The server is to say that it is done with what has no reply.
    pub(super) fn ping(&mut self) -> Vec<u8> {
        self.note(PING, Compare::Form);
        if let Some(asked) = self.asked.back_mut() {
            asked.is_of_node = true;
        }
        packet(0, &[PING])
    }

    pub(super) fn give_ping(&mut self) {
        let ping = self.ping();
        self.give_bytes(&ping);
    }

    /// What the node asks for itself.
    pub(crate) fn of_node(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.of_node)
    }

    /// The server has such a request as a whole.
    pub(super) fn note(&mut self, command: u8, compare: Compare) {
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

    pub(super) fn give_bytes(&mut self, bytes: &[u8]) {
        databases::give(&mut self.given, bytes);
    }

    pub(super) fn give(&mut self, given: Given) {
        match given {
            Given::Bytes(bytes) => self.give_bytes(&bytes),
            given @ Given::LogIn(_) => self.given.push(given),
        }
    }
}

/// A statement by which every server says the same error.
fn refusal(number: u8, why: &str) -> Vec<u8> {
    let mut request = Vec::from([QUERY]);
    request.extend_from_slice(b"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'outlast refuses ");
    request.extend(why.bytes().filter(|byte| *byte != b'\''));
    request.push(b'\'');
    packet(number, &request)
}
