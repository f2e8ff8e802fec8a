//! The page of `outlast run`: the program that is kept running, and what became of it before.

use crate::upgrade::UnderWay;
use serde::{Deserialize, Serialize};

/// A program that is kept running.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    /// What it is called (`--name`).
    pub runs: String,
    /// The command.
    pub program: Vec<String>,
    /// What serves since an upgrade, where that is another program than on the command line.
    pub serves_program: Option<String>,
    /// The upgrade that is under way.
    pub upgrade: Option<UnderWay>,
    /// Its main process; 0 while it is to be started again.
    pub main_pid: u32,
    /// A process of an earlier one of its name that still serves, whose end it waits for before it is started; 0 for none.
    pub awaited_pid: u32,
    /// It has said so, or listens.
    pub ready: bool,
    /// It was told to end, and is started again then.
    pub replacing: bool,
    /// It was told to end, for good.
    pub stopping: bool,
    /// What it says of itself (`STATUS=` of sd_notify).
    pub said: Option<String>,
    /// The preload library is loaded into it.
    pub preloaded: bool,
    /// How its connections survive: `none`, `library`, `exec` or `roles`.
    pub backend: String,
    /// The process that starts its generations was killed.
    pub without_zygote: bool,
    /// Starts by the supervisor, the last one last.
    pub starts: Vec<Start>,
    /// How often it was started; the list has the latest.
    pub starts_count: u64,
    /// Processes of the program that have crashed.
    pub crashes: Crashes,
    /// Number of the generation that serves; 0 without the library.
    pub generation: u32,
    /// Generations, the last one last.
    pub generations: Vec<Generation>,
    /// Connections that the next generation would have.
    pub connections: u32,
    /// Bytes that are held for them.
    pub held_bytes: u64,
    /// Requests that have crashed generations, and are not given to others.
    pub quarantined: Quarantine,
}

impl Program {
    /// Its main process, and the generation that serves; 0 for none.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        [Some(self.main_pid), self.generations.last().map(|last| last.pid)].into_iter().flatten()
    }
}

/// One start of the program. Times are in milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// From 1.
    pub number: u32,
    /// Its main process.
    pub pid: u32,
    /// When.
    pub began_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How it ended, in words.
    pub how: Option<String>,
}

/// A generation of a program that uses the library, or of one of its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generation {
    /// From 1.
    pub number: u32,
    /// Which process of several it is.
    pub role: String,
    /// Its process.
    pub pid: u32,
    /// When it began, in milliseconds since 1970.
    pub began_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How it ended, in words.
    pub how: Option<String>,
    /// Why it ended: `crash`, `killed`, `out of memory`, `hang`, `upgrade`, `ended` or `unknown`.
    pub cause: Option<String>,
    /// Nobody served for so long before it did; 0 where that is not known.
    pub pause_ns: u64,
    /// What the pause lasts until: `serves` or `listens`.
    pub pause_until: String,
}

/// Crashes of processes of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Crashes {
    /// All since the start.
    pub count: u64,
    /// Their connections that were kept.
    pub connections_kept: u64,
    /// Their connections that were closed.
    pub connections_closed: u64,
    /// The latest, the last one last.
    pub kept: Vec<Crash>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Crash {
    /// The process.
    pub pid: u32,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// How, in words.
    pub how: Option<String>,
    /// Its connections that were kept.
    pub kept: u32,
    /// Its connections that were closed.
    pub closed: u32,
}

/// Requests that are given to nobody any more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quarantine {
    /// All since the start.
    pub count: u32,
    /// The latest.
    pub kept: Vec<Quarantined>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quarantined {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The generation that refused it.
    pub generation: u32,
    /// The client that sent it.
    pub peer: String,
    /// How long it is, as far as it was received.
    pub length: u32,
    /// Its beginning.
    pub bytes_base64: String,
}
