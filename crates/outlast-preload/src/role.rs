//! What this process is, as far as the hooks have to know.

use crate::sys;
use crate::table::Table;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Nobody's business.
    Outside = 0,
    /// A generation below a [keeper](crate::keeper).
    Main = 1,
    /// It was forked, and goes on from a snapshot, which is made when it first waits for clients.
    Candidate = 2,
    /// A generation that goes on from a snapshot, or could not be one.
    Snapshot = 3,
}

static ROLE: AtomicU8 = AtomicU8::new(0);
static PID: AtomicI32 = AtomicI32::new(0);
/// Of the generation that has forked this process; null: it was not forked.
static MAIN: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// Of its generations, so many had died when this process was forked.
static DEATHS: AtomicU32 = AtomicU32::new(0);

/// What this process is.
pub fn role() -> Role {
    match ROLE.load(Ordering::Relaxed) {
        1 => Role::Main,
        2 => Role::Candidate,
        3 => Role::Snapshot,
        _ => Role::Outside,
    }
}

/// What this process is from now on.
pub fn set_role(role: Role) {
    PID.store(sys::pid(), Ordering::Relaxed);
    ROLE.store(role as u8, Ordering::Relaxed);
}

/// Whether this is the process that has that role, and not one that `vfork` has made, which uses its memory.
pub fn is_own() -> bool {
    PID.load(Ordering::Relaxed) == sys::pid()
}

/// In a child that the program has made by `fork`: it may become a server of its own.
pub fn set_forked() {
    if role() == Role::Outside {
        return;
    }
    // Whose children fork, too, is still who begins anew.
    if let Some(table) = crate::table::current().filter(|_| !is_forked()) {
        MAIN.store(std::ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
        DEATHS.store(table.deaths.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    set_role(Role::Candidate);
}

/// The table of the generation that has forked this process.
pub fn main() -> Option<&'static Table> {
    // SAFETY: null, or from a reference that is good for ever.
    unsafe { MAIN.load(Ordering::Relaxed).as_ref() }
}

/// Whether this process was forked by the program.
pub fn is_forked() -> bool {
    main().is_some()
}

/// Whether this process was forked by a generation that has died: another one serves, and this one only goes on with
/// what it has.
pub fn is_retired() -> bool {
    main().is_some_and(|main| main.deaths.load(Ordering::Relaxed) != DEATHS.load(Ordering::Relaxed))
}
