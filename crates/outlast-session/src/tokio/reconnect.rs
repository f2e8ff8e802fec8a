//! Making links with tokio: the first one in the caller's task, later ones in a task of the outage.

use crate::config::Config;
use crate::engine::{
    ABORT_MAX, ARRIVAL_LOOK, Attempt, Begun, Engine, Gap, Helper, Hooks, Link, Next, OpeningAttempts, Outage,
    Role, Shake, Verdict, gap_reached, new_session_id,
};
use crate::error::{Error, Result};
use crate::scoped::Scoped;
use crate::sys;
use crate::targets::Targets;
use ::tokio::runtime::Handle;
use ::tokio::time::timeout_at;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An attempt is left alone for so long, whatever happens to the network.
const CONNECT_UNDISTURBED: Duration = Duration::from_secs(1);

/// And then looks so often whether something has.
const CONNECT_LOOK: Duration = Duration::from_millis(100);
/// Why a second link is not made.
const ANSWERED: &str = "the present link answers";

/// Read at a time while hands are shaken.
const HANDSHAKE_READ_BYTES: usize = 4096;

/// Opens a session on the first address that works.
pub(crate) async fn connect(targets: &Targets, config: &Arc<Config>) -> Result<Arc<Engine>> {
    let engine = Engine::new(new_session_id(), Role::Client, config.clone());
    engine.set_hooks(Arc::new(Reconnector { targets: targets.clone(), runtime: Handle::current() }));
    if targets.are_several() {
        engine.open_without_data();
    }
    let mut attempts = OpeningAttempts::new(&engine);
    loop {
        let (last, after) = match attempt(&engine, targets, Attempt::default()).await {
            Verdict::Installed => break,
            Verdict::Fatal(error) => return Err(error),
            Verdict::Elsewhere { error } => (error, Duration::ZERO),
            Verdict::Again { error, after } => (error, after),
            Verdict::More(_) => continue,
        };
        let Some(delay) = attempts.again(&engine, after) else {
            return Err(Error::Connect { targets: targets.to_string(), last });
        };
        tracing::debug!(error = %last, "opening again");
        ::tokio::time::sleep(delay).await;
    }
    if config.watch_network {
        Helper::get().watch_network(&engine);
    }
    Ok(engine)
}

/// One round over all addresses of all targets, those last that were silent before.
async fn attempt(engine: &Arc<Engine>, targets: &Targets, kind: Attempt) -> Verdict {
    let mut last = String::from("no address");
    if gap_reached(Gap::Attempts, engine) {
        return Verdict::Again { error: last, after: Duration::ZERO };
    }
    engine.begin_round();
    let mut tried = 0;
    let put_off = engine.put_off();
    let order = targets.in_order(engine.server_index(), Instant::now());
    // Once again for those that were silent.
    let late_from = order.len();
    let rounds = if put_off.is_empty() { 1 } else { 2 };
    // PROTOCOL 3.15
    let mut passing = None;
    for (turn, target) in order.repeat(rounds).into_iter().enumerate() {
        let late = turn >= late_from;
        let addresses: Vec<SocketAddr> = match resolve(target.text).await {
            Ok(addresses) => addresses,
            Err(error) => {
                tried += 1;
                last = format!("{}: {error}", target.text);
                continue;
            }
        };
        for address in addresses.into_iter().filter(|address| put_off.contains(address) == late) {
            tried += 1;
            let began = Instant::now();
            match attempt_address(engine, target.text, address, kind).await {
                Ok(Verdict::Elsewhere { error }) => last = format!("{address}: {error}"),
                Ok(Verdict::Again { error, after }) if !after.is_zero() && engine.may_open_elsewhere() => {
                    passing = Some(passing.map_or(after, |earlier: Duration| earlier.min(after)));
                    last = format!("{address}: {error}");
                }
                Ok(verdict) => {
                    if matches!(verdict, Verdict::Installed) {
                        engine.note_server(target.index);
                        targets.answered(target);
                    }
                    return verdict;
                }
                Err(Error::System { errno, .. }) => {
                    engine.note_broken(&io::Error::from_raw_os_error(errno.0));
                    last = format!("{address}: {errno}");
                }
                Err(error) => return Verdict::Fatal(error),
            }
            targets.failed(target, Instant::now(), began.elapsed());
        }
    }
    engine
        .end_round(tried, late_from)
        .unwrap_or(Verdict::Again { error: last, after: passing.unwrap_or_default() })
}

