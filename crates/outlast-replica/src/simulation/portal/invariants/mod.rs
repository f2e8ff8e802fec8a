//! What has to hold for clients and servers in every schedule, one in a file.

pub mod acknowledged;
pub mod clients;
pub mod fenced;
pub mod progress;
mod same_answers;
mod same_input;
pub mod verdicts;

use super::server::Answer;
use crate::ConnectionId;
use crate::simulation::invariants::Violation;
use crate::view::NodeId;
use std::collections::BTreeMap;
use std::vec::Vec;
extern crate std;

/// What servers of all nodes have read and said, as far as the foremost is.
#[derive(Debug, Default)]
pub struct Stream {
    read: Vec<u8>,
    said: Vec<u8>,
    ended: bool,
}

/// How far the server of one node is.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    read: usize,
    said: usize,
}

/// What is looked at as it happens.
#[derive(Debug, Default)]
pub struct Watch {
    streams: BTreeMap<ConnectionId, Stream>,
    /// A server has ended a stream for a reason of its own: it reads no more of what comes.
    pub has_quit: bool,
    positions: BTreeMap<(NodeId, ConnectionId), Position>,
}

impl Watch {
    /// A node has begun with a copy of another one's server.
    pub fn join(&mut self, node: NodeId, donor: NodeId) {
        self.positions.retain(|(at, _), _| *at != node);
        let copied = self.positions.iter().filter(|((at, _), _)| *at == donor);
        let copied: Vec<_> = copied.map(|((_, connection), at)| ((node, *connection), *at)).collect();
        self.positions.extend(copied);
    }

    /// A server has worked.
    pub fn served(
        &mut self,
        node: NodeId,
        connection: ConnectionId,
        read: &[u8],
        answers: &[Answer],
    ) -> Result<(), Violation> {
        let stream = self.streams.entry(connection).or_default();
        let position = self.positions.entry((node, connection)).or_default();
        same_input::check(stream, position, node, connection, read)?;
        stream.ended |= answers.contains(&Answer::End);
        same_answers::check(stream, position, node, connection, answers)
    }
}

/// Compares what is new at a node with what others have had there, and takes it where none has. What differs, if anything does.
fn extend(all: &mut Vec<u8>, at: &mut usize, new: &[u8]) -> Option<(usize, u8, u8)> {
    for byte in new {
        if *at == all.len() {
            all.push(*byte);
        }
        if all[*at] != *byte {
            return Some((*at, *byte, all[*at]));
        }
        *at += 1;
    }
    None
}
