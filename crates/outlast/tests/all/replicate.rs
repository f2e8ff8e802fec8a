//! `outlast replicate` with a real server, on machines that are network namespaces: its clients keep their connections, whatever becomes of the
//! machine, the process or the server that answers them.

use crate::common::restarts::is_running;
use crate::common::{Outlast, command, eventually, eventually_or, folder, output};
use outlast_lab::{Direction, Host, Lab, Link, Side};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A client that gets no answer for so long has lost its connection.
pub const PATIENCE: Duration = Duration::from_secs(20);
const PORTAL_PORT: u16 = 6379;
pub const SERVER_PORT: u16 = 6380;
/// Longer than by default: other tests keep this machine busy, and nobody is to be taken for dead who lives.
const DETECT: &str = "300ms";
/// Where nobody dies: even a machine that stands still for as long as a busy one does takes nobody for dead.
const DETECT_LATE: &str = "3s";
/// Between two rounds of a client.
pub const BREAK: Duration = Duration::from_millis(1);
/// Whoever answers otherwise is out: nobody does here that is not meant to.
pub const ANSWERS: &str = "answers = \"first\"";

pub struct Machine {
    name: String,
    pub host: Host,
    link: Link,
    address: IpAddr,
    folder: PathBuf,
    is_witness: bool,
}

/// Machines with a client, and a group file.
pub struct Machines {
    pub client: Host,
    pub portal: SocketAddr,
    machines: Vec<Machine>,
    pub file: PathBuf,
    folder: tempfile::TempDir,
    _lab: Lab,
}

impl Machines {
    /// Some with servers (a, b …), and some without (w, x …).
    pub fn new(name: &str, with_servers: u8, witnesses: u8) -> Option<Self> {
        Self::detecting(name, with_servers, witnesses, DETECT, false)
    }

    /// With IPv6 for clients and between nodes.
    pub fn of_ipv6(name: &str, with_servers: u8, witnesses: u8) -> Option<Self> {
        Self::detecting(name, with_servers, witnesses, DETECT, true)
    }

    /// For tests in which nobody dies.
    pub fn undying(name: &str, with_servers: u8, witnesses: u8) -> Option<Self> {
        Self::detecting(name, with_servers, witnesses, DETECT_LATE, false)
    }

    fn detecting(name: &str, with_servers: u8, witnesses: u8, detect: &str, is_ipv6: bool) -> Option<Self> {
        if let Err(missing) = Lab::available() {
            assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{missing}");
            eprintln!("SKIPPED: {missing}");
            return None;
        }
        let lab = Lab::new(name).unwrap();
        let switch = lab.switch("middle").unwrap();
        let client = lab.host("client").unwrap();
        lab.attach(&client, &switch).unwrap();
        let folder = folder();
        let names = (b'a'..b'a' + with_servers).chain(b'w'..b'w' + witnesses);
        let machines: Vec<Machine> = names
            .map(|letter| {
                let name = char::from(letter).to_string();
                let host = lab.host(&name).unwrap();
                let link = lab.attach(&host, &switch).unwrap();
                let own = folder.path().join(&name);
                std::fs::create_dir(&own).unwrap();
                let addresses = link.addresses(Side::Client).unwrap();
                let address = if is_ipv6 { IpAddr::V6(addresses.v6) } else { IpAddr::V4(addresses.v4) };
                Machine { name, host, link, address, folder: own, is_witness: letter >= b'w' }
            })
            .collect();
        // In the network of the machines.
        let portal = match machines[0].address {
            IpAddr::V4(address) => IpAddr::from((u32::from(address) & !0xff | 250).to_be_bytes()),
            IpAddr::V6(address) => IpAddr::from((u128::from(address) & !0xffff | 0xffa).to_be_bytes()),
        };
        let portal = SocketAddr::from((portal, PORTAL_PORT));
        let mut list = format!(
            "name = \"db\"\nportal = \"{portal}\"\ndetect = \"{detect}\"\nprotocol = \"redis\"\n{ANSWERS}\n"
        );
        for Machine { name, address, is_witness, .. } in &machines {
            let address = SocketAddr::from((*address, 7400));
            writeln!(list, "[[node]]\nname = \"{name}\"\naddress = \"{address}\"\nwitness = {is_witness}")
                .unwrap();
        }
        let file = folder.path().join("db.toml");
        std::fs::write(&file, list).unwrap();
        Some(Self { client, portal, machines, file, folder, _lab: lab })
    }

    pub fn machine(&self, name: &str) -> &Machine {
        self.machines.iter().find(|machine| machine.name == name).unwrap()
    }

