//! A supervised program as it shows itself to `outlast status` and `outlast upgrade`.

use super::manager::Manager;
use super::names::how;
use super::upgrade::{Preloaded, TIMEOUT, Upgrades};
use crate::admin::Administered;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outlast_admin::exchange::{Matching, Withdrawn};
use outlast_admin::program::{self, Crashes, Program, Quarantine};
use outlast_admin::upgrade::{RESTARTING, UpgradeAnswer, UpgradeOutcome, UpgradeRefused};
use outlast_admin::{Answer, Page, Request, Status};
use outlast_restart::Death;
use outlast_restart::board::{Backend, Board, Cause, Past, Quarantined, Sign};
use outlast_restart::supervisor::{Event, Handle};
use rustix::process::Pid;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Starts that are remembered.
const STARTS_MAX: usize = 64;
/// Who is left of a crashed one has ended by then.
const FINISHES_MS: u64 = 30_000;

/// What is known of the program.
#[derive(Debug)]
pub struct State {
    name: String,
    program: Vec<String>,
    board: &'static Board,
    upgrades: Upgrades,
    manager: Manager,
    began: Instant,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    main_pid: u32,
    /// Of an earlier one, which serves.
    awaited_pid: u32,
    ready: bool,
    stopping: bool,
    said: Option<String>,
    starts: VecDeque<Start>,
    starts_count: u64,
    /// Processes of the program that have ended, and not in order.
    crashes: VecDeque<Crash>,
    crashes_count: u64,
    /// Connections kept and closed of crashes that are not remembered any more.
    forgotten: (u64, u64),
    /// The last time that it was to be started again.
    crashed: Option<Instant>,
}

impl Now {
    /// Whichever is heard first: that the program has crashed, or what became of its connections.
    fn note_crash(&mut self, crash: Crash) {
        let is_recent = |other: &&mut Crash| crash.at_ms.saturating_sub(other.at_ms) < FINISHES_MS;
        let known = self.crashes.iter_mut().rev().filter(is_recent).find(|other| other.pid == crash.pid);
        if let Some(known) = known {
            known.kept = known.kept.max(crash.kept);
            known.closed = known.closed.max(crash.closed);
            return;
        }
        self.crashes_count += 1;
        if self.crashes.len() == STARTS_MAX
            && let Some(Crash { kept, closed, .. }) = self.crashes.pop_front()
        {
            self.forgotten.0 += u64::from(kept);
            self.forgotten.1 += u64::from(closed);
        }
        self.crashes.push_back(crash);
    }

    fn crashes(&self) -> Crashes {
        let kept = self.crashes.iter().map(|crash| program::Crash {
            pid: crash.pid,
            at_ms: crash.at_ms,
            how: crash.death.map(how),
            kept: crash.kept,
            closed: crash.closed,
        });
        let sum = |of: fn(&Crash) -> u32| self.crashes.iter().map(|crash| u64::from(of(crash))).sum::<u64>();
        Crashes {
            count: self.crashes_count,
            connections_kept: self.forgotten.0 + sum(|crash| crash.kept),
            connections_closed: self.forgotten.1 + sum(|crash| crash.closed),
            kept: kept.collect(),
        }
    }
}

/// The end of one process of the program.
#[derive(Debug)]
struct Crash {
    pid: u32,
    at_ms: u64,
    death: Option<Death>,
    kept: u32,
    closed: u32,
}

