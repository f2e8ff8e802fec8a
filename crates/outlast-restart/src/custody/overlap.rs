//! Which listening sockets of one port are in each other's way, and which of them a connection reaches: as the kernel has it.

use super::address::Address;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether a socket that listens at `held` keeps another one from listening at `wanted`; `ipv6_only` is told of each. Two that
/// share their port (`SO_REUSEPORT`) are not: whoever asks knows that the kernel has said no.
pub(super) fn is_in_the_way(held: (&Address, bool), wanted: (&Address, bool)) -> bool {
    covers(held, wanted.0) || covers(wanted, held.0)
}

/// Whether all who come to `inner` would come to `outer`.
fn covers((outer, ipv6_only): (&Address, bool), inner: &Address) -> bool {
    let (Some((ip, port)), Some((inner_ip, inner_port))) = (outer.internet(), inner.internet()) else {
        return false;
    };
    if port != inner_port {
        return false;
    }
    match ip {
        _ if !ip.is_unspecified() => ip == inner_ip && outer.scope() == inner.scope(),
        IpAddr::V4(_) => inner_ip.is_ipv4(),
        IpAddr::V6(_) => inner_ip.is_ipv6() || !ipv6_only,
    }
}

/// Whether a connection to `to`, made here, comes to a socket that listens at `listener`, of which is told whether it takes IPv6
/// alone. One that listens everywhere has those to addresses of this machine: `is_local`.
pub(super) fn reaches(
    to: &Address,
    (listener, ipv6_only): (&Address, bool),
    is_local: impl FnOnce(IpAddr) -> bool,
) -> bool {
    let (Some((ip, port)), Some((at, at_port))) = (to.internet(), listener.internet()) else { return false };
    let ip = match ip {
        // The kernel takes it so.
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let fits = match at {
        _ if port != at_port => false,
        _ if !at.is_unspecified() => return ip == at,
        IpAddr::V4(_) => ip.is_ipv4(),
        IpAddr::V6(_) => ip.is_ipv6() || !ipv6_only,
    };
    fits && (ip.is_loopback() || is_local(ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str, port: u16) -> Address {
        let ip = match ip.parse().unwrap() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        Address::Internet { ip, port: port.to_be(), scope: 0 }
    }

    #[test]
    fn sockets_are_in_the_way_of_those_that_the_kernel_refuses() {
        let both = |one: (&str, bool), other: (&str, bool)| {
            let (one, other) = ((at(one.0, 80), one.1), (at(other.0, 80), other.1));
            let is = is_in_the_way((&one.0, one.1), (&other.0, other.1));
            assert_eq!(is_in_the_way((&other.0, other.1), (&one.0, one.1)), is);
            let elsewhere = at("0.0.0.0", 81);
            assert!(!is_in_the_way((&one.0, one.1), (&elsewhere, false)));
            is
        };
        for (one, other) in [
            (("0.0.0.0", false), ("127.0.0.1", false)),
            (("::", false), ("127.0.0.1", false)),
            (("::", false), ("0.0.0.0", false)),
            (("::", true), ("::1", true)),
            (("::", true), ("::", false)),
            (("::", false), ("::1", false)),
            (("::ffff:127.0.0.1", false), ("127.0.0.1", false)),
            (("::ffff:127.0.0.1", false), ("0.0.0.0", false)),
        ] {
            assert!(both(one, other), "{one:?} {other:?}");
        }
        for (one, other) in [
            (("127.0.0.1", false), ("127.0.0.2", false)),
            (("::", true), ("127.0.0.1", false)),
            (("::", true), ("0.0.0.0", false)),
            (("::1", false), ("127.0.0.1", false)),
            (("::1", false), ("0.0.0.0", false)),
        ] {
            assert!(!both(one, other), "{one:?} {other:?}");
        }
        assert!(!is_in_the_way((&Address::Unix(b"/a".to_vec()), false), (&at("::", 80), false)));
    }

    #[test]
    fn a_connection_reaches_who_listens_at_its_address_or_everywhere_on_this_machine() {
        let reached = |to: &str, listener: (&str, bool)| {
            let listener = (at(listener.0, 80), listener.1);
            let is_local = |ip: IpAddr| ip == IpAddr::from([10, 0, 0, 1]);
            assert!(!reaches(&at(to, 81), (&listener.0, listener.1), is_local));
            reaches(&at(to, 80), (&listener.0, listener.1), is_local)
        };
        for (to, listener) in [
            ("127.0.0.1", ("127.0.0.1", false)),
            ("127.0.0.9", ("0.0.0.0", false)),
            ("0.0.0.0", ("127.0.0.1", false)),
            ("10.0.0.1", ("0.0.0.0", false)),
            ("10.0.0.1", ("::", false)),
            ("10.0.0.2", ("10.0.0.2", false)),
            ("::", ("::1", true)),
            ("::1", ("::", true)),
            ("::ffff:127.0.0.1", ("::", false)),
            ("::ffff:127.0.0.1", ("0.0.0.0", false)),
        ] {
            assert!(reached(to, listener), "{to} {listener:?}");
        }
        for (to, listener) in [
            ("127.0.0.1", ("127.0.0.2", false)),
            // Of another machine.
            ("10.0.0.2", ("0.0.0.0", false)),
            ("2001:db8::1", ("::", false)),
            ("127.0.0.1", ("::", true)),
            ("::1", ("0.0.0.0", false)),
        ] {
            assert!(!reached(to, listener), "{to} {listener:?}");
        }
    }
}
