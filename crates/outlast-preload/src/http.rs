//! Whether a request of HTTP/1 is answered in full: pure, from the bytes that are read and written.
//!
//! Between the parts of an answer a server may wait for long, just as it waits for the next request. What the bytes say
//! tells the one from the other. Whatever is not understood here is not kept.

use outlast_restart::custody::table::NotKept;
use std::io::BufRead;

/// The longest head of a request or an answer that is looked at.
const HEAD_BYTES: usize = 8 << 10;

/// What is expected next of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum Answer {
    /// None: there is no request.
    #[default]
    None = 0,
    Head = 1,
    /// So many bytes.
    Body = 2,
    /// A line with the size of a chunk, of which this was read.
    Size = 3,
    /// The rest of that line.
    Extension = 4,
    /// So many bytes of a chunk and the end of its line.
    Chunk = 5,
    /// Lines behind the last chunk, up to an empty one. So many bytes are in the current one.
    Trailer = 6,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is more to come, of the request or of its answer.
    Busy,
    /// The request is answered.
    Answered,
    /// It is not understood, or the connection ends with this answer.
    Unclear,
    /// It is no HTTP/1 from here on, as the client has asked for (WebSocket).
    Switched,
}

/// One connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    answer: Answer,
    answer_rest: u64,
    /// Bytes of the request's body.
    request_rest: u64,
    /// The request was HEAD.
    only_head: bool,
}

impl Exchange {
    /// As three numbers, for shared memory.
    pub fn to_numbers(self) -> [u64; 3] {
        [u64::from(self.answer as u8) | u64::from(self.only_head) << 8, self.answer_rest, self.request_rest]
    }

    /// From [`to_numbers`](Self::to_numbers).
    pub fn from_numbers([kind, answer_rest, request_rest]: [u64; 3]) -> Self {
        let answer = match kind & 0xff {
            1 => Answer::Head,
            2 => Answer::Body,
            3 => Answer::Size,
            4 => Answer::Extension,
            5 => Answer::Chunk,
            6 => Answer::Trailer,
            _ => Answer::None,
        };
        Self { answer, answer_rest, request_rest, only_head: kind >> 8 == 1 }
    }

