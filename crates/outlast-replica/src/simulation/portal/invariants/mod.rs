//! What has to hold for clients and servers in every schedule, one in a file.

pub mod acknowledged;
pub mod agreed;
pub mod clients;
pub mod clock;
pub mod differences;
pub mod fenced;
pub mod progress;
mod same_answers;
mod same_input;
pub mod verdicts;

use super::server::{Answer, OWN, own_bytes};
use crate::ConnectionId;
use crate::simulation::invariants::Violation;
use crate::view::NodeId;
use std::collections::BTreeMap;
use std::vec::Vec;
extern crate std;

/// What a server has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Byte {
    /// As all others.
    Same(u8),
    /// A whole answer, as no other server gives it.
    Own,
}

impl Answer {
    /// Byte by byte.
    fn said(&self) -> Vec<Byte> {
        match self {
            Self::Bytes(bytes) => bytes.iter().map(|byte| Byte::Same(*byte)).collect(),
            Self::Own(_) => std::vec![Byte::Own],
            _ => Vec::new(),
        }
    }
}

/// What servers of all nodes have read and said, as far as the foremost is.
#[derive(Debug, Default)]
pub struct Stream {
    read: Vec<u8>,
    said: Vec<Byte>,
    ended: bool,
}

impl Stream {
    /// Whether a client may have got this so far, and whether that is all; none: it may not.
    fn begins_with(&self, mut got: &[u8]) -> Option<bool> {
        for said in &self.said {
            let (first, rest) = match got.split_first() {
                Some((first, rest)) => (*first, rest),
                None => return Some(false),
            };
            got = match said {
                Byte::Same(same) if *same == first => rest,
                Byte::Own if first == OWN => {
                    let Some(own) = rest.first() else { return Some(false) };
                    let mut whole = std::vec![*own; own_bytes(*own) - 1];
                    whole[own_bytes(*own) - 2] = OWN ^ *own;
                    let known = whole.len().min(rest.len());
                    if rest[..known] != whole[..known] {
                        return None;
                    }
                    if rest.len() < whole.len() {
                        return Some(false);
                    }
                    &rest[known..]
                }
                _ => return None,
            };
        }
        got.is_empty().then_some(true)
    }
}

/// How far the server of one node is.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    read: usize,
    said: usize,
}

/// So much of what servers say to a client that has reset its connection is compared. The rest is for nobody, and no entry says what it is.
#[derive(Clone, Copy, Debug)]
struct Gone {
    /// The primary's server had said so much when the reset was put into the order.
    said: usize,
    /// So many answers of its own had their place then: what is behind the next one waited.
    own: u64,
}

impl Gone {
    fn is_compared(self, said: &[Byte], at: usize) -> bool {
        let mut own = (0..said.len()).filter(|at| said[*at] == Byte::Own);
        at < self.said && own.nth(self.own as usize).is_none_or(|waits| at < waits)
    }
}

/// What is looked at as it happens.
#[derive(Debug, Default)]
pub struct Watch {
    streams: BTreeMap<ConnectionId, Stream>,
    /// A server has ended a stream for a reason of its own: it reads no more of what comes.
    pub has_quit: bool,
    positions: BTreeMap<(NodeId, ConnectionId), Position>,
    /// The server of this node has other data, and has said something else to these clients: where, first.
    altered: Option<NodeId>,
    differed: BTreeMap<ConnectionId, usize>,
    /// Clients that have reset their connections.
    gone: BTreeMap<ConnectionId, Gone>,
    /// It is the primary: what it says may end where that of others does not.
    leads: bool,
    /// And clients get what it says.
    misleads: bool,
}

impl Watch {
    /// The server of this node has other data from now on.
    pub fn alter(&mut self, node: NodeId, leads: bool, misleads: bool) {
        (self.altered, self.leads, self.misleads) = (Some(node), leads, misleads);
    }

    /// This server has said something else than the others to a client that has got all, or before a client has gone.
    pub fn has_differed(&self, node: NodeId) -> bool {
        let is_to_be_found = |(connection, at): (&ConnectionId, &usize)| {
            let gone = self.gone.get(connection);
            let is_compared = |stream: &Stream| gone.is_none_or(|gone| gone.is_compared(&stream.said, *at));
            self.streams
                .get(connection)
                .is_some_and(|stream| (stream.ended || gone.is_some()) && is_compared(stream))
        };
        self.altered == Some(node) && self.differed.iter().any(is_to_be_found)
    }

    /// The primary, this node, puts a client's reset into the order.
    pub fn reset(&mut self, node: NodeId, connection: ConnectionId, own: u64) {
        let said = self.positions.get(&(node, connection)).map_or(0, |at| at.said);
        // One that loses its lease may have done so in vain: the next one does it again.
        self.gone.insert(connection, Gone { said, own });
    }

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
        if self.altered == Some(node) {
            self.note_altered(connection, answers);
            return Ok(());
        }
        stream.ended |= answers.contains(&Answer::End);
        same_answers::check(stream, position, node, connection, answers)
    }
}

impl Watch {
    /// The others may have said less so far: then it is not known.
    fn note_altered(&mut self, connection: ConnectionId, answers: &[Answer]) {
        let Some(node) = self.altered else { return };
        let at = &mut self.positions.entry((node, connection)).or_default().said;
        let said = self.streams.get(&connection).map_or(&[][..], |stream| &stream.said);
        for byte in answers.iter().flat_map(Answer::said) {
            if said.get(*at).is_some_and(|other| *other != byte) {
                self.differed.entry(connection).or_insert(*at);
            }
            *at += 1;
        }
    }
}

/// Compares what is new at a node with what others have had there, and takes it where none has. What differs, if anything does.
fn extend<T: Copy + PartialEq>(all: &mut Vec<T>, at: &mut usize, new: &[T]) -> Option<(usize, T, T)> {
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
