//! A process that runs plans: started as a whole or not at all, drained on SIGTERM.

use crate::admin;
use crate::cli::ProcessArgs;
use crate::descriptors::{self, Spare};
use crate::exit::Code;
use crate::front::{self, Front};
use crate::handover::{self, HAND_OVER_TIMEOUT, Keeper};
use crate::instance::Instance;
use crate::metrics;
use crate::narrate::Narrator;
use crate::outages;
use crate::plan::{ConnectPlan, ListenPlan};
use crate::registry::Registry;
use crate::server::{self, Outbox, Server};
use crate::signals::{Request, Signals};
use anyhow::Result;
use outlast_session::Role;
use outlast_session::relay::{DetachedRelay, SETTLE_TIMEOUT};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// After SIGTERM, time for sessions to end by themselves. Default 30 s: what service managers allow.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for peers to hear that their sessions have been ended.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time for the last words of sessions that have ended in order: the peer wants to know that we have everything.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// Relays on their way to the process that keeps them: few, as each may have megabytes with it.
const LEAVING_MAX: usize = 2;

/// The way out for relays.
struct Leaving {
    /// Until the first step that needs descriptors: a process may stop because it has run out of them.
    spare: Option<Spare>,
    inbox: mpsc::Receiver<Option<(SocketAddr, Box<DetachedRelay>)>>,
    outbox: Outbox,
}

/// What runs in a process.
#[derive(Debug, Default)]
pub struct Plans {
    pub listen: Vec<ListenPlan>,
    pub connect: Vec<ConnectPlan>,
}

