//! What a supervisor and the server below it know of each other: memory that both have mapped, of atomics alone.
//!
//! The supervisor makes it, says what it wants, and passes it on as an open descriptor whose number is in
//! [`ENVIRONMENT`]. The server's generations write down what happens to them. Neither waits for the other.

mod kinds;
mod wish;

use crate::death::Death;
use crate::policy::{Inheritance, Policy};
use crate::sys::shared::AllZeroes;
use crate::sys::{clock, memfd, pages, shared};
pub use kinds::{Backend, Cause, Sign};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
pub use wish::{PROGRAM_BYTES_MAX, UpgradeEnd, WhyNot, Wish};

/// The variable with the number of the board's descriptor.
pub const ENVIRONMENT: &str = "OUTLAST_BOARD";
const MAGIC: u64 = u64::from_le_bytes(*b"outlastb");
/// Of what follows: a server that was built with another one goes on without a supervisor's board.
const VERSION: u32 = 3;
/// Generations that are remembered.
pub const GENERATIONS: u32 = 64;
/// Quarantined requests that are remembered, and how much of each.
pub const QUARANTINED: u32 = 16;
/// Bytes of a quarantined request that are kept.
pub const REQUEST_BYTES: usize = 1024;
/// Of the name of a process with a role.
const ROLE_BYTES: usize = 32;
/// The supervisor has not said any.
const OWN_HANG_TIMEOUT_MS: u64 = u64::MAX;

/// One generation, as it is written down.
#[repr(C)]
struct Record {
    number: AtomicU32,
    pid: AtomicU32,
    /// Milliseconds since 1970.
    began_ms: AtomicU64,
    ended_ms: AtomicU64,
    /// As `waitpid` has it.
    status: AtomicU32,
    cause: AtomicU32,
    /// From the fault of the one before, or from when it was noticed, until this one served.
    pause_ns: AtomicU64,
    role: [AtomicU8; ROLE_BYTES],
}

/// A request that nobody deals with any more.
#[repr(C)]
struct QuarantinedRecord {
    at_ms: AtomicU64,
    generation: AtomicU32,
    length: AtomicU32,
    peer: [AtomicU8; 64],
    bytes: [AtomicU8; REQUEST_BYTES],
}

/// The memory.
#[repr(C)]
pub struct Board {
    magic: AtomicU64,
    version: AtomicU32,
    // Said by the supervisor.
    intensity: AtomicU32,
    intensity_window_ms: AtomicU64,
    transient_after_ms: AtomicU64,
    hang_timeout_ms: AtomicU64,
    wishes: wish::Wishes,
    // Said by the server.
    backend: AtomicU32,
    /// The process that the supervisor is to take for the server from now on.
    main_pid: AtomicU32,
    serving_pid: AtomicU32,
    ready: AtomicU32,
    generation: AtomicU32,
    connections: AtomicU32,
    held_bytes: AtomicU64,
    quarantined_count: AtomicU32,
    /// Generations before the program was started: servers count their own from 1.
    earlier: AtomicU32,
    generations: [Record; GENERATIONS as usize],
    quarantined: [QuarantinedRecord; QUARANTINED as usize],
    /// How little is taken over by now: the number of an [`Inheritance`].
    inheritance: AtomicU32,
    /// The [`Sign`] of each generation, as its record is.
    signs: [AtomicU32; GENERATIONS as usize],
}

// SAFETY: atomics alone, for which zeroes are a value.
unsafe impl AllZeroes for Board {}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// What is known of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// Counts from 1.
    pub number: u32,
    /// Its process.
    pub pid: u32,
    /// Milliseconds since 1970.
    pub began_ms: u64,
    /// As above; none while it serves.
    pub ended_ms: Option<u64>,
    /// How it ended, once that is known.
    pub death: Option<Death>,
    /// Why.
    pub cause: Cause,
    /// How long nobody had served before it.
    pub pause: Duration,
    /// By what the end of that was seen.
    pub sign: Sign,
    /// Which process of the program it is one of, such as `worker 2`; empty where that has only one.
    pub role: String,
}

/// A request that was in flight in too many crashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Which generation refused it.
    pub generation: u32,
    /// Who sent it.
    pub peer: String,
    /// How long it is, as far as it was received.
    pub length: u32,
    /// Its first [`REQUEST_BYTES`].
    pub bytes: Vec<u8>,
}

