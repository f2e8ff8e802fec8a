//! Whether all requests of HTTP/1 are answered in full: pure, from the bytes that are read and written.
//!
//! Between the parts of an answer a server may wait for long, just as it waits for the next request. What the bytes say
//! tells the one from the other, however they are cut. Whatever is not understood here is not kept.

mod body;
mod head;
#[cfg(test)]
mod tests;

use body::Body;
use head::Head;
use outlast_restart::custody::table::{Asked, NotKept};

/// The methods by which a request is known before its first line is complete. All but the first eight are WebDAV's.
const METHODS: [&[u8]; 16] = [
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"PATCH",
    b"TRACE",
    b"PROPFIND",
    b"PROPPATCH",
    b"MKCOL",
    b"COPY",
    b"MOVE",
    b"LOCK",
    b"UNLOCK",
    b"REPORT",
];
/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is more to come, of a request or of its answer.
    Busy,
    /// All requests are answered.
    Answered,
    /// It is not understood, or the connection ends with this answer.
    Unclear,
    /// It is no HTTP/1 from here on, as the client has asked for (WebSocket).
    Switched,
}

/// What comes next in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Side {
    /// A head, or an empty line before a request.
    #[default]
    Between,
    /// The line feed of that empty line.
    EmptyLine,
    /// The rest of a head.
    Head(Head),
    /// The rest of a body.
    Body(Body),
}

impl Side {
    fn to_numbers(self) -> [u64; 2] {
        let (kind, [state, rest]) = match self {
            Self::Between => (0, [0, 0]),
            Self::EmptyLine => (1, [0, 0]),
            Self::Head(head) => (2, head.to_numbers()),
            Self::Body(body) => (3, body.to_numbers()),
        };
        [state << 2 | kind, rest]
    }

    fn from_numbers([state, rest]: [u64; 2]) -> Self {
        match state & 3 {
            0 => Self::Between,
            1 => Self::EmptyLine,
            2 => Self::Head(Head::from_numbers([state >> 2, rest])),
            _ => Self::Body(Body::from_numbers([state >> 2, rest])),
        }
    }

    fn of_body(body: Body) -> Self {
        if body.is_done() { Self::Between } else { Self::Body(body) }
    }
}

/// The requests whose answers are not complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Queue {
    /// Requests that were answered before, as far as that fits.
    answered: u8,
    count: u8,
    /// Which of them are HEAD: the lowest bit is the oldest.
    only_heads: u16,
    /// The connection ends with the answer to one of them, or of those that were answered.
    has_last: bool,
    /// There was a request.
    has_begun: bool,
}

impl Queue {
    /// So many requests may wait: one bit of `only_heads` stays free.
    const MAX: u8 = 15;

    fn push(&mut self, head: &Head) -> Option<()> {
        (self.has_last, self.has_begun) = (self.has_last | head.is_last_request(), true);
        self.only_heads |=
            u16::from(head.is_only_head) << Some(self.count).filter(|count| *count < Self::MAX)?;
        self.count += 1;
        Some(())
    }

    fn pop(&mut self) {
        self.answered = self.answered.wrapping_add(u8::from(self.count > 0));
        self.count = self.count.saturating_sub(1);
        self.only_heads >>= 1;
    }
}

/// In [`Asked`]: there was a request.
const BEGUN: u32 = 1 << 25;
/// Where it has those of HEAD.
const HEADS_AT: u32 = 8;

/// One connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    request: Side,
    answer: Side,
    queue: Queue,
}

impl Exchange {
    /// What who reads has to say, for shared memory.
    pub fn asked_numbers(self) -> ([u64; 2], Asked) {
        let Queue { answered, count, only_heads, has_last, has_begun } = self.queue;
        // Each has its place, whoever looks from wherever.
        let heads = only_heads.rotate_left(u32::from(answered));
        let asked = u32::from(answered.wrapping_add(count))
            | u32::from(heads) << HEADS_AT
            | if has_last { Asked::LAST } else { 0 }
            | if has_begun { BEGUN } else { 0 };
        (self.request.to_numbers(), Asked(asked))
    }

