//! A connection of this node's own to its server, on which that says when it has worked off what it was given on others.
//!
//! Redis reads what has come on all connections before it answers any (one thread; replies are written at the end of each turn of its loop). So a reply
//! to PING says that all that had come before was worked off. What has no reply then has none before others say something: BLPOP, for one.

use super::machine::Machine;
use super::stream::{Input, Stream};
use mio::net::TcpStream;
use mio::{Registry, Token};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

const QUESTION: &[u8] = b"PING\r\n";
/// Where a password is wanted, that it is says as much.
const ANSWERS: [&[u8]; 2] = [b"+PONG", b"-NOAUTH"];
/// A longer answer is none.
const LINE_BYTES_MAX: usize = 1024;

/// The connection, and what is open on it.
#[derive(Debug)]
pub(super) struct Asker {
    stream: Stream,
    line: Vec<u8>,
    /// Each question is about one of these entries.
    open: VecDeque<u64>,
}

impl Asker {
    fn connect(server: SocketAddr, registry: &Registry, token: Token) -> io::Result<Self> {
        let socket = TcpStream::connect(server)?;
        let _ = socket.set_nodelay(true);
        Ok(Self { stream: Stream::new(socket, registry, token)?, line: Vec::new(), open: VecDeque::new() })
    }

    pub(super) fn note_ready(&mut self, readable: bool, writable: bool) {
        self.stream.note_ready(readable, writable);
    }

    /// The entries about which the server has answered; none: the connection is of no use any more.
    fn work(&mut self, room: &mut [u8]) -> Option<Vec<u64>> {
        self.stream.flush().ok()?;
        let mut answered = Vec::new();
        loop {
            match self.stream.read(room) {
                Input::Bytes(count) => self.line.extend_from_slice(room.get(..count)?),
                Input::Nothing => return Some(answered),
                Input::End | Input::Broken => return None,
            }
            while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                if !ANSWERS.iter().any(|answer| line.starts_with(answer)) {
                    return None;
                }
                answered.extend(self.open.pop_front());
            }
            if self.line.len() > LINE_BYTES_MAX {
                return None;
            }
        }
    }
}

impl Machine {
    /// The server is to say when it has worked off what it was given, up to this entry.
    pub(super) fn ask_server(&mut self, index: u64) {
        if self.asker.is_none() {
            // Where that fails, the primary passes the request a second later.
            self.asker = Asker::connect(self.server, self.registry(), super::machine::ASKER).ok();
        }
        if let Some(asker) = &mut self.asker {
            asker.stream.push(QUESTION);
            asker.open.push_back(index);
        }
    }

    /// Hears what the server says to that.
    pub(super) fn look_at_asker(&mut self) {
        let Some(asker) = &mut self.asker else { return };
        let Some(answered) = asker.work(&mut self.room) else {
            self.asker = None;
            return;
        };
        if answered.is_empty() {
            return;
        }
        // What it has said before comes first.
        self.read_servers();
        let now_ms = self.now_ms();
        for index in answered {
            self.replica.handle_server_idle(index, now_ms);
        }
    }
}