    /// Where its node listens.
    pub fn address(&self, name: &str) -> IpAddr {
        self.machine(name).address
    }

    /// Of its own, on this machine.
    pub fn folder(&self, name: &str) -> &Path {
        &self.machine(name).folder
    }

    /// Nothing leaves a machine any more, and nothing comes; or again.
    pub fn cut_off(&self, name: &str, is_cut_off: bool) {
        for direction in Direction::BOTH {
            self.machine(name).link.set_blocked(direction, is_cut_off).unwrap();
        }
    }

    pub fn start(&self, name: &str, flags: &[&str]) -> Node {
        self.start_as(name, name, &self.file, flags)
    }

    /// A node of some name, by some list, on this machine.
    fn start_as(&self, machine: &str, name: &str, file: &Path, flags: &[&str]) -> Node {
        let machine = self.machine(machine);
        let port = SERVER_PORT.to_string();
        let folder = machine.folder.to_str().unwrap();
        let redis = ["redis-server", "--port", &port, "--save", "", "--dir", folder];
        self.run(machine, name, file, flags, if machine.is_witness { &[] } else { &redis })
    }

    /// A node with another program as its server, if any.
    pub fn start_with(&self, name: &str, flags: &[&str], program: &[&str]) -> Node {
        self.run(self.machine(name), name, &self.file, flags, program)
    }

    fn run(&self, machine: &Machine, name: &str, file: &Path, flags: &[&str], program: &[&str]) -> Node {
        let mut all = vec!["replicate", "--group", file.to_str().unwrap(), "--node", name];
        all.extend(["--state-folder", machine.folder.to_str().unwrap()]);
        all.extend(flags);
        let server = format!("127.0.0.1:{SERVER_PORT}");
        if !machine.is_witness {
            all.extend(["--server", &server]);
        }
        if !program.is_empty() {
            all.push("--");
            all.extend(program);
        }
        let inner = command(&machine.folder, &all);
        let mut outer = Command::new("ip");
        outer
            .args(["netns", "exec", machine.host.namespace()])
            .arg(inner.get_program())
            .args(inner.get_args());
        outer.env("XDG_RUNTIME_DIR", &machine.folder).env("OUTLAST_LOG", "info,outlast_replica=debug");
        outer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Node { name: name.to_owned(), outlast: Outlast::from(outer) }
    }

    pub fn start_all(&self, flags: &[&str]) -> Vec<Node> {
        let mut nodes: Vec<Node> =
            self.machines.iter().map(|machine| self.start(&machine.name, flags)).collect();
        for node in nodes.iter_mut() {
            node.outlast.wait_for("view 1: ");
        }
        nodes
    }

