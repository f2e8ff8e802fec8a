//! Answers of an HTTP server, byte by byte as they come in, and held against what they should be.

use std::sync::Arc;

/// The longest head of an answer.
const HEAD_MAX: usize = 8 << 10;

/// What a client asks for, and gets if all is well.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The whole request.
    pub request: Arc<[u8]>,
    /// The body of its answer; `None`: whatever it is.
    pub body: Option<Arc<[u8]>>,
}

impl Exchange {
    /// Asks for what is at `path`.
    pub fn get(path: &str, body: Option<Arc<[u8]>>) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
        Self { request: request.into_bytes().into(), body }
    }
}

/// Bytes that are different at every place, so that one too many or too few is seen.
pub fn pattern(length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(length);
    bytes
}

/// Why an answer is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It says that the request has failed.
    Refused,
    /// It is not what it should be.
    Wrong,
}

/// An answer as far as it has come.
#[derive(Debug, Default)]
pub struct Answer {
    head: Vec<u8>,
    /// Of the body, once the head is whole.
    length: Option<usize>,
    at: usize,
    /// Where nothing is known to hold it against.
    kept: Vec<u8>,
}

impl Answer {
    /// Takes the next bytes. `Ok(true)`: the answer is whole.
    pub fn take(&mut self, bytes: &[u8], exchange: &Exchange) -> Result<bool, Flaw> {
        let mut rest = bytes;
        if self.length.is_none() {
            let seen = self.head.len();
            self.head.extend_from_slice(rest);
            let from = seen.saturating_sub(3);
            let Some(end) = self.head[from..].windows(4).position(|four| four == b"\r\n\r\n") else {
                return if self.head.len() > HEAD_MAX { Err(Flaw::Wrong) } else { Ok(false) };
            };
            let end = from + end + 4;
            rest = &rest[end - seen..];
            self.head.truncate(end);
            self.length = Some(self.understand(exchange)?);
        }
        let length = self.length.unwrap_or(0);
        if rest.len() > length - self.at {
            return Err(Flaw::Wrong);
        }
        match &exchange.body {
            Some(body) if body[self.at..self.at + rest.len()] != *rest => return Err(Flaw::Wrong),
            Some(_) => {}
            None => self.kept.extend_from_slice(rest),
        }
        self.at += rest.len();
        Ok(self.at == length)
    }

    /// Whether nothing of it is here.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// A body that was held against nothing.
    pub fn body(&self) -> &[u8] {
        &self.kept
    }

    /// For the next one.
    pub fn clear(&mut self) {
        self.head.clear();
        self.kept.clear();
        (self.length, self.at) = (None, 0);
    }

    /// The length of the body, if the head is good.
    fn understand(&self, exchange: &Exchange) -> Result<usize, Flaw> {
        let text = std::str::from_utf8(&self.head).map_err(|_| Flaw::Wrong)?;
        let mut lines = text.split("\r\n");
        let status = lines.next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 200") {
            return Err(if status.starts_with("HTTP/1.") { Flaw::Refused } else { Flaw::Wrong });
        }
        let lengths = lines.filter_map(|line| line.split_once(':'));
        let length = lengths.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = length.filter_map(|(_, value)| value.trim().parse().ok()).next().ok_or(Flaw::Wrong)?;
        let right = exchange.body.as_ref().is_none_or(|body| body.len() == length);
        if right { Ok(length) } else { Err(Flaw::Wrong) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_any_pieces_is_whole_at_its_end_only() {
        let body = pattern(1000);
        let exchange = Exchange::get("/", Some(body.clone().into()));
        let bytes = [b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n".as_slice(), &body].concat();
        for piece in [1, 2, 3, 7, 64, bytes.len()] {
            let mut answer = Answer::default();
            let last = bytes.len().div_ceil(piece) - 1;
            for (number, piece) in bytes.chunks(piece).enumerate() {
                assert_eq!(answer.take(piece, &exchange), Ok(number == last));
            }
        }
    }

    #[test]
    fn a_byte_that_is_wrong_too_many_or_refused_is_seen() {
        let exchange = Exchange::get("/", Some(b"ab".to_vec().into()));
        let judged = |text: &str| Answer::default().take(text.as_bytes(), &exchange);
        assert_eq!(judged("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"), Ok(true));
        assert_eq!(judged("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nax"), Err(Flaw::Wrong));
        assert_eq!(judged("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabH"), Err(Flaw::Wrong));
        assert_eq!(judged("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"), Err(Flaw::Wrong));
        assert_eq!(judged("HTTP/1.1 502 Bad Gateway\r\n\r\n"), Err(Flaw::Refused));
        assert_eq!(judged("bHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"), Err(Flaw::Wrong));
    }
}