    /// So much was read.
    pub fn on_read<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]> + Clone) -> Verdict {
        let length: usize = parts.clone().map(<[u8]>::len).sum();
        let body = if self.answer == Answer::None {
            let mut room = None;
            let Some(head) = head(parts, &mut room) else { return Verdict::Unclear };
            let Some(body) = head.body() else { return Verdict::Unclear };
            if !is_request(head.bytes) {
                return Verdict::Unclear;
            }
            self.answer = Answer::Head;
            self.only_head = head.bytes.starts_with(b"HEAD ");
            self.request_rest = body.unwrap_or(0);
            length - head.bytes.len()
        } else {
            length
        };
        // More than one request belongs to this program, which has read it.
        match self.request_rest.checked_sub(body as u64) {
            Some(rest) => {
                self.request_rest = rest;
                Verdict::Busy
            }
            None => Verdict::Unclear,
        }
    }

    /// So much was written.
    pub fn on_write<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]> + Clone) -> Verdict {
        let mut skip = 0;
        while self.answer == Answer::Head {
            let behind = Behind { parts: parts.clone(), skip };
            if behind.clone().all(<[u8]>::is_empty) {
                return Verdict::Busy;
            }
            let mut room = None;
            let Some(head) = head(behind, &mut room) else { return Verdict::Unclear };
            skip += head.bytes.len();
            if let Some(verdict) = self.begin_answer(&head) {
                return verdict;
            }
        }
        for part in (Behind { parts, skip }) {
            let mut rest = part;
            while let Some((&first, others)) = rest.split_first() {
                rest = match self.answer {
                    Answer::Body | Answer::Chunk => {
                        let taken = usize::try_from(self.answer_rest).unwrap_or(usize::MAX).min(rest.len());
                        self.pass(taken as u64);
                        rest.get(taken..).unwrap_or_default()
                    }
                    Answer::None | Answer::Head => return Verdict::Unclear,
                    Answer::Size | Answer::Extension | Answer::Trailer => {
                        if !self.on_framing(first) {
                            return Verdict::Unclear;
                        }
                        others
                    }
                };
            }
        }
        self.verdict()
    }

    /// So much was written that cannot be looked at, such as of a file.
    pub fn on_write_unseen(&mut self, bytes: u64) -> Verdict {
        if !matches!(self.answer, Answer::Body | Answer::Chunk) || bytes > self.answer_rest {
            return if bytes == 0 { self.verdict() } else { Verdict::Unclear };
        }
        self.pass(bytes);
        self.verdict()
    }

    fn verdict(&self) -> Verdict {
        match (self.answer, self.request_rest) {
            (Answer::None, 0) => Verdict::Answered,
            // The program may still read the rest, or leave it for somebody who takes it for a request.
            (Answer::None, _) => Verdict::Unclear,
            _ => Verdict::Busy,
        }
    }

    /// Bytes of a body.
    fn pass(&mut self, bytes: u64) {
        self.answer_rest -= bytes;
        if self.answer_rest == 0 {
            self.answer = if self.answer == Answer::Body { Answer::None } else { Answer::Size };
        }
    }

    /// The verdict, if the head does not tell how long the answer is.
    fn begin_answer(&mut self, head: &Head<'_>) -> Option<Verdict> {
        let status = head.bytes.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
        let status = status.and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
        let Some(status) = status else { return Some(Verdict::Unclear) };
        let closes = head.connection.is_some_and(|value| !is(value, b"keep-alive"));
        match status {
            101 => return Some(Verdict::Switched),
            100..200 => return None,
            _ if closes => return Some(Verdict::Unclear),
            204 | 304 => self.answer = Answer::None,
            _ if self.only_head => self.answer = Answer::None,
            _ if head.transfer_encoding.is_some_and(|value| is(value, b"chunked")) => {
                (self.answer, self.answer_rest) = (Answer::Size, 0);
            }
            _ => match head.body() {
                Some(Some(0)) => self.answer = Answer::None,
                Some(Some(length)) => (self.answer, self.answer_rest) = (Answer::Body, length),
                // It ends with the connection.
                _ => return Some(Verdict::Unclear),
            },
        }
        None
    }

    /// A byte between chunks. False if it cannot be there.
    fn on_framing(&mut self, byte: u8) -> bool {
        match (self.answer, byte) {
            (Answer::Size | Answer::Extension, b'\n') => {
                (self.answer, self.answer_rest) = match self.answer_rest {
                    0 => (Answer::Trailer, 0),
                    // The end of its line belongs to it.
                    size => (Answer::Chunk, size + 2),
                };
            }
            (Answer::Size, _) => match (byte as char).to_digit(16) {
                Some(digit) if self.answer_rest < 1 << 56 => {
                    self.answer_rest = self.answer_rest << 4 | u64::from(digit);
                }
                Some(_) => return false,
                None => self.answer = Answer::Extension,
            },
            (Answer::Trailer, b'\n') if self.answer_rest == 0 => self.answer = Answer::None,
            (Answer::Trailer, b'\n') => self.answer_rest = 0,
            (Answer::Trailer, b'\r') | (Answer::Extension, _) => {}
            (Answer::Trailer, _) => self.answer_rest += 1,
            _ => return false,
        }
        true
    }
}

/// Whether a connection begins with a request: its first line tells. Others have commands like GET, too.
pub fn is_request(head: &[u8]) -> bool {
    let methods: [&[u8]; 8] =
        [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE "];
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let versions: [&[u8]; 2] = [b" HTTP/1.1", b" HTTP/1.0"];
    // Of a line that is not complete the rest is guessed: if that is wrong, the connection is not kept.
    let ends = line.len() == head.len() || versions.iter().any(|version| line.ends_with(version));
    ends && methods.iter().any(|method| head.starts_with(method))
}

/// What a connection is that does not begin with a request. None: nothing of it can be seen.
pub fn stranger(head: &[u8]) -> Option<NotKept> {
    match head {
        [] => None,
        // A record of TLS with a handshake in it.
        [0x16, 3, ..] => Some(NotKept::Tls),
        _ if head.starts_with(b"PRI * HTTP/2") => Some(NotKept::Http2),
        _ => Some(NotKept::Other),
    }
}

/// What is behind the first bytes.
#[derive(Clone)]
struct Behind<I> {
    parts: I,
    skip: usize,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Iterator for Behind<I> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let part = self.parts.next()?;
        let skipped = self.skip.min(part.len());
        self.skip -= skipped;
        part.get(skipped..)
    }
}

