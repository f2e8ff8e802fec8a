//! What the root does next: pure. What has happened goes in with the time, what is to be done comes out.

use super::END_TIMEOUT;
use super::plan::Plan;
use crate::STOP_SIGNALS;
use crate::death::Death;
use crate::policy::{Decision, Inheritance, Policy, Restarts};

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Nothing is left of a process: its zygote and its generations have ended, so.
    Ended { process: usize, death: Death },
    /// Likewise, and nobody has decided that: its zygote was killed, and each generation that it left, or these have crashed.
    Lost { process: usize, death: Death },
    /// A generation has died, and another one serves. `serving`: which serve in all processes.
    Succeeded { process: usize, serving: Vec<u32> },
    /// The root got a signal; from a process, or from a terminal, whose signals go to everybody in front of it.
    Signal { number: i32, by_process: bool },
    /// Nothing but time has passed.
    Time,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Make the process.
    Start {
        process: usize,
    },
    Signal {
        process: usize,
        number: i32,
    },
    /// Kill the generation with this number, which is succeeded.
    Renew {
        process: usize,
        generation: u32,
    },
    /// The process is not missed: nobody needs its channels.
    Forget {
        process: usize,
    },
    Say(String),
    /// Kill whatever is left, and end with this code.
    Exit {
        code: i32,
    },
}

/// The root's state.
pub(super) struct Machine {
    plan: Plan,
    /// Of those whose zygote was lost with everything below it.
    restarts: Vec<Restarts>,
    alive: Vec<bool>,
    /// Deaths of generations up to these numbers have had their consequences.
    renewed: Vec<u32>,
    ending: Option<Ending>,
    actions: Vec<Action>,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    /// None: that of the first process.
    code: Option<i32>,
    /// None: they may take their time, as whoever has told us to end may.
    kill_at_ms: Option<u64>,
}

impl Machine {
    /// The first thing to do is to make all processes.
    ///
    /// `over`: what holds for a role with a policy of its own.
    pub(super) fn new(plan: &Plan, over: impl Fn(Policy) -> Policy) -> Self {
        let of = |process: &super::plan::Process| plan.roles.get(process.role).map(|role| role.policy);
        let policies = plan.processes.iter().map(|process| over(of(process).unwrap_or_default()));
        let count = plan.processes.len();
        Self {
            restarts: policies.map(Restarts::new).collect(),
            plan: plan.clone(),
            alive: vec![true; count],
            renewed: vec![0; count],
            ending: None,
            actions: (0..count).map(|process| Action::Start { process }).collect(),
        }
    }

