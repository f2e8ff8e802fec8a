//! One node: the pure [`Replica`], and around it the kernel's packets, the sockets of clients, the connections to this node's server, and
//! the links to the other nodes, all in one thread.

use super::announce::Portal;
use super::asker::Asker;
use super::clients::Client;
use super::clock::ClockPage;
use super::copying::{Copying, Joins};
use super::handing_over::HandingOver;
pub use super::handle::{Command, Facts, Handle, LeaseCheck, Settings};
use super::peers::Peers;
use super::raw::Raw;
use super::refresher::Refresher;
use super::repair;
use super::rules::Packets;
use super::server_process::{Ask, ServerProcess, ServerRun};
use super::servers::Server;
use super::sql_asker::SqlAsker;
use super::stream::READ_BYTES;
use super::unqueued::{self, Unqueued};
use crate::connection::Ends;
use crate::entry::ConnectionId;
use crate::order::Limits;
use crate::protocol::Protocol;
use crate::replica::{AnswerPolicy, Delivery, Replica, Restore, ServerClock};
use crate::view::{NodeId, View};
use mio::event::Event;
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use outlast_netlink::queue::{Queue, Verdict};
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const WAKER: Token = Token(0);
const QUEUE: Token = Token(1);
const LISTENER: Token = Token(2);
pub(super) const ASKER: Token = Token(3);
pub(super) const REFRESHER: Token = Token(4);
/// Of connections: those of clients have even ones from here on, those to the server odd ones.
const FIRST: usize = 10;
/// The clock of a machine that was never set begins here.
const CLOCK_BEGINS_MS: u64 = 1 << 40;
/// Clients that wait to be accepted: as many as Linux allows by default.
const BACKLOG: i32 = 4096;
/// Sockets are looked at so often for what their clients have acknowledged, and restored ones are got going.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// Between two looks whether the server lives, besides those when it ends a connection.
const LOOK_AT_SERVER: Duration = Duration::from_secs(1);
/// So long packets are under way at the most.
const AHEAD: Duration = Duration::from_secs(60);
/// It has something to do more often: longer, and it was stopped.
const SLEPT: Duration = Duration::from_secs(2);
/// Between two questions of a primary that waits for the lease.
const ASK_LEASE: Duration = Duration::from_millis(1);

/// A node.
#[derive(Debug)]
pub struct Machine {
    pub(super) replica: Replica,
    pub(super) raw: Raw,
    lease: LeaseCheck,
    /// What it said last.
    pub(super) lease_left_ms: u64,
    pub(super) promise_ms: u64,
    /// Since when it has no lease, and when it has last heard another primary.
    pub(super) fenced_at: Option<Instant>,
    pub(super) heard_primary_at: Instant,
    pub(super) took_over_at: Option<Instant>,
    /// This process has done nothing for a while.
    pub(super) has_slept: bool,
    worked_at: Instant,
    /// What becomes of packets, until the kernel is told.
    pub(super) verdicts: Vec<(u32, Verdict)>,
    pub(super) clients: BTreeMap<ConnectionId, Client>,
    pub(super) servers: BTreeMap<ConnectionId, Server>,
    pub(super) server: SocketAddr,
    pub(super) settings: Plan,
    pub(super) asker: Option<Asker>,
    pub(super) sql_asker: Option<SqlAsker>,
    pub(super) refresher: Option<Refresher>,
    /// Of the server, where it wants one.
    pub(super) password: Option<String>,
    /// Another node is getting a copy of the server's data.
    pub(super) copying: Option<Copying>,
    /// From where the server has the time of day.
    pub(super) clock_page: Option<ClockPage>,
    /// It was told that this is ahead of the machine's.
    pub(super) is_ahead_told: bool,
    /// The server has taken no connection to be asked about this entry.
    pub(super) refused_for: Option<u64>,
    /// When it was last told of a command that is refused.
    pub(super) refused_told: Option<Instant>,
    pub(super) handing_over: HandingOver,
    pub(super) resumes_since: Instant,
    /// The last that it was told of.
    pub(super) newest_view: Option<View>,
    /// Connections to the server that are being closed, and until when, the oldest first.
    pub(super) closing_servers: VecDeque<(Instant, ConnectionId)>,
    pub(super) server_process: ServerProcess,
    pub(super) by_ends: BTreeMap<Ends, ConnectionId>,
    /// Clients and connections to the server of which there may be news.
    pub(super) dirty_clients: BTreeSet<ConnectionId>,
    pub(super) dirty_servers: BTreeSet<ConnectionId>,
    /// Clients whose packets have come.
    pub(super) heard: BTreeSet<ConnectionId>,
    /// Clients that are looked at every [`LOOK`].
    pub(super) watched: BTreeSet<ConnectionId>,
    pub(super) unqueued: Unqueued,
    looked_at: Instant,
    server_looked_at: Instant,
    poll: Poll,
    pub(super) queue: Queue,
    pub(super) listener: TcpListener,
    pub(super) portal: Portal,
    pub(super) peers: Peers,
    commands: Receiver<Command>,
    pub(super) facts: Arc<Mutex<Facts>>,
    pub(super) known: Facts,
    begun: Instant,
    /// What the time of day was then: clocks of nodes are about the same, and a node that joins knows connections that are older than itself.
    clock_begun_ms: u64,
    next_token: usize,
    pub(super) by_token: BTreeMap<Token, ConnectionId>,
    pub(super) announce_at: Option<Instant>,
    pub(super) ends: bool,
    /// The kernel may hold packets, or have accepted clients, that nobody has looked at.
    pub(super) has_packets: bool,
    pub(super) has_accepted: bool,
    /// For what is read.
    pub(super) room: Vec<u8>,
}

