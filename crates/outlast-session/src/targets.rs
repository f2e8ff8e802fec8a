//! Where a client connects to: one or several servers, by name or address, tried in turn.

use crate::error::{Error, Result};
use crate::scoped::Scoped;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Server addresses, as `host:port[,host:port ...]`. Names are resolved at every attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets(Vec<String>);

impl Targets {
    /// From `host:port` texts.
    ///
    /// # Errors
    /// [`Error::Config`] when there is none, or one has no host or no usable port.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Result<Self> {
        let texts: Vec<String> = texts.into_iter().map(|text| text.trim().to_owned()).collect();
        if texts.is_empty() {
            return Err(Error::Config("no server address: give host:port".into()));
        }
        for text in &texts {
            check(text)?;
        }
        Ok(Self(texts))
    }

    /// The texts, in the order of preference.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The host part of a text: a name or address without brackets and port.
    pub(crate) fn host_of(text: &str) -> &str {
        let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // No certificate names an interface of ours.
        host.split_once('%').map_or(host, |(address, _)| address)
    }
}

fn check(text: &str) -> Result<()> {
    let wrong = |why: &str| Error::Config(format!("unusable server address {text:?}: {why}; give host:port"));
    let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("no port"))?;
    if host.is_empty() {
        return Err(wrong("no host"));
    }
    if Scoped::parse(text).is_some_and(|scoped| scoped.port() != 0) {
        return Ok(());
    }
    if host.contains('%') {
        return Err(wrong("an address with an interface is written [fe80::1%eth0]:port"));
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(wrong("an IPv6 address goes in brackets"));
    }
    if host.chars().any(|c| c.is_whitespace() || c.is_control() || "/*?".contains(c)) {
        return Err(wrong("the host has characters that no name has"));
    }
    match port.parse::<u16>() {
        Ok(0) | Err(_) => Err(wrong("the port is not a number from 1 to 65535")),
        Ok(_) => Ok(()),
    }
}

impl FromStr for Targets {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::new(text.split(',').map(str::to_owned))
    }
}

impl From<SocketAddr> for Targets {
    fn from(address: SocketAddr) -> Self {
        Self(vec![address.to_string()])
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_names_and_lists_are_taken() {
        for text in ["a:1", "127.0.0.1:65535", "[::1]:22", "[fe80::1%eth0]:7", "a.example:7,b.example:8"] {
            assert_eq!(text.parse::<Targets>().unwrap().to_string(), text);
        }
        assert_eq!(Targets::host_of("[::1]:22"), "::1");
        assert_eq!(Targets::host_of("[fe80::1%eth0]:22"), "fe80::1");
        assert_eq!(Targets::host_of("a.example:7"), "a.example");
    }

    #[test]
    fn what_cannot_be_an_address_is_refused_with_a_reason() {
        let wrong =
            ["", "a", "a:", ":1", "a:0", "a:65536", "a:b", "::1:22", "a b:1", "http://a:1", "a:1,,b:2"];
        for text in wrong.into_iter().chain(["fe80::1%lo:1", "[fe80::1%lo]:0", "a%lo:1", "[fe80::1%]:1"]) {
            let error = text.parse::<Targets>().unwrap_err();
            assert!(error.to_string().contains("give host:port"), "{text:?}: {error}");
        }
    }
}
