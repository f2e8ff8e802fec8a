//! Another binary for the program that `outlast run` keeps running: what is answered to
//! [`Request::Upgrade`](crate::Request::Upgrade) and to the questions that follow.

use crate::program::Generation;
use serde::{Deserialize, Serialize};

/// [`UpgradeRefused::error`] where the program has crashed: to be asked for again in a moment.
pub const RESTARTING: &str = "it is being started again after a crash";
/// [`UpgradeRefused::error`] where the program has to be stopped for it, and that was not forced.
pub const CLOSES_CONNECTIONS: &str = "closes connections";

/// Whether an upgrade was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum UpgradeAnswer {
    /// It was.
    Begun(UpgradeBegun),
    /// It was not.
    Refused(UpgradeRefused),
}

/// An upgrade that was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpgradeBegun {
    /// Its number, for questions about it.
    pub wish: u32,
    /// The program is stopped and started: there is no generation that follows.
    #[serde(default)]
    pub replaced: bool,
    /// What the new program has of the old one.
    #[serde(default)]
    pub keeps: Keeps,
    /// The file that is meant.
    #[serde(default)]
    pub program: Option<String>,
}

/// What a new program has of the old one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keeps {
    /// All connections, and its state.
    Everything,
    /// Listening sockets and idle connections.
    Idle,
    /// Listening sockets.
    Listeners,
    /// Nothing.
    Nothing,
    /// It does not say.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Why an upgrade was not begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpgradeRefused {
    /// In a few words.
    pub error: String,
    /// What is in the way.
    #[serde(default)]
    pub why: Option<String>,
    /// The upgrade that is under way already.
    #[serde(default)]
    pub upgrade: Option<UnderWay>,
}

impl UpgradeRefused {
    /// For this reason.
    #[must_use]
    pub fn new(error: impl Into<String>) -> Self {
        Self { error: error.into(), why: None, upgrade: None }
    }
}

/// An upgrade that is not over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnderWay {
    /// To which program; none: to what is at its path now.
    pub program: Option<String>,
    /// Since when, in milliseconds since 1970.
    pub began_ms: u64,
    /// The new one has so long to serve.
    pub timeout_ms: u64,
    /// The old one is told to end, and has not: the time has not begun.
    pub old_ends: bool,
}

/// What became of an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpgradeOutcome {
    /// Whether the new program serves; none: that is not known yet.
    pub done: Option<bool>,
    /// Why it does not.
    pub kind: Option<WhyNot>,
    /// The same, in words.
    pub why: String,
    /// How the new program has ended.
    pub how: Option<String>,
    /// The old program was not touched.
    pub untouched: bool,
    /// The old program is told to end, and has not.
    pub old_ends: bool,
    /// The main process now; 0 while there is none.
    pub main_pid: u32,
    /// The program is being stopped for good.
    pub stopping: bool,
    /// The last generation.
    pub generation: Option<Generation>,
}

/// Why a new program does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhyNot {
    /// The old one cannot become another.
    Unable,
    /// It cannot be executed.
    #[serde(rename = "cannot run")]
    CannotRun,
    /// It has ended.
    Ended,
    /// It did not serve in time.
    #[serde(rename = "too late")]
    TooLate,
    /// It is no longer wanted.
    Cancelled,
    /// Nobody answered.
    Unanswered,
    /// The old one was killed.
    #[serde(rename = "old killed")]
    OldKilled,
    /// The program is stopped for good.
    Stopped,
    /// Something that another version says.
    #[serde(other)]
    Other,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message")]
mod tests {
    use super::*;
    use serde_json::{from_value, json, to_value};

    #[test]
    fn begun_and_refused_are_told_apart() {
        let begun = json!({ "wish": 3, "replaced": true, "keeps": "listeners", "program": "/bin/a" });
        let read: UpgradeAnswer = from_value(begun.clone()).unwrap();
        assert!(
            matches!(&read, UpgradeAnswer::Begun(begun) if begun.wish == 3 && begun.keeps == Keeps::Listeners)
        );
        assert_eq!(to_value(&read).unwrap(), begun);
        let refused = json!({ "error": CLOSES_CONNECTIONS, "why": "it has several processes" });
        assert!(
            matches!(from_value(refused).unwrap(), UpgradeAnswer::Refused(refused) if refused.why.is_some())
        );
        assert!(from_value::<UpgradeAnswer>(json!({})).is_err());
    }

    #[test]
    fn words_of_a_later_version_are_no_error() {
        let begun = json!({ "wish": 3, "keeps": "some" });
        assert!(
            matches!(from_value(begun).unwrap(), UpgradeAnswer::Begun(begun) if begun.keeps == Keeps::Unknown)
        );
        let outcome: UpgradeOutcome = from_value(json!({ "done": false, "kind": "too early" })).unwrap();
        assert_eq!(outcome.kind, Some(WhyNot::Other));
        let outcome: UpgradeOutcome = from_value(json!({ "done": false, "kind": "too late" })).unwrap();
        assert_eq!(outcome.kind, Some(WhyNot::TooLate));
        assert_eq!(to_value(WhyNot::OldKilled).unwrap(), "old killed");
    }
}
