//! Ports for servers that are told on which one to listen.

use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port that is given. Many well-known services are below.
const FIRST: u32 = 10_000;
/// Where clients' ports begin unless the kernel says otherwise.
const FIRST_OF_CLIENTS: u32 = 32_768;

/// Fewer ports than these are too few.
const COUNT_LEAST: u32 = 1000;

/// What keeps others from a port as long as this process lives.
static TAKEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A port on which nobody listens on any address, for a server of this process's network namespace, also for one that does not
/// set SO_REUSEADDR: no connection of an earlier server there waits for its end (TIME_WAIT). No process that asks
/// this function gets it as long as this one lives, whether or not a server listens there at the moment.
///
/// # Errors
/// All ports are in use, or no socket can be made.
pub fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that begin one after the other begin to look in different places.
    let begin = std::process::id().wrapping_mul(101);
    let below = first_of_clients().saturating_sub(FIRST);
    // Where clients have nearly all ports, none can be kept from them.
    let count = if below < COUNT_LEAST { FIRST_OF_CLIENTS - FIRST } else { below };
    for _ in 0..count {
        let number = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + number % count).map_err(io::Error::other)?;
        // The name of a socket in the abstract namespace (unix(7)) is free again when its process has ended.
        let name = SocketAddr::from_abstract_name(format!("outlast-lab port {port}"))?;
        let taken = match UnixListener::bind_addr(&name) {
            Ok(taken) => taken,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
            Err(error) => return Err(error),
        };
        if bind_as_if_alone(port).is_ok() {
            TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(taken);
            return Ok(port);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Binds without SO_REUSEADDR, which the standard library sets, and lets go again.
fn bind_as_if_alone(port: u16) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into())
}

/// The kernel gives ports from here on to clients: one could have a port before the server does.
fn first_of_clients() -> u32 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(FIRST_OF_CLIENTS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_port_where_a_connection_waits_for_its_end_is_not_given() {
        let port = free_port().unwrap();
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let listener = TcpListener::bind(address).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        // The server ends first: what is left of the connection is at its port.
        drop(listener.accept().unwrap());
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop((client, listener));
        let error = bind_as_if_alone(port).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(TcpListener::bind(address).is_ok(), "a server with SO_REUSEADDR would not mind");
    }
}
