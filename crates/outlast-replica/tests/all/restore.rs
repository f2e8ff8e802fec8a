//! A connection that another machine's kernel had goes on here, and its client notices nothing.

use outlast_lab::{Host, Lab, Link, Side};
use outlast_netlink::filter::{Rule, Table, Way, Which};
use outlast_netlink::queue::{Hook, Queue, Received, Settings, Verdict};
use outlast_netlink::{Protocol, Socket};
use outlast_replica::portal::announce::Portal;
use outlast_replica::portal::raw::Raw;
use outlast_replica::portal::repair;
use outlast_replica::{Direction, Handshake, Restore, Segment};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
const QUEUE: u16 = 3;
const MARK: u32 = 0x77;
const PATIENCE: Duration = Duration::from_secs(20);

/// A client, and two machines that may have the portal's address.
struct Scene {
    _lab: Lab,
    client: Host,
    machines: [Host; 2],
    links: [Link; 2],
    portal: SocketAddr,
    portals: [Portal; 2],
    queue: Queue,
}

fn run(host: &Host, line: &str) {
    let mut words = line.split(' ');
    let mut command = host.command(words.next().unwrap());
    command.args(words);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// None: this machine has no such thing.
fn scene(name: &str, is_v4: bool, settings: &[&str]) -> Option<Scene> {
    if let Err(missing) = Lab::available() {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{missing}");
        eprintln!("SKIPPED: {missing}");
        return None;
    }
    let lab = Lab::new(name).unwrap();
    let switch = lab.switch("middle").unwrap();
    let client = lab.host("client").unwrap();
    let machines = ["a", "b"].map(|name| lab.host(name).unwrap());
    lab.attach(&client, &switch).unwrap();
    let links = machines.each_ref().map(|machine| lab.attach(machine, &switch).unwrap());
    let addresses = links[0].addresses(Side::Client).unwrap();
    let portal = if is_v4 {
        let [a, b, c, _] = addresses.v4.octets();
        SocketAddr::from(([a, b, c, 250], PORT))
    } else {
        let mut segments = addresses.v6.segments();
        segments[7] = 0x250;
        SocketAddr::from((segments, PORT))
    };
    let portals = [0, 1].map(|number| {
        let (machine, link): (&Host, &Link) = (&machines[number], &links[number]);
        let rules = [Way::Input, Way::Output].map(|way| Rule {
            way,
            address: portal,
            which: Which::Queue { mark: MARK, queue: QUEUE },
        });
        let table = Table { name: "outlast-portal".to_owned() };
        let open = || {
            table.set(&mut Socket::open(Protocol::Netfilter).unwrap(), &rules).unwrap();
            Portal::open(portal.ip(), link.device(Side::Client)).unwrap()
        };
        machine.enter(open).unwrap()
    });
    for setting in settings {
        run(&client, &format!("sysctl -q -w {setting}"));
    }
    let limits = Settings { copy_bytes: 128, packets_max: 1 << 16, socket_bytes: 1 << 24 };
    let queue = machines[0].enter(|| Queue::bind(QUEUE, limits).unwrap()).unwrap();
    let mut scene = Scene { _lab: lab, client, machines, links, portal, portals, queue };
    scene.take(0);
    Some(scene)
}

impl Scene {
    /// This machine has the portal's address from here on.
    fn take(&mut self, machine: usize) {
        self.portals[machine].take().unwrap();
        self.portals[machine].announce().unwrap();
    }
}

/// Lets everything pass until there is nothing for a while, and learns how the connection began.
fn pass(queue: &mut Queue, mut until: impl FnMut() -> bool) -> Vec<Segment> {
    let (mut seen, begin) = (Vec::new(), Instant::now());
    loop {
        let decided = match queue.receive().unwrap() {
            Received::Packet(packet) => {
                let direction = if packet.hook == Hook::Input { Direction::In } else { Direction::Out };
                seen.push(Segment::parse(packet.bytes, direction).unwrap());
                Some(packet.id)
            }
            _ => None,
        };
        if let Some(id) = decided {
            queue.decide(id, Verdict::Accept);
            queue.flush().unwrap();
        } else if until() {
            return seen;
        } else {
            assert!(begin.elapsed() < PATIENCE, "nothing comes: {seen:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count).map(|at| seed.wrapping_add(u8::try_from(at % 251).unwrap())).collect()
}

/// In both directions some bytes are there, and some have been sent to a machine that has died before it took them in. On the second
/// machine the connection goes on.
fn goes_on(name: &str, is_v4: bool, settings: &[&str]) {
    let Some(mut scene) = scene(name, is_v4, settings) else { return };
    let (first, portal) = (scene.machines[0].clone(), scene.portal);
    let listener = first.enter(|| TcpListener::bind(portal).unwrap()).unwrap();
    let client = scene.client.clone();
    let connecting = std::thread::spawn(move || {
        client.enter(|| TcpStream::connect_timeout(&portal, PATIENCE).unwrap()).unwrap()
    });
    let mut seen = pass(&mut scene.queue, || connecting.is_finished());
    let mut client = connecting.join().unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut server = listener.accept().unwrap().0;
    // What both have.
    client.write_all(b"question").unwrap();
    server.set_nonblocking(true).unwrap();
    let mut question = [0; 100];
    seen.extend(pass(&mut scene.queue, || server.peek(&mut question).is_ok_and(|count| count == 8)));
    assert_eq!(server.read(&mut question).unwrap(), 8);
    server.write_all(b"answer").unwrap();
    let mut answer = [0; 6];
    client.set_nonblocking(true).unwrap();
    seen.extend(pass(&mut scene.queue, || client.peek(&mut answer).is_ok_and(|count| count == 6)));
    client.set_nonblocking(false).unwrap();
    client.read_exact(&mut answer).unwrap();
    // What is lost with the machine: the client has sent its part to nobody, and the answers have left nowhere.
    scene.links[0].set_up(Side::Client, false).unwrap();
    let (more, rest) = (bytes(50_000, 1), bytes(200_000, 9));
    let sent = client.write(&more).unwrap();
    let opened = seen.iter().position(|segment| segment.flags.syn).unwrap();
    let answered = seen.iter().position(|segment| segment.flags.syn && segment.flags.ack).unwrap();
    let handshake = Handshake::new(&seen[opened], &seen[answered]).unwrap();
    let restore = Restore {
        ends: handshake.ends,
        agreed: handshake.agreed(),
        send_sequence: handshake.server.number(6),
        receive_sequence: handshake.client.number(8),
        stable_ack: handshake.client.number(8),
        unacked: rest.split_at(70_000),
        client_ended: false,
        answers_ended: false,
        is_aborted: false,
        syn_ack: None,
        age_ms: 0,
        epoch: 1,
    };
    let second = scene.machines[1].clone();
    let (socket, raw) =
        second.enter(|| (repair::restore(&restore).unwrap(), Raw::open(MARK).unwrap())).unwrap();
    // Nobody has the queue there: whatever the kernel sends is dropped, so these are the packets that we write.
    scene.take(1);
    let limits = Settings { copy_bytes: 128, packets_max: 1 << 16, socket_bytes: 1 << 24 };
    scene.queue = second.enter(|| Queue::bind(QUEUE, limits).unwrap()).unwrap();
    repair::go_on(&socket).unwrap();
    second.enter(|| raw.kick(&restore, &socket).unwrap()).unwrap();
    let begin = Instant::now();
    let (rest_copy, more_left) = (rest.clone(), more[sent..].to_vec());
    let talk = std::thread::spawn(move || {
        client.write_all(&more_left).unwrap();
        let mut said = vec![0; rest_copy.len()];
        client.read_exact(&mut said).unwrap();
        assert!(said == rest_copy, "the answers are not what they were");
        let at = Instant::now();
        client.write_all(b"end").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut last = Vec::new();
        client.read_to_end(&mut last).unwrap();
        assert_eq!(last, b"good bye");
        at
    });
    let mut server = TcpStream::from(socket.try_clone().unwrap());
    let (mut got, mut kicked, mut kicks_on) = (Vec::new(), Instant::now(), true);
    loop {
        pass(&mut scene.queue, || true);
        let mut room = [0; 65_536];
        match server.read(&mut room) {
            Ok(0) => break,
            Ok(count) => got.extend_from_slice(&room[..count]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(begin.elapsed() < PATIENCE, "it does not go on");
        if kicked.elapsed() >= Duration::from_millis(10) && kicks_on {
            kicked = Instant::now();
            kicks_on = raw.kick(&restore, &socket).unwrap() > 0;
        }
    }
    assert!(got == [&more[..], b"end"].concat(), "the input is not what it was");
    server.write_all(b"good bye").unwrap();
    server.shutdown(std::net::Shutdown::Write).unwrap();
    pass(&mut scene.queue, || talk.is_finished());
    let answered_after = talk.join().unwrap().duration_since(begin);
    eprintln!("{answered_after:?}");
    assert!(answered_after < Duration::from_secs(1), "{answered_after:?}");
}

#[test]
fn a_connection_of_ipv4_goes_on() {
    goes_on("restore-v4", true, &[]);
}

#[test]
fn a_connection_of_ipv6_goes_on() {
    goes_on("restore-v6", false, &[]);
}

#[test]
fn one_without_timestamps_goes_on() {
    goes_on("restore-old", true, &["net.ipv4.tcp_timestamps=0"]);
}

#[test]
fn one_without_any_option_goes_on() {
    let settings = ["net.ipv4.tcp_timestamps=0", "net.ipv4.tcp_sack=0", "net.ipv4.tcp_window_scaling=0"];
    goes_on("restore-bare", true, &settings);
}
