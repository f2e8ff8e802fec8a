//! The root: makes the processes, does what the [machine](super::machine) says, and tells it what has happened.

use super::channels::{self, Kept};
use super::machine::{Action, Input, Machine};
use super::plan::Plan;
use super::report::Report;
use super::{Member, Recovery, Seat};
use crate::board::{Board, Cause, UpgradeEnd, WhyNot};
use crate::death::Death;
use crate::policy::Policy;
use crate::supervisor::{Watch, upgrade_signal};
use crate::sys::mapping::Mapping;
use crate::sys::process::{self, Ended, Pid, Side};
use crate::sys::signals::{self, Mask, Waited};
use crate::sys::{clock, family};
use crate::zygote::{Common, GAVE_UP_CODE, say};
use crate::{Error, STOP_SIGNALS};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a supervisor is told what has happened.
const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// Until there is another try to make a process, where the last one has failed.
const START_PAUSE: Duration = Duration::from_millis(10);

/// What the root knows of one process.
#[derive(Debug, Default)]
struct Below {
    zygote: Option<Pid>,
    /// Generations that a zygote has left which was killed.
    orphans: Vec<Pid>,
    /// How the last of all of them has ended that has served.
    last: Option<Death>,
    /// That was an end that nobody has asked for.
    has_crashed: bool,
    /// The last generation that was seen to serve.
    generation: u32,
}

struct Root {
    plan: Plan,
    machine: Machine,
    commons: Vec<Common>,
    channels: Vec<Kept>,
    below: Vec<Below>,
    /// To be made as soon as that is possible.
    lacking: Vec<usize>,
    report: Option<Report>,
    mask: Mask,
    pid: Pid,
    watch: Option<Watch>,
}

/// Makes all processes. Returns in each of them.
pub(super) fn split(plan: &Plan) -> Result<Member, Error> {
    let system = |what| move |error| Error::system(what, error);
    let supervisor = Board::of_supervisor_alone();
    // What an operator says counts more than what a programmer has thought of.
    let over = |own: Policy| supervisor.map_or(own, |board| board.policy_over(own));
    let policy = |role: usize| over(plan.roles.get(role).map(|role| role.policy).unwrap_or_default());
    let mut commons = Vec::new();
    for process in &plan.processes {
        let board = match supervisor {
            Some(_) => Board::for_root(&policy(process.role)),
            None => Board::private(),
        };
        let common = Common::new(board.map_err(system("map memory for all generations"))?)?;
        // Each process has its own, and cannot damage that of another one.
        common.set_inherited(false).map_err(system("keep memory from other processes"))?;
        commons.push(common);
    }
    let name = |process: &super::plan::Process| {
        (plan.roles.get(process.role).map_or("", |role| &role.name), process.index)
    };
    let names: Vec<_> = plan.processes.iter().map(name).collect();
    let channels = channels::open(&plan.channels, &names, &commons)
        .map_err(system("make channels between processes"))?;
    // Generations whose zygote is killed are this process's children then.
    family::adopt_orphans().map_err(system("adopt orphans"))?;
    let mask = signals::hold_all().map_err(system("hold signals back"))?;
    let root = Root {
        machine: Machine::new(plan, over),
        below: plan.processes.iter().map(|_| Below::default()).collect(),
        plan: plan.clone(),
        commons,
        channels,
        lacking: Vec::new(),
        report: supervisor.map(|supervisor| Report::new(supervisor, plan)),
        mask,
        pid: process::pid(),
        watch: Watch::begin(),
    };
    root.run(supervisor)
}

impl Root {
    /// As long as the program lasts. Returns in the processes.
    fn run(mut self, supervisor: Option<&'static Board>) -> Result<Member, Error> {
        loop {
            for action in self.machine.actions() {
                if let Some(process) = self.act(action) {
                    return self.into_member(process);
                }
            }
            if let Some(process) = self.provide() {
                return self.into_member(process);
            }
            if self.bury() || self.look() {
                continue;
            }
            let Waited::Arrived(arrived) = signals::wait_for(self.patience()) else {
                self.machine.on(Input::Time, clock::monotonic_ms());
                Watch::tell_once(&mut self.watch, say);
                continue;
            };
            if arrived.number == upgrade_signal() {
                // Which has a meaning only where there is a board; and nobody may get it who does not know it.
                refuse_upgrade(supervisor);
            } else if arrived.number != libc::SIGCHLD {
                let (number, by_process) = (arrived.number, arrived.by_process);
                self.machine.on(Input::Signal { number, by_process }, clock::monotonic_ms());
            }
        }
    }

