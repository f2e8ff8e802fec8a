//! What a node remembers of the consensus: in memory only. A node that was started again has lost it, and is another one.

use super::{Member, Types};
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

/// A view, as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    epoch: u64,
    primary: u64,
    members: Vec<u64>,
}

impl From<&View> for Proposal {
    fn from(view: &View) -> Self {
        let members = view.members.iter().map(|node| node.0).collect();
        Self { epoch: view.epoch, primary: view.primary.0, members }
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
    /// The term of the last entry.
    pub term: u64,
}

/// The same, for a node that comes later.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    view: Option<Proposal>,
    term: u64,
}

/// Applies what is decided.
#[derive(Debug)]
pub(super) struct Views {
    last: Option<LogId<u64>>,
    membership: StoredMembership<u64, Member>,
    decided: watch::Sender<Decided>,
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
            None => view.epoch == 1 && view.has(view.primary),
            Some(before) => view.follows(before),
        };
        if follows {
            decided.view = Some(view);
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
        self.decided.send_replace(Decided { view: stored.view.as_ref().map(View::from), term: stored.term });
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
        let Decided { view, term } = &self.decided;
        let stored = Stored { view: view.as_ref().map(Proposal::from), term: *term };
        let bytes =
            postcard::to_allocvec(&stored).map_err(|error| StorageIOError::write_snapshot(None, &error))?;
        let snapshot_id = self.last.map_or_else(String::new, |last| last.to_string());
        let meta =
            SnapshotMeta { last_log_id: self.last, last_membership: self.membership.clone(), snapshot_id };
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}
