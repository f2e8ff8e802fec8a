//! The far side: sessions come in, connections to services go out.

use crate::exit::{Failure, hint};
use crate::handover::{self, Legacy, Parcel};
use crate::narrate::Narrator;
use crate::plan::{self, ListenPlan, Target};
use crate::registry::{Place, Registry};
use crate::sparingly::Sparingly;
use anyhow::Result;
use outlast_session::relay::access::DestinationPolicy;
use outlast_session::relay::dial::{dial, dial_any, plain};
use outlast_session::relay::preamble::{self, PreambleError, PreambleFailure, Status};
use outlast_session::relay::{
    self, Destination, DetachedRelay, Ended, Local, Outcome, PREAMBLE_TIMEOUT, Rest,
};
use outlast_session::tokio::{Listener, Session};
use outlast_session::{Detached, Error, Info, Refusal, Role, SessionId};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

/// Pending connections in the kernel's accept queue. Default 1024.
const BACKLOG: i32 = 1024;

/// A hand-over waits this long for a service that a new session is being connected to. Default 1 s: as long as a session
/// may be without a link.
const OPENED_WITHIN: Duration = Duration::from_secs(1);

/// A listener that is stopped shows within this time that it does. Default 300 ms.
const STOPPING_SHOWS_WITHIN: Duration = Duration::from_millis(300);

/// Requests for destinations that are not allowed.
static REFUSED: Sparingly = Sparingly::new();
/// Sessions whose service cannot be reached.
static UNSERVED: Sparingly = Sparingly::new();
/// Sessions that name no destination where they have to, or one where they must not.
static MISTAKEN: Sparingly = Sparingly::new();

/// A listener for sessions with what is behind it.
pub struct Server {
    listener: Arc<Listener>,
    address: SocketAddr,
    target: Target,
    security: &'static str,
    /// What the process before this one has left.
    adopted: Vec<Adopted>,
    legacy: Legacy,
}

/// A session that another process had, with its program.
struct Adopted {
    session: Session,
    local: Local,
    rest: Rest,
}

/// Relays that leave this process, and the address they were served at. None: there are no more.
pub type Outbox = mpsc::Sender<Option<(SocketAddr, Box<DetachedRelay>)>>;

/// An address that is ours, where nobody is heard yet.
pub struct Bound {
    plan: ListenPlan,
    socket: socket2::Socket,
}

impl Bound {
    /// Binds, once a listener there that is about to stop has handed over. Blocks.
    ///
    /// # Errors
    /// The address is not to be had.
    pub fn new(plan: ListenPlan) -> Result<Self> {
        let socket = bind_after_the_old_one(plan.address)?;
        Ok(Self { plan, socket })
    }

    /// Asks for what the process before this one has left. Blocks.
    ///
    /// # Errors
    /// What there is cannot be had.
    pub fn ask(&self) -> Result<Legacy> {
        Legacy::ask(self.plan.address, self.socket.only_v6().unwrap_or(false))
    }
}

impl Server {
    /// Listens. From now on clients find their sessions, and go on with them: whoever fails after that leaves those as they are,
    /// and ends the process.
    ///
    /// # Errors
    /// The address is not to be had after all, or this process cannot go on with what it was left.
    pub fn listen(bound: Bound, mut legacy: Legacy) -> Result<Self> {
        let Bound { plan, socket } = bound;
        let (parcels, sessions) = readable(std::mem::take(&mut legacy.parcels));
        let listening = Listener::from_std_with(socket.into(), &plan.config, sessions);
        let (listener, adopted) = listening.map_err(|error| match error {
            // Another listener of this process may be bound to the same port, which the system says now.
            Error::System { what: "listen", errno } => {
                let error = std::io::Error::from_raw_os_error(errno.0);
                cannot_listen(&plan.address.to_string(), &error)
            }
            error => error.into(),
        })?;
        let address = listener.local_addr();
        if let Some(Err(error)) = adopted.iter().find(|one| one.is_err()) {
            let keepers: Vec<String> = legacy.keeper_pids().iter().map(ToString::to_string).collect();
            let failure = Failure::usage(format!(
                "cannot go on with what the process before has left at {address}: {error}; start as it was started, or \
                 end process {}, which keeps it",
                keepers.join(" and ")
            ));
            leave(adopted);
            return Err(failure);
        }
        let adopted = parcels.into_iter().zip(adopted).filter_map(|(parcel, session)| adopt(parcel, session));
        let adopted = adopted.collect();
        let security = plan::security(&plan.config);
        Ok(Self { listener: Arc::new(listener), address, target: plan.target, security, adopted, legacy })
    }

