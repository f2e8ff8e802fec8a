//! Listing and destroying TCP connections of a host through sock_diag: microseconds, no program started.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use outlast_netlink::{Message, Reply, Socket, u32_at};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const ID_LEN: usize = 48;
const MESSAGE_LEN: usize = 72;

/// Which connections of a host are meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    /// Only connections with this port at either end; `None`: every TCP connection of the host.
    pub port: Option<u16>,
    /// Also those that stay on the host: no fault of a link touches them.
    pub local: bool,
}

impl Connections {
    /// Every TCP connection.
    #[must_use]
    pub fn all() -> Self {
        Self { port: None, local: true }
    }

    /// Every TCP connection with another host.
    #[must_use]
    pub fn outward() -> Self {
        Self::default()
    }

    /// Connections with `port` at either end.
    #[must_use]
    pub fn on_port(port: u16) -> Self {
        Self { port: Some(port), local: true }
    }

    fn includes(self, connection: &Connection) -> bool {
        let stays = connection.peer.ip().to_canonical() == connection.local.ip().to_canonical()
            || connection.peer.ip().to_canonical().is_loopback();
        (self.local || !stays)
            && self.port.is_none_or(|port| connection.local.port() == port || connection.peer.port() == port)
    }
}

/// One TCP connection that the kernel of a host holds (not a listener).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    family: u8,
    id: [u8; ID_LEN],
}

/// The connections among `which`, both address families.
pub(crate) fn list(socket: &mut Socket, which: Connections) -> io::Result<Vec<Connection>> {
    let mut found = in_states(socket, CONNECTION_STATES)?;
    found.retain(|connection| which.includes(connection));
    Ok(found)
}

/// The addresses on which the host accepts connections.
pub(crate) fn listeners(socket: &mut Socket) -> io::Result<Vec<SocketAddr>> {
    const LISTENING: u32 = 1 << 10;
    Ok(in_states(socket, LISTENING)?.into_iter().map(|listener| listener.local).collect())
}

fn in_states(socket: &mut Socket, states: u32) -> io::Result<Vec<Connection>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let fixed = request(u8::try_from(family).unwrap_or_default(), states, &[0; ID_LEN]);
        let replies = socket.dump(Message::new(SOCK_DIAG_BY_FAMILY, 0, &fixed))?;
        found.extend(replies.iter().filter_map(connection));
    }
    Ok(found)
}

/// Aborts the connections among `which` and says how many there were: the host's programs get an error, and the
/// peer is sent a reset.
pub(crate) fn destroy(socket: &mut Socket, which: Connections) -> io::Result<usize> {
    let mut destroyed = 0;
    for connection in list(socket, which)? {
        let fixed = request(connection.family, CONNECTION_STATES, &connection.id);
        match socket.request(Message::new(SOCK_DESTROY, 0, &fixed)) {
            Ok(()) => destroyed += 1,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {} // ended by itself in between
            Err(e) => return Err(e),
        }
    }
    Ok(destroyed)
}

/// A bit for every TCP state but listening (10), time-wait (6) and closed (7).
const CONNECTION_STATES: u32 = 0xfff & !(1 << 10 | 1 << 6 | 1 << 7 | 1);

fn request(family: u8, states: u32, id: &[u8; ID_LEN]) -> Vec<u8> {
    let protocol = u8::try_from(libc::IPPROTO_TCP).unwrap_or_default();
    let mut fixed = vec![family, protocol, 0, 0];
    fixed.extend_from_slice(&states.to_ne_bytes());
    fixed.extend_from_slice(id);
    fixed
}

fn connection(reply: &Reply) -> Option<Connection> {
    let body = reply.body.get(..MESSAGE_LEN).filter(|_| reply.kind == SOCK_DIAG_BY_FAMILY)?;
    let id: [u8; ID_LEN] = body.get(4..4 + ID_LEN)?.try_into().ok()?;
    let port = |at: usize| u16::from_be_bytes([id[at], id[at + 1]]);
    let family = body[0];
    Some(Connection {
        local: SocketAddr::new(address(family, &id[4..20])?, port(0)),
        peer: SocketAddr::new(address(family, &id[20..36])?, port(2)),
        family,
        id,
    })
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    if i32::from(family) == libc::AF_INET {
        return Some(Ipv4Addr::from(u32_at(bytes, 0).to_ne_bytes()).into());
    }
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    Some(Ipv6Addr::from(bytes).into())
}
