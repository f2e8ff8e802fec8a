//! Making links with blocking calls: the first one in the caller's thread, later ones in a thread of the outage.

use crate::config::Config;
use crate::engine::{ABORT_MAX, Begun, Engine, Helper, Hooks, Link, Role, Shake, Verdict, new_session_id};
use crate::error::{Error, Result};
use crate::targets::Targets;
use outlast_stream::Backoff;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Opens a session on the first address that works.
pub(crate) fn connect(targets: &Targets, config: &Arc<Config>) -> Result<Arc<Engine>> {
    let engine = Engine::new(new_session_id(), Role::Client, config.clone());
    engine.set_hooks(Arc::new(Reconnector { targets: targets.clone() }));
    let mut attempts_left = 8u32;
    loop {
        match attempt(&engine, targets) {
            Verdict::Installed => break,
            Verdict::Fatal(error) => return Err(error),
            Verdict::Again { error, .. } if engine.has_other_mode() && attempts_left > 0 => {
                tracing::debug!(%error, "opening again");
                attempts_left -= 1;
            }
            Verdict::Again { error: last, .. } => {
                return Err(Error::Connect { targets: targets.to_string(), last });
            }
            Verdict::More(_) => {}
        }
    }
    if config.watch_network {
        Helper::get().watch_network(&engine);
    }
    Ok(engine)
}

/// One round over all addresses of all targets.
fn attempt(engine: &Arc<Engine>, targets: &Targets) -> Verdict {
    let mut last = String::from("no address");
    for target in targets.iter() {
        let addresses = match target.to_socket_addrs() {
            Ok(addresses) => addresses,
            Err(error) => {
                last = format!("{target}: {error}");
                continue;
            }
        };
        for address in addresses {
            let verdict = match attempt_address(engine, target, address) {
                Ok(verdict) => verdict,
                Err(Error::System { errno, .. }) => {
                    last = format!("{address}: {errno}");
                    continue;
                }
                Err(error) => Verdict::Fatal(error),
            };
            return verdict;
        }
    }
    Verdict::Again { error: last, after: Duration::ZERO }
}

fn attempt_address(engine: &Arc<Engine>, target: &str, address: SocketAddr) -> Result<Verdict> {
    let timeout = engine.config.handshake_timeout;
    let deadline = Instant::now() + timeout;
    let socket = engine.client_socket(address, false)?;
    engine.note_place(&socket);
    connect_within(&socket, address, timeout).map_err(|error| Error::system("connect", &error))?;
    let link = engine.client_link(socket, target, address)?;
    let failed = |error: io::Error| Error::system("shake hands", &error);
    loop {
        match link.handshake() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero()
                    || !link.wait(true, link.handshake_wants_write(), Some(left)).map_err(failed)?
                {
                    return Err(failed(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Ok(engine.tls_failed(&link, &error));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    match engine.client_begin(link)? {
        Begun::Installed => Ok(Verdict::Installed),
        Begun::Shake(link, shake) => Ok(shake_hands(engine, &link, shake, deadline)),
    }
}

/// Connects a socket. A limit on the socket costs one system call, going non-blocking and back costs five.
fn connect_within(socket: &socket2::Socket, address: SocketAddr, timeout: Duration) -> io::Result<()> {
    // Links are sent to without waiting, so that it means nothing later.
    socket.set_write_timeout(Some(timeout))?;
    let deadline = Instant::now() + timeout;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            // A signal handler ran; the kernel goes on connecting.
            let left = deadline.saturating_duration_since(Instant::now());
            if !crate::sys::wait_writable(socket, left)? {
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            socket.take_error()?.map_or(Ok(()), Err)
        }
        other => other,
    }
}

/// Until there is a verdict.
fn shake_hands(engine: &Arc<Engine>, link: &Arc<Link>, mut shake: Box<Shake>, deadline: Instant) -> Verdict {
    let mut buffer = [0u8; 4096];
    loop {
        let count = match exchange(link, &mut shake, &mut buffer, deadline) {
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
fn exchange(link: &Link, shake: &mut Shake, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match shake.step(link, buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.wait(true, !shake.output.is_empty(), Some(left))?;
            }
            other => return other,
        }
    }
}

/// What a client does about a lost link.
#[derive(Debug)]
struct Reconnector {
    targets: Targets,
}

impl Hooks for Reconnector {
    fn lost(&self, engine: &Arc<Engine>) {
        if !engine.begin_reconnecting() {
            return;
        }
        let (session, targets) = (engine.clone(), self.targets.clone());
        engine.start_thread("outlast-resume", move || reconnect(&session, &targets));
    }

    fn over(&self, engine: &Arc<Engine>) {
        if !engine.owes_abort() {
            return;
        }
        let (session, targets) = (engine.clone(), self.targets.clone());
        engine.start_thread("outlast-abort", move || abort(&session, &targets));
    }

    fn network_changed(&self, engine: &Arc<Engine>) {
        engine.interrupt_backoff();
        if engine.is_at_home() && engine.path_changed() {
            self.lost(engine);
        }
    }
}

/// Tries until there is a link, or no patience left, or the session is over.
fn reconnect(engine: &Arc<Engine>, targets: &Targets) {
    let mut backoff = engine.backoff();
    let mut attempts = 0;
    loop {
        let (error, after) = match attempt(engine, targets) {
            Verdict::Installed => return,
            Verdict::Fatal(error) => {
                engine.fail(error);
                return;
            }
            Verdict::Again { error, after } => (error, after),
            Verdict::More(_) => continue,
        };
        attempts += 1;
        if engine.is_over() {
            return;
        }
        if !engine.patience_left() {
            engine.fail(engine.give_up(targets, error));
            return;
        }
        let delay = next_delay(&mut backoff, after);
        engine.note_retry(attempts, &error, delay);
        engine.wait_backoff(delay);
    }
}

/// Tells the server that the session was given up, as long as there is hope.
fn abort(engine: &Arc<Engine>, targets: &Targets) {
    let deadline = Instant::now() + ABORT_MAX;
    let mut backoff = engine.backoff();
    while let Verdict::Again { error, after } = attempt(engine, targets) {
        let delay = next_delay(&mut backoff, after);
        if Instant::now() + delay >= deadline {
            tracing::warn!(session = %engine.id, %error, "the server does not know that the session was given up");
            return;
        }
        std::thread::sleep(delay);
    }
}

/// The pause before the next attempt: the back-off's, or what the server asked for.
pub(crate) fn next_delay(backoff: &mut Backoff, after: Duration) -> Duration {
    backoff.next_delay().max(after)
}
