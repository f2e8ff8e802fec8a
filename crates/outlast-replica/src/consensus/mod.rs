//! Who takes part, who is the primary, and who may serve until when: decided by the nodes of a group together, by Raft (Ongaro and
//! Ousterhout 2014). No entry of the order waits for it.
//!
//! openraft keeps the log, the votes and the members. When somebody stands for election is decided by [`Elector`](crate::Elector), and who may
//! serve until when by [`Lease`](crate::Lease): its own elections let a node that comes back depose a leader that works, and what it tells of
//! a leader's acknowledgements is an age, which looks fresh after the process was stopped.

mod network;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod wire;

use crate::election::Step;
use crate::history::Recovered;
use crate::portal::machine::LeaseCheck;
use crate::view::{NodeId, View};
use network::{ANYONE, Link, Links, Service};
use openraft::{Config, Raft, SnapshotPolicy};
use serde::{Deserialize, Serialize};
use state::{State, now_ms};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;
pub use store::{Decided, Proposal, Why};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use wire::{Answer, Request};
pub(crate) use wire::{MAGIC, receive, send};

openraft::declare_raft_types!(
    /// What the consensus is about.
    pub Types:
        D = Proposal,
        R = bool,
        NodeId = u64,
        Node = Member,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = openraft::TokioRuntime,
);

/// Between two looks at what there is to do: this part of the promise, within these bounds. An election takes some of them.
const LOOK_PART: u64 = 32;
const LOOK_MIN_MS: u64 = 3;
const LOOK_MAX_MS: u64 = 20;
/// Another node that has not said by then whether it would vote is not waited for: what the elector takes. It includes a new connection.
const ASK_TIMEOUT: Duration = Duration::from_millis(30);
/// A change of voters that is not decided by then has failed.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections of other nodes: each has some. Strangers get no more.
const CONNECTIONS_MAX: usize = 256;
/// A view that is not decided by then is proposed again.
const PROPOSE_TIMEOUT: Duration = Duration::from_millis(300);
/// The primary borrows what is left of the leader's lease so often.
const BORROW: Duration = Duration::from_millis(10);
/// A copy of what is decided takes the place of older entries after so many; as many are kept.
const LOG_ENTRIES_MAX: u64 = 500;

/// A voter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// What people call it. A node that is started again is another one, and is called the same.
    pub name: String,
    /// Where it listens for other nodes: host:port.
    pub address: String,
    /// It has no server, and is never a member of a view.
    pub is_witness: bool,
}

/// How a node takes part.
#[derive(Debug)]
pub struct Settings {
    /// This one.
    pub me: NodeId,
    /// It has no server.
    pub is_witness: bool,
    /// For so long a voter promises to elect nobody else, in milliseconds: the same for all. What passes between the death of a primary
    /// and the next view is this time, and up to some 30 ms.
    pub promise_ms: u64,
    /// Two thirds of the time between two messages of the leader, in milliseconds, and how long an answer may take: a fifth of the
    /// promise, or less; 20 at the least on machines that have something else to do.
    pub heartbeat_ms: u64,
    /// Another one for each node.
    pub seed: u64,
    /// The nodes of the list: those that may have a vote.
    pub listed: Vec<Member>,
    /// How the group begins, where it is founded again by some of its nodes. None: with all of them.
    pub first: Option<First>,
}

/// The first view of a group that is founded again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    /// Its number: higher than that of each view before.
    pub epoch: u64,
    /// Name of the only member.
    pub from: String,
    /// Through what the group has come then, this recovery as the last.
    pub recovered: Vec<Recovered>,
}

/// Why a node does not take part.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the consensus, which says why.
    #[error("the consensus refuses: {0}")]
    Refused(String),
}

/// When a primary has given back what it had borrowed. None where it leads the consensus itself.
#[derive(Clone, Copy, Debug)]
pub struct GivenBack(Option<u64>);

/// One node's part in the consensus. It ends a moment after this is dropped.
pub struct Consensus {
    service: Service,
    tasks: parking_lot::Mutex<JoinSet<()>>,
    /// Each connection of another node has one.
    places: Arc<Semaphore>,
}

impl std::fmt::Debug for Consensus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consensus").field("me", &self.service.state.me).finish_non_exhaustive()
    }
}

