//! The wish for another binary, on the board: who asks, who carries it out and who withdraws it see the same one, and it
//! has one end.

use super::{Backend, Board, get, put};
use crate::death::Death;
use crate::sys::clock;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Most bytes of a program's path: what the kernel takes (`PATH_MAX`), without the zero at its end.
pub const PROGRAM_BYTES_MAX: usize = 4095;
/// Wishes whose end is remembered: somebody may ask a little late.
const ENDS: u32 = 16;
/// In the word for an end, behind the number of the wish.
const DONE: u64 = 1;
const UNABLE: u64 = 2;
const CANNOT_RUN: u64 = 3;
const ENDED: u64 = 4;
const TOO_LATE: u64 = 5;
const CANCELLED: u64 = 6;
const UNANSWERED: u64 = 7;
const OLD_KILLED: u64 = 8;
const STOPPED: u64 = 9;
const UNTOUCHED: u64 = 1 << 8;
const UNKNOWN_DEATH: u64 = 0xffff;

/// Why a server does not go on as another binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// It cannot, or not at this moment: it is about to end.
    Unable,
    /// The new binary cannot be executed: the system's error.
    CannotRun {
        /// As `errno` has it.
        code: i32,
    },
    /// The new binary has ended before it served.
    Ended {
        /// How, if that is known.
        death: Option<Death>,
    },
    /// The new binary did not serve in time.
    TooLate,
    /// The wish was withdrawn.
    Cancelled,
    /// Nobody has said what became of it.
    Unanswered,
    /// The new binary did not serve, and the old program was killed while it waited for that: its state is lost.
    OldKilled,
    /// The program was stopped meanwhile, whichever of the two that was.
    Stopped,
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unable => write!(f, "it cannot go on as another binary now"),
            Self::CannotRun { code } => {
                write!(f, "the new binary cannot be run: {}", io::Error::from_raw_os_error(*code))
            }
            Self::Ended { death: Some(death) } => write!(f, "the new binary has {death} before it served"),
            Self::Ended { death: None } => write!(f, "the new binary has ended before it served"),
            Self::TooLate => write!(f, "the new binary did not serve in time"),
            Self::Cancelled => write!(f, "the upgrade was withdrawn"),
            Self::Unanswered => write!(f, "the server has not said what became of it"),
            Self::OldKilled => {
                write!(f, "the new binary did not serve, and the old one was killed meanwhile")
            }
            Self::Stopped => write!(f, "it was stopped meanwhile"),
        }
    }
}

/// What has become of a wish for another binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeEnd {
    /// The new binary serves.
    Done,
    /// The old one goes on.
    Failed {
        /// Why.
        why: WhyNot,
        /// It has served all the time: nothing was stopped.
        untouched: bool,
    },
}

impl UpgradeEnd {
    /// The old program is stopped by now, and begins to serve again.
    #[must_use]
    pub fn undone(why: WhyNot) -> Self {
        Self::Failed { why, untouched: false }
    }

    /// The old program was not stopped.
    #[must_use]
    pub fn untouched(why: WhyNot) -> Self {
        Self::Failed { why, untouched: true }
    }

    /// The wish's number, 16 bits of detail and the kind: never 0.
    fn to_word(self, wish: u32) -> u64 {
        let detail = |value: i32| u64::from(value.cast_unsigned() & 0xffff);
        let (kind, detail, untouched) = match self {
            Self::Done => (DONE, 0, false),
            Self::Failed { why, untouched } => {
                let (kind, detail) = match why {
                    WhyNot::Unable => (UNABLE, 0),
                    WhyNot::CannotRun { code } => (CANNOT_RUN, detail(code)),
                    WhyNot::Ended { death: None } => (ENDED, UNKNOWN_DEATH),
                    WhyNot::Ended { death: Some(death) } => (ENDED, detail(death.status())),
                    WhyNot::TooLate => (TOO_LATE, 0),
                    WhyNot::Cancelled => (CANCELLED, 0),
                    WhyNot::Unanswered => (UNANSWERED, 0),
                    WhyNot::OldKilled => (OLD_KILLED, 0),
                    WhyNot::Stopped => (STOPPED, 0),
                };
                (kind, detail, untouched)
            }
        };
        let untouched = if untouched { UNTOUCHED } else { 0 };
        (u64::from(wish) << 32) | (detail << 16) | untouched | kind
    }

