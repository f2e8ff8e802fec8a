//! What a server of Redis keeps for a connection, beside the data: a client that has logged in, has chosen a database, or is in the middle of
//! a transaction. Another server that is to go on with the connection gets the same requests.

use super::determinism::{self, Class};
use super::redis::is_blank;
use super::refused;
use crate::connection::comparison::NAME_BYTES;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;

/// Of a request that has not come as a whole, of a transaction, and of all that is said again of a connection. What is longer cannot be transferred.
const PARTIAL_BYTES_MAX: usize = 1 << 20;
const QUEUED_BYTES_MAX: usize = 1 << 20;
const SETUP_BYTES_MAX: usize = 64 << 10;
/// Of blank lines in front of a request.
const BLANK_BYTES_MAX: usize = 256;
/// Of the words that matter.
const WORD_BYTES_MAX: usize = 16;
/// Of requests that subscribe to something, and of those that end that.
const FAMILIES: [(&[u8], &[u8]); 3] =
    [(b"SUBSCRIBE", b"UNSUBSCRIBE"), (b"PSUBSCRIBE", b"PUNSUBSCRIBE"), (b"SSUBSCRIBE", b"SUNSUBSCRIBE")];

/// What brings a new connection to a server into the state of another one, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Requests whose replies the client has had.
    pub setup: Vec<u8>,
    /// A transaction that has begun, and what belongs to it: each has one line as its reply, which the client has had.
    pub queued: Vec<u8>,
    /// So many requests.
    pub queued_count: u64,
    /// The beginning of a request.
    pub partial: Vec<u8>,
    /// Its replies are not told apart any more.
    pub is_not_compared: bool,
}

/// Of one connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Requests that are said again, each once, in the order in which they came last.
    setup: Vec<Vec<u8>>,
    /// What it has subscribed to: by SUBSCRIBE, PSUBSCRIBE and SSUBSCRIBE.
    channels: [BTreeSet<Vec<u8>>; FAMILIES.len()],
    /// A transaction has begun.
    is_queuing: bool,
    queued: Vec<u8>,
    queued_count: u64,
    /// What it had to keep was too long.
    queued_is_long: bool,
    /// Keys are watched: whether one has changed meanwhile, only this server knows.
    watches: bool,
    /// It is in a state that no request brings about.
    is_not_transferable: bool,
    partial: Vec<u8>,
    partial_is_long: bool,
    /// So many bytes have come since the last request has ended.
    begun_bytes: usize,
    /// How the reply to the last request is compared, and its command.
    last: (Class, [u8; NAME_BYTES]),
    /// The same of the transaction that has begun.
    queued_class: Class,
    /// Replies come that cannot be told from others, or none where one is expected.
    is_not_compared: bool,
}

impl Session {
    /// They cannot from now on.
    pub(crate) fn end_comparison(&mut self) {
        self.is_not_compared = true;
    }

    /// Whether replies can be compared with those of another server.
    pub(crate) fn is_compared(&self) -> bool {
        !self.is_not_compared
    }

    /// Of the last request: how its reply is compared, and its command.
    pub(crate) fn last(&self) -> (Class, [u8; NAME_BYTES]) {
        self.last
    }

    /// One that was brought into the state of another one.
    pub(crate) fn resumed(resume: &Resume) -> Self {
        let mut session = Self::default();
        for part in [&resume.setup, &resume.queued] {
            let (mut requests, mut rest) = (super::redis::Requests::default(), part.as_slice());
            while let before = rest
                && requests.take(&mut rest) == Some(true)
            {
                session.take(before.get(..before.len() - rest.len()).unwrap_or_default(), true);
            }
        }
        session.partial.clone_from(&resume.partial);
        session.begun_bytes = resume.partial.len();
        session.is_not_compared |= resume.is_not_compared;
        session
    }

    /// So many bytes have come of a request that is not whole.
    pub(crate) fn begun_bytes(&self) -> usize {
        self.begun_bytes
    }

    /// They, no more than are kept.
    pub(crate) fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// How it is brought about at another server; none: it cannot be.
    pub(crate) fn resume(&self) -> Option<Resume> {
        if self.is_not_transferable || self.watches || self.queued_is_long || self.partial_is_long {
            return None;
        }
        Some(Resume {
            // Where it has subscribed to something it may say little else.
            setup: [self.setup.concat(), self.subscribe_again()].concat(),
            queued: self.queued.clone(),
            queued_count: self.queued_count,
            partial: self.partial.clone(),
            is_not_compared: self.is_not_compared,
        })
    }

