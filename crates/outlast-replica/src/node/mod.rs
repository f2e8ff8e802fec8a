//! A node of a group: it finds the others, takes part in the consensus, and runs the portal as the views say.

mod door;
mod events;
pub mod group;
mod joining;
pub mod meeting;
mod remembered;
mod server_report;
mod status;
mod switchover;
mod views;

use crate::consensus::{self, Consensus};
use crate::copy::Copying;
use crate::order::Limits;
use crate::portal::clock::{self, ClockPage};
use crate::portal::machine::{self, Command, Handle, Machine};
use crate::portal::rules::{MARK, Rules};
pub use crate::portal::server_process::is_up;
use crate::portal::sql_asker::check;
use crate::replica::ServerClock;
use crate::sql::Account;
use crate::view::NodeId;
use door::{Door, introduce};
pub use events::Event;
use events::Events;
use group::{Group, Listed};
use joining::Copies;
pub use joining::Joining;
use meeting::{Introduction, Meeting, Next, Waits};
use parking_lot::Mutex;
use rand::RngExt;
use remembered::Remembered;
pub use server_report::ServerReport;
pub use status::{Status, StatusOfNode};
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use switchover::HandOvers;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Between two introductions of a node that has no group.
const INTRODUCE: Duration = Duration::from_millis(100);
/// An answer to that which takes longer is not waited for.
const INTRODUCE_TIMEOUT: Duration = Duration::from_millis(500);
/// A view is learnt of at once; all else so late at the most.
const LOOK: Duration = Duration::from_millis(10);
/// A node that leaves waits so long for the others to go on without it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// A view that a node wants and that is not decided is proposed again.
const CHANGE_AGAIN: Duration = Duration::from_millis(500);
/// Of the promise so many heartbeats.
const HEARTBEATS_IN_PROMISE: u64 = 5;
/// On a machine that has something else to do.
const HEARTBEAT_MS_MIN: u64 = 20;
/// A server that has just come up, or has many clients, is asked again for so long.
const ACCOUNT_WITHIN: Duration = Duration::from_secs(3);
/// An earlier run that was killed may have forked a process that has not started its program yet: it holds all sockets until then.
const LISTEN_WITHIN: Duration = Duration::from_secs(2);

/// How a node is to be.
#[derive(Debug)]
pub struct Settings {
    /// The list.
    pub group: Group,
    /// Which of them this is.
    pub name: String,
    /// None: a witness.
    pub portal: Option<Portal>,
    /// Where it remembers that it was in the group; none: it does not.
    pub memory: Option<PathBuf>,
    /// It is known that all servers have the same data, whatever was before.
    pub is_new_group: bool,
    /// Whenever it is out, it replaces the data of its server by those of the group, and takes part again.
    pub joins: bool,
}

/// Of a node that has a server.
#[derive(Clone, Debug)]
pub struct Portal {
    /// The device that gets the portal's address.
    pub device: String,
    /// This node's server.
    pub server: SocketAddr,
    /// How its data are copied, and how it gets those of another one. None: it cannot, and has none to give.
    pub copying: Option<Copying>,
    /// As whom a server of MySQL or MariaDB is asked for its accounts.
    pub account: Option<Account>,
    /// From where the server has the time of day, where the group says that it has it from the order.
    pub clock_page: Option<ClockPage>,
}

/// Why a node cannot be one, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list, or what this node is to do by it.
    #[error("{0}")]
    Group(String),
    /// Of the system, which does not let this process.
    #[error("{what}: {error}")]
    System {
        /// What it was to do.
        what: String,
        /// The system's word.
        error: io::Error,
    },
    /// Another socket of this machine has the portal's address, or one that listens at all addresses has its port.
    #[error("cannot listen at the portal {portal}: {error}")]
    Portal {
        /// Its address.
        portal: SocketAddr,
        /// The system's word.
        error: io::Error,
    },
    /// Of the consensus.
    #[error(transparent)]
    Consensus(#[from] consensus::Error),
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |error| Error::System { what, error }
}

/// How a node has ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its server takes no connections any more: the others go on without it.
    ServerLost,
    /// Its server takes connections, and does not answer.
    ServerHangs,
    /// Its server has the time of day from its machine, and not from the order: it has not loaded the library.
    ClockIgnored,
    /// Its server of MySQL or MariaDB does not tell the node what it keeps of its accounts.
    AccountRefused(String),
    /// What it does with packets failed.
    Portal(String),
    /// That it is in the group could not be noted on disk.
    Memory(String),
    /// openraft has found something that it takes for impossible.
    Consensus,
}

