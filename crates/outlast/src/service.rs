//! A process that runs plans: started as a whole or not at all. On SIGTERM listeners hand over, and what cannot be handed
//! over is drained.

use crate::admin;
use crate::cli::ProcessArgs;
use crate::descriptors::{self, Spare};
use crate::exit::Code;
use crate::front::{self, Front};
use crate::handover::{self, Door, HAND_OVER_TIMEOUT, Keeper, Legacy, Turn};
use crate::instance::Instance;
use crate::metrics;
use crate::narrate::Narrator;
use crate::outages;
use crate::plan::{ConnectPlan, ListenPlan};
use crate::registry::Registry;
use crate::run::manager::Manager;
use crate::server::{self, Bound, Outbox, Server};
use crate::signals::{Request, Signals};
use crate::watcher::Watcher;
use anyhow::{Context, Result};
use outlast_session::relay::{DetachedRelay, SETTLE_TIMEOUT};
use outlast_session::{Memory, Role};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

/// After SIGTERM, time for sessions to end by themselves if no other process can take them over. Default 30 s: what
/// service managers allow.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for peers to hear that their sessions have been ended.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time for the last words of sessions that have ended in order: the peer wants to know that we have everything.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// When the port is closed, sessions that were accepted before that are taken up within this time.
const TAKE_UP_TIMEOUT: Duration = Duration::from_millis(100);

/// Relays on their way to the process that keeps them: few, as each may have megabytes with it.
const LEAVING_MAX: usize = 2;

/// The way out for relays.
struct Leaving {
    /// Until the first step that needs descriptors: a process may stop because it has run out of them.
    spare: Option<Spare>,
    inbox: mpsc::Receiver<Option<(SocketAddr, Box<DetachedRelay>)>>,
    outbox: Outbox,
    /// Those who take sessions up that the listeners have accepted.
    serving: JoinSet<()>,
    /// The next process has the same address for it.
    metrics: Option<JoinHandle<()>>,
}

/// What runs in a process.
#[derive(Debug, Default)]
pub struct Plans {
    pub listen: Vec<ListenPlan>,
    pub connect: Vec<ConnectPlan>,
}

/// `--memory`, which is one for all sessions of the process, of all sections. None: nobody gives it.
fn memory_of_all(plans: &Plans, default_bytes: u64) -> Option<u64> {
    let listening = plans.listen.iter().map(|plan| plan.memory_bytes);
    let all = listening.chain(plans.connect.iter().map(|plan| plan.memory_bytes));
    let all: Vec<Option<u64>> = all.map(|bytes| bytes.map(|bytes| bytes as u64)).collect();
    let (largest, differs) = largest_of(&all, default_bytes)?;
    if differs {
        tracing::warn!(
            "--memory is one for all sessions of a process: it is {largest} bytes, the largest value that a section has, or the default \
             of one that gives none"
        );
    }
    Some(largest)
}

/// The largest value, if any is given, and whether not all are that. Those that are not given are the default.
fn largest_of(all: &[Option<u64>], default_bytes: u64) -> Option<(u64, bool)> {
    let given = all.iter().flatten().copied().max()?;
    let largest = if all.contains(&None) { given.max(default_bytes) } else { given };
    Some((largest, all.iter().any(|bytes| *bytes != Some(largest))))
}

