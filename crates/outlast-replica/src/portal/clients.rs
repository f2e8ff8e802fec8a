//! The sockets of clients, at the primary.

use super::machine::Machine;
use super::repair;
use super::stream::{Input, Stream};
use super::sys;
use super::unqueued::UnqueuedClient;
use crate::connection::Ends;
use crate::entry::{ConnectionId, DATA_BYTES_MAX};
use mio::Token;
use mio::net::TcpStream;
use socket2::{Socket, TcpKeepalive};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// A client that is silent for the first time is asked whether it is there, and then again after the second; after nine times without an answer
/// it is gone (tcp(7)).
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// One.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) stream: Stream,
    token: Token,
    pub(super) ends: Ends,
    pub(super) unqueued: UnqueuedClient,
    /// A restored socket counts from here.
    base: u64,
    /// So much was written to this socket.
    written: u64,
    /// The client has reset the connection, or the kernel has given it up, by an error that a write has met.
    is_broken: bool,
    /// Input that the core had no room for.
    input: Option<Arc<[u8]>>,
    input_ended: bool,
    end_told: bool,
    end_written: bool,
    /// Bytes of a restored socket that the client may not have.
    kicks: bool,
}

impl Client {
    /// Whether it is to be looked at soon, though nothing happens.
    fn wants_look(&self) -> bool {
        self.kicks || self.end_written && self.end_told
    }

    /// Of the answers the client has all before this, as the kernel knows it.
    pub(super) fn acked(&self) -> u64 {
        let waiting = sys::unacked_bytes(self.stream.socket.as_fd()).unwrap_or(0);
        (self.all_written() + u64::from(self.end_written))
            .saturating_sub(waiting as u64)
            .min(self.all_written())
    }

    /// The kernel has got all before this.
    pub(super) fn all_written(&self) -> u64 {
        self.base + self.written
    }

    /// The kernel has sent all before this, an end counting one.
    pub(super) fn sent(&self) -> u64 {
        let unsent = sys::unsent_bytes(self.stream.socket.as_fd()).unwrap_or(0);
        (self.base + self.written + u64::from(self.end_written)).saturating_sub(unsent as u64)
    }

    /// Closes it so that its client hears nothing.
    pub(super) fn close_silently(self) {
        let socket = into_socket(self.stream.socket);
        if let Err(error) = repair::close_silently(socket) {
            tracing::error!(%error, "a client may hear that its connection has ended here");
        }
    }
}

fn into_socket(stream: TcpStream) -> Socket {
    Socket::from(std::os::fd::OwnedFd::from(stream))
}

impl Machine {
    /// The kernel has a whole connection.
    pub(super) fn add_client(&mut self, socket: TcpStream, client: SocketAddr) {
        let Ok(portal) = socket.local_addr() else { return };
        let ends = Ends { portal, client };
        let Some(connection) = self.replica.handle_accepted(&ends) else { return };
        self.add(connection, socket, (ends, 0, 0));
        self.feed_client(connection);
    }

    fn add(&mut self, connection: ConnectionId, socket: TcpStream, (ends, base, written): (Ends, u64, u64)) {
        let token = self.new_token(connection, false);
        // What the server says goes on at once, as it has decided when to say it; also where the client acknowledges late.
        let _ = socket.set_nodelay(true);
        // A client whose machine is gone would be known for ever.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
        let socket_ref = socket2::SockRef::from(&socket);
        let _ = socket_ref.set_tcp_keepalive(&keepalive);
        // Should this process be killed, the kernel would keep the connection for minutes, to send a FIN that never passes the rules: and the next
        // run of this node could not make it again. A reset passes them no more than a FIN.
        let _ = socket_ref.set_linger(Some(Duration::ZERO));
        let Ok(stream) = Stream::new(socket, self.registry(), token) else { return };
        let client = Client {
            stream,
            token,
            ends,
            unqueued: UnqueuedClient::default(),
            base,
            written,
            is_broken: false,
            input: None,
            input_ended: false,
            end_told: false,
            end_written: false,
            kicks: false,
        };
        self.clients.insert(connection, client);
        self.by_ends.insert(ends, connection);
        self.dirty_clients.insert(connection);
    }

