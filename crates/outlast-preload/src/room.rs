//! Room for the next generation where the one before has had as many descriptors as it may have: to begin, a program
//! needs some that it has closed again when it serves.

use crate::left::Left;
use crate::sys;
use crate::table::Table;
use outlast_restart::parts;
use std::sync::atomic::{AtomicU64, Ordering};

/// Besides what the generation before had open when it died. Not more than a part of a small limit.
const TO_BEGIN: u64 = 32;
/// Of what that one had, connections make room for no more: it may have died because it had lost count.
const OTHERS_MAX: u64 = 64;
/// Which part.
const PART: u64 = 4;

/// The limit as it was, and as it was raised; 0: it was not.
static LIMIT: AtomicU64 = AtomicU64::new(0);
static RAISED: AtomicU64 = AtomicU64::new(0);

/// How a generation gets the room that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// Another limit.
    limit: u64,
    /// So many connections make room.
    close: u64,
}

/// For a limit that can be raised up to `hard`, when `open` are open and `others` were.
fn plan(limit: u64, hard: u64, open: u64, others: u64) -> Plan {
    let part = limit / PART;
    let to_begin = TO_BEGIN.min(part);
    let wanted = open + others + to_begin;
    if wanted <= limit {
        return Plan { limit, close: 0 };
    }
    let raised = wanted.min(hard).max(limit);
    Plan { limit: raised, close: (open + others.min(OTHERS_MAX.min(part)) + to_begin).saturating_sub(raised) }
}

/// In the keeper, before the next generation begins.
pub fn make(left: &mut Left, table: &Table) {
    let (now, hard) = sys::descriptors_limits();
    let limit = match LIMIT.swap(0, Ordering::Relaxed) {
        0 => now,
        before => before,
    };
    let Ok(open) = parts::descriptors() else { return };
    let plan = plan(limit, hard, open.len() as u64, left.others() as u64);
    if plan.limit != now && !sys::limit_descriptors(plan.limit) {
        return;
    }
    if plan.limit != limit {
        LIMIT.store(limit, Ordering::Relaxed);
        RAISED.store(plan.limit, Ordering::Relaxed);
    }
    let closed = left.close_connections(usize::try_from(plan.close).unwrap_or(usize::MAX), table);
    if closed > 0 {
        sys::say(&format!(
            "{closed} idle connections are closed: the next generation needs descriptors to begin, and {hard} are all that \
             it may have (raise the limit, such as by ulimit -Hn)"
        ));
    }
}

/// In the generation, when it has begun: the limit is as the program knows it, unless it has set another one.
pub fn give_back() {
    let limit = LIMIT.swap(0, Ordering::Relaxed);
    if limit != 0 && sys::descriptors_limits().0 == RAISED.load(Ordering::Relaxed) {
        sys::limit_descriptors(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_before_connections_are_closed() {
        // There is room.
        assert_eq!(plan(1024, 4096, 100, 10), Plan { limit: 1024, close: 0 });
        assert_eq!(plan(1024, 1024, 982, 10), Plan { limit: 1024, close: 0 });
        // It can be had.
        assert_eq!(plan(1024, 4096, 1020, 4), Plan { limit: 1056, close: 0 });
        // It can be had in part, or not at all.
        assert_eq!(plan(1024, 1040, 1020, 4), Plan { limit: 1040, close: 16 });
        assert_eq!(plan(1024, 1024, 1020, 4), Plan { limit: 1024, close: 32 });
        assert_eq!(plan(64, 64, 60, 4), Plan { limit: 64, close: 16 });
        // Who has lost count does not need all of it again.
        assert_eq!(plan(1024, 1024, 100, 924), Plan { limit: 1024, close: 0 });
    }
}