    fn from_word(word: u64) -> Self {
        let detail = i32::from(((word >> 16) & 0xffff) as u16);
        let why = match word & 0xff {
            DONE => return Self::Done,
            UNABLE => WhyNot::Unable,
            CANNOT_RUN => WhyNot::CannotRun { code: detail },
            ENDED => {
                let known = (word >> 16) & 0xffff != UNKNOWN_DEATH;
                WhyNot::Ended { death: known.then(|| Death::from_status(detail)) }
            }
            TOO_LATE => WhyNot::TooLate,
            CANCELLED => WhyNot::Cancelled,
            OLD_KILLED => WhyNot::OldKilled,
            STOPPED => WhyNot::Stopped,
            _ => WhyNot::Unanswered,
        };
        Self::Failed { why, untouched: word & UNTOUCHED != 0 }
    }
}

/// A wish that is not dealt with yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Counts from 1.
    pub number: u32,
    /// The binary; empty: the file that runs, or what is by its name now.
    pub program: PathBuf,
    /// Milliseconds since 1970.
    pub began_ms: u64,
    /// So long after that it is too late.
    pub timeout: Duration,
}

/// On the board.
#[repr(C)]
pub(super) struct Wishes {
    // Said by the supervisor.
    wanted: AtomicU32,
    cancelled: AtomicU32,
    began_ms: AtomicU64,
    timeout_ms: AtomicU64,
    /// Of the clock that nobody sets.
    deadline_ms: AtomicU64,
    program_length: AtomicU64,
    program: [AtomicU8; PROGRAM_BYTES_MAX + 1],
    // Said by the server, or by the supervisor where that has nothing to say any more.
    ends: [AtomicU64; ENDS as usize],
    /// Which of two binaries goes on: the number of the wish, and in the last bit whether it is the new one.
    decided: AtomicU64,
}

impl Board {
    /// Whether the server, whose main process this is, can go on as another binary by its own doing. A generation that lives
    /// on without its zygote cannot, and would die of being told.
    #[must_use]
    pub fn takes_upgrades(&self, main_pid: u32) -> bool {
        match self.backend() {
            Backend::Library => main_pid != self.serving_pid(),
            Backend::None | Backend::Exec | Backend::Roles => false,
        }
    }

