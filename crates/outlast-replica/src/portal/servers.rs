//! Connections to the server of this node: one for each client.

use super::machine::Machine;
use super::server_process::{Ask, ServerProcess};
use super::stream::{Input, Stream};
use crate::entry::ConnectionId;
use crate::protocol::{Resume, Resumes};
use crate::replica::OWN_REPLY_BYTES_MAX;
use mio::Token;
use mio::net::TcpStream;
use std::io;
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// A server that has got the end of a stream has so long to end its own.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// One.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) stream: Stream,
    pub(super) token: Token,
    has_said_all: bool,
    is_broken: bool,
    /// What it says is for nobody.
    discards: bool,
    /// Nobody is at its other end any more.
    is_closing: bool,
    /// It is being brought into the state that another server had.
    pub(super) resumes: Option<Resumes>,
}

impl Machine {
    /// A client has come.
    pub(super) fn connect_server(&mut self, connection: ConnectionId) {
        let stream = TcpStream::connect(self.server).and_then(|socket| {
            let _ = socket.set_nodelay(true);
            let token = self.new_token(connection, true);
            Ok((Stream::new(socket, self.registry(), token)?, token))
        });
        match stream {
            Ok((stream, token)) => {
                let server = Server {
                    stream,
                    token,
                    has_said_all: false,
                    is_broken: false,
                    discards: false,
                    is_closing: false,
                    resumes: None,
                };
                self.servers.insert(connection, server);
            }
            Err(_) if self.is_server_lost(Ask::Now) => {}
            Err(error) => {
                tracing::warn!(%error, server = %self.server, "the server cannot be reached");
                self.replica.handle_server_reset(connection, self.now_ms());
            }
        }
    }

    /// This node has a copy of another one's data, and its server gets the connection of a client that was there before.
    pub(super) fn reconnect_server(&mut self, connection: ConnectionId, resume: &Resume) {
        self.connect_server(connection);
        let Some(server) = self.servers.get_mut(&connection) else {
            return self.join_fails("the server cannot be reached");
        };
        for part in [&resume.setup, &resume.queued, &resume.partial] {
            server.stream.push(part);
        }
        let resumes = Resumes::new(self.settings.protocol, resume);
        server.resumes = (!resumes.are_over()).then_some(resumes);
        self.flush_server(connection);
    }

    /// The client has sent this.
    pub(super) fn give_server(&mut self, connection: ConnectionId, bytes: &[u8]) {
        match self.servers.get_mut(&connection).filter(|server| !server.is_broken) {
            Some(server) => {
                server.stream.push(bytes);
                self.flush_server(connection);
            }
            // It takes nothing any more.
            None => self.replica.handle_server_took(connection, bytes.len()),
        }
    }

    /// The client has ended its stream.
    pub(super) fn end_to_server(&mut self, connection: ConnectionId) {
        if let Some(server) = self.servers.get_mut(&connection) {
            server.stream.end();
        }
        self.flush_server(connection);
    }

    /// No client is there any more. The server gets what it has not taken, and an end.
    pub(super) fn close_server(&mut self, connection: ConnectionId) {
        let now = Instant::now();
        match self.servers.get_mut(&connection).filter(|server| !server.has_said_all) {
            Some(server) => {
                server.is_closing = true;
                server.stream.end();
                self.closing_servers.push_back((now + CLOSE_WITHIN, connection));
                self.dirty_servers.insert(connection);
                self.flush_server(connection);
            }
            None => self.remove_server(connection),
        }
    }

    /// When it is looked next whether servers have ended what is being closed.
    pub(super) fn closes_at(&self) -> Option<Instant> {
        self.closing_servers.front().map(|(at, _)| *at)
    }

    /// Some never end a stream that their client has ended.
    pub(super) fn close_late_servers(&mut self) {
        let now = Instant::now();
        while let Some((at, connection)) = self.closing_servers.front().copied()
            && at <= now
        {
            self.closing_servers.pop_front();
            if self.servers.get(&connection).is_none_or(|server| !server.is_closing) {
                continue;
            }
            if self.replica.awaits_end(connection) || self.settings.protocol.works_on_several() {
                // It may work still on what it has got.
                self.closing_servers.push_back((now + CLOSE_WITHIN, connection));
            } else {
                self.remove_server(connection);
            }
        }
    }

    fn remove_server(&mut self, connection: ConnectionId) {
        if let Some(server) = self.servers.remove(&connection) {
            self.forget_token(server.token);
        }
        self.replica.handle_server_closed(connection, self.now_ms());
    }

