//! What a keeper tells and does when it is asked as an instance is: `outlast status`, `outlast kill`.

use super::parcel::Parcel;
use crate::admin::{ANSWER_TIMEOUT, REQUEST_BYTES_MAX, Request};
use anyhow::Result;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A keeper with what it keeps.
#[derive(Debug)]
pub struct Counter {
    /// Where the sessions were served.
    pub address: SocketAddr,
    pub parcels: Vec<Parcel>,
    pub started: Instant,
    /// When what nobody came for is given up.
    pub deadline: Instant,
}

impl Counter {
    /// One exchange: a line of JSON each way.
    pub fn serve(&mut self, mut stream: &UnixStream) -> Result<()> {
        // The next process should not have to wait for somebody who asks nothing.
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut line = String::new();
        BufReader::new(stream.take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
        let answer = match serde_json::from_str(&line) {
            Ok(Request::Upgrade { .. } | Request::Outcome { .. } | Request::Withdraw { .. }) => {
                json!({ "error": "it runs no program" })
            }
            Ok(Request::Status {}) => self.status(),
            Ok(Request::Kill { session }) => self.kill(&session),
            Err(error) => json!({ "error": format!("not a request: {error}") }),
        };
        let mut bytes = serde_json::to_vec(&answer)?;
        bytes.push(b'\n');
        Ok(stream.write_all(&bytes)?)
    }

    /// Gives up what nobody came for in time. When there will be more of that; none if nothing is left.
    pub fn next_end(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let (started, deadline) = (self.started, self.deadline);
        let ends = |parcel: &Parcel| {
            let kept_until =
                parcel.label.keep_left_ms.and_then(|ms| started.checked_add(Duration::from_millis(ms)));
            kept_until.map_or(deadline, |until| until.min(deadline))
        };
        // Dropping one resets its program's connection.
        self.parcels.retain(|parcel| ends(parcel) > now);
        self.parcels.iter().map(ends).min()
    }

    fn status(&self) -> Value {
        let sessions: Vec<Value> = self
            .parcels
            .iter()
            .map(|Parcel { label, .. }| {
                json!({
                    "id": label.id,
                    "state": "kept",
                    "peer": label.peer,
                    "unacked_bytes": label.unacked_bytes,
                    "unread_bytes": label.unread_bytes,
                    "keep_left_ms": label.keep_left_ms.map(|left| left.saturating_sub(millis(self.started.elapsed()))),
                })
            })
            .collect();
        json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "keeps_for": self.address,
            "left_ms": millis(self.deadline.saturating_duration_since(Instant::now())),
            "up_ms": millis(self.started.elapsed()),
            "sessions": sessions,
        })
    }

    /// Ends the one session whose name begins so.
    fn kill(&mut self, prefix: &str) -> Value {
        let begins = |parcel: &Parcel| parcel.label.id.starts_with(prefix);
        let matching: Vec<String> = self
            .parcels
            .iter()
            .filter(|parcel| begins(parcel))
            .map(|parcel| parcel.label.id.clone())
            .collect();
        if matching.len() == 1 {
            // Dropping it resets its program; its client learns that there is no such session when it asks for it.
            self.parcels.retain(|parcel| !begins(parcel));
        }
        json!({ "matching": matching })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
