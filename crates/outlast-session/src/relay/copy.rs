//! One relay from its first byte to its end.

use super::control::{Control, Wish};
use super::pump::{Failure, Pump, Rest, give_buffer, take_buffer};
use super::settling::{Settling, is_shed, settle, settle_timeout};
use super::{Destination, Local, SETTLE_TIMEOUT, reasons};
use crate::engine::UrgentAhead;
use crate::error::Error;
use crate::proto::Detached;
use crate::tokio::Session;
use crate::{Info, Role};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

/// How long the end of a relay waits for its peer to hear of a reset: a round trip or two.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a relay that is ending looks whether everything has been delivered: at first, and at the least.
const DELIVERED_POLL_MIN: Duration = Duration::from_millis(2);
const DELIVERED_POLL_MAX: Duration = Duration::from_millis(250);

/// What a peer may still say, and for how long, to a program that has ended its stream and left. Most peers are
/// about to end theirs as well; one that is not has to learn that nobody listens.
const LAST_WORDS_BYTES_MAX: usize = 64 << 10;
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);

/// How a relay came to its end.
#[derive(Debug)]
pub enum Outcome {
    /// Both streams ended and everything was delivered.
    Completed,
    /// The local program's connection failed; the session was reset.
    LocalFailed(io::Error),
    /// The session failed; the local program was reset.
    SessionFailed(Error),
    /// The client asked for a destination, where all sessions lead to one service. Both sides were reset.
    Misdirected(Destination),
    /// Stopped. Both sides were reset.
    Stopped {
        /// Whether everything that had been accepted was delivered first.
        delivered: bool,
    },
    /// Stopped at once. Both sides were reset.
    Killed,
    /// Told to leave the process. Neither side was told anything; the session's link was reset.
    Detached(Box<DetachedRelay>),
}

/// A relay that another process can [go on](go_on) with.
#[derive(Debug)]
pub struct DetachedRelay {
    /// The session, for the next listener.
    pub session: Detached,
    /// The local program's connection.
    pub local: Local,
    /// What was under way between the two.
    pub rest: Rest,
}

/// A relay that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The session's last state.
    pub info: Info,
    /// How it came to it.
    pub outcome: Outcome,
    /// Whether the peer knows that the session is over, or has it still because it is to. Otherwise it keeps the session until
    /// somebody tells it: see [`say_last_word`](crate::tokio::say_last_word).
    pub peer_knows: bool,
}

/// Copies between `local` and `session` until both directions have ended or one side has failed.
///
/// `head` is sent to the session before anything that `local` has to say. Returns when the peer has everything.
pub async fn run(session: Session, local: Local, head: Vec<u8>, control: &Control) -> Ended {
    // Who opens a session has just been connected to, by a program that speaks first, as a rule.
    let pump = Pump::new(head, session.role() == Role::Client);
    carry(pump, session, local, control).await
}

/// As [`run`], for a server whose sessions all lead to the service that `local` is connected to. A client that asks for a
/// destination would wait for the answer of a service that does not know what it is asked: it is told so (RP 10).
pub async fn run_undirected(session: Session, local: Local, control: &Control) -> Ended {
    carry(Pump::new(Vec::new(), false).undirected(), session, local, control).await
}

/// Goes on, as [`run`] does, with a relay that another process has [detached](Outcome::Detached).
pub async fn go_on(session: Session, local: Local, rest: Rest, control: &Control) -> Ended {
    carry(Pump::restored(rest), session, local, control).await
}