/// Shared by the tasks of a node.
#[derive(Debug)]
struct Shared {
    group: Group,
    name: String,
    me: NodeId,
    consensus: Arc<Consensus>,
    machine: Option<Handle>,
    server: Option<SocketAddr>,
    waits: Mutex<Option<Waits>>,
    copying: Option<Copying>,
    account: Option<Account>,
    clock_page: Option<ClockPage>,
    hand_overs: Option<HandOvers>,
    /// One try at a time.
    joining: Arc<tokio::sync::Mutex<()>>,
    joins: Mutex<Joining>,
    server_report: Arc<Mutex<Option<ServerReport>>>,
    /// The portal is told of views.
    takes_part: AtomicBool,
    ended: watch::Sender<Option<Ended>>,
    events: Mutex<Events>,
}

/// A node. When it is dropped it ends without a word: others take it for dead.
#[derive(Debug)]
pub struct Node {
    shared: Arc<Shared>,
    tasks: tokio::sync::Mutex<JoinSet<()>>,
    machine: Mutex<Option<JoinHandle<()>>>,
}

impl Node {
    /// Starts it: in the calling thread's network namespace, on a tokio runtime. It waits for the others, and serves when they are there.
    ///
    /// # Errors
    /// The list makes no sense, an address is in use, or this process may not do what it has to.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let Settings { group, name, portal, memory, is_new_group, joins } = settings;
        group.check().map_err(Error::Group)?;
        let listed =
            group.node(&name).ok_or_else(|| Error::Group(format!("the group has no node {name}")))?;
        let Listed { address, is_witness, .. } = *listed;
        if is_witness != portal.is_none() {
            let what = if is_witness {
                "is a witness, and has no server"
            } else {
                "is no witness: it needs a server"
            };
            return Err(Error::Group(format!("node {name} {what}")));
        }
        if portal
            .as_ref()
            .is_some_and(|portal| portal.clock_page.is_some() != (group.clock == ServerClock::Order))
        {
            return Err(Error::Group(format!(
                "the server of node {name} has the time from elsewhere than the group says"
            )));
        }
        // A witness has no data that could be old.
        let memory = memory.filter(|_| !is_witness);
        let what = || memory.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let remembered = Remembered::read(memory.as_deref())
            .map_err(|error| system(format!("cannot read {}", what()))(error))?;
        remembered.check().map_err(|error| system(format!("cannot write beside {}", what()))(error))?;
        let last_epoch = remembered.last_epoch().filter(|_| !is_new_group);
        let listening = listen(address).await;
        let listener = listening.map_err(system(format!("cannot listen for other nodes at {address}")))?;
        // Above 0, and another one at each start.
        let me = NodeId(rand::rng().random_range(1..=u64::MAX));
        let settings = consensus::Settings {
            me,
            is_witness,
            promise_ms: group.promise_ms,
            heartbeat_ms: (group.promise_ms / HEARTBEATS_IN_PROMISE).max(HEARTBEAT_MS_MIN) * 2 / 3,
            seed: rand::rng().random(),
        };
        let consensus = Arc::new(Consensus::start(settings).await?);
        let (ended, _) = watch::channel(None);
        let server = portal.as_ref().map(|portal| portal.server);
        let copying = portal.as_ref().and_then(|portal| portal.copying.clone());
        let account = portal.as_ref().and_then(|portal| portal.account.clone());
        let clock_page = portal.as_ref().and_then(|portal| portal.clock_page.clone());
        let (machine, thread) = match portal {
            Some(portal) => {
                let (handle, thread) = run_machine(&group, me, portal, &consensus, ended.clone())?;
                (Some(handle), Some(thread))
            }
            None => (None, None),
        };
        let meeting = Meeting::new(group.clone(), &name, me, last_epoch);
        let (introduction, _) = watch::channel(meeting.introduction());
        let copies = machine.clone().map(|machine| Copies {
            me,
            consensus: consensus.clone(),
            machine,
            copying: copying.clone(),
            busy: tokio::sync::Mutex::default(),
        });
        let hand_overs = machine.clone();
        let hand_overs = hand_overs.map(|machine| HandOvers {
            me,
            consensus: consensus.clone(),
            machine,
            busy: Arc::default(),
        });
        let door = Door {
            hand_overs: hand_overs.clone(),
            me,
            consensus: consensus.clone(),
            machine: machine.clone(),
            copies: copies.map(Arc::new),
            introduction: introduction.subscribe(),
            listed: group.nodes.iter().map(|node| node.address.ip().to_canonical()).collect(),
        };
        let shared = Arc::new(Shared {
            group,
            name,
            me,
            consensus,
            machine,
            server,
            waits: Mutex::new(None),
            copying,
            account,
            clock_page,
            hand_overs,
            joining: Arc::default(),
            joins: Mutex::default(),
            server_report: Arc::default(),
            takes_part: AtomicBool::new(false),
            ended,
            events: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::new(door).attend(listener));
        tasks.spawn(meet(shared.clone(), meeting, introduction));
        let follows = shared.clone();
        tasks.spawn(async move { follows.follow(remembered).await });
        if joins && shared.machine.is_some() {
            let joins = shared.clone();
            tasks.spawn(async move { joins.join_always().await });
        }
        Ok(Self { shared, tasks: tokio::sync::Mutex::new(tasks), machine: Mutex::new(thread) })
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.shared)
    }

    /// What has happened to the group and to this node, the oldest first, and why.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.shared.events.lock().all()
    }

    /// Waits until it has ended by itself, and why.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.shared.ended.subscribe();
        loop {
            if let Some(ended) = ended.borrow_and_update().clone() {
                return ended;
            }
            if ended.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Makes another member the primary. Which one; none: any. The name of it.
    ///
    /// # Errors
    /// This is no primary, or there is no such member, or the others do not agree.
    pub async fn switch_over(&self, to: Option<&str>) -> Result<String, Error> {
        self.shared.switch_over(to).await
    }

    /// Takes a member out of the group's view. It has to begin again with the data of another one.
    ///
    /// # Errors
    /// There is no such member, it is the last one, or the others do not agree.
    pub async fn evict(&self, name: &str) -> Result<(), Error> {
        self.shared.evict(name).await
    }

    /// Begins to replace the data of this node's server, which is out, by a copy of the primary's, and to take part again.
    /// [`Status::joining`] says how far it is.
    ///
    /// # Errors
    /// It is a member, or it is not known how that is done.
    pub fn begin_to_join(&self) -> Result<(), Error> {
        self.shared.may_join().map_err(Error::Group)?;
        *self.shared.joins.lock() = Joining::Asks;
        let shared = self.shared.clone();
        let joining = async move {
            if let Err(why) = shared.join().await {
                tracing::warn!(why, "this node cannot join");
            }
        };
        match self.tasks.try_lock() {
            Ok(mut tasks) => _ = tasks.spawn(joining),
            Err(_) => return Err(Error::Group("this node ends".to_owned())),
        }
        Ok(())
    }

    /// Leaves the group, and ends: the others go on at once. `is_server_lost`: because its server has ended.
    pub async fn stop(&self, is_server_lost: bool) {
        self.shared.leave(is_server_lost).await;
        self.end_machine();
        self.shared.consensus.stop().await;
        self.tasks.lock().await.shutdown().await;
    }

    /// No client hears of it, and no rule is left.
    fn end_machine(&self) {
        if let Some(machine) = &self.shared.machine {
            machine.tell(Command::Stop);
        }
        // It never waits for anybody.
        if let Some(thread) = self.machine.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the portal has panicked");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end_machine();
    }
}

