//! The file that lists the nodes of a group: the same at each of them.

use crate::cli::values::duration;
use crate::exit::Failure;
use crate::files::{FILE_BYTES_MAX, unreadable};
use anyhow::Result;
use outlast_replica::node::group::{Group, LOCK_WAIT_TIMEOUT_MS, Listed, PROMISE_MS};
use outlast_replica::{AnswerPolicy, Delivery, Protocol, ServerClock};
use serde::Deserialize;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    portal: SocketAddr,
    detect: Option<String>,
    #[serde(default)]
    delivery: FileDelivery,
    #[serde(default)]
    protocol: FileProtocol,
    #[serde(default)]
    clock: FileClock,
    answers: Option<FileAnswers>,
    lock_wait_timeout: Option<String>,
    node: Vec<Node>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileDelivery {
    #[default]
    Serial,
    PerConnection,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileProtocol {
    #[default]
    Raw,
    Redis,
    Mysql,
    Postgres,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileClock {
    #[default]
    Machine,
    Order,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileAnswers {
    First,
    Majority,
    All,
    Reported,
    Unchecked,
}

impl FileAnswers {
    /// Where servers have clocks of their own, a difference may have a good reason: a key has expired at one of them a moment before. A group that
    /// takes out its backups for it is worse off than without.
    fn by_default(clock: FileClock) -> Self {
        match clock {
            FileClock::Machine => Self::Reported,
            FileClock::Order => Self::First,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    name: String,
    address: SocketAddr,
    #[serde(default)]
    witness: bool,
}

/// Reads the list.
pub fn read(path: &Path) -> Result<Group> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| unreadable("group", path, &error))?;
    parse(&text).map_err(|what| Failure::usage(format!("{}: {what}", path.display())))
}

fn parse(text: &str) -> Result<Group, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text.get(..span.start).unwrap_or(text).matches('\n').count() + 1);
        let what = error.message().replace('\n', ", ");
        line.map_or_else(|| what.clone(), |line| format!("line {line}: {what}"))
    })?;
    let millis = |name: &str, text: &Option<String>, default_ms: u64| -> Result<u64, String> {
        match text {
            None => Ok(default_ms),
            Some(text) => {
                let time = duration(text).map_err(|what| format!("{name}: {what}"))?;
                Ok(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
            }
        }
    };
    let promise_ms = millis("detect", &file.detect, PROMISE_MS)?;
    let lock_wait_timeout_ms = millis("lock_wait_timeout", &file.lock_wait_timeout, LOCK_WAIT_TIMEOUT_MS)?;
    let nodes = file.node.into_iter().map(|Node { name, address, witness }| Listed {
        name,
        address,
        is_witness: witness,
    });
    let delivery = match file.delivery {
        FileDelivery::Serial => Delivery::Serial,
        FileDelivery::PerConnection => Delivery::PerConnection,
    };
    let protocol = match file.protocol {
        FileProtocol::Raw => Protocol::Raw,
        FileProtocol::Redis => Protocol::Redis,
        FileProtocol::Mysql => Protocol::Mysql,
        FileProtocol::Postgres => Protocol::Postgres,
    };
    let clock = match file.clock {
        FileClock::Machine => ServerClock::Machine,
        FileClock::Order => ServerClock::Order,
    };
    let answers = match file.answers.unwrap_or_else(|| FileAnswers::by_default(file.clock)) {
        FileAnswers::First => AnswerPolicy::First,
        FileAnswers::Majority => AnswerPolicy::Majority,
        FileAnswers::All => AnswerPolicy::All,
        FileAnswers::Reported => AnswerPolicy::Reported,
        FileAnswers::Unchecked => AnswerPolicy::Unchecked,
    };
    let (name, portal) = (file.name, file.portal);
    let nodes = nodes.collect();
    let group =
        Group { name, portal, nodes, promise_ms, delivery, protocol, clock, answers, lock_wait_timeout_ms };
    group.check()?;
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
name = \"db\"
portal = \"10.0.0.250:6379\"

[[node]]
name = \"a\"
address = \"10.0.0.1:7400\"

[[node]]
name = \"b\"
address = \"10.0.0.2:7400\"

[[node]]
name = \"w\"
address = \"10.0.0.3:7400\"
witness = true
";

    #[test]
    fn a_list_is_read() {
        let group = parse(TEXT).unwrap();
        assert_eq!((group.name.as_str(), group.nodes.len(), group.promise_ms), ("db", 3, PROMISE_MS));
        assert!(group.node("w").unwrap().is_witness);
        let waits = TEXT.replacen('\n', "\nprotocol = \"mysql\"\nlock_wait_timeout = \"5s\"\n", 1);
        assert_eq!(parse(&waits).unwrap().lock_wait_timeout_ms, 5_000);
        let slower = TEXT.replacen('\n', "\ndetect = \"0.5s\"\n", 1);
        assert_eq!(parse(&slower).unwrap().promise_ms, 500);
        assert_eq!(group.answers, AnswerPolicy::Reported);
        for (text, answers) in [
            ("first", AnswerPolicy::First),
            ("majority", AnswerPolicy::Majority),
            ("all", AnswerPolicy::All),
            ("unchecked", AnswerPolicy::Unchecked),
        ] {
            let list = TEXT.replacen('\n', &format!("\nanswers = \"{text}\"\n"), 1);
            assert_eq!(parse(&list).unwrap().answers, answers);
        }
        // Where servers have the same time there is no good reason to differ.
        assert_eq!(group.clock, ServerClock::Machine);
        let ordered = "\nclock = \"order\"\nprotocol = \"redis\"\n";
        let group = parse(&TEXT.replacen('\n', ordered, 1)).unwrap();
        assert_eq!((group.clock, group.answers), (ServerClock::Order, AnswerPolicy::First));
        let told = parse(&TEXT.replacen('\n', &format!("{ordered}answers = \"reported\"\n"), 1)).unwrap();
        assert_eq!(told.answers, AnswerPolicy::Reported);
    }

    #[test]
    fn that_of_the_guide_is_understood() {
        let guide = include_str!("../../../../docs/replica.md");
        let mut blocks = guide.split("```text\n").filter_map(|block| block.split("```").next());
        let group = parse(blocks.find(|block| block.contains("[[node]]")).unwrap()).unwrap();
        assert_eq!((group.nodes.len(), group.protocol), (3, Protocol::Redis));
        assert_eq!(group.clock, ServerClock::Order);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (from, to, what) in [
            ("witness", "witnes", "line 15: unknown field `witnes`"),
            ("10.0.0.2:7400", "10.0.0.2", "line 10: invalid socket address syntax"),
            ("name = \"db\"", "", "missing field `name`"),
            ("name = \"db\"", "name = \"db\"\ndetect = \"soon\"", "detect: "),
            ("name = \"db\"", "name = \"db\"\nlock_wait_timeout = \"long\"", "lock_wait_timeout: "),
            ("name = \"b\"", "name = \"a\"", "two nodes are called a"),
            ("portal = \"10.0.0.250:6379\"", "portal = [", "line"),
            (
                "name = \"db\"",
                "name = \"db\"\ndelivery = \"any\"",
                "unknown variant `any`, expected `serial` or `per-connection`",
            ),
            (
                "name = \"db\"",
                "name = \"db\"\nclock = \"Order\"",
                "unknown variant `Order`, expected `machine` or `order`",
            ),
            (
                "name = \"db\"",
                "name = \"db\"\nclock = \"order\"",
                "clock = \"order\" needs protocol = \"redis\"",
            ),
            (
                "name = \"db\"",
                "name = \"db\"\nclock = \"order\"\nprotocol = \"redis\"\ndelivery = \"per-connection\"",
                "delivery = \"serial\", the default",
            ),
            (
                "name = \"db\"",
                "name = \"db\"\nanswers = \"any\"",
                "unknown variant `any`, expected one of `first`, `majority`, `all`, `reported`, `unchecked`",
            ),
        ] {
            let refused = parse(&TEXT.replacen(from, to, 1)).unwrap_err();
            assert!(refused.contains(what), "{refused}");
            assert!(!refused.contains('\n'), "{refused}");
        }
    }
}