    /// What it does, on one line.
    pub fn describe(&self) -> String {
        format!("listening on {} for sessions to {}, {}", self.address, self.target, self.security)
    }

    /// Goes on with what the process before this one has left. In the registry when this returns: a signal may come at
    /// any time.
    pub fn go_on(&mut self, registry: &Arc<Registry>, narrator: &Narrator, outbox: &Outbox) {
        let adopted = std::mem::take(&mut self.adopted);
        if !adopted.is_empty() {
            let count = adopted.len();
            let sessions = if count == 1 { "session" } else { "sessions" };
            narrator.announce(&format!("going on with {count} {sessions} of the process before"));
        }
        let enter = |adopted: Adopted| (registry.enter(adopted.session.id(), Role::Server), adopted);
        let entered: Vec<(Place, Adopted)> = adopted.into_iter().map(enter).collect();
        // Before a byte passes: were this process killed behind that, the next one would go on with what a keeper still has, and
        // services would get the same bytes twice. From here on they are this process's, and end with it. A keeper that is gone
        // gives them to nobody, either.
        std::mem::take(&mut self.legacy).taken();
        for (place, Adopted { session, local, rest }) in entered {
            let (target, address, outbox) = (self.target.clone(), self.address, outbox.clone());
            tokio::spawn(async move {
                let id = session.id();
                let ended = relay::go_on(session, local, rest, &place.control).await;
                conclude(id, ended, &target, &place, address, &outbox).await;
            });
        }
    }

    /// The listener, to ask and to drain.
    pub fn listener(&self) -> Arc<Listener> {
        Arc::clone(&self.listener)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        leave(std::mem::take(&mut self.adopted));
    }
}

/// Sessions that a keeper still has, and the next process goes on with: they are not over because this process ends, as
/// dropping them would say.
fn leave<T>(adopted: Vec<T>) {
    adopted.into_iter().for_each(std::mem::forget);
}

/// The sessions of parcels, as far as this version can read them.
fn readable(parcels: Vec<Parcel>) -> (Vec<Parcel>, Vec<Detached>) {
    let read = |mut parcel: Parcel| match parcel.detached() {
        Ok(session) => Some((parcel, session)),
        Err(error) => {
            tracing::error!("a session is lost: {error:#}");
            None
        }
    };
    parcels.into_iter().filter_map(read).unzip()
}

fn adopt(parcel: Parcel, session: Result<Session, Error>) -> Option<Adopted> {
    let Parcel { local, rest, .. } = parcel;
    let local = Local::from_fd(local);
    match (session, local) {
        (Ok(session), Ok(local)) => Some(Adopted { session, local, rest }),
        (Ok(session), Err(error)) => {
            tracing::error!(session = %session.id(), "cannot take its connection over: {error}");
            session.kill_with("outlast listen could not take its connection over");
            None
        }
        (Err(error), local) => {
            tracing::error!("cannot take a session over: {error}");
            if let Ok(local) = local {
                local.abort();
            }
            None
        }
    }
}

/// A TCP socket that is bound, when a listener there that has been told to stop has handed over: also if the port is free
/// already, as its sessions are not to be had before.
fn bind_after_the_old_one(address: SocketAddr) -> Result<socket2::Socket> {
    let started = Instant::now();
    loop {
        let gone = handover::ask_to_hand_over(address, false)?;
        match bind(address) {
            Ok(socket) => {
                // It may have stopped to listen since it was looked for: it shows that it is stopping before that.
                while handover::ask_to_hand_over(address, false)? {}
                return Ok(socket);
            }
            // It may have been told to stop a moment ago.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                if !gone && started.elapsed() > STOPPING_SHOWS_WITHIN {
                    return Err(cannot_listen(&address.to_string(), &error));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(cannot_listen(&address.to_string(), &error)),
        }
    }
}