/// One start of the program by its supervisor.
#[derive(Debug)]
struct Start {
    number: u32,
    pid: u32,
    began_ms: u64,
    ended: Option<(u64, Death)>,
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    millis(since)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl State {
    /// Nothing has happened yet.
    pub fn new(
        (name, program): (String, Vec<String>),
        preloaded: Option<Preloaded>,
        board: &'static Board,
        handle: Handle,
        manager: Manager,
    ) -> Self {
        let (upgrades, now) = (Upgrades::new(board, handle, preloaded), Mutex::default());
        Self { name, program, board, upgrades, manager, began: Instant::now(), now }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program says how it is.
    pub fn said(&self, text: &str) {
        self.now().said = Some(text.to_owned());
        self.manager.status(text);
    }

    /// Something has happened.
    pub fn on(&self, event: Event) {
        self.upgrades.on(event);
        let mut now = self.now();
        match event {
            Event::Started { pid, run } => {
                (now.main_pid, now.awaited_pid, now.ready, now.said) = (pid, 0, false, None);
                if now.starts.len() == STARTS_MAX {
                    now.starts.pop_front();
                }
                now.starts_count += 1;
                now.starts.push_back(Start { number: run, pid, began_ms: now_ms(), ended: None });
            }
            Event::Awaits { pid, .. } => now.awaited_pid = pid,
            Event::Ready => now.ready = true,
            Event::PartEnded { pid, death, kept, closed } => {
                now.note_crash(Crash { pid, at_ms: now_ms(), death, kept, closed });
            }
            // It goes with its master's crash, if that is noted.
            Event::PartFinished { kept, closed, .. } => {
                let is_recent = |crash: &&mut Crash| now_ms().saturating_sub(crash.at_ms) < FINISHES_MS;
                if let Some(crash) = now.crashes.back_mut().filter(is_recent) {
                    crash.kept += kept;
                    crash.closed += closed;
                }
            }
            Event::Succeeded { pid, .. } | Event::RolledBack { pid, .. } | Event::InBackground { pid } => {
                now.main_pid = pid;
                // What that start goes on as: it is this one that may crash.
                if let Some(start) = now.starts.back_mut() {
                    start.pid = pid;
                }
            }
            Event::Stopping { for_good, .. } => now.stopping = for_good,
            Event::Crashed { death, .. } => {
                now.crashed = Some(Instant::now());
                // Nobody says more of a program without the library, nor of a main process that only starts the server.
                let is_told_elsewhere = match self.board.backend() {
                    Backend::None => false,
                    Backend::Exec => death.is_usual(),
                    Backend::Library | Backend::Roles => true,
                };
                if let (Death::Signal(_), Some(pid)) = (death, now.starts.back().map(|start| start.pid))
                    && !is_told_elsewhere
                {
                    now.note_crash(Crash { pid, at_ms: now_ms(), death: Some(death), kept: 0, closed: 0 });
                }
            }
            Event::Ended { death, .. } => {
                (now.main_pid, now.ready) = (0, false);
                if let Some(start) = now.starts.back_mut() {
                    start.ended = Some((now_ms(), death));
                }
            }
            _ => {}
        }
    }

    /// How the program is that an upgrade was to take the place of, if it does not serve.
    pub fn why_old_does_not_serve(&self) -> Option<&'static str> {
        match (self.now().stopping, self.upgrades.old_ends()) {
            (true, _) => Some("it is being stopped"),
            (_, true) => Some("the old one was told to end already, and is started again when it has"),
            (false, false) => None,
        }
    }

    fn page(&self) -> Program {
        let now = self.now();
        let replacing = self.upgrades.old_ends();
        let (connections, held_bytes) = self.board.held();
        let (count, kept) = self.board.quarantined();
        let starts = now.starts.iter().map(|start| program::Start {
            number: start.number,
            pid: start.pid,
            began_ms: start.began_ms,
            ended_ms: start.ended.map(|(at_ms, _)| at_ms),
            how: start.ended.map(|(_, death)| how(death)),
        });
        Program {
            runs: self.name.clone(),
            program: self.program.clone(),
            serves_program: self.upgrades.serves(),
            upgrade: self.upgrades.under_way(),
            main_pid: now.main_pid,
            awaited_pid: now.awaited_pid,
            ready: now.ready && !replacing,
            replacing,
            stopping: now.stopping,
            said: now.said.clone(),
            preloaded: self.upgrades.is_preloaded(),
            backend: backend(self.board.backend()).to_owned(),
            without_zygote: now.main_pid != 0 && self.upgrades.is_without_zygote(now.main_pid),
            starts: starts.collect(),
            starts_count: now.starts_count,
            crashes: now.crashes(),
            generation: self.board.generation(),
            generations: self.board.generations().iter().map(generation).collect(),
            connections,
            held_bytes,
            quarantined: Quarantine { count, kept: kept.iter().map(quarantined).collect() },
        }
    }

    fn upgrade(&self, program: &str, force: bool, timeout: Duration) -> UpgradeAnswer {
        let Now { main_pid, awaited_pid: earlier, stopping, crashed, .. } = *self.now();
        if stopping {
            return UpgradeAnswer::Refused(UpgradeRefused::new("it is ending"));
        }
        if earlier != 0 {
            let name = &self.name;
            let error = format!(
                "process {earlier} of an earlier {name} serves, whose supervisor was killed: end it (kill {earlier}), and {name} is \
                 started as it is now"
            );
            return UpgradeAnswer::Refused(UpgradeRefused::new(error));
        }
        if !force && self.upgrades.is_restarting(main_pid, crashed.map(|at| at.elapsed())) {
            return UpgradeAnswer::Refused(UpgradeRefused::new(RESTARTING));
        }
        let answer = self.upgrades.begin(main_pid, program, force, timeout);
        if matches!(answer, UpgradeAnswer::Begun(_)) {
            let shown = if program.is_empty() { "what is at its path now" } else { program };
            tracing::info!("{} is to be upgraded to {}", self.name, crate::exit::clean(shown));
        }
        answer
    }

    fn outcome(&self, wish: u32) -> UpgradeOutcome {
        let outcome = self.upgrades.outcome(wish);
        let now = self.now();
        UpgradeOutcome {
            main_pid: now.main_pid,
            stopping: now.stopping,
            generation: self.board.generations().last().map(generation),
            ..outcome
        }
    }
}

impl Administered for State {
    async fn status(&self) -> Status {
        let (version, up_ms) = (env!("CARGO_PKG_VERSION"), millis(self.began.elapsed()));
        Status::of_this_process(version, up_ms, Page::Program(self.page()))
    }

