//! Listening sockets that the program shuts down for another binary, and that stay open all the same: clients wait in their queues for
//! the next start, and a shutdown would refuse or reset them, as it is one for all copies of a socket.
//!
//! The program believes it. The table says which sockets are meant, and `accept` there fails as the kernel would have it
//! (EINVAL). Processes and threads that wait there, by whatever call, are woken up by connections that say nothing and end at once.

use crate::marks;
use crate::sys;
use crate::sys::waiting;
use outlast_restart::custody::table::Table;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;

/// So many are woken up at the most, one after the other.
const WAKE_UPS_MAX: usize = 512;
/// So many are left to those who have not woken up in time.
const FURTHER_WAKE_UPS: usize = 16;
/// Between two looks whether somebody has woken up.
const LOOK_US: u32 = 200;
/// When nobody has woken up for so many looks, nobody waits there: about 30 ms.
const LOOKS: usize = 150;

/// Shuts a listening socket down, as far as the program can see. Whether that could be done.
pub fn pretend(descriptor: RawFd, table: &Table) -> bool {
    let can_be_woken = marks::is_listening(descriptor)
        && sys::does_listen(descriptor)
        && waiting::queued_count(descriptor).is_some()
        // Another one of its group may get it.
        && !sys::shares_port(descriptor)
        // There a connection that says nothing wakes nobody up.
        && waiting::tcp_option(descriptor, libc::TCP_DEFER_ACCEPT) == Some(0)
        && wakes_up(descriptor);
    // Before anybody is woken up.
    if !can_be_woken || !table.shut_down.add(sys::cookie(descriptor)) {
        return false;
    }
    for count in 0..WAKE_UPS_MAX {
        table.shut_down.wake_ups.fetch_add(1, Ordering::SeqCst);
        if !wake_one_up(descriptor) {
            table.shut_down.wake_ups.fetch_sub(1, Ordering::SeqCst);
            if count == 0 {
                // Who waits would not hear of it.
                table.shut_down.remove(sys::cookie(descriptor));
                return false;
            }
            break;
        }
        if !is_taken(descriptor) {
            // Nobody waits there; or those who do have had no processor yet, and find these when they have.
            for _ in 0..FURTHER_WAKE_UPS {
                table.shut_down.wake_ups.fetch_add(1, Ordering::SeqCst);
                if !wake_one_up(descriptor) {
                    table.shut_down.wake_ups.fetch_sub(1, Ordering::SeqCst);
                    break;
                }
            }
            break;
        }
    }
    true
}

/// Whether a connection to the socket's own address could be made: not where it is bound to a network interface.
fn wakes_up(descriptor: RawFd) -> bool {
    const SO_BINDTOIFINDEX: libc::c_int = 62;
    sys::option(descriptor, SO_BINDTOIFINDEX).unwrap_or(0) == 0
}

/// A client that says nothing.
fn wake_one_up(descriptor: RawFd) -> bool {
    let address = sys::name(descriptor, false);
    sys::new_of_tcp(descriptor)
        .is_some_and(|client| waiting::begin_connecting(client.as_raw_fd(), address.as_ref()))
}

/// Whether all who have come are accepted soon.
fn is_taken(descriptor: RawFd) -> bool {
    (0..LOOKS).any(|_| {
        sys::pause_us(LOOK_US);
        waiting::queued_count(descriptor) == Some(0)
    })
}

/// Whether the program, or its master, has shut this socket down: nobody is to be accepted there.
pub fn is_shut_down(descriptor: RawFd, table: &Table) -> bool {
    table.shut_down.has_any() && !marks::is_silent() && table.shut_down.has(sys::cookie(descriptor))
}

/// Whether what was accepted is there to wake somebody up: it is closed then. A client that has said nothing and is gone is as
/// good as one.
pub fn was_wake_up(accepted: RawFd, table: &Table) -> bool {
    let wake_ups = &table.shut_down.wake_ups;
    if wake_ups.load(Ordering::Relaxed) == 0 || marks::is_silent() || !waiting::is_over_unsaid(accepted) {
        return false;
    }
    let less = |count: u32| count.checked_sub(1);
    let _ = wake_ups.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    sys::close(accepted);
    true
}