/// A TCP socket that is bound.
fn bind(address: SocketAddr) -> std::io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A listening TCP socket, or a failure that names the address.
pub fn listen(address: SocketAddr) -> Result<std::net::TcpListener> {
    let make = || {
        let socket = bind(address)?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    make().map_err(|error: std::io::Error| cannot_listen(&address.to_string(), &error))
}

/// The failure to listen, with what to do.
pub fn cannot_listen(address: &str, error: &std::io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program listens there, or another section of the configuration (see `ss -ltnp`)"
        }
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        std::io::ErrorKind::AddrNotAvailable => "; no interface of this machine has this address",
        _ => "",
    };
    Failure::system(format!("cannot listen on {address}: {}{advice}", plain(error)))
}

/// Accepts sessions until dropped.
pub async fn accept(server: Server, registry: Arc<Registry>, narrator: Narrator, outbox: Outbox) {
    narrator.follow(|| server.listener.events(), "first session from");
    let address = server.address;
    loop {
        match server.listener.accept().await {
            Ok(session) => {
                let place = registry.enter(session.id(), Role::Server);
                let registry = Arc::clone(&registry);
                tokio::spawn(serve(session, server.target.clone(), place, registry, address, outbox.clone()));
            }
            Err(error) => {
                if server.listener.is_closed() {
                    return;
                }
                tracing::error!("cannot accept sessions on {address}: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// One session, from its target to its end.
async fn serve(
    mut session: Session,
    target: Target,
    place: Place,
    registry: Arc<Registry>,
    address: SocketAddr,
    outbox: Outbox,
) {
    let id = session.id();
    let over = session.over();
    let mut opening = Box::pin(open(&mut session, &target));
    let opened = tokio::select! {
        opened = &mut opening => Some(opened),
        () = place.control.told_to_end() => None,
        // Nobody waits for the service any more.
        Err(error) = over => {
            drop(opening);
            place.ended(&session.info(), &Outcome::SessionFailed(error.clone()));
            return report(&error);
        }
    };
    let opened = match opened {
        // The session can be handed over once it has its service.
        None if registry.is_leaving() => tokio::time::timeout(OPENED_WITHIN, &mut opening).await.ok(),
        opened => opened,
    };
    drop(opening);
    let Some(opened) = opened else {
        return session.kill_with(place.control.reason(Role::Server));
    };
    let local = match opened {
        Ok(local) => local,
        Err(why) => {
            place.failed(&session.info());
            return session.kill_with(&why);
        }
    };
    let ended = match target {
        Target::Fixed(_) => relay::run_undirected(session, local, &place.control).await,
        Target::Any(_) => relay::run(session, local, Vec::new(), &place.control).await,
    };
    conclude(id, ended, &target, &place, address, &outbox).await;
}

/// Notes how a relay came to its end.
async fn conclude(
    id: SessionId,
    ended: Ended,
    target: &Target,
    place: &Place,
    address: SocketAddr,
    outbox: &Outbox,
) {
    let Ended { info, outcome, .. } = ended;
    place.ended(&info, &outcome);
    match outcome {
        Outcome::Detached(relay) => {
            if outbox.send(Some((address, relay))).await.is_err() {
                tracing::error!(session = %id, "lost: there is no process to keep it");
            }
        }
        Outcome::Completed => tracing::info!(session = %id, "completed"),
        Outcome::LocalFailed(error) => tracing::info!(session = %id, "{target} ended it: {}", plain(&error)),
        Outcome::SessionFailed(Error::Closed { .. }) => tracing::warn!(
            session = %id, "lost its link just when this listener stopped, and was not handed over; {}", undelivered(&info)
        ),
        Outcome::SessionFailed(error) => report(&error),
        Outcome::Misdirected(destination) => {
            let what = format!(
                "the client asks for {destination}, but sessions here lead to {target}: this listener needs --to-any \
                 instead of --to, or the client a local address instead of --socks5, --http-connect or --transparent"
            );
            warn_sparingly(&MISTAKEN, id, &what);
        }
        Outcome::Stopped { delivered: true } => {
            tracing::info!(session = %id, "stopped before its end; what was read until then is delivered")
        }
        Outcome::Stopped { delivered: false } => {
            tracing::warn!(session = %id, "ended; {}", undelivered(&info));
        }
        Outcome::Killed => tracing::info!(session = %id, "killed"),
    }
}

/// What is missing when a session was ended before everything was confirmed.
pub fn undelivered(info: &Info) -> String {
    match info.unacked_bytes {
        0 => "the peer has not confirmed the end of the stream".to_owned(),
        bytes => format!("{bytes} bytes are not known to be delivered"),
    }
}

/// A session that failed: its error names it.
pub fn report(error: &Error) {
    match error {
        // The other side's program or relay ended it: nothing for this side to see to.
        Error::Reset { .. }
        | Error::Killed { .. }
        | Error::Refused { refusal: Refusal::Ended { .. }, .. } => {
            tracing::info!("{error}");
        }
        // The library has warned of it, with all that it knows of the session.
        Error::Shed { .. } => tracing::debug!("{error}"),
        _ => tracing::warn!("{error}{}", hint(error)),
    }
}

/// Connects to what is behind the session. What goes wrong is logged, and told to a client that asked; the error is for
/// the people at the client.
async fn open(session: &mut Session, target: &Target) -> Result<Local, String> {
    match target {
        Target::Fixed(service) => {
            // The Welcome goes before the service hears a byte (PROTOCOL 3.16): a client that has none opens again, and would
            // have its first bytes served twice if this process ended in between. A lost session shows itself later.
            let _ = session.flush().await;
            dial(service).await.map_err(|error| {
                warn_sparingly(&UNSERVED, session.id(), &error.to_string());
                format!("the server {error}")
            })
        }
        Target::Any(policy) => open_any(session, policy).await,
    }
}

async fn open_any(session: &mut Session, policy: &DestinationPolicy) -> Result<Local, String> {
    let id = session.id();
    // RP 9
    let request = tokio::time::timeout(PREAMBLE_TIMEOUT, preamble::receive_request(session)).await;
    let destination = match request {
        Ok(Ok(destination)) => destination,
        Ok(Err(PreambleFailure::Wrong(PreambleError::Magic) | PreambleFailure::Ended)) => {
            // RP 8: it would not understand an answer, or has not asked.
            let why = "the client names no destination: it needs --socks5, --http-connect or --transparent";
            warn_sparingly(&MISTAKEN, id, why);
            return Err(why.to_owned());
        }
        Ok(Err(error)) => {
            warn_sparingly(&MISTAKEN, id, &error.to_string());
            let _ = tell(session, Status::Malformed, &error.to_string()).await;
            return Err(error.to_string());
        }
        Err(_) => {
            let why = format!("no destination within {PREAMBLE_TIMEOUT:?}");
            warn_sparingly(&MISTAKEN, id, &why);
            return Err(why);
        }
    };
    // Without an address the link is lost: then nobody waits.
    let client = session.info().peer_addr.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |peer| peer.ip());
    match dial_any(&destination, client, policy).await {
        Ok(local) => {
            let answered = preamble::answer(session, Status::Connected, "").await;
            answered.map_err(|error| error.to_string())?;
            tracing::info!(session = %id, %destination, "connected");
            Ok(local)
        }
        Err(error) => {
            if error.status == Status::NotAllowed {
                warn_of_refusal(session, &destination, &error.reason);
            } else {
                tracing::info!(session = %id, %destination, "{error}");
            }
            let _ = tell(session, error.status, &error.reason).await;
            Err(error.reason)
        }
    }
}

/// A client asks for what it may not have: a mistake in its settings or ours, or somebody who tries doors.
fn warn_of_refusal(session: &Session, destination: &Destination, reason: &str) {
    let peer = session.info().peer_addr.map_or_else(|| "an unknown address".into(), |peer| peer.to_string());
    warn_sparingly(&REFUSED, session.id(), &format!("refused {destination} to {peer}: {reason}"));
}

/// Anybody who can connect can cause it.
fn warn_sparingly(kind: &Sparingly, session: SessionId, what: &str) {
    match kind.due(Instant::now()) {
        Some(0) => tracing::warn!(%session, "{what}"),
        Some(others) => {
            tracing::warn!(%session, "{what} (and {others} sessions with such a line since the last one)");
        }
        None => tracing::debug!(%session, "{what}"),
    }
}

/// RP 8: tells the client why not, and waits until it knows.
async fn tell(session: &mut Session, status: Status, reason: &str) -> Result<(), Error> {
    preamble::answer(session, status, reason).await?;
    let _ = tokio::time::timeout(PREAMBLE_TIMEOUT, session.finish()).await;
    Ok(())
}
