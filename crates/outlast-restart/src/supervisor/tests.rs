//! The state machine under many schedules.

use super::machine::{Action, Input, Machine};
use super::settings::{Readiness, Restart, Settings};
use super::{Event, Outcome};
use crate::death::Death;
use crate::policy::Policy;
use std::time::Duration;

/// Small and repeatable (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

const STOP_TIMEOUT_MS: u64 = 2_000;
const START_TIMEOUT_MS: u64 = 1_000;
const WATCHDOG_TIMEOUT_MS: u64 = 500;

fn settings(random: &mut Random) -> Settings {
    let some = |random: &mut Random, ms| random.one_in(2).then(|| Duration::from_millis(ms));
    Settings {
        policy: Policy { intensity: 1 + usize::try_from(random.below(4)).unwrap(), ..Policy::default() },
        restart: [Restart::OnFailure, Restart::Always, Restart::Never]
            [usize::try_from(random.below(3)).unwrap()],
        readiness: if random.one_in(2) { Readiness::Started } else { Readiness::Told },
        stop_timeout: Some(Duration::from_millis(STOP_TIMEOUT_MS)),
        start_timeout: some(random, START_TIMEOUT_MS),
        assume_ready_after: some(random, 900),
        watchdog_timeout: some(random, WATCHDOG_TIMEOUT_MS),
        alive_interval: some(random, 700),
        ..Settings::default()
    }
}

/// What the machine acts upon: one program, that dies of its own or does as it is told, or not.
struct World {
    machine: Machine,
    random: Random,
    now_ms: u64,
    next_pid: u32,
    main: Option<u32>,
    /// It dies of this soon.
    doomed: Option<Death>,
    /// It hears nothing but SIGKILL.
    stubborn: bool,
    stop_told_ms: Option<u64>,
    outcome: Option<Outcome>,
    starts: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let stubborn = random.one_in(4);
        let machine = Machine::new(settings(&mut random), 0);
        let (now_ms, next_pid) = (0, 100);
        let (main, doomed, stop_told_ms, outcome, starts) = (None, None, None, None, 0);
        Self { machine, random, now_ms, next_pid, main, doomed, stubborn, stop_told_ms, outcome, starts }
    }

    fn pid(&mut self) -> u32 {
        self.next_pid += 1;
        self.next_pid
    }

    fn feed(&mut self, input: Input) {
        let actions = self.machine.on(input, self.now_ms);
        assert!(self.outcome.is_none() || actions.is_empty(), "it acts after its end: {actions:?}");
        for action in actions {
            self.carry_out(action);
        }
        assert_eq!(self.machine.main(), self.main);
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Start => {
                assert_eq!(self.main, None, "two programs at a time");
                assert_eq!(self.stop_told_ms, None, "started after it was to end");
                self.starts += 1;
                if self.random.one_in(8) {
                    self.feed(Input::CannotStart { code: libc::ENOENT });
                } else {
                    let pid = self.pid();
                    self.main = Some(pid);
                    self.doomed = None;
                    self.feed(Input::Started { pid });
                }
            }
            Action::Signal { pid, number } => {
                assert_eq!(Some(pid), self.main, "a signal to somebody else");
                if !self.stubborn && number != libc::SIGHUP {
                    self.doomed = Some(Death::Signal(number));
                }
            }
            Action::KillAll { pid } | Action::KillHung { pid } => {
                assert_eq!(Some(pid), self.main, "somebody else is killed");
                self.doomed = Some(Death::Signal(libc::SIGKILL));
            }
            Action::Sleep | Action::Tell(_) => {}
            Action::End(outcome) => {
                assert_eq!(self.main, None, "it leaves a program behind");
                self.outcome = Some(outcome);
            }
        }
    }

    fn die(&mut self, death: Death, heir: Option<u32>) {
        self.doomed = None;
        self.main = heir;
        let input = match self.random.below(8) {
            0 | 1 if heir.is_none() => Input::DiedOnTrial { death },
            2 if heir.is_none() && death == Death::Exited(0) => Input::Vanished { death },
            3 if heir.is_none() && death == Death::Exited(0) => Input::Hindered { death },
            _ => Input::Died { death, heir },
        };
        self.feed(input);
    }

    fn step(&mut self) {
        let deadline_ms = self.machine.deadline_ms();
        if let Some(deadline_ms) = deadline_ms.filter(|at_ms| *at_ms <= self.now_ms + 400) {
            self.now_ms = self.now_ms.max(deadline_ms);
            self.feed(Input::Time);
            let next_ms = self.machine.deadline_ms();
            assert!(self.outcome.is_some() || next_ms.is_none_or(|at_ms| at_ms > self.now_ms), "it spins");
        } else {
            self.now_ms += self.random.below(400);
        }
        if let Some(death) = self.doomed.filter(|_| self.random.one_in(2)) {
            let heir = self.random.one_in(16).then(|| self.pid());
            return self.die(death, heir.filter(|_| self.main.is_some()));
        }
        match self.random.below(12) {
            0 if self.main.is_some() => {
                let deaths = [Death::Signal(libc::SIGSEGV), Death::Exited(3), Death::Exited(0)];
                let death = deaths[usize::try_from(self.random.below(3)).unwrap()];
                let heir = self.random.one_in(3).then(|| self.pid());
                self.die(death, heir);
            }
            1 if self.main.is_some() => self.feed(Input::Ready),
            2..=5 if self.main.is_some() => self.feed(Input::SignOfLife),
            6 => self.feed(Input::Signal { number: libc::SIGHUP, by_process: true }),
            7 if self.random.one_in(3) => self.feed(Input::Replace),
            8 if self.random.one_in(12) => self.stop(),
            9 if self.random.one_in(6) => self.feed(Input::Undo),
            _ => {}
        }
    }

    fn stop(&mut self) {
        if self.outcome.is_none() {
            self.stop_told_ms.get_or_insert(self.now_ms);
            self.feed(Input::Signal { number: libc::SIGTERM, by_process: true });
        }
    }
}

