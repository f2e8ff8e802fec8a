//! Connections to the server of this node: one for each client.

use super::machine::Machine;
use super::stream::{Input, Stream};
use crate::entry::ConnectionId;
use mio::Token;
use mio::net::TcpStream;

/// One.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) stream: Stream,
    token: Token,
    has_said_all: bool,
    is_broken: bool,
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
                self.servers
                    .insert(connection, Server { stream, token, has_said_all: false, is_broken: false });
            }
            Err(error) => {
                tracing::warn!(%error, server = %self.server, "the server cannot be reached");
                self.replica.handle_server_reset(connection, self.now_ms());
            }
        }
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

    /// Nobody needs it any more.
    pub(super) fn close_server(&mut self, connection: ConnectionId) {
        if let Some(server) = self.servers.remove(&connection) {
            self.forget_token(server.token);
            let _ = socket2::SockRef::from(&server.stream.socket).set_linger(Some(std::time::Duration::ZERO));
        }
    }

    fn flush_server(&mut self, connection: ConnectionId) {
        let Some(server) = self.servers.get_mut(&connection).filter(|server| !server.is_broken) else {
            return;
        };
        let had = server.stream.waiting_bytes();
        if server.stream.flush().is_err() {
            // What it has said before is read first.
            server.is_broken = true;
            self.dirty_servers.insert(connection);
        }
        let took = if server.is_broken { had } else { had - server.stream.waiting_bytes() };
        if took > 0 {
            self.replica.handle_server_took(connection, took);
        }
    }

    /// Reads what the server has said, and gives it what waits.
    pub(super) fn look_at_servers(&mut self) {
        for connection in std::mem::take(&mut self.dirty_servers) {
            self.flush_server(connection);
            self.read_server(connection);
        }
    }

    fn read_server(&mut self, connection: ConnectionId) {
        let now_ms = self.now_ms();
        while let Some(server) = self.servers.get_mut(&connection).filter(|server| !server.has_said_all) {
            match server.stream.read(&mut self.room) {
                Input::Bytes(count) => {
                    self.replica.handle_answer(connection, self.room.get(..count).unwrap_or_default());
                }
                Input::Nothing => {
                    if server.is_broken {
                        server.has_said_all = true;
                        self.replica.handle_server_reset(connection, now_ms);
                    }
                    return;
                }
                Input::End => {
                    server.has_said_all = true;
                    self.replica.handle_answer_end(connection, now_ms);
                }
                Input::Broken => {
                    (server.has_said_all, server.is_broken) = (true, true);
                    let waiting = server.stream.waiting_bytes();
                    self.replica.handle_server_took(connection, waiting);
                    self.replica.handle_server_reset(connection, now_ms);
                }
            }
        }
    }
}