    async fn answer(&self, request: Request, asker: Option<Pid>) -> Answer {
        match request {
            Request::Status {} => self.status().await.into(),
            Request::Upgrade { program, force, timeout_ms } => {
                let timeout = timeout_ms.map_or(TIMEOUT, Duration::from_millis);
                if !force && self.now().main_pid != 0 {
                    self.upgrades.wait_until_it_listens().await;
                }
                let answer = self.upgrade(&program, force, timeout);
                if let (UpgradeAnswer::Begun(begun), Some(asker)) = (&answer, asker) {
                    self.upgrades.withdraw_without(asker, begun.wish, &self.name);
                }
                Answer::Upgrade(answer)
            }
            Request::Outcome { wish } => Answer::Outcome(Box::new(self.outcome(wish))),
            Request::Withdraw { wish } => {
                Answer::Withdrawn(Withdrawn { cancelled: self.upgrades.cancel(wish) })
            }
            Request::Kill { .. } => Answer::Matching(Matching::default()),
            Request::Switchover { .. }
            | Request::Evict { .. }
            | Request::Recover { .. }
            | Request::Drain {}
            | Request::Join {}
            | Request::Why {} => Answer::refused("it is no node of a group of replicas"),
        }
    }
}

/// What a process is called, if it still runs.
pub fn command_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    crate::exit::clean(name.trim_end())
}

/// That process, and how many others.
pub fn commands_of(pid: u32, count: usize) -> String {
    let others = match count {
        0 | 1 => String::new(),
        2 => " and another one".to_owned(),
        count => format!(" and {} others", count - 1),
    };
    format!("process {pid} ({}){others}", command_of(pid))
}

fn backend(backend: Backend) -> &'static str {
    match backend {
        Backend::None => "none",
        Backend::Library => "library",
        Backend::Exec => "exec",
        Backend::Roles => "roles",
    }
}

/// A generation's end, in words.
pub fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Unknown => "unknown",
        Cause::Crash => "crash",
        Cause::Killed => "killed",
        Cause::OutOfMemory => "out of memory",
        Cause::Hang => "hang",
        Cause::Upgrade => "upgrade",
        Cause::Ended => "ended",
    }
}

fn generation(past: &Past) -> program::Generation {
    program::Generation {
        number: past.number,
        role: past.role.clone(),
        pid: past.pid,
        began_ms: past.began_ms,
        ended_ms: past.ended_ms,
        how: past.death.map(how),
        cause: past.ended_ms.map(|_| cause(past.cause).to_owned()),
        pause_ns: u64::try_from(past.pause.as_nanos()).unwrap_or(u64::MAX),
        pause_until: match past.sign {
            Sign::Serves => "serves".to_owned(),
            Sign::Listens => "listens".to_owned(),
        },
    }
}

fn quarantined(request: &Quarantined) -> program::Quarantined {
    program::Quarantined {
        at_ms: request.at_ms,
        generation: request.generation,
        peer: request.peer.clone(),
        length: request.length,
        bytes_base64: STANDARD.encode(&request.bytes),
    }
}
