//! Packets that wait in a queue of the kernel.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed expectation is the message of a test")]

use outlast_lab::{Host, Lab};
use outlast_netlink::filter::{Rule, Table, Way, Which};
use outlast_netlink::queue::{Hook, Queue, Received, Settings, Verdict};
use outlast_netlink::{Protocol, Socket};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
const QUEUE: u16 = 11;
pub const SETTINGS: Settings = Settings { copy_bytes: 128, packets_max: 1000, socket_bytes: 1 << 20 };
const MARK: u32 = 0x77;

thread_local! {
    static TABLE: Table = Table { name: "outlast-test".to_owned() };
}

/// Of the TCP header behind an IPv4 header without options.
const FLAGS_AT: usize = 20 + 13;
const SYN: u8 = 2;
const ACK: u8 = 16;

fn rules(address: SocketAddr) -> [Rule<'static>; 2] {
    let which = Which::Queue { mark: MARK, queue: QUEUE };
    [Way::Input, Way::Output].map(|way| Rule { way, address, which })
}

/// Two hosts, without a link. None: this machine has no such thing.
pub fn lab(name: &str) -> Option<(Lab, Host, Host)> {
    if let Err(missing) = Lab::available() {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{missing}");
        eprintln!("SKIPPED: {missing}");
        return None;
    }
    let lab = Lab::new(name).unwrap();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    Some((lab, client, server))
}

/// The same; what comes to the second one's port, and what it answers, waits in a queue.
fn scene(name: &str) -> Option<(Lab, Host, Host)> {
    let (lab, client, server) = lab(name)?;
    lab.connect(&client, &server).unwrap();
    let address = server.socket_addr(PORT);
    let set =
        || TABLE.with(|table| table.set(&mut Socket::open(Protocol::Netfilter).unwrap(), &rules(address)));
    server.enter(set).unwrap().unwrap();
    Some((lab, client, server))
}

/// Decides on what comes until `is_done`, and counts it.
fn decide(queue: &mut Queue, mut how: impl FnMut(Hook, &[u8]) -> Verdict, is_done: impl Fn() -> bool) -> u32 {
    let (mut count, deadline) = (0, Instant::now() + Duration::from_secs(20));
    while !is_done() {
        assert!(Instant::now() < deadline, "it takes too long: {count} packets");
        let decided = match queue.receive().unwrap() {
            Received::Packet(packet) => Some((packet.id, how(packet.hook, packet.bytes))),
            _ => None,
        };
        if let Some((id, verdict)) = decided {
            count += 1;
            queue.decide(id, verdict);
            queue.flush().unwrap();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    count
}

#[test]
fn packets_wait_for_their_verdict_and_without_anybody_they_are_dropped() {
    let Some((_lab, client, server)) = scene("queue") else { return };
    let mut queue = server.enter(|| Queue::bind(QUEUE, SETTINGS).unwrap()).unwrap();
    let again = server.enter(|| Queue::bind(QUEUE, SETTINGS).map(drop)).unwrap();
    assert!(again.is_err(), "two have the same queue");
    let listener = server.enter(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap()).unwrap();
    let address = server.socket_addr(PORT);
    let talk = std::thread::spawn(move || {
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(20)).unwrap();
        let mut stream = client.enter(connect).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        (client, answer)
    });
    let serve = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut said = [0; 5];
        stream.read_exact(&mut said).unwrap();
        stream.write_all(b"world").unwrap();
        (listener, stream)
    });
    let (mut first, mut dropped) = (Vec::new(), 0);
    decide(
        &mut queue,
        |hook, bytes| {
            let flags = bytes[FLAGS_AT] & (SYN | ACK);
            first.push((hook, flags));
            // The first answer is lost, and repeated.
            if flags == SYN | ACK && dropped == 0 {
                dropped += 1;
                return Verdict::Drop;
            }
            Verdict::Accept
        },
        || talk.is_finished(),
    );
    assert_eq!(first[..2], [(Hook::Input, SYN), (Hook::Output, SYN | ACK)]);
    let answers = first.iter().filter(|packet| **packet == (Hook::Output, SYN | ACK)).count();
    assert!(answers >= 2, "{first:?}");
    let (client, answer) = talk.join().unwrap();
    assert_eq!(&answer, b"world");
    drop(serve.join().unwrap());
    // Closed: nobody is there, so nothing passes.
    drop(queue);
    let refused = client.enter(|| TcpStream::connect_timeout(&address, Duration::from_millis(500))).unwrap();
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn who_is_too_slow_is_told() {
    let Some((_lab, client, server)) = scene("slow-queue") else { return };
    let settings = Settings { socket_bytes: 1, ..SETTINGS };
    let mut queue = server.enter(|| Queue::bind(QUEUE, settings).unwrap()).unwrap();
    let address = server.socket_addr(PORT);
    // Nobody answers: each of them sends one packet.
    let connects: Vec<_> = (0..50)
        .map(|_| {
            client
                .enter(|| {
                    let socket = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(1));
                    assert!(socket.is_err());
                })
                .unwrap();
        })
        .collect();
    assert_eq!(connects.len(), 50);
    let (mut packets, mut overflows) = (0, 0);
    loop {
        match queue.receive().unwrap() {
            Received::Packet(_) => packets += 1,
            Received::Overflow => overflows += 1,
            Received::Nothing => break,
        }
    }
    assert!(packets > 0 && packets < 50 && overflows > 0, "{packets} {overflows}");
}

#[test]
fn rules_go_as_a_whole_and_others_stay() {
    let Some((_lab, client, server)) = scene("own-rules") else { return };
    let foreign = ["-w", "-A", "INPUT", "-p", "tcp", "--dport", "7001", "-j", "DROP"];
    assert!(server.command("iptables-legacy").args(foreign).status().unwrap().success());
    let _listener = server.enter(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap()).unwrap();
    let address = server.socket_addr(PORT);
    let connects = || {
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_ok();
        client.enter(connect).unwrap()
    };
    let change = |change: &(dyn Fn(&Table, &mut Socket) -> std::io::Result<()> + Sync)| {
        let change = || TABLE.with(|table| change(table, &mut Socket::open(Protocol::Netfilter).unwrap()));
        server.enter(change).unwrap().unwrap();
    };
    assert!(!connects(), "nobody has the queue");
    // Once more is not twice.
    change(&|table, socket| table.set(socket, &[]));
    assert!(connects());
    change(&|table, socket| table.set(socket, &rules(address)));
    assert!(!connects());
    for _ in 0..2 {
        change(&|table, socket| table.remove(socket));
        assert!(connects());
    }
    let left = server.command("iptables-legacy").args(["-S", "INPUT"]).output().unwrap();
    assert!(String::from_utf8_lossy(&left.stdout).contains("--dport 7001 -j DROP"));
}
