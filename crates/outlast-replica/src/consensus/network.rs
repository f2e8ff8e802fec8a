//! Requests to other nodes, and answers to theirs.

use super::state::{State, now_ms};
use super::store::{Decided, Proposal};
use super::wire::{Answer, MAGIC, Request, receive, send};
use super::{Error, Member, REPLACE_TIMEOUT, Types};
use crate::view::{NodeId, View};
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{ChangeMembers, Raft};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// A node that cannot be reached is tried again so much later.
const RETRY: Duration = Duration::from_millis(10);

/// Any run of the node at that address.
pub(super) const ANYONE: NodeId = NodeId(0);
/// A connection on which nothing is asked for so long is closed: its other end may be gone.
const IDLE: Duration = Duration::from_secs(30);

/// A connection to another node. A request that was not answered to its end takes the connection with it.
#[derive(Debug)]
pub(super) struct Link {
    to: NodeId,
    address: String,
    stream: Option<TcpStream>,
    state: Arc<State>,
}

impl Link {
    pub(super) fn new(to: NodeId, member: &Member, state: Arc<State>) -> Self {
        Self { to, address: member.address.clone(), stream: None, state }
    }

    pub(super) async fn call(&mut self, request: &Request) -> io::Result<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let mut stream = TcpStream::connect(&self.address).await?;
                stream.set_nodelay(true)?;
                stream.write_all(&MAGIC).await?;
                stream.write_u64(self.to.0).await?;
                stream
            }
        };
        send(&mut stream, request).await?;
        let answer = receive(&mut stream).await?;
        let answer = answer.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        self.stream = Some(stream);
        Ok(answer)
    }
}

type Failed<E = RaftError<u64>> = RPCError<u64, Member, E>;

fn refused<E: std::error::Error>() -> Failed<E> {
    RPCError::Network(NetworkError::new(&io::Error::other("the node refuses")))
}

fn unreachable<E: std::error::Error>(error: io::Error) -> Failed<E> {
    RPCError::Unreachable(Unreachable::new(&error))
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed> {
        let term = request.vote.leader_id.term;
        // The voter counts its promise from later on, whatever happens in between.
        let sent_ms = now_ms();
        match self.call(&Request::Append(request)).await {
            Ok(Answer::Append(answer)) => {
                if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
                    self.state.note_acked(self.to, term, sent_ms);
                }
                Ok(answer)
            }
            Ok(_) => Err(refused()),
            Err(error) => Err(unreachable(error)),
        }
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failed<RaftError<u64, InstallSnapshotError>>> {
        match self.call(&Request::Snapshot(request)).await {
            Ok(Answer::Snapshot(answer)) => Ok(answer),
            Ok(_) => Err(refused()),
            Err(error) => Err(unreachable(error)),
        }
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, Failed> {
        match self.call(&Request::Vote(request)).await {
            Ok(Answer::Vote(answer)) => {
                if answer.vote_granted {
                    self.state.note_vote_of(self.to);
                }
                Ok(answer)
            }
            Ok(_) => Err(refused()),
            Err(error) => Err(unreachable(error)),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(RETRY))
    }
}

/// Makes connections for the consensus.
#[derive(Debug)]
pub(super) struct Links(pub(super) Arc<State>);

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, to: u64, member: &Member) -> Link {
        Link::new(NodeId(to), member, self.0.clone())
    }
}

/// Answers other nodes.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) raft: Raft<Types>,
    pub(super) state: Arc<State>,
    pub(super) decided: watch::Receiver<Decided>,
}

impl Service {
    /// All that one of them asks on a connection.
    pub(super) async fn serve(self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let meant = NodeId(timeout(IDLE, stream.read_u64()).await??);
        // What an earlier run of this node has promised and acknowledged this one knows nothing of: it does not answer for that.
        if meant != self.state.me && meant != ANYONE {
            return Err(io::ErrorKind::NotFound.into());
        }
        while let Some(request) = timeout(IDLE, receive(&mut stream)).await?? {
            let answer = match &request {
                Request::Enter { .. } => self.answer(request).await,
                _ if meant == ANYONE => Answer::Refused,
                _ => self.answer(request).await,
            };
            send(&mut stream, &answer).await?;
        }
        Ok(())
    }

    /// Whether a node of this group may say that. openraft takes other nodes at their word.
    fn is_plausible(&self, request: &Request) -> bool {
        let me = self.state.me.0;
        match request {
            // A vote is asked for by another node; what a leader sends is by a vote that was won.
            Request::Vote(request) => {
                !request.vote.committed && request.vote.leader_id.voted_for() != Some(me)
            }
            Request::Append(request) => {
                request.vote.committed && request.vote.leader_id.voted_for() != Some(me)
            }
            // Views are short: a copy of them is one piece.
            Request::Snapshot(request) => request.vote.committed && request.offset == 0 && request.done,
            Request::Ask { .. }
            | Request::Borrow { .. }
            | Request::Return { .. }
            | Request::Propose(_)
            | Request::Enter { .. } => true,
        }
    }

