//! Addresses that a proxy must not reach by accident: those of the machine itself and of its closest surroundings. What
//! listens there trusts whoever can connect: databases on loopback, routers, and the metadata services of clouds, which
//! give the machine's own credentials to anybody who asks from it.

use super::access::Cidr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address has to be named by a rule before a server connects to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The machine itself; the unspecified address leads there, too.
    Loopback,
    /// The segment of the network that the machine is in.
    LinkLocal,
    /// Where a cloud tells a machine about itself.
    Metadata,
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud metadata address",
        })
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix_bits: u8) -> Cidr {
    Cidr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix_bits)
}

const fn v6(segments: [u16; 8], prefix_bits: u8) -> Cidr {
    let [a, b, c, d, e, f, g, h] = segments;
    Cidr::new(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix_bits)
}

/// The reserved networks. The metadata services of most clouds are at 169.254.169.254, which is link-local; the others
/// are listed.
const NETWORKS: [(Reserved, Cidr); 11] = [
    (Reserved::Loopback, v4(127, 0, 0, 0, 8)),
    // Linux connects to itself if it is to connect to 0.0.0.0 or [::].
    (Reserved::Loopback, v4(0, 0, 0, 0, 8)),
    (Reserved::Loopback, v6([0, 0, 0, 0, 0, 0, 0, 1], 128)),
    (Reserved::Loopback, v6([0, 0, 0, 0, 0, 0, 0, 0], 128)),
    (Reserved::LinkLocal, v4(169, 254, 0, 0, 16)),
    (Reserved::LinkLocal, v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10)),
    (Reserved::Metadata, v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128)),
    (Reserved::Metadata, v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128)),
    (Reserved::Metadata, v4(100, 100, 100, 200, 32)),
    (Reserved::Metadata, v4(168, 63, 129, 16, 32)),
    (Reserved::Metadata, v4(192, 0, 0, 192, 32)),
];

/// The reserved network that an address is in.
pub fn network_of(address: IpAddr) -> Option<(Reserved, Cidr)> {
    let mut networks = NETWORKS.iter();
    networks.find(|(_, network)| network.contains(address)).copied()
}

/// The IPv4 address that a translator on the way connects to (RFC 6052, RFC 3056), or a kernel (RFC 4291, 2.5.5.1).
pub fn embedded(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 =
        |high: u16, low: u16| Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))));
    match (a, b) {
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => v4(g, h),
        (0x2002, _) => v4(b, c),
        (0, 0) if [c, d, e, f] == [0; 4] && (g, h) != (0, 0) && (g, h) != (0, 1) => v4(g, h),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_machine_its_segment_and_its_cloud_are_reserved() {
        for (address, expected) in [
            ("127.0.0.1", Some(Reserved::Loopback)),
            ("127.255.0.3", Some(Reserved::Loopback)),
            ("0.0.0.0", Some(Reserved::Loopback)),
            ("::1", Some(Reserved::Loopback)),
            ("::", Some(Reserved::Loopback)),
            ("::ffff:127.0.0.1", Some(Reserved::Loopback)),
            ("169.254.169.254", Some(Reserved::LinkLocal)),
            ("fe80::1", Some(Reserved::LinkLocal)),
            ("febf::1", Some(Reserved::LinkLocal)),
            ("fd00:ec2::254", Some(Reserved::Metadata)),
            ("100.100.100.200", Some(Reserved::Metadata)),
            ("168.63.129.16", Some(Reserved::Metadata)),
            ("10.0.0.1", None),
            ("192.168.1.1", None),
            ("2001:db8::1", None),
            ("fd00::1", None),
        ] {
            assert_eq!(network_of(ip(address)).map(|(reserved, _)| reserved), expected, "{address}");
        }
    }

    #[test]
    fn an_address_in_another_ones_clothes_is_seen() {
        for (address, inner) in [
            ("64:ff9b::a9fe:a9fe", Some("169.254.169.254")),
            ("2002:7f00:1::", Some("127.0.0.1")),
            ("::7f00:1", Some("127.0.0.1")),
            ("::1", None),
            ("2001:db8::1", None),
            ("10.0.0.1", None),
        ] {
            assert_eq!(embedded(ip(address)), inner.map(ip), "{address}");
        }
    }
}
