//! Whether the server has worked off what it was given, where it has not answered: it is asked on a new connection of the node's own.
//!
//! Redis accepts connections in their order, and reads what has come on all of them before it writes any answer (one thread; answers are written at
//! the end of each turn of its loop; it reads 16 KiB of each connection in a turn). So where a request has come to it as a whole, and it is asked once for each 16 KiB of it, a reply to a later
//! PING on a later connection says that the request was worked off. What has no reply then has none before others say something: BLPOP, for
//! one.

use super::machine::{ASKER, Machine};
use super::stream::{Input, Stream};
use super::sys;
use crate::entry::ConnectionId;
use crate::replica::NO_CONNECTION;
use mio::net::TcpStream;
use socket2::SockRef;
use std::os::fd::AsFd;
use std::time::Duration;

const QUESTION: &[u8] = b"PING\r\n";
/// Where PING is refused, it was read as well.
const ANSWERS: [&[u8]; 5] = [b"+PONG", b"-NOAUTH", b"-NOPERM", b"-MISCONF", b"-ERR unknown command"];
/// A longer answer is none.
const LINE_BYTES_MAX: usize = 1024;

/// The connection.
#[derive(Debug)]
pub(super) struct Asker {
    stream: Stream,
    line: Vec<u8>,
    /// The entry about which it is, and its client.
    index: u64,
    connection: ConnectionId,
}

/// What has come of a question.
enum Answer {
    /// Nothing yet.
    None,
    /// The server is done.
    Done,
    /// It says something else, or nothing any more.
    Other,
}

impl Asker {
    pub(super) fn note_ready(&mut self, readable: bool, writable: bool) {
        self.stream.note_ready(readable, writable);
    }

    fn work(&mut self, room: &mut [u8]) -> Answer {
        if self.stream.flush().is_err() {
            return Answer::Other;
        }
        loop {
            match self.stream.read(room) {
                Input::Bytes(count) => self.line.extend_from_slice(room.get(..count).unwrap_or_default()),
                Input::Nothing => return Answer::None,
                Input::End | Input::Broken => return Answer::Other,
            }
            if ANSWERS.iter().any(|answer| self.line.starts_with(answer)) {
                return Answer::Done;
            }
            if self.line.len() > LINE_BYTES_MAX || self.line.contains(&b'\n') {
                return Answer::Other;
            }
        }
    }
}

impl Machine {
    /// The server is to say whether it has worked off what it was given, up to this entry.
    pub(super) fn ask_server(&mut self, index: u64, connection: ConnectionId) {
        if self.sql_asker.is_some() {
            return self.ask_sql(index, connection);
        }
        let is_asked = self.asker.as_ref().is_some_and(|asker| asker.index == index);
        let is_there = connection == NO_CONNECTION
            || self.servers.get(&connection).is_some_and(|server| {
                // On this machine what the kernel has taken is there at once.
                let is_local = self.server.ip().is_loopback();
                let is_acked =
                    || sys::unacked_bytes(server.stream.socket.as_fd()).is_ok_and(|bytes| bytes == 0);
                server.stream.waiting_bytes() == 0 && (is_local || is_acked())
            });
        if is_asked || !is_there {
            // It is tried again soon; and where it never works, the primary passes the request a second later.
            return;
        }
        let stream = TcpStream::connect(self.server).and_then(|socket| {
            // It is asked often, and every connection would keep a port for a minute.
            SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
            let mut stream = Stream::new(socket, self.registry(), ASKER)?;
            stream.push(QUESTION);
            Ok(stream)
        });
        self.asker = stream.ok().map(|stream| Asker { stream, line: Vec::new(), index, connection });
    }

    /// Hears what the server says to that.
    pub(super) fn look_at_asker(&mut self) {
        let Some(asker) = &mut self.asker else { return };
        let answer = asker.work(&mut self.room);
        let (index, connection) = (asker.index, asker.connection);
        match answer {
            Answer::None => {}
            Answer::Other => {
                self.asker = None;
                // It takes no more connections, and has looked at the clock between two of them.
                if connection == NO_CONNECTION && self.refused_for.replace(index) == Some(index) {
                    let now_ms = self.now_ms();
                    self.replica.handle_server_idle(index, now_ms);
                }
            }
            Answer::Done => {
                self.asker = None;
                self.handle_idle(index, connection);
            }
        }
    }

    /// The server is done. What it has said before comes first.
    pub(super) fn handle_idle(&mut self, index: u64, connection: ConnectionId) {
        let is_time = connection == NO_CONNECTION;
        let owing: Vec<ConnectionId> = self.replica.owing().filter(|_| is_time).collect();
        for connection in owing.into_iter().chain([connection]) {
            if let Some(server) = self.servers.get_mut(&connection) {
                server.stream.note_ready(true, false);
                self.dirty_servers.insert(connection);
            }
        }
        self.look_at_servers();
        let now_ms = self.now_ms();
        self.replica.handle_server_idle(index, now_ms);
    }
}