/// Says so if the thread panics.
struct EndsThread(watch::Sender<Option<Ended>>);

impl Drop for EndsThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.send_replace(Some(Ended::Portal("its thread has panicked".to_owned())));
        }
    }
}

/// Runs the portal in a thread of its own.
fn run_machine(
    group: &Group,
    me: NodeId,
    portal: Portal,
    consensus: &Consensus,
    ended: watch::Sender<Option<Ended>>,
) -> Result<(Handle, JoinHandle<()>), Error> {
    let at = group.portal;
    let settings = machine::Settings {
        me,
        lease: consensus.lease_check(),
        promise_ms: group.promise_ms,
        limits: Limits {
            lag_timeout_ms: Limits::default().lag_timeout_ms.max(group.promise_ms),
            lock_wait_timeout_ms: group.lock_wait_timeout_ms,
            ..Limits::default()
        },
        delivery: group.delivery,
        protocol: group.protocol,
        clock: group.clock,
        clock_page: portal.clock_page.clone(),
        answers: group.answers,
        portal: at,
        device: portal.device.clone(),
        mark: MARK,
        server: portal.server,
        account: portal.account.clone(),
        password: portal.copying.as_ref().and_then(|copying| copying.password.clone()),
    };
    // Before the rules are touched: they may be those of another process, which has the address.
    let listener = machine::listen(at).map_err(|error| Error::Portal { portal: at, error })?;
    let (rules, packets) = Rules::set(at).map_err(system(format!(
        "cannot hold packets of the portal {at} back (this needs root, or CAP_NET_ADMIN and CAP_NET_RAW, and the kernel's nf_tables and \
         nfnetlink_queue)"
    )))?;
    let made = Machine::new(settings, packets, listener);
    let (machine, handle) =
        made.map_err(system(format!("cannot open the portal {at} at device {}", portal.device)))?;
    let thread = std::thread::Builder::new().name("portal".to_owned()).spawn(move || {
        // Should this thread panic, the rules stay, and nothing of the portal passes.
        let rules = ManuallyDrop::new(rules);
        let ended = EndsThread(ended);
        let result = machine.run();
        // No client hears of it: all sockets are closed.
        drop(ManuallyDrop::into_inner(rules));
        if let Err(error) = result {
            ended.0.send_replace(Some(Ended::Portal(error.to_string())));
        }
    });
    Ok((handle, thread.map_err(system("cannot start a thread"))?))
}

