//! How a node's portal is to be, what it is told, and what is known of it.

use super::clock::ClockPage;
use super::copying::{Joins, Rests, Taken};
use super::handing_over::HandedOver;
use super::server_process::ServerRun;
use super::sql_asker::Idle;
use crate::entry::ConnectionId;
use crate::order::Limits;
use crate::protocol::Protocol;
use crate::replica::{AnswerPolicy, Delivery, ServerClock, Snapshot};
use crate::sql::Account;
use crate::view::{NodeId, View};
use mio::Waker;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Says at any instant for how many milliseconds more this node may serve as the primary of the view of this epoch, unless something happens. No
/// other one may then. 0: it may not.
pub struct LeaseCheck(Box<dyn Fn(u64) -> u64 + Send>);

impl LeaseCheck {
    /// By this function, which is called for every packet or two: it has to be fast.
    pub fn new(left_ms: impl Fn(u64) -> u64 + Send + 'static) -> Self {
        Self(Box::new(left_ms))
    }

    /// For so long it may.
    pub(super) fn left_ms(&self, epoch: u64) -> u64 {
        (self.0)(epoch)
    }
}

impl std::fmt::Debug for LeaseCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseCheck")
    }
}

/// How a node is to be.
#[derive(Debug)]
pub struct Settings {
    /// This one.
    pub me: NodeId,
    /// Who may serve.
    pub lease: LeaseCheck,
    /// For so long voters promise to elect nobody else.
    pub promise_ms: u64,
    /// Of the order.
    pub limits: Limits,
    /// When servers get what clients send: the same at all nodes.
    pub delivery: Delivery,
    /// What clients and servers speak: the same at all nodes.
    pub protocol: Protocol,
    /// From where servers have the time of day: the same at all nodes.
    pub clock: ServerClock,
    /// From where this node's server has it, where that is the order.
    pub clock_page: Option<ClockPage>,
    /// What becomes of the servers' answers: the same at all nodes.
    pub answers: AnswerPolicy,
    /// Where clients connect to.
    pub portal: SocketAddr,
    /// The device that has the portal's address.
    pub device: String,
    /// The mark of packets that pass the rules.
    pub mark: u32,
    /// This node's server.
    pub server: SocketAddr,
    /// Which run of it this node goes on with, where that is known.
    pub server_run: Option<ServerRun>,
    /// Its password, where it wants one. Of Redis.
    pub password: Option<String>,
    /// As whom it is asked. Of databases.
    pub account: Option<Account>,
}

/// What a node is told by other threads.
#[derive(Debug)]
pub enum Command {
    /// Consensus has decided about a view.
    View(View),
    /// These are the other nodes that have a server, and where each listens.
    Others(BTreeMap<NodeId, SocketAddr>),
    /// Another node has connected to this one, and both have said who they are ([`hello`](super::peers::hello)).
    Link(NodeId, TcpStream),
    /// That other node wants a copy of the data of this one's server: the server is to come to a rest.
    Copy(NodeId, Rests),
    /// The data are those of this moment.
    Copied(Taken),
    /// That other member is to be the primary: packets of clients are withheld for it, for so long at the most.
    HandOver(NodeId, Duration, HandedOver),
    /// It is not: this node goes on.
    KeepOn,
    /// The server is about to get other data, of this time ([`Snapshot::clock_ms`]): all that was known of the group is forgotten.
    Reset(u64),
    /// The server has the data of this snapshot, which came then: the node catches up from there.
    Join(Box<Snapshot>, Instant, View),
    /// It ends, and leaves all to the others.
    Stop,
    /// Of a client that wants to log in: what the server keeps of accounts of that name; none: it cannot be asked.
    Accounts(ConnectionId, Option<Vec<String>>),
    /// Whether the server is done with what it was given up to an entry; none: it cannot be asked.
    SqlIdle(u64, ConnectionId, Option<Idle>),
}

/// What is known of a running node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// It serves clients.
    pub is_serving: bool,
    /// The view that it knows.
    pub view: Option<View>,
    /// So many entries have come here.
    pub last: u64,
    /// How many times it has become the primary.
    pub take_overs: u64,
    /// Connections that it knows.
    pub connections: usize,
    /// Entries that were delivered.
    pub delivered: u64,
    /// Its server was given all of them.
    pub is_given: bool,
    /// The same, and it has answered what it answers.
    pub is_settled: bool,
    /// At the primary: how far other nodes are.
    pub acked: BTreeMap<NodeId, u64>,
    /// At the primary: how far other nodes have compared their servers' answers.
    pub compared_by: BTreeMap<NodeId, u64>,
    /// The answers of this node's server were compared up to this entry, or could not be.
    pub compared: u64,
    /// So many could not be.
    pub not_compared: u64,
    /// At the primary: members whose servers have answered otherwise, and for each the primary of the view without it.
    pub differing: BTreeMap<NodeId, NodeId>,
    /// How many times this node, as the primary, has found one.
    pub differences: u64,
    /// The last of them, and what it was.
    pub last_difference: Option<(NodeId, String)>,
    /// Nodes that keep the others waiting: the next view should be without them.
    pub lagging: BTreeSet<NodeId>,
    /// Nodes that have caught up, and may be members of the next view. Nothing is stable without them.
    pub promoted: BTreeSet<NodeId>,
    /// How far it is, where it begins with a copy of another node's data.
    pub joins: Joins,
    /// It has no data of the group any more, or not yet, and must be a member of no view.
    pub lacks_data: bool,
    /// How often it has begun with a copy.
    pub joins_tried: u64,
    /// The nodes that it has links to.
    pub linked: BTreeSet<NodeId>,
    /// Its server takes no connections any more. What that has said to clients last is not passed on: others go on with them.
    pub is_server_lost: bool,
    /// Its server takes connections, and does not answer, or ends what the others' servers do not.
    pub is_server_hanging: bool,
    /// It was a member, and is none any more.
    pub is_excluded: bool,
    /// Packets of clients that come here are withheld, or go to the primary.
    pub is_forwarding: bool,
    /// How long it took to restore all connections, the last time.
    pub restored_in: Option<Duration>,
    /// How long clients had no primary before that, as far as this node knows: since it last heard the one before, or served itself.
    pub paused: Option<Duration>,
    /// How many times it has stopped to serve, as its lease was over.
    pub fences: u64,
    /// The kernel had no room for so many packets at a time, or more.
    pub overflows: u64,
    /// Packets of clients that went to another primary.
    pub forwarded: u64,
    /// Packets of clients that came to another node first.
    pub injected: u64,
}

/// To tell a node something, and to ask how it is.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) commands: Sender<Command>,
    pub(super) waker: Arc<Waker>,
    pub(super) facts: Arc<Mutex<Facts>>,
}

impl Handle {
    /// Tells it this. One that has ended hears nothing.
    pub fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
        let _ = self.waker.wake();
    }

    /// Something that it asks by itself has changed, such as the lease.
    pub fn wake(&self) {
        let _ = self.waker.wake();
    }

    /// How it is.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