/// Runs the plans until a signal ends them.
pub async fn run(plans: Plans, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    descriptors::raise_limit();
    let mut signals = Signals::new()?;
    let registry = Arc::new(Registry::default());
    let mut servers = Vec::new();
    let mut fronts = Vec::new();
    for plan in plans.listen {
        servers.push(Server::bind(plan).await?);
    }
    for plan in plans.connect {
        outages::warn_of(&plan.config, narrator);
        fronts.extend(front::bind(plan).await?);
    }
    let without = "status, kill and handing sessions over to the next process will not work";
    let admin = admin::socket(process, without)?;
    let metrics_listener = match process.metrics {
        Some(address) => Some(metrics::bind(address).await?),
        None => None,
    };
    let serves: Vec<String> =
        servers.iter().map(Server::describe).chain(fronts.iter().map(Front::describe)).collect();
    for line in &serves {
        tracing::info!("{line}");
        narrator.say(line);
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
    let mut attending = JoinSet::new();
    if let Some(admin) = admin {
        attending.spawn(admin.serve(Arc::clone(&instance)));
    }
    if let Some(listener) = metrics_listener {
        if let Ok(address) = listener.local_addr() {
            tracing::info!("metrics at http://{address}/metrics");
        }
        attending.spawn(metrics::serve(listener, Arc::clone(&instance)));
    }
    for front in fronts {
        accepting.spawn(front.accept(Arc::clone(&registry), narrator.clone()));
    }
    let (outbox, inbox) = mpsc::channel(LEAVING_MAX);
    for mut server in servers {
        server.go_on(&registry, narrator, &outbox);
        attending.spawn(server::accept(server, Arc::clone(&registry), narrator.clone(), outbox.clone()));
    }
    let leaving = Leaving { spare, inbox, outbox };
    let request = signals.next().await;
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
    // Ends the admin socket's task, which removes its file.
    attending.shutdown().await;
    Ok(code)
}

/// Whether a request ends everything at once. Ctrl-C is meant for the streams of whoever has started `connect`; those of
/// `listen` are other people's.
fn is_at_once(request: Request, instance: &Instance) -> bool {
    request == Request::Now(Code::Interrupted) && instance.listeners.is_empty()
}

/// Waits for the sessions to end, until the next request at the most. Those that have not are detached for the next
/// process, or ended with everything delivered.
async fn drain(
    instance: &Instance,
    signals: &mut Signals,
    process: &ProcessArgs,
    narrator: &Narrator,
    leaving: Leaving,
) -> Code {
    let limit = process.drain_timeout.unwrap_or(DRAIN_TIMEOUT);
    let registry = &instance.registry;
    instance.draining.store(true, Ordering::Relaxed);
    for listener in &instance.listeners {
        listener.set_draining(true);
    }
    let open = registry.open();
    tracing::info!(open, "draining");
    if open > 0 {
        narrator.say(&format!(
            "draining: {open} sessions open, waiting up to {}, or until the next signal",
            crate::narrate::seconds(limit)
        ));
    }
    let started = Instant::now();
    tokio::select! {
        () = registry.all_left() => return Code::Ok,
        () = tokio::time::sleep(limit) => {}
        request = signals.next() => {
            if is_at_once(request, instance) {
                return code_of(request, registry);
            }
        }
    }
    let detached = detach(instance, process, leaving).await;
    match detached {
        Detached::All => return Code::Ok,
        Detached::Some => return Code::Network,
        Detached::Unasked | Detached::Failed => {}
    }
    let open = registry.open();
    tracing::warn!(
        "{open} {} still open after {}: ended once the other side has what they had",
        if open == 1 { "session was" } else { "sessions were" },
        crate::narrate::seconds(started.elapsed())
    );
    registry.stop_all();
    tokio::select! {
        () = registry.all_left() => {}
        // Every step of a hand-over has its own limit; this is for the unforeseen.
        () = tokio::time::sleep(4 * SETTLE_TIMEOUT) => {}
        request = signals.next() => return code_of(request, registry),
    }
    if detached == Detached::Failed {
        return Code::Network;
    }
    // Each has said so in the log.
    if registry.totals().undelivered > 0 || registry.open() > 0 { Code::Network } else { Code::Ok }
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
async fn detach(instance: &Instance, process: &ProcessArgs, leaving: Leaving) -> Detached {
    let Leaving { spare, mut inbox, outbox } = leaving;
    let registry = &instance.registry;
    let time = process.hand_over_timeout.unwrap_or(HAND_OVER_TIMEOUT);
    if time.is_zero() || registry.open_as(Role::Server) == 0 {
        return Detached::Unasked;
    }
    let failed = |error: anyhow::Error| {
        tracing::warn!(
            "handing over has failed, the sessions cannot be kept for the next process: {error:#}"
        );
        Detached::Failed
    };
    if let Err(error) = handover::check() {
        return failed(error);
    }
    // Clients that wait for a descriptor would take the spare ones.
    for listener in &instance.listeners {
        listener.stop_listening();
    }
    while !instance.listeners.iter().all(|listener| listener.is_closed()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(spare);
    let addresses = instance.listeners.iter().map(|listener| listener.local_addr());
    let started: Result<Vec<Keeper>> = addresses.map(|address| Keeper::start(address, time)).collect();
    let mut keepers = match started {
        Ok(keepers) => keepers,
        Err(error) => return failed(error),
    };
    registry.detach_all();
    let filling = tokio::task::spawn_blocking(move || {
        let mut lost = 0;
        while let Some(Some((address, relay))) = inbox.blocking_recv() {
            let Some(keeper) = keepers.iter_mut().find(|keeper| keeper.address == address) else { continue };
            let id = relay.session.id();
            if let Err(error) = keeper.add(*relay) {
                lost += 1;
                tracing::error!(session = %id, "lost: {error:#}");
            }
        }
        (keepers, lost)
    });
    // Every step of a hand-over has its own limit; this is for the unforeseen.
    tokio::time::timeout(4 * SETTLE_TIMEOUT, registry.all_left()).await.ok();
    outbox.send(None).await.ok();
    let (keepers, mut lost) = filling.await.unwrap_or((Vec::new(), 1));
    for keeper in keepers {
        let (address, pid) = (keeper.address, keeper.pid);
        match keeper.finish() {
            Ok(0) => {}
            Ok(kept) => {
                tracing::warn!(
                    "{} detached: the next `outlast listen {address}` goes on with {} if it is started within {} \
                     (process {pid} keeps {})",
                    if kept == 1 { "1 session was".to_owned() } else { format!("{kept} sessions were") },
                    if kept == 1 { "it" } else { "them" },
                    crate::narrate::seconds(time),
                    if kept == 1 { "it" } else { "them" },
                );
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

/// The code when what is open is ended at once.
fn code_of(request: Request, registry: &Registry) -> Code {
    let open = registry.open();
    tracing::warn!("{open} sessions ended at once");
    match request {
        Request::Now(Code::Interrupted) => Code::Interrupted,
        _ if open > 0 => Code::Network,
        _ => Code::Ok,
    }
}
