//! What whoever started the program wants: from the environment, and from the supervisor's board.

use crate::passed::Passed;
use crate::sys;
use outlast_restart::board::Board;
use outlast_restart::policy::Policy;
use std::ffi::{CStr, CString, c_char};
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// `start` in the program that is to be looked after; in what that executes, its process, and other processes are left
/// alone.
const MARK: &str = "OUTLAST_PRELOAD";
/// `idle` or `listeners`.
const KEEP: &str = "OUTLAST_KEEP";
/// `1`: the next generation begins where the first one began to wait for clients, with its memory.
const SNAPSHOT: &str = "OUTLAST_SNAPSHOT";

/// What the next generation gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Sockets that listen, and connections on which nobody waits for an answer.
    Idle,
    /// Sockets that listen.
    Listeners,
}

/// In which process this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// In the one that is to be looked after.
    Start,
    /// In the one that is looked after, which executes another program, and passes that on.
    Again(Passed),
}

static BOARD: OnceLock<(&'static Board, RawFd)> = OnceLock::new();

/// The supervisor's, if there is one.
pub fn board() -> Option<&'static Board> {
    BOARD.get().map(|(board, _)| *board)
}

/// The descriptor of its memory.
pub fn board_descriptor() -> Option<RawFd> {
    BOARD.get().map(|(_, descriptor)| *descriptor)
}

/// Looks for it, once, before the program begins.
pub fn find_board() {
    let descriptor =
        std::env::var(outlast_restart::board::ENVIRONMENT).ok().and_then(|text| text.parse().ok());
    if let (Some(board), Some(descriptor)) = (Board::of_supervisor(), descriptor) {
        let _ = BOARD.set((board, descriptor));
    }
}

/// It is this process's: not closed by the program, and nothing for what that executes.
pub fn guard_board() {
    if let Some(descriptor) = board_descriptor() {
        sys::set_inherited(descriptor, false);
        crate::left::reserve(descriptor, true);
    }
}

/// Its limits, or the usual ones.
pub fn policy() -> Policy {
    board().and_then(Board::policy).unwrap_or_default()
}

/// As it was asked for; otherwise, idle connections.
pub fn keep() -> Keep {
    match std::env::var(KEEP).as_deref() {
        Ok("listeners") => Keep::Listeners,
        _ => Keep::Idle,
    }
}

/// Whether the program itself is to go on from a snapshot.
pub fn wants_snapshot() -> bool {
    std::env::var(SNAPSHOT).as_deref() == Ok("1")
}

/// Whether to look after this process at all.
pub fn mark() -> Option<Mark> {
    let mark = std::env::var(MARK).ok()?;
    if mark == "start" {
        return Some(Mark::Start);
    }
    let (pid, passed) = mark.split_once(' ').unwrap_or((&mark, ""));
    (pid.parse() == Ok(sys::pid())).then(|| Mark::Again(Passed::read(passed).unwrap_or_default()))
}

/// Writes into the environment that this process is looked after, and what it passes on if it executes another program
/// before it serves. In place: the program has been given the same list already, and some use that.
pub fn set_mark(environment: *mut *mut c_char, passed: &Passed) {
    let Ok(text) = CString::new(format!("{MARK}={}{passed}", sys::pid())) else { return };
    let mut place = environment;
    // SAFETY: the list that the program was started with: it ends with a null, and belongs to this process, in which
    // nothing else runs yet.
    unsafe {
        while !place.is_null() && !(*place).is_null() {
            let entry = CStr::from_ptr(*place).to_bytes();
            if entry.strip_prefix(MARK.as_bytes()).is_some_and(|rest| rest.starts_with(b"=")) {
                *place = text.into_raw();
                return;
            }
            place = place.add(1);
        }
    }
}