    fn flush_server(&mut self, connection: ConnectionId) {
        let Some(server) = self.servers.get_mut(&connection).filter(|server| !server.is_broken) else {
            return;
        };
        let had = server.stream.waiting_bytes();
        if server.stream.flush().is_err() {
            // What it has said before is read first.
            server.is_broken = true;
            server.stream.note_ready(true, false);
            self.dirty_servers.insert(connection);
        }
        if server.is_broken && server.resumes.is_some() {
            return self.join_fails("the server has ended a connection that others have");
        }
        let took = if server.is_broken { had } else { had - server.stream.waiting_bytes() };
        if took > 0 {
            self.replica.handle_server_took(connection, took);
        }
    }

    /// Reads all that the server has said, whether the kernel has told of it or not.
    pub(super) fn read_servers(&mut self) {
        for server in self.servers.values_mut() {
            server.stream.note_ready(true, false);
        }
        self.dirty_servers.extend(self.servers.keys().copied());
        self.look_at_servers();
    }

    /// Reads what the server has said, and gives it what waits.
    pub(super) fn look_at_servers(&mut self) {
        for connection in std::mem::take(&mut self.dirty_servers) {
            self.flush_server(connection);
            self.read_server(connection);
        }
    }

    /// The server may be another one than before: it was given other data.
    pub(super) fn begin_with_server(&mut self) -> io::Result<()> {
        self.server_process = ServerProcess::new(self.server)?;
        self.server_process.lives(Ask::Now);
        Ok(())
    }

    /// A server that dies ends all its connections, and means none of it: nobody is told of that, and the others go on with their servers.
    pub(super) fn is_server_lost(&mut self, asks: Ask) -> bool {
        // What becomes of one that is out is nobody's business, and it keeps its vote.
        let matters = !self.known.is_server_lost && !self.known.is_excluded;
        if matters && !self.server_process.lives(asks) {
            tracing::error!(server = %self.server, "the server takes no connections any more: the others go on without this node");
            self.known.is_server_lost = true;
        }
        self.known.is_server_lost
    }

    /// The client's connection is reset, at all nodes, before backups have more to keep than they can.
    fn give_up_reply(&mut self, connection: ConnectionId) {
        let client = self.client_of(connection);
        tracing::warn!(
            client,
            "a reply of more than {OWN_REPLY_BYTES_MAX} bytes cannot be kept by all nodes: the connection of its client is reset"
        );
        let now_ms = self.now_ms();
        // It may do more than that, as those of others do.
        self.replica.give_up_reply(connection, now_ms);
        self.dirty_servers.insert(connection);
    }

    /// The connection is broken off here, and is lost by that: what the server says there is for nobody from now on.
    pub(super) fn break_off(&mut self, connection: ConnectionId) {
        if let Some(server) = self.servers.get_mut(&connection) {
            server.discards = true;
            let _ = server.stream.socket.shutdown(Shutdown::Both);
            server.stream.note_ready(true, true);
            self.dirty_servers.insert(connection);
        }
    }

    /// Whether the server takes more there.
    pub(super) fn takes(&self, connection: ConnectionId) -> bool {
        self.servers.get(&connection).is_some_and(|server| !server.is_closing && !server.is_broken)
    }

    fn read_server(&mut self, connection: ConnectionId) {
        let now_ms = self.now_ms();
        while let Some(server) = self.servers.get_mut(&connection).filter(|server| !server.has_said_all) {
            let is_closing = server.is_closing;
            match server.stream.read(&mut self.room) {
                Input::Bytes(count) => {
                    let mut bytes = self.room.get(..count).unwrap_or_default();
                    if let Some(resumes) = &mut server.resumes {
                        let taken = resumes.take(bytes);
                        bytes = bytes.get(taken..).unwrap_or_default();
                        if resumes.are_over() {
                            server.resumes = None;
                        }
                    }
                    if bytes.is_empty() || server.discards {
                        continue;
                    }
                    self.replica.handle_answer(connection, bytes, now_ms);
                    if self.replica.is_reply_long(connection) {
                        return self.give_up_reply(connection);
                    }
                }
                Input::Nothing if !server.is_broken => return,
                Input::End | Input::Broken | Input::Nothing if server.resumes.is_some() => {
                    return self.join_fails("the server has ended a connection that others have");
                }
                Input::End | Input::Broken | Input::Nothing if is_closing => {
                    return self.remove_server(connection);
                }
                Input::End => {
                    server.has_said_all = true;
                    let is_given_up = server.discards;
                    if self.is_server_lost(Ask::Now) {
                    } else if is_given_up {
                        self.replica.handle_server_reset(connection, now_ms);
                    } else {
                        self.replica.handle_answer_end(connection, now_ms);
                    }
                }
                Input::Broken | Input::Nothing => {
                    (server.has_said_all, server.is_broken) = (true, true);
                    let waiting = server.stream.waiting_bytes();
                    if !self.is_server_lost(Ask::Now) {
                        self.replica.handle_server_took(connection, waiting);
                        self.replica.handle_server_reset(connection, now_ms);
                    }
                }
            }
        }
    }
}