async fn carry(mut pump: Pump, mut session: Session, local: Local, control: &Control) -> Ended {
    let end = {
        // Taken back before the connection is closed.
        let lent = local.tcp().and_then(|fd| session.lend_service(fd));
        if lent.is_some() {
            pump.watch_growth();
        }
        until_end(&mut pump, &mut session, &local, control).await
    };
    session.stop_passing();
    // Nobody may poll it for long from here on.
    pump.leave_turns();
    // The local side has had its time to take what it has not.
    let mut has_settled = false;
    // The ways to end are boxed: a quiet relay should not hold the memory of all of them.
    let outcome = match end {
        End::Both => {
            local.end_in_order();
            match Box::pin(finish(&session, control)).await {
                Some(outcome) => outcome,
                None => return detach(pump, session, local),
            }
        }
        End::Failed(Failure::Session(error)) => Outcome::SessionFailed(error),
        End::Untaken(error) => {
            has_settled = true;
            Outcome::SessionFailed(error)
        }
        End::Failed(Failure::Misdirected(destination)) => Outcome::Misdirected(destination),
        End::Failed(Failure::Local(error)) => {
            if !pump.up_ended() {
                // A socket tells its error once: the next process would find an end in order.
                pump.break_down(error.kind().into());
            }
            let Some(rest) = Box::pin(deliver_the_rest(&pump, &mut session, control)).await else {
                return detach(pump, session, local);
            };
            match rest {
                // The two streams ended in order, only the end of one found nobody: nothing to reset.
                Outcome::Completed => {
                    local.abort();
                    let outcome = Outcome::LocalFailed(error);
                    return Ended { info: session.info(), outcome, peer_knows: true };
                }
                Outcome::LocalFailed(_) => Outcome::LocalFailed(error),
                other => other,
            }
        }
        End::Wish(wish @ (Wish::Kill | Wish::End)) => at_once(&session, wish),
        End::Wish(Wish::Detach) if pump.can_rest() && session.failure().is_none() => {
            return detach(pump, session, local);
        }
        // It was reset before it had said all: nothing is owed that would be worth to be waited for.
        End::Wish(Wish::Detach) if pump.broken().is_some() => {
            Outcome::LocalFailed(io::ErrorKind::ConnectionReset.into())
        }
        End::Wish(wish @ (Wish::Stop | Wish::Detach)) => {
            has_settled = true;
            let wish = tokio::select! {
                outcome = Box::pin(hand_over(&mut pump, &mut session, &local, wish)) => Ok(outcome),
                wish = control.at_once() => Err(wish),
            };
            pump.leave_turns();
            match (wish.unwrap_or_else(|wish| at_once(&session, wish)), pump.broken()) {
                // The session has said all that it had to say, and the local side did not take it. As above.
                (Outcome::Completed, Some(error)) => {
                    local.abort();
                    let outcome = Outcome::LocalFailed(error.kind().into());
                    return Ended { info: session.info(), outcome, peer_knows: true };
                }
                (outcome, _) => outcome,
            }
        }
    };
    let info = session.info();
    match outcome {
        Outcome::Completed => {}
        Outcome::SessionFailed(ref error) => {
            if !has_settled {
                Box::pin(settle(error, &session, &local, control)).await;
            }
            local.abort();
        }
        _ => {
            session.kill_with(reasons::of(&outcome, session.role()));
            local.abort();
        }
    }
    let peer_knows = matches!(outcome, Outcome::Completed) || Box::pin(peer_knows(&session)).await;
    Ended { info, outcome, peer_knows }
}

/// After the end of a session that was not in order: whether its peer knows. It is waited for, a moment: the process may end with its last
/// relay.
pub async fn peer_knows(session: &Session) -> bool {
    // It was given up as the peer cannot be reached.
    let is_out_of_reach = matches!(session.failure(), Some(Error::PatienceExhausted { .. }));
    !is_out_of_reach && session.kill_told(TELL_TIMEOUT).await
}

/// Takes everything out of this process.
fn detach(pump: Pump, session: Session, local: Local) -> Ended {
    let info = session.info();
    let Some(rest) = pump.rest() else {
        // The pipe has lost what it was given: this cannot be gone on with.
        session.kill_with(reasons::stopped(session.role()));
        local.abort();
        return Ended { info, outcome: Outcome::Stopped { delivered: false }, peer_knows: true };
    };
    let ended = if rest.up_ended { session.end_writing() } else { Ok(()) };
    let ended_both = rest.up_ended && rest.down_ended && !rest.broken;
    let outcome = match ended.and_then(|()| session.detach()) {
        Ok(session) => Outcome::Detached(Box::new(DetachedRelay { session, local, rest })),
        // The last confirmation came just now. A reset would take from the local side what it has not read yet.
        Err(Error::Closed { .. }) if ended_both => Outcome::Completed,
        Err(error) => {
            local.abort();
            Outcome::SessionFailed(error)
        }
    };
    Ended { info, outcome, peer_knows: true }
}

/// Why copying stopped.
enum End {
    Both,
    Failed(Failure),
    /// The session has failed, and the local side takes no more of what came before.
    Untaken(Error),
    Wish(Wish),
}

