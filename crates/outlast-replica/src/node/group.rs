//! The nodes of a group as people list them: the same list at each.

use crate::consensus::Member;
use crate::protocol::Protocol;
use crate::replica::{AnswerPolicy, Delivery, ServerClock};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

/// One of them, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What people call it.
    pub name: String,
    /// Where it listens for the others.
    pub address: SocketAddr,
    /// It has no server, and only votes.
    pub is_witness: bool,
}

impl Listed {
    /// The same for the consensus.
    pub(super) fn member(&self) -> Member {
        Member { name: self.name.clone(), address: self.address.to_string(), is_witness: self.is_witness }
    }
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What people call it.
    pub name: String,
    /// Where clients connect to.
    pub portal: SocketAddr,
    /// All nodes.
    pub nodes: Vec<Listed>,
    /// For so long voters promise to elect nobody else, in milliseconds ([`Settings`](crate::consensus::Settings::promise_ms)).
    pub promise_ms: u64,
    /// When servers get what clients send.
    pub delivery: Delivery,
    /// What clients and servers speak.
    pub protocol: Protocol,
    /// From where servers have the time of day.
    pub clock: ServerClock,
    /// What becomes of the servers' answers.
    pub answers: AnswerPolicy,
    /// A statement that waits for a lock of another client for so long ends with an error, in milliseconds. With [`Protocol::Mysql`] alone.
    pub lock_wait_timeout_ms: u64,
}

/// 100 ms is what a network and a machine of today keep. Less than 50 would take a busy machine for a dead one.
pub const PROMISE_MS: u64 = 100;
/// A shorter promise is refused.
pub const PROMISE_MS_MIN: u64 = 50;
/// A longer one is refused: clients would wait for so long.
pub const PROMISE_MS_MAX: u64 = 60_000;
/// As MariaDB has it for rows by default.
pub const LOCK_WAIT_TIMEOUT_MS: u64 = 50_000;
/// A shorter one is refused: a node asks its server about ten times a second who waits.
pub const LOCK_WAIT_TIMEOUT_MS_MIN: u64 = 100;
/// A longer one is refused: a year.
pub const LOCK_WAIT_TIMEOUT_MS_MAX: u64 = 365 * 24 * 3_600_000;
/// A group of more nodes is refused: each has to acknowledge every request.
pub const NODES_MAX: usize = 15;
/// Of a name.
const NAME_BYTES_MAX: usize = 64;

impl Group {
    /// Looks whether the list makes sense.
    ///
    /// # Errors
    /// What is wrong, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        let is_name = |name: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain)
        };
        let names = [&self.name].into_iter().chain(self.nodes.iter().map(|node| &node.name));
        for name in names {
            if !is_name(name) {
                return Err(format!(
                    "{name:?} is no name: letters, digits, -, _ and ., {NAME_BYTES_MAX} at the most"
                ));
            }
        }
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        for Listed { name, address, .. } in &self.nodes {
            if !names.insert(name) {
                return Err(format!("two nodes are called {name}"));
            }
            if !addresses.insert(address) {
                return Err(format!("two nodes have the address {address}"));
            }
            if address.port() == 0 || address.ip().is_unspecified() {
                return Err(format!("{address} of node {name} is no address that others can connect to"));
            }
            if address.ip() == self.portal.ip() {
                return Err(format!(
                    "{} is the address of node {name}: the portal needs one of its own, which no machine has",
                    self.portal.ip()
                ));
            }
        }
        if self.clock == ServerClock::Order
            && (self.protocol == Protocol::Raw || self.delivery != Delivery::Serial)
        {
            return Err("clock = \"order\" needs protocol = \"redis\", \"mysql\" or \"postgres\", and delivery = \"serial\", the default: a server gets another time when it \
                        has answered all, and of other protocols nobody knows when that is"
                .to_owned());
        }
        if self.protocol.is_database() && self.delivery == Delivery::PerConnection {
            return Err("protocol = \"mysql\" and \"postgres\" need delivery = \"serial\", the default: clients of a database share its data".to_owned());
        }
        let waits_ms = LOCK_WAIT_TIMEOUT_MS_MIN..=LOCK_WAIT_TIMEOUT_MS_MAX;
        if !waits_ms.contains(&self.lock_wait_timeout_ms) {
            return Err("a lock_wait_timeout is between 0.1 s and a year".to_owned());
        }
        if self.protocol != Protocol::Mysql && self.lock_wait_timeout_ms != LOCK_WAIT_TIMEOUT_MS {
            return Err("lock_wait_timeout needs protocol = \"mysql\"".to_owned());
        }
        let ip = self.portal.ip();
        if self.portal.port() == 0 || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
            return Err(format!("{} is no address for a portal, which moves between machines", self.portal));
        }
        let with_servers = self.nodes.iter().filter(|node| !node.is_witness).count();
        match (with_servers, self.nodes.len()) {
            (0, _) => Err("no node has a server: one at least that is no witness".to_owned()),
            (_, 2) => Err(
                "two nodes cannot tell a dead node from a link that is cut, so neither could go on alone: \
                           add a third one, which may be a witness"
                    .to_owned(),
            ),
            (_, count) if count > NODES_MAX => {
                Err(format!("{count} nodes are too many: {NODES_MAX} at the most"))
            }
            _ if !(PROMISE_MS_MIN..=PROMISE_MS_MAX).contains(&self.promise_ms) => Err(format!(
                "a detection time of {} ms is not within {PROMISE_MS_MIN} ms and {PROMISE_MS_MAX} ms",
                self.promise_ms
            )),
            _ => Ok(()),
        }
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Listed> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// All that nodes have to agree on, one in a line, in an order that is the same for all.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "the group's name is {}\nthe portal is {}\nthe detection time is {} ms\n",
            self.name, self.portal, self.promise_ms
        );
        let delivery = match self.delivery {
            Delivery::Serial => "serial",
            Delivery::PerConnection => "per connection",
        };
        let protocol = match self.protocol {
            Protocol::Raw => "raw",
            Protocol::Redis => "redis",
            Protocol::Mysql => "mysql",
            Protocol::Postgres => "postgres",
            #[cfg(test)]
            Protocol::Counted | Protocol::CountedAsked | Protocol::CountedTurns => "counted",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "the delivery is {delivery}\nthe protocol is {protocol}");
        let answers = match self.answers {
            AnswerPolicy::First => "those of the primary, compared with the others",
            AnswerPolicy::Majority => "those of more than half of the members",
            AnswerPolicy::All => "those of all members",
            AnswerPolicy::Reported => "those of the primary, and other ones are reported",
            AnswerPolicy::Unchecked => "those of the primary, not compared",
        };
        let clock = match self.clock {
            ServerClock::Machine => "each machine",
            ServerClock::Order => "the order",
        };
        let _ = writeln!(text, "servers have the time from {clock}\nanswers are {answers}");
        if self.protocol == Protocol::Mysql {
            let _ = writeln!(text, "a statement waits for a lock for {} ms", self.lock_wait_timeout_ms);
        }
        let mut nodes: Vec<&Listed> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| &node.name);
        for Listed { name, address, is_witness } in nodes {
            let kind = if *is_witness { "witness" } else { "node" };
            let _ = writeln!(text, "{kind} {name} is at {address}");
        }
        text
    }
}

