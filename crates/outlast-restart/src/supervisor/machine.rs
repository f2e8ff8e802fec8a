//! What a supervisor does next: pure. What has happened goes in with the time, what is to be done comes out.

mod questions;

use super::settings::{Readiness, Restart, Settings};
use super::{Event, Outcome};
use crate::death::Death;
use crate::policy::{Decision, Inheritance, Restarts};
use std::time::Duration;

/// Between two attempts to kill a program.
const KILL_AGAIN_MIN: Duration = Duration::from_secs(1);

/// A program that ends as its terminal is gone, or as it is interrupted, does so within this time, where there is no time
/// for it to stop.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(30);

/// By which people interrupt programs. Many end then, in order; some go on (a JVM writes down its threads at SIGQUIT).
const INTERRUPTS: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// What [`Action::Start`] asked for was done.
    Started { pid: u32 },
    /// It could not be done.
    CannotStart { code: i32 },
    /// The main process has died. `heir` is the one that lives on for it, if there is one.
    Died { death: Death, heir: Option<u32> },
    /// So, in order, and nobody is left, though it has gone into the background before: nobody serves.
    Vanished { death: Death },
    /// So, in order, before it has listened, and what is held for it may be why.
    Hindered { death: Death },
    /// This process got a signal; from a process, or from a terminal, whose signals go to everybody in front of it.
    Signal { number: i32, by_process: bool },
    /// The program has told its own process group by this signal to end, itself among them: it has heard that.
    OwnSignal { number: i32 },
    /// The terminal is gone that the program was started from, and the program has been told so, as it would have been
    /// without this process; or, if not for sure, its shell has sent the signal for that.
    HungUp { for_sure: bool },
    /// The program serves.
    Ready,
    /// The program is alive.
    SignOfLife,
    /// It is to end and to be started again, and that is no failure.
    Replace,
    /// It has taken another one's place and does not serve: that one is to be started again, at once.
    Undo,
    /// So, after it has died by itself.
    DiedOnTrial { death: Death },
    /// Nothing but time has passed.
    Time,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Start the program, and say which process it is.
    Start,
    Signal {
        pid: u32,
        number: i32,
    },
    /// Kill the process and all that is below it.
    KillAll {
        pid: u32,
    },
    /// Kill what serves, for it hangs.
    KillHung {
        pid: u32,
    },
    /// Stop as the terminal's other programs do.
    Sleep,
    Tell(Event),
    End(Outcome),
}

/// Why the program is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// This process was told to end.
    ForGood(i32),
    /// To be started again.
    Replaced,
    /// It was not ready in time.
    TooLate,
}

/// The program got this signal at this time.
#[derive(Clone, Copy, Debug)]
struct Interrupt {
    /// Of [`INTERRUPTS`], where it was not the program itself that has sent it.
    number: i32,
    at_ms: u64,
    /// As it tells its workers: it goes on, or dies of it. Any other end has another reason.
    by_itself: bool,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    main: u32,
    began_ms: u64,
    ready: bool,
    /// The last sign of life, or what counts as one.
    heard_ms: u64,
    ending: Option<Ending>,
    /// When it is killed.
    kill_at_ms: Option<u64>,
    /// Until when its end is one that its terminal has asked for, and whether that is for sure.
    hung_up_until_ms: Option<(u64, bool)>,
    /// It decides itself what that means.
    interrupted: Option<Interrupt>,
    /// It is not the process that was started: that has ended in order.
    in_background: bool,
}

impl Running {
    /// When it was interrupted, if it ends for that: by that signal, with the code that tells the same, or in any order of
    /// its own within `time`; for SIGQUIT, which asks many for no more than a report, that is code 0. Whoever has gone on and
    /// ends later, or is killed by something else, has crashed.
    fn interrupted_ms(&self, death: Death, time: Duration, now_ms: u64) -> Option<u64> {
        let Interrupt { number, at_ms, by_itself } = self.interrupted?;
        let is_soon = now_ms <= at_ms.saturating_add(ms(time));
        let ends_so = match death {
            Death::Signal(signal) => signal == number,
            Death::Exited(code) if code == Death::Signal(number).exit_code() => true,
            Death::Exited(code) => is_soon && !by_itself && (code == 0 || number != libc::SIGQUIT),
        };
        ends_so.then_some(at_ms)
    }

