//! Who may come and where they may go: lists of networks and ports.

use super::reserved::{self, Reserved};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A network: an address and the number of leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    prefix_bits: u8,
}

impl Cidr {
    /// A network that is known to be one.
    pub(super) const fn new(network: IpAddr, prefix_bits: u8) -> Self {
        Self { network, prefix_bits }
    }

    /// Whether all of `other` is in this network.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix_bits <= other.prefix_bits
            && self.network.is_ipv4() == other.network.is_ipv4()
            && self.contains(other.network)
    }

    /// Whether the address is in the network, or a connection to or from it may be one to or from there: an address of IPv6
    /// can carry one of IPv4, which a translator takes out of it. For rules that forbid.
    #[must_use]
    pub fn touches(&self, address: IpAddr) -> bool {
        self.contains(address) || reserved::embedded(address).any(|inner| self.contains(inner))
    }

    /// Whether the address is in the network. An IPv4-mapped address counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits)).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no network: give an address or address/bits, such as 10.0.0.0/8");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if network.is_ipv4() { 32 } else { 128 };
        let prefix_bits: u8 = match bits {
            None => bits_max,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= bits_max).ok_or_else(wrong)?,
        };
        // Addresses are compared as IPv4 where they are.
        Ok(match (network.to_canonical(), prefix_bits.checked_sub(128 - 32)) {
            (IpAddr::V4(mapped), Some(prefix_bits)) if network.is_ipv6() => {
                Self { network: mapped.into(), prefix_bits }
            }
            _ => Self { network, prefix_bits },
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_bits)
    }
}

/// Which clients may come: not those on the deny list, and if there is an allow list only those on it.
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    /// If not empty, only these.
    pub allow: Vec<Cidr>,
    /// Never these.
    pub deny: Vec<Cidr>,
}

impl AccessList {
    /// Whether this client may come.
    #[must_use]
    pub fn allows(&self, address: IpAddr) -> bool {
        !self.deny.iter().any(|network| network.touches(address))
            && (self.allow.is_empty() || self.allow.iter().any(|network| network.contains(address)))
    }
}

/// Where one may go: `NETWORK`, `NETWORK:PORT`, `NETWORK:FROM-TO`; `any` for every network, IPv6 in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationRule {
    network: Option<Cidr>,
    ports: RangeInclusive<u16>,
}

impl FromStr for DestinationRule {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (network, ports) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((network, "")) => (network, None),
            Some((network, rest)) => (network, Some(rest.strip_prefix(':').unwrap_or("?"))),
            None if text.matches(':').count() == 1 => {
                text.split_once(':').map_or((text, None), |(network, ports)| (network, Some(ports)))
            }
            None => (text, None),
        };
        let network = if network == "any" { None } else { Some(network.parse()?) };
        let ports = match ports {
            None => 1..=u16::MAX,
            Some(ports) => port_range(ports)
                .ok_or_else(|| format!("{text:?}: the port is not PORT or FROM-TO, from 1 to 65535"))?,
        };
        Ok(Self { network, ports })
    }
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    (0 < from && from <= to).then_some(from..=to)
}

impl DestinationRule {
    fn matches(&self, address: SocketAddr) -> bool {
        self.ports.contains(&address.port())
            && self.network.is_none_or(|network| network.contains(address.ip()))
    }

    /// As [`matches`](Self::matches), also where the connection may end behind a translator.
    fn touches(&self, address: SocketAddr) -> bool {
        self.ports.contains(&address.port())
            && self.network.is_none_or(|network| network.touches(address.ip()))
    }

    /// Whether it means this network, or a part of it, and not only everything.
    fn names(&self, network: &Cidr) -> bool {
        self.network.is_some_and(|named| network.covers(&named))
    }
}

/// The destinations that a server connects to on a client's behalf.
#[derive(Clone, Debug, Default)]
pub struct DestinationPolicy {
    /// One of these has to match. If there is none, everything does that is not [`Reserved`].
    pub rules: Vec<DestinationRule>,
    /// None of these may match.
    pub deny: Vec<DestinationRule>,
}

