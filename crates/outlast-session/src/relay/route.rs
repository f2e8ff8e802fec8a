//! Which server leads to which destination.

use super::access::Cidr;
use super::{Destination, Host};
use crate::Targets;
use std::str::FromStr;

/// One `--via`: servers, for everything or for the destinations that match a pattern.
///
/// `server:7000[,server2:7000]` is the default route. `pattern=server:7000` is taken for destinations that match:
/// a name, `*.example.org` (everything below it), `*`, an address or a network, each with `:port` or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pattern: Option<Pattern>,
    /// The servers.
    pub targets: Targets,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    host: HostPattern,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Any,
    Below(String),
    Name(String),
    Network(Cidr),
}

impl Route {
    /// Whether this route is taken when no pattern matches.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.pattern.is_none()
    }
}

impl FromStr for Route {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, targets) = match text.split_once('=') {
            Some((pattern, targets)) => (Some(pattern.parse()?), targets),
            None if text.starts_with('*') => {
                return Err(format!(
                    "unusable --via {text:?}: a pattern is followed by its server, as in {text}=server:7000"
                ));
            }
            None => (None, text),
        };
        let targets = targets.parse::<Targets>().map_err(|error| error.to_string())?;
        Ok(Self { pattern, targets })
    }
}

impl FromStr for Pattern {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "unusable pattern {text:?}: give a name, *.name, an address or a network, with :port or without \
                 (IPv6 in brackets)"
            )
        };
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => {
                (host, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?))
            }
            _ => (text, None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = if host == "*" {
            HostPattern::Any
        } else if let Ok(network) = bare.parse() {
            HostPattern::Network(network)
        } else if let Some(domain) = host.strip_prefix("*.") {
            HostPattern::Below(named(domain).ok_or_else(wrong)?)
        } else {
            HostPattern::Name(named(host).ok_or_else(wrong)?)
        };
        Ok(Self { host, port })
    }
}

fn named(text: &str) -> Option<String> {
    match Host::parse(text) {
        Ok(Host::Name(name)) => Some(name),
        _ => None,
    }
}

impl Pattern {
    fn matches(&self, destination: &Destination) -> bool {
        let host = match (&self.host, destination.host()) {
            (HostPattern::Any, _) => true,
            (HostPattern::Name(pattern), Host::Name(name)) => pattern == name,
            (HostPattern::Below(domain), Host::Name(name)) => {
                name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            (HostPattern::Network(network), Host::Ip(ip)) => network.contains(*ip),
            _ => false,
        };
        host && self.port.is_none_or(|port| port == destination.port())
    }
}

/// All the routes of a client.
#[derive(Clone, Debug, Default)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// The routes, in the order in which they are tried.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        Self(routes)
    }

    /// The servers for a destination: of the first pattern that matches, else of the default route.
    #[must_use]
    pub fn to(&self, destination: &Destination) -> Option<&Targets> {
        let matching = self
            .0
            .iter()
            .find(|route| route.pattern.as_ref().is_some_and(|pattern| pattern.matches(destination)));
        matching.map(|route| &route.targets).or_else(|| self.default())
    }

    /// The servers of the default route.
    #[must_use]
    pub fn default(&self) -> Option<&Targets> {
        self.0.iter().find(|route| route.is_default()).map(|route| &route.targets)
    }

    /// The servers of all routes, in the order in which they are tried.
    pub fn targets(&self) -> impl Iterator<Item = &Targets> {
        self.0.iter().map(|route| &route.targets)
    }

    /// How many default routes there are: more than one is a mistake.
    #[must_use]
    pub fn defaults(&self) -> usize {
        self.0.iter().filter(|route| route.is_default()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn via(routes: &Routes, destination: &str) -> Option<String> {
        routes.to(&destination.parse().unwrap()).map(ToString::to_string)
    }

    #[test]
    fn the_first_pattern_that_matches_decides_and_the_default_is_last() {
        let routes = Routes::new(
            [
                "d:1",
                "*.example.org:443=tls:1",
                "*.example.org=plain:1",
                "host=one:1,two:2",
                "10.0.0.0/8=net:1",
            ]
            .map(|route| route.parse().unwrap())
            .to_vec(),
        );
        for (destination, expected) in [
            ("a.example.org:443", "tls:1"),
            ("a.b.example.org:80", "plain:1"),
            ("example.org:443", "d:1"),
            ("notexample.org:443", "d:1"),
            ("host:9", "one:1,two:2"),
            ("10.2.3.4:9", "net:1"),
            ("11.2.3.4:9", "d:1"),
        ] {
            assert_eq!(via(&routes, destination).as_deref(), Some(expected), "{destination}");
        }
    }

    #[test]
    fn without_a_default_there_may_be_no_way() {
        let routes = Routes::new(vec!["[2001:db8::/32]:22=six:1".parse().unwrap()]);
        assert_eq!(via(&routes, "[2001:db8::5]:22").as_deref(), Some("six:1"));
        assert_eq!(via(&routes, "[2001:db8::5]:23"), None);
        assert_eq!(routes.defaults(), 0);
    }

    #[test]
    fn unusable_routes_are_refused() {
        for text in
            ["", "=a:1", "a b=c:1", "*.=c:1", "x:0=c:1", "x=c", "x=", "a*b=c:1", "*:443", "*.x:1", "a*b:1"]
        {
            assert!(text.parse::<Route>().is_err(), "{text:?}");
        }
    }
}