    async fn answer(&self, request: Request) -> Answer {
        if !self.is_plausible(&request) {
            return Answer::Refused;
        }
        match request {
            Request::Append(request) => self.append(request).await,
            Request::Vote(request) => self.vote(request).await,
            Request::Snapshot(request) => {
                let installed = self.raft.install_snapshot(request).await;
                installed.map_or_else(|error| self.failed(&error), Answer::Snapshot)
            }
            Request::Ask { last } => {
                let is_older = last < self.raft.data_metrics().borrow().last_log;
                let runs = self.raft.metrics().borrow().running_state.is_ok();
                Answer::WouldVote(runs && !is_older && self.state.would_vote())
            }
            Request::Borrow { node, epoch, asked_ms } => {
                let is_primary = |view: &View| view.primary == NodeId(node) && view.epoch == epoch;
                let is_primary = self.decided.borrow().view.as_ref().is_some_and(is_primary);
                Answer::Lent(if is_primary { self.state.lend(NodeId(node), asked_ms) } else { None })
            }
            Request::Return { node, returned_ms } => {
                self.state.note_returned(NodeId(node), returned_ms);
                Answer::Returned
            }
            Request::Propose(proposal) => Answer::Proposed(self.propose(proposal).await),
            Request::Enter { node, member } => Answer::Entered(self.enter(NodeId(node), member).await),
        }
    }

    async fn append(&self, request: AppendEntriesRequest<Types>) -> Answer {
        let term = request.vote.leader_id.term;
        // A vote of this node, for itself or another one, comes before this promise or behind it.
        let _promising = self.state.promising.lock().await;
        match self.raft.append_entries(request).await {
            Ok(answer) => {
                if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
                    self.state.note_heard(term);
                }
                Answer::Append(answer)
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed<E: std::error::Error>(&self, error: &RaftError<u64, E>) -> Answer {
        tracing::debug!(%error, "a request of another node is refused");
        if matches!(error, RaftError::Fatal(_)) {
            self.state.note_fatal();
        }
        Answer::Refused
    }

    async fn vote(&self, request: VoteRequest<u64>) -> Answer {
        let term = request.vote.leader_id.term;
        let _promising = self.state.promising.lock().await;
        if !self.state.begin_vote() {
            return Answer::Refused;
        }
        let voted = self.raft.vote(request).await;
        let granted = voted.as_ref().is_ok_and(|answer| answer.vote_granted);
        self.state.voted(granted.then_some(term));
        voted.map_or_else(|error| self.failed(&error), Answer::Vote)
    }

    /// Has a view decided, where this node leads.
    pub(super) async fn propose(&self, proposal: Proposal) -> bool {
        let written = self.raft.client_write(proposal).await;
        written.is_ok_and(|written| written.data)
    }

    /// For so many milliseconds more this node may serve as the primary of this view.
    pub(super) fn left_ms(&self, epoch: u64) -> u64 {
        if self.decided.borrow().is_led_by(self.state.me, epoch) { self.state.left_ms() } else { 0 }
    }

    /// A node that was started again wants the place that it had among the voters. Or one, where it is listed, and the group was founded again
    /// without it.
    async fn enter(&self, new: NodeId, member: Member) -> bool {
        let metrics = self.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let same = membership.nodes().filter(|(_, known)| known.name == member.name);
        let (dead, kinds): (BTreeSet<NodeId>, Vec<bool>) = same
            .filter(|(node, _)| **node != new.0)
            .map(|(node, known)| (NodeId(*node), known.is_witness))
            .unzip();
        if dead.is_empty() && membership.voter_ids().any(|voter| voter == new.0) {
            return true;
        }
        if dead.is_empty() && !self.state.listed.contains(&member) {
            return false;
        }
        // What a leader that is cut off would put into the new one's log another group may have otherwise.
        if self.state.heard_leader(self.state.me) != Some(self.state.me) {
            return false;
        }
        // Before the first view nobody comes in who does not know how that is to be.
        if self.decided.borrow().view.is_none() {
            return false;
        }
        // Two that are called the same and live would each be taken for the other one's successor.
        let lives = dead.iter().any(|node| self.state.is_heard(*node));
        if lives || kinds.iter().any(|is_witness| *is_witness != member.is_witness) {
            return false;
        }
        match self.replace(&dead, new, member).await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, ?new, "a node that was started again has no vote yet");
                false
            }
        }
    }

    /// Puts a new node in the place of dead ones of its name, if there are any: one has a vote, and others may have died before they got it.
    pub(super) async fn replace(
        &self,
        dead: &BTreeSet<NodeId>,
        new: NodeId,
        member: Member,
    ) -> Result<(), Error> {
        let refused = |error: &dyn std::fmt::Display| Error::Refused(error.to_string());
        let raft = &self.raft;
        let replaced = async {
            let added = raft.add_learner(new.0, member, true).await.map_err(|error| refused(&error))?;
            // openraft waits for one that is far behind alone.
            let mut metrics = raft.metrics();
            let has_all = |metrics: &openraft::RaftMetrics<u64, Member>| {
                let known = metrics.replication.as_ref().and_then(|all| all.get(&new.0));
                known.is_some_and(|known| *known >= Some(added.log_id))
            };
            metrics.wait_for(has_all).await.map_err(|error| refused(&error))?;
            // The set that is to be, where an earlier change has not come to its end.
            let sets = raft.metrics().borrow().membership_config.membership().get_joint_config().clone();
            let mut voters: BTreeSet<u64> = sets.last().cloned().unwrap_or_default();
            voters.retain(|voter| !dead.contains(&NodeId(*voter)));
            voters.insert(new.0);
            raft.change_membership(voters, false).await.map_err(|error| refused(&error))?;
            let membership = raft.metrics().borrow().membership_config.membership().clone();
            let left: BTreeSet<u64> = membership
                .nodes()
                .map(|(node, _)| *node)
                .filter(|node| dead.contains(&NodeId(*node)))
                .collect();
            if !left.is_empty() {
                let remove = ChangeMembers::RemoveNodes(left);
                raft.change_membership(remove, false).await.map_err(|error| refused(&error))?;
            }
            Ok(())
        };
        timeout(REPLACE_TIMEOUT, replaced).await.unwrap_or_else(|late| Err(refused(&late)))
    }
}
