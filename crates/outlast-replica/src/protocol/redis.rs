//! RESP, the protocol of Redis (redis.io/docs/latest/develop/reference/protocol-spec): where requests end, and replies.
//!
//! Nothing is kept but positions: the bytes of values are passed over.

use super::determinism::Class;
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::hash::Hasher as _;
use twox_hash::XxHash64;

/// Of a line with a number; a longer one is none.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Of replies in replies.
const DEPTH_MAX: usize = 32;

/// A line that has not come to its end.
#[derive(Debug, Default)]
struct Line {
    begun: Vec<u8>,
}

impl Line {
    /// Takes bytes up to the end of the line. The line without its end, if that has come; none: it is too long. Nothing is copied of a line that
    /// comes as a whole.
    fn take<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Option<Cow<'a, [u8]>>> {
        let at = bytes.iter().position(|byte| *byte == b'\n');
        let (now, rest) = bytes.split_at(at.map_or(bytes.len(), |at| at + 1));
        *bytes = rest;
        if self.begun.len() + now.len() > LINE_BYTES_MAX {
            return None;
        }
        if at.is_some() && self.begun.is_empty() {
            return Some(Some(Cow::Borrowed(without_end(now))));
        }
        self.begun.extend_from_slice(now);
        if at.is_none() {
            return Some(None);
        }
        let mut line = core::mem::take(&mut self.begun);
        line.truncate(without_end(&line).len());
        Some(Some(Cow::Owned(line)))
    }
}

/// What C takes for a blank (`isspace`).
pub(super) fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn number(text: &[u8]) -> Option<i64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// A count of what follows; below 0, as of nothing at all, it is 0.
fn length(text: &[u8]) -> Option<u64> {
    Some(u64::try_from(number(text)?).unwrap_or(0))
}

/// Where requests of a client end: arrays of values, or lines.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    line: Line,
    /// Of the request that has begun, so many values are to come.
    values: u64,
    /// Of a value so many bytes, with the end of its line.
    skips: u64,
}

impl Requests {
    /// Takes bytes up to the end of a request. Whether one has ended, or there are no more bytes; none: it is no such protocol.
    pub(crate) fn take(&mut self, bytes: &mut &[u8]) -> Option<bool> {
        while !bytes.is_empty() {
            if skip(&mut self.skips, bytes) {
                if self.skips == 0 && self.values == 0 {
                    return Some(true);
                }
                continue;
            }
            let Some(line) = self.line.take(bytes)? else { break };
            match (self.values, line.split_first()) {
                (0, Some((b'*', text))) => {
                    self.values = length(text)?;
                }
                // Redis answers nothing to an empty line.
                (0, None) => {}
                (0, Some(_)) if line.iter().all(|byte| is_blank(*byte)) => {}
                (0, Some(_)) => return Some(true),
                (_, Some((b'$', text))) => {
                    self.values -= 1;
                    self.skips = length(text)?.checked_add(2)?;
                }
                _ => return None,
            }
        }
        Some(false)
    }

    /// How many requests end in these bytes; none: it is no such protocol.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn count(&mut self, mut bytes: &[u8]) -> Option<u64> {
        let mut count = 0;
        while self.take(&mut bytes)? {
            count += 1;
        }
        Some(count)
    }
}

/// Passes over bytes of a value. Whether there were some to pass over.
fn skip(skips: &mut u64, bytes: &mut &[u8]) -> bool {
    if *skips == 0 {
        return false;
    }
    let now = usize::try_from(*skips).unwrap_or(usize::MAX).min(bytes.len());
    *bytes = bytes.get(now..).unwrap_or_default();
    *skips -= now as u64;
    true
}

/// What of a reply has to be the same at all servers that hold the same data.
#[derive(Debug)]
struct Digest {
    class: Class,
    /// Of all, or of the present part.
    bytes: XxHash64,
    /// Of parts that may come in any order.
    sum: u64,
    /// Of the first of two that belong together.
    first: Option<u64>,
}