    /// The server is given these bytes of a request, and the end of it, or not. So many replies it has.
    pub(crate) fn take(&mut self, bytes: &[u8], ends: bool) -> u64 {
        self.begun_bytes = if ends { 0 } else { self.begun_bytes.saturating_add(bytes.len()) };
        if self.partial.is_empty() && ends {
            return self.note(bytes, false);
        }
        let room = PARTIAL_BYTES_MAX.saturating_sub(self.partial.len());
        self.partial_is_long |= bytes.len() > room;
        self.partial.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        if !ends {
            self.forget_blank_lines();
            return 0;
        }
        let request = core::mem::take(&mut self.partial);
        let is_long = core::mem::take(&mut self.partial_is_long);
        self.note(&request, is_long)
    }

    /// They may come without end, and belong to no request.
    fn forget_blank_lines(&mut self) {
        let begin = refused::begin(&self.partial, &[]);
        if begin > BLANK_BYTES_MAX {
            let last = self.partial.iter().take(begin).rposition(|byte| *byte == b'\n');
            self.partial.drain(..last.map_or(0, |at| at + 1));
        }
    }

    /// A whole request; or the first part of it, where it is long.
    fn note(&mut self, request: &[u8], is_long: bool) -> u64 {
        let mut words = Words::new(request);
        let (mut upper, mut of_client) = ([0; WORD_BYTES_MAX], [0; WORD_BYTES_MAX]);
        let Some(word) = words.next().map(|word| to_uppercase(word, &mut upper)) else { return 1 };
        self.classify(word, words.clone());
        for (family, (begins, ends)) in FAMILIES.into_iter().enumerate() {
            if word == begins || word == ends {
                return self.subscribe(family, word == begins, words, is_long);
            }
        }
        match word {
            b"EXEC" | b"DISCARD" if self.is_queuing => {
                (self.is_queuing, self.queued_is_long, self.watches) = (false, false, false);
                self.queued.clear();
                self.queued_count = 0;
            }
            b"RESET" => {
                let (last, is_not_compared) = (self.last, self.is_not_compared);
                *self = Self { last, is_not_compared, ..Self::default() };
            }
            // With more words it is refused.
            b"MULTI" if !self.is_queuing && words.clone().next().is_none() => {
                self.is_queuing = true;
                self.queue(request, is_long);
            }
            b"SELECT" | b"AUTH" | b"HELLO" | b"READONLY" | b"READWRITE" => self.remember(request, is_long),
            b"CLIENT" => match words.next().map(|word| to_uppercase(word, &mut of_client)) {
                Some(b"SETNAME" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH") => self.remember(request, is_long),
                Some(b"REPLY" | b"TRACKING" | b"CACHING") => {
                    (self.is_not_transferable, self.is_not_compared) = (true, true);
                }
                _ => self.queue(request, is_long),
            },
            b"MONITOR" | b"SYNC" | b"PSYNC" | b"REPLCONF" => {
                (self.is_not_transferable, self.is_not_compared) = (true, true);
            }
            b"WATCH" if !self.is_queuing => self.watches = true,
            b"UNWATCH" if !self.is_queuing => self.watches = false,
            _ => self.queue(request, is_long),
        }
        1
    }

    /// How the reply to this command is compared.
    fn classify(&mut self, word: &[u8], words: Words<'_>) {
        let mut class = determinism::class(word, words);
        if self.is_queuing {
            // Its reply is that it is queued; that of EXEC has all.
            class = match word {
                b"EXEC" if self.queued_class == Class::Same => Class::Same,
                b"EXEC" => Class::Own,
                _ => {
                    self.queued_class = self.queued_class.max(class);
                    Class::Same
                }
            };
        }
        let begins = word == b"MULTI" && !self.is_queuing;
        if begins || matches!(word, b"EXEC" | b"DISCARD" | b"RESET") {
            self.queued_class = Class::Same;
        }
        let mut name = [0; NAME_BYTES];
        let length = word.len().min(NAME_BYTES);
        name[..length].copy_from_slice(&word[..length]);
        self.last = (class, name);
    }

    /// It belongs to a transaction, if there is one.
    fn queue(&mut self, request: &[u8], is_long: bool) {
        if !self.is_queuing {
            return;
        }
        self.queued_count += 1;
        if is_long || self.queued.len() + request.len() > QUEUED_BYTES_MAX {
            self.queued_is_long = true;
            self.queued.clear();
        } else if !self.queued_is_long {
            self.queued.extend_from_slice(request);
        }
    }

    fn remember(&mut self, request: &[u8], is_long: bool) {
        // Whether it takes effect is known at the end of the transaction.
        if self.is_queuing || is_long {
            self.is_not_transferable = true;
            return;
        }
        self.setup.retain(|before| before != request);
        self.setup.push(request.to_vec());
        self.check_length();
    }

    fn check_length(&mut self) {
        let channels = self.channels.iter().flatten().map(Vec::len).sum::<usize>();
        if self.setup.iter().map(Vec::len).sum::<usize>() + channels > SETUP_BYTES_MAX {
            self.setup.clear();
            self.channels = Default::default();
            self.is_not_transferable = true;
        }
    }

    /// Channels are subscribed to, or are no longer. Each has a reply of its own.
    fn subscribe(&mut self, family: usize, begins: bool, words: Words<'_>, is_long: bool) -> u64 {
        // Messages come at any time, and in RESP2 they look like replies.
        self.is_not_compared = true;
        if self.is_queuing || is_long {
            self.is_not_transferable = true;
            return 1;
        }
        let Some(channels) = self.channels.get_mut(family) else { return 1 };
        let mut count = 0;
        for word in words {
            count += 1;
            if begins {
                channels.insert(word.to_vec());
            } else {
                channels.remove(word);
            }
        }
        if count == 0 && !begins {
            count = channels.len() as u64;
            channels.clear();
        }
        self.check_length();
        count.max(1)
    }

    fn subscribe_again(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for ((begins, _), channels) in FAMILIES.into_iter().zip(&self.channels) {
            if !channels.is_empty() {
                all.extend(format!("*{}\r\n", channels.len() + 1).into_bytes());
                for word in [begins].into_iter().chain(channels.iter().map(Vec::as_slice)) {
                    all.extend(format!("${}\r\n", word.len()).into_bytes());
                    all.extend_from_slice(word);
                    all.extend_from_slice(b"\r\n");
                }
            }
        }
        all
    }
}

/// The word in capitals. One that is longer than those that matter stays as it is.
fn to_uppercase<'a>(word: &'a [u8], room: &'a mut [u8; WORD_BYTES_MAX]) -> &'a [u8] {
    let Some(upper) = room.get_mut(..word.len()) else { return word };
    upper.copy_from_slice(word);
    upper.make_ascii_uppercase();
    upper
}

/// The words of a whole request.
#[derive(Clone, Debug)]
pub(super) struct Words<'a> {
    rest: &'a [u8],
    is_array: bool,
}