    fn patience(&self) -> Option<Duration> {
        let left = |at_ms: u64| Duration::from_millis(at_ms.saturating_sub(clock::monotonic_ms()));
        let deadline = self.machine.deadline_ms().map(left);
        // Generations with other privileges cannot send this process a signal.
        let together = self.plan.roles.iter().any(|role| role.recovery == Recovery::Together);
        let report = (together || self.report.is_some()).then_some(REPORT_PAUSE);
        let start = (!self.lacking.is_empty()).then_some(START_PAUSE);
        [deadline, report, start].into_iter().flatten().min()
    }

    /// Gives, in a new process, which that is.
    fn act(&mut self, action: Action) -> Option<usize> {
        match action {
            Action::Start { process } => self.lacking.push(process),
            Action::Signal { process, number } => self.signal(process, number),
            Action::Renew { process, generation } => self.renew(process, generation),
            Action::Forget { process } => self.channels.retain(|kept| kept.process != process),
            Action::Say(what) => say(&what),
            Action::Exit { code } => self.exit(code),
        }
        None
    }

    /// Makes those that should be there. What is not possible now is tried again: the others must not suffer from it.
    fn provide(&mut self) -> Option<usize> {
        while let Some(&process) = self.lacking.first() {
            let common = *self.commons.get(process)?;
            // If that is not possible, there is no process.
            let side = common.set_inherited(true).and_then(|()| process::fork());
            if matches!(side, Ok(Side::Child)) {
                return Some(process);
            }
            let _ = common.set_inherited(false);
            let Ok(Side::Parent(pid)) = side else { break };
            self.lacking.remove(0);
            if let Some(below) = self.below.get_mut(process) {
                below.zygote = Some(pid);
            }
        }
        None
    }

    /// In a new process.
    fn into_member(self, number: usize) -> Result<Member, Error> {
        let (Some(process), Some(common)) = (self.plan.processes.get(number), self.commons.get(number))
        else {
            process::exit_now(1);
        };
        let role = self.plan.roles.get(process.role);
        let channels =
            self.channels.into_iter().filter(|kept| kept.process == number).map(Kept::give).collect();
        let seat = Seat { name: process.name.clone(), root: self.pid, channels };
        let watched = seat.watch_root().and_then(|()| self.mask.restore());
        watched.map_err(|error| Error::system("watch the process that looks after this one", error))?;
        if process::parent() != self.pid {
            process::exit_now(1);
        }
        Ok(Member {
            role: role.map(|role| role.name.clone()).unwrap_or_default(),
            index: process.index,
            number,
            policy: role.map_or_else(Policy::default, |role| role.policy),
            common: *common,
            seat,
        })
    }

    fn signal(&self, process: usize, number: i32) {
        let (Some(below), Some(common)) = (self.below.get(process), self.commons.get(process)) else {
            return;
        };
        if STOP_SIGNALS.contains(&number) {
            // Before it is sent: whoever dies of it is not to be succeeded.
            common.control.stop_signal.store(number.cast_unsigned(), Ordering::SeqCst);
        }
        for pid in below.zygote.iter().chain(&below.orphans) {
            let _ = process::kill(*pid, number);
        }
    }

    /// Kills a generation, if it still is one. Which process that is stands in memory that a crash may have overwritten.
    fn renew(&self, process: usize, generation: u32) {
        let (Some(below), Some(common)) = (self.below.get(process), self.commons.get(process)) else {
            return;
        };
        let Some(pid) = common.board.past(generation).and_then(|past| Pid::try_from(past.pid).ok()) else {
            return;
        };
        let is_its_child = below.zygote.is_some() && family::parent_of_living(pid) == below.zygote;
        if is_its_child || below.orphans.contains(&pid) {
            let _ = process::kill(pid, libc::SIGKILL);
        }
    }

    /// Buries who has ended. Whether there was somebody.
    fn bury(&mut self) -> bool {
        let mut somebody = false;
        while let Some(ended) = process::reap() {
            somebody = true;
            let is_of = |below: &Below| below.zygote == Some(ended.pid) || below.orphans.contains(&ended.pid);
            if let Some(process) = self.below.iter().position(is_of) {
                self.on_end(process, ended);
            }
        }
        somebody
    }