async fn until_end(pump: &mut Pump, session: &mut Session, local: &Local, control: &Control) -> End {
    let mut local_failed = pin!(local.failed());
    let mut asked_failed = false;
    let mut woken = pin!(control.woken());
    let mut settling = Settling::default();
    // Only of those that need it: a quiet relay should not hold the memory.
    let mut over: Option<Pin<Box<dyn Future<Output = crate::Result<()>> + Send>>> = None;
    poll_fn(|cx| {
        while woken.as_mut().poll(cx).is_ready() {
            woken.set(control.woken());
        }
        let wish = control.attend(&mut || Some(session.info()));
        if let Some(wish @ (Wish::Kill | Wish::End)) = wish {
            return Poll::Ready(End::Wish(wish));
        }
        // What the local side says goes first: then the opening of a session can ride with it.
        let up = pump.poll_up(cx, session, local);
        let down = pump.poll_down(cx, session, local);
        // Nobody reads the session, and nobody may write for long: what becomes of it has to be asked for.
        let unread = pump.has_ended_down() && up.is_pending();
        if pump.is_held_up() || unread {
            session.leave_unattended();
        }
        if let Poll::Ready(error) = settling.poll(cx, pump, session, local) {
            return Poll::Ready(End::Untaken(error));
        }
        if unread {
            let over = over.get_or_insert_with(|| Box::pin(session.over()));
            match over.as_mut().poll(cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(End::Failed(Failure::Session(error))),
                Poll::Ready(Ok(())) => *over = Box::pin(std::future::pending()),
                Poll::Pending => {}
            }
        }
        // While nothing is read from the local side, its failure has to be asked for.
        if !pump.is_listening() && !asked_failed && pump.broken().is_none() {
            asked_failed = local_failed.as_mut().poll(cx).is_ready();
            if asked_failed {
                pump.break_down(io::ErrorKind::ConnectionReset.into());
                // What the session has to say is thrown away from now on.
                cx.waker().wake_by_ref();
            }
        }
        // What came before the session failed goes to the local side first, whatever that has to say.
        let is_early = matches!(&up, Poll::Ready(Err(Failure::Session(error))) if !is_shed(error))
            && down.is_pending()
            && pump.broken().is_none()
            && session.failure().is_some();
        let up = if is_early { Poll::Pending } else { up };
        let (down_ended, up_ended) = (down.is_ready(), up.is_ready());
        if let (Poll::Ready(Err(failure)), _) | (_, Poll::Ready(Err(failure))) = (down, up) {
            return Poll::Ready(End::Failed(failure));
        }
        match pump.broken() {
            // Everything that the local side said has been read.
            Some(error) if up_ended || (local.has_two_ends() && pump.is_listening()) => {
                Poll::Ready(End::Failed(Failure::Local(error.kind().into())))
            }
            None if up_ended && down_ended => Poll::Ready(End::Both),
            // Last, so that what the local side has said so far counts, its end above all.
            _ => wish.map_or(Poll::Pending, |wish| Poll::Ready(End::Wish(wish))),
        }
    })
    .await
}

/// Both streams have ended: waits until the peer has everything. None if told to leave the process before that.
async fn finish(session: &Session, control: &Control) -> Option<Outcome> {
    let mut finished = pin!(session.finish());
    let wish = tokio::select! {
        biased;
        result = &mut finished => return Some(finished_outcome(result)),
        wish = control.wish(|| Some(session.info())) => wish,
    };
    Some(match wish {
        Wish::Kill | Wish::End => at_once(session, wish),
        Wish::Detach => return None,
        Wish::Stop => tokio::select! {
            finished = tokio::time::timeout(SETTLE_TIMEOUT, finished) => match finished {
                Ok(result) => finished_outcome(result),
                Err(_) => Outcome::Stopped { delivered: false },
            },
            wish = control.at_once() => at_once(session, wish),
        },
    })
}

/// The session ends as it is.
fn at_once(session: &Session, wish: Wish) -> Outcome {
    if wish == Wish::Kill { Outcome::Killed } else { ended_at_once(session) }
}

/// The process ends with the session as it is.
fn ended_at_once(session: &Session) -> Outcome {
    Outcome::Stopped { delivered: session.info().unacked_bytes == 0 }
}

fn finished_outcome(result: crate::Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Completed,
        Err(error) => Outcome::SessionFailed(error),
    }
}

