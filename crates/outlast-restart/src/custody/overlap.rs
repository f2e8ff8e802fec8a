//! Which listening sockets of one port are in each other's way: as the kernel has it.

use super::address::Address;
use std::net::IpAddr;

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
}
