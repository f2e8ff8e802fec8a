//! The addresses of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// Whether an interface of this machine has it, in this network namespace. False where that cannot be asked.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: fills a local with a list, which is given back below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return false;
    }
    let (mut found, mut next) = (false, first);
    // SAFETY: null, or an entry of the list.
    while let Some(entry) = unsafe { next.as_ref() } {
        found |= address_of(entry) == Some(ip);
        next = entry.ifa_next;
    }
    // SAFETY: what was filled above, once.
    unsafe { libc::freeifaddrs(first) };
    found
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    let address = entry.ifa_addr;
    // SAFETY: null, or an address that is as long as its family has it.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_local_and_one_of_documentation_is_not() {
        assert!(is_local(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_local(Ipv4Addr::new(192, 0, 2, 1).into()));
    }
}