/// The local program is gone: what it said before is delivered, what it is told is thrown away.
///
/// A program that said goodbye and left is owed delivery, however long it takes; one that was reset gets what TCP
/// would do. If the peer ends its stream as well the session has completed. None if told to leave the process before that:
/// the next one delivers as well as this one.
async fn deliver_the_rest(pump: &Pump, session: &mut Session, control: &Control) -> Option<Outcome> {
    let mut peer_ended = pump.broken_to_the_end();
    let started = Instant::now();
    let mut thrown_away = 0;
    let mut buffer = take_buffer();
    let mut pause = DELIVERED_POLL_MIN;
    let outcome = loop {
        // Nobody may read it any more, who would find out.
        if let Some(error) = session.failure() {
            break Outcome::SessionFailed(error);
        }
        let last_words = pump.up_ended()
            && !peer_ended
            && thrown_away < LAST_WORDS_BYTES_MAX
            && started.elapsed() < LAST_WORDS_TIMEOUT;
        let delivered = session.info().unacked_bytes == 0;
        if delivered && !last_words {
            break Outcome::LocalFailed(io::ErrorKind::ConnectionReset.into());
        }
        match control.attend(&mut || Some(session.info())) {
            Some(Wish::Kill) => break Outcome::Killed,
            Some(Wish::End) => break ended_at_once(session),
            Some(Wish::Detach) if pump.can_rest() => {
                give_buffer(buffer);
                return None;
            }
            // Others wait for the next process.
            Some(Wish::Detach) => break Outcome::LocalFailed(io::ErrorKind::ConnectionReset.into()),
            Some(Wish::Stop) if started.elapsed() >= SETTLE_TIMEOUT => {
                break Outcome::Stopped { delivered };
            }
            _ if !pump.up_ended() && started.elapsed() >= SETTLE_TIMEOUT => {
                break Outcome::LocalFailed(io::ErrorKind::ConnectionReset.into());
            }
            _ => {}
        }
        tokio::select! {
            read = session.read(&mut buffer), if !peer_ended => match read {
                Ok(count) => {
                    peer_ended = count == 0;
                    thrown_away += count;
                }
                Err(error) => break Outcome::SessionFailed(super::session_error(error)),
            },
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(DELIVERED_POLL_MAX),
            () = control.woken() => {}
        }
    };
    give_buffer(buffer);
    match outcome {
        Outcome::LocalFailed(_) if peer_ended && pump.up_ended() => finish(session, control).await,
        other => Some(other),
    }
}

/// Told to stop: what either side has handed to us reaches the other, within bounds.
///
/// If the local side has ended its stream the peer is about to end its own, and the session may complete.
async fn hand_over(pump: &mut Pump, session: &mut Session, local: &Local, wish: Wish) -> Outcome {
    let up_ended = pump.up_ended();
    let limit = match session.failure() {
        Some(_) => settle_timeout(wish),
        None if up_ended => LAST_WORDS_TIMEOUT,
        None => SETTLE_TIMEOUT,
    };
    let begun = Instant::now();
    let moving = poll_fn(|cx| {
        // What has come before a failure is passed on.
        if up_ended
            && let Poll::Ready(Err(_)) = pump.poll_up(cx, session, local)
            && session.failure().is_none()
        {
            return Poll::Ready(Moved::Not);
        }
        let asked_again = session.asked_again();
        match pump.poll_down(cx, session, local) {
            Poll::Ready(Ok(())) => Poll::Ready(Moved::ToTheEnd),
            Poll::Ready(Err(_)) => Poll::Ready(Moved::Not),
            Poll::Pending if pump.broken_to_the_end() => Poll::Ready(Moved::ToTheEnd),
            // It comes back at once, and there may be more.
            Poll::Pending
                if session.asked_again() != asked_again || session.urgent_ahead() == UrgentAhead::Next =>
            {
                Poll::Pending
            }
            Poll::Pending if pump.is_drained() && !up_ended => Poll::Ready(Moved::SoFar),
            Poll::Pending => Poll::Pending,
        }
    });
    let moved = match tokio::time::timeout(limit, moving).await {
        Ok(moved) => moved,
        Err(_) if pump.is_drained() => Moved::SoFar,
        Err(_) => Moved::Not,
    };
    pump.leave_turns();
    if let Some(error) = session.failure() {
        local.settle(limit.saturating_sub(begun.elapsed())).await;
        return Outcome::SessionFailed(error);
    }
    if up_ended && moved == Moved::ToTheEnd {
        if pump.broken().is_none() {
            local.end_in_order();
        }
        let finished = tokio::time::timeout(SETTLE_TIMEOUT, session.finish()).await;
        let outcome = finished.map_or(Outcome::Stopped { delivered: false }, finished_outcome);
        if matches!(outcome, Outcome::SessionFailed(_)) {
            local.settle(settle_timeout(wish)).await;
        }
        return outcome;
    }
    local.settle(SETTLE_TIMEOUT).await;
    let delivered = async {
        while session.failure().is_none() && session.info().unacked_bytes > 0 {
            tokio::time::sleep(DELIVERED_POLL_MIN).await;
        }
    };
    let delivered = tokio::time::timeout(SETTLE_TIMEOUT, delivered).await.is_ok();
    if let Some(error) = session.failure() {
        return Outcome::SessionFailed(error);
    }
    Outcome::Stopped { delivered: delivered && moved != Moved::Not && pump.broken().is_none() }
}

/// How much of what the session had to give the local side has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Not,
    SoFar,
    ToTheEnd,
}