#[test]
fn whatever_happens_there_is_one_program_at_a_time_and_an_end_when_it_is_told() {
    let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
    for seed in 0..20_000 {
        let mut world = World::new(seed);
        world.machine.start();
        world.feed(Input::Time);
        for _ in 0..200 {
            if world.outcome.is_some() {
                break;
            }
            world.step();
        }
        world.stop();
        let told_ms = world.now_ms;
        while world.outcome.is_none() {
            world.step();
            // Heirs may come a few times; each is told, and killed in the end.
            assert!(world.now_ms < told_ms + 20 * STOP_TIMEOUT_MS, "seed {seed}: it does not end");
        }
        let outcome = world.outcome.unwrap();
        // Nothing follows the end.
        world.feed(Input::Time);
        world.feed(Input::Signal { number: libc::SIGHUP, by_process: true });
        let name = format!("{outcome:?}");
        *outcomes.entry(name.split(['(', ' ']).next().unwrap().to_owned()).or_default() += 1;
    }
    // All ways to end were gone.
    for outcome in ["Finished", "Stopped", "GaveUp", "Ended", "NotReady", "CannotStart"] {
        assert!(outcomes.contains_key(outcome), "{outcome} was never reached: {outcomes:?}");
    }
}

fn machine(settings: Settings) -> Machine {
    let mut machine = Machine::new(settings, 0);
    machine.start();
    assert_eq!(machine.on(Input::Time, 0), [Action::Start]);
    machine.on(Input::Started { pid: 7 }, 0);
    machine
}

