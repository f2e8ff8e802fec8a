//! Ports for servers that are told on which one to listen.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
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

/// A port on which nobody listens on any address, for a server of this process's network namespace. No process that asks
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
        if TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(taken);
            return Ok(port);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// The kernel gives ports from here on to clients: one could have a port before the server does.
fn first_of_clients() -> u32 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(FIRST_OF_CLIENTS)
}
