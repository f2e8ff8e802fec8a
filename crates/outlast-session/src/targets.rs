//! Where a client connects to: one or several servers, by name or address, tried in turn.

use crate::error::{Error, Result};
use crate::scoped::Scoped;
use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An attempt that fails sooner says so to its client: nothing is lost by trying that server first.
const SLOW_FAILURE: Duration = Duration::from_millis(250);

/// A server that failed slowly is tried after the others for so long.
const PUT_OFF: Duration = Duration::from_secs(30);

/// Server addresses, as `host:port[,host:port ...]`, in the order of preference. Names are resolved at every attempt.
///
/// Sessions are opened at the first that answers. One that keeps a client waiting in vain comes last for the next 30 s, for
/// all sessions with clones of these targets.
#[derive(Clone, Debug)]
pub struct Targets {
    texts: Vec<String>,
    /// Until when each of them comes last.
    put_off: Arc<Mutex<Vec<Option<Instant>>>>,
}

/// One of several servers, in the order in which they are tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// Its place in the order of preference.
    pub(crate) index: usize,
    pub(crate) text: &'a str,
}

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
        Ok(Self::of(texts))
    }

    fn of(texts: Vec<String>) -> Self {
        let put_off = Arc::new(Mutex::new(vec![None; texts.len()]));
        Self { texts, put_off }
    }

    /// The texts, in the order of preference.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(String::as_str)
    }

    /// Whether there is another server than the first. The addresses of a name count as one server.
    pub(crate) fn are_several(&self) -> bool {
        self.texts.len() > 1
    }

    /// In which order to try them now: `server` first, if one of them has the session; then those that answer, then those
    /// that did not lately. Of these, whoever asks first after their time tries them as before, for all others.
    pub(crate) fn in_order(&self, server: Option<usize>, now: Instant) -> Vec<Target<'_>> {
        let mut order: Vec<Target<'_>> =
            self.iter().enumerate().map(|(index, text)| Target { index, text }).collect();
        if order.len() > 1 {
            let mut put_off = self.put_off.lock();
            let rank = |target: &Target<'_>| {
                if server == Some(target.index) {
                    return 0;
                }
                match put_off.get_mut(target.index) {
                    Some(Some(until)) if *until > now => 2,
                    Some(Some(until)) if server.is_none() => {
                        *until = now + PUT_OFF;
                        1
                    }
                    _ => 1,
                }
            };
            order.sort_by_cached_key(rank);
        }
        order
    }

    /// An attempt at this server has failed, after `took`.
    pub(crate) fn failed(&self, target: Target<'_>, now: Instant, took: Duration) {
        if took >= SLOW_FAILURE && self.are_several() {
            self.set(target, Some(now + PUT_OFF));
        }
    }

    /// This server has welcomed a link.
    pub(crate) fn answered(&self, target: Target<'_>) {
        if self.are_several() {
            self.set(target, None);
        }
    }

    fn set(&self, target: Target<'_>, until: Option<Instant>) {
        if let Some(present) = self.put_off.lock().get_mut(target.index) {
            *present = until;
        }
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
        Self::of(vec![address.to_string()])
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts.join(","))
    }
}

impl PartialEq for Targets {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for Targets {}

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
    fn a_server_that_keeps_clients_waiting_comes_last_for_a_while() {
        let targets: Targets = "a:1,b:1,c:1".parse().unwrap();
        let order = |server, now| -> String {
            targets.in_order(server, now).iter().map(|target| &target.text[..1]).collect()
        };
        let [a, b, _] = targets.in_order(None, Instant::now())[..] else { panic!("three") };
        let start = Instant::now();
        assert_eq!(order(None, start), "abc");
        assert_eq!(order(Some(2), start), "cab", "the server that has the session comes first");
        targets.failed(a, start, SLOW_FAILURE / 2);
        assert_eq!(order(None, start), "abc", "a refusal costs nothing");
        targets.failed(a, start, SLOW_FAILURE);
        assert_eq!(targets.clone().in_order(None, start)[0].text, "b:1", "clones know of it");
        assert_eq!(order(Some(0), start), "abc");
        targets.failed(b, start + PUT_OFF / 2, SLOW_FAILURE);
        assert_eq!(order(None, start + PUT_OFF / 2), "cab");
        // One session tries it again, the others do not wait for that.
        let later = start + PUT_OFF;
        assert_eq!(order(Some(2), later), "cab", "a session that has its server is not that one");
        assert_eq!(order(None, later), "acb");
        assert_eq!(order(None, later), "cab");
        targets.answered(a);
        assert_eq!(order(None, later), "acb");
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
