//! One network: a number from which its addresses follow, and who is on it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use crate::error::{Context, Error, Result};
use crate::link::{Addresses, End, LinkInner, Side};
use crate::netlink::route::Mac;

/// A network `10.x.y.0/24` and `fd6f:7574:6c73:n::/64`.
pub(crate) struct Segment {
    number: u16,
    /// The last host number given out.
    last: AtomicU16,
    members: Mutex<Vec<(Weak<LinkInner>, Side)>>,
}

impl Segment {
    pub(crate) fn new(number: u16) -> Self {
        Self { number, last: AtomicU16::new(0), members: Mutex::new(Vec::new()) }
    }

    /// Addresses on this network that nobody has, going round when all have been used once.
    pub(crate) fn next_addresses(&self) -> Result<Addresses> {
        let taken: Vec<_> = self.ends(|end| end.addresses()).into_iter().flatten().collect();
        for _ in 0..254 {
            let next = |last: u16| Some(last % 254 + 1);
            let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(0);
            let addresses = self.addresses(last % 254 + 1);
            if !taken.contains(&addresses) {
                return Ok(addresses);
            }
        }
        Err(Error::Invalid("this network has 254 hosts: it cannot take another".to_owned()))
    }

    fn addresses(&self, host: u16) -> Addresses {
        let [high, low] = self.number.to_be_bytes();
        let [_, last] = host.to_be_bytes();
        Addresses {
            v4: Ipv4Addr::new(10, high, low, last),
            v6: Ipv6Addr::new(0xfd6f, 0x7574, 0x6c73, self.number, 0, 0, 0, host),
        }
    }

    /// Both networks as a destination of routes.
    pub(crate) fn networks(&self) -> [(IpAddr, u8); 2] {
        self.addresses(0).with_prefixes()
    }

    pub(crate) fn join(&self, link: Weak<LinkInner>, side: Side) {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).push((link, side));
    }

    fn ends<T>(&self, mut each: impl FnMut(&End) -> T) -> Vec<T> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).clone();
        members.iter().filter_map(|(link, side)| Some(each(link.upgrade()?.end(*side)))).collect()
    }

    /// Tells everyone on the network the hardware addresses of everyone else.
    pub(crate) fn introduce(&self) -> Result<()> {
        let known = self.ends(|end| Some((end.index, end.mac?, end.addresses()?)));
        let known: Vec<(u32, Mac, Addresses)> = known.into_iter().flatten().collect();
        let done: Vec<Result<()>> = self.ends(|end| {
            let Some(own) = end.mac else { return Ok(()) };
            for (_, mac, addresses) in known.iter().filter(|(_, mac, _)| *mac != own) {
                for (address, _) in addresses.with_prefixes() {
                    match end.host.routing().set_neighbour(end.index, address, *mac) {
                        // A device that is off learns when it is switched on.
                        Err(e) if matches!(e.raw_os_error(), Some(libc::ENETDOWN | libc::EINVAL)) => {}
                        other => other.context(|| format!("cannot tell {} about {address}", end.device))?,
                    }
                }
            }
            Ok(())
        });
        done.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_from_the_number_of_the_network() {
        let segment = Segment::new(0x0102);
        assert_eq!(segment.next_addresses().unwrap().v4, Ipv4Addr::new(10, 1, 2, 1));
        let second = segment.next_addresses().unwrap();
        assert_eq!(second.v4, Ipv4Addr::new(10, 1, 2, 2));
        assert_eq!(second.v6, "fd6f:7574:6c73:102::2".parse::<Ipv6Addr>().unwrap());
        assert_eq!(segment.networks()[0], (Ipv4Addr::new(10, 1, 2, 0).into(), 24));
    }

    #[test]
    fn addresses_are_used_again_only_after_all_others() {
        let segment = Segment::new(1);
        let first = segment.next_addresses().unwrap();
        let others: Vec<_> = (0..253).map(|_| segment.next_addresses().unwrap()).collect();
        assert!(!others.contains(&first));
        assert_eq!(segment.next_addresses().unwrap(), first);
    }
}