    fn on_end(&mut self, process: usize, ended: Ended) {
        let death = Death::from_status(ended.status);
        let is_zygote = self.below.get(process).is_some_and(|below| below.zygote == Some(ended.pid));
        let orphans = match death {
            Death::Signal(_) if is_zygote => self.orphans(process),
            // Its generations have ended before it.
            _ => Vec::new(),
        };
        let (Some(below), Some(common)) = (self.below.get_mut(process), self.commons.get(process)) else {
            return;
        };
        if is_zygote {
            below.zygote = None;
            let stop_signal = common.control.stop_signal.load(Ordering::SeqCst).cast_signed();
            if stop_signal != 0 {
                // It was sent to somebody who could not pass it on any more.
                for orphan in &orphans {
                    let _ = process::kill(*orphan, stop_signal);
                }
            }
            below.orphans = orphans;
            (below.last, below.has_crashed) = (Some(death), matches!(death, Death::Signal(_)));
        } else {
            below.orphans.retain(|pid| *pid != ended.pid);
            if let Some(number) = common.control.number_of(ended.pid.cast_unsigned()) {
                let cause = match death {
                    death if common.control.is_end_as_told(death) => Cause::Ended,
                    Death::Signal(libc::SIGKILL) => Cause::Killed,
                    _ => Cause::Crash,
                };
                common.board.note_end(number, Some(ended.status), cause);
                // Whoever stood by ends as it finds the one before, and says nothing of how that was.
                if death != Death::Exited(GAVE_UP_CODE) {
                    below.last = Some(death);
                    below.has_crashed = death != Death::Exited(0) && !common.control.is_end_as_told(death);
                }
            }
        }
        if below.orphans.is_empty()
            && let Some(death) = below.last
        {
            // A generation may have ended with its zygote, which would have told.
            let last = common.board.past(common.board.generation());
            if let Some(last) = last.filter(|last| last.ended_ms.is_none()) {
                common.board.note_end(last.number, Some(death.status()), Cause::Killed);
            }
            let input = match below.has_crashed {
                true => Input::Lost { process, death },
                false => Input::Ended { process, death },
            };
            self.machine.on(input, clock::monotonic_ms());
        }
    }

    /// Children of this process that the zygote of `process` has left: several zygotes may have died before one of them is
    /// buried. They are noted in memory that no other process has, and have that memory, which cannot be seen where they have
    /// other privileges than this process. Those that have ended are among them, until they are buried.
    fn orphans(&self, process: usize) -> Vec<Pid> {
        let common = self.commons.get(process);
        let Some(Common { control, .. }) = common else { return Vec::new() };
        let memory = Mapping::at(*control);
        let is_its = |pid: &Pid| {
            control.was_split(pid.cast_unsigned()) || memory.as_ref().is_some_and(|memory| memory.is_in(*pid))
        };
        let is_known = |pid: &Pid| {
            self.below.iter().any(|below| below.zygote == Some(*pid) || below.orphans.contains(pid))
        };
        let children = family::children(self.pid).into_iter();
        children.filter(|pid| !is_known(pid) && is_its(pid)).collect()
    }

    /// At what the processes have written down. Whether there is something to do.
    fn look(&mut self) -> bool {
        if let Some(report) = &mut self.report {
            report.look(&self.plan, &self.commons);
        }
        let serving: Vec<u32> = self.commons.iter().map(|common| common.board.generation()).collect();
        let mut something = false;
        for (process, (below, now)) in self.below.iter_mut().zip(&serving).enumerate() {
            let before = std::mem::replace(&mut below.generation, *now);
            if *now > before && *now > 1 {
                something = true;
                let serving = serving.clone();
                self.machine.on(Input::Succeeded { process, serving }, clock::monotonic_ms());
            }
        }
        something
    }

    /// Nobody is left behind.
    fn exit(&mut self, code: i32) -> ! {
        let zygotes = self.below.iter().filter_map(|below| below.zygote);
        let mut left: Vec<Pid> =
            zygotes.chain(self.below.iter().flat_map(|below| below.orphans.clone())).collect();
        while !left.is_empty() {
            // A zygote first: whoever it leaves is not succeeded for long.
            for pid in left {
                let _ = process::kill(pid, libc::SIGKILL);
                let _ = process::await_end(pid);
                if let Some(below) = self.below.iter_mut().find(|below| below.zygote == Some(pid)) {
                    below.zygote = None;
                }
            }
            left = (0..self.below.len()).flat_map(|process| self.orphans(process)).collect();
        }
        self.look();
        process::exit_now(code)
    }
}

/// The wish for another binary, if there is one.
fn refuse_upgrade(supervisor: Option<&Board>) {
    if let Some((board, wish)) = supervisor.and_then(|board| Some((board, board.upgrade_wanted()?))) {
        say("a program with roles cannot be upgraded without a restart");
        board.note_upgrade(wish.number, UpgradeEnd::untouched(WhyNot::Unable));
    }
}
