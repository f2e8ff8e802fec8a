//! What nodes say to each other about the consensus, over TCP connections: a length of four bytes, little-endian, and a message. Each
//! request has one answer, in its order.

use super::store::Proposal;
use super::{Member, Types};
use openraft::LogId;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// With what a connection begins, from the one who connects.
pub(crate) const MAGIC: [u8; 8] = *b"outlast\x1d";
/// A longer message is none. A log has views and memberships of some nodes, and is cut every few hundred entries.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Types>),
    /// Whether the node would vote for one whose last entry is this.
    Ask {
        last: Option<LogId<u64>>,
    },
    /// The primary of this view asks for what is left of the lease.
    Borrow {
        node: u64,
        epoch: u64,
        /// By that node's clock.
        asked_ms: u64,
    },
    /// The primary has given back what it had borrowed, by its own clock then.
    Return {
        node: u64,
        returned_ms: u64,
    },
    /// The primary wants this view, for a node that has all that it has.
    Propose(Proposal),
    /// A node that was started again wants the vote of the dead one of the same name.
    Enter {
        node: u64,
        member: Member,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Append(AppendEntriesResponse<u64>),
    Vote(VoteResponse<u64>),
    Snapshot(InstallSnapshotResponse<u64>),
    WouldVote(bool),
    /// So much is left; none: nothing is lent.
    Lent(Option<u64>),
    /// It is known.
    Returned,
    /// Whether it was decided.
    Proposed(bool),
    /// Whether it has the vote.
    Entered(bool),
    /// The node has promised something else, does not lead, or ends.
    Refused,
}

pub(crate) async fn send<T: Serialize>(stream: &mut TcpStream, message: &T) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(message, bytes).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    let length = u32::try_from(length).ok().filter(|_| length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    if let Some(head) = bytes.first_chunk_mut() {
        *head = length.to_le_bytes();
    }
    stream.write_all(&bytes).await
}

/// None at the end of the stream.
pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<Option<T>> {
    let length = match stream.read_u32_le().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let mut bytes = vec![0; length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?];
    stream.read_exact(&mut bytes).await?;
    decode(&bytes).map(Some)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
