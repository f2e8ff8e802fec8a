//! What the two ends say about a session: what `outlast status --json` shows, asked for at their admin sockets.

use anyhow::{Context, Result, bail, ensure};
use outlast_admin::Page;
use outlast_admin::sessions::Session;
use std::path::Path;
use std::time::Duration;

/// A frozen program does not answer. The demo goes on without.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// The sessions of the instance behind an admin socket.
pub fn sessions(socket: &Path) -> Result<Vec<Session>> {
    let status = outlast_admin::client::status(socket, ANSWER_TIMEOUT)?;
    let Page::Sessions(page) = status.page else { bail!("the instance has no sessions") };
    Ok(page.sessions)
}

/// The two ends of one session.
#[derive(Clone, Debug, Default, PartialEq)]
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