/// What a policy says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server may connect to it.
    Allowed,
    /// No rule matches.
    NotListed,
    /// A rule forbids it.
    Denied,
    /// It is an address that only a rule which names it opens: `any` does not.
    NotNamed(Reserved),
}

impl DestinationPolicy {
    /// Whether this address may be connected to. Names are judged by what they resolve to.
    #[must_use]
    pub fn allows(&self, address: SocketAddr) -> bool {
        self.judge(address) == Verdict::Allowed
    }

    /// Whether this address may be connected to, and if not, why not.
    #[must_use]
    pub fn judge(&self, address: SocketAddr) -> Verdict {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        if self.deny.iter().any(|rule| rule.touches(address)) {
            return Verdict::Denied;
        }
        let mut matching = self.rules.iter().filter(|rule| rule.matches(address));
        // Behind a translator there may be one as well: nobody can name that.
        if let Some((reserved, _)) = reserved::embedded(address.ip()).find_map(reserved::network_of) {
            return Verdict::NotNamed(reserved);
        }
        match reserved::network_of(address.ip()) {
            Some((reserved, network)) if !matching.any(|rule| rule.names(&network)) => {
                Verdict::NotNamed(reserved)
            }
            None if !self.rules.is_empty() && matching.next().is_none() => Verdict::NotListed,
            _ => Verdict::Allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("0.0.0.0/0", "::ffff:203.0.113.9", true),
            ("::/0", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
        ];
        for (network, address, expected) in cases {
            assert_eq!(
                network.parse::<Cidr>().unwrap().contains(ip(address)),
                expected,
                "{network} {address}"
            );
        }
    }

    #[test]
    fn an_ipv4_network_in_ipv6_clothes_is_that_network() {
        for (text, same) in [
            ("::ffff:10.5.5.5", "10.5.5.5/32"),
            ("::ffff:10.5.5.0/120", "10.5.5.0/24"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
        ] {
            assert_eq!(text.parse::<Cidr>().unwrap(), same.parse().unwrap(), "{text}");
        }
        let rule: DestinationRule = "[::ffff:10.5.5.5]:80".parse().unwrap();
        assert_eq!(rule, "10.5.5.5:80".parse().unwrap());
        // More than all of IPv4 is a network of IPv6.
        assert!(!"::/0".parse::<Cidr>().unwrap().contains(ip("10.5.5.5")));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "a", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "::/129", "10.0.0", "10.0.0.0/8/8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn deny_wins_and_an_allow_list_excludes_everyone_else() {
        let everyone = AccessList::default();
        assert!(everyone.allows(ip("192.0.2.1")));
        let list = AccessList {
            allow: vec!["10.0.0.0/8".parse().unwrap()],
            deny: vec!["10.9.0.0/16".parse().unwrap()],
        };
        assert!(list.allows(ip("10.1.1.1")));
        assert!(!list.allows(ip("64:ff9b::10.1.1.1")), "only what denies looks behind translators");
        let open = AccessList { allow: Vec::new(), ..list.clone() };
        assert!(open.allows(ip("64:ff9b::10.1.1.1")) && !open.allows(ip("64:ff9b:1::10.9.1.1")));
        assert!(!list.allows(ip("10.9.1.1")));
        assert!(!list.allows(ip("192.0.2.1")));
    }

    #[test]
    fn destinations_are_judged_by_network_and_port() {
        let policy = DestinationPolicy {
            rules: ["10.0.0.0/8:22", "192.0.2.1", "[2001:db8::/32]:80-443", "any:53"]
                .map(|rule| rule.parse().unwrap())
                .to_vec(),
            deny: Vec::new(),
        };
        for (address, expected) in [
            ("10.1.1.1:22", true),
            ("10.1.1.1:23", false),
            ("192.0.2.1:9", true),
            ("192.0.2.2:9", false),
            ("[2001:db8::1]:100", true),
            ("[2001:db8::1]:444", false),
            ("198.51.100.1:53", true),
        ] {
            assert_eq!(policy.allows(address.parse().unwrap()), expected, "{address}");
        }
        assert!(DestinationPolicy::default().allows("198.51.100.1:1".parse().unwrap()));
    }

    #[test]
    fn reserved_addresses_are_reached_only_where_they_are_named() {
        let policy = |rules: &[&str]| DestinationPolicy {
            rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
            deny: Vec::new(),
        };
        for (rules, address, expected) in [
            (&["any"][..], "127.0.0.1:80", Verdict::NotNamed(Reserved::Loopback)),
            (&[], "127.0.0.1:80", Verdict::NotNamed(Reserved::Loopback)),
            (&["any:80"], "[::1]:80", Verdict::NotNamed(Reserved::Loopback)),
            (&["any"], "[::ffff:127.0.0.1]:80", Verdict::NotNamed(Reserved::Loopback)),
            (&["any"], "0.0.0.0:80", Verdict::NotNamed(Reserved::Loopback)),
            (&["0.0.0.0/0", "::/0"], "169.254.169.254:80", Verdict::NotNamed(Reserved::LinkLocal)),
            (&["any"], "[fe80::1]:80", Verdict::NotNamed(Reserved::LinkLocal)),
            (&["fd00::/8"], "[fd00:ec2::254]:80", Verdict::NotNamed(Reserved::Metadata)),
            (&["any"], "[64:ff9b::a9fe:a9fe]:80", Verdict::NotNamed(Reserved::LinkLocal)),
            (&["any"], "[64:ff9b:1::a9fe:a9fe]:80", Verdict::NotNamed(Reserved::LinkLocal)),
            (&["any"], "[::ffff:0:127.0.0.1]:80", Verdict::NotNamed(Reserved::Loopback)),
            (&["any"], "[64:ff9b:1::192.0.2.1]:80", Verdict::Allowed),
            (&["127.0.0.1:80"], "127.0.0.1:80", Verdict::Allowed),
            (&["127.0.0.1:80"], "127.0.0.1:81", Verdict::NotNamed(Reserved::Loopback)),
            (&["any", "127.0.0.0/8:80"], "127.9.0.1:80", Verdict::Allowed),
            (&["169.254.169.254"], "169.254.169.254:80", Verdict::Allowed),
            (&["fd00:ec2::254"], "[fd00:ec2::254]:80", Verdict::Allowed),
            (&["any"], "192.0.2.1:80", Verdict::Allowed),
            (&[], "192.0.2.1:80", Verdict::Allowed),
            (&["any:80"], "192.0.2.1:81", Verdict::NotListed),
        ] {
            assert_eq!(policy(rules).judge(address.parse().unwrap()), expected, "{rules:?} {address}");
        }
    }

    #[test]
    fn a_denied_destination_is_denied_whatever_allows_it() {
        let rules = |rules: &[&str]| rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let policy =
            DestinationPolicy { rules: rules(&["any", "127.0.0.1"]), deny: rules(&["10.0.0.0/8", "any:25"]) };
        for (address, expected) in [
            ("10.1.1.1:80", Verdict::Denied),
            ("[::ffff:10.1.1.1]:80", Verdict::Denied),
            ("[64:ff9b::a01:101]:80", Verdict::Denied),
            ("[64:ff9b:1::10.1.1.1]:80", Verdict::Denied),
            ("[64:ff9b:1:a01:1:100::]:80", Verdict::Denied),
            ("[64:ff9b:1:aa:a:101:100::]:80", Verdict::Denied),
            ("[::ffff:0:10.1.1.1]:80", Verdict::Denied),
            ("[2002:a01:101::1]:80", Verdict::Denied),
            ("[::10.1.1.1]:80", Verdict::Denied),
            ("[64:ff9b:1::192.0.2.1]:80", Verdict::Allowed),
            ("[64:ff9b:1::192.0.2.1]:25", Verdict::Denied),
            ("192.0.2.1:25", Verdict::Denied),
            ("127.0.0.1:25", Verdict::Denied),
            ("127.0.0.1:26", Verdict::Allowed),
            ("192.0.2.1:80", Verdict::Allowed),
        ] {
            assert_eq!(policy.judge(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in
            ["", "10.0.0.0/8:", "10.0.0.0/8:0", "10.0.0.0/8:5-4", "10.0.0.0/8:70000", "[::1]x", "a:1", "[::1"]
        {
            assert!(text.parse::<DestinationRule>().is_err(), "{text:?}");
        }
    }
}
