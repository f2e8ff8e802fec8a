//! Where the kernel looks for a free port when a socket connects.
//!
//! It tries the even ports of its range one by one, from a random one on, and then the odd ones. With as many connections to
//! one address as there are even ports (14,116 with the kernel's defaults) each further connect tries all of those first,
//! which takes milliseconds. In a small part of the range at a random place it finds one within a few attempts.

use super::tcp::set_option;
use rand::RngExt;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;

/// ip(7), since Linux 6.3; older kernels refuse it.
const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
/// A process with fewer descriptors is left to the kernel's ways.
const DESCRIPTORS_MANY: RawFd = 2_048;
/// Ports that are tried at most, before the kernel looks through all.
const PART_PORTS: u16 = 256;

/// A socket of a process that has many connections looks for its port in a part of the range only. False if it does not:
/// there are few, or the kernel is too old.
pub(super) fn narrow(socket: &socket2::Socket) -> bool {
    static RANGE: OnceLock<(u16, u16)> = OnceLock::new();
    // The kernel gives the lowest number that is free: at least so many are open.
    if socket.as_raw_fd() < DESCRIPTORS_MANY {
        return false;
    }
    // What cannot be read now, for want of a descriptor say, is read the next time.
    let Some((first, last)) = RANGE.get().copied().or_else(read_range) else { return false };
    let (first, last) = *RANGE.get_or_init(|| (first, last));
    let (first, last) = part(first, last, rand::rng().random());
    set_option(socket.as_raw_fd(), libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, both(first, last)).is_ok()
}

/// From now on the socket looks everywhere.
pub(super) fn widen(socket: &socket2::Socket) -> std::io::Result<()> {
    set_option(socket.as_raw_fd(), libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, both(0, 0))
}

fn both(first: u16, last: u16) -> u32 {
    u32::from(first) | u32::from(last) << 16
}

/// The administrator's range.
fn read_range() -> Option<(u16, u16)> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ports = text.split_whitespace().map(str::parse);
    let (first, last) = (ports.next()?.ok()?, ports.next()?.ok()?);
    (first <= last).then_some((first, last))
}

/// A part of the range, all of which are equally likely.
fn part(first: u16, last: u16, random: u16) -> (u16, u16) {
    let places = (last - first).saturating_sub(PART_PORTS - 1);
    let begin = first + if places == 0 { 0 } else { random % places };
    (begin, begin.saturating_add(PART_PORTS - 1).min(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::begin_connect;
    use std::net::{SocketAddr, TcpListener};
    use std::os::fd::{FromRawFd, OwnedFd};

    #[test]
    fn a_part_is_within_the_range() {
        for random in [0, 1, 27_975, 27_976, u16::MAX] {
            let (first, last) = part(32_768, 60_999, random);
            assert!(32_768 <= first && last <= 60_999 && last - first == PART_PORTS - 1, "{first} {last}");
            assert_eq!(part(5_000, 5_000, random), (5_000, 5_000));
            assert_eq!(part(5_000, 5_255, random), (5_000, 5_255));
        }
        assert_eq!(part(65_000, u16::MAX, 500), (65_220, 65_475));
    }

    /// A socket with such a number as those of a process have that has many.
    fn socket_of_many(domain: socket2::Domain) -> socket2::Socket {
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM.nonblocking(), None).unwrap();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is one rlimit, which outlives both calls.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        // SAFETY: the duplicate is new, and owned by nobody else.
        let high = unsafe {
            let high = libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTORS_MANY);
            assert!(high >= DESCRIPTORS_MANY, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(high)
        };
        high.into()
    }

    fn port_of(socket: &socket2::Socket) -> u16 {
        socket.local_addr().unwrap().as_socket().unwrap().port()
    }

    #[test]
    fn a_process_with_many_connections_gets_odd_ports_as_well_as_even_ones() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let address: SocketAddr = listener.local_addr().unwrap();
            let sockets: Vec<_> = (0..60)
                .map(|_| {
                    let socket = socket_of_many(socket2::Domain::for_address(address));
                    begin_connect(&socket, address).unwrap();
                    socket
                })
                .collect();
            let odd = sockets.iter().filter(|socket| port_of(socket) % 2 == 1).count();
            let is_old = set_option(sockets[0].as_raw_fd(), 0, IP_LOCAL_PORT_RANGE, 0_u32).is_err();
            assert!(is_old || (5..=55).contains(&odd), "{odd} of 60 at {at}");
        }
    }

    #[test]
    fn where_a_part_is_in_use_the_others_are_looked_at() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let first = socket_of_many(socket2::Domain::IPV4);
        begin_connect(&first, address).unwrap();
        let used = port_of(&first);
        let second = socket_of_many(socket2::Domain::IPV4);
        let narrowed =
            set_option(second.as_raw_fd(), libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, both(used, used)).is_ok();
        let begun = super::super::tcp::connect_anywhere(&second, &address.into(), narrowed);
        assert!(begun.err().is_none_or(|error| error.raw_os_error() == Some(libc::EINPROGRESS)));
        assert_ne!(port_of(&second), used);
    }
}
