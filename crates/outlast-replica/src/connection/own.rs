//! Replies that each server gives in its own way, though all hold the same data: in another order, or about itself. A client may get the beginning
//! of one from a node, and the rest from another; and what comes behind it has to be at the same position at all nodes. So the reply of the primary's
//! server has a place in the order, and all nodes put that one in the place of their own.

use super::comparison::Part;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// What a server has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// This, as every server.
    Bytes(&'a [u8]),
    /// All of a reply.
    Part(Part),
    /// All of a reply that every server gives in its own way.
    Own(&'a [u8], Part),
}

/// The same, kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Bytes(Vec<u8>),
    Part(Part),
}

impl Kept {
    pub(crate) fn as_piece(&self) -> Piece<'_> {
        match self {
            Self::Bytes(bytes) => Piece::Bytes(bytes),
            Self::Part(part) => Piece::Part(*part),
        }
    }
}

#[derive(Debug)]
enum Waiting {
    Kept(Kept),
    /// A reply of this node's server, until it is known what clients get.
    Own {
        number: u64,
        bytes: Arc<[u8]>,
        part: Part,
    },
}

/// A reply that clients get, as far as it has come.
#[derive(Debug, Default)]
struct Canonical {
    bytes: Vec<u8>,
    is_whole: bool,
}

/// Of one connection, at one node.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// So many such replies the server has given.
    count: u64,
    /// So many were put in their place.
    done: u64,
    waiting: VecDeque<Waiting>,
    /// Those that wait and have no entry, as far as is known.
    unproposed: VecDeque<(u64, Arc<[u8]>)>,
    canonical: BTreeMap<u64, Canonical>,
    /// Of all of these.
    canonical_bytes: usize,
}

impl Own {
    /// On a connection on which another server has given so many, and all are in their place.
    pub(crate) fn resumed(count: u64) -> Self {
        Self { count, done: count, ..Self::default() }
    }

    /// So many were put in their place.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Something waits for a reply that clients get.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The server has said this. It is given back where nothing is waited for.
    pub(crate) fn take<'a>(&mut self, piece: Piece<'a>) -> Option<Piece<'a>> {
        match piece {
            Piece::Own(bytes, part) => {
                let (number, bytes) = (self.count, Arc::<[u8]>::from(bytes));
                self.count += 1;
                // Of an earlier primary there may be a part of it, and nobody has the rest.
                if !self.canonical.get(&number).is_some_and(|canonical| canonical.is_whole) {
                    self.unproposed.push_back((number, bytes.clone()));
                }
                self.waiting.push_back(Waiting::Own { number, bytes, part });
            }
            Piece::Bytes([]) => {}
            piece if self.waiting.is_empty() => return Some(piece),
            Piece::Bytes(bytes) => self.waiting.push_back(Waiting::Kept(Kept::Bytes(bytes.to_vec()))),
            Piece::Part(part) => self.waiting.push_back(Waiting::Kept(Kept::Part(part))),
        }
        None
    }

    /// Clients get this in its place.
    pub(crate) fn take_canonical(&mut self, number: u64, offset: u64, is_last: bool, bytes: &[u8]) {
        if number < self.done {
            return;
        }
        while self.unproposed.pop_front_if(|(unproposed, _)| *unproposed <= number).is_some() {}
        let canonical = self.canonical.entry(number).or_default();
        if canonical.is_whole {
            return;
        }
        if offset == 0 {
            // Of another primary: the one before has not come to the end.
            self.canonical_bytes -= canonical.bytes.len();
            canonical.bytes.clear();
        }
        if canonical.bytes.len() as u64 == offset {
            self.canonical_bytes += bytes.len();
            canonical.bytes.extend_from_slice(bytes);
            canonical.is_whole = is_last;
        }
    }

    /// What comes next, if that is known.
    pub(crate) fn next(&mut self) -> Option<Kept> {
        let (number, part) = match self.waiting.front()? {
            Waiting::Kept(_) => {
                let Some(Waiting::Kept(kept)) = self.waiting.pop_front() else { return None };
                return Some(kept);
            }
            Waiting::Own { number, part, .. } => (*number, *part),
        };
        if !self.canonical.get(&number).is_some_and(|canonical| canonical.is_whole) {
            return None;
        }
        let bytes = self.canonical.remove(&number)?.bytes;
        self.canonical_bytes -= bytes.len();
        self.done = number + 1;
        if let Some(waiting) = self.waiting.front_mut() {
            *waiting = Waiting::Kept(Kept::Part(part));
        }
        Some(Kept::Bytes(bytes))
    }

    /// At the primary: the next reply that has no entry.
    pub(crate) fn propose(&mut self) -> Option<(u64, Arc<[u8]>)> {
        self.unproposed.pop_front()
    }

    /// What was only proposed is forgotten.
    pub(crate) fn forget_proposals(&mut self) {
        let whole = |number: &u64| self.canonical.get(number).is_some_and(|canonical| canonical.is_whole);
        let own = self.waiting.iter().filter_map(|waiting| match waiting {
            Waiting::Own { number, bytes, .. } if !whole(number) => Some((*number, bytes.clone())),
            _ => None,
        });
        self.unproposed = own.collect();
    }

    /// So many bytes have come that the server has not got to.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.canonical_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_which_an_earlier_primary_has_ordered_a_part_is_ordered_by_the_next_one() {
        let part = Part { digest: 0, end: 0, name: [0; crate::connection::comparison::NAME_BYTES] };
        let mut own = Own::default();
        own.take_canonical(0, 0, false, b"other");
        assert_eq!(own.take(Piece::Own(b"mine", part)), None);
        assert_eq!(own.take(Piece::Bytes(b"+OK")), None);
        assert!(own.next().is_none());
        let (number, bytes) = own.propose().unwrap();
        assert_eq!((number, &*bytes, own.propose()), (0, &b"mine"[..], None));
        own.take_canonical(0, 0, false, b"mi");
        own.take_canonical(0, 2, true, b"ne");
        // What comes late of the first one changes nothing.
        own.take_canonical(0, 5, true, b" end");
        let all: Vec<Kept> = core::iter::from_fn(|| own.next()).collect();
        assert_eq!(all, [Kept::Bytes(b"mine".to_vec()), Kept::Part(part), Kept::Bytes(b"+OK".to_vec())]);
        assert_eq!((own.waits(), own.waiting_bytes(), own.done()), (false, 0, 1));
    }
}