/// How its replica is made, again where it joins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) me: NodeId,
    pub(super) limits: Limits,
    pub(super) delivery: Delivery,
    pub(super) protocol: Protocol,
    pub(super) clock: ServerClock,
    pub(super) answers: AnswerPolicy,
}

impl Plan {
    /// One that knows nothing yet.
    pub(super) fn replica(&self) -> Replica {
        Replica::new(self.me, View::none(), self.limits)
            .with(self.delivery, self.protocol)
            .timed(self.clock)
            .answering(self.answers)
    }
}

/// A socket that listens where clients connect to, whichever machine has the address now.
///
/// # Errors
/// Another socket does, or this process may not (`CAP_NET_ADMIN`).
pub fn listen(portal: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(portal), Type::STREAM, None)?;
    repair::make_transparent(&socket, portal)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(portal))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

impl Machine {
    /// With the portal's packets, and a socket that [listens](listen) there. In the calling thread's network namespace.
    ///
    /// # Errors
    /// This process may not (`CAP_NET_ADMIN`, `CAP_NET_RAW`), or an address is in use.
    pub fn new(
        settings: Settings,
        packets: Packets,
        listener: std::net::TcpListener,
    ) -> io::Result<(Self, Handle)> {
        let (poll, queue) = (Poll::new()?, packets.queue);
        let registry = poll.registry();
        let waker = Arc::new(Waker::new(registry, WAKER)?);
        registry.register(&mut SourceFd(&queue.as_fd().as_raw_fd()), QUEUE, Interest::READABLE)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let (commands, receiver) = channel();
        let facts = Arc::new(Mutex::new(Facts::default()));
        let handle = Handle { commands, waker, facts: facts.clone() };
        let asks = |account| SqlAsker::start(settings.server, &account, &handle);
        let account = settings.account.map(asks);
        let plan = Plan {
            me: settings.me,
            limits: settings.limits,
            delivery: settings.delivery,
            protocol: settings.protocol,
            clock: settings.clock,
            answers: settings.answers,
        };
        // Of an earlier node of this process, whose server this is.
        let heard_ms = settings.clock_page.as_ref().map_or(Ok(0), ClockPage::time_ms)?;
        let clock_begun_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(CLOCK_BEGINS_MS, |since| u64::try_from(since.as_millis()).unwrap_or(CLOCK_BEGINS_MS))
            .max(CLOCK_BEGINS_MS);
        let machine = Self {
            replica: plan.replica().timed_from(heard_ms, clock_begun_ms),
            settings: plan,
            asker: None,
            sql_asker: account.transpose()?,
            refresher: None,
            password: settings.password,
            clock_page: settings.clock_page,
            is_ahead_told: false,
            refused_for: None,
            refused_told: None,
            copying: None,
            handing_over: HandingOver::default(),
            resumes_since: Instant::now(),
            newest_view: None,
            raw: Raw::open(settings.mark)?,
            lease: settings.lease,
            lease_left_ms: 0,
            promise_ms: settings.promise_ms,
            fenced_at: None,
            took_over_at: None,
            heard_primary_at: Instant::now(),
            has_slept: false,
            worked_at: Instant::now(),
            verdicts: Vec::new(),
            clients: BTreeMap::new(),
            servers: BTreeMap::new(),
            server: settings.server,
            closing_servers: VecDeque::new(),
            server_process: ServerProcess::of(settings.server, settings.server_run.unwrap_or_default())?,
            by_ends: BTreeMap::new(),
            dirty_clients: BTreeSet::new(),
            dirty_servers: BTreeSet::new(),
            heard: BTreeSet::new(),
            watched: BTreeSet::new(),
            unqueued: Unqueued::new(packets.filter),
            looked_at: Instant::now(),
            server_looked_at: Instant::now(),
            queue,
            listener,
            portal: Portal::open(settings.portal.ip(), &settings.device)?,
            peers: Peers::new(settings.me),
            commands: receiver,
            facts,
            known: Facts::default(),
            begun: Instant::now(),
            clock_begun_ms,
            next_token: FIRST,
            by_token: BTreeMap::new(),
            announce_at: None,
            ends: false,
            has_packets: true,
            has_accepted: true,
            room: vec![0; READ_BYTES],
            poll,
        };
        Ok((machine, handle))
    }

