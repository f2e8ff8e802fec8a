//! Where replies of a PostgreSQL server end, and what of them has to be the same at all servers (PostgreSQL 15, 55.7 "Message Formats").

use super::login;
use super::message::{HEADER_BYTES, Messages, Step, four, text};
use core::hash::Hasher as _;
use twox_hash::XxHash64;

/// Of a message, so much is looked at.
const HEAD_BYTES: usize = 512;
/// A state of SQL.
pub(super) type SqlState = [u8; 5];

/// Kinds of messages.
pub(super) const READY: u8 = b'Z';
pub(super) const ERROR: u8 = b'E';
const DONE: u8 = b'C';
const KEY: u8 = b'K';
const ROW: u8 = b'D';
const ROWS: u8 = b'T';
const COPY_IN: u8 = b'G';
const COPY_DATA: u8 = b'd';
/// About the connection, at any time.
const NOTICE: u8 = b'N';
const PARAMETER: u8 = b'S';
const NOTIFICATION: u8 = b'A';
/// All servers say the same bytes: that a statement is understood, bound, done, empty, closed, stopped, or has no rows; and that the server waits.
const SAME: [u8; 8] = [b'1', b'2', b'3', DONE, b'I', b'n', b's', READY];
/// Each ends the reply to one request of several, where those are not closed by Sync.
const ENDS_ONE: [u8; 8] = [b'1', b'2', b'3', DONE, b'I', b'n', b's', ROWS];

/// What a reply is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// To the question whether the server can encrypt: one byte.
    Encryption,
    /// To what says, or proves, who the client is.
    Login,
    /// To what ends with [`READY`].
    Query,
    /// To so many requests, which are not closed.
    Flush { count: u64 },
    /// To nothing: an error, with which a server ends a connection; or what is about that. Where a client copies to the server: up to [`READY`].
    Unasked { copies: bool },
}

/// How much of it has to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Compare {
    /// All; rows in any order.
    All,
    /// What it is: a result, a success or an error.
    Form,
}

/// A reply that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) digest: u64,
    /// Every server gives it in its own way.
    pub(super) is_own: bool,
    /// The login is not over.
    pub(super) asks: bool,
    /// The client is to say what is copied.
    pub(super) copies: bool,
    /// It is of nothing that a client has asked, and no client needs it.
    pub(super) is_aside: bool,
    /// Whether a transaction is under way, as the server says it.
    pub(super) status: Option<u8>,
    pub(super) error: Option<SqlState>,
    /// The number that the server has for the connection.
    pub(super) number: Option<u32>,
}

/// Of one connection.
#[derive(Debug)]
pub(super) struct Replies {
    messages: Messages,
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    hasher: XxHash64,
    digest: XxHash64,
    rows: u64,
    count: u64,
    is_own: bool,
    is_aside: bool,
    error: Option<SqlState>,
    number: Option<u32>,
}

impl Default for Replies {
    fn default() -> Self {
        Self {
            messages: Messages::default(),
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            hasher: XxHash64::with_seed(0),
            digest: XxHash64::with_seed(0),
            rows: 0,
            count: 0,
            is_own: false,
            is_aside: true,
            error: None,
            number: None,
        }
    }
}

/// What it means that a message has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    GoesOn,
    Ends,
    Asks,
    Copies,
}

impl Replies {
    /// Takes bytes up to the end of the reply, if it is there. None: these are none of this protocol.
    pub(super) fn take(&mut self, bytes: &mut &[u8], kind: Kind, compare: Compare) -> Option<Option<Ended>> {
        if kind == Kind::Encryption && self.messages.is_at_start() {
            let Some((byte, rest)) = bytes.split_first() else { return Some(None) };
            if *byte != ERROR {
                *bytes = rest;
                self.digest.write_u8(*byte);
                self.is_aside = false;
                return Some(Some(self.end(Next::Ends, None)));
            }
        }
        while !bytes.is_empty() {
            let Step::Payload(payload, is_end) = self.messages.take(bytes)? else { continue };
            self.hasher.write(payload);
            let room = self.head.get_mut(self.head_bytes..).unwrap_or_default();
            self.head_bytes += room.iter_mut().zip(payload).map(|(place, byte)| *place = *byte).count();
            if !is_end {
                continue;
            }
            let status = (self.messages.kind() == READY).then_some(self.head[0]);
            match self.end_message(kind, compare)? {
                Next::GoesOn => {}
                next => return Some(Some(self.end(next, status))),
            }
        }
        Some(None)
    }