async fn resolve(target: &str) -> io::Result<Vec<SocketAddr>> {
    match (Scoped::parse(target), target.parse()) {
        (Some(scoped), _) => Ok(vec![scoped.resolve()?]),
        // What is no name takes no thread, and waits for none.
        (None, Ok(address)) => Ok(vec![address]),
        (None, Err(_)) => super::lookup::look_up(target.to_owned()).await,
    }
}

async fn attempt_address(
    engine: &Arc<Engine>,
    target: &str,
    address: SocketAddr,
    kind: Attempt,
) -> Result<Verdict> {
    let deadline = ::tokio::time::Instant::now() + engine.config.handshake_timeout;
    let failed = |error: io::Error| Error::system("shake hands", &error);
    let connecting = ::tokio::select! {
        linked = timeout_at(deadline, connect_link(engine, target, address)) => linked,
        // The SYN may have gone a way that is no more: the next one need not.
        () = outrun(engine, kind) => return Err(failed(io::Error::from_raw_os_error(libc::ECANCELED))),
    };
    let link = match connecting {
        Ok(link) => link?,
        Err(_) => return Err(failed(io::Error::from_raw_os_error(libc::ETIMEDOUT))),
    };
    match heard_by(deadline, kind, &link, agree_on_tls(&link)).await {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Ok(engine.tls_failed(&link, &error));
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(failed(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
        }
        Err(error) => {
            engine.note_broken(&error);
            return Err(failed(error));
        }
    }
    if kind.is_needless(engine) {
        return Ok(Verdict::Again { error: ANSWERED.into(), after: Duration::ZERO });
    }
    match engine.client_begin(link)? {
        Begun::Installed => Ok(Verdict::Installed),
        Begun::Shake(link, shake) => Ok(shake_hands(engine, &link, shake, kind, deadline).await),
    }
}

/// Completes when the attempt is not worth it any more, and not young.
async fn outrun(engine: &Engine, kind: Attempt) {
    ::tokio::time::sleep(CONNECT_UNDISTURBED).await;
    while !kind.is_outrun(engine) {
        ::tokio::time::sleep(CONNECT_LOOK).await;
    }
}

async fn connect_link(engine: &Arc<Engine>, target: &str, address: SocketAddr) -> Result<Link> {
    let failed = |error: io::Error| Error::system("connect", &error);
    let socket = engine.client_socket(address, true)?;
    let connected = sys::begin_connect(&socket, address).map_err(failed)?;
    let link = engine.client_link(socket, target, address)?;
    link.register().map_err(|error| Error::system("watch a socket", &error))?;
    if !connected {
        link.ready(true).await.map_err(failed)?;
        link.connect_error().map_err(failed)?;
    }
    Ok(link)
}

async fn agree_on_tls(link: &Link) -> io::Result<()> {
    loop {
        match link.handshake() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.ready(link.handshake_wants_write()).await?;
            }
            other => return other.map(drop),
        }
    }
}

/// Until there is a verdict.
async fn shake_hands(
    engine: &Arc<Engine>,
    link: &Arc<Link>,
    mut shake: Box<Shake>,
    kind: Attempt,
    deadline: ::tokio::time::Instant,
) -> Verdict {
    // Not in the future itself, which is larger with it for openings that have nothing to wait for, too.
    let mut buffer = vec![0; HANDSHAKE_READ_BYTES];
    loop {
        let count = match heard_by(deadline, kind, link, exchange(link, &mut shake, &mut buffer)).await {
            Ok(count) => count,
            Err(error) => return engine.client_give_up(shake, link, error),
        };
        match engine.client_feed(shake, link, buffer.get(..count).unwrap_or_default()) {
            Verdict::More(more) => shake = more,
            verdict => return verdict,
        }
    }
}