impl<'a> Words<'a> {
    fn new(request: &'a [u8]) -> Self {
        let mut words = Self { rest: request, is_array: false };
        loop {
            words.skip_blanks();
            if words.rest.first() != Some(&b'*') {
                return words;
            }
            // An array of nothing may be in front.
            let count = words.line();
            words.is_array = !matches!(count.strip_prefix(b"*").map(<[u8]>::first), Some(Some(b'0' | b'-')));
            if words.is_array {
                return words;
            }
        }
    }

    fn skip_blanks(&mut self) {
        let count = self.rest.iter().take_while(|byte| is_blank(**byte)).count();
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    fn line(&mut self) -> &'a [u8] {
        let at = self.rest.iter().position(|byte| *byte == b'\n').map_or(self.rest.len(), |at| at + 1);
        let (line, rest) = self.rest.split_at(at);
        self.rest = rest;
        line.trim_ascii()
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let word = if self.is_array {
            let length = core::str::from_utf8(self.line().strip_prefix(b"$")?).ok()?.parse().ok()?;
            let (word, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, &[]));
            self.rest = rest.get(2..).unwrap_or_default();
            word
        } else {
            self.skip_blanks();
            // A vertical tab, or a form feed, is passed over in front of a word, and belongs to one.
            let ends = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0);
            let end = self.rest.iter().position(ends).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            (!word.is_empty()).then_some(word)?
        };
        // Redis takes quotes in a line.
        let unquoted = |quote: &[u8]| word.strip_prefix(quote)?.strip_suffix(quote);
        Some(unquoted(b"\"").or(unquoted(b"'")).filter(|_| !self.is_array).unwrap_or(word))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::*;
    use crate::protocol::redis::Requests;

    fn session(all: &[u8], piece_bytes: usize) -> (Session, u64) {
        let (mut session, mut requests, mut replies) = (Session::default(), Requests::default(), 0);
        for mut rest in all.chunks(piece_bytes) {
            while !rest.is_empty() {
                let before = rest;
                let ends = requests.take(&mut rest).unwrap();
                replies += session.take(&before[..before.len() - rest.len()], ends);
            }
        }
        (session, replies)
    }

    #[test]
    fn a_connection_is_brought_into_the_same_state() {
        for (all, setup, queued, partial, replies) in [
            (&b"ping\r\nset a b\r\n"[..], &b""[..], &b""[..], &b""[..], 2),
            (b"\x0b\r\n\x0bselect 3\r\nmulti\x0b\r\n", b"\x0b\r\n\x0bselect 3\r\n", b"", b"", 2),
            (b"select 3\r\nselect 5\r\nselect 3\r\nget a\r\n", b"select 5\r\nselect 3\r\n", b"", b"", 4),
            (
                b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*1\r\n$4\r\nPI",
                b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n",
                b"",
                b"*1\r\n$4\r\nPI",
                1,
            ),
            (b"auth x\r\nmulti\r\nincr a\r\nin", b"auth x\r\n", b"multi\r\nincr a\r\n", b"in", 3),
            (b"multi\r\nincr a\r\nexec\r\n", b"", b"", b"", 3),
            (
                b"client setname x\r\nclient id\r\nsubscribe a b\r\n",
                b"client setname x\r\n*3\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n$1\r\nb\r\n",
                b"",
                b"",
                4,
            ),
            (b"watch a\r\nmulti\r\nget a\r\ndiscard\r\n", b"", b"", b"", 4),
            (b"select 3\r\nreset\r\n", b"", b"", b"", 2),
            (b"'select' 3\r\nexec\r\n", b"'select' 3\r\n", b"", b"", 2),
            (
                b"subscribe a b\r\nunsubscribe\r\nselect 3\r\npsubscribe c d\r\npunsubscribe c\r\n",
                b"select 3\r\n*2\r\n$10\r\nPSUBSCRIBE\r\n$1\r\nd\r\n",
                b"",
                b"",
                8,
            ),
            (b"unsubscribe\r\n", b"", b"", b"", 1),
        ] {
            for piece_bytes in [1, 3, all.len()] {
                let (session, counted) = session(all, piece_bytes);
                let resume = session.resume().unwrap();
                assert_eq!(
                    (&*resume.setup, &*resume.queued, &*resume.partial, counted),
                    (setup, queued, partial, replies)
                );
                assert_eq!(Session::resumed(&resume).resume(), Some(resume));
            }
        }
    }

    #[test]
    fn what_cannot_be_transferred_is_known() {
        for all in [
            &b"watch a\r\n"[..],
            b"monitor\r\n",
            b"CLIENT REPLY OFF\r\n",
            b"*3\r\n$6\r\nclient\r\n$8\r\ntracking\r\n$2\r\non\r\n",
            b"multi\r\nselect 3\r\nexec\r\n",
            b"watch a\r\nexec\r\n",
        ] {
            assert_eq!(session(all, all.len()).0.resume(), None, "{:?}", core::str::from_utf8(all));
        }
        let long = [&b"set a "[..], &[b'x'; 40_000]].concat();
        assert!(session(&long, 1_000).0.resume().is_some());
        let longer = [&b"*2\r\n$3\r\nget\r\n$2000000\r\n"[..], &[b'x'; PARTIAL_BYTES_MAX]].concat();
        let (mut longer, _) = session(&longer, 1 << 16);
        assert_eq!(longer.resume(), None);
        longer.take(b"x", true);
        assert!(longer.resume().is_some());
    }
}