/// The first line in which two texts of groups differ, as people are told.
#[must_use]
pub fn difference(here: &str, there: &str) -> Option<String> {
    let (here, there) = (lines(here), lines(there));
    let only = |one: &BTreeSet<&str>, other: &BTreeSet<&str>| {
        one.difference(other).next().map(|line| (*line).to_owned())
    };
    match (only(&here, &there), only(&there, &here)) {
        (None, None) => None,
        (Some(here), Some(there)) => Some(format!("here {here}; there {there}")),
        (Some(here), None) => Some(format!("only here {here}")),
        (None, Some(there)) => Some(format!("only there {there}")),
    }
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
    use super::*;

    pub(in crate::node) fn group() -> Group {
        let node = |(name, last): (&str, u8), is_witness| Listed {
            name: name.to_owned(),
            address: SocketAddr::from(([10, 0, 0, last], 7400)),
            is_witness,
        };
        Group {
            name: "db".to_owned(),
            portal: "10.0.0.250:6379".parse().unwrap(),
            nodes: vec![node(("a", 1), false), node(("b", 2), false), node(("w", 3), true)],
            promise_ms: PROMISE_MS,
            delivery: Delivery::Serial,
            protocol: Protocol::Raw,
            clock: ServerClock::Machine,
            answers: AnswerPolicy::First,
            lock_wait_timeout_ms: LOCK_WAIT_TIMEOUT_MS,
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        group().check().unwrap();
        type Change = fn(&mut Group);
        let changes: [(Change, &str); 14] = [
            (|group| group.name = String::new(), "is no name"),
            (|group| group.nodes[0].name = "a b".to_owned(), "is no name"),
            (|group| group.nodes[1].name = "a".to_owned(), "two nodes are called a"),
            (|group| group.nodes[1].address = group.nodes[0].address, "two nodes have the address"),
            (|group| group.nodes[1].address.set_port(0), "others can connect to"),
            (|group| group.portal.set_ip([10, 0, 0, 2].into()), "is the address of node b"),
            (|group| group.portal.set_ip([127, 0, 0, 1].into()), "is no address for a portal"),
            (|group| group.portal.set_port(0), "is no address for a portal"),
            (|group| group.nodes.truncate(2), "add a third one"),
            (|group| group.nodes.iter_mut().for_each(|node| node.is_witness = true), "no node has a server"),
            (|group| group.promise_ms = 10, "is not within"),
            (|group| group.lock_wait_timeout_ms = 99, "between 0.1 s and a year"),
            (|group| group.lock_wait_timeout_ms = 1_000, "needs protocol = \"mysql\""),
            (|group| group.nodes.clear(), "no node has a server"),
        ];
        for (change, what) in changes {
            let mut group = group();
            change(&mut group);
            let refused = group.check().unwrap_err();
            assert!(refused.contains(what), "{refused}");
        }
    }

    #[test]
    fn lists_in_another_order_agree_and_a_difference_is_named() {
        let mut other = group();
        other.nodes.reverse();
        assert_eq!(difference(&group().text(), &other.text()), None);
        other.nodes[0].address.set_port(7401);
        let found = difference(&group().text(), &other.text()).unwrap();
        assert_eq!(found, "here witness w is at 10.0.0.3:7400; there witness w is at 10.0.0.3:7401");
        other = group();
        other.nodes.pop();
        assert_eq!(
            difference(&group().text(), &other.text()).unwrap(),
            "only here witness w is at 10.0.0.3:7400"
        );
    }
}
