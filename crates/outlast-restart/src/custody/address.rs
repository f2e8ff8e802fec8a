//! Where a socket is: to tell which of the listening sockets in custody is the one that a program asks for.

use std::mem::{MaybeUninit, offset_of};
use std::net::IpAddr;
use std::os::fd::RawFd;

/// The address of a socket, without what differs between a listener and its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// IPv4 or IPv6: port, then the address, as it is on the wire, and the interface of one that is not routed.
    Internet {
        /// Of 4 or 16 bytes.
        ip: Vec<u8>,
        /// In the order of the network.
        port: u16,
        /// 0: none.
        scope: u32,
    },
    /// A path, or a name that begins with a zero.
    Unix(Vec<u8>),
}

impl Address {
    /// From the bytes of a `sockaddr`. None for other families, and for sockets without a name.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let at = |begin: usize, length: usize| bytes.get(begin..begin + length);
        match family {
            libc::AF_INET => Some(Self::Internet {
                ip: at(offset_of!(libc::sockaddr_in, sin_addr), 4)?.to_vec(),
                port: u16::from_ne_bytes(at(offset_of!(libc::sockaddr_in, sin_port), 2)?.try_into().ok()?),
                scope: 0,
            }),
            libc::AF_INET6 => Some(Self::Internet {
                ip: at(offset_of!(libc::sockaddr_in6, sin6_addr), 16)?.to_vec(),
                port: u16::from_ne_bytes(at(offset_of!(libc::sockaddr_in6, sin6_port), 2)?.try_into().ok()?),
                scope: at(offset_of!(libc::sockaddr_in6, sin6_scope_id), 4)
                    .and_then(|scope| Some(u32::from_ne_bytes(scope.try_into().ok()?)))
                    .unwrap_or(0),
            }),
            libc::AF_UNIX => {
                let path = bytes.get(2..)?;
                let end = match path.first()? {
                    // Not the path of a file: zeroes count.
                    0 => path.len(),
                    _ => path.iter().position(|&byte| byte == 0).unwrap_or(path.len()),
                };
                let path = path.get(..end)?;
                (path.len() > 1 || path.first() != Some(&0)).then(|| Self::Unix(path.to_vec()))
            }
            _ => None,
        }
    }

    /// Of an open socket.
    #[must_use]
    pub fn of(descriptor: RawFd) -> Option<Self> {
        let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let mut length = libc::socklen_t::try_from(size_of::<libc::sockaddr_storage>()).ok()?;
        // SAFETY: fills at most the length that is told.
        if unsafe { libc::getsockname(descriptor, storage.as_mut_ptr().cast(), &raw mut length) } < 0 {
            return None;
        }
        let length = (length as usize).min(size_of::<libc::sockaddr_storage>());
        // SAFETY: zeroed before, and so long.
        Self::parse(unsafe { std::slice::from_raw_parts(storage.as_ptr().cast::<u8>(), length) })
    }

    /// Whether a connection to this address could have come to a listener at `listener`.
    #[must_use]
    pub fn came_to(&self, listener: &Self) -> bool {
        match (self, listener) {
            (
                Self::Internet { ip, port, .. },
                Self::Internet { ip: listener_ip, port: listener_port, .. },
            ) => {
                let anywhere = listener_ip.iter().all(|&byte| byte == 0);
                let fits = anywhere && (listener_ip.len() == 16 || ip.len() == 4);
                port == listener_port && (fits || ip == listener_ip)
            }
            (Self::Unix(path), Self::Unix(listener_path)) => path == listener_path,
            _ => false,
        }
    }

    /// Its address and port. None for a UNIX socket's. An IPv4 address that is written as an IPv6 one is the former.
    #[must_use]
    pub fn internet(&self) -> Option<(IpAddr, u16)> {
        let Self::Internet { ip, port, .. } = self else { return None };
        let ip = match <[u8; 4]>::try_from(ip.as_slice()) {
            Ok(ip) => IpAddr::from(ip),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(ip.as_slice()).ok()?).to_canonical(),
        };
        Some((ip, *port))
    }

    /// The interface of one that is not routed. 0: none.
    pub(super) fn scope(&self) -> u32 {
        if let Self::Internet { scope, .. } = self { *scope } else { 0 }
    }

    /// Whether it is that of all interfaces (`::`).
    #[must_use]
    pub fn is_any_ipv6(&self) -> bool {
        matches!(self, Self::Internet { ip, .. } if ip.len() == 16 && ip.iter().all(|&byte| byte == 0))
    }

    /// Whether both are one, however they are written: an IPv4 address may be written as an IPv6 one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        fn short(ip: &[u8]) -> &[u8] {
            ip.strip_prefix(&MAPPED).unwrap_or(ip)
        }
        match (self, other) {
            (Self::Internet { ip, port, .. }, Self::Internet { ip: other_ip, port: other_port, .. }) => {
                (short(ip), port) == (short(other_ip), other_port)
            }
            _ => self == other,
        }
    }

    /// Whether the system chooses the port: nobody else can ask for the same one.
    #[must_use]
    pub fn is_chosen_by_system(&self) -> bool {
        matches!(self, Self::Internet { port: 0, .. })
    }

    /// One of `count` places for it, the same in every process.
    #[must_use]
    pub fn place(&self, count: usize) -> usize {
        match self {
            Self::Internet { port, .. } => usize::from(*port) % count,
            Self::Unix(name) => {
                let hash = name
                    .iter()
                    .fold(5381usize, |hash, &byte| hash.wrapping_mul(33).wrapping_add(usize::from(byte)));
                hash % count
            }
        }
    }

    /// The path of its file, if it has one.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        match self {
            Self::Unix(path) if path.first() != Some(&0) => Some(path),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(ip: [u8; 4], port: u16) -> Address {
        let mut bytes = [0u8; 16];
        bytes[..2].copy_from_slice(&2u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[4..8].copy_from_slice(&ip);
        Address::parse(&bytes).unwrap()
    }

    fn inet6(ip: [u8; 16], port: u16) -> Address {
        let mut bytes = [0u8; 28];
        bytes[..2].copy_from_slice(&10u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[8..24].copy_from_slice(&ip);
        Address::parse(&bytes).unwrap()
    }

    #[test]
    fn a_connection_comes_to_its_address_or_to_a_listener_on_all() {
        let connection = inet([127, 0, 0, 1], 80);
        assert!(connection.came_to(&inet([127, 0, 0, 1], 80)));
        assert!(connection.came_to(&inet([0; 4], 80)));
        assert!(!connection.came_to(&inet([0; 4], 81)));
        assert!(!connection.came_to(&inet([127, 0, 0, 2], 80)));
        // One that takes both families tells IPv4 addresses as IPv6 ones, and so would its connection.
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
        assert!(inet6(mapped, 80).came_to(&inet6([0; 16], 80)));
        assert!(!inet6(mapped, 80).came_to(&inet([0; 4], 80)));
    }

    #[test]
    fn one_address_is_the_same_however_it_is_written() {
        let short = inet([10, 0, 0, 1], 80);
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        assert!(
            short.is_same(&inet6(mapped, 80)) && inet6(mapped, 80).is_same(&short) && short.is_same(&short)
        );
        for other in [inet([10, 0, 0, 2], 80), inet([10, 0, 0, 1], 81), inet6([0; 16], 80)] {
            assert!(!short.is_same(&other) && !inet6(mapped, 80).is_same(&other));
        }
        let unix = |path: &[u8]| Address::parse(&[&1u16.to_ne_bytes(), path].concat()).unwrap();
        assert!(unix(b"\0a").is_same(&unix(b"\0a")) && !unix(b"\0a").is_same(&unix(b"\0b")));
        assert!(!unix(b"\0a").is_same(&short));
    }

    #[test]
    fn paths_end_at_a_zero_and_names_do_not() {
        let unix = |path: &[u8]| Address::parse(&[&1u16.to_ne_bytes(), path].concat());
        assert_eq!(unix(b"/a/b\0rubbish").unwrap().path(), Some(&b"/a/b"[..]));
        assert_eq!(unix(b"/a/b"), unix(b"/a/b\0"));
        assert_ne!(unix(b"\0name"), unix(b"\0name\0"));
        assert_eq!(unix(b"\0name").unwrap().path(), None);
        assert_eq!((unix(b""), unix(b"\0")), (None, None));
    }

    #[test]
    fn short_or_strange_addresses_are_none() {
        for length in 0..8 {
            assert_eq!(Address::parse(&[2, 0, 0, 80, 127, 0, 0, 1][..length]), None);
        }
        assert_eq!(Address::parse(&[99, 0, 1, 2, 3, 4, 5, 6]), None);
    }
}
