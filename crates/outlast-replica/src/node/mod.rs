//! A node of a group: it finds the others, takes part in the consensus, and runs the portal as the views say.

mod door;
mod earlier;
mod events;
mod founding;
pub mod group;
mod joining;
pub mod meeting;
mod portal;
mod recovering;
pub mod recovery;
mod remembered;
mod server_report;
mod settings;
mod status;
mod switchover;
mod views;

use crate::consensus::{self, Consensus, First};
use crate::portal::machine::{Command, Handle};
use crate::portal::server_process::ServerRun;
pub use crate::portal::server_process::is_up;
use crate::view::NodeId;
use door::Door;
use earlier::Earlier;
pub use events::Event;
use events::Events;
use founding::meet;
use group::{Group, Listed};
pub use joining::Joining;
use meeting::{Introduction, Meeting, Waits};
use parking_lot::Mutex;
use portal::run_machine;
use rand::RngExt;
pub use recovering::Recovering;
use recovery::Recovery;
use remembered::Remembered;
pub use server_report::ServerReport;
use settings::system;
pub use settings::{Error, Portal, Settings};
pub use status::{Status, StatusOfNode};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
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

/// How a node has ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its server takes no connections any more: the others go on without it.
    ServerLost,
    /// The group was to be founded again with what its server had, and that was started again: it may have lost what it had in memory.
    ServerRestarted,
    /// Its server takes connections, and does not answer.
    ServerHangs,
    /// Its server has the time of day from its machine, and not from the order: it has not loaded the library.
    ClockIgnored,
    /// Its server, a database, does not tell the node what it keeps of its accounts.
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
    Superseded,
    /// It has followed a plan, and the group was not founded again in time: the same.
    RecoveryFailed,
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
    /// None: a witness.
    portal: Option<Portal>,
    /// Of the server, as the node of before has known it. Another one has lost what was in memory.
    server_run: Mutex<Option<ServerRun>>,
    /// The group is founded again with the data of this node's server.
    is_source: bool,
    waits: Mutex<Option<Waits>>,
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
    machine: Mutex<Option<portal::Thread>>,
}

impl Node {
    /// Starts it: in the calling thread's network namespace, on a tokio runtime. It waits for the others, and serves when they are there.
    ///
    /// # Errors
    /// The list makes no sense, an address is in use, or this process may not do what it has to.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let listed = settings.check()?;
        let Earlier { remembered, data, run } = Earlier::of(&settings)?;
        let Settings { group, name, portal, joins, recovering, .. } = settings;
        let listening = listen(listed.address).await;
        let listener =
            listening.map_err(system(format!("cannot listen for other nodes at {}", listed.address)))?;
        // Above 0, and another one at each start.
        let me = NodeId(rand::rng().random_range(1..=u64::MAX));
        let first = recovering.as_ref().and_then(Recovering::first);
        let is_source = recovering.as_ref().is_some_and(Recovering::is_source);
        let consensus = Arc::new(Consensus::start(voting(&group, &listed, me, first)).await?);
        let (ended, _) = watch::channel(None);
        let machine = match &portal {
            Some(portal) => {
                let run = run.clone().filter(|_| is_source);
                Some(run_machine(&group, me, (portal, run), &consensus, ended.clone())?)
            }
            None => None,
        };
        let (machine, thread) = machine.unzip();
        let begins_again = recovering.is_some() && data.last_epoch.is_some() && data.is_whole;
        let (recovery, earlier, joining) = match recovering {
            Some(recovering) => (recovering.recovery, Events::after(recovering.earlier), recovering.joining),
            None => (None, Events::default(), Arc::default()),
        };
        let meeting = Meeting::new(group.clone(), &name, me, data, recovery);
        let (introduction, _) = watch::channel(meeting.introduction());
        let hand_overs = machine.clone().map(|machine| HandOvers {
            me,
            consensus: consensus.clone(),
            machine,
            busy: Arc::default(),
        });
        let shared = Arc::new(Shared {
            group,
            name,
            me,
            consensus,
            machine,
            portal,
            server_run: Mutex::new(run.filter(ServerRun::is_known)),
            is_source,
            waits: Mutex::new(None),
            hand_overs,
            joining,
            joins: Mutex::default(),
            server_report: Arc::default(),
            remembered,
            unnoted: Arc::default(),
            begins_again,
            introduction,
            takes_part: AtomicBool::new(false),
            ended,
            events: Mutex::new(earlier),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::new(Door::of(&shared)).attend(listener));
        tasks.spawn(meet(shared.clone(), meeting));
        let follows = shared.clone();
        tasks.spawn(async move { follows.follow().await });
        let looks = shared.clone();
        tasks.spawn(async move { looks.look_for_recovery().await });
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
        self.end_all().await;
    }

    async fn end_all(&self) {
        self.end_machine();
        self.shared.consensus.stop().await;
        self.tasks.lock().await.shutdown().await;
    }

    /// Ends without a word to others, which are to do the same: their group decides nothing any more.
    pub async fn give_up(&self) {
        // No view is decided here any more, if others answer again or not.
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
        match self.machine.lock().take().map(portal::Thread::join) {
            // One that was in no view has not looked for it.
            Some(Ok(run)) => {
                if let Some(run) = run.filter(ServerRun::is_known) {
                    *self.shared.server_run.lock() = Some(run);
                }
            }
            Some(Err(_)) => tracing::error!("the thread of the portal has panicked"),
            None => {}
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end_machine();
    }
}

/// How a node votes.
fn voting(group: &Group, listed: &Listed, me: NodeId, first: Option<First>) -> consensus::Settings {
    consensus::Settings {
        me,
        is_witness: listed.is_witness,
        promise_ms: group.promise_ms,
        heartbeat_ms: (group.promise_ms / HEARTBEATS_IN_PROMISE).max(HEARTBEAT_MS_MIN) * 2 / 3,
        seed: rand::rng().random(),
        listed: group.nodes.iter().map(Listed::member).collect(),
        first,
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
