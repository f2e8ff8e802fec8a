//! Where a keeper is found, or a listener that is about to stop: its socket is named after the address that sessions are
//! served at, and the network namespace, as addresses mean something only there.

use crate::admin_folder;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Whose socket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A process that keeps the sessions of a listener that has stopped.
    Keeper,
    /// A listener that is stopping, and is still there.
    Stopping,
}

impl Kind {
    fn extension(self) -> &'static str {
        match self {
            Self::Keeper => "kept",
            Self::Stopping => "stopping",
        }
    }
}

/// The name of the socket for what is, or was, served at `address`.
pub fn socket_name(kind: Kind, address: SocketAddr) -> String {
    format!("{address}-{}.{}", namespace(), kind.extension())
}

/// The address in the name of a socket of this network namespace.
fn address_in(kind: Kind, name: &str, namespace: &str) -> Option<SocketAddr> {
    let stem = name.strip_suffix(kind.extension())?.strip_suffix('.')?;
    stem.strip_suffix(namespace)?.strip_suffix('-')?.parse().ok()
}

fn namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    link.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

/// The addresses in this network namespace that have a socket of this kind, with these sockets.
pub fn all(kind: Kind) -> Vec<(SocketAddr, PathBuf)> {
    let namespace = namespace();
    let folders = admin_folder::places::own().into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    let place = |file: std::fs::DirEntry| {
        Some((address_in(kind, file.file_name().to_str()?, &namespace)?, file.path()))
    };
    let mut places: Vec<_> = folders.flatten().flatten().filter_map(place).collect();
    places.sort();
    places
}

/// Whether a listener at `ours` gets all connections to `other`. A wildcard covers every address of its family, and
/// that of IPv6 those of IPv4 as well unless the socket is `only_v6`.
pub fn covers(ours: SocketAddr, only_v6: bool, other: SocketAddr) -> bool {
    if ours.port() != other.port() {
        return false;
    }
    match (ours.ip().to_canonical(), other.ip().to_canonical()) {
        (IpAddr::V4(ours), IpAddr::V4(other)) => ours == other || ours.is_unspecified(),
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
        (IpAddr::V6(ours), IpAddr::V4(_)) => ours.is_unspecified() && !only_v6,
        (IpAddr::V6(own), IpAddr::V6(ip)) => {
            own.is_unspecified() || (own == ip && scope(ours) == scope(other))
        }
    }
}

/// The interface of a link-local address.
fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_wildcard_covers_its_family_and_no_other_port() {
        for (ours, other, covered, covered_if_only_v6) in [
            ("127.0.0.1:7", "127.0.0.1:7", true, true),
            ("127.0.0.1:7", "127.0.0.1:8", false, false),
            ("127.0.0.1:7", "127.0.0.2:7", false, false),
            ("127.0.0.1:7", "0.0.0.0:7", false, false),
            ("0.0.0.0:7", "127.0.0.1:7", true, true),
            ("0.0.0.0:7", "0.0.0.0:7", true, true),
            ("0.0.0.0:7", "[::1]:7", false, false),
            ("0.0.0.0:7", "[::]:7", false, false),
            ("[::]:7", "127.0.0.1:7", true, false),
            ("[::]:7", "0.0.0.0:7", true, false),
            ("[::]:7", "[::1]:7", true, true),
            ("[::]:7", "[::1]:8", false, false),
            ("[::1]:7", "[::]:7", false, false),
            ("[::ffff:127.0.0.1]:7", "127.0.0.1:7", true, true),
            ("127.0.0.1:7", "[::ffff:127.0.0.1]:7", true, true),
            ("[fe80::1%2]:7", "[fe80::1%2]:7", true, true),
            ("[fe80::1%2]:7", "[fe80::1%3]:7", false, false),
        ] {
            assert_eq!(covers(at(ours), false, at(other)), covered, "{ours}, {other}");
            assert_eq!(covers(at(ours), true, at(other)), covered_if_only_v6, "{ours}, {other}, IPv6 only");
        }
    }

    #[test]
    fn the_name_of_a_socket_tells_the_address_in_its_own_namespace_only() {
        for address in ["127.0.0.1:7000", "[::]:7000", "[fe80::1%2]:7000"] {
            for (kind, other) in [(Kind::Keeper, Kind::Stopping), (Kind::Stopping, Kind::Keeper)] {
                let name = socket_name(kind, at(address));
                assert_eq!(address_in(kind, &name, &namespace()), Some(at(address)), "{name}");
                assert_eq!(address_in(kind, &name, "1"), None, "{name}");
                assert_eq!(address_in(other, &name, &namespace()), None, "{name}");
            }
        }
        assert_eq!(address_in(Kind::Keeper, "4711.sock", &namespace()), None);
    }
}