/// Runs the plans until a signal ends them.
pub async fn run(mut plans: Plans, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    descriptors::raise_limit();
    let manager = Manager::of_this_process();
    let mut signals = Signals::new()?;
    if let Some(bytes) = memory_of_all(&plans, Memory::now().budget_bytes) {
        Memory::set_budget(bytes);
    }
    Memory::return_when_free();
    let registry = Arc::new(Registry::default());
    let mut fronts = Vec::new();
    // Before anything listens: if this process is killed just then, its child would have those sockets until it has executed.
    let mut watcher = Watcher::of(&mut plans.connect, narrator);
    if let Some(watcher) = &mut watcher {
        watcher.begin();
    }
    // A listener that stops may take its time.
    let listen = std::mem::take(&mut plans.listen);
    let (turns, bound) = match unless_stopped(&mut signals, move || bind_all(listen)).await? {
        Ok(bound) => bound,
        Err(code) => return Ok(code),
    };
    let for_programs = front::places_for(descriptors::programs_max(!bound.is_empty()));
    for plan in plans.connect {
        outages::warn_of(&plan.config, narrator);
        fronts.extend(front::bind(plan, &for_programs).await?);
    }
    let without = "status, kill and handing sessions over to the next process will not work";
    let admin = admin::socket(process, without)?;
    let metrics_listener = match process.metrics {
        Some(address) => Some(metrics::bind(address).await?),
        None => None,
    };
    // Last of all that may fail: sessions that this process goes on with are in its hands.
    let servers = match unless_stopped(&mut signals, move || ask_all(bound)).await? {
        Ok(left) => left.into_iter().map(|(bound, legacy)| Server::listen(bound, legacy)).collect::<Vec<_>>(),
        Err(code) => return Ok(code),
    };
    let servers = servers.into_iter().collect::<Result<Vec<Server>>>()?;
    drop(turns);
    let serves: Vec<String> =
        servers.iter().map(Server::describe).chain(fronts.iter().map(Front::describe)).collect();
    for line in &serves {
        narrator.announce(line);
    }
    let spare = (!servers.is_empty()).then(Spare::take);
    let instance = Arc::new(Instance {
        serves,
        listeners: servers.iter().map(Server::listener).collect(),
        registry: Arc::clone(&registry),
        draining: AtomicBool::new(false),
        started: Instant::now(),
    });
    let mut accepting = JoinSet::new();
    let mut serving = JoinSet::new();
    let mut attending = JoinSet::new();
    attending.spawn(manager.keep_alive());
    let last_words = watcher.as_ref().map(Watcher::table);
    if let Some(watcher) = watcher {
        attending.spawn(watcher.keep_running(narrator.clone()));
    }
    if let Some(admin) = admin {
        attending.spawn(admin.serve(Arc::clone(&instance)));
    }
    let metrics = metrics_listener.map(|listener| {
        if let Ok(address) = listener.local_addr() {
            narrator.announce(&format!("metrics at http://{address}/metrics"));
        }
        tokio::spawn(metrics::serve(listener, Arc::clone(&instance)))
    });
    for front in fronts {
        accepting.spawn(front.accept(Arc::clone(&registry), narrator.clone()));
    }
    let (outbox, inbox) = mpsc::channel(LEAVING_MAX);
    for mut server in servers {
        server.go_on(&registry, narrator, &outbox);
        serving.spawn(server::accept(server, Arc::clone(&registry), narrator.clone(), outbox.clone()));
    }
    manager.status(&instance.serves.join("; "));
    manager.ready();
    let leaving = Leaving { spare, inbox, outbox, serving, metrics };
    let request = signals.next().await;
    manager.stopping();
    // The local listeners close; the session listeners stay for those who resume.
    accepting.shutdown().await;
    let ended_early = registry.totals().ended_early;
    let code = if is_at_once(request, &instance) {
        Code::Interrupted
    } else {
        match (drain(&instance, &mut signals, process, narrator, leaving).await, request) {
            (Code::Ok, Request::Now(code)) => code,
            (code, _) => code,
        }
    };
    registry.end_all();
    tokio::time::timeout(GOODBYE_TIMEOUT, registry.all_left()).await.ok();
    if registry.totals().ended_early > ended_early {
        // Clients come back at once to ask what became of their link: somebody has to answer.
        tokio::time::sleep(GOODBYE_TIMEOUT).await;
    }
    instance.farewell(FAREWELL_TIMEOUT).await;
    if let Some(table) = last_words {
        table.close();
    }
    // Ends the admin socket's task, which removes its file.
    attending.shutdown().await;
    Ok(code)
}

