//! Connections to the server of this node: one for each client.

use super::machine::Machine;
use super::stream::{Input, Stream};
use crate::entry::ConnectionId;
use mio::Token;
use mio::net::TcpStream;
use outlast_netlink::{Protocol, Socket, tcp};
use std::net::SocketAddr;
use std::time::Duration;

/// A server that is not on this machine has so long to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

/// One.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) stream: Stream,
    token: Token,
    has_said_all: bool,
    is_broken: bool,
}

/// Whether a server of this machine takes connections at this address, or one elsewhere does.
fn is_listening(sockets: &mut Socket, server: SocketAddr) -> bool {
    let is_it = |at: &SocketAddr| {
        at.port() == server.port()
            && (at.ip().is_unspecified() || at.ip().to_canonical() == server.ip().to_canonical())
    };
    // What cannot be listed is taken for healthy.
    let is_here = tcp::listeners(sockets).map_or(true, |all| all.iter().any(is_it));
    // In another network namespace, such as a container's, or on another machine.
    is_here
        || !server.ip().is_loopback()
            && std::net::TcpStream::connect_timeout(&server, CONNECT_TIMEOUT).is_ok()
}

/// Whether a server takes connections at this address, here or elsewhere.
#[must_use]
pub fn is_up(server: SocketAddr) -> bool {
    Socket::open(Protocol::SocketDiag).is_ok_and(|mut sockets| is_listening(&mut sockets, server))
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
            Err(_) if self.is_server_lost() => {}
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

    /// A server that dies ends all its connections, and means none of it: nobody is told of that, and the others go on with their servers.
    fn is_server_lost(&mut self) -> bool {
        if !self.known.is_server_lost && !is_listening(&mut self.sockets, self.server) {
            tracing::error!(server = %self.server, "the server takes no connections any more: the others go on without this node");
            self.known.is_server_lost = true;
        }
        self.known.is_server_lost
    }

    fn read_server(&mut self, connection: ConnectionId) {
        let now_ms = self.now_ms();
        while let Some(server) = self.servers.get_mut(&connection).filter(|server| !server.has_said_all) {
            match server.stream.read(&mut self.room) {
                Input::Bytes(count) => {
                    self.replica.handle_answer(connection, self.room.get(..count).unwrap_or_default());
                }
                Input::Nothing => {
                    if server.is_broken && !self.is_server_lost() {
                        self.note_said_all(connection);
                        self.replica.handle_server_reset(connection, now_ms);
                    }
                    return;
                }
                Input::End => {
                    self.note_said_all(connection);
                    if self.is_server_lost() {
                        return;
                    }
                    self.replica.handle_answer_end(connection, now_ms);
                }
                Input::Broken => {
                    (server.has_said_all, server.is_broken) = (true, true);
                    if self.is_server_lost() {
                        return;
                    }
                    let Some(server) = self.servers.get(&connection) else { return };
                    let waiting = server.stream.waiting_bytes();
                    self.replica.handle_server_took(connection, waiting);
                    self.replica.handle_server_reset(connection, now_ms);
                }
            }
        }
    }

    fn note_said_all(&mut self, connection: ConnectionId) {
        if let Some(server) = self.servers.get_mut(&connection) {
            server.has_said_all = true;
        }
    }
}