    /// When [`Input::Time`] is to come at the latest.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        self.ending?.kill_at_ms
    }

    /// What is to be done, in this order, from the beginning or since it was asked last.
    pub(super) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Takes in what has happened at `now_ms`, which does not fall.
    pub(super) fn on(&mut self, input: Input, now_ms: u64) {
        match input {
            Input::Lost { process, death } if self.ending.is_none() => self.lost(process, death, now_ms),
            Input::Lost { process, death } | Input::Ended { process, death } => {
                self.ended(process, death, now_ms)
            }
            Input::Succeeded { process, serving } => self.succeeded(process, &serving),
            Input::Signal { number, by_process } => self.signal(number, by_process),
            Input::Time if self.deadline_ms().is_some_and(|at_ms| now_ms >= at_ms) => {
                self.say("not all processes have ended in time: they are killed".to_owned());
                self.exit();
            }
            Input::Time => {}
        }
    }

    fn say(&mut self, what: String) {
        self.actions.push(Action::Say(what));
    }

    fn name(&self, process: usize) -> &str {
        self.plan.processes.get(process).map_or("", |process| &process.name)
    }

    fn alive(&self) -> impl Iterator<Item = usize> {
        self.alive.iter().enumerate().filter(|(_, alive)| **alive).map(|(process, _)| process)
    }

    fn exit(&mut self) {
        let code = self.ending.and_then(|ending| ending.code).unwrap_or(0);
        self.actions.push(Action::Exit { code });
    }

    fn ended(&mut self, process: usize, death: Death, now_ms: u64) {
        if let Some(alive) = self.alive.get_mut(process) {
            *alive = false;
        }
        let code = match death {
            Death::Exited(code) => code,
            Death::Signal(_) => death.exit_code(),
        };
        match &mut self.ending {
            // However the others end.
            Some(ending) if process == 0 => ending.code = ending.code.or(Some(code)),
            Some(_) => {}
            None if code == 0 && !self.plan.is_of_first_role(process) => {
                self.actions.push(Action::Forget { process })
            }
            None => {
                if code != 0 {
                    self.say(format!(
                        "{} has ended with code {code}: so does the program",
                        self.name(process)
                    ));
                }
                self.end(code, now_ms);
            }
        }
        if self.alive().next().is_none() {
            self.exit();
        }
    }

    /// As a whole: zygote, generations, and its connections.
    fn lost(&mut self, process: usize, death: Death, now_ms: u64) {
        let name = self.name(process).to_owned();
        let decision = self.restarts.get_mut(process).map(|restarts| restarts.on_death(now_ms));
        if decision == Some(Decision::Succeed(Inheritance::Everything)) {
            self.say(format!("{name} has {death}, and nothing is left of it: it is started again"));
            self.actions.push(Action::Start { process });
        } else {
            self.say(format!("{name} has {death} too often: the program ends"));
            if let Some(alive) = self.alive.get_mut(process) {
                *alive = false;
            }
            self.end(death.exit_code(), now_ms);
            if self.alive().next().is_none() {
                self.exit();
            }
        }
    }

    /// All are told to end, which was not asked for from outside.
    fn end(&mut self, code: i32, now_ms: u64) {
        let limit_ms = u64::try_from(END_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        self.ending = Some(Ending { code: Some(code), kill_at_ms: Some(now_ms.saturating_add(limit_ms)) });
        self.signal_all(libc::SIGTERM);
    }

    fn signal_all(&mut self, number: i32) {
        let alive: Vec<usize> = self.alive().collect();
        self.actions.extend(alive.into_iter().map(|process| Action::Signal { process, number }));
    }

    fn signal(&mut self, number: i32, by_process: bool) {
        if STOP_SIGNALS.contains(&number) && self.ending.is_none() {
            self.ending = Some(Ending { code: None, kill_at_ms: None });
        }
        // Those of a terminal all have got already.
        if by_process {
            self.signal_all(number);
        }
    }

    fn succeeded(&mut self, process: usize, serving: &[u32]) {
        let (Some(now), Some(renewed)) = (serving.get(process), self.renewed.get_mut(process)) else {
            return;
        };
        let died = now.saturating_sub(1);
        if died <= *renewed {
            // It was killed for another one, or died as that did.
            return;
        }
        *renewed = died;
        if self.ending.is_some() {
            return;
        }
        let others: Vec<usize> =
            self.alive().filter(|other| self.plan.recover_together(process, *other)).collect();
        for other in others {
            let (Some(&generation), Some(renewed)) = (serving.get(other), self.renewed.get_mut(other)) else {
                continue;
            };
            if generation > *renewed {
                *renewed = generation;
                self.actions.push(Action::Renew { process: other, generation });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::{Recovery, Role, Roles};

    fn machine(recovery: Recovery) -> Machine {
        let roles =
            Roles::new().role(Role::new("master")).role(Role::new("worker").processes(3).recovery(recovery));
        let mut machine = Machine::new(&Plan::of(roles).unwrap(), |own| own);
        assert_eq!(machine.actions(), [0, 1, 2, 3].map(|process| Action::Start { process }));
        machine
    }

    /// What comes of it, but for what is said.
    fn on(machine: &mut Machine, input: Input, now_ms: u64) -> Vec<Action> {
        machine.on(input, now_ms);
        machine.actions().into_iter().filter(|action| !matches!(action, Action::Say(_))).collect()
    }

    fn ended(process: usize, death: Death) -> Input {
        match death {
            Death::Signal(_) => Input::Lost { process, death },
            Death::Exited(_) => Input::Ended { process, death },
        }
    }

    #[test]
    fn one_that_was_left_without_its_zygote_and_fails_is_started_again() {
        let mut machine = machine(Recovery::Alone);
        let lost = |process| Input::Lost { process, death: Death::Exited(1) };
        assert_eq!(on(&mut machine, lost(1), 0), [Action::Start { process: 1 }]);
        assert_eq!(on(&mut machine, lost(0), 0), [Action::Start { process: 0 }]);
        // Not where all are to end.
        let term = Input::Signal { number: libc::SIGTERM, by_process: true };
        assert_eq!(on(&mut machine, term, 1), signals(&[0, 1, 2, 3], libc::SIGTERM));
        assert_eq!(on(&mut machine, lost(1), 2), []);
    }

    fn signals(processes: &[usize], number: i32) -> Vec<Action> {
        processes.iter().map(|&process| Action::Signal { process, number }).collect()
    }

    #[test]
    fn the_program_ends_in_order_with_its_first_role() {
        let mut machine = machine(Recovery::Alone);
        assert_eq!(on(&mut machine, ended(2, Death::Exited(0)), 0), [Action::Forget { process: 2 }]);
        assert_eq!(on(&mut machine, ended(0, Death::Exited(0)), 0), signals(&[1, 3], libc::SIGTERM));
        assert_eq!(on(&mut machine, ended(1, Death::Exited(143)), 1), []);
        assert_eq!(on(&mut machine, ended(3, Death::Signal(15)), 2), [Action::Exit { code: 0 }]);
    }

    #[test]
    fn who_gives_up_ends_all_with_its_code_and_who_does_not_end_is_killed() {
        let mut machine = machine(Recovery::Alone);
        assert_eq!(on(&mut machine, ended(2, Death::Exited(139)), 5), signals(&[0, 1, 3], libc::SIGTERM));
        assert_eq!(on(&mut machine, ended(0, Death::Exited(0)), 5), []);
        assert_eq!(machine.deadline_ms(), Some(10_005));
        assert_eq!(on(&mut machine, Input::Time, 10_004), []);
        assert_eq!(on(&mut machine, Input::Time, 10_005), [Action::Exit { code: 139 }]);
    }

    #[test]
    fn told_to_end_all_are_told_and_may_take_their_time() {
        let mut machine = machine(Recovery::Alone);
        let term = Input::Signal { number: libc::SIGTERM, by_process: true };
        assert_eq!(on(&mut machine, term, 0), signals(&[0, 1, 2, 3], libc::SIGTERM));
        assert_eq!(machine.deadline_ms(), None);
        assert_eq!(on(&mut machine, ended(0, Death::Exited(143)), 0), []);
        // A generation that has crashed meanwhile is nobody's business any more.
        for process in [1, 2] {
            assert_eq!(on(&mut machine, ended(process, Death::Signal(11)), 0), []);
        }
        assert_eq!(on(&mut machine, ended(3, Death::Exited(0)), 0), [Action::Exit { code: 143 }]);
    }

    #[test]
    fn signals_are_passed_on_but_for_those_of_a_terminal() {
        let mut machine = machine(Recovery::Alone);
        let hup = |by_process| Input::Signal { number: libc::SIGHUP, by_process };
        assert_eq!(on(&mut machine, hup(true), 0), signals(&[0, 1, 2, 3], libc::SIGHUP));
        assert_eq!(on(&mut machine, hup(false), 0), []);
        assert_eq!(on(&mut machine, ended(1, Death::Signal(9)), 0), [Action::Start { process: 1 }]);
    }

    #[test]
    fn what_is_lost_as_a_whole_is_started_anew_until_that_is_too_often() {
        let mut machine = machine(Recovery::Alone);
        for now_ms in 0..5 {
            assert_eq!(on(&mut machine, ended(1, Death::Signal(9)), now_ms), [Action::Start { process: 1 }]);
        }
        assert_eq!(on(&mut machine, ended(1, Death::Signal(9)), 5), signals(&[0, 2, 3], libc::SIGTERM));
        for process in [0, 2] {
            assert_eq!(on(&mut machine, ended(process, Death::Exited(143)), 6), []);
        }
        assert_eq!(on(&mut machine, ended(3, Death::Exited(143)), 6), [Action::Exit { code: 137 }]);
    }

    #[test]
    fn those_together_are_renewed_once_for_each_crash() {
        let mut machine = machine(Recovery::Together);
        let mut crash = |process, serving: [u32; 4]| {
            on(&mut machine, Input::Succeeded { process, serving: serving.to_vec() }, 0)
        };
        let renew = |process, generation| Action::Renew { process, generation };
        // A master has nobody of its kind.
        assert_eq!(crash(0, [2, 1, 1, 1]), []);
        assert_eq!(crash(1, [2, 2, 1, 1]), [renew(2, 1), renew(3, 1)]);
        assert_eq!(crash(2, [2, 2, 2, 1]), []);
        assert_eq!(crash(3, [2, 2, 2, 2]), []);
        // Another one has crashed by itself meanwhile: all begin again for both at once.
        assert_eq!(crash(2, [2, 3, 3, 2]), [renew(1, 3), renew(3, 2)]);
        assert_eq!(crash(1, [2, 3, 3, 2]), []);
    }

    /// Whatever happens, it ends when all have, and never before.
    #[test]
    fn every_schedule_ends_with_the_last_process() {
        for seed in 0..2000u64 {
            let mut machine = machine([Recovery::Alone, Recovery::Together][usize::from(seed % 2 == 0)]);
            let (mut state, mut alive, mut now_ms) = (seed, [true; 4], 0);
            let mut below = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            let mut exit = None;
            for _ in 0..10_000 {
                let process = usize::try_from(below(4)).unwrap();
                now_ms += below(2000);
                let input = match below(20) {
                    0 => Input::Signal { number: libc::SIGTERM, by_process: true },
                    1 => Input::Time,
                    2..5 => Input::Succeeded {
                        process,
                        serving: [(); 4].map(|()| u32::try_from(below(50)).unwrap()).to_vec(),
                    },
                    what if alive[process] => {
                        alive[process] = false;
                        ended(
                            process,
                            if what < 8 {
                                Death::Exited(i32::try_from(below(3)).unwrap())
                            } else {
                                Death::Signal(9)
                            },
                        )
                    }
                    _ => continue,
                };
                let timed_out =
                    machine.deadline_ms().is_some_and(|at_ms| now_ms >= at_ms) && input == Input::Time;
                for action in on(&mut machine, input, now_ms) {
                    match action {
                        Action::Start { process } => assert!(!std::mem::replace(&mut alive[process], true)),
                        Action::Signal { process, .. } | Action::Renew { process, .. } => {
                            assert!(alive[process], "seed {seed}")
                        }
                        Action::Exit { code } => exit = Some((code, timed_out)),
                        Action::Forget { .. } | Action::Say(_) => {}
                    }
                }
                if let Some((_, killed)) = exit {
                    assert!(killed || alive == [false; 4], "seed {seed}");
                    break;
                }
                assert_ne!(alive, [false; 4], "seed {seed}");
            }
            assert!(exit.is_some(), "seed {seed}");
        }
    }
}