    /// Asks for another binary: the program at `path`, of up to [`PROGRAM_BYTES_MAX`], or the one that runs if that is
    /// empty, which has to serve within `timeout`, or the old one goes on. The server's main process has to be told by a
    /// signal, [`upgrade_signal`](crate::supervisor::upgrade_signal). Gives the number of this wish.
    pub fn want_upgrade(&self, path: &Path, timeout: Duration) -> u32 {
        let wishes = &self.wishes;
        let length = put(&wishes.program, path.as_os_str().as_bytes());
        wishes.program_length.store(length as u64, Ordering::SeqCst);
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        wishes.timeout_ms.store(timeout_ms, Ordering::SeqCst);
        wishes.deadline_ms.store(clock::monotonic_ms().saturating_add(timeout_ms), Ordering::SeqCst);
        wishes.began_ms.store(clock::since_1970_ms(), Ordering::SeqCst);
        wishes.wanted.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The time of the last wish begins now: what it was waiting for has come.
    pub(crate) fn begin_upgrade_time(&self) {
        let wishes = &self.wishes;
        let timeout_ms = wishes.timeout_ms.load(Ordering::SeqCst);
        wishes.deadline_ms.store(clock::monotonic_ms().saturating_add(timeout_ms), Ordering::SeqCst);
        wishes.began_ms.store(clock::since_1970_ms(), Ordering::SeqCst);
    }

    /// The wish for another binary that was not dealt with yet.
    #[must_use]
    pub fn upgrade_wanted(&self) -> Option<Wish> {
        let wishes = &self.wishes;
        let number = wishes.wanted.load(Ordering::SeqCst);
        if number == 0 || self.upgrade_end(number).is_some() {
            return None;
        }
        let length = usize::try_from(wishes.program_length.load(Ordering::SeqCst)).unwrap_or(0);
        Some(Wish {
            number,
            program: OsString::from_vec(get(&wishes.program, length)).into(),
            began_ms: wishes.began_ms.load(Ordering::SeqCst),
            timeout: Duration::from_millis(wishes.timeout_ms.load(Ordering::SeqCst)),
        })
    }

    /// Withdraws the wish with this number: as soon as whoever deals with it sees that, the old program goes on.
    pub fn cancel_upgrade(&self, wish: u32) {
        self.wishes.cancelled.store(wish, Ordering::SeqCst);
    }

    /// Why the wish that is being dealt with is not to be any more, if so.
    #[must_use]
    pub fn upgrade_is_over(&self, wish: u32) -> Option<WhyNot> {
        if self.wishes.cancelled.load(Ordering::SeqCst) == wish || self.upgrade_end(wish).is_some() {
            return Some(WhyNot::Cancelled);
        }
        self.upgrade_time_left().is_zero().then_some(WhyNot::TooLate)
    }

    /// Until it is too late for the last wish.
    #[must_use]
    pub fn upgrade_time_left(&self) -> Duration {
        let deadline_ms = self.wishes.deadline_ms.load(Ordering::SeqCst);
        Duration::from_millis(deadline_ms.saturating_sub(clock::monotonic_ms()))
    }

    /// How the wish with this number has ended, once it has. Only the last few are known.
    #[must_use]
    pub fn upgrade_end(&self, wish: u32) -> Option<UpgradeEnd> {
        let word = self.end_of(wish)?.load(Ordering::SeqCst);
        (word >> 32 == u64::from(wish) && word != 0).then(|| UpgradeEnd::from_word(word))
    }

    /// Whether the wish with this number was carried out, once that is known.
    #[must_use]
    pub fn upgrade_outcome(&self, wish: u32) -> Option<bool> {
        self.upgrade_end(wish).map(|end| end == UpgradeEnd::Done)
    }

    /// A wish was carried out, or could not be. What was said of it first holds.
    pub fn note_upgrade(&self, wish: u32, end: UpgradeEnd) {
        let Some(place) = self.end_of(wish) else { return };
        let before = place.load(Ordering::SeqCst);
        if before >> 32 < u64::from(wish) {
            let _ = place.compare_exchange(before, end.to_word(wish), Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Which binary goes on is decided once for each wish, by the first that asks: the new one before it serves, or the one
    /// before it gives that up. Whether it is the new one.
    pub(crate) fn decide_upgrade(&self, wish: u32, serves: bool) -> bool {
        let decided = &self.wishes.decided;
        let before = decided.load(Ordering::SeqCst);
        if before >> 1 < u64::from(wish) {
            let word = u64::from(wish) << 1 | u64::from(serves);
            let _ = decided.compare_exchange(before, word, Ordering::SeqCst, Ordering::SeqCst);
        }
        let word = decided.load(Ordering::SeqCst);
        // A later one: this one serves since, as somebody has asked it for another.
        word >> 1 > u64::from(wish) || word & 1 == 1
    }

    /// As it was [decided](Self::decide_upgrade), once it is.
    pub(crate) fn upgrade_decided(&self, wish: u32) -> Option<bool> {
        let word = self.wishes.decided.load(Ordering::SeqCst);
        (word >> 1 == u64::from(wish)).then_some(word & 1 == 1)
    }

    fn end_of(&self, wish: u32) -> Option<&AtomicU64> {
        self.wishes.ends.get((wish % ENDS) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn one_binary_goes_on_whoever_asks_first() {
        let (_memory, board) = Board::create(&Policy::default()).unwrap();
        assert_eq!(board.upgrade_decided(1), None);
        assert_eq!([true, false, true].map(|serves| board.decide_upgrade(1, serves)), [true; 3]);
        assert_eq!(board.upgrade_decided(1), Some(true));
        assert_eq!([false, true, false].map(|serves| board.decide_upgrade(2, serves)), [false; 3]);
        assert_eq!([1, 2].map(|wish| board.upgrade_decided(wish)), [None, Some(false)]);
        assert!(board.decide_upgrade(1, true));
        assert!(board.decide_upgrade(3, true) && board.decide_upgrade(3, false));
    }

    #[test]
    fn a_wish_has_one_end_which_is_remembered_for_a_while() {
        let (_memory, board) = Board::create(&Policy::default()).unwrap();
        assert_eq!((board.upgrade_wanted(), board.upgrade_end(0)), (None, None));
        let ends = [
            UpgradeEnd::Done,
            UpgradeEnd::untouched(WhyNot::Unable),
            UpgradeEnd::untouched(WhyNot::CannotRun { code: libc::ENOEXEC }),
            UpgradeEnd::undone(WhyNot::Ended { death: None }),
            UpgradeEnd::undone(WhyNot::Ended { death: Some(Death::Exited(255)) }),
            UpgradeEnd::undone(WhyNot::Ended { death: Some(Death::Signal(libc::SIGSEGV)) }),
            UpgradeEnd::undone(WhyNot::TooLate),
            UpgradeEnd::undone(WhyNot::Cancelled),
            UpgradeEnd::untouched(WhyNot::Unanswered),
            UpgradeEnd::undone(WhyNot::OldKilled),
            UpgradeEnd::undone(WhyNot::Stopped),
        ];
        let wishes = ends.map(|end| {
            let number = board.want_upgrade("/bin/true".as_ref(), LONG);
            let wish = board.upgrade_wanted().unwrap();
            assert_eq!((wish.number, wish.program.as_path()), (number, Path::new("/bin/true")));
            assert_eq!((wish.timeout, board.upgrade_end(number)), (LONG, None));
            board.note_upgrade(number, end);
            board.note_upgrade(number, UpgradeEnd::undone(WhyNot::Unanswered));
            assert_eq!(board.upgrade_wanted(), None);
            number
        });
        for (wish, end) in wishes.into_iter().zip(ends) {
            assert_eq!(board.upgrade_end(wish), Some(end));
            assert_eq!(board.upgrade_outcome(wish), Some(end == UpgradeEnd::Done));
        }
    }

    #[test]
    fn only_a_zygote_goes_on_as_another_binary() {
        let (_memory, board) = Board::create(&Policy::default()).unwrap();
        assert!(!board.takes_upgrades(7));
        board.note_begin(8, Duration::ZERO);
        for (backend, zygote, alone) in
            [(Backend::Library, true, false), (Backend::Exec, false, false), (Backend::Roles, false, false)]
        {
            board.set_backend(backend);
            assert_eq!((board.takes_upgrades(7), board.takes_upgrades(8)), (zygote, alone), "{backend:?}");
        }
    }

    #[test]
    fn a_wish_is_over_when_it_is_withdrawn_or_too_late() {
        let (_memory, board) = Board::create(&Policy::default()).unwrap();
        let wish = board.want_upgrade("".as_ref(), LONG);
        assert_eq!(board.upgrade_is_over(wish), None);
        board.cancel_upgrade(wish);
        assert_eq!(board.upgrade_is_over(wish), Some(WhyNot::Cancelled));
        board.note_upgrade(wish, UpgradeEnd::untouched(WhyNot::Cancelled));
        let wish = board.want_upgrade("".as_ref(), Duration::ZERO);
        assert_eq!(board.upgrade_is_over(wish), Some(WhyNot::TooLate));
        // Whoever comes too late with it must not carry it out.
        board.note_upgrade(wish, UpgradeEnd::untouched(WhyNot::Unanswered));
        assert!(board.upgrade_is_over(wish).is_some());
        let last = board.want_upgrade("x".repeat(PROGRAM_BYTES_MAX).as_ref(), Duration::MAX);
        assert_eq!(board.upgrade_wanted().unwrap().program.as_os_str().len(), PROGRAM_BYTES_MAX);
        assert_eq!(board.upgrade_is_over(last), None);
    }
}