    fn end(&mut self, next: Next, status: Option<u8>) -> Ended {
        let before = core::mem::take(self);
        let mut digest = before.digest;
        digest.write_u64(before.rows);
        Ended {
            digest: digest.finish(),
            is_own: before.is_own,
            asks: next == Next::Asks,
            copies: next == Next::Copies,
            is_aside: before.is_aside,
            status,
            error: before.error,
            number: before.number,
        }
    }

    fn end_message(&mut self, kind: Kind, compare: Compare) -> Option<Next> {
        let all = self.head;
        let head = all.get(..core::mem::take(&mut self.head_bytes))?;
        let hash = core::mem::replace(&mut self.hasher, XxHash64::with_seed(0)).finish();
        let message = self.messages.kind();
        let is_aside = matches!(message, NOTICE | PARAMETER | NOTIFICATION);
        self.is_own |= !SAME.contains(&message);
        if is_aside {
            let is_unasked = matches!(kind, Kind::Unasked { copies: false });
            return Some(if is_unasked { Next::Ends } else { Next::GoesOn });
        }
        self.is_aside = false;
        match message {
            ROW | COPY_DATA => {
                if compare == Compare::All {
                    self.rows = self.rows.wrapping_add(hash);
                }
            }
            ERROR => {
                self.error = Some(state_of(head)?);
                self.digest.write(&state_of(head)?);
                if is_last_word(head) {
                    return Some(Next::Ends);
                }
            }
            KEY => self.number = four(head),
            login::QUESTION => self.digest.write_u8(message),
            DONE | READY => {
                self.digest.write_u8(message);
                if compare == Compare::All || message == READY {
                    self.digest.write_u64(hash);
                }
            }
            _ => self.digest.write_u8(message),
        }
        if self.error.is_some()
            && matches!(kind, Kind::Login | Kind::Encryption | Kind::Unasked { copies: false })
        {
            return Some(Next::Ends);
        }
        Some(match (kind, message) {
            // A copy that has failed at once has two ends, where the client's last words come behind that.
            (Kind::Unasked { .. } | Kind::Query | Kind::Login, READY) => Next::Ends,
            (Kind::Login, login::QUESTION) => match four(head)? {
                login::OK | login::SASL_ENDS => Next::GoesOn,
                login::CLEAR | login::MD5 | login::SASL | login::SASL_GOES_ON => Next::Asks,
                // Kerberos and the like: nobody can answer that for another server.
                _ => return None,
            },
            (Kind::Query | Kind::Flush { .. }, COPY_IN) => Next::Copies,
            (Kind::Flush { .. }, ERROR) => Next::Ends,
            (Kind::Flush { count }, message) if ENDS_ONE.contains(&message) => {
                self.count += 1;
                if self.count >= count { Next::Ends } else { Next::GoesOn }
            }
            (Kind::Unasked { copies: false } | Kind::Encryption, _) => return None,
            _ => Next::GoesOn,
        })
    }
}

/// Of an error: fields begin with a letter, and end with zeros.
fn state_of(head: &[u8]) -> Option<SqlState> {
    let mut rest = head;
    while let Some((code, after)) = rest.split_first().filter(|(code, _)| **code != 0) {
        let (value, behind) = text(after)?;
        if *code == b'C' {
            return value.try_into().ok();
        }
        rest = behind;
    }
    None
}

/// The server ends the connection.
fn is_last_word(head: &[u8]) -> bool {
    let mut rest = head;
    while let Some((code, after)) = rest.split_first().filter(|(code, _)| **code != 0) {
        let Some((value, behind)) = text(after) else { return false };
        if *code == b'V' {
            return matches!(value, b"FATAL" | b"PANIC");
        }
        rest = behind;
    }
    false
}

/// An error of this state.
pub(super) fn error(state: &[u8], said: &[u8], hint: &[u8]) -> alloc::vec::Vec<u8> {
    let fields: [(u8, &[u8]); 5] =
        [(b'S', b"ERROR"), (b'V', b"ERROR"), (b'C', state), (b'M', said), (b'H', hint)];
    let mut payload = alloc::vec::Vec::new();
    for (code, value) in fields {
        payload.push(code);
        payload.extend_from_slice(value);
        payload.push(0);
    }
    payload.push(0);
    super::message::message(ERROR, &payload)
}

/// A reply, with another error in the place of its own.
pub(super) fn with_error(reply: &[u8], error: &[u8]) -> alloc::vec::Vec<u8> {
    let each = super::message::each(reply);
    each.flat_map(|(kind, message)| if kind == ERROR { error } else { message }).copied().collect()
}

const _: () = assert!(HEAD_BYTES > HEADER_BYTES);