    /// Runs a command of `outlast replicate` on a machine. What it prints, and whether it has done it.
    pub fn ask(&self, name: &str, arguments: &[&str]) -> (bool, String) {
        let output = output(&self.machine(name).folder, &[&["replicate"], arguments].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    pub fn role(&self, name: &str) -> String {
        let (_, status) = self.ask(name, &["status"]);
        status.lines().next().unwrap_or_default().rsplit(": ").next().unwrap_or_default().to_owned()
    }

    /// Which of these serves clients.
    pub fn primary(&self, among: &[&str]) -> String {
        let serves = |name: &&&str| self.role(name) == "primary, serves clients";
        eventually("nobody serves", || among.iter().find(serves).map(|name| (*name).to_owned()))
    }

    /// What the server of a machine says to a command.
    pub fn redis(&self, name: &str, words: &str) -> String {
        let host = &self.machine(name).host;
        host.enter(|| one_answer(([127, 0, 0, 1], SERVER_PORT).into(), words)).unwrap()
    }
}

pub struct Node {
    pub name: String,
    pub outlast: Outlast,
}

impl Node {
    /// The process of its server.
    pub fn server(&self) -> u32 {
        let pid = self.outlast.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.trim().parse().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("node {}:\n{}", self.name, self.outlast.said_so_far());
        }
    }
}

pub fn take(nodes: &mut Vec<Node>, name: &str) -> Node {
    let at = nodes.iter().position(|node| node.name == name).unwrap();
    nodes.remove(at)
}

pub fn one_answer(server: SocketAddr, words: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(format!("{words}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(stream);
    lines.read_line(&mut line).unwrap();
    let mut all = String::new();
    let parts = match line.split_at(1) {
        ("$", count) if count.starts_with('-') => return "nothing".to_owned(),
        ("$", _) => 1,
        ("*", count) => 2 * count.trim_end().parse::<usize>().unwrap(),
        _ => return line.trim_end().to_owned(),
    };
    for part in 0..parts {
        line.clear();
        lines.read_line(&mut line).unwrap();
        if parts == 1 || part % 2 == 1 {
            all.push_str(line.trim_end());
            all.push(' ');
        }
    }
    all.trim_end().to_owned()
}

/// Counts up in the server, each of them at a number of its own, and looks at each answer.
pub struct Counters {
    ends: Arc<AtomicBool>,
    total: Arc<AtomicU64>,
    threads: Vec<JoinHandle<(u64, Duration)>>,
}

impl Counters {
    pub fn start(machines: &Machines, count: usize) -> Self {
        let (ends, total) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..count).map(|number| {
            let (host, portal) = (machines.client.clone(), machines.portal);
            let (ends, total) = (ends.clone(), total.clone());
            std::thread::spawn(move || {
                let _guard = host.enter_guard().unwrap();
                let mut stream = TcpStream::connect_timeout(&portal, PATIENCE).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_nodelay(true).unwrap();
                let mut answers = BufReader::new(stream.try_clone().unwrap());
                let (mut at, mut longest, mut line) = (0_u64, Duration::ZERO, String::new());
                while !ends.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    stream.write_all(format!("incr counter{number}\r\n").as_bytes()).unwrap();
                    line.clear();
                    answers.read_line(&mut line).unwrap();
                    at += 1;
                    // Neither lost nor done twice.
                    assert_eq!(line, format!(":{at}\r\n"));
                    longest = longest.max(begin.elapsed());
                    // In which order the server works on what all of them say.
                    stream.write_all(format!("rpush all {number}:{at}\r\n").as_bytes()).unwrap();
                    line.clear();
                    answers.read_line(&mut line).unwrap();
                    assert!(line.starts_with(':'), "{line}");
                    total.fetch_add(1, Ordering::Relaxed);
                    // Several groups at a time would else keep nodes of each other from running for longer than the detection time.
                    std::thread::sleep(BREAK);
                }
                // The server ends the connection.
                stream.write_all(b"quit\r\n").unwrap();
                line.clear();
                answers.read_to_string(&mut line).unwrap();
                assert_eq!(line, "+OK\r\n");
                (at, longest)
            })
        });
        Self { threads: threads.collect(), ends, total }
    }

    /// Waits until all have gone on from here.
    pub fn go_on(&self) {
        let before = self.total.load(Ordering::Relaxed);
        eventually("nothing goes on", || (self.total.load(Ordering::Relaxed) > before + 200).then_some(()));
    }

    /// Ends them. How far each has counted.
    pub fn end(self) -> Vec<u64> {
        self.ends.store(true, Ordering::Relaxed);
        let ended: Vec<(u64, Duration)> =
            self.threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        eprintln!("counted, with the longest pause: {ended:?}");
        ended.into_iter().map(|(count, _)| count).collect()
    }
}

/// All that clients were told is at this machine's server.
pub fn has_all(machines: &Machines, name: &str, counts: &[u64]) {
    for (number, count) in counts.iter().enumerate() {
        let words = format!("get counter{number}");
        // A backup's server may be a moment behind.
        eventually_or(
            || (machines.redis(name, &words) == count.to_string()).then_some(()),
            || {
                format!(
                    "{name} has not {count}, but {}: {}",
                    machines.redis(name, &words),
                    machines.ask(name, &["status"]).1
                )
            },
        );
    }
}

/// The servers of these have worked in the same order.
pub fn are_equal(machines: &Machines, names: &[&str]) {
    let lists: Vec<String> = names.iter().map(|name| machines.redis(name, "lrange all 0 -1")).collect();
    assert!(lists[0].len() > 1_000, "{}", lists[0].len());
    for (name, list) in names.iter().zip(&lists) {
        let differs = list.split(' ').zip(lists[0].split(' ')).position(|(one, other)| one != other);
        assert_eq!((differs, list.len()), (None, lists[0].len()), "{} and {name}", names[0]);
    }
}

#[test]
fn clients_go_on_when_the_primary_is_stopped_killed_or_cut_off() {
    let Some(machines) = Machines::new("replicate", 4, 1) else { return };
    let mut nodes = machines.start_all(&[]);
    let mut living = vec!["a", "b", "c", "d"];
    let first = machines.primary(&living);
    let counters = Counters::start(&machines, 4);
    counters.go_on();

    // Stopped, and continued when another one serves: it says nothing more to clients.
    let mut stopped = take(&mut nodes, &first);
    stopped.outlast.freeze();
    living.retain(|name| *name != first);
    let second = machines.primary(&living);
    counters.go_on();
    stopped.outlast.signal("CONT");
    counters.go_on();
    stopped.outlast.wait_for("is no member of the group db any more");
    assert!(machines.role(&first).starts_with("out of the group"), "{}", machines.role(&first));

    // Killed.
    let killed = take(&mut nodes, &second);
    let server = killed.server();
    drop(killed);
    living.retain(|name| *name != second);
    machines.primary(&living);
    counters.go_on();
    eventually("its server goes on", || (!is_running(server)).then_some(()));
    let (_, why) = machines.ask(living[0], &["why"]);
    for gone in [&first, &second] {
        assert!(why.contains(&format!("{gone} did not answer for the detection time")), "{why}");
    }

    let counts = counters.end();
    for name in &living {
        has_all(&machines, name, &counts);
    }
    are_equal(&machines, &living);
}

#[test]
fn clients_go_on_when_the_server_of_the_primary_dies_and_when_a_node_is_told_to_end() {
    let Some(machines) = Machines::new("replicate-ends", 3, 2) else { return };
    let mut nodes = machines.start_all(&[]);
    let mut living = vec!["a", "b", "c"];
    let first = machines.primary(&living);
    let counters = Counters::start(&machines, 3);
    counters.go_on();

    let mut without_server = take(&mut nodes, &first);
    let server = without_server.server().to_string();
    assert!(Command::new("kill").args(["-9", &server]).status().unwrap().success());
    assert_eq!(without_server.outlast.ended().code(), Some(7));
    without_server.outlast.said();
    living.retain(|name| *name != first);
    let second = machines.primary(&living);
    counters.go_on();

    let mut told = take(&mut nodes, &second);
    told.outlast.signal("TERM");
    assert_eq!(told.outlast.ended().code(), Some(0));
    living.retain(|name| *name != second);
    machines.primary(&living);
    counters.go_on();
    let host = &machines.machine(&second).host;
    let addresses = Command::new("ip").args(["-n", host.namespace(), "address"]).output().unwrap();
    let addresses = String::from_utf8(addresses.stdout).unwrap();
    assert!(!addresses.contains(&machines.portal.ip().to_string()), "{addresses}");

    let counts = counters.end();
    has_all(&machines, living[0], &counts);

    // It has a vote again, and no data: nobody takes it for a replica.
    let mut again = machines.start(&second, &[]);
    again.outlast.wait_for("has a vote in the group db, and no data of it");
    let role = machines.role(&second);
    assert!(role.starts_with("no member, its server has no data of the group"), "{role}");
    let (_, status) = machines.ask(&second, &["status"]);
    assert_eq!(status.matches(" yes ").count(), 5, "{status}");

    // Nor is the address in use by what is left of connections that it had taken over, and that the server has ended.
    let mut last = take(&mut nodes, living[0]);
    last.outlast.signal("TERM");
    assert_eq!(last.outlast.ended().code(), Some(0));
    machines.start(living[0], &[]).outlast.wait_for("has a vote in the group db, and no data of it");
}

#[test]
fn the_primary_is_switched_and_a_member_taken_out_on_request() {
    let Some(machines) = Machines::new("replicate-asked", 3, 0) else { return };
    let _nodes = machines.start_all(&["--metrics", "127.0.0.1:9100"]);
    let first = machines.primary(&["a", "b", "c"]);
    let metrics = machines.machine(&first).host.enter(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9100").unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        all
    });
    let (metrics, labels) = (metrics.unwrap(), format!("{{group=\"db\",node=\"{first}\"}}"));
    let values = [
        "serving",
        "view",
        "members",
        "excluded",
        "connections",
        "last_index",
        "delivered_index",
        "compared_index",
    ];
    let values = values.into_iter().chain([
        "take_overs_total",
        "queue_overflows_total",
        "take_over_seconds",
        "forwarded_packets_total",
        "injected_packets_total",
        "differences_total",
        "answers_not_compared_total",
    ]);
    for name in values.map(|name| format!("\noutlast_replica_{name}{labels} ")) {
        assert!(metrics.contains(&name), "{name} is not in\n{metrics}");
    }
    let counters = Counters::start(&machines, 2);
    counters.go_on();
    // Clients that wait for others keep nobody waiting.
    let waiting: Vec<TcpStream> = (0..20)
        .map(|number| {
            let connecting = || TcpStream::connect_timeout(&machines.portal, PATIENCE);
            let mut stream = machines.client.enter(connecting).unwrap().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(format!("blpop queue{number} 0\r\n").as_bytes()).unwrap();
            stream
        })
        .collect();
    counters.go_on();
    let others: Vec<&str> = ["a", "b", "c"].into_iter().filter(|name| *name != first).collect();
    let next = others[1];
    // Any node can be asked.
    assert_eq!(machines.ask(others[0], &["switchover", next]), (true, format!("{next} is the primary\n")));
    eventually("it does not serve", || (machines.role(next) == "primary, serves clients").then_some(()));
    counters.go_on();
    let (done, why) = machines.ask(&first, &["switchover", "z"]);
    assert!(!done && why.contains("z is no member of the view"), "{why}");
    assert_eq!(machines.ask(next, &["evict", &first]), (true, format!("{first} is out of the group\n")));
    counters.go_on();
    eventually("it does not know", || machines.role(&first).starts_with("out of the group").then_some(()));
    let (done, why) = machines.ask(next, &["evict", &first]);
    assert!(!done && why.contains("is no member of the view"), "{why}");
    let (done, why) = machines.ask(next, &["why"]);
    for expected in [
        "the group begins",
        "switchover was asked for",
        &format!("{next} serves clients"),
        " ms",
        &format!("{first} was evicted on request"),
    ] {
        assert!(done && why.contains(expected), "{expected} is not in\n{why}");
    }
    let push = || one_answer(machines.portal, "rpush queue7 x y");
    assert_eq!(machines.client.enter(push).unwrap(), ":2");
    let mut said = [0; 23];
    (&waiting[7]).read_exact(&mut said).unwrap();
    assert_eq!(&said, b"*2\r\n$6\r\nqueue7\r\n$1\r\nx\r\n");
    assert_eq!(machines.redis(next, "lrange queue7 0 -1"), "y");
    let counts = counters.end();
    has_all(&machines, others[0], &counts);
    has_all(&machines, next, &counts);
    are_equal(&machines, &[others[0], next]);
    let (done, said) = machines.ask(others[0], &["drain"]);
    assert!(done && said.contains("leaves the group"), "{said}");
    eventually("it is there", || {
        let (_, status) = machines.ask(next, &["status"]);
        (status.matches(" out").count() == 2).then_some(())
    });
    let (done, said) = machines.ask(next, &["drain"]);
    assert!(!done && said.contains("it is the last member"), "{said}");
}