/// Everything up to the first empty line, with that. None if it is not complete, or too long.
fn head<'a: 'b, 'b>(
    parts: impl Iterator<Item = &'a [u8]>,
    room: &'b mut Option<[u8; HEAD_BYTES]>,
) -> Option<Head<'b>> {
    let mut parts = parts.filter(|part| !part.is_empty());
    let first = parts.next()?;
    // Nearly always. Nothing is copied then.
    if let Some(head) = Head::read(first.get(..HEAD_BYTES).unwrap_or(first)) {
        return Some(head);
    }
    let (room, mut length) = (room.insert([0; HEAD_BYTES]), 0);
    for part in std::iter::once(first).chain(parts) {
        let taken = part.len().min(HEAD_BYTES - length);
        room.get_mut(length..length + taken)?.copy_from_slice(part.get(..taken)?);
        length += taken;
    }
    Head::read(room.get(..length)?)
}

fn is(value: &[u8], word: &[u8]) -> bool {
    value.trim_ascii().eq_ignore_ascii_case(word)
}

/// A head, and what of its fields matters here: of several of one name the first.
#[derive(Default)]
struct Head<'a> {
    bytes: &'a [u8],
    connection: Option<&'a [u8]>,
    content_length: Option<&'a [u8]>,
    transfer_encoding: Option<&'a [u8]>,
}

