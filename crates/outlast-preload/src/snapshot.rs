//! A process that goes on from where it first waited for clients: a worker that the program has forked, or the program
//! itself, if that is asked for. It becomes a zygote of `outlast_restart`, and each generation has its memory as it was
//! then; what has happened since is in no memory, only in what the descriptors stand for.

use crate::keeper;
use crate::left::{self, Left, known};
use crate::listeners;
use crate::role::{self, Role};
use crate::settings::{self, Keep};
use crate::signals;
use crate::sys;
use crate::table::{self, Table};
use outlast_restart::board::Backend;
use outlast_restart::policy::{Inheritance, Policy};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// More are not allowed there.
const INTENSITY_MAX: usize = 20;

/// The program itself is to go on from one, and none was made yet.
static PENDING: AtomicBool = AtomicBool::new(false);

/// The program itself is to go on from a snapshot, or not.
pub fn expect(wanted: bool) {
    PENDING.store(wanted, Ordering::Relaxed);
}

/// Whether this is the program itself, and is to go on from a snapshot that was not made yet.
pub fn is_pending() -> bool {
    PENDING.load(Ordering::Relaxed) && role::role() == Role::Main && role::is_own()
}

/// Whether this process is to make one when it waits for clients. Quick.
pub fn is_wanted() -> bool {
    role::role() == Role::Candidate || is_pending()
}

/// Makes the snapshot, where it [is wanted](is_wanted). Returns in each generation.
pub fn begin() {
    if is_pending() {
        return begin_main();
    }
    // Whatever comes of it, it is not tried again, and the connections are looked after.
    role::set_role(Role::Snapshot);
    if let Err(error) = Table::new().and_then(|table| take(false, table)) {
        sys::say(&format!("this process does not outlive a crash: {error}"));
    }
}

fn begin_main() {
    let Some(table) = table::current() else { return };
    if left::any() {
        // They come first: a snapshot is not to have what is only for once.
        return keeper::note_serving();
    }
    expect(false);
    let Err(error) = take(true, table) else { return };
    role::set_role(Role::Main);
    if table.deaths.load(Ordering::SeqCst) == 0 {
        let instead = match settings::keep() {
            Keep::Idle => "its listening sockets and idle connections",
            Keep::Listeners => "its listening sockets",
        };
        sys::say(&format!(
            "no snapshot of the program: {error}; after a crash it begins anew, and keeps {instead}"
        ));
    }
    keeper::note_serving();
}

fn take(is_main: bool, table: &'static Table) -> io::Result<()> {
    let name = sys::name();
    table::set_current(Some(table));
    if outlast_restart::parts::thread_count()? != 1 {
        return Err(io::Error::other("it has several threads when it first waits for clients"));
    }
    if !is_main {
        // It is about another process.
        // SAFETY: there is one thread.
        unsafe { std::env::remove_var(outlast_restart::board::ENVIRONMENT) };
    }
    if let Some(main) = role::main().filter(|_| !is_main) {
        main.counts.count_worker();
    }
    let known = known()?;
    listeners::remember();
    let policy = settings::policy();
    let policy = Policy { intensity: policy.intensity.min(INTENSITY_MAX), ..policy };
    sys::set_name_to(c"outlast-keeper");
    let registered = outlast_restart::register_with(policy);
    sys::set_name(&name);
    let generation = registered.map_err(io::Error::other)?;
    role::set_role(Role::Snapshot);
    if is_main {
        table.has_snapshot.store(true, Ordering::SeqCst);
        if let Some(board) = settings::board() {
            board.set_backend(Backend::Snapshot);
        }
    }
    if !signals::die_with_parent(generation.zygote_pid().cast_signed()) {
        // Whoever could bury this process is gone, and with it the place in the program.
        sys::exit_now(1);
    }
    if generation.number() > 1 {
        if table.exit_code.load(Ordering::SeqCst) == 1 {
            // The last one has ended in order, but past all handlers.
            // SAFETY: as the program would call it.
            unsafe { libc::exit(0) };
        }
        let keep = match generation.inheritance() {
            Inheritance::Listeners => Keep::Listeners,
            _ => settings::keep(),
        };
        let epolls: Vec<_> = sys::epoll_instances();
        match Left::sort(table, &known, keep, &epolls) {
            Ok(left) => left.give_out(),
            Err(error) => {
                // Clients that nobody serves are to see an end.
                sys::say(&format!("the next generation cannot go on with what is left: {error}"));
                sys::exit_now(1);
            }
        }
        listeners::occupy_lost();
    }
    // Its generation is this process: there is nothing to drop it for.
    std::mem::forget(generation);
    Ok(())
}
