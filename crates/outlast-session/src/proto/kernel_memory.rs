//! How much of the kernel's memory for TCP a server may leave with the connections to its service, and when such a
//! connection may take more.
//!
//! # Contract
//! The shell measures; nothing is remembered here but the last measurement ([`KernelMemory`]).
//!
//! # Policy
//! * From `net.ipv4.tcp_mem`'s second number on, the kernel slows every connection of the machine down. So sessions may
//!   hold what others leave below that, a quarter of it in any case. Who has to make room is as with memory: [`Budget`].
//! * What a service sends waits in the kernel where its client does not take it. The receive buffer of its connection grows
//!   only as its client acknowledges ([`may_grow`]): to ask for much and to leave costs the server little. A connection
//!   whose client has taken 4 MiB is the kernel's business, as long as the session has a link.

use super::Budget;

/// A client that has taken so much has paid for what its service's connection may hold.
const PAID_BYTES: u64 = 4 << 20;
/// Below this part of what there may be nobody is looked at.
const IDLE_PART: u64 = 4;

/// Whether the receive buffer of the service's connection may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Not now.
    Not,
    /// Ask again when more was passed on.
    ForNow,
    /// As long as the session has a link.
    Always,
}

/// Judges by the buffer's size, and by what the client has acknowledged so far. It is lent about what the client took: a
/// window then grows as quickly as the one of the link does.
pub fn may_grow(buffer_bytes: u64, acked_bytes: u64) -> Growth {
    if acked_bytes >= PAID_BYTES {
        Growth::Always
    } else if buffer_bytes <= acked_bytes.saturating_mul(4) {
        Growth::ForNow
    } else {
        Growth::Not
    }
}

/// What TCP holds in the kernel of this machine, when last measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelMemory {
    /// From here on the kernel slows all connections down. 0: not known.
    pub pressure_bytes: u64,
    /// All connections of the machine.
    pub machine_bytes: u64,
    /// Those between sessions without a link and their services, both ends.
    pub own_bytes: u64,
}

impl KernelMemory {
    /// What sessions may hold of it: all that others leave, a quarter in any case.
    pub fn budget(&self) -> Budget {
        let others_bytes = self.machine_bytes.saturating_sub(self.own_bytes);
        let bytes = self.pressure_bytes.saturating_sub(others_bytes).max(self.pressure_bytes / 4);
        // Where it is not known nothing is too much.
        Budget { bytes: if self.pressure_bytes == 0 { u64::MAX } else { bytes } }
    }

    /// Whether so much is held on the machine that it is worth to measure what sessions hold of it.
    pub fn is_worth_a_look(&self, budget: Budget) -> bool {
        let least =
            if self.pressure_bytes == 0 { budget.bytes } else { self.pressure_bytes.min(budget.bytes) };
        self.machine_bytes >= least / IDLE_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn a_buffer_grows_as_the_client_acknowledges() {
        assert_eq!(may_grow(128 * KIB, 0), Growth::Not);
        assert_eq!(may_grow(128 * KIB, 32 * KIB - 1), Growth::Not);
        assert_eq!(may_grow(128 * KIB, 32 * KIB), Growth::ForNow);
        assert_eq!(may_grow(MIB, 100 * KIB), Growth::Not);
        assert_eq!(may_grow(64 * MIB, 4 * MIB - 1), Growth::Not);
        assert_eq!(may_grow(64 * MIB, 4 * MIB), Growth::Always);
    }

    /// A client's window doubles in every round trip of its link. What is lent never holds it up by more than a round or
    /// two, also where the service is as far away as the client.
    #[test]
    fn what_is_lent_keeps_up_with_slow_start() {
        let rounds = |lent: bool| {
            let (mut acked_bytes, mut buffer_bytes, mut window_bytes, mut rounds) =
                (0, 128 * KIB, 14 * KIB, 0);
            while acked_bytes < PAID_BYTES {
                if !lent || may_grow(buffer_bytes, acked_bytes) != Growth::Not {
                    buffer_bytes *= 2;
                }
                // Half of a buffer is window.
                acked_bytes += window_bytes.min(buffer_bytes / 2);
                window_bytes *= 2;
                rounds += 1;
            }
            rounds
        };
        assert!(rounds(true) <= rounds(false) + 1, "{} for {}", rounds(true), rounds(false));
    }

    #[test]
    fn sessions_have_what_others_leave_and_a_quarter() {
        let kernel =
            |machine_bytes, own_bytes| KernelMemory { pressure_bytes: 1600, machine_bytes, own_bytes };
        assert_eq!(kernel(0, 0).budget().bytes, 1600);
        assert_eq!(kernel(1000, 1000).budget().bytes, 1600);
        assert_eq!(kernel(1000, 400).budget().bytes, 1000);
        // Other programs' hoards are no reason to give up sessions that hold little.
        let crowded = kernel(5000, 100);
        assert_eq!(crowded.budget().bytes, 400);
        assert!(!crowded.budget().is_scarce(100) && crowded.budget().is_short(360));
        assert!(KernelMemory::default().budget().admits(1 << 50, 1 << 50));
    }

    #[test]
    fn little_is_not_looked_at() {
        let budget = Budget { bytes: 64 * MIB };
        let kernel = |machine_bytes| KernelMemory { pressure_bytes: 1024 * MIB, machine_bytes, own_bytes: 0 };
        assert!(!kernel(16 * MIB - 1).is_worth_a_look(budget) && kernel(16 * MIB).is_worth_a_look(budget));
        let unlimited = Budget { bytes: u64::MAX };
        assert!(
            !kernel(255 * MIB).is_worth_a_look(unlimited) && kernel(256 * MIB).is_worth_a_look(unlimited)
        );
    }
}
