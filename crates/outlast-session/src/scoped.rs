//! IPv6 addresses that mean something on one network only, with the interface to it (RFC 4007): `[fe80::1%eth0]:7000`.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Longest name of an interface.
const INTERFACE_BYTES_MAX: usize = 15;

/// An address on an interface, and a port. The interface may come and go: which one has the name is looked up at every use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scoped {
    address: Ipv6Addr,
    interface: String,
    port: u16,
}

impl Scoped {
    /// From `[ADDRESS%INTERFACE]:PORT`; the interface is a name or a number. None if it is not of this form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
        let (address, interface) = host.split_once('%')?;
        let unusable = |c: char| c.is_whitespace() || c.is_control() || "/[]%".contains(c);
        if interface.is_empty() || interface.len() > INTERFACE_BYTES_MAX || interface.contains(unusable) {
            return None;
        }
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits)?;
        Some(Self { address: address.parse().ok()?, interface: interface.to_owned(), port })
    }

    /// As the kernel knows it now.
    ///
    /// # Errors
    /// There is no such interface at the moment.
    pub fn resolve(&self) -> io::Result<SocketAddr> {
        let host = format!("{}%{}", self.address, self.interface);
        let found = (host.as_str(), self.port).to_socket_addrs().ok().and_then(|mut found| found.next());
        found.ok_or_else(|| {
            let why = format!("this machine has no interface called {:?}", self.interface);
            io::Error::new(io::ErrorKind::AddrNotAvailable, why)
        })
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Scoped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}%{}]:{}", self.address, self.interface, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_a_name_or_a_number() {
        for text in ["[fe80::1%lo]:7000", "[fe80::1%1]:7000"] {
            let scoped = Scoped::parse(text).unwrap();
            assert_eq!(scoped.to_string(), text);
            let SocketAddr::V6(address) = scoped.resolve().unwrap() else { panic!("{text}") };
            assert_eq!((address.ip().to_string().as_str(), address.port()), ("fe80::1", 7000));
            assert_eq!(address.scope_id(), 1, "the loopback interface is the first one");
        }
        let error = Scoped::parse("[fe80::1%nothing0]:1").unwrap().resolve().unwrap_err();
        assert!(error.to_string().contains("no interface called \"nothing0\""), "{error}");
    }

    #[test]
    fn other_texts_are_not_of_this_form() {
        for text in [
            "",
            "[fe80::1]:1",
            "fe80::1%lo:1",
            "[fe80::1%]:1",
            "[fe80::1%lo]",
            "[fe80::1%lo]:",
            "[fe80::1%lo]:+1",
            "[fe80::1%lo]:65536",
            "[127.0.0.1%lo]:1",
            "[a%lo]:1",
            "[fe80::1%l o]:1",
            "[fe80::1%abcdefghijklmnop]:1",
        ] {
            assert_eq!(Scoped::parse(text), None, "{text:?}");
        }
    }
}
