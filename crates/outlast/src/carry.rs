//! One local program's stream, from its first byte to its end.

use crate::exit::{code_of_session, hint};
use crate::manners::Manners;
use crate::narrate::{Narrator, seconds};
use crate::plan::{self, ConnectPlan};
use crate::registry::{Place, Registry};
use crate::server::{report, undelivered};
use outlast_session::relay::dial::plain;
use outlast_session::relay::http_connect;
use outlast_session::relay::preamble::{self, PreambleFailure, Reply, Status};
use outlast_session::relay::reasons;
use outlast_session::relay::socks5;
use outlast_session::relay::{self, Destination, Ended, FRONT_TIMEOUT, Local, Outcome};
use outlast_session::tokio::Session;
use outlast_session::{Error, Patience, Refusal, Role, SessionId, Targets};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// A server has connected to a destination by then, or cannot. Default 15 s: an attempt takes at most 10 s.
const REPLY_EXPECTED: Duration = Duration::from_secs(15);

/// A local program that has connected.
#[derive(Debug)]
pub enum Program {
    /// It goes where the default route leads.
    Plain(Local),
    Socks5(TcpStream),
    HttpConnect(TcpStream),
    Diverted(TcpStream, Option<Destination>),
}

/// A program with a session, about to be joined.
#[derive(Debug)]
struct Ready {
    local: Local,
    session: Session,
    /// What the program said along with its request.
    early: Vec<u8>,
    place: Place,
}

/// Carries programs' streams as a plan says.
#[derive(Debug)]
pub struct Carrier {
    plan: ConnectPlan,
}

/// Why there is no session for a program.
#[derive(Debug)]
pub enum NoSession {
    /// The session could not be opened.
    Error(Error),
    /// The program has given up, or this process was stopped.
    Abandoned,
}

impl Carrier {
    pub fn new(plan: ConnectPlan) -> Self {
        Self { plan }
    }

    /// The servers of the default route.
    pub fn via(&self) -> String {
        self.plan.routes.default().map_or_else(|| "patterns".to_owned(), ToString::to_string)
    }

