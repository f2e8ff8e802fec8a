//! Where a local program wants to go: a host and a port, as a name or as an address.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Longest name the domain name system can carry.
const NAME_BYTES_MAX: usize = 253;
/// Longest label of such a name.
const LABEL_BYTES_MAX: usize = 63;

/// A host: a name that is still to be resolved, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name, in lower case, without a dot at the end.
    Name(String),
    /// An address.
    Ip(IpAddr),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    host: Host,
    port: u16,
}

/// Why a text is no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// There is no `:port`.
    #[error("no port: give host:port")]
    NoPort,
    /// The port is not one.
    #[error("the port is not a number from 1 to 65535")]
    Port,
    /// There is nothing before the port.
    #[error("no host: give host:port")]
    NoHost,
    /// The host is neither a name nor an address.
    #[error("the host is neither a name nor an address (an IPv6 address goes in brackets)")]
    Host,
}

impl Host {
    /// A name or an address. IPv6 addresses may be in brackets.
    ///
    /// # Errors
    /// When it is empty or can be neither.
    pub fn parse(text: &str) -> Result<Self, DestinationError> {
        if text.is_empty() {
            return Err(DestinationError::NoHost);
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            return inner
                .parse::<Ipv6Addr>()
                .map(|ip| Host::Ip(ip.into()))
                .map_err(|_| DestinationError::Host);
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Host::Ip(ip));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if is_name(name) { Ok(Host::Name(name.to_ascii_lowercase())) } else { Err(DestinationError::Host) }
    }
}

/// Whether a resolver may be asked for it. Underscores occur in real names.
fn is_name(text: &str) -> bool {
    let label_is_good = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
    };
    text.len() <= NAME_BYTES_MAX && text.split('.').all(label_is_good)
}

impl Destination {
    /// From its parts.
    ///
    /// # Errors
    /// When the port is 0: nothing listens there.
    pub fn new(host: Host, port: u16) -> Result<Self, DestinationError> {
        if port == 0 { Err(DestinationError::Port) } else { Ok(Self { host, port }) }
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, never 0.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Destination {
    type Err = DestinationError;
    fn from_str(text: &str) -> Result<Self, DestinationError> {
        let (host, port) = text.rsplit_once(':').ok_or(DestinationError::NoPort)?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(DestinationError::Host);
        }
        // `parse` alone would take "+80".
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or(DestinationError::Port)?;
        Self::new(Host::parse(host)?, port)
    }
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Ip(address.ip().to_canonical()), port: address.port() }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_taken_and_printed_alike() {
        for text in ["example.org:443", "127.0.0.1:1", "[::1]:65535", "a_b.c-d:7", "localhost:22"] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
        assert_eq!("EXAMPLE.org.:80".parse::<Destination>().unwrap().to_string(), "example.org:80");
    }

    #[test]
    fn what_is_no_destination_says_why() {
        let cases = [
            ("example.org", DestinationError::NoPort),
            (":80", DestinationError::NoHost),
            ("a:", DestinationError::Port),
            ("a:0", DestinationError::Port),
            ("a:65536", DestinationError::Port),
            ("a:+80", DestinationError::Port),
            ("::1:80", DestinationError::Host),
            ("[::1:80", DestinationError::Host),
            ("[a]:80", DestinationError::Host),
            ("a..b:80", DestinationError::Host),
            ("-a:80", DestinationError::Host),
            ("a b:80", DestinationError::Host),
            ("a\r\nb:80", DestinationError::Host),
            ("ä.example:80", DestinationError::Host),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Destination>(), Err(error), "{text:?}");
        }
        let long = format!("{}:80", "aa.".repeat(85));
        assert_eq!(long.parse::<Destination>(), Err(DestinationError::Host));
    }
}