    /// The time of day at which this node began, in milliseconds, and what has passed since. It never goes back.
    pub(super) fn now_ms(&self) -> u64 {
        self.clock_begun_ms + u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX / 2)
    }

    /// How this connection is made again.
    pub(super) fn restore(&self, connection: ConnectionId) -> Option<Restore<'_>> {
        self.replica.restore(connection, self.now_ms())
    }

    /// Where clients connect to.
    pub(super) fn portal_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A client may have more than this node's server had said when it took over: then its socket is made again.
    pub(super) fn may_restore_again(&self) -> bool {
        self.took_over_at.is_some_and(|at| at.elapsed() < AHEAD)
    }

    /// A token for the socket of a client, or of a connection to the server.
    pub(super) fn new_token(&mut self, connection: ConnectionId, is_server: bool) -> Token {
        let token = Token(self.next_token + usize::from(is_server));
        self.next_token += 2;
        self.by_token.insert(token, connection);
        token
    }

    /// It is not used any more.
    pub(super) fn forget_token(&mut self, token: Token) {
        self.by_token.remove(&token);
    }

    pub(super) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Works until it is told to end. With which run of the server it has worked.
    ///
    /// # Errors
    /// The kernel refuses what it has allowed before.
    pub fn run(mut self) -> io::Result<ServerRun> {
        let result = self.work_until_the_end();
        // The others have the clients.
        self.fence();
        self.give_up_address();
        result.map(|()| self.server_process.run().clone())
    }

    fn work_until_the_end(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while !self.ends {
            let now = Instant::now();
            let until = self.next_look(now);
            self.publish();
            match self.poll.poll(&mut events, until.map(|until| until.saturating_duration_since(now))) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                self.on_event(event);
            }
            self.work()?;
        }
        Ok(())
    }

    fn next_look(&mut self, now: Instant) -> Option<Instant> {
        let timeout = self
            .replica
            .poll_timeout()
            .map(|at_ms| self.begun + Duration::from_millis(at_ms.saturating_sub(self.clock_begun_ms)));
        let peers = self.peers.connect(self.poll.registry(), now);
        let looks = (!self.watched.is_empty()).then(|| self.looked_at + LOOK);
        let lease = self.replica.order().is_primary().then(|| {
            // One that serves has to give the address up soon after its lease is over.
            now + if self.replica.is_serving() && !self.replica.keeps_packets() { LOOK } else { ASK_LEASE }
        });
        let server = self.replica.order().view().epoch > 0;
        let server = server.then(|| self.server_looked_at + LOOK_AT_SERVER);
        let more = [self.announce_at, self.closes_at(), self.copies_at(), self.looks_at_unacked_at()];
        [timeout, peers, looks, lease, server].into_iter().chain(more).flatten().min()
    }

    fn on_event(&mut self, event: &Event) {
        let (token, readable, writable) = (event.token(), event.is_readable(), event.is_writable());
        match token {
            QUEUE => return self.has_packets = true,
            LISTENER => return self.has_accepted = true,
            _ => {}
        }
        if self.peers.has(token) {
            self.peers.on_event(event);
            return;
        }
        if token == ASKER
            && let Some(asker) = &mut self.asker
        {
            return asker.note_ready(readable, writable);
        }
        if token == REFRESHER
            && let Some(refresher) = &mut self.refresher
        {
            return refresher.note_ready(readable, writable);
        }
        let Some(connection) = self.by_token.get(&token) else { return };
        if token.0.is_multiple_of(2) {
            if let Some(client) = self.clients.get_mut(connection) {
                client.stream.note_event(event);
                self.dirty_clients.insert(*connection);
            }
        } else if let Some(server) = self.servers.get_mut(connection) {
            server.stream.note_event(event);
            self.dirty_servers.insert(*connection);
        }
    }

    /// Everything that can be done without waiting.
    fn work(&mut self) -> io::Result<()> {
        self.has_slept = self.worked_at.elapsed() > SLEPT;
        self.worked_at = Instant::now();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::View(view) => self.take_view(view),
                Command::Others(others) => self.peers.set_others(others),
                Command::Link(node, socket) => self.peers.adopt(node, socket, self.poll.registry()),
                Command::Copy(node, rests) => self.begin_copy(node, rests),
                Command::Copied(taken) => self.end_copy(taken),
                Command::HandOver(to, within, asks) => self.begin_to_hand_over((to, within), asks)?,
                Command::KeepOn => self.keep_on(),
                Command::Reset(clock_ms) => {
                    self.reset();
                    // What has expired since then has not, for the others.
                    self.set_clock(clock_ms)?;
                }
                Command::Join(snapshot, at, view) => self.join(&snapshot, at, view)?,
                Command::Stop => self.ends = true,
                Command::Accounts(connection, kept) => self.take_accounts(connection, kept),
                Command::SqlIdle(index, connection, answer) => {
                    self.take_sql_idle((index, connection), answer);
                }
            }
        }
        // The process may have been stopped for a while: nothing comes before this, and what is said before asks by itself.
        self.has_lease();
        self.act()?;
        self.look_at_end_of_lease()?;
        // What has been answered meanwhile is not late.
        self.look_at_servers();
        self.hear_peers();
        let now_ms = self.now_ms();
        if self.replica.poll_timeout().is_some_and(|at_ms| at_ms <= now_ms) {
            self.replica.handle_timeout(now_ms);
        }
        // What has come while this process stood still is known by that.
        if self.has_packets || self.has_slept {
            self.take_packets()?;
        }
        self.act()?;
        self.say_verdicts()?;
        self.look_at_heard();
        if self.has_accepted {
            self.accept();
        }
        if self.looked_at.elapsed() >= LOOK {
            self.looked_at = Instant::now();
            self.note_positions();
            self.dirty_clients.extend(self.watched.iter().copied());
        }
        if self.server_looked_at.elapsed() >= LOOK_AT_SERVER && self.replica.order().view().epoch > 0 {
            self.server_looked_at = Instant::now();
            self.is_server_lost(Ask::Rarely);
            self.look_at_clock();
        }
        self.look_at_unacked();
        self.look_at_clients();
        self.look_at_servers();
        self.look_at_asker();
        self.look_at_refresher();
        self.close_late_servers();
        self.look_at_resumed();
        self.go_on_with_copy();
        self.go_on_with_hand_over()?;
        self.promote();
        self.replica.flush(self.now_ms());
        self.act()?;
        self.say_verdicts()?;
        let mut news = Vec::new();
        self.peers.work(&mut news);
        self.take_news(news);
        self.announce();
        self.replica.flush(self.now_ms());
        self.act()?;
        self.say_verdicts()
    }

    fn take_view(&mut self, view: View) {
        self.newest_view = Some(view.clone());
        if self.known.lacks_data {
            return;
        }
        // Before there are clients: looking for it may take some milliseconds.
        if self.known.view.as_ref().is_none_or(|known| known.epoch == 0) {
            if self.server_process.run().is_known() && self.is_server_lost(Ask::Now) {
                // Of what this node goes on with nothing is left.
                return;
            }
            self.server_process.lives(Ask::Now);
        }
        if view.has(self.settings.me) && self.known.joins != Joins::Resumes {
            self.known.joins = Joins::No;
        }
        self.replica.handle_view(view, self.now_ms());
    }

    /// Whether no other node may serve now. Asked right before anything leaves.
    pub(super) fn has_lease(&mut self) -> bool {
        let (order, since) = (self.replica.order(), unqueued::monotonic());
        self.lease_left_ms = if order.is_primary() { self.lease.left_ms(order.view().epoch) } else { 0 };
        let has_lease = self.lease_left_ms > 0;
        self.replica.handle_lease(has_lease, self.now_ms());
        let serves_for_ms = if self.replica.is_serving() { self.lease_left_ms } else { 0 };
        self.unqueued.allow_for(since, Duration::from_millis(serves_for_ms));
        has_lease
    }

    /// Tells the kernel what becomes of packets. Without the lease none passes, whatever was decided before.
    pub(super) fn say_verdicts(&mut self) -> io::Result<()> {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let passes = verdicts.iter().any(|(_, verdict)| *verdict == Verdict::Accept) && self.has_lease();
        for (id, verdict) in verdicts.drain(..) {
            self.queue.decide(id, if passes { verdict } else { Verdict::Drop });
        }
        self.verdicts = verdicts;
        self.queue.flush()?;
        self.let_later_pass();
        Ok(())
    }

    /// Sends packets past the portal's rules, if no other node may serve.
    pub(super) fn send_raw(&mut self, send: impl FnOnce(&Self) -> io::Result<()>) {
        if self.has_lease()
            && let Err(error) = send(self)
        {
            // One that is lost does no harm.
            tracing::debug!(%error, "a packet could not be sent");
        }
    }
}