    /// What protects its sessions.
    pub fn security(&self) -> &'static str {
        plan::security(&self.plan.config)
    }

    /// One program to its end. What goes wrong is logged, and told to the program where it can be.
    pub async fn carry(&self, program: Program, registry: &Arc<Registry>, narrator: &Narrator) {
        // Setting up takes thousands of bytes, carrying takes hundreds: a quiet stream should not hold both.
        let ready = Box::pin(self.set_up(program, registry, narrator)).await;
        if let Some(Ready { local, session, early, mut place }) = ready {
            let ended = run(session, local, early, &place, narrator).await;
            log_end(&ended);
            self.leave(&mut place, &ended);
        }
    }

    async fn set_up(&self, program: Program, registry: &Arc<Registry>, narrator: &Narrator) -> Option<Ready> {
        let (local, destination, early, manners) = match program {
            Program::Plain(local) => return self.set_up_plain(local, registry, narrator).await,
            Program::Diverted(stream, destination) => {
                let local = local(stream)?;
                let Some(destination) = destination else {
                    local.abort();
                    return None;
                };
                (local, destination, Vec::new(), Manners::Silent)
            }
            Program::Socks5(mut stream) => {
                let asked = socks5::negotiate(&mut stream, self.plan.credentials.as_ref());
                let destination = in_time("SOCKS5", asked).await?;
                (local(stream)?, destination, Vec::new(), Manners::Socks5)
            }
            Program::HttpConnect(mut stream) => {
                let asked = http_connect::negotiate(&mut stream, self.plan.credentials.as_ref());
                let (destination, early) = in_time("HTTP CONNECT", asked).await?;
                (local(stream)?, destination, early, Manners::HttpConnect)
            }
        };
        let Some(targets) = self.plan.routes.to(&destination) else {
            tracing::warn!(%destination, "no --via leads there");
            manners.refuse(local, Status::NotAllowed, "no route").await;
            return None;
        };
        let has_spoken = !early.is_empty();
        let mut session = match self.open((&local, has_spoken), targets, true, narrator).await {
            Ok(session) => session,
            Err(why) => {
                log_no_session(&why);
                manners.refuse(local, Status::Failed, "no connection to the outlast server").await;
                return None;
            }
        };
        let mut place = self.enter(&session, targets, registry);
        let silent = || {
            let waited = seconds(REPLY_EXPECTED);
            tracing::warn!(
                "no answer about {destination} from {targets} for {waited}: is it reachable? does it have --to-any?"
            );
        };
        let asked = tokio::select! {
            reply = remarking(preamble::ask(&mut session, &destination), silent) => reply,
            () = manners.gave_up(&local, has_spoken) => {
                session.kill_with(reasons::GAVE_UP);
                local.abort();
                self.give_up(&session, &mut place).await;
                return None;
            }
            () = place.control.told_to_end() => {
                session.kill_with(place.control.reason(Role::Client));
                local.abort();
                // Nothing was taken from the program that would not be delivered.
                place.ended(&session.info(), &Outcome::Stopped { delivered: true });
                self.give_up(&session, &mut place).await;
                return None;
            }
        };
        match asked {
            Ok(Reply { status: Status::Connected, .. }) => {
                if local.send_all(&manners.welcome()).await.is_err() {
                    session.kill_with(reasons::GAVE_UP);
                    local.abort();
                    self.give_up(&session, &mut place).await;
                    return None;
                }
                return Some(Ready { local, session, early, place });
            }
            Ok(Reply { status, reason }) => {
                tracing::warn!(%destination, "{status}: {reason}");
                manners.refuse(local, status, &reason).await;
                place.failed(&session.info());
                // The server knows that there is nothing to come; without a link it may not know that this side knows.
                let finished = tokio::select! {
                    finished = tokio::time::timeout(REPLY_EXPECTED, session.finish()) => matches!(finished, Ok(Ok(()))),
                    () = place.control.told_to_end() => false,
                };
                if !finished {
                    session.kill_with(reasons::GAVE_UP);
                    self.give_up(&session, &mut place).await;
                }
            }
            Err(PreambleFailure::Session(error)) => {
                if is_peers_wish(&error) {
                    tracing::warn!(%destination, "{targets}: {error}");
                } else {
                    report(&error);
                }
                place.failed(&session.info());
                manners.refuse(local, Status::Failed, "the session failed").await;
                self.give_up(&session, &mut place).await;
            }
            Err(error) => {
                // RP 10
                tracing::error!("{targets} takes no destinations ({error}): it needs --to-any");
                session.kill_with(reasons::NEEDS_TO_ANY);
                place.failed(&session.info());
                manners.refuse(local, Status::Failed, "the outlast server takes no destinations").await;
                self.give_up(&session, &mut place).await;
            }
        }
        None
    }

    async fn set_up_plain(
        &self,
        local: Local,
        registry: &Arc<Registry>,
        narrator: &Narrator,
    ) -> Option<Ready> {
        let Some(targets) = self.plan.routes.default() else {
            local.abort();
            return None;
        };
        match self.open((&local, false), targets, true, narrator).await {
            Ok(session) => {
                let place = self.enter(&session, targets, registry);
                Some(Ready { local, session, early: Vec::new(), place })
            }
            Err(why) => {
                log_no_session(&why);
                local.abort();
                None
            }
        }
    }

    /// Opens a session while the program waits, of which something may have been read already. Network errors are retried within
    /// the patience if `retry`.
    pub async fn open(
        &self,
        (local, has_spoken): (&Local, bool),
        targets: &Targets,
        retry: bool,
        narrator: &Narrator,
    ) -> Result<Session, NoSession> {
        let started = Instant::now();
        let mut backoff = self.plan.config.backoff();
        let mut told = false;
        loop {
            let attempt = tokio::select! {
                attempt = Session::connect_with(targets, &self.plan.config) => attempt,
                () = local.failed() => return Err(NoSession::Abandoned),
            };
            let error = match attempt {
                Ok(session) => {
                    narrator.follow(|| session.events(), "connected to");
                    return Ok(session);
                }
                Err(error) => error,
            };
            let delay = backoff.next_delay();
            let in_time = match self.plan.config.patience {
                Patience::Forever => true,
                Patience::For(limit) => started.elapsed() + delay < limit,
            };
            if !retry || !in_time || !matches!(error, Error::Connect { .. }) {
                return Err(NoSession::Error(error));
            }
            if !std::mem::replace(&mut told, true) {
                tracing::warn!("{error}; trying again");
                narrator.say(&format!("{error}; trying again"));
            }
            tracing::debug!("{error}; next attempt in {}", seconds(delay));
            // Programs that only listen end their stream at once. But when there is nobody to listen to, one that
            // has ended its stream without a word has most likely given up.
            let gave_up = async { if has_spoken { local.failed().await } else { local.hung_up().await } };
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = gave_up => return Err(NoSession::Abandoned),
            }
        }
    }

    /// Notes a session, also for the case that this process is killed.
    pub fn enter(&self, session: &Session, targets: &Targets, registry: &Arc<Registry>) -> Place {
        let mut place = registry.enter(session.id(), Role::Client);
        place.last_word = self.plan.watch.as_ref().and_then(|watch| watch.note(session, targets));
        place
    }

    /// After the end of a session whose program has had no stream yet.
    async fn give_up(&self, session: &Session, place: &mut Place) {
        let peer_knows = relay::peer_knows(session).await;
        self.note_end(place, session.id(), peer_knows);
    }

    /// After the end of a session: has a server that could not be reached hear of it later.
    pub fn leave(&self, place: &mut Place, ended: &Ended) {
        self.note_end(place, ended.info.id, ended.peer_knows);
    }

    fn note_end(&self, place: &mut Place, session: SessionId, peer_knows: bool) {
        if !peer_knows && let (Some(watch), Some(slot)) = (&self.plan.watch, place.last_word.take()) {
            tracing::info!(%session, "the server cannot be reached: this process, or its watcher, tells it later that the session has ended");
            watch.give_up(slot);
        }
    }

    /// How long the server of standard input and output may take to say anything at all.
    pub fn answer_timeout(&self) -> Option<Duration> {
        match self.plan.config.patience {
            Patience::For(limit) => Some(limit),
            Patience::Forever if self.plan.patience_given => None,
            Patience::Forever => Some(self.plan.config.detect_timeout),
        }
    }

    /// Whether the first connection of standard input and output is retried.
    pub fn retries_stdio(&self) -> bool {
        self.plan.patience_given
    }

    /// The servers of the default route.
    pub fn default_targets(&self) -> Option<&Targets> {
        self.plan.routes.default()
    }
}

