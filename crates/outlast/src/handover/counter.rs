//! What a keeper tells and does when it is asked as an instance is: `outlast status`, `outlast kill`.

use super::parcel::Parcel;
use crate::admin::{ANSWER_TIMEOUT, REQUEST_BYTES_MAX};
use anyhow::Result;
use outlast_admin::exchange::Matching;
use outlast_admin::kept::{Kept, KeptSession};
use outlast_admin::{Answer, Page, Request, Status};
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
                Answer::refused("it runs no program")
            }
            Ok(
                Request::Switchover { .. }
                | Request::Evict { .. }
                | Request::Recover { .. }
                | Request::Drain {}
                | Request::Join {}
                | Request::Why {},
            ) => Answer::refused("it is no node of a group of replicas"),
            Ok(Request::Status {}) => self.status().into(),
            Ok(Request::Kill { session }) => Answer::Matching(self.kill(&session)),
            Err(error) => Answer::refused(format!("not a request: {error}")),
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

    fn status(&self) -> Status {
        let up_ms = millis(self.started.elapsed());
        let sessions = self.parcels.iter().map(|Parcel { label, .. }| KeptSession {
            id: label.id.clone(),
            state: "kept".to_owned(),
            peer: label.peer.map(|peer| peer.to_string()),
            unacked_bytes: label.unacked_bytes,
            unread_bytes: label.unread_bytes,
            keep_left_ms: label.keep_left_ms.map(|left_ms| left_ms.saturating_sub(up_ms)),
        });
        let page = Kept {
            keeps_for: self.address.to_string(),
            left_ms: millis(self.deadline.saturating_duration_since(Instant::now())),
            sessions: sessions.collect(),
        };
        Status::of_this_process(env!("CARGO_PKG_VERSION"), up_ms, Page::Kept(page))
    }

    /// Ends the one session whose name begins so.
    fn kill(&mut self, prefix: &str) -> Matching {
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
        Matching { matching }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
