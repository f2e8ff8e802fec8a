//! What the two ends say about a session: what `outlast status --json` shows, asked for at their admin sockets.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A frozen program does not answer. The demo goes on without.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

#[derive(Debug, Deserialize)]
struct Instance {
    sessions: Vec<Session>,
}

/// What is used of a session's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Session {
    pub id: String,
    pub state: String,
    pub mode: Option<String>,
    pub written_bytes: u64,
    pub read_bytes: u64,
    pub outages: u64,
    pub pause_now_ms: Option<u64>,
    pub resent_bytes: u64,
    age_ms: u64,
}

/// The sessions of the instance behind an admin socket.
pub fn sessions(socket: &Path) -> Result<Vec<Session>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(b"{\"do\":\"status\"}\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let instance: Instance = serde_json::from_str(&answer).context("the answer is no status")?;
    Ok(instance.sessions)
}

/// The two ends of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    pub client: Session,
    pub server: Session,
}

impl Ends {
    /// The youngest session of the client, at both ends.
    pub fn ask(client: &Path, server: &Path) -> Result<Self> {
        let client = sessions(client)?.into_iter().min_by_key(|session| session.age_ms);
        let client = client.context("the client has no session")?;
        let server = sessions(server)?.into_iter().find(|session| session.id == client.id);
        let server = server.context("the server does not know the session")?;
        ensure!(!client.id.is_empty(), "a session without a name");
        Ok(Self { client, server })
    }

    /// Whether both ends are on a link.
    pub fn connected(&self) -> bool {
        [&self.client, &self.server].iter().all(|end| end.state == "connected" && end.pause_now_ms.is_none())
    }

    /// Links lost so far, as far as either end has noticed.
    pub fn outages(&self) -> u64 {
        self.client.outages.max(self.server.outages)
    }

    /// Bytes that went over a link more than once, both ways.
    pub fn resent_bytes(&self) -> u64 {
        self.client.resent_bytes + self.server.resent_bytes
    }
}