impl Consensus {
    /// Takes part, as one who votes if the group has it among its voters. Needs a tokio runtime.
    ///
    /// # Errors
    /// The times do not fit together.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let config = Config {
            heartbeat_interval: settings.heartbeat_ms,
            election_timeout_min: settings.promise_ms,
            election_timeout_max: settings.promise_ms + 1,
            enable_elect: false,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(LOG_ENTRIES_MAX),
            max_in_snapshot_log_to_keep: LOG_ENTRIES_MAX,
            ..Config::default()
        };
        let refused = |error: &dyn std::fmt::Display| Error::Refused(error.to_string());
        let config = Arc::new(config.validate().map_err(|error| refused(&error))?);
        let me = settings.me;
        let state = Arc::new(State::new(settings));
        let (views, decided) = store::Views::new();
        let raft = Raft::new(me.0, config, Links(state.clone()), store::Log::default(), views).await;
        let raft = raft.map_err(|error| refused(&error))?;
        let service = Service { raft, state, decided };
        let mut tasks = JoinSet::new();
        tasks.spawn(attend(service.clone()));
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Ok(Self { service, tasks: parking_lot::Mutex::new(tasks), places })
    }

    /// Answers another node, which has connected to this one and said that it is for the consensus.
    pub fn serve(&self, stream: TcpStream) {
        // Strangers get no more places than there are.
        let Ok(place) = self.places.clone().try_acquire_owned() else { return };
        let service = self.service.clone();
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            if let Err(error) = service.serve(stream).await {
                tracing::debug!(%error, "a connection of another node's consensus ends");
            }
            drop(place);
        });
    }

    /// Founds the group with these voters. Once, at one node of it, and only where all of them are new: a second founding would make a second
    /// group.
    ///
    /// # Errors
    /// This node has a group already.
    pub async fn found(&self, voters: BTreeMap<NodeId, Member>) -> Result<(), Error> {
        let voters: BTreeMap<u64, Member> =
            voters.into_iter().map(|(node, member)| (node.0, member)).collect();
        self.service.raft.initialize(voters).await.map_err(|error| Error::Refused(error.to_string()))
    }

    /// Leaves: it answers nobody any more. Others take it for dead.
    pub async fn stop(&self) {
        let _ = self.service.raft.shutdown().await;
        self.tasks.lock().abort_all();
    }

    /// What is decided, and what will be.
    #[must_use]
    pub fn decided(&self) -> watch::Receiver<Decided> {
        self.service.decided.clone()
    }

    /// Whether this node may serve as the primary of this view. To be asked behind the work, right before its result is sent: a process may be
    /// stopped at any instruction.
    #[must_use]
    pub fn may_serve(&self, epoch: u64) -> bool {
        self.service.left_ms(epoch) > 0
    }

    /// For how long, for another thread.
    #[must_use]
    pub fn lease_check(&self) -> LeaseCheck {
        let service = self.service.clone();
        LeaseCheck::new(move |epoch| service.left_ms(epoch))
    }

    /// All nodes of the group that this one knows: voters, and those that become voters. None before it is in a group.
    #[must_use]
    pub fn members(&self) -> BTreeMap<NodeId, Member> {
        let metrics = self.service.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        membership.nodes().map(|(node, member)| (NodeId(*node), member.clone())).collect()
    }

    /// Whether this node has a vote in a group.
    #[must_use]
    pub fn is_voter(&self) -> bool {
        self.voters().contains(&self.service.state.me)
    }

    /// All that have a vote, as far as this node knows.
    #[must_use]
    pub fn voters(&self) -> BTreeSet<NodeId> {
        let metrics = self.service.raft.metrics().borrow().clone();
        metrics.membership_config.membership().voter_ids().map(NodeId).collect()
    }

    /// Whether it takes part still: what openraft takes for impossible ends it.
    #[must_use]
    pub fn is_running(&self) -> bool {
        // It does not say there that it has panicked.
        self.service.raft.metrics().borrow().running_state.is_ok() && !self.service.state.is_fatal()
    }

    /// Has this view decided, which has to [follow](View::follows) the present one.
    ///
    /// # Errors
    /// Nobody leads, or it is not decided within a moment: others have decided something else.
    pub async fn propose(&self, view: &View, why: Why) -> Result<(), Error> {
        let proposal = Proposal::new(view, why);
        let is_decided = async {
            let state = &self.service.state;
            match self.leader() {
                Some(leader) if leader == state.me => self.service.propose(proposal).await,
                Some(leader) => {
                    let Some(member) = self.members().remove(&leader) else { return false };
                    let mut link = Link::new(leader, &member, state.clone());
                    matches!(link.call(&Request::Propose(proposal)).await, Ok(Answer::Proposed(true)))
                }
                None => false,
            }
        };
        match timeout(PROPOSE_TIMEOUT, is_decided).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::Refused("the others have decided something else, or nobody leads".to_owned()))
            }
            Err(_) => Err(Error::Refused("the view is not decided yet: it may be a moment later".to_owned())),
        }
    }

    /// At the primary of the present view: does not serve any more by what it has borrowed from the leader, as another node is to be the primary.
    /// [`Self::hand_over`] has that decided.
    pub fn give_back(&self, epoch: u64) -> GivenBack {
        let leads = self.leader() == Some(self.service.state.me);
        // A leader has the lease to lend to the next one.
        GivenBack((!leads).then(|| self.service.state.give_back(epoch)))
    }

    /// Has the view decided that makes another node the primary. Where it is not, this node serves again.
    ///
    /// # Errors
    /// As those of [`Self::propose`].
    pub async fn hand_over(&self, view: &View, why: Why, given_back: GivenBack) -> Result<(), Error> {
        if let Some(returned_ms) = given_back.0
            && let Some(leader) = self.leader()
            && let Some(member) = self.members().remove(&leader)
        {
            let state = &self.service.state;
            let mut link = Link::new(leader, &member, state.clone());
            let request = Request::Return { node: state.me.0, returned_ms };
            // Where it does not hear that, the next primary borrows nothing before the time of the loan is over.
            let _ = timeout(ASK_TIMEOUT, link.call(&request)).await;
        }
        let proposed = self.propose(view, why).await;
        self.service.state.borrow_again();
        proposed
    }

    /// Asks this node of a group, which may lead it, to put this new node in the place of the dead one of the same name.
    /// Whether it has done so.
    pub async fn enter(&self, through: &str, member: Member) -> bool {
        let state = &self.service.state;
        let at = Member { address: through.to_owned(), ..Member::default() };
        let mut link = Link::new(ANYONE, &at, state.clone());
        let request = Request::Enter { node: state.me.0, member };
        matches!(timeout(REPLACE_TIMEOUT, link.call(&request)).await, Ok(Ok(Answer::Entered(true))))
    }

    /// The node that leads the consensus, as far as this one knows. It need not be the primary.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        self.service.raft.metrics().borrow().current_leader.map(NodeId)
    }

    /// The leader that this node has heard within the time of a promise; itself, if it leads and more than half of the voters answer it.
    #[must_use]
    pub fn heard_leader(&self) -> Option<NodeId> {
        self.service.state.heard_leader(self.leader()?)
    }

    /// At a leader whom more than half of the voters answer: whether a member of the view answers it, or is it. Else nobody has the data of the group who
    /// runs.
    #[must_use]
    pub fn hears_member(&self) -> bool {
        let me = self.service.state.me;
        let is_heard = |node: &NodeId| *node == me || self.service.state.is_heard(*node);
        self.heard_leader() == Some(me)
            && self
                .service
                .decided
                .borrow()
                .view
                .as_ref()
                .is_some_and(|view| view.members.iter().any(is_heard))
    }

    /// At the leader: whether another node has answered it within the time of a promise. None where this node does not lead.
    #[must_use]
    pub fn hears(&self, node: NodeId) -> Option<bool> {
        let state = &self.service.state;
        (self.leader() == Some(state.me)).then(|| node == state.me || state.is_heard(node))
    }

    /// Puts a new node in a dead one's place among the voters, in one step. Where the new one was only added, the loss of another one before the
    /// dead one was taken out would leave no quorum. At the leader.
    ///
    /// # Errors
    /// This node does not lead, or the new one has not got what the others have within 10 s, or they do not decide.
    pub async fn replace(&self, dead: NodeId, new: NodeId, member: Member) -> Result<(), Error> {
        self.service.replace(&BTreeSet::from([dead]), new, member).await
    }
}