#[test]
fn whoever_lives_on_is_the_program_and_hears_what_the_dead_one_was_told() {
    let mut machine = machine(Settings::default());
    let death = Death::Signal(libc::SIGSEGV);
    let told = machine.on(Input::Died { death, heir: Some(8) }, 5);
    assert_eq!(told, [Action::Tell(Event::Succeeded { death, pid: 8 })]);
    let told = machine.on(Input::Signal { number: libc::SIGTERM, by_process: true }, 6);
    assert_eq!(told.last(), Some(&Action::Signal { pid: 8, number: libc::SIGTERM }));
    let told = machine.on(Input::Died { death, heir: Some(9) }, 7);
    assert_eq!(told.last(), Some(&Action::Signal { pid: 9, number: libc::SIGTERM }));
    let end = machine.on(Input::Died { death: Death::Signal(libc::SIGTERM), heir: None }, 8);
    assert_eq!(end.last(), Some(&Action::End(Outcome::Stopped(Death::Signal(libc::SIGTERM)))));
}

#[test]
fn who_goes_into_the_background_and_is_not_there_has_crashed() {
    let mut machine = machine(Settings::default());
    let (in_order, failed) = (Death::Exited(0), Death::Exited(1));
    assert!(!machine.awaits_background());
    machine.on(Input::Died { death: in_order, heir: Some(8) }, 1);
    // It is there: its end in order is one.
    assert!(!machine.awaits_background());
    let told = machine.on(Input::Died { death: Death::Signal(libc::SIGKILL), heir: None }, 2);
    assert_eq!(told.last(), Some(&Action::Start));
    machine.on(Input::Started { pid: 9 }, 3);
    assert!(machine.awaits_background());
    let told = machine.on(Input::Vanished { death: failed }, 4);
    assert!(told.contains(&Action::Tell(Event::Vanished)), "{told:?}");
    let pause_ms = machine.deadline_ms().unwrap();
    assert_eq!(machine.on(Input::Time, pause_ms), [Action::Start]);
    machine.on(Input::Started { pid: 10 }, pause_ms);
    machine.on(Input::Died { death: in_order, heir: Some(11) }, pause_ms + 1);
    let end = machine.on(Input::Died { death: in_order, heir: None }, pause_ms + 2);
    assert_eq!(end.last(), Some(&Action::End(Outcome::Finished)));
}

#[test]
fn who_was_told_to_end_or_is_not_to_be_started_again_has_not_crashed() {
    let death = Death::Exited(0);
    for end in [Input::Vanished { death }, Input::Hindered { death }] {
        let mut told = machine(Settings::default());
        told.on(Input::Signal { number: libc::SIGTERM, by_process: true }, 1);
        assert_eq!(told.on(end, 2).last(), Some(&Action::End(Outcome::Finished)));
        let mut once = machine(Settings { restart: Restart::Never, ..Settings::default() });
        assert_eq!(once.on(end, 1).last(), Some(&Action::End(Outcome::Finished)));
        let mut again = machine(Settings::default());
        let told = again.on(end, 1);
        assert!(told.iter().any(|action| matches!(action, Action::Tell(Event::Crashed { .. }))), "{told:?}");
    }
}

#[test]
fn signals_of_a_terminal_are_not_doubled() {
    let mut machine = machine(Settings::default());
    assert_eq!(machine.on(Input::Signal { number: libc::SIGINT, by_process: false }, 1), []);
    assert_eq!(machine.on(Input::Signal { number: libc::SIGTSTP, by_process: false }, 2), [Action::Sleep]);
    let end = machine.on(Input::Died { death: Death::Signal(libc::SIGINT), heir: None }, 3);
    assert_eq!(end.last(), Some(&Action::End(Outcome::Stopped(Death::Signal(libc::SIGINT)))));
}