    /// What who writes has.
    pub fn answer_numbers(self) -> ([u64; 2], u8) {
        (self.answer.to_numbers(), self.queue.answered)
    }

    /// From both. Who reads may not see yet what was answered: then more seem to wait.
    pub fn from_numbers(
        [request, request_rest, answer, answer_rest]: [u64; 4],
        asked: Asked,
        answered: u8,
    ) -> Self {
        let count = asked.count().wrapping_sub(answered).min(Queue::MAX);
        let heads = (asked.0 >> HEADS_AT & 0xffff) as u16;
        let known = (1 << count) - 1;
        Self {
            request: Side::from_numbers([request, request_rest]),
            answer: Side::from_numbers([answer, answer_rest]),
            queue: Queue {
                answered,
                count,
                only_heads: heads.rotate_right(u32::from(answered)) & known,
                has_last: asked.0 & Asked::LAST != 0,
                has_begun: asked.0 & BEGUN != 0,
            },
        }
    }

    /// Whether the next thing to be read is a request.
    pub fn reads_request_next(&self) -> bool {
        self.request == Side::Between
    }

    /// Whether there was a request: one that looks like it at first may be none.
    pub fn has_begun(&self) -> bool {
        self.queue.has_begun
    }

    /// So much was read.
    pub fn on_read<'a>(&mut self, mut parts: impl Iterator<Item = &'a [u8]>) -> Verdict {
        match parts.try_for_each(|part| self.read(part)) {
            Some(()) => self.verdict(),
            None => Verdict::Unclear,
        }
    }

    /// None: it is not understood.
    fn read(&mut self, mut bytes: &[u8]) -> Option<()> {
        while let Some(&first) = bytes.first() {
            let taken = match self.request {
                // RFC 9112, 2.2: a server ignores it.
                Side::Between if first == b'\r' => {
                    self.request = Side::EmptyLine;
                    1
                }
                Side::EmptyLine => {
                    self.request = Some(Side::Between).filter(|_| first == b'\n')?;
                    1
                }
                Side::Between => {
                    let (head, begun) = Head::of_request(bytes)?;
                    begun + self.read_head(head, bytes.get(begun..)?)?
                }
                Side::Head(head) => self.read_head(head, bytes)?,
                Side::Body(mut body) => {
                    let taken = body.take(bytes)?;
                    self.request = Side::of_body(body);
                    taken
                }
            };
            bytes = bytes.get(taken..)?;
        }
        Some(())
    }

    fn read_head(&mut self, mut head: Head, bytes: &[u8]) -> Option<usize> {
        let taken = head.take(bytes)?;
        self.request = if head.is_complete() {
            self.queue.push(&head)?;
            let length = head.length.unwrap_or(0);
            Side::of_body(if head.is_chunked { Body::chunked() } else { Body::of_length(length) })
        } else {
            Side::Head(head)
        };
        Some(taken)
    }

    /// So much was written.
    pub fn on_write<'a>(&mut self, mut parts: impl Iterator<Item = &'a [u8]>) -> Verdict {
        match parts.try_for_each(|part| self.write(part)) {
            Ok(()) => self.verdict(),
            Err(verdict) => verdict,
        }
    }

    /// A verdict, if there is nothing to follow from here on.
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Verdict> {
        while !bytes.is_empty() {
            let taken = match self.answer {
                // Nobody has asked for that.
                _ if self.queue.count == 0 => None,
                Side::Between => self.write_head(Head::of_answer(), bytes)?,
                Side::Head(head) => self.write_head(head, bytes)?,
                Side::Body(mut body) => {
                    let taken = body.take(bytes);
                    self.go_on(body);
                    taken
                }
                Side::EmptyLine => None,
            };
            bytes = taken.and_then(|taken| bytes.get(taken..)).ok_or(Verdict::Unclear)?;
        }
        Ok(())
    }

    fn write_head(&mut self, mut head: Head, bytes: &[u8]) -> Result<Option<usize>, Verdict> {
        let taken = head.take(bytes);
        if head.is_complete() {
            self.begin_answer(&head)?;
        } else {
            self.answer = Side::Head(head);
        }
        Ok(taken)
    }

    /// So much was written that cannot be looked at, such as of a file.
    pub fn on_write_unseen(&mut self, bytes: u64) -> Verdict {
        if bytes > 0 {
            let Side::Body(mut body) = self.answer else { return Verdict::Unclear };
            let Some(()) = body.take_unseen(bytes) else { return Verdict::Unclear };
            self.go_on(body);
        }
        self.verdict()
    }

    fn verdict(&self) -> Verdict {
        match self.request {
            _ if self.queue.count > 0 => Verdict::Busy,
            // Nobody waits for more than its end.
            Side::Between if self.queue.has_last => Verdict::Unclear,
            Side::Between => Verdict::Answered,
            // An answer may come before the rest of a body, which the program may read, or leave.
            Side::EmptyLine | Side::Head(_) | Side::Body(_) => Verdict::Busy,
        }
    }

    /// With this rest of the answer.
    fn go_on(&mut self, body: Body) {
        self.answer = Side::of_body(body);
        if self.answer == Side::Between {
            self.queue.pop();
        }
    }

    /// A verdict, if the head does not tell how long the answer is.
    fn begin_answer(&mut self, head: &Head) -> Result<(), Verdict> {
        let body = match head.status {
            101 => return Err(Verdict::Switched),
            100..200 => {
                // The answer itself is still to come.
                self.answer = Side::Between;
                return Ok(());
            }
            200.. if !head.is_last_answer() => match head.length {
                _ if matches!(head.status, 204 | 304) || self.queue.only_heads & 1 == 1 => Body::default(),
                _ if head.is_chunked => Body::chunked(),
                Some(length) => Body::of_length(length),
                // It ends with the connection.
                None => return Err(Verdict::Unclear),
            },
            _ => return Err(Verdict::Unclear),
        };
        self.go_on(body);
        Ok(())
    }
}