/// Stands for election, proposes views and borrows the lease, when it is time for that.
async fn attend(service: Service) {
    let Service { raft, state, decided } = &service;
    let mut news = decided.clone();
    let mut tasks = JoinSet::new();
    let mut proposing = None;
    let mut borrowing: Option<tokio::task::AbortHandle> = None;
    let look_ms = (state.promise_ms / LOOK_PART).clamp(LOOK_MIN_MS, LOOK_MAX_MS);
    let mut looks = tokio::time::interval(Duration::from_millis(look_ms));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            // A new primary borrows the lease at once.
            changed = news.changed() => if changed.is_err() { return },
        }
        while tasks.try_join_next().is_some() {}
        let metrics = raft.metrics().borrow().clone();
        let known = decided.borrow().clone();
        state.note(&metrics, &known);
        match state.step(&metrics) {
            Some(Step::Ask { round }) => ask_all(&service, round, &mut tasks),
            Some(Step::Stand) => {
                let _promising = state.promising.lock().await;
                // It may have promised something while it waited.
                if state.would_vote() {
                    let _ = raft.trigger().elect().await;
                }
            }
            None => {}
        }
        let is_busy =
            |task: &Option<tokio::task::AbortHandle>| task.as_ref().is_some_and(|task| !task.is_finished());
        if !is_busy(&proposing)
            && let Some(view) = state.next_view(&metrics, &known)
        {
            let service = service.clone();
            proposing = Some(tasks.spawn(async move {
                let is_first = service.decided.borrow().view.is_none();
                let proposal = match &service.state.first {
                    Some(first) if is_first => Proposal::recovered(&view, first.recovered.clone()),
                    _ => Proposal::new(&view, if is_first { Why::Begins } else { Why::Silent }),
                };
                let _ = timeout(PROPOSE_TIMEOUT, service.propose(proposal)).await;
            }));
        }
        let is_primary = known.view.as_ref().is_some_and(|view| view.primary == state.me);
        let leader = metrics.current_leader.filter(|leader| *leader != state.me.0);
        if !is_busy(&borrowing)
            && let Some(view) = known.view.filter(|view| is_primary && state.borrows(view.epoch))
            && let Some(leader) = leader
            && let Some(member) = metrics.membership_config.membership().get_node(&leader)
        {
            let link = Link::new(NodeId(leader), member, state.clone());
            borrowing = Some(tasks.spawn(borrow(link, service.clone(), view.epoch)));
        }
    }
}

