//! Ends of the process, and files that go with sockets.

use super::hooks;
use crate::keeper;
use crate::left;
use crate::role::{self, Role};
use crate::room;
use crate::settings;
use crate::snapshot;
use crate::sys;
use crate::table;
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// Texts, and a null.
type List = *const *const c_char;

/// The process is about to end past all handlers, of which the next generation's keeper would know otherwise.
fn note_exit(code: c_int) {
    if role::role() == Role::Snapshot
        && role::is_own()
        && let Some(table) = table::current()
    {
        table.exit_code.store(code.unsigned_abs().saturating_add(1), Ordering::SeqCst);
    }
}

/// Whether this is the file of a listener that was left, which the program removes to bind anew.
fn is_left(path: *const c_char) -> bool {
    if path.is_null() || role::role() == Role::Outside {
        return false;
    }
    // SAFETY: a string that the program has given to the C library.
    left::has_path(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Executes another program: in this process, that is still the one that is looked after, and it needs the board.
fn executing(call: impl FnOnce() -> c_int) -> c_int {
    let board = settings::board_descriptor().filter(|_| role::role() != Role::Outside && role::is_own());
    if let Some(board) = board {
        sys::set_inherited(board, true);
    }
    // Before it serves, it may be another program that does.
    let passes_on = keeper::is_beginning();
    if passes_on {
        left::set_inherited(true);
    }
    // The next program would take a limit that was raised to begin for its own.
    room::give_back();
    let result = call();
    if passes_on {
        let _errno = sys::Errno::keep();
        left::set_inherited(false);
    }
    if let Some(board) = board {
        let _errno = sys::Errno::keep();
        sys::set_inherited(board, false);
    }
    result
}

hooks! {
    fn execve(path: *const c_char, list: List, variables: List) -> c_int, next =>
        executing(|| next(path, list, variables));
    fn execv(path: *const c_char, list: List) -> c_int, next => executing(|| next(path, list));
    fn execvp(file: *const c_char, list: List) -> c_int, next => executing(|| next(file, list));
    fn execvpe(file: *const c_char, list: List, variables: List) -> c_int, next =>
        executing(|| next(file, list, variables));

    fn unlink(path: *const c_char) -> c_int, next => if is_left(path) { 0 } else { next(path) };
    fn remove(path: *const c_char) -> c_int, next => if is_left(path) { 0 } else { next(path) };
    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int, next =>
        if is_left(path) { 0 } else { next(folder, path, flags) };
}

/// See the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(code: c_int) -> ! {
    note_exit(code);
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// See the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(code: c_int) -> ! {
    _exit(code)
}

/// A program that forks before it waits for clients is served by its children: it need not wait itself to be ready.
pub extern "C" fn forking() {
    let _errno = sys::Errno::keep();
    if snapshot::is_pending() {
        keeper::note_serving();
    }
}

/// In a child of the program: what is left is its parent's.
pub extern "C" fn forked() {
    let _errno = sys::Errno::keep();
    if role::role() == Role::Outside {
        return;
    }
    role::set_forked();
    table::set_current(None);
    left::close_all();
}