/// A program's connection as a relay has it.
fn local(stream: TcpStream) -> Option<Local> {
    Local::from_tcp(stream)
        .inspect_err(|error| tracing::error!("cannot wait for a local connection: {}", plain(error)))
        .ok()
}

/// A local program's request, which has to come at once.
async fn in_time<T, E: std::fmt::Display>(
    what: &str,
    asked: impl Future<Output = Result<T, E>>,
) -> Option<T> {
    match tokio::time::timeout(FRONT_TIMEOUT, asked).await {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => tracing::warn!("{what} request: {error}"),
        Err(_) => tracing::debug!("no {what} request within {FRONT_TIMEOUT:?}"),
    }
    None
}

/// Waits for the server's reply; says so once if it takes longer than it should.
async fn remarking<T>(reply: impl Future<Output = T>, remark: impl FnOnce()) -> T {
    let mut reply = pin!(reply);
    if let Ok(reply) = tokio::time::timeout(REPLY_EXPECTED, reply.as_mut()).await {
        return reply;
    }
    remark();
    reply.await
}

/// Relays, and notes the end.
pub async fn run(session: Session, local: Local, head: Vec<u8>, place: &Place, narrator: &Narrator) -> Ended {
    let ended = relay::run(session, local, head, &place.control).await;
    place.ended(&ended.info, &ended.outcome);
    if let Outcome::SessionFailed(error) = &ended.outcome
        && !is_ordinary(error)
    {
        narrator.say(&format!("session ended: {error}"));
    }
    ended
}

fn log_end(ended: &Ended) {
    let session = ended.info.id;
    match &ended.outcome {
        Outcome::Completed => tracing::info!(%session, "completed"),
        Outcome::LocalFailed(error) => {
            tracing::info!(%session, "the local program ended it: {}", plain(error))
        }
        // The program got nothing but a reset: its user will look here.
        Outcome::SessionFailed(error)
            if ended.info.read_bytes == 0 && is_peers_wish(error) && !is_ordinary(error) =>
        {
            tracing::warn!("{error}");
        }
        Outcome::SessionFailed(error) => report(error),
        Outcome::Stopped { delivered: true } => {
            tracing::info!(%session, "stopped before its end; what was read until then is delivered")
        }
        Outcome::Stopped { delivered: false } => {
            tracing::warn!(%session, "ended; {}", undelivered(&ended.info));
        }
        Outcome::Killed => tracing::info!(%session, "killed"),
        Outcome::Detached(_) => tracing::info!(%session, "detached"),
        // Only servers are asked for destinations.
        Outcome::Misdirected(_) => {}
    }
}

/// Whether the other side ended the session, and said why.
fn is_peers_wish(error: &Error) -> bool {
    matches!(error, Error::Reset { .. } | Error::Refused { refusal: Refusal::Ended { .. }, why: Some(_), .. })
}

/// Whether the program behind the peer reset its connection, which is how many programs end.
fn is_ordinary(error: &Error) -> bool {
    match error {
        Error::Reset { reason, .. } => reasons::is_program_reset(reason),
        // Before this side knew that the session was open.
        Error::Refused { refusal: Refusal::Ended { .. }, why: Some(why), .. } => {
            reasons::is_program_reset(why)
        }
        _ => false,
    }
}

fn log_no_session(why: &NoSession) {
    match why {
        NoSession::Error(error) => {
            tracing::error!(code = code_of_session(error) as u8, "{error}{}", hint(error));
        }
        NoSession::Abandoned => tracing::info!("the local program gave up before there was a connection"),
    }
}
