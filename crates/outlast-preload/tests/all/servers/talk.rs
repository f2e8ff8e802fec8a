//! Clients of servers of all kinds: whoever is not answered has to learn that.

use super::row::Talk;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// The first message of a client of TLS 1.2.
const HELLO: &[u8] = b"\x16\x03\x01\x00\x45\x01\x00\x00\x41\x03\x03\
    an_arbitrary_number_of_32_bytes_\x00\x00\x06\xc0\x2f\xc0\x2b\x00\x9c\x01\x00\x00\x12\
    \x00\x0a\x00\x04\x00\x02\x00\x17\x00\x0d\x00\x06\x00\x04\x04\x01\x04\x03";
/// Longer than all that is waited for.
const HEARD_BYTES: usize = 1 << 20;

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// The connection was ended or reset instead.
    Ended,
    /// Nothing comes, and nobody says why.
    Silent,
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    talk: Talk,
    has_begun: bool,
}

impl Client {
    /// `patience` for the connection, and for each answer.
    pub fn connect(talk: Talk, port: u16, patience: Duration) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, talk, has_begun: false })
    }

    /// Waits for answers from here on for so long.
    pub fn be_patient(&self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).unwrap();
    }

    pub fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }

    /// Asks once.
    pub fn ask(&mut self) -> Fate {
        match self.talk {
            Talk::Http(target) => {
                let fate = self.say(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
                if fate == Fate::Answered { self.hear(is_whole_answer) } else { fate }
            }
            Talk::HttpOnce(target) => {
                let fate = self.say(format!("GET {target} HTTP/1.0\r\nHost: a\r\n\r\n").as_bytes());
                if fate == Fate::Answered { self.hear(|heard| heard.ends_with(b"hello\n")) } else { fate }
            }
            Talk::Tls => self.exchange(HELLO, b"\x16\x03"),
            Talk::Bytes { first: (say, hear), then } => {
                if !std::mem::replace(&mut self.has_begun, true) {
                    let fate = self.exchange(say, hear);
                    if fate != Fate::Answered || then.0.is_empty() {
                        return fate;
                    }
                } else if then.0.is_empty() {
                    return self.is_open();
                }
                self.exchange(then.0, then.1)
            }
        }
    }

    fn exchange(&mut self, say: &[u8], hear: &[u8]) -> Fate {
        let fate = self.say(say);
        if fate != Fate::Answered {
            return fate;
        }
        self.hear(|heard| hear.is_empty() || heard.windows(hear.len()).any(|window| window == hear))
    }

    fn say(&mut self, bytes: &[u8]) -> Fate {
        if self.stream.write_all(bytes).is_ok() { Fate::Answered } else { Fate::Ended }
    }

    /// Until what was heard is enough.
    fn hear(&mut self, is_enough: impl Fn(&[u8]) -> bool) -> Fate {
        let (mut heard, mut room) = (Vec::new(), [0; 16384]);
        while !is_enough(&heard) && heard.len() < HEARD_BYTES {
            match self.stream.read(&mut room) {
                Ok(0) => return Fate::Ended,
                Ok(count) => heard.extend_from_slice(&room[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Fate::Silent;
                }
                Err(_) => return Fate::Ended,
            }
        }
        Fate::Answered
    }

    /// Whether it is not ended: for servers that say something first, and nothing then.
    fn is_open(&mut self) -> Fate {
        let _ = self.stream.set_read_timeout(Some(Duration::from_millis(20)));
        match self.hear(|_| false) {
            Fate::Silent => Fate::Answered,
            fate => fate,
        }
    }
}

/// Of HTTP/1.1, with a length, or in chunks.
fn is_whole_answer(heard: &[u8]) -> bool {
    let Some(end) = heard.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let (head, body) = heard.split_at(end + 4);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    match length.and_then(|length| length.trim().parse::<usize>().ok()) {
        Some(length) => body.len() >= length,
        None => body.ends_with(b"0\r\n\r\n"),
    }
}