impl Board {
    /// A supervisor's new one, to be passed on.
    ///
    /// # Errors
    /// There is no memory with descriptors here.
    pub fn create(policy: &Policy) -> io::Result<(OwnedFd, &'static Self)> {
        Self::create_called(c"outlast-board", policy)
    }

    /// The same, with a name for its memory.
    pub(crate) fn create_called(
        name: &std::ffi::CStr,
        policy: &Policy,
    ) -> io::Result<(OwnedFd, &'static Self)> {
        let memory = memfd::create(name, size_of::<Self>())?;
        let board: &'static Self = memfd::map(std::os::fd::AsFd::as_fd(&memory))?;
        board.set_policy(policy);
        Ok((memory, board))
    }

    /// That of this process's supervisor, if it has one.
    #[must_use]
    pub fn of_supervisor() -> Option<&'static Self> {
        let number: RawFd = std::env::var(ENVIRONMENT).ok()?.parse().ok()?;
        if number < 0 || !crate::sys::descriptors::is_open(number) {
            return None;
        }
        // SAFETY: open, as was just seen, and borrowed for the moment only.
        let board: &'static Self = memfd::map(unsafe { BorrowedFd::borrow_raw(number) }).ok()?;
        let known =
            board.magic.load(Ordering::SeqCst) == MAGIC && board.version.load(Ordering::SeqCst) == VERSION;
        known.then_some(board)
    }

    /// As above, and not that of the programs that this one starts: they would take themselves for the server.
    pub(crate) fn of_supervisor_alone() -> Option<&'static Self> {
        let board = Self::of_supervisor()?;
        let number = std::env::var(ENVIRONMENT).ok().and_then(|number| number.parse().ok());
        // Standard input is theirs, whatever it is.
        number.filter(|number| *number > 0).into_iter().for_each(crate::sys::descriptors::set_private);
        Some(board)
    }

    /// One that nobody else sees, for a server without a supervisor.
    pub(crate) fn private() -> io::Result<&'static Self> {
        shared::share()
    }

    /// That of one process of several, whose root looks at it for a supervisor.
    pub(crate) fn for_root(policy: &Policy) -> io::Result<&'static Self> {
        let board = Self::private()?;
        board.set_policy(policy);
        Ok(board)
    }

    pub(crate) fn set_policy(&self, policy: &Policy) {
        self.intensity.store(u32::try_from(policy.intensity).unwrap_or(u32::MAX), Ordering::SeqCst);
        self.intensity_window_ms.store(policy.intensity_window_ms, Ordering::SeqCst);
        self.transient_after_ms.store(policy.transient_after_ms, Ordering::SeqCst);
        self.hang_timeout_ms.store(policy.hang_timeout_ms, Ordering::SeqCst);
        self.version.store(VERSION, Ordering::SeqCst);
        self.magic.store(MAGIC, Ordering::SeqCst);
    }

    /// The supervisor's wishes; none on a board of one's own.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        (self.magic.load(Ordering::SeqCst) == MAGIC).then(|| Policy {
            intensity: self.intensity.load(Ordering::SeqCst) as usize,
            intensity_window_ms: self.intensity_window_ms.load(Ordering::SeqCst),
            transient_after_ms: self.transient_after_ms.load(Ordering::SeqCst),
            hang_timeout_ms: match self.hang_timeout_ms.load(Ordering::SeqCst) {
                OWN_HANG_TIMEOUT_MS => 0,
                said_ms => said_ms,
            },
        })
    }

    /// What holds for a server that would keep to `own`: what the supervisor has said counts more.
    #[must_use]
    pub fn policy_over(&self, own: Policy) -> Policy {
        let left = self.hang_timeout_ms.load(Ordering::SeqCst) == OWN_HANG_TIMEOUT_MS;
        self.policy().map_or(own, |said| Policy {
            hang_timeout_ms: if left { own.hang_timeout_ms } else { said.hang_timeout_ms },
            ..said
        })
    }

    /// The supervisor has no wish of how long a server may be busy: it keeps to its own.
    pub fn leave_hang_timeout(&self) {
        self.hang_timeout_ms.store(OWN_HANG_TIMEOUT_MS, Ordering::SeqCst);
    }

    /// How the server lives on.
    pub fn set_backend(&self, backend: Backend) {
        self.backend.store(backend as u32, Ordering::SeqCst);
    }

    /// How the server lives on.
    #[must_use]
    pub fn backend(&self) -> Backend {
        [Backend::Library, Backend::Exec, Backend::Roles]
            .into_iter()
            .find(|backend| *backend as u32 == self.backend.load(Ordering::SeqCst))
            .unwrap_or(Backend::None)
    }

    /// Which process the supervisor is to take for the server; 0: the one that it started.
    pub fn set_main_pid(&self, pid: u32) {
        self.main_pid.store(pid, Ordering::SeqCst);
    }

    /// As it was [set](Self::set_main_pid).
    #[must_use]
    pub fn main_pid(&self) -> u32 {
        self.main_pid.load(Ordering::SeqCst)
    }

    /// The process that serves; 0: not known.
    #[must_use]
    pub fn serving_pid(&self) -> u32 {
        self.serving_pid.load(Ordering::SeqCst)
    }

    /// The server serves: it has come as far as to register, or to wait for clients.
    pub fn set_ready(&self) {
        self.ready.store(1, Ordering::SeqCst);
    }

    /// Whether the server serves.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst) != 0
    }

    /// The program is started again: what was said of the process that serves is no longer so. A wish for another binary
    /// that was not dealt with has failed, unless it is dealt with by this: the one of the number `by_this`.
    pub(crate) fn note_start(&self, by_this: Option<u32>) {
        if let Some(wish) = self.upgrade_wanted().filter(|wish| Some(wish.number) != by_this) {
            self.note_upgrade(wish.number, UpgradeEnd::undone(WhyNot::Ended { death: None }));
        }
        for place in [
            &self.ready,
            &self.backend,
            &self.main_pid,
            &self.serving_pid,
            &self.connections,
            &self.inheritance,
        ] {
            place.store(0, Ordering::SeqCst);
        }
        self.held_bytes.store(0, Ordering::SeqCst);
        self.count_anew(0);
    }

    /// Whoever has generations from here on counts them from 1: the process `pid`, if that is known. Whoever did not know
    /// of them may have taken that for the one that serves.
    pub(crate) fn count_anew(&self, pid: u32) {
        let last = self.past(self.generation()).filter(|last| last.pid == pid && last.ended_ms.is_none());
        if let Some(before) = last.and_then(|last| last.number.checked_sub(1)) {
            self.generation.store(before, Ordering::SeqCst);
        }
        self.earlier.store(self.generation(), Ordering::SeqCst);
    }

    /// A generation begins to serve. Gives its number, which counts from 1 when the program is started.
    pub fn note_begin(&self, pid: u32, pause: Duration) -> u32 {
        self.note_begin_by(pid, pause, Sign::Serves)
    }

    /// As above; by what that was seen.
    pub(crate) fn note_begin_by(&self, pid: u32, pause: Duration, sign: Sign) -> u32 {
        self.note_begin_after(0, pid, pause, sign)
    }

    /// As above, where generations have numbers already, from 1 when the program is started. One that has died before it was
    /// written down is left out, and those after it keep their numbers.
    pub(crate) fn note_begin_of(&self, number: u32, pid: u32, pause: Duration) {
        let number = self.earlier.load(Ordering::SeqCst) + number;
        self.note_begin_after(number.saturating_sub(self.generation() + 1), pid, pause, Sign::Serves);
    }

    fn note_begin_after(&self, left_out: u32, pid: u32, pause: Duration, sign: Sign) -> u32 {
        let (began_ms, role) = (clock::since_1970_ms(), String::new());
        let (ended_ms, death, cause) = (None, None, Cause::Unknown);
        let past = Past { number: 0, pid, began_ms, ended_ms, death, cause, pause, sign, role };
        let number = self.note_of(&past, left_out);
        self.set_ready();
        number
    }

    /// How long nobody had served before the last generation, which was not known when that began. Its number.
    pub(crate) fn note_pause(&self, pause: Duration, sign: Sign) -> u32 {
        let number = self.generation();
        if let Some(record) = self.record(number) {
            record.pause_ns.store(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
            self.set_sign(number, sign);
        }
        number
    }

    fn set_sign(&self, number: u32, sign: Sign) {
        if let Some(place) = self.signs.get((number % GENERATIONS) as usize) {
            place.store(sign as u32, Ordering::SeqCst);
        }
    }

    fn sign(&self, number: u32) -> Sign {
        let place = self.signs.get((number % GENERATIONS) as usize);
        Sign::from_number(place.map_or(0, |place| place.load(Ordering::SeqCst)))
    }

    /// The generation that serves goes on in another process: as it goes into the background.
    pub(crate) fn note_moved(&self, from: u32, to: u32) {
        let number = self.generation.load(Ordering::SeqCst);
        let Some(record) = self.record(number) else { return };
        let is_its =
            record.number.load(Ordering::SeqCst) == number && record.ended_ms.load(Ordering::SeqCst) == 0;
        if is_its && record.pid.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.serving_pid.store(to, Ordering::SeqCst);
        }
    }

    /// What another board has of a generation of one process of several, and how many before it are forgotten there. Gives
    /// its number here, as above.
    pub(crate) fn note_of(&self, past: &Past, forgotten: u32) -> u32 {
        let number = self.generation.fetch_add(forgotten + 1, Ordering::SeqCst) + forgotten + 1;
        self.serving_pid.store(past.pid, Ordering::SeqCst);
        if let Some(record) = self.record(number) {
            record.number.store(0, Ordering::SeqCst);
            record.pid.store(past.pid, Ordering::SeqCst);
            record.began_ms.store(past.began_ms, Ordering::SeqCst);
            record.ended_ms.store(0, Ordering::SeqCst);
            record.status.store(u32::MAX, Ordering::SeqCst);
            record.cause.store(0, Ordering::SeqCst);
            let pause_ns = u64::try_from(past.pause.as_nanos()).unwrap_or(u64::MAX);
            record.pause_ns.store(pause_ns, Ordering::SeqCst);
            self.set_sign(number, past.sign);
            put(&record.role, &[0; ROLE_BYTES]);
            put(&record.role, past.role.as_bytes());
            record.number.store(number, Ordering::SeqCst);
        }
        number - self.earlier.load(Ordering::SeqCst)
    }

    /// What a new generation is about to use of it.
    pub(crate) fn rehearse(&self) {
        pages::populate(std::ptr::from_ref(self).addr(), std::mem::offset_of!(Self, quarantined));
    }

    /// A generation has ended: `number` is what [`note_begin`](Self::note_begin) gave, and `status` what `waitpid` gives, if
    /// it is known yet. What was known of the cause before stays; but want of memory says more than that it was killed.
    pub fn note_end(&self, number: u32, status: Option<i32>, cause: Cause) {
        self.note_end_of(self.earlier.load(Ordering::SeqCst) + number, status, cause);
    }

    /// As above, for a supervisor: of all generations, also those before the program was started again.
    pub(crate) fn note_end_of(&self, number: u32, status: Option<i32>, cause: Cause) {
        let Some(record) =
            self.record(number).filter(|record| record.number.load(Ordering::SeqCst) == number)
        else {
            return;
        };
        if record.ended_ms.load(Ordering::SeqCst) == 0 {
            record.ended_ms.store(clock::since_1970_ms(), Ordering::SeqCst);
        }
        if let Some(status) = status {
            record.status.store(status.cast_unsigned(), Ordering::SeqCst);
        }
        if cause != Cause::Unknown {
            let _ = record.cause.compare_exchange(0, cause as u32, Ordering::SeqCst, Ordering::SeqCst);
        }
        if cause == Cause::OutOfMemory {
            let (killed, cause) = (Cause::Killed as u32, cause as u32);
            let _ = record.cause.compare_exchange(killed, cause, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// A generation was ended for another binary, whatever was known of the cause before: its number among all.
    pub(crate) fn note_replaced(&self, number: u32) {
        let record = self.record(number).filter(|record| record.number.load(Ordering::SeqCst) == number);
        record.into_iter().for_each(|record| record.cause.store(Cause::Upgrade as u32, Ordering::SeqCst));
    }

    /// A request is refused from now on.
    pub(crate) fn note_quarantined(&self, generation: u32, peer: &str, request: &[u8]) {
        let count = self.quarantined_count.load(Ordering::SeqCst);
        if let Some(record) = self.quarantined.get((count % QUARANTINED) as usize) {
            record.at_ms.store(clock::since_1970_ms(), Ordering::SeqCst);
            record.generation.store(self.earlier.load(Ordering::SeqCst) + generation, Ordering::SeqCst);
            record.length.store(u32::try_from(request.len()).unwrap_or(u32::MAX), Ordering::SeqCst);
            put(&record.peer, &[0; 64]);
            put(&record.peer, peer.as_bytes());
            put(&record.bytes, request);
        }
        self.quarantined_count.store(count + 1, Ordering::SeqCst);
    }

    /// So much is taken over from whoever dies, as it has come to so many crashes.
    pub fn note_inheritance(&self, inheritance: Inheritance) {
        self.inheritance.store(inheritance as u32, Ordering::SeqCst);
    }

    /// How much is taken over from whoever dies.
    #[must_use]
    pub fn inheritance(&self) -> Inheritance {
        Inheritance::from_number(self.inheritance.load(Ordering::SeqCst))
    }

    /// What is held of connections at the moment: how many, and how many bytes that are not dealt with.
    pub fn note_held(&self, connections: u32, bytes: u64) {
        self.connections.store(connections, Ordering::SeqCst);
        self.held_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Connections that are held, and bytes received of them that are not dealt with, as of a second ago at the most.
    #[must_use]
    pub fn held(&self) -> (u32, u64) {
        (self.connections.load(Ordering::SeqCst), self.held_bytes.load(Ordering::SeqCst))
    }

    /// How many generations there were.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// The last [`GENERATIONS`], the oldest first.
    #[must_use]
    pub fn generations(&self) -> Vec<Past> {
        let last = self.generation();
        let first = last.saturating_sub(GENERATIONS - 1).max(1);
        (first..=last).filter_map(|number| self.past(number)).collect()
    }

    pub(crate) fn past(&self, number: u32) -> Option<Past> {
        let record = self.record(number)?;
        if record.number.load(Ordering::SeqCst) != number {
            return None;
        }
        let ended_ms = record.ended_ms.load(Ordering::SeqCst);
        let status = record.status.load(Ordering::SeqCst);
        Some(Past {
            number,
            pid: record.pid.load(Ordering::SeqCst),
            began_ms: record.began_ms.load(Ordering::SeqCst),
            ended_ms: (ended_ms != 0).then_some(ended_ms),
            death: (status != u32::MAX).then(|| Death::from_status(status.cast_signed())),
            cause: Cause::from_number(record.cause.load(Ordering::SeqCst)),
            pause: Duration::from_nanos(record.pause_ns.load(Ordering::SeqCst)),
            sign: self.sign(number),
            role: text(&record.role),
        })
    }

    /// How many requests were refused.
    pub(crate) fn quarantined_count(&self) -> u32 {
        self.quarantined_count.load(Ordering::SeqCst)
    }

    /// How many requests were refused, and the last [`QUARANTINED`] of them, the oldest first.
    #[must_use]
    pub fn quarantined(&self) -> (u32, Vec<Quarantined>) {
        let count = self.quarantined_count.load(Ordering::SeqCst);
        let first = count.saturating_sub(QUARANTINED);
        let list = (first..count).filter_map(|number| {
            let record = self.quarantined.get((number % QUARANTINED) as usize)?;
            let length = record.length.load(Ordering::SeqCst);
            Some(Quarantined {
                at_ms: record.at_ms.load(Ordering::SeqCst),
                generation: record.generation.load(Ordering::SeqCst),
                peer: text(&record.peer),
                length,
                bytes: get(&record.bytes, length as usize),
            })
        });
        (count, list.collect())
    }

    fn record(&self, number: u32) -> Option<&Record> {
        self.generations.get((number % GENERATIONS) as usize)
    }
}

/// As much of `bytes` as there is room for.
fn put(memory: &[AtomicU8], bytes: &[u8]) -> usize {
    for (place, byte) in memory.iter().zip(bytes) {
        place.store(*byte, Ordering::Relaxed);
    }
    bytes.len().min(memory.len())
}

/// Up to the first zero.
fn text(memory: &[AtomicU8]) -> String {
    let bytes = get(memory, memory.len());
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

fn get(memory: &[AtomicU8], length: usize) -> Vec<u8> {
    memory.iter().take(length).map(|byte| byte.load(Ordering::Relaxed)).collect()
}

#[cfg(test)]
mod tests;
