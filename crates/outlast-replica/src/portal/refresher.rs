//! Redis forgets its scripts, at the same place in the order on all nodes: a copy of its data lacks them, and `EVALSHA` would do something at one
//! server and nothing at another.

use super::machine::{Machine, REFRESHER};
use super::stream::{Input, Stream};
use mio::net::TcpStream;
use std::time::{Duration, Instant};

const LINE_BYTES_MAX: usize = 1024;
/// One that could not be asked is asked again.
const AGAIN: Duration = Duration::from_millis(100);
/// So a server answers that can do it later.
const LATER: [&[u8]; 3] = [b"-ERR max number of clients", b"-BUSY", b"-LOADING"];

/// The connection on which it is asked to.
#[derive(Debug)]
pub(super) struct Refresher {
    /// None: it could not be asked.
    stream: Option<Stream>,
    said: Vec<u8>,
    /// So many lines come before the one that counts.
    lines: usize,
    index: u64,
    begun: Instant,
}

impl Refresher {
    pub(super) fn note_ready(&mut self, readable: bool, writable: bool) {
        if let Some(stream) = &mut self.stream {
            stream.note_ready(readable, writable);
        }
    }

    /// What the server says to it, when it has.
    fn answer(&mut self, room: &mut [u8]) -> Option<Vec<u8>> {
        let stream = self.stream.as_mut()?;
        let is_broken = stream.flush().is_err();
        while !is_broken && self.said.len() <= LINE_BYTES_MAX {
            match stream.read(room) {
                Input::Bytes(count) => self.said.extend_from_slice(room.get(..count).unwrap_or_default()),
                Input::Nothing => break,
                Input::End | Input::Broken => {
                    self.stream = None;
                    break;
                }
            }
        }
        let mut lines = self.said.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        lines.nth(self.lines).map(<[u8]>::to_vec)
    }
}

impl Machine {
    /// The server is to forget its scripts, for this entry.
    pub(super) fn refresh_server(&mut self, index: u64) {
        let login = self
            .password
            .as_ref()
            .map(|password| format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{password}\r\n", password.len()));
        let lines = usize::from(login.is_some());
        let words = format!("{}SCRIPT FLUSH\r\n", login.unwrap_or_default());
        let stream = TcpStream::connect(self.server).and_then(|socket| {
            let mut stream = Stream::new(socket, self.registry(), REFRESHER)?;
            stream.push(words.as_bytes());
            Ok(stream)
        });
        let begun = Instant::now();
        self.refresher = Some(Refresher { stream: stream.ok(), said: Vec::new(), lines, index, begun });
    }

    /// Hears what it says.
    pub(super) fn look_at_refresher(&mut self) {
        let Some(refresher) = &mut self.refresher else { return };
        let (answer, index) = (refresher.answer(&mut self.room), refresher.index);
        match answer {
            Some(answer) => {
                if LATER.iter().any(|later| answer.starts_with(later)) {
                    refresher.stream = None;
                    return;
                }
                self.refresher = None;
                if answer.starts_with(b"+") {
                    let now_ms = self.now_ms();
                    return self.replica.handle_refreshed(index, now_ms);
                }
                // The servers of the others have forgotten them: EVALSHA would do something here alone.
                let answer = String::from_utf8_lossy(&answer).trim().to_owned();
                tracing::error!(
                    answer,
                    server = %self.server,
                    "redis does not forget its scripts, as all servers have to when a node joins: this node leaves (with a password, it needs --server-password-file)"
                );
                self.known.is_server_hanging = true;
            }
            // What was sent on a connection that is there still may be worked off at any time.
            None if refresher.stream.is_none() && refresher.begun.elapsed() > AGAIN => {
                self.refresh_server(index)
            }
            None => {}
        }
    }
}