    fn remove_client(&mut self, connection: ConnectionId) -> Option<Client> {
        let mut client = self.clients.remove(&connection)?;
        self.unqueued.forget(connection, &mut client.unqueued);
        self.forget_token(client.token);
        if self.by_ends.get(&client.ends) == Some(&connection) {
            self.by_ends.remove(&client.ends);
        }
        self.watched.remove(&connection);
        Some(client)
    }

    /// The kernel has got what has passed.
    pub(super) fn look_at_heard(&mut self) {
        let now_ms = self.now_ms();
        for connection in std::mem::take(&mut self.heard) {
            if let Some(client) = self.clients.get(&connection) {
                self.replica.handle_acked(connection, client.acked(), now_ms);
            }
        }
    }

    /// Makes a client's socket again, in repair mode.
    pub(super) fn restore_client(&mut self, connection: ConnectionId) {
        let Some(restore) = self.restore(connection) else { return };
        if restore.is_aborted {
            return;
        }
        let written = (restore.unacked.0.len() + restore.unacked.1.len()) as u64;
        let (ends, base) = (restore.ends, self.replica.acked(connection));
        match repair::restore(&restore) {
            Ok(socket) => {
                let socket = TcpStream::from_std(socket.into());
                self.add(connection, socket, (ends, base, written));
            }
            Err(error) => tracing::error!(%error, ?ends, "a connection cannot be made again"),
        }
    }

    /// It leaves repair mode.
    pub(super) fn go_on_with(&mut self, connection: ConnectionId) {
        let now_ms = self.now_ms();
        let Some(restore) = self.replica.restore(connection, now_ms) else { return };
        if restore.is_aborted {
            self.send_raw(|machine| {
                machine.restore(connection).map_or(Ok(()), |restore| machine.raw.reset(&restore))
            });
            self.replica.handle_closed(connection, now_ms);
            return;
        }
        let Some(client) = self.clients.get_mut(&connection) else { return };
        if let Err(error) = repair::go_on(&socket2::SockRef::from(&client.stream.socket)) {
            tracing::error!(%error, "a connection cannot go on");
        }
        if restore.answers_ended {
            client.stream.end();
            let _ = client.stream.flush();
            client.end_written = true;
        }
        client.kicks = true;
        self.watched.insert(connection);
        self.send_raw(|machine| {
            let Some(restore) = machine.restore(connection) else { return Ok(()) };
            if restore.client_ended {
                machine.raw.end_input(&restore)?;
            }
            if restore.syn_ack.is_some() {
                machine.raw.answer_syn(&restore)?;
            }
            Ok(())
        });
        self.kick(connection);
    }

    /// Gets a restored socket going.
    fn kick(&mut self, connection: ConnectionId) {
        let mut left_bytes = 0;
        self.send_raw(|machine| {
            let client = machine.clients.get(&connection);
            if let Some((client, restore)) = client.zip(machine.restore(connection)) {
                let socket = socket2::SockRef::from(&client.stream.socket);
                left_bytes = machine.raw.kick(&restore, &socket)?;
            }
            Ok(())
        });
        if let Some(client) = self.clients.get_mut(&connection) {
            client.kicks = left_bytes > 0;
        }
    }

    /// The same for one alone: its client has more than this node knew.
    pub(super) fn restore_again(&mut self, connection: ConnectionId) {
        if let Some(client) = self.remove_client(connection) {
            self.handing_over.note_closed(&client.ends);
            client.close_silently();
        }
        self.restore_client(connection);
        self.go_on_with(connection);
    }

