//! Requests to other nodes, and answers to theirs.

use super::state::{State, now_ms};
use super::store::{Decided, Proposal};
use super::wire::{Answer, Request, receive, send};
use super::{Member, Types};
use crate::view::{NodeId, View};
use openraft::Raft;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// A node that cannot be reached is tried again so much later.
const RETRY: Duration = Duration::from_millis(10);

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
                let stream = TcpStream::connect(&self.address).await?;
                stream.set_nodelay(true)?;
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
        while let Some(request) = receive(&mut stream).await? {
            let answer = self.answer(request).await;
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
            Request::Ask { .. } | Request::Borrow { .. } | Request::Propose(_) => true,
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
                self.raft.install_snapshot(request).await.map_or_else(Answer::from, Answer::Snapshot)
            }
            Request::Ask { last } => {
                let is_older = last < self.raft.data_metrics().borrow().last_log;
                let runs = self.raft.metrics().borrow().running_state.is_ok();
                Answer::WouldVote(runs && !is_older && self.state.would_vote())
            }
            Request::Borrow { node, epoch } => {
                let is_primary = |view: &View| view.primary == NodeId(node) && view.epoch == epoch;
                let is_primary = self.decided.borrow().view.as_ref().is_some_and(is_primary);
                Answer::Lent(if is_primary { self.state.lend(NodeId(node)) } else { None })
            }
            Request::Propose(proposal) => Answer::Proposed(self.propose(proposal).await),
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
            Err(error) => error.into(),
        }
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
        voted.map_or_else(Answer::from, Answer::Vote)
    }

    /// Has a view decided, where this node leads.
    pub(super) async fn propose(&self, proposal: Proposal) -> bool {
        let written = self.raft.client_write(proposal).await;
        written.is_ok_and(|written| written.data)
    }
}
