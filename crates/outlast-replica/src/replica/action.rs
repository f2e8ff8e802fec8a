//! What a node's shell is to do.

use super::{LastAck, Shown};
#[cfg(doc)]
use super::{Replica, Restore};
use crate::Message;
use crate::entry::{ConnectionId, Entry};
use crate::order::message::Difference;
use crate::protocol::Resume;
use crate::protocol::database::Login;
use crate::view::NodeId;
use alloc::boxed::Box;
use alloc::sync::Arc;

/// A packet that waits for a verdict: the number that the kernel has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketId(pub u32);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to another node.
    Send {
        /// To which.
        to: NodeId,
        /// What.
        message: Message<Entry>,
    },
    /// A packet that was handed in goes on, or is dropped.
    Verdict {
        /// Which.
        packet: PacketId,
        /// Whether it goes on.
        passes: bool,
    },
    /// At the primary: packets of this connection need no verdict where they neither begin nor end it. What the client sends goes on, and so does
    /// what leaves and acknowledges no more than this number, as long as this node has the lease. The shell may have the kernel do that, or hand
    /// them in as before: then they go on as well.
    LetPass {
        /// Of which client.
        connection: ConnectionId,
        /// A number of TCP. None: all packets wait for verdicts again.
        acknowledges: Option<u32>,
    },
    /// Connect to the server of this node.
    ConnectServer {
        /// For this client.
        connection: ConnectionId,
    },
    /// Connect to the server of this node, which began with a snapshot, and bring the connection into the state in which the other server
    /// had it. What the server says to that is not handed in.
    ReconnectServer {
        /// For this client.
        connection: ConnectionId,
        /// What brings it into that state.
        resume: Resume,
    },
    /// Give these bytes of a client to the server of this node, in the order in which they come, across all clients, and say when it has
    /// taken them: [`Replica::handle_server_took`].
    ToServer {
        /// Of which client.
        connection: ConnectionId,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// The client says who it is: look up what the server of this node keeps of the accounts of [that name](Login::user), and give it
    /// [what is right](Login::for_server) for it, which counts as taken as [`ToServer`](Self::ToServer) does.
    LogIn {
        /// Of which client.
        connection: ConnectionId,
        /// What it says.
        login: Box<Login>,
    },
    /// The server is to end what it works on for this client, by an error: it waits for another one.
    Interrupt {
        /// Of which client.
        connection: ConnectionId,
        /// The number that the server has for the connection.
        number: u32,
    },
    /// The client's stream ends here, for the server of this node.
    EndToServer {
        /// Of which client.
        connection: ConnectionId,
    },
    /// No client is at the connection to the server of this node any more. Give the server what it has not taken, and the end of the stream; what
    /// it says is for nobody. When it has ended its stream, or has not for some time, close the connection and say
    /// [`Replica::handle_server_closed`]. A reset would take from the server what it has not read, and servers have to read the same.
    CloseServer {
        /// Of which client.
        connection: ConnectionId,
    },
    /// There are bytes, or an end, for the client: [`Replica::client_bytes`].
    ClientReady {
        /// Which.
        connection: ConnectionId,
    },
    /// The server has reset the connection: reset the client's.
    ResetClient {
        /// Which.
        connection: ConnectionId,
    },
    /// The client has not heard that its SYN was answered: answer it again as [`Restore::syn_ack`] says.
    AnswerSyn {
        /// Which.
        connection: ConnectionId,
    },
    /// A packet from the client tells of answers that the node before may have sent: say how much the kernel here has sent
    /// (Linux: what was written less `SIOCOUTQNSD`), with [`Replica::handle_sent`].
    AskSent {
        /// Of which client.
        connection: ConnectionId,
    },
    /// Close this client's socket so that the client does not hear of it, and make it again ([`Replica::restore`]).
    RestoreAgain {
        /// Which.
        connection: ConnectionId,
    },
    /// Send this acknowledgement to the client.
    Acknowledge(LastAck),
    /// This node leads now. Restore every connection ([`Replica::connections`], [`Replica::restore`]), take the portal's address, then
    /// say [`Replica::handle_restored`].
    TakeOver {
        /// Of the view that it leads.
        epoch: u64,
    },
    /// This node leads no longer: its sockets of clients are closed so that no client hears of it, and no packet leaves.
    /// The portal's address stays here for some time, two seconds at the most ([`GiveUpAddress`](Self::GiveUpAddress)): what comes may be for another node.
    Fence,
    /// Another node has the portal's address by now, or may have it soon: this one gives it up.
    GiveUpAddress,
    /// A packet that was handed in is for another node, which is the primary now, or is about to be: [`Message::Forwarded`]. Here it is dropped.
    Forward {
        /// Which.
        packet: PacketId,
        /// To which node.
        to: NodeId,
    },
    /// A packet came to the node that was the primary before: it goes on here, as if the network had brought it.
    Inject {
        /// From its IP header on.
        bytes: Arc<[u8]>,
    },
    /// This node was a member, and is none any more: it has to stop.
    Excluded {
        /// Of the view that is without it.
        epoch: u64,
    },
    /// Entries that the node needs are no longer kept: it has to begin with a newer snapshot.
    TooFar {
        /// Which node.
        node: NodeId,
    },
    /// This node, which is no member, needs entries that are no longer kept: it has to begin with a newer snapshot.
    Outdated,
    /// Ask the server of this node whether it has worked off all that it was given, where the protocol has a way. When it says so, and all that it
    /// has said was handed in: [`Replica::handle_server_idle`].
    AskServer {
        /// The entry about which it is.
        index: u64,
        /// The last of what was given is of this client; 0: it was another time.
        connection: ConnectionId,
    },
    /// The time of day for the server of this node is this from now on. It counts before anything is given to the server that is asked for later.
    SetClock {
        /// In milliseconds since 1970.
        at_ms: u64,
    },
    /// The server of this node is to forget what a copy of its data lacks. When it has: [`Replica::handle_refreshed`].
    RefreshServer {
        /// The entry for which it is.
        index: u64,
    },
    /// The server of this node, a backup, answers nothing for a long time, and what comes after that waits; or too much of that waits. This node
    /// should not be a member.
    ServerHangs,
    /// The server of this node, a backup, has ended a connection by itself, and that of the primary has not: what clients have said since then has
    /// not come to it. This node should not be a member.
    ServerDiffers {
        /// Which connection.
        connection: ConnectionId,
    },
    /// A client has sent a command that would leave servers with different data: all nodes have their servers refuse it.
    CommandRefused {
        /// Why, beginning with the command.
        why: &'static str,
        /// Which client.
        connection: ConnectionId,
    },
    /// The server of this node has said something else than the primary's server. The primary hears of it, and decides.
    FoundDifference {
        /// What.
        difference: Difference,
    },
    /// The servers of members have said different things, and this member's is taken for wrong: the next view should be without it.
    AnswersDiffer {
        /// Which member.
        node: NodeId,
        /// Where that is this node: the primary of the next view.
        successor: NodeId,
        /// What differs.
        shown: Shown,
    },
    /// The member keeps the others waiting: the next view should be without it.
    Lags {
        /// Which member.
        node: NodeId,
    },
}