    /// There is something for this client.
    pub(super) fn feed_client(&mut self, connection: ConnectionId) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        let Some((front, back, ends)) = self.replica.client_bytes(connection) else { return };
        let count = client.stream.write((front, back)).unwrap_or_else(|_| {
            // The next read sees an end, as the kernel reports an error once: this was it.
            client.is_broken = true;
            client.stream.note_ready(true, false);
            self.dirty_clients.insert(connection);
            0
        });
        let all = count == front.len() + back.len();
        client.written += count as u64;
        let written = client.all_written();
        let looks = count > 0 && self.unqueued.note_written(connection, &mut client.unqueued, written);
        let end_written = ends && all;
        if end_written {
            client.stream.end();
            let _ = client.stream.flush();
            client.end_written = true;
        }
        self.replica.handle_client_took(connection, count, end_written);
        if looks && let Some(client) = self.clients.get(&connection) {
            self.replica.handle_acked(connection, client.acked(), self.now_ms());
        }
    }

    /// The server has reset the connection.
    pub(super) fn reset_client(&mut self, connection: ConnectionId) {
        if let Some(client) = self.remove_client(connection) {
            let socket = into_socket(client.stream.socket);
            let _ = socket.set_linger(Some(std::time::Duration::ZERO));
        }
        self.replica.handle_closed(connection, self.now_ms());
    }

    /// Reads what clients have sent, gives them what there is, and finds out what they have.
    pub(super) fn look_at_clients(&mut self) {
        if !self.replica.is_serving() {
            return;
        }
        for connection in std::mem::take(&mut self.dirty_clients) {
            self.look_at_client(connection);
        }
    }

    /// Reads what all of them have sent, whether the kernel has said so or not.
    pub(super) fn read_all_clients(&mut self) {
        for (connection, client) in &mut self.clients {
            client.stream.note_ready(true, true);
            self.dirty_clients.insert(*connection);
        }
        self.look_at_clients();
    }

    /// Some of what a client has sent has no place in the order.
    pub(super) fn has_unread_clients(&self) -> bool {
        let is_unread =
            |client: &Client| client.input.is_some() || !client.input_ended && client.stream.is_readable();
        self.clients.values().any(is_unread)
    }

    fn look_at_client(&mut self, connection: ConnectionId) {
        let now_ms = self.now_ms();
        if self.clients.get(&connection).is_some_and(|client| client.input.is_some())
            && self.replica.waits_for_transaction(connection, now_ms)
        {
            self.dirty_clients.insert(connection);
            return;
        }
        loop {
            let Some(client) = self.clients.get_mut(&connection) else { return };
            let input = match client.input.take() {
                Some(input) => Some(input),
                None if client.input_ended => None,
                None => match client.stream.read(&mut self.room) {
                    Input::Bytes(count) => self.room.get(..count).map(Arc::from),
                    Input::Nothing => None,
                    Input::End if !client.is_broken => {
                        client.input_ended = true;
                        None
                    }
                    Input::End | Input::Broken => {
                        self.remove_client(connection);
                        self.replica.handle_reset(connection, now_ms);
                        return;
                    }
                },
            };
            let Some(input) = input else { break };
            let more = input.get(DATA_BYTES_MAX..).map(Arc::from);
            let now =
                if more.is_some() { Arc::from(input.get(..DATA_BYTES_MAX).unwrap_or(&input)) } else { input };
            match self.replica.handle_input(connection, now, now_ms) {
                Ok(()) => {
                    if let Some(client) = self.clients.get_mut(&connection) {
                        client.input = more;
                    }
                }
                Err(not_taken) => {
                    let bytes = not_taken.into_inner();
                    let whole = more.map_or_else(
                        || bytes.clone(),
                        |more: Arc<[u8]>| Arc::from([&bytes[..], &more[..]].concat()),
                    );
                    if let Some(client) = self.clients.get_mut(&connection) {
                        client.input = Some(whole);
                        // There is room when others have acknowledged something, which is an event.
                        self.dirty_clients.insert(connection);
                    }
                    break;
                }
            }
        }
        self.feed_client(connection);
        let Some(client) = self.clients.get_mut(&connection) else { return };
        if client.input_ended && client.input.is_none() && !client.end_told {
            client.end_told = self.replica.handle_input_end(connection, now_ms);
            if !client.end_told {
                self.dirty_clients.insert(connection);
            }
        }
        let acked = client.acked();
        self.replica.handle_acked(connection, acked, now_ms);
        let Some(client) = self.clients.get_mut(&connection) else { return };
        if client.kicks {
            self.kick(connection);
        }
        let Some(client) = self.clients.get_mut(&connection) else { return };
        if client.end_written && client.end_told && sys::is_closed(client.stream.socket.as_fd()) {
            self.remove_client(connection);
            self.replica.handle_closed(connection, now_ms);
        } else if client.wants_look() {
            self.watched.insert(connection);
        } else {
            self.watched.remove(&connection);
        }
    }
}
