//! A group of machines, each with its own server: clients keep their connections when one of them dies.

use outlast_lab::{Host, Lab, Link, Side};
use outlast_replica::node::group::{Group, Listed};
use outlast_replica::node::{Node, Portal, Settings, Status};
use outlast_replica::{AnswerPolicy, Delivery, Protocol};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const PORTAL_PORT: u16 = 7000;
const SERVER_PORT: u16 = 6000;
const PEER_PORT: u16 = 7001;
/// On a machine that is busy with other tests nobody is taken for dead too soon.
const PROMISE_MS: u64 = 150;
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine with a node, which runs in a thread of its own.
struct Machine {
    name: String,
    link: Link,
    status: Arc<Mutex<Option<Status>>>,
    /// Dropped: the node ends without a word.
    ends: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Cluster {
    _lab: Lab,
    client: Host,
    portal: SocketAddr,
    machines: Vec<Machine>,
    dead: Vec<String>,
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

/// Runs a node until it is told to end.
fn run(
    host: Host,
    settings: Settings,
    status: Arc<Mutex<Option<Status>>>,
    mut ends: oneshot::Receiver<()>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let _guard = host.enter_guard().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let node = Node::start(settings).await.unwrap();
            let mut looks = tokio::time::interval(Duration::from_millis(1));
            loop {
                tokio::select! {
                    told = &mut ends => match told {
                        Ok(()) => return node.stop(false).await,
                        Err(_) => return,
                    },
                    _ = looks.tick() => *status.lock().unwrap() = Some(node.status()),
                }
            }
        });
    })
}

impl Cluster {
    fn new(name: &str, with_servers: usize, witnesses: usize) -> Option<Self> {
        if let Err(missing) = Lab::available() {
            assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{missing}");
            eprintln!("SKIPPED: {missing}");
            return None;
        }
        let lab = Lab::new(name).unwrap();
        let switch = lab.switch("middle").unwrap();
        let client = lab.host("client").unwrap();
        lab.attach(&client, &switch).unwrap();
        let names: Vec<String> =
            (1..=with_servers + witnesses).map(|number| format!("node{number}")).collect();
        let hosts: Vec<Host> = names.iter().map(|name| lab.host(name).unwrap()).collect();
        let links: Vec<Link> = hosts.iter().map(|host| lab.attach(host, &switch).unwrap()).collect();
        let [a, b, c, _] = links[0].addresses(Side::Client).unwrap().v4.octets();
        let portal = SocketAddr::from(([a, b, c, 250], PORTAL_PORT));
        let nodes = names.iter().zip(&links).enumerate().map(|(at, (name, link))| Listed {
            name: name.clone(),
            address: SocketAddr::from((link.addresses(Side::Client).unwrap().v4, PEER_PORT)),
            is_witness: at >= with_servers,
        });
        let group = Group {
            name: "test".to_owned(),
            portal,
            nodes: nodes.collect(),
            promise_ms: PROMISE_MS,
            delivery: Delivery::Serial,
            protocol: Protocol::Raw,
            clock: outlast_replica::ServerClock::Machine,
            answers: AnswerPolicy::First,
            lock_wait_timeout_ms: outlast_replica::node::group::LOCK_WAIT_TIMEOUT_MS,
        };
        let machines = hosts.iter().zip(links).zip(&group.nodes).map(|((host, link), listed)| {
            let portal = (!listed.is_witness).then(|| {
                echo(host);
                let server = ([127, 0, 0, 1], SERVER_PORT).into();
                Portal {
                    device: link.device(Side::Client).to_owned(),
                    server,
                    copying: None,
                    account: None,
                    clock_page: None,
                }
            });
            let (name, group) = (listed.name.clone(), group.clone());
            let settings = Settings {
                group,
                name: name.clone(),
                portal,
                memory: None,
                is_new_group: false,
                joins: false,
                recovering: None,
            };
            let (ends, told) = oneshot::channel();
            let status = Arc::new(Mutex::new(None));
            let thread = run(host.clone(), settings, status.clone(), told);
            Machine { name, link, status, ends: Some(ends), thread: Some(thread) }
        });
        let machines = machines.collect();
        let cluster = Self { client, portal, machines, dead: Vec::new(), _lab: lab };
        cluster.wait_until_served();
        Some(cluster)
    }

    /// Who serves clients: nobody, or one.
    fn serving(&self) -> Option<&Machine> {
        let serves = |machine: &&Machine| {
            let status = machine.status.lock().unwrap().clone();
            status.and_then(|status| status.facts).is_some_and(|facts| facts.is_serving)
        };
        self.machines.iter().filter(|machine| !self.dead.contains(&machine.name)).find(serves)
    }

    fn wait_until_served(&self) {
        let begin = Instant::now();
        while self.serving().is_none() {
            assert!(begin.elapsed() < PATIENCE, "nobody serves: {:#?}", self.status());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn status(&self) -> Vec<Option<Status>> {
        self.machines.iter().map(|machine| machine.status.lock().unwrap().clone()).collect()
    }

    /// The machine of the primary is cut off.
    fn kill_primary(&mut self) {
        let primary = self.serving().unwrap();
        primary.link.set_up(Side::Client, false).unwrap();
        let (name, begin) = (primary.name.clone(), Instant::now());
        self.dead.push(name);
        self.wait_until_served();
        eprintln!("another one serves after {:?}", begin.elapsed());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for machine in &mut self.machines {
            drop(machine.ends.take());
        }
        for machine in &mut self.machines {
            let ended = machine.thread.take().map(JoinHandle::join);
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
    let Some(mut group) = Cluster::new(name, 3, 2) else { return };
    let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let pings: Vec<_> = (0..pings).map(|_| ping(&group.client, group.portal, &ends, &count)).collect();
    let streams: Vec<_> = (0..streams).map(|_| stream(&group.client, group.portal, &ends)).collect();
    let goes_on = |group: &Cluster| {
        let (before, begin) = (count.load(Ordering::Relaxed), Instant::now());
        while count.load(Ordering::Relaxed) < before + 100 {
            assert!(begin.elapsed() < PATIENCE, "nothing goes on: {:?}", group.status());
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
}

#[test]
fn connections_outlive_two_machines_of_three() {
    outlive("group", 5, 0);
}

#[test]
fn streams_at_full_speed_outlive_two_machines_of_three() {
    outlive("streams", 3, 2);
}