#[test]
fn an_interrupt_leaves_it_to_the_program_whether_it_ends() {
    let interrupt = |machine: &mut Machine, number, at_ms| {
        let told = machine.on(Input::Signal { number, by_process: true }, at_ms);
        assert_eq!(told, [Action::Signal { pid: 7, number }], "nothing but passed on");
        assert_eq!(machine.deadline_ms(), None, "it is killed some day");
        assert!(machine.told_ms().is_none() && machine.can_replace());
    };
    let (int, quit) = (libc::SIGINT, libc::SIGQUIT);
    for (number, death, after_ms, ends) in [
        // In order, soon; or unmistakably by that, at any time.
        (int, Death::Exited(1), 10, Some(Outcome::Stopped(Death::Exited(1)))),
        (int, Death::Exited(0), 10, Some(Outcome::Finished)),
        (int, Death::Signal(int), 60_000, Some(Outcome::Stopped(Death::Signal(int)))),
        (quit, Death::Exited(131), 60_000, Some(Outcome::Stopped(Death::Exited(131)))),
        (quit, Death::Exited(0), 10, Some(Outcome::Finished)),
        (quit, Death::Signal(quit), 10, Some(Outcome::Stopped(Death::Signal(quit)))),
        // It has written down its threads, and has crashed.
        (quit, Death::Exited(1), 10, None),
        // It has gone on, and has crashed.
        (quit, Death::Exited(1), 60_000, None),
        (quit, Death::Signal(libc::SIGKILL), 10, None),
        (int, Death::Signal(libc::SIGSEGV), 10, None),
        (int, Death::Signal(libc::SIGABRT), 10, None),
        (int, Death::Signal(quit), 10, None),
    ] {
        let mut machine = machine(Settings::default());
        interrupt(&mut machine, number, 5);
        let told = machine.on(Input::Died { death, heir: None }, 5 + after_ms);
        let last = ends.map_or(Action::Start, Action::End);
        assert_eq!(told.last(), Some(&last), "{number} {death:?} after {after_ms} ms");
        // Whatever else it has started is to end, too.
        assert_eq!(machine.told_ms(), ends.map(|_| 5));
    }
    // Once more, on a terminal; and an end by the first one is none of the next program's.
    let mut machine = machine(Settings { restart: Restart::Always, ..Settings::default() });
    interrupt(&mut machine, int, 5);
    assert_eq!(machine.on(Input::Signal { number: int, by_process: false }, 6), []);
    machine.on(Input::Died { death: Death::Signal(libc::SIGSEGV), heir: None }, 7);
    machine.on(Input::Started { pid: 8 }, 8);
    let told = machine.on(Input::Died { death: Death::Exited(0), heir: None }, 9);
    assert!(!told.iter().any(|action| matches!(action, Action::End(_))), "{told:?}");
}

#[test]
fn a_program_that_tells_its_own_group_to_end_may_go_on() {
    let (int, term) = (libc::SIGINT, libc::SIGTERM);
    for (number, death, ends) in [
        (int, Death::Signal(int), Some(Outcome::Stopped(Death::Signal(int)))),
        (term, Death::Exited(143), Some(Outcome::Stopped(Death::Exited(143)))),
        (term, Death::Exited(0), Some(Outcome::Finished)),
        // It has begun again, and fails at that.
        (int, Death::Exited(1), None),
        (int, Death::Signal(libc::SIGSEGV), None),
        (term, Death::Signal(int), None),
    ] {
        let mut machine = machine(Settings::default());
        assert_eq!(machine.on(Input::OwnSignal { number }, 5), [], "it has heard that");
        assert_eq!((machine.deadline_ms(), machine.told_ms()), (None, None), "it is killed some day");
        let told = machine.on(Input::Died { death, heir: None }, 10);
        assert_eq!(told.last(), Some(&ends.map_or(Action::Start, Action::End)), "{number} {death:?}");
    }
    // Always is always, unless it has died of that.
    let mut machine = machine(Settings { restart: Restart::Always, ..Settings::default() });
    machine.on(Input::OwnSignal { number: int }, 5);
    let told = machine.on(Input::Died { death: Death::Exited(0), heir: None }, 6);
    assert!(!told.iter().any(|action| matches!(action, Action::End(_))), "{told:?}");
}

