//! Packets that pass without a verdict: by the marks of their sockets, and by a program in the kernel.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed expectation is the message of a test")]

use crate::queue::{SETTINGS, lab};
use outlast_netlink::ack_filter::{AckFilter, Slot, mark_and_mask};
use outlast_netlink::filter::{Rule, Table, Way, Which};
use outlast_netlink::queue::{Hook, Queue, Received, Verdict};
use outlast_netlink::{Protocol, Socket};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const PORT: u16 = 7002;
const QUEUE: u16 = 12;
const LONG: Duration = Duration::from_secs(1 << 32);

/// What has come to the queue.
#[derive(Default)]
struct Seen {
    input: AtomicU32,
    output: AtomicU32,
    /// The last number that was acknowledged there.
    acknowledged: AtomicU32,
    is_over: AtomicBool,
}

impl Seen {
    fn counts(&self) -> (u32, u32) {
        (self.input.load(Ordering::SeqCst), self.output.load(Ordering::SeqCst))
    }

    /// All packets pass that come to the queue, until it is over.
    fn pass_all(&self, mut queue: Queue) {
        while !self.is_over.load(Ordering::SeqCst) {
            let seen = match queue.receive().unwrap() {
                Received::Packet(packet) => Some((packet.id, packet.hook, packet.bytes.to_vec())),
                _ => None,
            };
            let Some((id, hook, bytes)) = seen else {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            };
            if hook == Hook::Output {
                let tcp = if bytes[0] >> 4 == 4 { 20 } else { 40 };
                let ack = u32::from_be_bytes(bytes[tcp + 8..tcp + 12].try_into().unwrap());
                self.acknowledged.store(ack, Ordering::SeqCst);
                self.output.fetch_add(1, Ordering::SeqCst);
            } else {
                self.input.fetch_add(1, Ordering::SeqCst);
            }
            queue.decide(id, Verdict::Accept);
            queue.flush().unwrap();
        }
    }
}

/// The client says something, and the server answers. How many packets of each direction wait for that.
fn talk(seen: &Seen, client: &mut TcpStream, server: &mut TcpStream) -> (u32, u32) {
    let before = seen.counts();
    let mut room = [0; 5];
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut room).unwrap();
    server.write_all(b"world").unwrap();
    client.read_exact(&mut room).unwrap();
    // The client acknowledges what it has got within that time.
    std::thread::sleep(Duration::from_millis(60));
    let after = seen.counts();
    (after.0 - before.0, after.1 - before.1)
}

fn set_mark(socket: &TcpStream, mark: u32) {
    socket2::SockRef::from(socket).set_mark(mark).unwrap();
}

#[test]
fn what_acknowledges_no_more_than_it_may_passes_and_all_else_waits() {
    let Some((lab, client, server)) = lab("ack-filter") else { return };
    lab.connect(&client, &server).unwrap();
    for address in [server.socket_addr(PORT), server.socket_addr_v6(PORT)] {
        let mut filter = AckFilter::load().unwrap();
        let (mark, mask) = mark_and_mask();
        let others = Which::Queue { mark: 1, queue: QUEUE };
        let rules = [
            (Way::Input, Which::OfSockets { mark, mask }),
            (Way::Output, Which::Program(filter.program())),
            (Way::Input, others),
            (Way::Output, others),
        ];
        let rules = rules.map(|(way, which)| Rule { way, address, which });
        let table = Table { name: "outlast-test".to_owned() };
        let set = || table.set(&mut Socket::open(Protocol::Netfilter).unwrap(), &rules);
        server.enter(set).unwrap().unwrap();
        let queue = server.enter(|| Queue::bind(QUEUE, SETTINGS).unwrap()).unwrap();
        let listener = server.enter(|| TcpListener::bind(address).unwrap()).unwrap();
        let seen = Seen::default();
        std::thread::scope(|scope| {
            scope.spawn(|| seen.pass_all(queue));
            let stop = Stop(&seen);
            let mut near = client.enter(|| TcpStream::connect(address).unwrap()).unwrap();
            let (mut far, peer) = listener.accept().unwrap();
            near.set_nodelay(true).unwrap();
            check(&seen, &mut filter, (&mut near, &mut far), peer);
            drop(stop);
        });
    }
}

/// Ends the other thread, also where a check fails.
struct Stop<'a>(&'a Seen);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

fn check(
    seen: &Seen,
    filter: &mut AckFilter,
    (near, far): (&mut TcpStream, &mut TcpStream),
    peer: SocketAddr,
) {
    let (input, output) = talk(seen, near, far);
    assert!(input >= 2 && output >= 1, "without a mark: {input}, {output}");
    let acknowledged = seen.acknowledged.load(Ordering::SeqCst);
    // So many that the number of the next one has bits in both parts of the mark.
    let others: Vec<Slot> = (0..600).map(|_| filter.add(peer).unwrap()).collect();
    assert_eq!(others.len(), 600);
    let slot = filter.add(peer).unwrap();
    let after = |exchanges: u32| acknowledged.wrapping_add(exchanges * 5);
    set_mark(far, slot.mark());
    // It is allowed, but not for any time.
    filter.allow(&slot, peer, after(2));
    let (input, output) = talk(seen, near, far);
    assert!(input == 0 && output >= 1, "without a time: {input}, {output}");
    filter.allow_until(LONG);
    assert_eq!(talk(seen, near, far), (0, 0));
    // Too far.
    let (input, output) = talk(seen, near, far);
    assert!(input == 0 && output >= 1, "beyond what is allowed: {input}, {output}");
    filter.allow(&slot, peer, after(100));
    assert_eq!(talk(seen, near, far), (0, 0));
    // Another client's, and none's.
    let other = |port| SocketAddr::new(peer.ip(), port);
    filter.allow(&slot, other(peer.port() ^ 1), after(100));
    let (_, output) = talk(seen, near, far);
    assert!(output >= 1);
    filter.remove(slot);
    let slot = filter.add("192.0.2.1:80".parse().unwrap()).unwrap();
    filter.allow(&slot, peer, after(100));
    let (_, output) = talk(seen, near, far);
    assert!(output >= 1);
    filter.remove(slot);
    let slot: Slot = filter.add(peer).unwrap();
    filter.allow(&slot, peer, after(100));
    set_mark(far, slot.mark());
    assert_eq!(talk(seen, near, far), (0, 0));
    // Ends wait, in both directions, and so do resets.
    let before = seen.counts();
    far.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    near.read_to_end(&mut rest).unwrap();
    assert!(seen.counts().1 > before.1);
    near.shutdown(std::net::Shutdown::Write).unwrap();
    far.read_to_end(&mut rest).unwrap();
    assert!(seen.counts().0 > before.0 && rest.is_empty());
}
