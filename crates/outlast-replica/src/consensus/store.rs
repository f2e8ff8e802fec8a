//! What a node remembers of the consensus: in memory only. A node that was started again has lost it, and is another one.

use super::{Member, Types};
use crate::history::Recovered;
use crate::view::{NodeId, View};
use openraft::storage::{LogFlushed, RaftLogStorage, RaftStateMachine};
use openraft::{
    Entry, EntryPayload, LogId, LogState, OptionalSend, RaftLogReader, RaftSnapshotBuilder, Snapshot,
    SnapshotMeta, StorageError, StorageIOError, StoredMembership, Vote,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Cursor;
use std::ops::RangeBounds;
use std::sync::Arc;
use tokio::sync::watch;

type Result<T> = std::result::Result<T, StorageError<u64>>;

/// Why a view takes the place of another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// The first one: all nodes are there.
    #[default]
    Begins,
    /// Those that are missing, or the primary before, did not answer the leader of the consensus.
    Silent,
    /// The one that is missing acknowledged no entry, though it answered the consensus.
    Lags,
    /// People wanted another primary, and the one before has handed over.
    Switchover,
    /// The same, and the one before did not answer.
    Forced,
    /// People wanted the one that is missing out.
    Evicted,
    /// The one that is missing ends in an orderly way.
    Leaves,
    /// The server of the one that is missing takes no connections any more.
    ServerLost,
    /// The server of the one that is missing does not answer as the others do.
    ServerHangs,
    /// The server of the one that is missing has other data.
    LacksData,
    /// The server of the one that is missing has answered otherwise than those of the others.
    Differs,
    /// The new one has the data, and has caught up.
    Joins,
    /// A node was about to become a member, and fell silent.
    GaveUpJoining,
    /// People had the group founded again with the data of one node.
    Recovered,
}

/// A view, as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    epoch: u64,
    primary: u64,
    members: Vec<u64>,
    why: Why,
    /// Of the first view of a group that was founded again.
    recovered: Vec<Recovered>,
}

impl Proposal {
    /// Of this view, for this reason.
    pub(super) fn new(view: &View, why: Why) -> Self {
        let members = view.members.iter().map(|node| node.0).collect();
        Self { epoch: view.epoch, primary: view.primary.0, members, why, recovered: Vec::new() }
    }

    /// Of the first view of a group that was founded again, with all recoveries up to this one.
    pub(super) fn recovered(view: &View, recovered: Vec<Recovered>) -> Self {
        Self { recovered, ..Self::new(view, Why::Recovered) }
    }
}

impl From<&Proposal> for View {
    fn from(proposal: &Proposal) -> Self {
        let members = proposal.members.iter().copied().map(NodeId).collect();
        Self { epoch: proposal.epoch, primary: NodeId(proposal.primary), members }
    }
}

#[derive(Debug, Default)]
struct Kept {
    entries: BTreeMap<u64, Entry<Types>>,
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
}

