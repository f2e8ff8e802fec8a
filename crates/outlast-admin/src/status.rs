//! What an instance says of itself: what all have, and the page of its capability.

use crate::{kept::Kept, program::Program, replica::Replica, sessions::Sessions};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of these types.
pub const FORMAT: u32 = 1;

/// An instance, as it answers [`Request::Status`](crate::Request::Status).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the answer; 0 before there was one.
    #[serde(default)]
    pub format: u32,
    /// Its process, in its own PID namespace.
    pub pid: u32,
    /// Of the program.
    #[serde(default)]
    pub version: String,
    /// Time since it started.
    #[serde(default)]
    pub up_ms: u64,
    /// The user whom it belongs to, where that is another one than the one who asks. The asker notes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Path of its socket. The asker notes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_socket: Option<String>,
    /// What it does.
    #[serde(flatten)]
    pub page: Page,
}

/// What an instance does, by its `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Page {
    /// `outlast listen` and `outlast connect`.
    Sessions(Sessions),
    /// The process that keeps the sessions of a listener that was stopped.
    Kept(Kept),
    /// `outlast run`.
    Program(Program),
    /// `outlast replicate`.
    Replica(Replica),
    /// Something that another version does.
    #[serde(other)]
    Other,
}

impl Status {
    /// An instance of this process.
    #[must_use]
    pub fn of_this_process(version: &str, up_ms: u64, page: Page) -> Self {
        let (pid, version) = (std::process::id(), version.to_owned());
        Self { format: FORMAT, pid, version, up_ms, user: None, admin_socket: None, page }
    }

    /// Reads an answer of this version, of a newer one, or of 0.1.0, which did not say what kind it is.
    ///
    /// # Errors
    /// It is no status.
    pub fn read(mut answer: Value) -> serde_json::Result<Self> {
        if let Value::Object(fields) = &mut answer
            && !fields.contains_key("kind")
        {
            let kind = match (fields.contains_key("keeps_for"), fields.contains_key("runs")) {
                (true, _) => "kept",
                (_, true) => "program",
                _ if fields.contains_key("serves") => "sessions",
                _ => "",
            };
            fields.insert("kind".to_owned(), kind.into());
        }
        serde_json::from_value(answer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_is_read_again() {
        let pages = [
            Page::Sessions(Sessions { serves: vec!["a".to_owned()], ..Sessions::default() }),
            Page::Kept(Kept { keeps_for: "127.0.0.1:7000".to_owned(), ..Kept::default() }),
            Page::Program(Program { runs: "a".to_owned(), ..Program::default() }),
            Page::Replica(Replica { group: "db".to_owned(), ..Replica::default() }),
        ];
        for page in pages {
            let status = Status::of_this_process("1.2.3", u64::MAX, page);
            let answer = serde_json::to_value(&status).unwrap();
            assert_eq!(answer["format"], FORMAT);
            assert_eq!(Status::read(answer).unwrap(), status);
        }
    }

    #[test]
    fn an_answer_from_before_there_was_a_format_is_read() {
        let sessions = json!({ "pid": 7, "version": "0.1.0", "serves": ["a"], "draining": true, "up_ms": 5, "sessions": [] });
        let read = Status::read(sessions).unwrap();
        assert_eq!((read.format, read.pid, read.up_ms), (0, 7, 5));
        assert!(matches!(read.page, Page::Sessions(page) if page.draining && page.serves == ["a"]));
        let program = Status::read(json!({ "pid": 7, "runs": "a", "main_pid": 9 })).unwrap();
        assert!(matches!(program.page, Page::Program(page) if page.runs == "a" && page.main_pid == 9));
        let kept =
            Status::read(json!({ "pid": 7, "keeps_for": "a:1", "left_ms": 3, "sessions": [] })).unwrap();
        assert!(matches!(kept.page, Page::Kept(page) if page.left_ms == 3));
    }

    #[test]
    fn an_answer_of_a_later_version_is_read_as_far_as_it_is_known() {
        let more = json!({ "format": 9, "pid": 7, "kind": "program", "runs": "a", "colour": [1, 2], "starts": [{ "pid": 3, "x": {} }] });
        let read = Status::read(more).unwrap();
        assert!(matches!(read.page, Page::Program(page) if page.starts[0].pid == 3));
        let other = Status::read(json!({ "format": 9, "pid": 7, "kind": "balance", "view": 3 })).unwrap();
        assert_eq!((other.pid, other.page), (7, Page::Other));
        assert_eq!(Status::read(json!({ "pid": 7 })).unwrap().page, Page::Other);
    }

    #[test]
    fn what_is_no_status_is_an_error() {
        for answer in [
            json!({}),
            json!([]),
            json!({ "error": "busy" }),
            json!({ "pid": -1 }),
            json!({ "pid": 1, "runs": 5 }),
        ] {
            assert!(Status::read(answer.clone()).is_err(), "{answer}");
        }
    }
}
