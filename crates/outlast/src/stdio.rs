//! `outlast connect --stdio`: one session, whose end is the end of the process.

use crate::carry::{self, Carrier, NoSession};
use crate::exit::{Code, Failure, code_of_session, hint};
use crate::instance::Instance;
use crate::narrate::{Narrator, seconds};
use crate::outages;
use crate::plan::ConnectPlan;
use crate::registry::Registry;
use crate::server::undelivered;
use crate::signals::{Request, Signals};
use crate::standard_output;
use crate::watcher::Watcher;
use anyhow::Result;
use outlast_session::relay::dial::plain;
use outlast_session::relay::{Control, Ended, Local, Outcome, Stdio};
use outlast_session::{Error, SessionState};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Carries standard input and output until both have ended.
pub async fn run(
    mut plan: ConnectPlan,
    admin: Option<crate::admin::AdminSocket>,
    narrator: &Narrator,
) -> Result<Code> {
    if standard_output::was_closed() {
        return Err(Failure::system(
            "standard output is closed: nothing that comes could be written".to_owned(),
        ));
    }
    let mut signals = Signals::new()?;
    outages::warn_of(&plan.config, narrator);
    let mut attending = JoinSet::new();
    if let Some(mut watcher) = Watcher::of(std::slice::from_mut(&mut plan), narrator) {
        watcher.begin();
        attending.spawn(watcher.keep_running(narrator.clone()));
    }
    let carrier = Carrier::new(plan);
    let Some(targets) = carrier.default_targets() else {
        return Err(Failure::usage("--stdio needs a --via without a pattern"));
    };
    let stdio = Stdio::take().map_err(|error| {
        Failure::system(format!("cannot use standard input and output: {}", plain(&error)))
    })?;
    let local = Local::Stdio(stdio);
    let session = tokio::select! {
        session = carrier.open((&local, false), targets, carrier.retries_stdio(), narrator) => session,
        request = signals.next() => return Ok(code_before_session(request)),
    };
    let session = match session {
        Ok(session) => session,
        // As when that happens later: the code says that not everything was delivered.
        Err(NoSession::Abandoned) => {
            tracing::info!("nobody reads standard output any more, before there was a session");
            return Ok(Code::System);
        }
        Err(NoSession::Error(error)) => return Err(failed(&error)),
    };
    let registry = Arc::new(Registry::default());
    let mut place = carrier.enter(&session, targets, &registry);
    let control = place.control.clone();
    if let Some(admin) = admin {
        attending.spawn(admin.serve(Arc::new(Instance {
            serves: vec![format!("standard input and output, via {targets}")],
            listeners: Vec::new(),
            registry: Arc::clone(&registry),
            draining: AtomicBool::new(false),
            started: Instant::now(),
        })));
    }
    // How it ends is told once, by the exit message.
    let silent = Narrator::new(false);
    let mut interrupted = None;
    let mut stopped = false;
    let mut mute_for = None;
    let ended = {
        let mut relayed = std::pin::pin!(carry::run(session, local, Vec::new(), &place, &silent));
        let mut never_answers = std::pin::pin!(never_answers(&control, carrier.answer_timeout()));
        loop {
            tokio::select! {
                ended = &mut relayed => break ended,
                limit = &mut never_answers, if mute_for.is_none() => {
                    mute_for = Some(limit);
                    control.end();
                }
                request = signals.next() => match request {
                    // There is nobody to wait for: whoever signals is the one who uses the stream.
                    Request::Drain if !std::mem::replace(&mut stopped, true) => control.stop(),
                    Request::Drain => control.end(),
                    // Also when it is asked for twice: what is not delivered by now is lost.
                    Request::Now(code) => {
                        interrupted = Some(code);
                        control.end();
                    }
                },
            }
        }
    };
    // The watcher is told that this process ends: there is nothing to be said for a session whose end the server knows.
    carrier.leave(&mut place, &ended);
    drop(place);
    attending.shutdown().await;
    if let Some(limit) = mute_for {
        return Err(Failure::new(
            Code::Network,
            format!(
                "{targets} takes the connection and has not welcomed the session for {}: no `outlast listen`, one that is \
                 about to stop, or one that does not --allow this side? --patience waits longer",
                seconds(limit)
            ),
        )
        .into());
    }
    match interrupted {
        // A second SIGTERM: what was delivered by then is another question.
        None | Some(Code::Ok) => code_of(&ended),
        Some(code) => Ok(code),
    }
}

/// Completes if the session has not been welcomed within `limit`.
async fn never_answers(control: &Control, limit: Option<Duration>) -> Duration {
    if let Some(limit) = limit {
        tokio::time::sleep(limit).await;
        if control.info().await.is_some_and(|info| info.state == SessionState::Opening) {
            return limit;
        }
    }
    std::future::pending().await
}

fn code_before_session(request: Request) -> Code {
    match request {
        Request::Now(code) => code,
        Request::Drain => Code::Network,
    }
}

fn code_of(ended: &Ended) -> Result<Code> {
    match &ended.outcome {
        Outcome::Completed => Ok(Code::Ok),
        // Whoever used the stream ends this process, as ssh does, and need not be told; but the streams had not ended.
        Outcome::Stopped { delivered: true } => {
            tracing::info!("terminated before both streams had ended");
            Ok(Code::Network)
        }
        Outcome::Killed => Err(failed(&Error::killed(ended.info.id))),
        Outcome::SessionFailed(error) => Err(failed(error)),
        // Whoever used the stream has left without a farewell, as ssh does. Nobody is there to be told; the code says
        // that not everything was delivered.
        Outcome::LocalFailed(error) if has_left(error) => {
            tracing::info!("standard input or output: {}", plain(error));
            Ok(Code::System)
        }
        Outcome::LocalFailed(error) => Err(Failure::system(format!(
            "standard input or output failed: {}; what had not passed through it is lost",
            plain(error)
        ))),
        // A client's session cannot be detached, nor asked for a destination: it would be an error of the session.
        Outcome::Stopped { delivered: false } | Outcome::Detached(_) | Outcome::Misdirected(_) => {
            Err(Failure::new(Code::Network, format!("terminated; {}", undelivered(&ended.info))).into())
        }
    }
}

fn has_left(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset)
}

fn failed(error: &Error) -> anyhow::Error {
    Failure::new(code_of_session(error), format!("{error}{}", hint(error))).into()
}
