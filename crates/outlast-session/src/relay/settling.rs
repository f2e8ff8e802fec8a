//! The end of a session that has failed, where the local side has not taken all that came before.
//!
//! A slow reader gets it all, as long as it goes on to take some. One that takes nothing would keep the connection, and what the session
//! holds in memory, for as long as it likes: it has some seconds. If the session was ended to free memory it has none. If the
//! peer has said all that it had to say, and heard that it has arrived, it has as long as memory is not scarce.

use super::pump::Pump;
use super::{Control, Local, SETTLE_TIMEOUT};
use crate::error::Error;
use crate::tokio::Session;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// How often it is looked whether the kernel has passed everything on: at first, and at the least.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(250);

/// Whether the local side of a relay is waited for, while it takes nothing.
#[derive(Default)]
pub(super) enum Settling {
    #[default]
    Unneeded,
    /// The session has not ended, as far as is known.
    Over(Pin<Box<dyn Future<Output = crate::Result<()>> + Send>>),
    Failed(Box<Failed>),
}

pub(super) struct Failed {
    error: Error,
    look: Pin<Box<Sleep>>,
    /// When the session failed, or at the last look: what the local side had taken, and what the kernel had for it.
    taken_bytes: u64,
    unsent_bytes: usize,
}

impl Settling {
    /// Ready, with the session's error, when it has failed and its local side has had its time. To be polled after the pump.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        pump: &Pump,
        session: &Session,
        local: &Local,
    ) -> Poll<Error> {
        // It may wait for its turn, or for the session.
        if !pump.is_blocked() {
            return Poll::Pending;
        }
        loop {
            match self {
                Settling::Unneeded => *self = Settling::Over(Box::pin(session.over())),
                Settling::Over(over) => match ready!(over.as_mut().poll(cx)) {
                    Ok(()) => *self = Settling::Over(Box::pin(std::future::pending())),
                    Err(error) if is_shed(&error) => return Poll::Ready(error),
                    Err(error) => {
                        *self = Settling::Failed(Box::new(Failed {
                            error,
                            look: Box::pin(sleep(SETTLE_TIMEOUT)),
                            taken_bytes: pump.taken_bytes(),
                            unsent_bytes: local.unsent_bytes(),
                        }));
                    }
                },
                Settling::Failed(failed) => {
                    ready!(failed.look.as_mut().poll(cx));
                    let (taken_bytes, unsent_bytes) = (pump.taken_bytes(), local.unsent_bytes());
                    let takes_some = taken_bytes != failed.taken_bytes || unsent_bytes < failed.unsent_bytes;
                    if !takes_some && !session.may_keep_input() {
                        return Poll::Ready(failed.error.clone());
                    }
                    (failed.taken_bytes, failed.unsent_bytes) = (taken_bytes, unsent_bytes);
                    failed.look.as_mut().reset(Instant::now() + SETTLE_TIMEOUT);
                }
            }
        }
    }
}

/// The session has failed, and the kernel may have something left for the local side: waits until that has it, or has had its time.
pub(super) async fn settle(error: &Error, session: &Session, local: &Local, control: &Control) {
    if is_shed(error) {
        return;
    }
    let taken = async {
        let (mut unsent_bytes, mut taken_at, mut pause) = (local.unsent_bytes(), Instant::now(), LOOK_MIN);
        while unsent_bytes > 0 && (taken_at.elapsed() < SETTLE_TIMEOUT || session.may_keep_input()) {
            sleep(pause).await;
            pause = (2 * pause).min(LOOK_MAX);
            let before = std::mem::replace(&mut unsent_bytes, local.unsent_bytes());
            if unsent_bytes < before {
                (taken_at, pause) = (Instant::now(), LOOK_MIN);
            }
        }
    };
    tokio::select! {
        () = taken => {}
        () = local.failed() => {}
        _ = pin!(control.wish(|| Some(session.info()))) => {}
    }
}

fn is_shed(error: &Error) -> bool {
    matches!(error, Error::Shed { .. })
}
