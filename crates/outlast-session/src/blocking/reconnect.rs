//! Making links with blocking calls: the first one in the caller's thread, later ones in a thread of the outage.

use crate::config::Config;
use crate::engine::{
    ABORT_MAX, ARRIVAL_LOOK, Attempt, Begun, Engine, Gap, Helper, Hooks, Link, Next, OpeningAttempts, Outage,
    Role, Shake, Verdict, gap_reached, new_session_id,
};
use crate::error::{Error, Result};
use crate::scoped::Scoped;
use crate::targets::Targets;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thread that could not be started is tried again after so long.
const THREAD_PAUSE_MAX: Duration = Duration::from_secs(1);
/// An attempt is left alone for so long, whatever happens to the network.
const CONNECT_UNDISTURBED: Duration = Duration::from_secs(1);
/// And then looks so often whether something has.
const CONNECT_LOOK: Duration = Duration::from_millis(100);

/// Why a second link is not made.
const ANSWERED: &str = "the present link answers";

/// Opens a session on the first address that works.
pub(crate) fn connect(targets: &Targets, config: &Arc<Config>) -> Result<Arc<Engine>> {
    let engine = Engine::new(new_session_id(), Role::Client, config.clone());
    engine.set_hooks(Arc::new(Reconnector { targets: targets.clone() }));
    if targets.are_several() {
        engine.open_without_data();
    }
    let mut attempts = OpeningAttempts::new(&engine);
    loop {
        let (last, after) = match attempt(&engine, targets, Attempt::default()) {
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
        std::thread::sleep(delay);
    }
    if config.watch_network {
        Helper::get().watch_network(&engine);
    }
    Ok(engine)
}

/// One round over all addresses of all targets, those last that were silent before.
fn attempt(engine: &Arc<Engine>, targets: &Targets, kind: Attempt) -> Verdict {
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
        let addresses = match resolve(target.text) {
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
            match attempt_address(engine, target.text, address, kind) {
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

fn resolve(target: &str) -> io::Result<Vec<SocketAddr>> {
    match Scoped::parse(target) {
        Some(scoped) => Ok(vec![scoped.resolve()?]),
        None => Ok(target.to_socket_addrs()?.collect()),
    }
}

fn attempt_address(
    engine: &Arc<Engine>,
    target: &str,
    address: SocketAddr,
    kind: Attempt,
) -> Result<Verdict> {
    let timeout = engine.config.handshake_timeout;
    let deadline = Instant::now() + timeout;
    let socket = engine.client_socket(address, false)?;
    engine.note_place(&socket);
    let outrun = || kind.is_outrun(engine);
    connect_within(&socket, address, timeout, outrun).map_err(|error| Error::system("connect", &error))?;
    let link = engine.client_link(socket, target, address)?;
    let failed = |error: io::Error| Error::system("shake hands", &error);
    loop {
        match link.handshake() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let heard = wait_until_heard(&link, link.handshake_wants_write(), kind, deadline);
                if !heard.map_err(failed)? {
                    return Err(failed(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Ok(engine.tls_failed(&link, &error));
            }
            Err(error) => {
                engine.note_broken(&error);
                return Err(failed(error));
            }
        }
    }
    if kind.is_needless(engine) {
        return Ok(Verdict::Again { error: ANSWERED.into(), after: Duration::ZERO });
    }
    match engine.client_begin(link)? {
        Begun::Installed => Ok(Verdict::Installed),
        Begun::Shake(link, shake) => Ok(shake_hands(engine, &link, shake, kind, deadline)),
    }
}

/// Connects a socket. A limit on the socket costs one system call, going non-blocking and back costs five.
fn connect_within(
    socket: &socket2::Socket,
    address: SocketAddr,
    timeout: Duration,
    outrun: impl Fn() -> bool,
) -> io::Result<()> {
    // Links are sent to without waiting, so that it means nothing later.
    socket.set_write_timeout(Some(timeout.min(CONNECT_UNDISTURBED)))?;
    let deadline = Instant::now() + timeout;
    match socket.connect(&address.into()) {
        // The kernel goes on connecting: it took a while, or a signal handler ran.
        Err(error)
            if error.raw_os_error() == Some(libc::EINPROGRESS)
                || error.kind() == io::ErrorKind::Interrupted => {}
        other => return other,
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if crate::sys::wait_writable(socket, left.min(CONNECT_LOOK))? {
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
            // It may have been a signal only.
            if socket.peer_addr().is_ok() {
                return Ok(());
            }
        }
        if left <= CONNECT_LOOK {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        if outrun() {
            // The SYN may have gone a way that is no more: the next one need not.
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
    }
}

/// Until there is a verdict.
fn shake_hands(
    engine: &Arc<Engine>,
    link: &Arc<Link>,
    mut shake: Box<Shake>,
    kind: Attempt,
    deadline: Instant,
) -> Verdict {
    let mut buffer = [0u8; 4096];
    loop {
        let count = match exchange(link, &mut shake, &mut buffer, kind, deadline) {
            Ok(count) => count,
            Err(error) => return engine.client_give_up(shake, link, error),
        };
        match engine.client_feed(shake, link, buffer.get(..count).unwrap_or_default()) {
            Verdict::More(more) => shake = more,
            verdict => return verdict,
        }
    }
}

/// Sends what is to be sent and receives something.
fn exchange(
    link: &Link,
    shake: &mut Shake,
    buffer: &mut [u8],
    kind: Attempt,
    deadline: Instant,
) -> io::Result<usize> {
    loop {
        match shake.step(link, buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait_until_heard(link, !shake.output.is_empty(), kind, deadline)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            other => return other,
        }
    }
}

/// Until there is something to be read (or sent, if wanted). False at `deadline`, or if what was sent does not arrive.
fn wait_until_heard(link: &Link, writable: bool, kind: Attempt, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        if link.wait(true, writable, Some(left.min(ARRIVAL_LOOK)))? {
            return Ok(true);
        }
        if kind.is_unheard(link) {
            return Ok(false);
        }
    }
}

/// What a client does about a lost link.
#[derive(Debug)]
struct Reconnector {
    targets: Targets,
}

impl Hooks for Reconnector {
    fn lost(&self, engine: &Arc<Engine>, _epoch: u64) {
        engine.watch_patience();
        if engine.begin_reconnecting() {
            start_to_reconnect(engine, &self.targets, engine.outage(), Duration::ZERO);
        }
    }

    fn stuck(&self, engine: &Arc<Engine>) {
        if !engine.begin_reconnecting() {
            return;
        }
        let shared = Arc::new((engine.clone(), self.targets.clone()));
        let failed = shared.clone();
        let work = move || connect_beside(&shared.0, &shared.1);
        engine.start_thread("outlast-beside", Duration::ZERO, work, move |_| {
            let (engine, targets) = &*failed;
            if !engine.end_beside() {
                start_to_reconnect(engine, targets, engine.outage(), THREAD_PAUSE_MAX);
            }
        });
    }

    fn over(&self, engine: &Arc<Engine>) {
        if engine.owes_abort() {
            start_to_abort(engine, &self.targets, Instant::now() + ABORT_MAX, Duration::ZERO);
        }
    }

    fn network_changed(&self, engine: &Arc<Engine>) {
        engine.interrupt_backoff();
        if engine.is_at_home() && engine.path_changed() {
            let epoch = engine.ctl().epoch;
            self.lost(engine, epoch);
        }
    }
}

/// Has a thread make links. Whoever called has claimed that, and keeps the claim if it takes several attempts to start it.
fn start_to_reconnect(engine: &Arc<Engine>, targets: &Targets, mut outage: Outage, after: Duration) {
    let shared = Arc::new((engine.clone(), targets.clone()));
    let again = shared.clone();
    let mut failures = outage.clone();
    let work = move || reconnect(&shared.0, &shared.1, &mut outage);
    engine.start_thread("outlast-resume", after, work, move |error| {
        let (engine, targets) = &*again;
        let error = format!("cannot start a thread: {error}");
        let pause = THREAD_PAUSE_MAX.min(engine.config.backoff_max);
        if let Next::AttemptAfter(delay) = failures.failed(engine, targets, error, pause) {
            start_to_reconnect(engine, targets, failures, delay.max(Duration::from_millis(1)));
        }
    });
}

/// Tries until there is a link, or no patience left, or the session is over.
fn reconnect(engine: &Arc<Engine>, targets: &Targets, outage: &mut Outage) {
    let delay = outage.first_delay(engine);
    outage.wait(engine, delay);
    while !engine.is_over() {
        let hurry = outage.begin(engine);
        let verdict = attempt(engine, targets, Attempt::after(hurry));
        match outage.attempted(engine, targets, verdict) {
            Next::Nothing => return,
            Next::AttemptAfter(delay) => outage.wait(engine, delay),
        }
    }
}

/// Tries a second link while the first one seems to be stuck. If that is lost meanwhile: until there is one.
fn connect_beside(engine: &Arc<Engine>, targets: &Targets) {
    let mut outage = engine.outage();
    let hurry = outage.begin(engine);
    match attempt(engine, targets, Attempt::beside(hurry)) {
        Verdict::Installed => {}
        Verdict::Fatal(error) => engine.fail(error),
        _ if engine.end_beside() => {}
        _ => reconnect(engine, targets, &mut outage),
    }
}

/// Has a thread tell the server that the session was given up.
fn start_to_abort(engine: &Arc<Engine>, targets: &Targets, deadline: Instant, after: Duration) {
    let shared = Arc::new((engine.clone(), targets.clone()));
    let again = shared.clone();
    let work = move || abort(&shared.0, &shared.1, deadline);
    engine.start_thread("outlast-abort", after, work, move |error| {
        let (engine, targets) = &*again;
        if Instant::now() + THREAD_PAUSE_MAX < deadline {
            start_to_abort(engine, targets, deadline, THREAD_PAUSE_MAX);
        } else {
            untold(engine, &format!("cannot start a thread: {error}"));
        }
    });
}

/// Tells the server that the session was given up, as long as there is hope.
fn abort(engine: &Arc<Engine>, targets: &Targets, deadline: Instant) {
    let mut backoff = engine.backoff();
    while let Verdict::Again { error, after } = attempt(engine, targets, Attempt::default()) {
        let delay = backoff.next_delay().max(after);
        if Instant::now() + delay >= deadline {
            return untold(engine, &error);
        }
        std::thread::sleep(delay);
    }
}

fn untold(engine: &Engine, error: &str) {
    tracing::warn!(session = %engine.id, %error, "the server does not know that the session was given up");
}
