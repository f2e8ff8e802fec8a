//! Does what the [machine](super::machine) says, and tells it what has happened.

mod background;
mod change;
mod ending;
mod news;
mod terminal;

use super::copies::{self, Copies};
use super::left;
use super::machine::{Action, Input, Machine};
use super::settings::Readiness;
use super::traces;
use super::{Attempt, Event, Outcome, Supervisor};
use crate::Error;
use crate::board::{Backend, Cause, UpgradeEnd, WhyNot};
use crate::custody::{Custody, StartEnded};
use crate::death::Death;
use crate::policy::Inheritance;
use crate::sys::mapping::Mapping;
use crate::sys::process::{self, Ended, Pid};
use crate::sys::signals::{Arrived, Waited};
use crate::sys::{activation, clock, family, launch, signals};
use change::{Asked, Change};
use ending::Clearing;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;
use terminal::Terminal;

/// Between two looks at the board, which tells nobody when it changes.
const LOOK: Duration = Duration::from_secs(1);
/// While somebody waits for what it will say.
const LOOK_SOON: Duration = Duration::from_millis(5);
/// Who buries a generation knows how it has ended. Not before its memory is written to a core file, which may take long.
const CAUSE_WITHIN_MS: u64 = 100;

/// What a signal to this process has to do with one of the program to its own process group.
enum Echo {
    /// Nothing.
    None,
    /// It is that one, and asks to end.
    ToEnd,
    /// It is that one, and nothing follows.
    Heard,
}

/// Does what the machine says.
pub(super) struct Shell<M, T> {
    supervisor: Supervisor,
    machine: Machine,
    make: M,
    tell: T,
    inputs: VecDeque<Input>,
    /// Another binary than at first.
    program: Option<PathBuf>,
    change: Option<Change>,
    asked: Option<Asked>,
    /// The next start waits for the end of who is left.
    clearing: Option<Clearing>,
    /// Ends when those have that an earlier supervisor has left, and whose listening sockets the program has got.
    predecessors: Option<JoinHandle<()>>,
    /// The last one that was told of.
    generation: u32,
    /// The next one is told of when it is known why the last one has ended, or then.
    cause_until_ms: Option<u64>,
    /// Refused requests that were told of.
    quarantined: u32,
    /// As it was told last.
    inheritance: Inheritance,
    attempt: u32,
    terminal: Terminal,
    /// Has ended, and is looked at when what was told before that has been heard.
    unburied: Option<Ended>,
    /// How the main process has ended last.
    last_end: Option<StartEnded>,
}

/// The kernel's word to this process that its log has become larger than a file may (RLIMIT_FSIZE): the program has nothing to
/// do with that.
fn is_our_own(arrived: &Arrived) -> bool {
    arrived.number == libc::SIGXFSZ && !arrived.by_process
}

