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
        let filter = if looks_up_early() {
            AckFilter::load()
        } else {
            Err(io::Error::other(
                "the kernel does not look up sockets early (ip_early_demux, tcp_early_demux)",
            ))
        };
        if let Err(error) = &filter {
            tracing::warn!(%error, "every packet of clients waits for this process: round trips take longer (the kernel's filter needs CAP_BPF and Linux 5.8)");
        }
        let mut packets = Packets { queue, filter: filter.ok() };
        let mut socket = Socket::open(Protocol::Netfilter)?;
        loop {
            match table.set(&mut socket, &packets.rules(portal, number)) {
                Ok(()) => return Ok((Self { table }, packets)),
                // The kernel may lack what only saves time.
                Err(error) if packets.filter.take().is_some() => {
                    tracing::warn!(%error, "every packet of clients waits for this process: round trips take longer (the kernel lacks CONFIG_NFT_SOCKET or CONFIG_NETFILTER_XT_MATCH_BPF)");
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
    /// What leaves passes where this says so, and what comes to a socket with one of its marks.
    pub(super) filter: Option<AckFilter>,
}

impl Packets {
    fn rules(&self, portal: SocketAddr, queue: u16) -> Vec<Rule<'_>> {
        let (mark, mask) = mark_and_mask();
        let output = self.filter.as_ref().map(|filter| (Way::Output, Which::Program(filter.program())));
        let input = self.filter.as_ref().map(|_| (Way::Input, Which::OfSockets { mark, mask }));
        let others = [Way::Input, Way::Output].map(|way| (way, Which::Queue { mark: MARK, queue }));
        let rules = input.into_iter().chain(output).chain(others);
        rules.map(|(way, which)| Rule { way, address: portal, which }).collect()
    }
}

/// Whether the kernel knows the socket of a packet before rules ask for it. Else it looks for it again, and loses memory by that in some versions
/// (CVE-2024-46855).
fn looks_up_early() -> bool {
    // They say it for IPv6 as well.
    let files = ["/proc/sys/net/ipv4/ip_early_demux", "/proc/sys/net/ipv4/tcp_early_demux"];
    files.iter().all(|file| std::fs::read_to_string(file).is_ok_and(|value| value.trim() != "0"))
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