impl Digest {
    fn new(class: Class) -> Self {
        Self { class, bytes: XxHash64::with_seed(0), sum: 0, first: None }
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.class != Class::Own {
            self.bytes.write(bytes);
        }
    }

    /// The head of the reply has come, or a part of it, or all.
    fn end_part(&mut self, is_head: bool) {
        if !matches!(self.class, Class::AnyOrder | Class::AnyOrderOfPairs) {
            return;
        }
        let part = core::mem::replace(&mut self.bytes, XxHash64::with_seed(0)).finish();
        match self.first.take() {
            None if self.class == Class::AnyOrderOfPairs && !is_head => self.first = Some(part),
            // The first one of a pair is not to be taken for the second one.
            first => self.sum = self.sum.wrapping_add(part ^ first.unwrap_or_default().rotate_left(1)),
        }
    }

    fn finish(&self) -> u64 {
        match self.class {
            Class::Same => self.bytes.finish(),
            Class::AnyOrder | Class::AnyOrderOfPairs => self.sum.wrapping_add(self.first.unwrap_or_default()),
            Class::Own => 0,
        }
    }
}

/// What has ended, of what the server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A reply, and a digest of what of it has to be the same at all servers.
    Reply(u64),
    /// What it says unasked.
    Push,
}

/// Where replies of the server end.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    digest: Option<Digest>,
    line: Line,
    skips: u64,
    /// Of replies that have begun, each within the one before: so many are to come in each.
    open: Vec<u64>,
    /// The outermost one is no reply, but what the server says unasked.
    is_push: bool,
    /// What comes next belongs to the reply behind it.
    is_attribute: bool,
    /// The first part of what comes unasked is to come: its kind.
    awaits_name: bool,
    name: Vec<u8>,
}

/// What comes unasked, of these kinds, is a reply in truth: to SUBSCRIBE, UNSUBSCRIBE and the like.
const CONFIRMATION: &[u8] = b"subscribe";
const NAME_BYTES_MAX: usize = 32;

