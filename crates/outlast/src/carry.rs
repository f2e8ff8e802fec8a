//! One local program's stream, from its first byte to its end.

use crate::exit::{code_of_session, hint};
use crate::narrate::{Narrator, seconds};
use crate::plan::ConnectPlan;
use crate::registry::{Place, Registry};
use crate::server::report;
use outlast_session::relay::dial::plain;
use outlast_session::relay::http_connect::{self, Answer};
use outlast_session::relay::preamble::{self, PreambleFailure, Reply, Status};
use outlast_session::relay::socks5::{self, Code as SocksCode};
use outlast_session::relay::{self, Destination, Ended, FRONT_TIMEOUT, Local, Outcome};
use outlast_session::tokio::Session;
use outlast_session::{Error, Patience, Role, Targets};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Delays between attempts at the first connection: at first, and at the most.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A local program that has connected.
#[derive(Debug)]
pub enum Program {
    /// It goes where the default route leads.
    Plain(Local),
    Socks5(TcpStream),
    HttpConnect(TcpStream),
    Diverted(TcpStream, Option<Destination>),
}

/// How a program that named its destination is answered.
#[derive(Clone, Copy, Debug)]
enum Manners {
    Socks5,
    HttpConnect,
    /// It does not know that we are here.
    Silent,
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
    /// The program has given up, or we were told to end.
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

    /// One program to its end. What goes wrong is logged, and told to the program where it can be.
    pub async fn carry(&self, program: Program, registry: &Arc<Registry>, narrator: &Narrator) {
        match program {
            Program::Plain(local) => {
                let Some(targets) = self.plan.routes.default() else { return local.abort() };
                self.carry_plain(local, targets, registry, narrator).await;
            }
            Program::Diverted(stream, destination) => {
                let local = Local::from(stream);
                let Some(destination) = destination else { return local.abort() };
                self.carry_to(local, destination, Vec::new(), Manners::Silent, registry, narrator).await;
            }
            Program::Socks5(mut stream) => {
                let asked = socks5::negotiate(&mut stream, self.plan.credentials.as_ref());
                match tokio::time::timeout(FRONT_TIMEOUT, asked).await {
                    Ok(Ok(destination)) => {
                        let local = Local::from(stream);
                        self.carry_to(local, destination, Vec::new(), Manners::Socks5, registry, narrator)
                            .await;
                    }
                    Ok(Err(error)) => tracing::warn!("SOCKS5 request: {error}"),
                    Err(_) => tracing::debug!("no SOCKS5 request within {FRONT_TIMEOUT:?}"),
                }
            }
            Program::HttpConnect(mut stream) => {
                let asked = http_connect::negotiate(&mut stream, self.plan.credentials.as_ref());
                match tokio::time::timeout(FRONT_TIMEOUT, asked).await {
                    Ok(Ok((destination, early))) => {
                        let local = Local::from(stream);
                        self.carry_to(local, destination, early, Manners::HttpConnect, registry, narrator)
                            .await;
                    }
                    Ok(Err(error)) => tracing::warn!("HTTP CONNECT request: {error}"),
                    Err(_) => tracing::debug!("no HTTP request within {FRONT_TIMEOUT:?}"),
                }
            }
        }
    }

    async fn carry_plain(
        &self,
        local: Local,
        targets: &Targets,
        registry: &Arc<Registry>,
        narrator: &Narrator,
    ) {
        match self.open(&local, targets, true, narrator).await {
            Ok(session) => {
                let place = registry.enter(session.id(), Role::Client);
                let ended = run(session, local, Vec::new(), &place, narrator).await;
                log_end(&ended);
            }
            Err(why) => {
                log_no_session(&why);
                local.abort();
            }
        }
    }

    async fn carry_to(
        &self,
        local: Local,
        destination: Destination,
        early: Vec<u8>,
        manners: Manners,
        registry: &Arc<Registry>,
        narrator: &Narrator,
    ) {
        let Some(targets) = self.plan.routes.to(&destination) else {
            tracing::warn!(%destination, "no --via leads there");
            return refuse(local, manners, Status::NotAllowed, "no route").await;
        };
        let mut session = match self.open(&local, targets, true, narrator).await {
            Ok(session) => session,
            Err(why) => {
                log_no_session(&why);
                return refuse(local, manners, Status::Failed, "no connection to the outlast server").await;
            }
        };
        let place = registry.enter(session.id(), Role::Client);
        let asked = tokio::select! {
            reply = preamble::ask(&mut session, &destination) => Some(reply),
            () = manners.gave_up(&local) => None,
            () = place.control.told_to_end() => None,
        };
        match asked {
            Some(Ok(Reply { status: Status::Connected, .. })) => {
                if local.send_all(&manners.welcome()).await.is_err() {
                    session.kill();
                    return;
                }
                let ended = run(session, local, early, &place, narrator).await;
                log_end(&ended);
            }
            Some(Ok(Reply { status, reason })) => {
                tracing::warn!(%destination, "{status}: {reason}");
                refuse(local, manners, status, &reason).await;
                let _ = session.finish().await;
            }
            Some(Err(PreambleFailure::Session(error))) => {
                report(&error);
                refuse(local, manners, Status::Failed, "the session failed").await;
            }
            Some(Err(error)) => {
                // RP 10
                tracing::error!("{targets} takes no destinations ({error}): it needs --to-any");
                session.kill();
                refuse(local, manners, Status::Failed, "the outlast server takes no destinations").await;
            }
            None => {
                session.kill();
                local.abort();
            }
        }
    }

