//! Several programs together, none of which is started again: each has a supervisor of its own.

use crate::death::Death;
use crate::sys::launch;
use crate::sys::process::{self, Pid};
use crate::sys::signals::{self, Waited};
use crate::{Error, STOP_SIGNALS};
use std::process::Command;

/// One of several programs has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Which in the list.
    pub place: usize,
    /// How.
    pub death: Death,
    /// All were told to end before.
    pub stopping: bool,
}

/// Starts all commands, which are made once signals are held back, passes the signals that this process gets on to all, and waits until all have ended. `tell` hears
/// of each. If one cannot be started, or when the calling thread dies, the others are told to end.
///
/// # Errors
/// One cannot be started, or the system does not let us wait.
pub fn together(
    commands: impl IntoIterator<Item = Command>,
    mut tell: impl FnMut(Ended),
) -> Result<Vec<Death>, Error> {
    let mask = signals::hold_all().map_err(|error| Error::system("hold signals back", error))?;
    let mut running: Vec<Option<Pid>> = Vec::new();
    let mut deaths = Vec::new();
    let (mut failure, mut stopping) = (None, false);
    for mut command in commands {
        mask.give_to(&mut command);
        launch::end_with_us(libc::SIGTERM, &mut command);
        match command.spawn() {
            Ok(child) => running.push(Pid::try_from(child.id()).ok()),
            Err(error) => {
                failure = Some(Error::system("start the program", error));
                stopping = true;
                send_all(&running, libc::SIGTERM);
                break;
            }
        }
    }
    while running.iter().any(Option::is_some) {
        while let Some(ended) = process::reap() {
            let Some(place) = running.iter().position(|pid| *pid == Some(ended.pid)) else { continue };
            if let Some(place) = running.get_mut(place) {
                *place = None;
            }
            let death = Death::from_status(ended.status);
            deaths.push(death);
            tell(Ended { place, death, stopping });
        }
        if running.iter().all(Option::is_none) {
            break;
        }
        // Those of a terminal all have got already.
        if let Waited::Arrived(arrived) = signals::wait_for(None)
            && arrived.number != libc::SIGCHLD
        {
            stopping |= STOP_SIGNALS.contains(&arrived.number);
            if arrived.by_process {
                send_all(&running, arrived.number);
            }
        }
    }
    let _ = mask.restore();
    failure.map_or(Ok(deaths), Err)
}

fn send_all(running: &[Option<Pid>], number: i32) {
    for pid in running.iter().flatten() {
        let _ = process::kill(*pid, number);
    }
}
