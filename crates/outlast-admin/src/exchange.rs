//! What can be asked, and what is answered.

use crate::Status;
use crate::replica::{Drains, Evicted, Explained, Joins, Recovers, RecoveryPlan, Switched};
use crate::upgrade::{UpgradeAnswer, UpgradeOutcome};
use serde::{Deserialize, Serialize};

/// What an instance can be asked. An instance refuses what it does not know: a field that is new is left out where it was
/// not given, so that instances of earlier versions understand the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "do", deny_unknown_fields)]
pub enum Request {
    /// How it is: [`Status`].
    Status {},
    /// To end the session whose name begins so: [`Matching`].
    Kill {
        /// The beginning of its name.
        session: String,
    },
    /// To have the program that it runs go on as another binary: [`UpgradeAnswer`].
    Upgrade {
        /// Path of the binary; empty for the same one.
        program: String,
        /// A program that cannot keep its connections is stopped and started.
        force: bool,
        /// The new one has so long to serve; then the old one goes on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
    /// How the upgrade of this number has ended: [`UpgradeOutcome`].
    Outcome {
        /// [`UpgradeBegun::wish`](crate::upgrade::UpgradeBegun::wish).
        wish: u32,
    },
    /// To make another member of the view the primary: [`Switched`].
    Switchover {
        /// Which one; none: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// To take a member out of the view: [`Evicted`].
    Evict {
        /// Which one.
        node: String,
    },
    /// To leave the group, and end: [`Drains`].
    Drain {},
    /// What has happened to the group, and why: [`Explained`].
    Why {},
    /// To replace the data of its server, which is out of the group, by those of another one, and to take part again: [`Joins`].
    Join {},
    /// How the group could be founded again by the nodes that answer: [`RecoveryPlan`]. With the number of that plan: to do so ([`Recovers`]).
    Recover {
        /// Whose data it is to go on with; none: those of a member of the last view.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// [`RecoveryPlan::plan`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<u64>,
    },
    /// That the upgrade of this number is no longer wanted, and the old program goes on: [`Withdrawn`].
    Withdraw {
        /// As above.
        wish: u32,
    },
}

/// What is answered to a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Kill`].
    Matching(Matching),
    /// To [`Request::Upgrade`].
    Upgrade(UpgradeAnswer),
    /// To [`Request::Outcome`].
    Outcome(Box<UpgradeOutcome>),
    /// To [`Request::Withdraw`].
    Withdrawn(Withdrawn),
    /// To [`Request::Switchover`].
    Switched(Switched),
    /// To [`Request::Evict`].
    Evicted(Evicted),
    /// To [`Request::Drain`].
    Drains(Drains),
    /// To [`Request::Join`].
    Joins(Joins),
    /// To [`Request::Why`].
    Explained(Explained),
    /// To [`Request::Recover`].
    RecoveryPlan(Box<RecoveryPlan>),
    /// To the same, with the number of the plan.
    Recovers(Recovers),
    /// To anything.
    Refused(Refused),
}

/// Sessions whose names begin as asked. If it is only one, it has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Matching {
    /// Their names.
    pub matching: Vec<String>,
}

/// Whether an upgrade was under way, and is not any more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Withdrawn {
    /// It was.
    pub cancelled: bool,
}

/// Nothing is done. An answer with more than that is another one: see [`UpgradeRefused`](crate::upgrade::UpgradeRefused).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// Why.
    pub error: String,
}

impl Answer {
    /// Nothing is done, for this reason.
    #[must_use]
    pub fn refused(error: impl Into<String>) -> Self {
        Self::Refused(Refused { error: error.into() })
    }
}

impl From<Status> for Answer {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message")]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_earlier_versions_understand() {
        for (request, line) in [
            (Request::Status {}, r#"{"do":"status"}"#),
            (Request::Kill { session: "ab".to_owned() }, r#"{"do":"kill","session":"ab"}"#),
            (
                Request::Upgrade { program: String::new(), force: false, timeout_ms: None },
                r#"{"do":"upgrade","program":"","force":false}"#,
            ),
            (Request::Outcome { wish: 3 }, r#"{"do":"outcome","wish":3}"#),
            (Request::Switchover { to: None }, r#"{"do":"switchover"}"#),
            (Request::Evict { node: "b".to_owned() }, r#"{"do":"evict","node":"b"}"#),
            (Request::Why {}, r#"{"do":"why"}"#),
            (Request::Drain {}, r#"{"do":"drain"}"#),
            (Request::Join {}, r#"{"do":"join"}"#),
            (Request::Recover { from: None, plan: None }, r#"{"do":"recover"}"#),
            (
                Request::Recover { from: Some("b".to_owned()), plan: Some(7) },
                r#"{"do":"recover","from":"b","plan":7}"#,
            ),
            (Request::Withdraw { wish: 3 }, r#"{"do":"withdraw","wish":3}"#),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
            assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        }
    }
}