#[test]
fn the_signal_that_stops_the_program_stops_it_also_if_it_is_an_interrupt() {
    let quit = libc::SIGQUIT;
    for number in [libc::SIGTERM, quit] {
        let settings =
            Settings { stop_signal: quit, stop_timeout: Some(Duration::from_secs(3)), ..Settings::default() };
        let mut machine = machine(settings);
        let told = machine.on(Input::Signal { number, by_process: true }, 1);
        assert_eq!(told.last(), Some(&Action::Signal { pid: 7, number: quit }));
        assert_eq!(machine.deadline_ms(), Some(3_001));
        assert!(machine.told_ms().is_some());
    }
    // A program that is being replaced: who sits in front of it wants neither.
    let mut machine = machine(Settings::default());
    machine.on(Input::Replace, 1);
    let told = machine.on(Input::Signal { number: libc::SIGINT, by_process: false }, 2);
    assert_eq!(told, [Action::Tell(Event::Stopping { number: libc::SIGINT, for_good: true })]);
    assert_eq!(machine.on(Input::Signal { number: libc::SIGINT, by_process: false }, 2), []);
    let death = Death::Signal(libc::SIGTERM);
    let end = machine.on(Input::Died { death, heir: None }, 3);
    assert_eq!(end.last(), Some(&Action::End(Outcome::Stopped(death))));
}

#[test]
fn what_ends_with_its_terminal_is_not_started_again() {
    let hang_up = Death::Signal(libc::SIGHUP);
    let last = |told: &[Death], for_sure, at_ms| {
        let mut machine = machine(Settings::default());
        machine.on(Input::HungUp { for_sure }, 5);
        let mut actions = Vec::new();
        for death in told {
            actions = machine.on(Input::Died { death: *death, heir: None }, at_ms);
        }
        actions.last().copied()
    };
    let over = |death| Some(Action::End(Outcome::Stopped(death)));
    assert_eq!(last(&[hang_up], true, 6), over(hang_up));
    assert_eq!(last(&[hang_up], false, 6), over(hang_up));
    // It has heard, and has said goodbye.
    assert_eq!(last(&[Death::Exited(1)], true, 6), over(Death::Exited(1)));
    // A crash is one all the same; and who has gone on without a terminal is supervised as before.
    assert_eq!(last(&[Death::Signal(libc::SIGSEGV)], true, 6), Some(Action::Start));
    assert_eq!(last(&[Death::Exited(1)], false, 6), Some(Action::Start));
    assert_eq!(last(&[hang_up], true, 60_000), Some(Action::Start));
    // Nobody is there to go on.
    let mut waiting = machine(Settings::default());
    for death in [Death::Exited(3), Death::Exited(3)] {
        waiting.on(Input::Died { death, heir: None }, 1);
        waiting.on(Input::Started { pid: 8 }, 1);
    }
    assert_eq!(waiting.on(Input::HungUp { for_sure: false }, 2), []);
    assert_eq!(waiting.on(Input::HungUp { for_sure: true }, 2), [Action::End(Outcome::Stopped(hang_up))]);
}

#[test]
fn who_does_not_end_in_time_is_killed_again_and_again() {
    let mut machine = machine(Settings { stop_timeout: Some(Duration::from_secs(3)), ..Settings::default() });
    machine.on(Input::Signal { number: libc::SIGTERM, by_process: true }, 10);
    // Asking once more gives it no more time.
    machine.on(Input::Signal { number: libc::SIGTERM, by_process: true }, 2_000);
    assert_eq!(machine.deadline_ms(), Some(3_010));
    assert_eq!(machine.on(Input::Time, 3_009), []);
    let kill = [Action::Tell(Event::Killed), Action::KillAll { pid: 7 }];
    assert_eq!(machine.on(Input::Time, 3_010), kill);
    assert_eq!(machine.on(Input::Time, 6_010), kill);
}

#[test]
fn silence_is_a_hang_once_it_is_ready() {
    let watched = Settings {
        readiness: Readiness::Told,
        watchdog_timeout: Some(Duration::from_secs(1)),
        ..Settings::default()
    };
    let mut machine = machine(watched);
    assert_eq!(machine.deadline_ms(), None);
    machine.on(Input::Ready, 500);
    machine.on(Input::SignOfLife, 1_400);
    assert_eq!(machine.on(Input::Time, 1_500), []);
    let told = machine.on(Input::Time, 2_400);
    assert_eq!(told, [Action::Tell(Event::Silent), Action::KillHung { pid: 7 }]);
}