/// Runs what blocks on a thread of its own. A request to stop ends this process meanwhile, in its own way: with a code.
async fn unless_stopped<T: Send + 'static>(
    signals: &mut Signals,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<Result<T, Code>> {
    let (done, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("start".into());
    // Not a task of the runtime, which would wait for its end.
    thread.spawn(move || done.send(work()).ok()).context("cannot start a thread")?;
    tokio::select! {
        result = result => result.context("a thread has failed")?.map(Ok),
        request = signals.next() => Ok(Err(match request {
            Request::Drain => Code::Ok,
            Request::Now(code) => code,
        })),
    }
}

/// Addresses for all listeners, with the right to be the one that begins to listen there.
fn bind_all(plans: Vec<ListenPlan>) -> Result<(Vec<Turn>, Vec<Bound>)> {
    let turns = Turn::take_all(plans.iter().map(|plan| plan.address.port()))?;
    let bound: Result<_> = plans.into_iter().map(Bound::new).collect();
    Ok((turns, bound?))
}

/// What the processes before this one have left for them.
fn ask_all(bound: Vec<Bound>) -> Result<Vec<(Bound, Legacy)>> {
    let ask = |bound: Bound| {
        let legacy = bound.ask()?;
        Ok((bound, legacy))
    };
    bound.into_iter().map(ask).collect()
}

/// Whether a request ends everything at once. Ctrl-C is meant for the streams of whoever has started `connect`; those of
/// `listen` are other people's.
fn is_at_once(request: Request, instance: &Instance) -> bool {
    request == Request::Now(Code::Interrupted) && instance.listeners.is_empty()
}

/// What a process that was stopped waits for, and for how long at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// All sessions: no new ones are taken. Asked for, or nobody could take the sessions over.
    All(Duration),
    /// Those that this process has opened, as nobody can take these over. Its listeners serve on until then.
    Opened(Duration),
}

impl Wait {
    fn of(instance: &Instance, process: &ProcessArgs) -> Self {
        let hands_over = !instance.listeners.is_empty() && !hand_over_timeout(process).is_zero();
        match process.drain_timeout {
            Some(limit) => Self::All(limit),
            None if hands_over && handover::check().is_ok() => Self::Opened(DRAIN_TIMEOUT),
            None => Self::All(DRAIN_TIMEOUT),
        }
    }

    fn limit(self) -> Duration {
        match self {
            Self::All(limit) | Self::Opened(limit) => limit,
        }
    }

    /// How many sessions are waited for.
    fn open(self, registry: &Registry) -> usize {
        match self {
            Self::All(_) => registry.open(),
            Self::Opened(_) => registry.open_as(Role::Client),
        }
    }

    /// Completes when there are none.
    async fn over(self, registry: &Registry) {
        match self {
            Self::All(_) => registry.all_left().await,
            Self::Opened(_) => registry.all_left_as(Role::Client).await,
        }
    }
}

fn hand_over_timeout(process: &ProcessArgs) -> Duration {
    process.hand_over_timeout.unwrap_or(HAND_OVER_TIMEOUT)
}

/// Hands the sessions that this process has accepted to the next one, and waits for what cannot be handed over, or for
/// everything if that is asked for: until the next request, or the next process, at the most. Those that have not ended
/// then are detached, or ended with everything delivered.
async fn drain(
    instance: &Instance,
    signals: &mut Signals,
    process: &ProcessArgs,
    narrator: &Narrator,
    leaving: Leaving,
) -> Code {
    let wait = Wait::of(instance, process);
    let registry = &instance.registry;
    if matches!(wait, Wait::All(_)) {
        for listener in &instance.listeners {
            listener.set_draining(true);
        }
    }
    let mut doors = JoinSet::new();
    for door in doors_of(instance, process) {
        doors.spawn(async move { (door.next().await, door) });
    }
    let started = Instant::now();
    let open = wait.open(registry);
    tracing::info!(open, "draining");
    if open > 0 {
        instance.draining.store(true, Ordering::Relaxed);
        Manager::of_this_process().stops_within(wait.limit() + 4 * SETTLE_TIMEOUT);
        narrator.announce(&format!(
            "draining: waiting for {} to end, up to {}, or until the next signal",
            counted(open),
            crate::narrate::seconds(wait.limit())
        ));
    }
    // Held as long as this process lives: whoever has asked waits for its end.
    let mut _askers = None;
    tokio::select! {
        () = wait.over(registry) => {}
        () = tokio::time::sleep(wait.limit()) => {}
        Some(asker) = doors.join_next() => {
            narrator.announce("the next listener is there: handing over");
            _askers = Some(asker);
        }
        request = signals.next() => {
            if is_at_once(request, instance) {
                return code_of(request, registry, narrator);
            }
        }
    }
    let detached = detach(instance, process, narrator, leaving).await;
    match detached {
        Detached::All => return Code::Ok,
        Detached::Some => return Code::Network,
        Detached::Unasked | Detached::Failed => {}
    }
    let open = registry.open();
    if open == 0 {
        return Code::Ok;
    }
    narrator.warn(&format!(
        "{} still open after {}: each ends as soon as the other side has received its data",
        was_or_were(open),
        crate::narrate::seconds(started.elapsed())
    ));
    registry.stop_all();
    tokio::select! {
        () = registry.all_left() => {}
        // Every step of a hand-over has its own limit; this is for the unforeseen.
        () = tokio::time::sleep(4 * SETTLE_TIMEOUT) => {}
        request = signals.next() => return code_of(request, registry, narrator),
    }
    if detached == Detached::Failed {
        return Code::Network;
    }
    // Each has said so in the log.
    if registry.totals().undelivered > 0 || registry.open() > 0 { Code::Network } else { Code::Ok }
}