#[test]
fn a_group_that_was_down_as_a_whole_is_not_founded_as_if_nothing_had_been() {
    let Some(machines) = Machines::new("replicate-down", 2, 1) else { return };
    let nodes = machines.start_all(&[]);
    machines.primary(&["a", "b"]);
    drop(nodes);
    let mut nodes: Vec<Node> = ["a", "b", "w"].into_iter().map(|name| machines.start(name, &[])).collect();
    for node in &mut nodes {
        let line = node.outlast.wait_for("ran before");
        assert!(line.contains("a (until view 1), b (until view 1) of the group db ran before"), "{line}");
    }
    drop(nodes);
    let _nodes = machines.start_all(&["--new-group"]);
    machines.primary(&["a", "b"]);
}

#[test]
fn what_cannot_work_is_told_in_a_line() {
    let Some(machines) = Machines::new("replicate-bad", 2, 1) else { return };
    // Others are waited for, and named.
    let mut a = machines.start("a", &[]);
    a.outlast.wait_for("node a: waits for b, w");
    // One of them has another list.
    let other = machines.folder.path().join("other.toml");
    let list = std::fs::read_to_string(&machines.file).unwrap();
    std::fs::write(&other, list.replace(":6379", ":6378")).unwrap();
    let mut b = machines.start_as("b", "b", &other, &[]);
    let line = a.outlast.wait_for("another group file");
    assert!(
        line.contains("b has another group file: here the portal is") && line.contains(":6378"),
        "{line}"
    );
    b.outlast.wait_for("a has another group file");
    drop(b);
    drop(a);
    // The machine of another node.
    let ask = |machine: &str, name: &str, flags: &[&str]| {
        let mut node = machines.start_as(machine, name, &machines.file, flags);
        let code = node.outlast.ended().code();
        (code, node.outlast.said())
    };
    let (code, said) = ask("a", "b", &[]);
    assert!(code == Some(7) && said.contains("is it another node's machine?"), "{said}");
    let (code, said) = ask("a", "z", &[]);
    assert!(code == Some(2) && said.contains("has no node \"z\": it lists a, b, w"), "{said}");
    let (code, said) = ask("a", "a", &["--device", "nonesuch"]);
    assert!(code == Some(7) && said.contains("at device nonesuch"), "{said}");
    let (code, said) = ask("w", "w", &["--server", "127.0.0.1:1"]);
    assert!(code == Some(2) && said.contains("is a witness, and has no server"), "{said}");
    // Nothing half-configured is left.
    let host = &machines.machine("a").host;
    eventually("something listens", || host.listeners().unwrap().is_empty().then_some(()));
}