/// Asks all other voters whether they would vote for this node.
fn ask_all(service: &Service, round: u64, tasks: &mut JoinSet<()>) {
    let metrics = service.raft.metrics().borrow().clone();
    let membership = metrics.membership_config.membership();
    let last = service.raft.data_metrics().borrow().last_log;
    let me = service.state.me;
    for voter in membership.voter_ids().filter(|voter| *voter != me.0) {
        let Some(member) = membership.get_node(&voter) else { continue };
        let state = service.state.clone();
        let mut link = Link::new(NodeId(voter), member, state.clone());
        tasks.spawn(async move {
            let answer = timeout(ASK_TIMEOUT, link.call(&Request::Ask { last })).await;
            let would_vote = matches!(answer, Ok(Ok(Answer::WouldVote(true))));
            state.note_answer(NodeId(voter), round, would_vote);
        });
    }
}

/// Borrows what is left of the leader's lease, as long as it leads and this node is the primary of this view.
async fn borrow(mut link: Link, service: Service, epoch: u64) {
    let me = service.state.me;
    loop {
        let asked_ms = now_ms();
        if !service.state.borrows(epoch) {
            return;
        }
        let request = Request::Borrow { node: me.0, epoch, asked_ms };
        let Ok(Ok(Answer::Lent(lent))) = timeout(ASK_TIMEOUT, link.call(&request)).await else { return };
        let Some(left_ms) = lent else { return };
        service.state.note_borrowed(asked_ms, left_ms);
        tokio::time::sleep(BORROW).await;
        let is_mine = |view: &View| view.primary == me && view.epoch == epoch;
        if !service.decided.borrow().view.as_ref().is_some_and(is_mine) {
            return;
        }
    }
}
