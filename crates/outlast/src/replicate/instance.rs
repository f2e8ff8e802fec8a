//! A node as it shows itself, and what it can be asked.

use super::recover;
use crate::admin::Administered;
use outlast_admin::exchange::Matching;
use outlast_admin::replica::{
    Disagreement, Drains, Earlier, Event, Evicted, Explained, Joining as ShownJoining, Joins,
    Node as ShownNode, Replica, Switched, Waits,
};
use outlast_admin::{Answer, Page, Request, Status};
use outlast_replica::node::group::Group;
use outlast_replica::node::{self, Error, Joining, Node};
use rustix::process::Pid;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;

/// What this process is.
pub struct Instance {
    /// Another one after a recovery.
    node: RwLock<Arc<Node>>,
    /// That node has given up, and the next one is not there yet.
    begins: AtomicBool,
    portal: String,
    server: String,
    drains: Notify,
    started: Instant,
}

impl Instance {
    pub fn new(node: Node, group: &Group, server: Option<SocketAddr>) -> Self {
        let server = server.map(|server| server.to_string()).unwrap_or_default();
        let portal = group.portal.to_string();
        let node = RwLock::new(Arc::new(node));
        Self {
            node,
            begins: AtomicBool::new(false),
            portal,
            server,
            drains: Notify::new(),
            started: Instant::now(),
        }
    }

    pub fn node(&self) -> Arc<Node> {
        self.node.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether nothing can be asked but how it is.
    pub fn set_beginning(&self, begins: bool) {
        self.begins.store(begins, Ordering::Relaxed);
    }

    /// Whether a node has given up, and the next one is not there yet.
    pub fn is_beginning(&self) -> bool {
        self.begins.load(Ordering::Relaxed)
    }

    /// Goes on as this one.
    pub fn replace(&self, node: Node) {
        *self.node.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(node);
    }

    /// Waits until it is asked to leave the group.
    pub async fn is_to_drain(&self) {
        self.drains.notified().await;
    }
}

/// As it is shown.
fn page(status: node::Status, portal: &str, server: &str) -> Replica {
    let node::Status {
        group,
        name,
        waits,
        joining,
        is_other_history,
        epoch,
        primary,
        leader,
        nodes,
        facts,
        differing: _,
        server_report: _,
    } = status;
    let facts = facts.unwrap_or_default();
    let waits = waits.map(|waits| Waits {
        absent: waits.absent,
        not_ready: waits.not_ready,
        disagree: waits.disagree.into_iter().map(|(node, what)| Disagreement { node, what }).collect(),
        were_members: waits.were_members.into_iter().map(|(node, epoch)| Earlier { node, epoch }).collect(),
        in_group: waits.in_group,
    });
    let nodes = nodes.into_iter().map(|node| ShownNode {
        name: node.name,
        address: node.address,
        witness: node.is_witness,
        voter: node.is_voter,
        member: node.is_member,
        linked: node.is_linked,
        answers: node.answers,
        acked_index: node.acked,
        compared_index: node.compared,
    });
    Replica {
        group,
        node: name,
        portal: portal.to_owned(),
        server: server.to_owned(),
        waits,
        joining: shown(joining),
        other_history: is_other_history,
        epoch,
        primary,
        leader,
        nodes: nodes.collect(),
        serving: facts.is_serving,
        excluded: facts.is_excluded,
        server_lost: facts.is_server_lost,
        server_hangs: facts.is_server_hanging,
        connections: facts.connections as u64,
        last_index: facts.last,
        delivered_index: facts.delivered,
        compared_index: facts.compared,
        not_compared: facts.not_compared,
        differences: facts.differences,
        take_overs: facts.take_overs,
        take_over_us: facts.restored_in.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
        overflows: facts.overflows,
        forwarded_packets: facts.forwarded,
        injected_packets: facts.injected,
    }
}

fn shown(joining: Joining) -> Option<ShownJoining> {
    let none = ShownJoining::default();
    match joining {
        Joining::No => None,
        Joining::Asks => Some(none),
        Joining::Failed(why) => Some(ShownJoining { failed: Some(why), ..none }),
        Joining::Copies(from, copied_bytes) => Some(ShownJoining { from: Some(from), copied_bytes, ..none }),
        Joining::CatchesUp => Some(ShownJoining { catching_up: true, ..none }),
    }
}

/// Whether nobody else has the data of the group.
fn is_last(status: &node::Status) -> bool {
    let members = status.nodes.iter().filter(|node| node.is_member);
    let names: Vec<&str> = members.map(|node| node.name.as_str()).collect();
    status.nodes.len() > 1 && names == [status.name.as_str()]
}

fn event(event: node::Event) -> Event {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Event {
        at_ms: millis(event.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
        epoch: event.epoch,
        what: event.what,
        why: event.why,
        pause_ms: event.pause.map(millis),
    }
}

pub(super) fn refused(error: &Error) -> Answer {
    Answer::refused(error.to_string())
}

impl Administered for Instance {
    async fn status(&self) -> Status {
        let up_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let page = Page::Replica(page(self.node().status(), &self.portal, &self.server));
        Status::of_this_process(env!("CARGO_PKG_VERSION"), up_ms, page)
    }

    async fn answer(&self, request: Request, _: Option<Pid>) -> Answer {
        match request {
            Request::Status {} => self.status().await.into(),
            _ if self.begins.load(Ordering::Relaxed) => {
                Answer::refused("this node begins again: see its log, and try later")
            }
            Request::Switchover { to } => match self.node().switch_over(to.as_deref()).await {
                Ok(primary) => Answer::Switched(Switched { primary }),
                Err(error) => refused(&error),
            },
            Request::Evict { node } => match self.node().evict(&node).await {
                Ok(()) => Answer::Evicted(Evicted { evicted: node }),
                Err(error) => refused(&error),
            },
            Request::Drain {} if is_last(&self.node().status()) => Answer::refused(
                "it is the last member, and nobody would serve clients any more: stop it with SIGTERM if that is meant",
            ),
            Request::Join {} => match self.node().begin_to_join() {
                Ok(()) => Answer::Joins(Joins { joins: self.node().status().name }),
                Err(error) => refused(&error),
            },
            Request::Recover { from, plan } => recover::answer(&self.node(), from.as_deref(), plan).await,
            Request::Why {} => {
                let events = self.node().events().into_iter().map(event).collect();
                Answer::Explained(Explained { node: self.node().status().name, events })
            }
            Request::Drain {} => {
                self.drains.notify_one();
                Answer::Drains(Drains { drains: self.node().status().name })
            }
            Request::Kill { .. } => Answer::Matching(Matching::default()),
            Request::Upgrade { .. } | Request::Outcome { .. } | Request::Withdraw { .. } => Answer::refused(
                "it is a node of a group of replicas, and runs no program that could be upgraded",
            ),
        }
    }
}