#[test]
fn a_replaced_program_is_stopped_and_started_and_that_is_no_crash() {
    let mut machine = machine(Settings { restart: Restart::Never, ..Settings::default() });
    let told = machine.on(Input::Replace, 1);
    assert_eq!(told.last(), Some(&Action::Signal { pid: 7, number: libc::SIGTERM }));
    let told = machine.on(Input::Died { death: Death::Signal(libc::SIGTERM), heir: None }, 2);
    assert_eq!(told.last(), Some(&Action::Start));
}

#[test]
fn what_does_not_serve_in_another_ones_place_is_killed_and_that_is_started() {
    let never = || Settings { restart: Restart::Never, ..Settings::default() };
    let mut one = machine(never());
    assert_eq!(one.on(Input::Undo, 1), [Action::KillAll { pid: 7 }]);
    let killed = Death::Signal(libc::SIGKILL);
    assert_eq!(one.on(Input::Died { death: killed, heir: None }, 2).last(), Some(&Action::Start));
    let mut one = machine(never());
    let death = Death::Exited(0);
    assert_eq!(one.on(Input::DiedOnTrial { death }, 1).last(), Some(&Action::Start));
    // Not after it was told to end.
    let mut one = machine(never());
    one.on(Input::Signal { number: libc::SIGTERM, by_process: true }, 1);
    assert_eq!(one.on(Input::Undo, 2), []);
    let end = one.on(Input::DiedOnTrial { death }, 3);
    assert_eq!(end.last(), Some(&Action::End(Outcome::Finished)));
    // Nor if it ends for an interrupt.
    let mut one = machine(never());
    one.on(Input::Signal { number: libc::SIGINT, by_process: false }, 1);
    let death = Death::Signal(libc::SIGINT);
    let end = one.on(Input::DiedOnTrial { death }, 2);
    assert_eq!(end.last(), Some(&Action::End(Outcome::Stopped(death))));
}

#[test]
fn a_start_that_waits_for_who_is_in_the_way_is_called_off_when_it_is_told_to_end() {
    let mut machine = machine(Settings::default());
    let told = machine.on(Input::Died { death: Death::Exited(3), heir: None }, 1);
    assert_eq!(told.last(), Some(&Action::Start));
    assert_eq!(machine.on(Input::Time, 2), []);
    let end = machine.on(Input::Signal { number: libc::SIGTERM, by_process: true }, 3);
    assert_eq!(end, [Action::End(Outcome::Stopped(Death::Signal(libc::SIGTERM)))]);
}

#[test]
fn what_has_once_said_that_it_serves_is_not_taken_for_ready_later() {
    let settings = || Settings {
        readiness: Readiness::Board,
        assume_ready_after: Some(Duration::from_secs(10)),
        ..Settings::default()
    };
    let is_ready = |told: &[Action]| told.contains(&Action::Tell(Event::Ready));
    let again = |machine: &mut Machine| {
        machine.on(Input::Replace, 20_000);
        machine.on(Input::Died { death: Death::Signal(libc::SIGTERM), heir: None }, 20_001);
        machine.on(Input::Started { pid: 8 }, 20_002);
    };
    // One that never says so is, in each start.
    let mut silent = machine(settings());
    assert!(is_ready(&silent.on(Input::Time, 10_000)));
    again(&mut silent);
    assert!(is_ready(&silent.on(Input::Time, 30_002)));
    // One that listens, also if that took it longer, has to listen again.
    for (is_late, at_ms) in [(false, 5), (true, 12_000)] {
        let mut one = machine(settings());
        assert!(!is_late || is_ready(&one.on(Input::Time, 10_000)));
        assert_eq!(is_ready(&one.on(Input::Ready, at_ms)), !is_late);
        again(&mut one);
        assert_eq!(one.deadline_ms(), None);
        assert!(!is_ready(&one.on(Input::Time, 30_002)) && is_ready(&one.on(Input::Ready, 90_000)));
    }
}