impl Replies {
    /// How many replies end in these bytes; none: it is no such protocol.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn count(&mut self, mut bytes: &[u8]) -> Option<u64> {
        let mut count = 0;
        while let Some(ended) = self.take(&mut bytes, Class::Same)? {
            count += u64::from(ended != Ended::Push);
        }
        Some(count)
    }

    /// Takes bytes up to the end of what the server says at a time. If a reply begins there, it is of this class. What has ended, or there are no
    /// more bytes; none: it is no such protocol.
    pub(crate) fn take(&mut self, bytes: &mut &[u8], class: Class) -> Option<Option<Ended>> {
        while !bytes.is_empty() {
            let before = *bytes;
            let ended = self.take_some(bytes)?;
            let digest = self.digest.get_or_insert_with(|| Digest::new(class));
            digest.write(before.get(..before.len() - bytes.len()).unwrap_or_default());
            match ended {
                Some(Step::Head) if self.open.len() == 1 => digest.end_part(true),
                Some(Step::Part) if self.open.len() == 1 => digest.end_part(false),
                Some(Step::All { is_push }) => {
                    digest.end_part(false);
                    let digest = digest.finish();
                    self.digest = None;
                    return Some(Some(if is_push { Ended::Push } else { Ended::Reply(digest) }));
                }
                _ => {}
            }
        }
        Some(None)
    }

    fn take_some(&mut self, bytes: &mut &[u8]) -> Option<Option<Step>> {
        let before = *bytes;
        if skip(&mut self.skips, bytes) {
            if self.awaits_name {
                self.name_is(before.get(..before.len() - bytes.len()).unwrap_or_default());
            }
            return Some((self.skips == 0).then(|| self.end_one()));
        }
        let Some(line) = self.line.take(bytes)? else { return Some(None) };
        let (kind, text) = line.split_first()?;
        if self.awaits_name && *kind == b'+' {
            self.name_is(text);
        }
        Some(match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Some(self.end_one()),
            b'$' | b'!' | b'=' => match number(text)? {
                length @ 0.. => {
                    self.skips = u64::try_from(length).ok()?.checked_add(2)?;
                    None
                }
                _ => Some(self.end_one()),
            },
            b'*' | b'~' | b'>' => Some(self.begin(*kind, length(text)?)?),
            b'%' | b'|' => Some(self.begin(*kind, length(text)?.checked_mul(2)?)?),
            _ => return None,
        })
    }

    /// No reply has begun.
    pub(crate) fn is_at_end(&self) -> bool {
        self.line.begun.is_empty() && self.skips == 0 && self.open.is_empty()
    }

    fn begin(&mut self, kind: u8, parts: u64) -> Option<Step> {
        if self.open.is_empty() {
            (self.is_push, self.is_attribute) = (kind == b'>', kind == b'|');
            (self.awaits_name, self.name) = (self.is_push, Vec::new());
        } else if kind == b'|' {
            // One within another reply belongs to a part of it, and is no part itself.
            return None;
        }
        if parts == 0 {
            return Some(self.end_one());
        }
        self.open.push(parts);
        (self.open.len() <= DEPTH_MAX).then_some(Step::Head)
    }

    fn name_is(&mut self, bytes: &[u8]) {
        let room = NAME_BYTES_MAX.saturating_sub(self.name.len());
        self.name.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// A reply has ended, or a part of one.
    fn end_one(&mut self) -> Step {
        if core::mem::take(&mut self.awaits_name) {
            self.is_push = !self.name.trim_ascii_end().ends_with(CONFIRMATION);
        }
        while let Some(parts) = self.open.last_mut() {
            *parts -= 1;
            if *parts > 0 {
                return Step::Part;
            }
            self.open.pop();
        }
        let is_push = core::mem::take(&mut self.is_push);
        // An attribute belongs to the reply behind it.
        if core::mem::take(&mut self.is_attribute) { Step::Attribute } else { Step::All { is_push } }
    }
}