    /// Opens a session while the program waits. Network errors are retried within the patience if `retry`.
    pub async fn open(
        &self,
        local: &Local,
        targets: &Targets,
        retry: bool,
        narrator: &Narrator,
    ) -> Result<Session, NoSession> {
        let started = Instant::now();
        let mut delay = RETRY_MIN;
        let mut told = false;
        loop {
            let attempt = tokio::select! {
                attempt = Session::connect_with(targets, &self.plan.config) => attempt,
                () = local.failed() => return Err(NoSession::Abandoned),
            };
            let error = match attempt {
                Ok(session) => {
                    narrator.follow(session.events(), "connected to");
                    return Ok(session);
                }
                Err(error) => error,
            };
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
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = local.hung_up() => return Err(NoSession::Abandoned),
            }
            delay = (delay * 2).min(RETRY_MAX);
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

/// Relays, and notes the end.
pub async fn run(session: Session, local: Local, head: Vec<u8>, place: &Place, narrator: &Narrator) -> Ended {
    let ended = relay::run(session, local, head, &place.control).await;
    place.ended(&ended.info, &ended.outcome);
    if let Outcome::SessionFailed(error) = &ended.outcome {
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
        Outcome::SessionFailed(error) => report(error),
        Outcome::Stopped { delivered: true } => tracing::info!(%session, "ended, everything delivered"),
        Outcome::Stopped { delivered: false } => {
            let bytes = ended.info.unacked_bytes;
            tracing::warn!(%session, "ended, {bytes} bytes are not known to be delivered");
        }
        Outcome::Killed => tracing::info!(%session, "killed"),
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

impl Manners {
    /// Completes when a program that waits for an answer has gone.
    async fn gave_up(self, local: &Local) {
        match self {
            Manners::Socks5 | Manners::HttpConnect => local.hung_up().await,
            // It may have ended its stream, to listen only.
            Manners::Silent => local.failed().await,
        }
    }

    /// What a program hears before its stream begins.
    fn welcome(self) -> Vec<u8> {
        match self {
            Manners::Socks5 => socks5::reply(SocksCode::Succeeded).to_vec(),
            Manners::HttpConnect => http_connect::reply(Answer::Connected, ""),
            Manners::Silent => Vec::new(),
        }
    }

    /// What a program hears instead of its stream.
    fn refusal(self, status: Status, reason: &str) -> Vec<u8> {
        match self {
            Manners::Socks5 => socks5::reply(socks_code(status)).to_vec(),
            Manners::HttpConnect => http_connect::reply(http_answer(status), reason),
            Manners::Silent => Vec::new(),
        }
    }
}

async fn refuse(local: Local, manners: Manners, status: Status, reason: &str) {
    match manners {
        Manners::Silent => local.abort(),
        Manners::Socks5 | Manners::HttpConnect => {
            local.send_all(&manners.refusal(status, reason)).await.ok();
        }
    }
}

fn socks_code(status: Status) -> SocksCode {
    match status {
        Status::Connected => SocksCode::Succeeded,
        Status::NotAllowed => SocksCode::NotAllowed,
        Status::UnknownHost => SocksCode::HostUnreachable,
        Status::Refused => SocksCode::Refused,
        Status::Unreachable => SocksCode::NetworkUnreachable,
        Status::TimedOut => SocksCode::Expired,
        Status::Malformed | Status::Failed => SocksCode::GeneralFailure,
    }
}

fn http_answer(status: Status) -> Answer {
    match status {
        Status::Connected => Answer::Connected,
        Status::NotAllowed => Answer::Status(403, "Forbidden"),
        Status::TimedOut => Answer::Status(504, "Gateway Timeout"),
        Status::Malformed | Status::Failed => Answer::Status(503, "Service Unavailable"),
        Status::UnknownHost | Status::Refused | Status::Unreachable => Answer::Status(502, "Bad Gateway"),
    }
}
