//! RESP, the protocol of Redis (redis.io/docs/latest/develop/reference/protocol-spec): where requests end, and replies.
//!
//! Nothing is kept but positions: the bytes of values are passed over.

use alloc::borrow::Cow;
use alloc::vec::Vec;

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
                (0, Some(_)) if line.trim_ascii().is_empty() => {}
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

/// Where replies of the server end.
#[derive(Debug, Default)]
pub(crate) struct Replies {
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
    pub(crate) fn count(&mut self, mut bytes: &[u8]) -> Option<u64> {
        let mut count = 0;
        while !bytes.is_empty() {
            let before = bytes;
            if skip(&mut self.skips, &mut bytes) {
                if self.awaits_name {
                    self.name_is(before.get(..before.len() - bytes.len()).unwrap_or_default());
                }
                if self.skips == 0 {
                    count += self.end_one();
                }
                continue;
            }
            let Some(line) = self.line.take(&mut bytes)? else { break };
            let (kind, text) = line.split_first()?;
            if self.awaits_name && *kind == b'+' {
                self.name_is(text);
            }
            match kind {
                b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => count += self.end_one(),
                b'$' | b'!' | b'=' => match number(text)? {
                    length @ 0.. => self.skips = u64::try_from(length).ok()?.checked_add(2)?,
                    _ => count += self.end_one(),
                },
                b'*' | b'~' | b'>' => count += self.begin(*kind, length(text)?)?,
                b'%' | b'|' => count += self.begin(*kind, length(text)?.checked_mul(2)?)?,
                _ => return None,
            }
        }
        Some(count)
    }

    /// No reply has begun.
    pub(crate) fn is_at_end(&self) -> bool {
        self.line.begun.is_empty() && self.skips == 0 && self.open.is_empty()
    }

    fn begin(&mut self, kind: u8, parts: u64) -> Option<u64> {
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
        (self.open.len() <= DEPTH_MAX).then_some(0)
    }

    fn name_is(&mut self, bytes: &[u8]) {
        let room = NAME_BYTES_MAX.saturating_sub(self.name.len());
        self.name.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// A reply has ended, or a part of one: how many replies of their own.
    fn end_one(&mut self) -> u64 {
        if core::mem::take(&mut self.awaits_name) {
            self.is_push = !self.name.trim_ascii_end().ends_with(CONFIRMATION);
        }
        while let Some(parts) = self.open.last_mut() {
            *parts -= 1;
            if *parts > 0 {
                return 0;
            }
            self.open.pop();
        }
        let is_reply = !core::mem::take(&mut self.is_push) && !core::mem::take(&mut self.is_attribute);
        u64::from(is_reply)
    }
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
}