impl<'a> Head<'a> {
    /// In one pass, as each request and each answer of a program comes through here. None: there is no empty line.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (mut head, mut rest, mut follows) = (Self::default(), bytes, false);
        loop {
            let length = rest.skip_until(b'\n').ok().filter(|length| *length > 0)?;
            let end = bytes.len() - rest.len();
            let line = bytes.get(end - length..end)?.strip_suffix(b"\n")?;
            if follows && line == b"\r" {
                head.bytes = bytes.get(..end)?;
                return Some(head);
            }
            follows = line.ends_with(b"\r");
            head.note(line);
        }
    }

    fn note(&mut self, line: &'a [u8]) {
        let (name, place): (&[u8], _) = match line.first() {
            Some(b'c' | b'C') if line.get(10) == Some(&b':') => (b"connection", &mut self.connection),
            Some(b'c' | b'C') => (b"content-length", &mut self.content_length),
            Some(b't' | b'T') => (b"transfer-encoding", &mut self.transfer_encoding),
            _ => return,
        };
        if let Some((its, [b':', value @ ..])) = line.split_at_checked(name.len())
            && its.eq_ignore_ascii_case(name)
        {
            place.get_or_insert(value);
        }
    }

    /// The length of the body, if one is told. None if it is told in another way.
    fn body(&self) -> Option<Option<u64>> {
        if self.transfer_encoding.is_some() {
            return None;
        }
        let Some(length) = self.content_length else { return Some(None) };
        std::str::from_utf8(length.trim_ascii()).ok()?.parse().ok().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Answered, Busy, Unclear};

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    fn asked(request: &[u8]) -> Exchange {
        let mut exchange = Exchange::default();
        assert_eq!(exchange.on_read([request].into_iter()), Busy);
        exchange
    }

    /// The verdict after every byte, of which all but the last are to be the same.
    fn answered(exchange: Exchange, answer: &[u8]) -> Verdict {
        let mut whole = exchange;
        let verdict = whole.on_write([answer].into_iter());
        // However it is cut, behind its last head.
        let position =
            |from: usize, what: &[u8]| answer[from..].windows(what.len()).position(|at| at == what);
        let last = (0..answer.len()).rfind(|&at| answer[at..].starts_with(b"HTTP/1.1 ")).unwrap();
        let end = last + position(last, b"\r\n\r\n").unwrap() + 4;
        for cut in end..answer.len() {
            let (first, second) = answer.split_at(cut);
            let mut halves = exchange;
            assert_eq!(halves.on_write([first].into_iter()), Busy, "{}", String::from_utf8_lossy(first));
            halves = Exchange::from_numbers(halves.to_numbers());
            assert_eq!(halves.on_write([second].into_iter()), verdict);
            // And in one call.
            let mut parts = exchange;
            assert_eq!(parts.on_write(answer.chunks(cut % 7 + 1)), verdict);
        }
        verdict
    }

    #[test]
    fn answers_end_where_they_say() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nMore: later\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ] {
            assert_eq!(answered(asked(GET), answer.as_bytes()), Answered, "{answer}");
        }
        let head = asked(b"HEAD / HTTP/1.1\r\n\r\n");
        assert_eq!(answered(head, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), Answered);
    }

    #[test]
    fn what_is_unclear_is_not_kept() {
        for answer in [
            "HTTP/1.1 200 OK\r\n\r\nuntil the end",
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
            "HTTP/1.1 200 OK\r\nContent-Le",
        ] {
            let mut exchange = asked(GET);
            assert_eq!(exchange.on_write([answer.as_bytes()].into_iter()), Unclear, "{answer}");
        }
        // The server decides whether something else is spoken.
        let asks = || asked(b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        let switches: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(asks().on_write([switches].into_iter()), Verdict::Switched);
        let declines = b"HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(answered(asks(), declines), Answered);
        for request in [
            &b"GET / HTTP/1.1\r\nHost:"[..],
            b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"CONNECT a:1 HTTP/1.1\r\n\r\n",
            b"+PING\r\n\r\n",
            b"GET key\r\n\r\n",
        ] {
            assert_eq!(Exchange::default().on_read([request].into_iter()), Unclear);
        }
    }

    #[test]
    fn the_first_field_of_a_name_counts_however_it_is_written() {
        let head = |text: &'static str| Head::read(text.as_bytes());
        let of =
            head("GET /u HTTP/1.1\r\ncOnnection:x\r\nContent-Length: 7\r\nContent-length: 8\r\n\r\nmore")
                .unwrap();
        assert_eq!((of.connection, of.body()), (Some(&b"x\r"[..]), Some(Some(7))));
        assert!(of.bytes.ends_with(b"8\r\n\r\n"));
        for other in
            ["Connections: x", "Connection : x", "Conn", "Content-Lengt: 7", "t", "", ":", "X-Connection: x"]
        {
            let text = format!("GET / HTTP/1.1\r\n{other}\r\nTransfer-Encoding: chunked\r\n\r\n");
            let of = Head::read(text.as_bytes()).unwrap();
            assert!(of.connection.is_none() && of.content_length.is_none(), "{other}");
            assert_eq!(of.transfer_encoding.is_some(), !other.is_empty(), "{other}");
        }
        for incomplete in ["", "\n", "\r\n", "a\n\r\n", "a\n\n", "a\r\n\r", "a\r\n\n"] {
            assert!(head(incomplete).is_none(), "{incomplete:?}");
        }
        assert_eq!(head("\r\n\r\n").unwrap().bytes.len(), 4);
    }

    #[test]
    fn a_body_comes_in_parts_and_files_go_unseen() {
        let mut exchange = asked(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab");
        assert_eq!(exchange.on_write([&b"HTTP/1.1 100 Continue\r\n\r\n"[..]].into_iter()), Busy);
        assert_eq!(exchange.on_read([&b"cd"[..]].into_iter()), Busy);
        assert_eq!(
            exchange.on_write([&b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"[..]].into_iter()),
            Busy
        );
        assert_eq!(exchange.on_write_unseen(600), Busy);
        assert_eq!(exchange.on_write_unseen(400), Answered);
        assert_eq!(exchange.on_write_unseen(1), Unclear);
        // An answer to half of a request.
        let mut early = asked(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab");
        assert_eq!(
            early.on_write([&b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n"[..]].into_iter()),
            Unclear
        );
    }
}