/// Whether a connection begins with a request: its first line tells. Others have commands like GET, too. Of some programs the
/// first read gives a single byte.
pub fn is_request(mut head: &[u8]) -> bool {
    if head.is_empty() {
        return false;
    }
    while let Some(rest) = head.strip_prefix(b"\r\n") {
        head = rest;
    }
    match head.iter().position(|&byte| byte == b'\n').and_then(|end| head.get(..end)) {
        Some(line) => head::is_request_line(line.strip_suffix(b"\r").unwrap_or(line)),
        // Of a line that is not complete the rest is guessed: if that is wrong, the connection is not kept.
        None => METHODS.iter().any(|method| match head.strip_prefix(*method) {
            Some(rest) => rest.is_empty() || rest.starts_with(b" "),
            None => method.starts_with(head),
        }),
    }
}

/// What a connection is on which the server is the first to speak, with these words. None: an answer of HTTP/1, as some give to
/// clients that send no request for long; or nothing of it can be seen.
pub fn greeting(head: &[u8]) -> Option<NotKept> {
    if head.starts_with(b"HTTP/") { None } else { stranger(head) }
}

/// What a connection is that does not begin with a request. None: nothing of it can be seen, or the end of a line is all that
/// was sent, as some do who look whether anybody listens.
pub fn stranger(head: &[u8]) -> Option<NotKept> {
    match head {
        _ if head.iter().all(|byte| b"\r\n".contains(byte)) => None,
        // A record of TLS with a handshake in it.
        [0x16, 3, ..] => Some(NotKept::Tls),
        _ if head.starts_with(b"PRI * HTTP/2") => Some(NotKept::Http2),
        _ => Some(NotKept::Other),
    }
}