/// Until `answer` is there, or `deadline`, or what was sent on `link` does not arrive.
async fn heard_by<T>(
    deadline: ::tokio::time::Instant,
    kind: Attempt,
    link: &Link,
    answer: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let look = deadline.min(::tokio::time::Instant::now() + ARRIVAL_LOOK);
        match timeout_at(look, answer.as_mut()).await {
            Ok(result) => return result,
            Err(_) if look >= deadline || kind.is_unheard(link) => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => {}
        }
    }
}

/// Sends what is to be sent and receives something.
async fn exchange(link: &Link, shake: &mut Shake, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match shake.step(link, buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.ready(!shake.output.is_empty()).await?;
            }
            other => return other,
        }
    }
}

/// What a client does about a lost link.
#[derive(Debug)]
struct Reconnector {
    targets: Targets,
    runtime: Handle,
}

impl Hooks for Reconnector {
    fn lost(&self, engine: &Arc<Engine>, _epoch: u64) {
        engine.watch_patience();
        if engine.begin_reconnecting() {
            let (engine, targets) = (engine.clone(), self.targets.clone());
            self.runtime.spawn(async move { reconnect(&engine, &targets).await });
        }
    }

    fn stuck(&self, engine: &Arc<Engine>) {
        if engine.begin_reconnecting() {
            let (engine, targets) = (engine.clone(), self.targets.clone());
            self.runtime.spawn(async move { connect_beside(&engine, &targets).await });
        }
    }

    fn over(&self, engine: &Arc<Engine>) {
        if engine.owes_abort() {
            let (engine, targets) = (engine.clone(), self.targets.clone());
            self.runtime.spawn(async move { abort(&engine, &targets).await });
        }
    }

    fn network_changed(&self, engine: &Arc<Engine>) {
        engine.interrupt_backoff();
        if engine.path_changed() {
            let epoch = engine.ctl().epoch;
            self.lost(engine, epoch);
        }
    }
}

/// Tries until there is a link, or no patience left, or the session is over.
async fn reconnect(engine: &Arc<Engine>, targets: &Targets) {
    reconnect_in(engine, targets, &mut engine.outage()).await;
}

/// Tries a second link while the first one seems to be stuck. If that is lost meanwhile: until there is one.
async fn connect_beside(engine: &Arc<Engine>, targets: &Targets) {
    let mut outage = engine.outage();
    let hurry = outage.begin(engine);
    match attempt(engine, targets, Attempt::beside(hurry)).await {
        Verdict::Installed => {}
        Verdict::Fatal(error) => engine.fail(error),
        _ if engine.end_beside() => {}
        _ => reconnect_in(engine, targets, &mut outage).await,
    }
}

async fn reconnect_in(engine: &Arc<Engine>, targets: &Targets, outage: &mut Outage) {
    let delay = outage.first_delay(engine);
    outage.waited(engine, delay).await;
    while !engine.is_over() {
        let hurry = outage.begin(engine);
        let verdict = attempt(engine, targets, Attempt::after(hurry)).await;
        match outage.attempted(engine, targets, verdict) {
            Next::Nothing => return,
            Next::AttemptAfter(delay) => outage.waited(engine, delay).await,
        }
    }
}

/// Tells the server that the session was given up, as long as there is hope.
pub(super) async fn abort(engine: &Arc<Engine>, targets: &Targets) {
    let deadline = Instant::now() + ABORT_MAX;
    let mut backoff = engine.backoff();
    while let Verdict::Again { error, after } = attempt(engine, targets, Attempt::default()).await {
        let delay = backoff.next_delay().max(after);
        if Instant::now() + delay >= deadline {
            tracing::warn!(session = %engine.id, %error, "the server does not know that the session was given up");
            return;
        }
        ::tokio::time::sleep(delay).await;
    }
}
