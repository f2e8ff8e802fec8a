//! A group of machines, each with its own server: clients keep their connections when one of them dies. Who leads is decided by
//! the test.

use outlast_lab::{Host, Lab, Link, Side};
use outlast_netlink::filter::{Rule, Table, Way};
use outlast_netlink::queue::{Queue, Settings as QueueSettings};
use outlast_netlink::{Protocol, Socket};
use outlast_replica::portal::machine::{Command, Handle, Machine, Settings};
use outlast_replica::{Limits, NodeId, View};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORTAL_PORT: u16 = 7000;
const SERVER_PORT: u16 = 6000;
const PEER_PORT: u16 = 7001;
const QUEUE: u16 = 3;
const MARK: u32 = 0x77;
const PATIENCE: Duration = Duration::from_secs(20);

struct Node {
    id: NodeId,
    link: Link,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

struct Group {
    _lab: Lab,
    client: Host,
    portal: SocketAddr,
    nodes: Vec<Node>,
    view: View,
}

/// Answers whatever it is sent with the same, one byte later in the alphabet of bytes.
fn echo(host: &Host) {
    let host = host.clone();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _guard = host.enter_guard().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", SERVER_PORT)).unwrap();
        sender.send(()).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut room = vec![0; 65_536];
                while let Ok(count) = stream.read(&mut room)
                    && count > 0
                {
                    room[..count].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                    if stream.write_all(&room[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    receiver.recv().unwrap();
}

impl Group {
    fn new(name: &str, count: u64) -> Option<Self> {
        if let Err(missing) = Lab::available() {
            assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{missing}");
            eprintln!("SKIPPED: {missing}");
            return None;
        }
        let lab = Lab::new(name).unwrap();
        let switch = lab.switch("middle").unwrap();
        let client = lab.host("client").unwrap();
        lab.attach(&client, &switch).unwrap();
        let hosts: Vec<Host> = (1..=count).map(|id| lab.host(&format!("node{id}")).unwrap()).collect();
        let links: Vec<Link> = hosts.iter().map(|host| lab.attach(host, &switch).unwrap()).collect();
        let [a, b, c, _] = links[0].addresses(Side::Client).unwrap().v4.octets();
        let portal = SocketAddr::from(([a, b, c, 250], PORTAL_PORT));
        let ids: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let view = View { epoch: 1, primary: ids[0], members: ids.clone() };
        let peer = |at: usize| {
            SocketAddr::new(IpAddr::from(links[at].addresses(Side::Client).unwrap().v4), PEER_PORT)
        };
        let others: Vec<(NodeId, SocketAddr)> =
            ids.iter().enumerate().map(|(at, id)| (*id, peer(at))).collect();
        let nodes = ids.iter().zip(&hosts).zip(&links).enumerate().map(|(at, ((id, host), link))| {
            echo(host);
            let settings = Settings {
                me: *id,
                view: view.clone(),
                limits: Limits::default(),
                portal,
                device: link.device(Side::Client).to_owned(),
                mark: MARK,
                server: ([127, 0, 0, 1], SERVER_PORT).into(),
                peers: host.enter(|| TcpListener::bind(peer(at)).unwrap()).unwrap(),
                others: others.iter().filter(|(other, _)| other != id).copied().collect(),
            };
            let (sender, receiver) = std::sync::mpsc::channel();
            let host = host.clone();
            let thread = std::thread::spawn(move || {
                let _guard = host.enter_guard().unwrap();
                let rules = [Way::Input, Way::Output].map(|way| Rule {
                    way,
                    address: portal,
                    mark: MARK,
                    queue: QUEUE,
                });
                let table = Table { name: "outlast-portal".to_owned() };
                table.set(&mut Socket::open(Protocol::Netfilter).unwrap(), &rules).unwrap();
                let limits = QueueSettings { copy_bytes: 128, packets_max: 1 << 16, socket_bytes: 1 << 24 };
                let queue = Queue::bind(QUEUE, limits).unwrap();
                let (machine, handle) = Machine::new(settings, queue).unwrap();
                sender.send(handle).unwrap();
                machine.run().unwrap();
            });
            Node { id: *id, link: link.clone(), handle: receiver.recv().unwrap(), thread: Some(thread) }
        });
        let nodes: Vec<Node> = nodes.collect();
        let group = Self { client, portal, nodes, view, _lab: lab };
        group.wait_until_served();
        Some(group)
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes.iter().find(|node| node.id == id).unwrap()
    }

    fn wait_until_served(&self) {
        let begin = Instant::now();
        while !self.node(self.view.primary).handle.facts().is_serving {
            assert!(begin.elapsed() < PATIENCE, "nobody serves: {:?}", self.facts());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn facts(&self) -> Vec<outlast_replica::portal::machine::Facts> {
        self.nodes.iter().map(|node| node.handle.facts()).collect()
    }

    /// The machine of the primary is cut off, and the next one leads.
    fn kill_primary(&mut self) {
        let dead = self.view.primary;
        self.node(dead).link.set_up(Side::Client, false).unwrap();
        // As long as a detector takes.
        std::thread::sleep(Duration::from_millis(50));
        let members: Vec<NodeId> = self.view.members.iter().copied().filter(|id| *id != dead).collect();
        self.view = View { epoch: self.view.epoch + 1, primary: members[0], members };
        for id in &self.view.members {
            self.node(*id).handle.tell(Command::View(self.view.clone()));
        }
        self.wait_until_served();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.handle.tell(Command::Stop);
            let ended = node.thread.take().map(JoinHandle::join);
            assert!(std::thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
        }
    }
}

/// Sends lines, and has each answered, until it is told to end. Gives the longest pause.
fn ping(
    client: &Host,
    portal: SocketAddr,
    ends: &Arc<AtomicBool>,
    count: &Arc<AtomicU64>,
) -> JoinHandle<Duration> {
    let (client, ends, count) = (client.clone(), ends.clone(), count.clone());
    std::thread::spawn(move || {
        let _guard = client.enter_guard().unwrap();
        let mut stream = TcpStream::connect_timeout(&portal, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut longest = Duration::ZERO;
        for number in 0_u64.. {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            let (begin, mut answer) = (Instant::now(), [0; 8]);
            stream.write_all(&number.to_be_bytes()).unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer.map(|byte| byte.wrapping_sub(1)), number.to_be_bytes());
            longest = longest.max(begin.elapsed());
            count.fetch_add(1, Ordering::Relaxed);
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
        longest
    })
}

/// Sends a long stream, and reads what comes back beside that.
fn stream(client: &Host, portal: SocketAddr, ends: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (client, ends) = (client.clone(), ends.clone());
    std::thread::spawn(move || {
        let _guard = client.enter_guard().unwrap();
        let mut stream = TcpStream::connect_timeout(&portal, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reads = stream.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let (mut total, mut room) = (0_u64, vec![0; 65_536]);
            loop {
                let count = reads.read(&mut room).unwrap();
                if count == 0 {
                    return total;
                }
                for (at, byte) in (total..).zip(&room[..count]) {
                    assert_eq!(u64::from(byte.wrapping_sub(1)), at * 7 / 3 % 256, "at {at}");
                }
                total += count as u64;
            }
        });
        let mut sent = 0_u64;
        while !ends.load(Ordering::Relaxed) {
            let bytes: Vec<u8> =
                (sent..sent + 10_000).map(|at| (at * 7 / 3 % 256).try_into().unwrap()).collect();
            stream.write_all(&bytes).unwrap();
            sent += bytes.len() as u64;
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(reader.join().unwrap(), sent);
        sent
    })
}

/// Kills two machines of three, one after the other, beside these.
fn outlive(name: &str, pings: usize, streams: usize) {
    let Some(mut group) = Group::new(name, 3) else { return };
    let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let pings: Vec<_> = (0..pings).map(|_| ping(&group.client, group.portal, &ends, &count)).collect();
    let streams: Vec<_> = (0..streams).map(|_| stream(&group.client, group.portal, &ends)).collect();
    let goes_on = |group: &Group| {
        let (before, begin) = (count.load(Ordering::Relaxed), Instant::now());
        while count.load(Ordering::Relaxed) < before + 100 {
            assert!(begin.elapsed() < PATIENCE, "nothing goes on: {:?}", group.facts());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for _ in 0..2 {
        goes_on(&group);
        std::thread::sleep(Duration::from_millis(200));
        group.kill_primary();
    }
    goes_on(&group);
    ends.store(true, Ordering::Relaxed);
    let longest: Vec<Duration> = pings.into_iter().map(|ping| ping.join().unwrap()).collect();
    let bytes: Vec<u64> = streams.into_iter().map(|stream| stream.join().unwrap()).collect();
    eprintln!("longest pauses {longest:?}; {bytes:?} bytes; {} pings", count.load(Ordering::Relaxed));
    eprintln!("{:?}", group.facts());
}

#[test]
fn connections_outlive_two_machines_of_three() {
    outlive("group", 5, 0);
}

#[test]
fn streams_at_full_speed_outlive_two_machines_of_three() {
    outlive("streams", 3, 2);
}
