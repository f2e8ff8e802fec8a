//! TCP sockets of a network namespace, as the kernel lists them (sock_diag(7)): microseconds, and no program is started.

use crate::message::{Message, Reply, u32_at};
use crate::socket::Socket;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const ID_LEN: usize = 48;
const MESSAGE_LEN: usize = 72;
const INODE_AT: usize = 68;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const LISTENING: u32 = 1 << 10;
/// A bit for every TCP state but listening (10), time-wait (6) and closed (7).
const CONNECTION_STATES: u32 = 0xfff & !(1 << 10 | 1 << 6 | 1 << 7 | 1);

/// One TCP connection that the kernel of a host holds (not a listener).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    family: u8,
    id: [u8; ID_LEN],
    inode: u32,
}

/// All connections, of both families of addresses.
///
/// # Errors
/// The kernel refuses.
pub fn connections(socket: &mut Socket) -> io::Result<Vec<Connection>> {
    let mut found = in_states(socket, AF_INET, CONNECTION_STATES)?;
    found.extend(in_states(socket, AF_INET6, CONNECTION_STATES)?);
    Ok(found)
}

/// A socket at which connections are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listening {
    /// Where.
    pub address: SocketAddr,
    /// Its number, as `/proc/PID/fd` shows it.
    pub inode: u32,
}

/// All of them.
///
/// # Errors
/// The kernel refuses.
pub fn listening(socket: &mut Socket) -> io::Result<Vec<Listening>> {
    let mut found = in_states(socket, AF_INET, LISTENING)?;
    found.extend(in_states(socket, AF_INET6, LISTENING)?);
    Ok(found.into_iter().map(|one| Listening { address: one.local, inode: one.inode }).collect())
}

/// The addresses at which connections are accepted.
///
/// # Errors
/// The kernel refuses.
pub fn listeners(socket: &mut Socket) -> io::Result<Vec<SocketAddr>> {
    Ok(listening(socket)?.into_iter().map(|one| one.address).collect())
}

/// Ends a connection: the program that has it gets an error, and the peer a reset.
///
/// # Errors
/// This process may not (`CAP_NET_ADMIN`), or it has ended meanwhile (`ENOENT`).
pub fn destroy(socket: &mut Socket, connection: &Connection) -> io::Result<()> {
    let fixed = request(connection.family, CONNECTION_STATES, &connection.id);
    socket.request(Message::new(SOCK_DESTROY, 0, &fixed))
}

fn in_states(socket: &mut Socket, family: u8, states: u32) -> io::Result<Vec<Connection>> {
    let fixed = request(family, states, &[0; ID_LEN]);
    let replies = socket.dump(Message::new(SOCK_DIAG_BY_FAMILY, 0, &fixed))?;
    Ok(replies.iter().filter_map(connection).collect())
}

fn request(family: u8, states: u32, id: &[u8; ID_LEN]) -> Vec<u8> {
    let mut fixed = vec![family, IPPROTO_TCP, 0, 0];
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
        inode: u32_at(body, INODE_AT),
    })
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    if family == AF_INET {
        return Some(Ipv4Addr::from(u32_at(bytes, 0).to_ne_bytes()).into());
    }
    let bytes: [u8; 16] = bytes.try_into().ok()?;
    Some(Ipv6Addr::from(bytes).into())
}
