//! Addresses that a proxy must not reach by accident: those of the machine itself and of its closest surroundings. What
//! listens there trusts anyone who can connect: databases on loopback, routers, and the metadata services of clouds, which
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
const NETWORKS: [(Reserved, Cidr); 14] = [
    (Reserved::Loopback, v4(127, 0, 0, 0, 8)),
    // Linux connects to itself if it is to connect to 0.0.0.0 or [::].
    (Reserved::Loopback, v4(0, 0, 0, 0, 8)),
    (Reserved::Loopback, v6([0, 0, 0, 0, 0, 0, 0, 1], 128)),
    (Reserved::Loopback, v6([0, 0, 0, 0, 0, 0, 0, 0], 128)),
    (Reserved::LinkLocal, v4(169, 254, 0, 0, 16)),
    (Reserved::LinkLocal, v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10)),
    (Reserved::Metadata, v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128)),
    // Credentials of pods.
    (Reserved::Metadata, v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128)),
    (Reserved::Metadata, v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128)),
    (Reserved::Metadata, v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128)),
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

/// The IPv4 addresses that a connection to `address` may end at, behind a translator or a tunnel on the way, or in the
/// kernel: an address of IPv6 can carry one (RFC 6052, 2.2; RFC 8215; RFC 2765, 2.1; RFC 3056; RFC 4291, 2.5.5.1).
pub fn embedded(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let IpAddr::V6(address) = address else { return [None; 4].into_iter().flatten() };
    let bits = address.to_bits();
    // The 32 bits behind the first `before`.
    let at = |before: u32| v4_of(bits >> (96 - before));
    let carried = match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => [at(96), None, None, None],
        // The network decides how long its translator's prefix is. The translator ignores what is behind the address, and
        // bits 64 to 71 are in no address. Nothing is ever translated to 0.0.0.0/8, which most of these readings give.
        [0x64, 0xff9b, 1, ..] => {
            let without_u = (bits & (0xffff_ffff_ffff_ffff << 64)) | ((bits & 0x00ff_ffff_ffff_ffff) << 8);
            let behind = |before: u32| v4_of(without_u >> (96 - before));
            [at(96), behind(48), behind(56), behind(64)].map(|v4| v4.filter(is_translated_to))
        }
        [0, 0, 0, 0, 0xffff, 0, ..] => [at(96), None, None, None],
        [0x2002, ..] => [at(16), None, None, None],
        // Not [::] and [::1].
        [0, 0, 0, 0, 0, 0, ..] if bits > 1 => [at(96), None, None, None],
        _ => [None; 4],
    };
    carried.into_iter().flatten()
}

fn v4_of(low_bits: u128) -> Option<IpAddr> {
    u32::try_from(low_bits & u128::from(u32::MAX)).ok().map(|bits| Ipv4Addr::from_bits(bits).into())
}

fn is_translated_to(address: &IpAddr) -> bool {
    !matches!(address, IpAddr::V4(address) if address.octets().first() == Some(&0))
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
            ("fd00:ec2::23", Some(Reserved::Metadata)),
            ("fd00:c1::a9fe:a9fe", Some(Reserved::Metadata)),
            ("fd00:42::42", Some(Reserved::Metadata)),
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
    fn an_ipv4_address_within_one_of_ipv6_is_seen() {
        for (address, inner) in [
            ("64:ff9b::a9fe:a9fe", "169.254.169.254"),
            ("64:ff9b::10.1.2.3", "10.1.2.3"),
            ("::ffff:0:10.1.2.3", "10.1.2.3"),
            ("2002:7f00:1::", "127.0.0.1"),
            ("::7f00:1", "127.0.0.1"),
            // RFC 6052, 2.4, in the prefixes that RFC 8215 sets aside: of 48, 56, 64 and 96 bits.
            ("64:ff9b:1:c000:2:2100::", "192.0.2.33"),
            ("64:ff9b:1:3c0:0:221::", "192.0.2.33"),
            ("64:ff9b:1:344:c0:2:2100::", "192.0.2.33"),
            ("64:ff9b:1::192.0.2.33", "192.0.2.33"),
            ("64:ff9b:1:344::192.0.2.33", "192.0.2.33"),
            // The bits behind it do not matter.
            ("64:ff9b:1:c000:2:2100:1:1", "192.0.2.33"),
        ] {
            let found: Vec<IpAddr> = embedded(ip(address)).collect();
            assert!(found.contains(&ip(inner)), "{address}: {found:?}");
        }
        for address in ["::", "::1", "2001:db8::1", "10.0.0.1", "64:ff9b:2::10.1.2.3", "::ffff:1:10.1.2.3"] {
            assert_eq!(embedded(ip(address)).next(), None, "{address}");
        }
        assert_eq!(embedded(ip("64:ff9b:1::192.0.2.33")).count(), 1, "one reading gives an address");
    }
}
