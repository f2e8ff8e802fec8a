//! The rules by which packets of the portal come to this process, and pass only with its word.

use outlast_netlink::ack_filter::{AckFilter, mark_and_mask};
use outlast_netlink::filter::{Rule, Table, Way, Which};
use outlast_netlink::queue::{Queue, Settings};
use outlast_netlink::{Protocol, Socket};
use std::io;
use std::net::SocketAddr;

/// Packets with it pass: those that this process makes itself.
pub const MARK: u32 = 0x6f75_746c;
/// Queues are tried from here on: several portals on one machine have one each.
const QUEUE_FIRST: u16 = 0x6f00;
const QUEUES: u16 = 256;
/// Headers alone.
pub(super) const COPY_BYTES: u32 = 128;
/// As many as wait on a fast link for some milliseconds.
const PACKETS_MAX: u32 = 1 << 16;
const SOCKET_BYTES: usize = 16 << 20;

/// The rules of a portal, which go when this is dropped. After a crash they stay: then nothing of the portal passes, and the next run replaces
/// them.
#[derive(Debug)]
pub struct Rules {
    table: Table,
}

impl Rules {
    /// Sets them, in the calling thread's network namespace, with the queue to which they send packets.
    ///
    /// # Errors
    /// This process may not (`CAP_NET_ADMIN`), the kernel has no nf_tables or no NFQUEUE, or there is no free queue.
    pub fn set(portal: SocketAddr) -> io::Result<(Self, Packets)> {
        let settings =
            Settings { copy_bytes: COPY_BYTES, packets_max: PACKETS_MAX, socket_bytes: SOCKET_BYTES };
        let mut numbers = QUEUE_FIRST..QUEUE_FIRST + QUEUES;
        let (number, queue) = loop {
            let Some(number) = numbers.next() else { return Err(io::ErrorKind::AddrInUse.into()) };
            match Queue::bind(number, settings) {
                Ok(queue) => break (number, queue),
                // Another process has it; without the right to have one it is the same error, so the next ones are tried in vain.
                Err(error) if is_taken(&error) && number + 1 < QUEUE_FIRST + QUEUES => {}
                Err(error) => return Err(error),
            }
        };
        // As nft(8) can read it.
        let name: String = portal.to_string().replace(':', "_").replace(['[', ']'], "");
        let table = Table { name: format!("outlast-{name}") };
        let filter = AckFilter::load();
        if let Err(error) = &filter {
            tracing::debug!(%error, "the kernel takes no program for packets (CAP_BPF): all that leave the portal wait for a verdict");
        }
        let mut packets = Packets { queue, passes_input: true, filter: filter.ok() };
        let mut socket = Socket::open(Protocol::Netfilter)?;
        loop {
            match table.set(&mut socket, &packets.rules(portal, number)) {
                Ok(()) => return Ok((Self { table }, packets)),
                // The kernel may lack what only saves time.
                Err(error) if packets.filter.take().is_some() => {
                    tracing::debug!(%error, "the kernel asks no program about packets: all that leave the portal wait for a verdict");
                }
                Err(error) if std::mem::replace(&mut packets.passes_input, false) => {
                    tracing::debug!(%error, "the kernel does not look for sockets: all that comes to the portal waits for a verdict");
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Packets of a portal: those that wait for a verdict, and how others pass.
#[derive(Debug)]
pub struct Packets {
    pub(super) queue: Queue,
    /// What comes to a socket with a mark of the filter's passes.
    pub(super) passes_input: bool,
    /// What leaves passes where this says so.
    pub(super) filter: Option<AckFilter>,
}

impl Packets {
    fn rules(&self, portal: SocketAddr, queue: u16) -> Vec<Rule<'_>> {
        let (mark, mask) = mark_and_mask();
        let input = self.passes_input.then_some((Way::Input, Which::OfSockets { mark, mask }));
        let output = self.filter.iter().map(|filter| (Way::Output, Which::Program(filter.program())));
        let others = [Way::Input, Way::Output].map(|way| (way, Which::Queue { mark: MARK, queue }));
        let rules = input.into_iter().chain(output).chain(others);
        rules.map(|(way, which)| Rule { way, address: portal, which }).collect()
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy)
}

impl Drop for Rules {
    fn drop(&mut self) {
        let removed = Socket::open(Protocol::Netfilter).and_then(|mut socket| self.table.remove(&mut socket));
        if let Err(error) = removed {
            tracing::error!(%error, table = self.table.name, "the rules of the portal cannot be removed");
        }
    }
}