/// Where the next listeners ask for a hand-over. Without them they find the address in use until this process has ended.
fn doors_of(instance: &Instance, process: &ProcessArgs) -> Vec<Door> {
    if hand_over_timeout(process).is_zero() || handover::check().is_err() {
        return Vec::new();
    }
    let open = |address| Door::open(address).map_err(|error| tracing::debug!("{address}: {error:#}")).ok();
    instance.listeners.iter().filter_map(|listener| open(listener.local_addr())).collect()
}

fn counted(sessions: usize) -> String {
    if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") }
}

fn was_or_were(sessions: usize) -> String {
    format!("{} {}", counted(sessions), if sessions == 1 { "was" } else { "were" })
}

/// What has become of the sessions that this process has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detached {
    /// Nobody asked for them to be kept, or there are none: what is open is to be ended.
    Unasked,
    /// None could be kept: they are to be ended.
    Failed,
    All,
    /// The others are lost. Each has said so in the log.
    Some,
}

/// Hands the sessions that this process has accepted to a process that keeps them for the next one.
async fn detach(
    instance: &Instance,
    process: &ProcessArgs,
    narrator: &Narrator,
    leaving: Leaving,
) -> Detached {
    let Leaving { spare, inbox, outbox, mut serving, metrics } = leaving;
    let registry = &instance.registry;
    let time = hand_over_timeout(process);
    if time.is_zero() || instance.listeners.is_empty() {
        return Detached::Unasked;
    }
    let failed = |error: anyhow::Error| {
        narrator.warn(&format!(
            "handing over has failed, the sessions cannot be kept for the next process: {error:#}"
        ));
        Detached::Failed
    };
    if let Err(error) = handover::check() {
        return if registry.open_as(Role::Server) == 0 { Detached::Unasked } else { failed(error) };
    }
    // Whoever finds the addresses of the listeners free finds this one free as well.
    if let Some(metrics) = metrics {
        metrics.abort();
        metrics.await.ok();
    }
    // Clients that wait for a descriptor would take the spare ones. Handshakes that are under way have come too late.
    for listener in &instance.listeners {
        listener.set_draining(true);
        listener.stop_listening();
    }
    while !instance.listeners.iter().all(|listener| listener.is_closed()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // What was opened before is handed over as well. Those who take it up end when nothing more can come.
    let taken_up = async { while serving.join_next().await.is_some() {} };
    tokio::time::timeout(TAKE_UP_TIMEOUT, taken_up).await.ok();
    if registry.open_as(Role::Server) == 0 {
        return Detached::Unasked;
    }
    drop(spare);
    let addresses = instance.listeners.iter().map(|listener| listener.local_addr());
    let started: Result<Vec<Keeper>> = addresses.map(|address| Keeper::start(address, time)).collect();
    let keepers = match started {
        Ok(keepers) => keepers,
        Err(error) => return failed(error),
    };
    let passed = Arc::new(AtomicUsize::new(0));
    // Not a thread of the runtime, which panics where there is none to be had. Before anything is detached for it.
    let (filled, filling) = oneshot::channel();
    let filler = std::thread::Builder::new().name("outlast-fill".into()).spawn({
        let (passed, runtime) = (Arc::clone(&passed), tokio::runtime::Handle::current());
        move || {
            let _context = runtime.enter();
            filled.send(fill(keepers, inbox, &passed)).ok();
        }
    });
    if let Err(error) = filler {
        return failed(anyhow::Error::from(error).context("cannot start a thread"));
    }
    registry.detach_all();
    // Each has a limit of its own for its last steps; this is for the unforeseen. It begins again as long as keepers take some.
    let mut passed_before = 0;
    while tokio::time::timeout(4 * SETTLE_TIMEOUT, registry.all_left()).await.is_err() {
        if std::mem::replace(&mut passed_before, passed.load(Ordering::Relaxed)) == passed_before {
            break;
        }
    }
    outbox.send(None).await.ok();
    let (keepers, mut lost) = filling.await.unwrap_or((Vec::new(), 1));
    for keeper in keepers {
        let (address, pid) = (keeper.address, keeper.pid);
        match keeper.finish() {
            Ok((kept, missing)) => {
                if missing > 0 {
                    lost += missing;
                    tracing::error!(
                        "{} of {address} lost: process {pid} could not take all",
                        was_or_were(missing)
                    );
                }
                if kept == 0 {
                    continue;
                }
                let them = if kept == 1 { "it" } else { "them" };
                narrator.warn(&format!(
                    "{} detached: the next `outlast listen {address}` goes on with {them} if it is started within {} \
                     (process {pid} keeps {them})",
                    was_or_were(kept),
                    crate::narrate::seconds(time),
                ));
            }
            Err(error) => {
                lost += 1;
                tracing::error!("the sessions of {address} are lost: {error:#}");
            }
        }
    }
    // Sessions that this process has opened cannot be kept: they have been ended.
    if lost > 0 || registry.totals().undelivered > 0 || registry.open() > 0 {
        Detached::Some
    } else {
        Detached::All
    }
}

/// Gives relays to those who keep them, until there are no more. The keepers, and how many sessions were lost.
fn fill(
    mut keepers: Vec<Keeper>,
    mut inbox: mpsc::Receiver<Option<(SocketAddr, Box<DetachedRelay>)>>,
    passed: &AtomicUsize,
) -> (Vec<Keeper>, usize) {
    let mut lost = 0;
    while let Some(next) = inbox.blocking_recv() {
        let Some((address, relay)) = next else {
            // Those that have their place in the channel still come; for others there is no more.
            inbox.close();
            continue;
        };
        let Some(keeper) = keepers.iter_mut().find(|keeper| keeper.address == address) else { continue };
        let id = relay.session.id();
        if let Err(error) = keeper.add(*relay) {
            lost += 1;
            tracing::error!(session = %id, "lost: {error:#}");
        }
        passed.fetch_add(1, Ordering::Relaxed);
    }
    (keepers, lost)
}

/// The code when what is open is ended at once.
fn code_of(request: Request, registry: &Registry, narrator: &Narrator) -> Code {
    let open = registry.open();
    narrator.warn(&format!("{} ended at once", was_or_were(open)));
    match request {
        Request::Now(Code::Interrupted) => Code::Interrupted,
        _ if open > 0 => Code::Network,
        _ => Code::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_budget_counts_and_whoever_gives_none_has_the_default() {
        assert_eq!(largest_of(&[None, None], 100), None);
        assert_eq!(largest_of(&[Some(32), Some(32)], 100), Some((32, false)));
        assert_eq!(largest_of(&[Some(32), Some(64)], 100), Some((64, true)));
        assert_eq!(largest_of(&[Some(32), None], 100), Some((100, true)));
        assert_eq!(largest_of(&[Some(200), None], 100), Some((200, true)));
    }
}