impl<M: FnMut(Attempt<'_>) -> Command, T: FnMut(Event)> Shell<M, T> {
    pub(super) fn new(supervisor: Supervisor, make: M, tell: T) -> Self {
        Self {
            machine: Machine::new(supervisor.settings.clone(), clock::monotonic_ms()),
            supervisor,
            make,
            tell,
            inputs: VecDeque::new(),
            program: None,
            change: None,
            asked: None,
            clearing: None,
            predecessors: None,
            last_end: None,
            generation: 0,
            cause_until_ms: None,
            quarantined: 0,
            inheritance: Inheritance::Everything,
            attempt: 0,
            terminal: Terminal::of_this_process(),
            unburied: None,
        }
    }

    /// Until the end.
    pub(super) fn run(&mut self) -> Result<Outcome, Error> {
        self.machine.start();
        self.inputs.push_back(Input::Time);
        loop {
            while let Some(input) = self.inputs.pop_front() {
                for action in self.machine.on(input, clock::monotonic_ms()) {
                    if let Some(outcome) = self.act(action) {
                        return Ok(outcome);
                    }
                }
            }
            if self.bury() {
                continue;
            }
            if let Waited::Arrived(arrived) = signals::wait_for(Some(self.patience()))
                && arrived.number != libc::SIGCHLD
                && !is_our_own(&arrived)
            {
                let heard = match self.echo(&arrived) {
                    Echo::None => {
                        self.pass_on_to_departed(&arrived);
                        self.terminal.hears(&arrived)
                    }
                    Echo::ToEnd => vec![Input::OwnSignal { number: arrived.number }],
                    Echo::Heard => Vec::new(),
                };
                self.inputs.extend(heard);
            }
            self.hear();
            self.look();
            self.go_on_clearing();
            self.inputs.push_back(Input::Time);
        }
    }

    /// Whether the program has told all of its process group, which this process is in: it was meant for the program, and
    /// has reached it. Who asks its workers to end so goes on itself, as lighttpd does to begin again, or is about to end. A
    /// helper that asks by SIGTERM may mean this process alone, and counts, once.
    fn echo(&self, arrived: &Arrived) -> Echo {
        let (number, now_ms) = (arrived.number, clock::monotonic_ms());
        let group = family::group(0);
        // It may have ended since.
        let is_from_program =
            arrived.by_process && family::group(arrived.sender) == group && family::is_ours(arrived.sender);
        if !is_from_program {
            return Echo::None;
        }
        let is_heard = self.machine.is_ending()
            || !crate::STOP_SIGNALS.contains(&number)
            || self.machine.has_interrupted(number, now_ms);
        let main = self.machine.main().map(of);
        let main_has_heard = main.is_some_and(|main| family::group(main) == group);
        match number {
            _ if is_heard => Echo::Heard,
            libc::SIGTERM if main != Some(arrived.sender) => Echo::None,
            _ if main_has_heard => Echo::ToEnd,
            _ => Echo::None,
        }
    }

    /// A program that has begun a session of its own does not hear what people type in front of this process. php-fpm tries that
    /// always; below a shell it fails, as it is the first process of a group there, which it is not here.
    fn pass_on_to_departed(&self, &Arrived { number, by_process, .. }: &Arrived) {
        let is_meant = [libc::SIGINT, libc::SIGQUIT].contains(&number);
        let has_departed = |main: &Pid| family::group(*main).is_some_and(|its| Some(its) != family::group(0));
        if let Some(main) = self.machine.main().map(of).filter(has_departed)
            && is_meant
            && !by_process
        {
            let _ = family::signal_below(main, number);
        }
    }

    /// How long nothing needs to be done, if nothing happens.
    fn patience(&self) -> Duration {
        let waiting = self.supervisor.settings.readiness == Readiness::Board && !self.machine.is_ready();
        let look = match self.machine.age_ms(clock::monotonic_ms()) {
            _ if self.clearing.is_some() => self.clearing_pause(),
            _ if self.cause_until_ms.is_some() || self.asked.is_some() || self.change.is_some() => LOOK_SOON,
            // The longer it takes, the less it matters when exactly.
            Some(age_ms) if waiting => Duration::from_millis(age_ms / 16).clamp(LOOK_SOON, LOOK),
            _ => LOOK,
        };
        let left = |at_ms: u64| Duration::from_millis(at_ms.saturating_sub(clock::monotonic_ms()));
        self.machine.deadline_ms().map_or(look, |at_ms| left(at_ms).min(look))
    }

    fn act(&mut self, action: Action) -> Option<Outcome> {
        match action {
            Action::Start => self.clear(),
            Action::Signal { pid, number } => {
                if self.machine.stops(number) || crate::STOP_SIGNALS.contains(&number) {
                    Copies::find(&self.mappings()).tell_orphans(of(pid), number);
                }
                let _ = family::signal_below(of(pid), number);
            }
            Action::KillAll { pid } => family::kill_all(of(pid)),
            Action::KillHung { pid } => self.kill_hung(of(pid)),
            Action::Sleep => {
                let _ = process::kill(process::pid(), libc::SIGSTOP);
            }
            Action::Tell(event) => {
                if let (Event::Stopping { for_good, .. }, Some(custody)) = (event, &self.supervisor.custody) {
                    custody.stopping(for_good);
                }
                if let Event::Stopping { for_good: true, .. } = event {
                    // None of the two keeps serving.
                    self.settle(UpgradeEnd::undone(WhyNot::Stopped));
                }
                // Of one that does not say it, only time tells.
                if event == Event::Ready && self.supervisor.settings.readiness != Readiness::Started {
                    // As the program itself says it, whatever else it looks like.
                    let says = self.supervisor.settings.readiness == Readiness::Told;
                    self.supervisor.custody.iter().filter(|_| says).for_each(Custody::ready);
                    self.settle(UpgradeEnd::Done);
                }
                let event = self.named(event);
                (self.tell)(event);
            }
            Action::End(outcome) => return Some(self.conclude(outcome)),
        }
        None
    }

    fn start(&mut self) {
        let input = match (self.spawn(), self.change.is_some()) {
            (Ok(pid), _) => Input::Started { pid },
            (Err(error), true) => {
                self.settle(UpgradeEnd::undone(crate::upgrade::cannot_run(&error)));
                self.spawn().map_or_else(refused, |pid| Input::Started { pid })
            }
            (Err(error), false) => refused(error),
        };
        if let Some(change) = &mut self.change
            && !std::mem::replace(&mut change.begun, true)
        {
            // The old one has ended, however long that took.
            self.supervisor.board.begin_upgrade_time();
        }
        // Before anything that has happened since.
        self.inputs.push_front(input);
    }

    fn spawn(&mut self) -> io::Result<u32> {
        self.inheritance = Inheritance::Everything;
        self.note_replaced();
        self.hear_of_upgrade();
        let wish = self.change.as_ref().map(|change| change.wish);
        let board = self.supervisor.board;
        board.note_start(wish);
        self.hear_of_upgrade();
        self.attempt = self.attempt.saturating_add(1);
        let mut command = (self.make)(Attempt { number: self.attempt, program: self.program.as_deref() });
        match &self.supervisor.memory {
            Ok(memory) => {
                command.env(crate::board::ENVIRONMENT, memory.as_raw_fd().to_string());
                launch::pass_on(memory.as_fd(), &mut command);
            }
            // Of a supervisor above this one.
            Err(_) => {
                command.env_remove(crate::board::ENVIRONMENT);
            }
        }
        command.env(left::ENVIRONMENT, left::value(&self.supervisor.settings.name));
        match &self.supervisor.settings.key {
            Some(key) => command.env(traces::KEY_ENVIRONMENT, key),
            None => command.env_remove(traces::KEY_ENVIRONMENT),
        };
        self.supervisor.mask.give_to(&mut command);
        if let Some(signal) = self.supervisor.settings.orphan_signal {
            launch::end_with_us(signal, &mut command);
        }
        if let Some(custody) = &self.supervisor.custody {
            custody.give_to(&mut command);
            let is_last = self.machine.is_last_start();
            let let_go = custody.starting(self.last_end.map(|ended| StartEnded { is_last, ..ended }));
            if let_go > 0 {
                (self.tell)(Event::LetGo { sockets: let_go, waits: false });
            }
        }
        activation::pass_on(&mut command)?;
        // Dropped without being waited for: burying is done for all children alike.
        let pid = command.spawn()?.id();
        if let Some(custody) = &self.supervisor.custody {
            custody.started(pid);
        }
        Ok(pid)
    }

    /// Buries whoever has died, up to the main process. Whether that was among them: whoever is buried next may be the new
    /// one.
    fn bury(&mut self) -> bool {
        let stop_signal = self.supervisor.settings.stop_signal;
        while let Some(ended) = self.unburied.take().or_else(process::ended) {
            // What a whole group or terminal is told has come here before any of them can have ended by it. Who has sent it is
            // known until he is buried.
            if crate::STOP_SIGNALS.into_iter().chain([libc::SIGHUP, stop_signal]).any(signals::is_pending) {
                self.unburied = Some(ended);
                return false;
            }
            if let Some(custody) = &self.supervisor.custody {
                custody.note_end(ended);
            }
            process::bury(ended.pid);
            let is_main = self.machine.main().map(of) == Some(ended.pid);
            let board = self.supervisor.board;
            if let Some(custody) = self.supervisor.custody.as_ref().filter(|_| is_main && !board.is_ready()) {
                // Before its end is written down: it may have served for a moment.
                custody.main_ended();
            }
            // Whoever starts a server that goes on in the background ends, and that generation does not.
            let may_go_on = is_main && board.backend() == Backend::Exec;
            if !may_go_on {
                self.write_down(ended);
            }
            if !is_main {
                self.other_buried(ended.pid);
                continue;
            }
            // Before what follows from its end.
            self.look_at_generations(true);
            let death = self.true_death(Death::from_status(ended.status));
            let in_order = self.supervisor.settings.success.contains(&death)
                && self.machine.can_replace()
                && !self.machine.is_interrupted_by(death, clock::monotonic_ms());
            let heir = self.heir(ended.pid).or_else(|| self.awaited_in_background(ended.pid, in_order));
            let is_success = self.supervisor.settings.success.contains(&death);
            let is_hindered = heir.is_none()
                && in_order
                && self.supervisor.custody.as_ref().is_some_and(Custody::may_be_hindered)
                && !self.is_any_left(false);
            let has_failed = matches!(death, Death::Exited(_)) && !is_success && !self.machine.is_ending();
            let has_failed = heir.is_none() && (has_failed || self.machine.is_too_late());
            self.last_end = Some(StartEnded { has_failed, in_order: is_hindered, is_last: false });
            if may_go_on && (heir.is_none() || !in_order) {
                self.write_down(ended);
            }
            // Parts of the program itself are ended with it, which is told then.
            if heir.is_none()
                && in_order
                && self.copies().in_background(true).is_none()
                && let Some(left) = left::below_this().first()
            {
                (self.tell)(Event::LeftBehind { pid: left.pid });
            }
            if heir.is_none() && self.has_died_on_trial(death) {
                self.inputs.push_back(Input::DiedOnTrial { death });
            } else if heir.is_none()
                && in_order
                && self.machine.awaits_background()
                && !self.is_any_left(false)
            {
                self.inputs.push_back(Input::Vanished { death: self.death_in_background().unwrap_or(death) });
            } else if is_hindered {
                self.inputs.push_back(Input::Hindered { death });
            } else {
                self.inputs.push_back(Input::Died { death, heir });
            }
            return true;
        }
        false
    }

    /// By which the program's own processes are known, whatever has become of them.
    fn mappings(&self) -> Vec<Mapping> {
        let custody = self.supervisor.custody.as_ref().and_then(Custody::mapping).cloned();
        Mapping::at(self.supervisor.board).into_iter().chain(custody).collect()
    }

    /// Parts of the program, but for those that go on with their clients since an earlier crash.
    fn copies(&self) -> Copies {
        Copies::find(&self.mappings()).without(&self.supervisor.rest.of_earlier())
    }

    fn other_buried(&mut self, pid: Pid) {
        self.supervisor.rest.spared().on_buried(pid);
        (self.tell)(Event::Buried { pid: pid.cast_unsigned() });
    }

    /// A process that stays for its generations ends with a code that says which signal the last one has died of.
    fn true_death(&self, death: Death) -> Death {
        let past = self.supervisor.board.generations();
        let last = past.iter().rev().find_map(|past| past.death);
        last.filter(|last| matches!(last, Death::Signal(_)) && death == Death::Exited(last.exit_code()))
            .unwrap_or(death)
    }

    /// A generation has died whose parent this process is: nobody else knows how.
    fn write_down(&self, ended: Ended) {
        let board = self.supervisor.board;
        let pid = ended.pid.cast_unsigned();
        let past = board.generations();
        let Some(past) = past.iter().rev().find(|past| past.pid == pid && past.death.is_none()) else {
            return;
        };
        let cause = match Death::from_status(ended.status) {
            Death::Exited(0) => Cause::Ended,
            Death::Signal(libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGQUIT) => Cause::Killed,
            _ => Cause::Crash,
        };
        board.note_end_of(past.number, Some(ended.status), cause);
    }

    /// Who lives on for the main process.
    fn heir(&self, dead: Pid) -> Option<u32> {
        let board = self.supervisor.board;
        // Generations of the library go on without their zygote, as long as there are some.
        let serving = if board.backend() == Backend::Library { board.serving_pid() } else { 0 };
        // And a zygote without whoever has started it, which goes into the background so.
        let zygote = family::parent_of_living(of(serving)).map_or(0, Pid::cast_unsigned);
        [board.main_pid(), zygote, serving].into_iter().find(|heir| {
            *heir != 0 && of(*heir) != dead && family::parent_of_living(of(*heir)) == Some(process::pid())
        })
    }

    /// Of all that live on for the main process, a zygote that an upgrade has set aside is the old one.
    fn named(&self, event: Event) -> Event {
        let board = self.supervisor.board;
        match event {
            Event::Succeeded { death, pid }
                if board.backend() == Backend::Library && pid == board.main_pid() =>
            {
                Event::RolledBack { death, pid }
            }
            Event::Succeeded { death, pid }
                // Or nothing yet, where it begins to listen there.
                if matches!(board.backend(), Backend::Exec | Backend::None)
                    && self.supervisor.settings.success.contains(&death) =>
            {
                Event::InBackground { pid }
            }
            event => event,
        }
    }

    /// Nobody is left when this process ends, but for what has gone into the background.
    fn conclude(&mut self, outcome: Outcome) -> Outcome {
        // The holder may not have heard yet of who has ended just before the main process.
        self.supervisor.custody.iter().for_each(Custody::main_ended);
        self.hear_holder();
        let board = self.supervisor.board;
        if outcome != Outcome::Finished || self.machine.told_ms().is_some() {
            self.end_rest();
            return outcome;
        }
        let mappings = self.mappings();
        let left = self.copies().in_background(!board.is_ready());
        if left.is_some_and(|pid| self.is_daemon(pid)) {
            // It works without this process, too.
            return outcome;
        }
        copies::end(&mappings);
        left.map_or(outcome, |pid| Outcome::Background { pid: pid.cast_unsigned() })
    }

    fn kill_hung(&self, main: Pid) {
        let board = self.supervisor.board;
        let serving = of(board.serving_pid());
        let knows_which = !matches!(board.backend(), Backend::None | Backend::Roles);
        if knows_which && serving != 0 && family::and_below(main).contains(&serving) {
            // Only who serves: the next one is there.
            board.note_end_of(board.generation(), None, Cause::Hang);
            let _ = family::signal_below(serving, libc::SIGKILL);
        } else {
            family::kill_all(main);
        }
    }
}

fn refused(error: io::Error) -> Input {
    Input::CannotStart { code: error.raw_os_error().unwrap_or(libc::EIO) }
}

fn of(pid: u32) -> Pid {
    // One that does not fit is nobody; 0 would be everybody.
    Pid::try_from(pid).unwrap_or(Pid::MAX)
}
