//! A program in the kernel (BPF, asked by a rule of the [packet filter](crate::filter)) that says which packets of TCP may leave without a verdict
//! of this process: those that carry data or an acknowledgement, neither begin nor end a connection, and acknowledge no more than is allowed.
//!
//! What is allowed stands in memory that the kernel and this process share: to change it takes no system call. A packet is known by its socket's
//! mark (`SO_MARK`), which has the number of the connection's entry there. Linux 5.8 (the clock, for
//! programs under any licence); `CAP_BPF`, or `CAP_SYS_ADMIN`.

mod program;
mod sys;

use program::program;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use sys::Memory;

/// What marks of sockets are alike in, and which of their bits that are. The others are the number of the entry, in two parts: programs that mark
/// packets for purposes of their own (kube-proxy, Cilium) look at the second byte from the right.
const MARK: u32 = 0x6f80_0000;
const MARK_MASK: u32 = 0xffc0_ff00;
/// Of the number.
const LOW_BITS: u32 = 0xff;
/// So far to the left of where they are in the number.
const HIGH_SHIFT: u32 = 8;
const HIGH_BITS: u32 = 0x3f00;
/// Entries, the first of which is of no connection.
const ENTRIES: u16 = 1 << 14;
/// Of that one: what is not allowed at that time, in nanoseconds of the monotonic clock, or later, is not allowed at all.
const UNTIL_AT: usize = 24;

/// What is known of one connection, at the offsets at which the program reads it.
#[repr(C, align(8))]
#[derive(Debug, Default)]
struct Entry {
    /// The other end's address, as the words of the packet's header are: the last one alone for IPv4.
    address: [AtomicU32; 4],
    /// And its port.
    port: AtomicU32,
    /// What may be acknowledged at the most: a number of TCP.
    acknowledges: AtomicU32,
    /// In the first entry alone.
    until_ns: AtomicU64,
}

const ADDRESS_AT: usize = 0;
const PORT_AT: usize = 16;
const ACKNOWLEDGES_AT: usize = 20;
const ENTRY_BYTES: usize = size_of::<Entry>();

/// The number of a connection's entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot(u16);

impl Slot {
    /// What the connection's socket has for a mark (`SO_MARK`).
    #[must_use]
    pub fn mark(&self) -> u32 {
        let number = u32::from(self.0);
        MARK | number & LOW_BITS | (number & HIGH_BITS) << HIGH_SHIFT
    }
}

/// The mark of a socket that has no entry, and how much of a mark is the same for all.
#[must_use]
pub fn mark_and_mask() -> (u32, u32) {
    (MARK, MARK_MASK)
}

/// The program, and what it reads. Nothing may leave before [`allow_until`](Self::allow_until).
#[derive(Debug)]
pub struct AckFilter {
    program: OwnedFd,
    memory: Memory,
    /// Those that were used, and are not.
    free: Vec<u16>,
    /// All from here on were never used.
    next: u16,
}

impl AckFilter {
    /// Has the kernel take it.
    ///
    /// # Errors
    /// This process may not, or the kernel is too old.
    pub fn load() -> io::Result<Self> {
        let map = sys::create_array(ENTRY_BYTES, u32::from(ENTRIES))?;
        let program = sys::load_socket_filter(&program(map.as_fd()))?;
        let memory = Memory::map(map.as_fd(), ENTRY_BYTES * usize::from(ENTRIES))?;
        Ok(Self { program, memory, free: Vec::new(), next: 1 })
    }

    /// An entry for a connection to this client. None: there are as many connections as there can be. It allows nothing for now.
    ///
    /// One that was given back is used again at once. A socket that goes on without its owner, with the mark of that one, sends to another client.
    pub fn add(&mut self, client: SocketAddr) -> Option<Slot> {
        let number = self.free.pop().or_else(|| {
            let number = self.next;
            self.next = (number < ENTRIES).then_some(number + 1)?;
            Some(number)
        })?;
        let entry = self.memory.entry(usize::from(number))?;
        let words = match client.ip() {
            IpAddr::V4(ip) => [0, 0, 0, ip.to_bits()],
            IpAddr::V6(ip) => {
                let [a, b, c, d] = [96, 64, 32, 0].map(|shift| ip.to_bits() >> shift & u128::from(u32::MAX));
                [a, b, c, d].map(|word| u32::try_from(word).unwrap_or(0))
            }
        };
        for (place, word) in entry.address.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        Some(Slot(number))
    }

    /// Packets to this client that acknowledge at the most this number of TCP may leave.
    pub fn allow(&self, slot: &Slot, client: SocketAddr, acknowledges: u32) {
        if let Some(entry) = self.memory.entry(usize::from(slot.0)) {
            entry.acknowledges.store(acknowledges, Ordering::Release);
            // Without it no packet is of this connection.
            entry.port.store(u32::from(client.port()), Ordering::Release);
        }
    }

    /// Packets of this connection wait for verdicts again.
    pub fn remove(&mut self, slot: Slot) {
        if let Some(entry) = self.memory.entry(usize::from(slot.0)) {
            entry.port.store(0, Ordering::Release);
            self.free.push(slot.0);
        }
    }

    /// Until then, on the monotonic clock (`CLOCK_MONOTONIC`), may leave what is allowed; nothing with a time that is over.
    pub fn allow_until(&self, until: Duration) {
        if let Some(entry) = self.memory.entry(0) {
            let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
            entry.until_ns.store(until_ns, Ordering::Release);
        }
    }

    /// For a rule of the packet filter.
    #[must_use]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