/// The log of the consensus.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Kept>>);

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R>(&mut self, range: R) -> Result<Vec<Entry<Types>>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Ok(self.0.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>> {
        let kept = self.0.lock();
        let last = kept.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id: kept.purged, last_log_id: last.or(kept.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<()> {
        self.0.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>> {
        Ok(self.0.lock().vote)
    }

    async fn append<I>(&mut self, entries: I, done: LogFlushed<Types>) -> Result<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.0.lock().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        done.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<()> {
        self.0.lock().entries.split_off(&from.index);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Result<()> {
        let mut kept = self.0.lock();
        kept.entries = kept.entries.split_off(&(upto.index + 1));
        kept.purged = Some(upto);
        Ok(())
    }
}

/// What all nodes have decided so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// The newest view; none before the first.
    pub view: Option<View>,
    /// Why it has taken the place of the one before.
    pub why: Why,
    /// All views from this epoch on have the same primary.
    pub led_since_epoch: u64,
    /// The term of the last entry.
    pub term: u64,
    /// Through what the group has come before its first view.
    pub recovered: Vec<Recovered>,
}

/// The same, for a node that comes later.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    view: Option<Proposal>,
    led_since_epoch: u64,
    term: u64,
    recovered: Vec<Recovered>,
}

/// Applies what is decided.
#[derive(Debug)]
pub(super) struct Views {
    last: Option<LogId<u64>>,
    membership: StoredMembership<u64, Member>,
    decided: watch::Sender<Decided>,
}

impl Decided {
    /// Whether this node may go on as the primary of the view of this epoch. It may not know yet of the newest one; if it leads that, too, and all
    /// between, then nobody else has led, and in the older view it waits for at least as many members.
    pub(super) fn is_led_by(&self, node: NodeId, epoch: u64) -> bool {
        let leads =
            |view: &View| view.primary == node && (self.led_since_epoch..=view.epoch).contains(&epoch);
        self.view.as_ref().is_some_and(leads)
    }
}

impl Views {
    pub(super) fn new() -> (Self, watch::Receiver<Decided>) {
        let (decided, receiver) = watch::channel(Decided::default());
        (Self { last: None, membership: StoredMembership::default(), decided }, receiver)
    }

    /// Whether it follows the one before. A leader may propose what another one has made obsolete.
    fn decide(decided: &mut Decided, proposal: &Proposal) -> bool {
        let view = View::from(proposal);
        let follows = match &decided.view {
            None => (view.epoch == 1 || proposal.why == Why::Recovered) && view.has(view.primary),
            Some(before) => view.follows(before),
        };
        if follows {
            if decided.view.as_ref().is_none_or(|before| before.primary != view.primary) {
                decided.led_since_epoch = view.epoch;
            }
            if decided.view.is_none() {
                decided.recovered.clone_from(&proposal.recovered);
            }
            (decided.view, decided.why) = (Some(view), proposal.why);
        }
        follows
    }
}

impl RaftStateMachine<Types> for Views {
    type SnapshotBuilder = Copy;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, Member>)> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<bool>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut answers = Vec::new();
        for entry in entries {
            self.last = Some(entry.log_id);
            let mut answer = true;
            self.decided.send_modify(|decided| {
                decided.term = entry.log_id.leader_id.term;
                match entry.payload {
                    EntryPayload::Normal(ref proposal) => answer = Self::decide(decided, proposal),
                    EntryPayload::Membership(ref membership) => {
                        self.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
                    }
                    EntryPayload::Blank => {}
                }
            });
            answers.push(answer);
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Copy {
        let decided = self.decided.borrow().clone();
        Copy { last: self.last, membership: self.membership.clone(), decided }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, Member>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<()> {
        let stored: Stored = postcard::from_bytes(snapshot.get_ref())
            .map_err(|error| StorageIOError::read_snapshot(Some(meta.signature()), &error))?;
        (self.last, self.membership) = (meta.last_log_id, meta.last_membership.clone());
        let Stored { view, led_since_epoch, term, recovered } = stored;
        let why = view.as_ref().map_or(Why::Begins, |proposal| proposal.why);
        let view = view.as_ref().map(View::from);
        self.decided.send_replace(Decided { view, why, led_since_epoch, term, recovered });
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        // Made again: a node that comes late gets it, and a leader that had none for it would end.
        match self.last {
            Some(_) => self.get_snapshot_builder().await.build_snapshot().await.map(Some),
            None => Ok(None),
        }
    }
}

/// Makes a copy of what is decided.
#[derive(Debug)]
pub(super) struct Copy {
    last: Option<LogId<u64>>,
    membership: StoredMembership<u64, Member>,
    decided: Decided,
}

impl RaftSnapshotBuilder<Types> for Copy {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        let Decided { view, why, led_since_epoch, term, recovered } = &self.decided;
        let (led_since_epoch, term) = (*led_since_epoch, *term);
        let view = view.as_ref().map(|view| Proposal::new(view, *why));
        let stored = Stored { view, led_since_epoch, term, recovered: recovered.clone() };
        let bytes =
            postcard::to_allocvec(&stored).map_err(|error| StorageIOError::write_snapshot(None, &error))?;
        let snapshot_id = self.last.map_or_else(String::new, |last| last.to_string());
        let meta =
            SnapshotMeta { last_log_id: self.last, last_membership: self.membership.clone(), snapshot_id };
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_goes_on_in_an_older_view_only_if_nobody_else_has_led_since() {
        let mut decided = Decided::default();
        let next = |decided: &mut Decided, epoch: u64, primary: u64, members: &[u64]| {
            let view = View {
                epoch,
                primary: NodeId(primary),
                members: members.iter().copied().map(NodeId).collect(),
            };
            assert!(Views::decide(decided, &Proposal::new(&view, Why::Silent)));
            (0..=epoch + 1).filter(|epoch| decided.is_led_by(NodeId(1), *epoch)).collect::<Vec<_>>()
        };
        assert_eq!(next(&mut decided, 1, 1, &[1, 2, 3]), [1]);
        assert_eq!(next(&mut decided, 2, 1, &[1, 2]), [1, 2]);
        assert!(next(&mut decided, 3, 2, &[1, 2]).is_empty());
        assert_eq!(next(&mut decided, 4, 1, &[1, 2]), [4]);
        assert_eq!(next(&mut decided, 5, 1, &[1]), [4, 5]);
    }
}