/// What has come to an end with some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// What says how many parts there are.
    Head,
    /// A part.
    Part,
    /// What belongs to the reply that begins next.
    Attribute,
    /// What the server says at a time.
    All { is_push: bool },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(all: &[u8]) -> Option<u64> {
        let whole = Requests::default().count(all);
        let mut parts = Requests::default();
        let bytes: Option<Vec<u64>> = all.chunks(1).map(|byte| parts.count(byte)).collect();
        assert_eq!(bytes.map(|counts| counts.into_iter().sum()), whole);
        whole
    }

    fn replies(all: &[u8]) -> Option<u64> {
        let whole = Replies::default().count(all);
        let mut parts = Replies::default();
        let bytes: Option<Vec<u64>> = all.chunks(1).map(|byte| parts.count(byte)).collect();
        assert_eq!(bytes.map(|counts| counts.into_iter().sum()), whole);
        whole
    }

    #[test]
    fn requests_end_where_redis_says() {
        for (bytes, count) in [
            (&b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n"[..], Some(1)),
            (b"*2\r\n$3\r\nGET\r\n$1\r\n", Some(0)),
            (b"get x\r\nget y\n", Some(2)),
            (b"\r\n  \r\n", Some(0)),
            (b"*0\r\n*-1\r\nping\r\n", Some(1)),
            (b"*1\r\n$0\r\n\r\n*1\r\n$4\r\n\r\n\r\n\r\n", Some(2)),
            (b"*1\r\nPING\r\n", None),
            (b"*x\r\n", None),
            (b"*1\r\n$99999999999999999999\r\n", None),
        ] {
            assert_eq!(requests(bytes), count, "{:?}", core::str::from_utf8(bytes));
        }
        assert_eq!(requests(&[b'x'; LINE_BYTES_MAX + 1]), None);
    }

    #[test]
    fn replies_end_where_redis_says() {
        for (bytes, count) in [
            (&b"+OK\r\n-ERR no\r\n:5\r\n$-1\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n(99\r\n"[..], Some(9)),
            (b"$2\r\n\r\n\r\n$0\r\n\r\n", Some(2)),
            (b"*2\r\n*1\r\n:1\r\n$1\r\na\r\n*0\r\n", Some(2)),
            (b"%1\r\n+a\r\n:1\r\n~1\r\n:1\r\n=5\r\ntxt:a\r\n!3\r\nERR\r\n", Some(4)),
            (b">2\r\n+message\r\n+x\r\n:1\r\n", Some(1)),
            (b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n>3\r\n+sunsubscribe\r\n+x\r\n:0\r\n", Some(2)),
            (b"|1\r\n+ttl\r\n:3\r\n+OK\r\n", Some(1)),
            (b"*2\r\n:1\r\n", Some(0)),
            (b"HTTP/1.1\r\n", None),
            (b"\r\n", None),
            (b"$x\r\n", None),
        ] {
            assert_eq!(replies(bytes), count, "{:?}", core::str::from_utf8(bytes));
        }
        assert_eq!(replies(&b"*1\r\n".repeat(DEPTH_MAX + 1)), None);
    }

    /// A digest of what is one reply, whatever pieces it comes in.
    fn digest(reply: &[u8], class: Class) -> u64 {
        let digests = [1, 3, reply.len()].map(|piece_bytes| {
            let (mut replies, mut ended) = (Replies::default(), None);
            for mut piece in reply.chunks(piece_bytes) {
                ended = replies.take(&mut piece, class).unwrap();
            }
            let Some(Ended::Reply(digest)) = ended else { panic!("{ended:?}") };
            digest
        });
        assert_eq!(digests, [digests[0]; 3]);
        digests[0]
    }

    #[test]
    fn replies_of_two_servers_are_equal_in_the_form_that_their_class_asks_for() {
        let (one, other) = (&b"*2\r\n$1\r\na\r\n$1\r\nb\r\n"[..], &b"*2\r\n$1\r\nb\r\n$1\r\na\r\n"[..]);
        assert_ne!(digest(one, Class::Same), digest(other, Class::Same));
        assert_eq!(digest(one, Class::Same), digest(one, Class::Same));
        assert_eq!(digest(one, Class::AnyOrder), digest(other, Class::AnyOrder));
        assert_ne!(digest(one, Class::AnyOrder), digest(b"*2\r\n$1\r\na\r\n$1\r\nc\r\n", Class::AnyOrder));
        assert_ne!(digest(one, Class::AnyOrder), digest(b"*1\r\n$1\r\na\r\n", Class::AnyOrder));
        // Fields and values belong together.
        let pairs = |pairs: &str| {
            let text =
                pairs.chars().map(|part| std::format!("$1\r\n{part}\r\n")).collect::<std::string::String>();
            digest(std::format!("*{}\r\n{text}", pairs.len()).as_bytes(), Class::AnyOrderOfPairs)
        };
        assert_eq!(pairs("a1b2"), pairs("b2a1"));
        assert_ne!(pairs("a1b2"), pairs("a2b1"));
        assert_ne!(pairs("a1b2"), pairs("1ab2"));
        let map = digest(b"%2\r\n+a\r\n:1\r\n+b\r\n:2\r\n", Class::AnyOrderOfPairs);
        assert_eq!(map, digest(b"%2\r\n+b\r\n:2\r\n+a\r\n:1\r\n", Class::AnyOrderOfPairs));
        assert_eq!(digest(b":5\r\n", Class::Own), digest(b"$3\r\nabc\r\n", Class::Own));
        assert_ne!(digest(b"|1\r\n+a\r\n+b\r\n:5\r\n", Class::Same), digest(b":5\r\n", Class::Same));
    }
}