    /// Whether it ends as its terminal is gone: as a program does that takes no note of SIGHUP, or of itself. What goes on
    /// without a terminal is supervised as before.
    fn ends_with_terminal(&self, death: Death, now_ms: u64) -> bool {
        let Some((_, for_sure)) = self.hung_up_until_ms.filter(|(until_ms, _)| now_ms <= *until_ms) else {
            return false;
        };
        death == Death::Signal(libc::SIGHUP) || (for_sure && matches!(death, Death::Exited(_)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Starting,
    Running(Running),
    Pausing { until_ms: u64 },
    Over,
}

/// A supervisor's state.
pub(super) struct Machine {
    settings: Settings,
    restarts: Restarts,
    phase: Phase,
    run: u32,
    in_a_row: u32,
    was_ready: bool,
    /// The program has said that it serves: that was not only assumed.
    was_told: bool,
    /// Whoever is started goes on in the background, as far as is known.
    daemonizes: bool,
    /// When it was told to end for good.
    told_ms: Option<u64>,
    alive_at_ms: Option<u64>,
    actions: Vec<Action>,
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Machine {
    /// The first thing to do is to start the program.
    pub(super) fn new(settings: Settings, now_ms: u64) -> Self {
        Self {
            restarts: Restarts::new(settings.policy),
            alive_at_ms: settings.alive_interval.map(|interval| now_ms.saturating_add(ms(interval))),
            settings,
            phase: Phase::Starting,
            run: 0,
            in_a_row: 0,
            was_ready: false,
            was_told: false,
            daemonizes: false,
            told_ms: None,
            actions: Vec::new(),
        }
    }

    /// Takes in what has happened at `now_ms`, which does not fall. Gives what is to be done, in this order.
    pub(super) fn on(&mut self, input: Input, now_ms: u64) -> Vec<Action> {
        match (input, self.phase) {
            (_, Phase::Over) => {}
            (Input::Started { pid }, Phase::Starting) => self.started(pid, now_ms),
            (Input::CannotStart { code }, Phase::Starting) => self.cannot_start(code, now_ms),
            (Input::Died { death, heir }, Phase::Running(running)) => {
                self.died(running, death, heir, now_ms);
            }
            (Input::Vanished { death }, Phase::Running(running)) => self.vanished(running, death, now_ms),
            (Input::Hindered { death }, Phase::Running(running)) => self.hindered(running, death, now_ms),
            (Input::HungUp { for_sure }, phase) => self.hung_up(phase, for_sure, now_ms),
            (Input::Signal { number, by_process }, phase) => self.signal(phase, number, by_process, now_ms),
            (Input::OwnSignal { number }, Phase::Running(running)) => {
                let interrupted = Some(Interrupt { number, at_ms: now_ms, by_itself: true });
                self.phase = Phase::Running(Running { interrupted, ..running });
            }
            (Input::Ready, Phase::Running(running)) => {
                self.was_told = true;
                self.ready(running, now_ms);
            }
            (Input::SignOfLife, Phase::Running(running)) => {
                self.phase = Phase::Running(Running { heard_ms: now_ms, ..running });
            }
            (Input::Replace, Phase::Running(running)) if running.ending.is_none() => {
                self.end(running, Ending::Replaced, self.settings.stop_signal, true, now_ms);
            }
            (Input::Undo, Phase::Running(running)) => self.undo(running),
            (Input::DiedOnTrial { death }, Phase::Running(running)) => {
                let told = matches!(running.ending, Some(Ending::ForGood(_)))
                    || self.is_interrupted_by(death, now_ms);
                let ending = if told { running.ending } else { Some(Ending::Replaced) };
                self.died(Running { ending, ..running }, death, None, now_ms);
            }
            // Whoever wants another program need not wait for the pause to be over.
            (Input::Replace, Phase::Pausing { .. }) => self.start(),
            (Input::Time, phase) => self.time(phase, now_ms),
            _ => {}
        }
        std::mem::take(&mut self.actions)
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn over(&mut self, outcome: Outcome) {
        self.phase = Phase::Over;
        self.act(Action::End(outcome));
    }

    /// Asks for the program.
    pub(super) fn start(&mut self) {
        self.phase = Phase::Starting;
        self.act(Action::Start);
    }

    fn started(&mut self, pid: u32, now_ms: u64) {
        self.run = self.run.saturating_add(1);
        let running = Running {
            main: pid,
            began_ms: now_ms,
            ready: false,
            heard_ms: now_ms,
            ending: None,
            kill_at_ms: None,
            hung_up_until_ms: None,
            interrupted: None,
            in_background: false,
        };
        self.phase = Phase::Running(running);
        self.act(Action::Tell(Event::Started { pid, run: self.run }));
        if self.settings.readiness == Readiness::Started {
            self.ready(running, now_ms);
        }
    }

    fn cannot_start(&mut self, code: i32, now_ms: u64) {
        if self.run == 0 || self.restarts.on_death(now_ms) != Decision::Succeed(Inheritance::Everything) {
            return self.over(Outcome::CannotStart { code });
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        // A file that is missing for a moment is not there again at once.
        let pause = self.settings.pause_before(self.in_a_row.max(2));
        self.act(Action::Tell(Event::CannotStart { code, pause }));
        self.phase = Phase::Pausing { until_ms: now_ms.saturating_add(ms(pause)) };
    }

    fn ready(&mut self, running: Running, now_ms: u64) {
        if running.ready {
            return;
        }
        self.was_ready = true;
        self.phase = Phase::Running(Running { ready: true, heard_ms: now_ms, ..running });
        self.act(Action::Tell(Event::Ready));
    }

    fn died(&mut self, running: Running, death: Death, heir: Option<u32>, now_ms: u64) {
        let time = self.settings.stop_timeout.unwrap_or(HANG_UP_TIMEOUT);
        let interrupted = running.interrupted.zip(running.interrupted_ms(death, time, now_ms));
        if let Some(heir) = heir {
            let in_background = running.in_background || self.settings.success.contains(&death);
            self.daemonizes |= in_background;
            self.phase = Phase::Running(Running { main: heir, heard_ms: now_ms, in_background, ..running });
            self.act(Action::Tell(Event::Succeeded { death, pid: heir }));
            // Whoever takes over has not heard what the dead one was told.
            match running.ending {
                Some(Ending::ForGood(number)) => self.act(Action::Signal { pid: heir, number }),
                Some(Ending::Replaced) => {
                    self.act(Action::Signal { pid: heir, number: self.settings.stop_signal });
                }
                Some(Ending::TooLate) => self.act(Action::KillAll { pid: heir }),
                None => {
                    if let Some((Interrupt { number, by_itself: false, .. }, _)) = interrupted {
                        self.act(Action::Signal { pid: heir, number });
                    }
                }
            }
            return;
        }
        self.act(Action::Tell(Event::Ended { pid: running.main, death }));
        let success = self.settings.success.contains(&death);
        if let (None, Some((_, at_ms))) = (running.ending, interrupted) {
            self.told_ms.get_or_insert(at_ms);
            let outcome = if success { Outcome::Finished } else { Outcome::Stopped(death) };
            return self.over(outcome);
        }
        match running.ending {
            Some(Ending::ForGood(_)) if success => self.over(Outcome::Finished),
            // However it took it.
            Some(Ending::ForGood(_)) => self.over(Outcome::Stopped(death)),
            Some(Ending::Replaced) => self.start(),
            None if running.ends_with_terminal(death, now_ms) => self.over(Outcome::Stopped(death)),
            Some(Ending::TooLate) if !self.was_ready => self.over(Outcome::NotReady),
            None if success && self.settings.restart != Restart::Always => self.over(Outcome::Finished),
            _ if self.settings.restart == Restart::Never => self.over(Outcome::Ended(death)),
            _ => self.crashed(running.began_ms, death, now_ms),
        }
    }

    /// The program's last failures, `count` of them, were caused by what this process kept for it.
    pub(super) fn forget_failures(&mut self, count: u32) {
        self.restarts.forget_last(count as usize);
        self.in_a_row = self.in_a_row.saturating_sub(count);
    }

    fn vanished(&mut self, running: Running, death: Death, now_ms: u64) {
        let is_usual = running.ending.is_some() || running.hung_up_until_ms.is_some();
        if is_usual || self.settings.restart == Restart::Never {
            return self.died(running, death, None, now_ms);
        }
        self.act(Action::Tell(Event::Ended { pid: running.main, death }));
        self.act(Action::Tell(Event::Vanished));
        self.crashed(running.began_ms, death, now_ms);
    }

    fn hindered(&mut self, running: Running, death: Death, now_ms: u64) {
        let is_usual = running.ending.is_some()
            || running.hung_up_until_ms.is_some()
            || self.is_interrupted_by(death, now_ms);
        // Nor is it a failure where it is not to be tried again.
        if is_usual || self.settings.restart == Restart::Never || self.is_last_start() {
            return self.died(running, death, None, now_ms);
        }
        self.act(Action::Tell(Event::Ended { pid: running.main, death }));
        self.crashed(running.began_ms, death, now_ms);
    }

    fn crashed(&mut self, began_ms: u64, death: Death, now_ms: u64) {
        // There is nothing that less and less of could be taken over.
        if self.restarts.on_death(now_ms) != Decision::Succeed(Inheritance::Everything) {
            return self.over(Outcome::GaveUp(death));
        }
        let lasted_ms = now_ms.saturating_sub(began_ms);
        let long = lasted_ms > self.settings.policy.transient_after_ms;
        self.in_a_row = if long { 0 } else { self.in_a_row.saturating_add(1) };
        let pause = self.settings.pause_before(self.in_a_row);
        let restarts = self.restarts.recent();
        self.act(Action::Tell(Event::Crashed { death, pause, restarts }));
        if pause.is_zero() {
            self.start();
        } else {
            self.phase = Phase::Pausing { until_ms: now_ms.saturating_add(ms(pause)) };
        }
    }

    fn signal(&mut self, phase: Phase, number: i32, by_process: bool, now_ms: u64) {
        let interrupts = INTERRUPTS.contains(&number);
        match phase {
            // That takes a moment where something has to end first.
            Phase::Pausing { .. } | Phase::Starting if self.stops(number) || interrupts => {
                self.over(Outcome::Stopped(Death::Signal(number)))
            }
            Phase::Running(running) if self.stops(number) => {
                let number = self.settings.stop_signal;
                self.end(running, Ending::ForGood(number), number, by_process, now_ms);
            }
            // It ends as it is replaced, or was not ready in time: nobody could tell that from an end by this. Whoever sits
            // in front of it means all of that.
            Phase::Running(running) if interrupts && running.ending.is_some() && !by_process => {
                let for_good = matches!(running.ending, Some(Ending::ForGood(_)));
                if !for_good {
                    self.end(running, Ending::ForGood(number), number, false, now_ms);
                }
            }
            Phase::Running(running) if interrupts => {
                let interrupted = Some(Interrupt { number, at_ms: now_ms, by_itself: false });
                self.phase = Phase::Running(Running { interrupted, ..running });
                // Those of a terminal it has got already.
                if by_process {
                    self.act(Action::Signal { pid: running.main, number });
                }
            }
            // All in front of the terminal sleep, and this process with them: a shell waits for that.
            _ if !by_process && [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&number) => {
                self.act(Action::Sleep);
            }
            Phase::Running(running) if by_process => {
                self.act(Action::Signal { pid: running.main, number });
            }
            _ => {}
        }
    }

    fn hung_up(&mut self, phase: Phase, for_sure: bool, now_ms: u64) {
        match phase {
            // There is no program that could have gone on without a terminal.
            Phase::Pausing { .. } | Phase::Starting if for_sure => {
                self.over(Outcome::Stopped(Death::Signal(libc::SIGHUP)))
            }
            Phase::Running(running) => {
                let time = self.settings.stop_timeout.unwrap_or(HANG_UP_TIMEOUT);
                let for_sure = for_sure || running.hung_up_until_ms.is_some_and(|(_, for_sure)| for_sure);
                let hung_up_until_ms = Some((now_ms.saturating_add(ms(time)), for_sure));
                self.phase = Phase::Running(Running { hung_up_until_ms, ..running });
            }
            _ => {}
        }
    }

    /// Has the program end.
    fn end(&mut self, running: Running, ending: Ending, number: i32, send: bool, now_ms: u64) {
        let limit = self.settings.stop_timeout.map(|limit| now_ms.saturating_add(ms(limit)));
        // Asking again does not give it more time.
        let kill_at_ms = running.kill_at_ms.or(limit);
        if matches!(ending, Ending::ForGood(_)) {
            self.told_ms.get_or_insert(now_ms);
        }
        // Once, and once more if it was not for good.
        let is_for_good = |ending: &Ending| matches!(ending, Ending::ForGood(_));
        if running.ending.is_none_or(|before| is_for_good(&ending) && !is_for_good(&before)) {
            self.act(Action::Tell(Event::Stopping { number, for_good: ending != Ending::Replaced }));
        }
        // Those of a terminal it has got already.
        if send {
            self.act(Action::Signal { pid: running.main, number });
        }
        self.phase = Phase::Running(Running { ending: Some(ending), kill_at_ms, ..running });
    }

    fn undo(&mut self, running: Running) {
        if !matches!(running.ending, Some(Ending::ForGood(_))) {
            self.act(Action::KillAll { pid: running.main });
            self.phase = Phase::Running(Running { ending: Some(Ending::Replaced), ..running });
        }
    }

    fn time(&mut self, phase: Phase, now_ms: u64) {
        let over = |limit: Option<u64>| limit.is_some_and(|at_ms| now_ms >= at_ms);
        match phase {
            Phase::Pausing { until_ms } if now_ms >= until_ms => self.start(),
            Phase::Running(running) if over(running.kill_at_ms) => {
                self.act(Action::Tell(Event::Killed));
                self.act(Action::KillAll { pid: running.main });
                // It may take a while, or somebody else may take over: once more, later.
                let limit = self.settings.stop_timeout.unwrap_or_default().max(KILL_AGAIN_MIN);
                let kill_at_ms = Some(now_ms.saturating_add(ms(limit)));
                self.phase = Phase::Running(Running { kill_at_ms, ..running });
            }
            Phase::Running(running) if over(self.start_limit_ms(&running)) => {
                self.act(Action::Tell(Event::NotReady));
                self.act(Action::KillAll { pid: running.main });
                self.phase = Phase::Running(Running { ending: Some(Ending::TooLate), ..running });
            }
            Phase::Running(running) if over(self.assumed_ready_ms(&running)) => self.ready(running, now_ms),
            Phase::Running(running) if over(self.watchdog_limit_ms(&running)) => {
                self.act(Action::Tell(Event::Silent));
                self.act(Action::KillHung { pid: running.main });
                self.phase = Phase::Running(Running { heard_ms: now_ms, ..running });
            }
            _ => {}
        }
        if let (true, Some(interval)) = (over(self.alive_at_ms), self.settings.alive_interval) {
            self.alive_at_ms = Some(now_ms.saturating_add(ms(interval)));
            self.act(Action::Tell(Event::Alive));
        }
    }
}