impl Shared {
    /// Whether the server has the time of day from the page, if it is to, and if that can be known.
    async fn is_clock_read(&self) -> Option<bool> {
        let (page, server) = self.clock_page.clone().zip(self.server)?;
        let read = tokio::task::spawn_blocking(move || clock::is_read(&page, server)).await.ok()?;
        if read.is_none() {
            tracing::warn!(%server, "the server's processes cannot be looked at: it is not known whether it has the time from the order");
        }
        read
    }
}

impl Shared {
    /// Why the server does not say what it keeps of its accounts, without which no client could log in.
    async fn account_refused(&self) -> Option<String> {
        let (account, server) = self.account.clone().zip(self.server)?;
        let asks = move || check(server, &account);
        tokio::task::spawn_blocking(asks).await.ok()?.err().map(|error| error.to_string())
    }
}

/// Listens there, as soon as nothing of an earlier run does.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < LISTEN_WITHIN => {
                tokio::time::sleep(LOOK).await;
            }
            listening => return listening,
        }
    }
}

/// Until this node is in a group: looks who is there, and founds or enters it.
async fn meet(shared: Arc<Shared>, mut meeting: Meeting, introduction: watch::Sender<Introduction>) {
    let begun = Instant::now();
    let now_ms = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut is_known = false;
    let mut rounds = tokio::time::interval(INTRODUCE);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        if shared.consensus.is_voter() {
            *shared.waits.lock() = None;
            return;
        }
        let is_up = match shared.server {
            Some(server) => tokio::task::spawn_blocking(move || is_up(server)).await.unwrap_or(false),
            None => true,
        };
        if is_up && !is_known {
            if shared.is_clock_read().await == Some(false) {
                return shared.end(Ended::ClockIgnored);
            }
            if let Some(why) = shared.account_refused().await {
                // It may have no room at present.
                if begun.elapsed() < ACCOUNT_WITHIN {
                    continue;
                }
                return shared.end(Ended::AccountRefused(why));
            }
            is_known = true;
            server_report::begin(&shared);
        }
        meeting.set_ready(is_up);
        let own = meeting.introduction();
        introduction.send_replace(own.clone());
        let mut asked = JoinSet::new();
        for listed in shared.group.nodes.iter().filter(|listed| listed.name != shared.name).cloned() {
            let own = own.clone();
            asked.spawn(async move {
                let said = timeout(INTRODUCE_TIMEOUT, introduce(listed.address, &own)).await;
                said.ok().and_then(Result::ok).map(|said| (listed.name, said))
            });
        }
        while let Some(said) = asked.join_next().await {
            if let Ok(Some((name, said))) = said {
                meeting.handle_introduction(&name, said, now_ms());
            }
        }
        match meeting.next(now_ms()) {
            Next::Wait(waits) => *shared.waits.lock() = Some(waits),
            Next::Found(voters) => {
                if let Err(error) = shared.consensus.found(voters).await {
                    tracing::warn!(%error, "the group could not be founded");
                }
            }
            Next::Enter(in_group) => {
                let names = in_group.keys().cloned().collect();
                *shared.waits.lock() = Some(Waits { in_group: names, ..Waits::default() });
                for address in in_group.values() {
                    if shared.consensus.enter(address, shared.member()).await {
                        break;
                    }
                }
            }
        }
    }
}
