//! A node of a group: it finds the others, takes part in the consensus, and runs the portal as the views say.

mod door;
mod events;
mod founding;
pub mod group;
mod joining;
pub mod meeting;
mod recovering;
pub mod recovery;
mod remembered;
mod server_report;
mod status;
mod switchover;
mod views;

use crate::consensus::{self, Consensus};
use crate::copy::Copying;
use crate::order::Limits;
use crate::portal::clock::ClockPage;
use crate::portal::machine::{self, Command, Handle, Machine};
use crate::portal::rules::{MARK, Rules};
pub use crate::portal::server_process::is_up;
use crate::replica::ServerClock;
use crate::sql::Account;
use crate::view::NodeId;
use door::{Door, Own};
pub use events::Event;
use events::Events;
use founding::meet;
use group::{Group, Listed};
use joining::Copies;
pub use joining::Joining;
use meeting::{Introduction, Meeting, Waits};
use parking_lot::Mutex;
use rand::RngExt;
pub use recovering::Recovering;
use recovery::Recovery;
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

/// A view is learnt of at once; all else so late at the most.
const LOOK: Duration = Duration::from_millis(10);
/// A node that leaves waits so long for the others to go on without it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// A view that a node wants and that is not decided is proposed again.
const CHANGE_AGAIN: Duration = Duration::from_millis(500);
/// What could not be written to disk is tried again so much later.
const NOTE_AGAIN: Duration = Duration::from_secs(1);
/// Of the promise so many heartbeats.
const HEARTBEATS_IN_PROMISE: u64 = 5;
/// On a machine that has something else to do.
const HEARTBEAT_MS_MIN: u64 = 20;
/// An earlier run that was killed may have forked a process that has not started its program yet: it holds all sockets until then.
const LISTEN_WITHIN: Duration = Duration::from_secs(2);

/// How a node is to be.
#[derive(Clone, Debug)]
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
    /// It goes on as a new node, as people have had the group founded again.
    pub recovering: Option<Recovering>,
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
    /// Its group is founded again by this plan: it is to [give up](Node::give_up), and to be started again as one that follows it.
    Recovers(Recovery),
    /// The group was founded again without it: it is to give up, and to be started again as any new node.
    Superseded {
        /// What was left of the group has worked. People have to know of that: clients may have been served by both.
        worked: bool,
    },
}

fn end(ended: &watch::Sender<Option<Ended>>, how: Ended) {
    ended.send_if_modified(|ended| ended.is_none().then(|| *ended = Some(how)).is_some());
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
    remembered: Arc<Mutex<Remembered>>,
    /// The last view of which it is a member is not on disk.
    unnoted: Arc<AtomicBool>,
    /// It goes on in the place of another one, whose server has data in memory perhaps: that is not ended because something is in the way.
    begins_again: bool,
    joins_always: bool,
    introduction: watch::Sender<Introduction>,
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
        let Settings { group, name, portal, memory, is_new_group, joins, recovering } = settings;
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
        let (remembered, mut last_epoch, mut has_data, was_primary) = match &recovering {
            // It knows that already, also where it cannot be written.
            Some(recovering) => {
                let own = &recovering.own;
                (recovering.remembered.clone(), own.last_epoch, own.has_data, own.was_primary)
            }
            None => {
                let remembered = Remembered::read(memory.as_deref())
                    .map_err(|error| system(format!("cannot read {}", what()))(error))?;
                remembered
                    .check()
                    .map_err(|error| system(format!("cannot write beside {}", what()))(error))?;
                let (last_epoch, has_data) = (remembered.last_epoch(), remembered.has_data());
                let was_primary = remembered.was_primary();
                (Arc::new(Mutex::new(remembered)), last_epoch, has_data, was_primary)
            }
        };
        if is_new_group && recovering.is_none() {
            (last_epoch, has_data) = (None, true);
        }
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
            listed: group.nodes.iter().map(Listed::member).collect(),
            first: recovering.as_ref().and_then(Recovering::first),
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
        let begins_again = recovering.is_some() && last_epoch.is_some() && has_data;
        let joins_always = joins && machine.is_some() && !remembered.lock().has_conflict();
        let known_epoch = recovering.as_ref().map_or(0, |recovering| recovering.own.known_epoch);
        let mut meeting =
            Meeting::new(group.clone(), &name, me, last_epoch).with_data(has_data, was_primary, known_epoch);
        let (mut events, mut joining) = (Events::default(), Arc::default());
        if let Some(recovering) = recovering {
            joining = recovering.joining;
            meeting = meeting.running_since(recovering.own.has_run_since);
            if let Some(recovery) = recovering.recovery {
                meeting = meeting.recovering(recovery);
            }
            events = Events::after(recovering.earlier);
        }
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
            own: Own { consensus: consensus.clone(), introduction: introduction.subscribe() },
            ended: ended.clone(),
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
            joining,
            joins: Mutex::default(),
            server_report: Arc::default(),
            remembered,
            unnoted: Arc::default(),
            begins_again,
            joins_always,
            introduction,
            takes_part: AtomicBool::new(false),
            ended,
            events: Mutex::new(events),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::new(door).attend(listener));
        tasks.spawn(meet(shared.clone(), meeting));
        let follows = shared.clone();
        tasks.spawn(async move { follows.follow().await });
        let looks = shared.clone();
        tasks.spawn(async move { looks.look_for_recovery().await });
        if joins && shared.machine.is_some() && !joins_always {
            tracing::warn!(
                "the data of this node's server are of a part of the group that went on beside the one that was founded again: --join does not replace \
                 them before `outlast replicate join` has"
            );
        }
        if joins && shared.machine.is_some() {
            let joins = shared.clone();
            tasks.spawn(async move { joins.join_always().await });
        }
        Ok(Self { shared, tasks: tokio::sync::Mutex::new(tasks), machine: Mutex::new(thread) })
    }

    /// Whether it replaces the data of its server by itself when it is out: as it was to, unless these are of a group that worked beside the one that was
    /// founded again.
    #[must_use]
    pub fn joins_always(&self) -> bool {
        self.shared.joins_always
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
        self.end_all().await;
    }

    async fn end_all(&self) {
        self.end_machine();
        self.shared.consensus.stop().await;
        self.tasks.lock().await.shutdown().await;
    }

    /// Ends without a word to others, which are to do the same: their group decides nothing any more.
    pub async fn give_up(&self) {
        // No view is decided here any more, whoever is reached by now.
        self.shared.consensus.stop().await;
        self.shared.give_all_to_server().await;
        self.end_all().await;
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
