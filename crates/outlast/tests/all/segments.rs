//! What a relayed transaction puts on the wire between the two relays: what belongs together goes in one segment. A segment
//! more wakes both ends once more, which is most of what a short transaction costs (SPECIFICATION 4.14).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed expectation is the message of a test"
)]

use crate::common::{Outlast, PATIENCE, folder};
use outlast_lab::{Host, Lab};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// What comes late does not go along: of all transactions within `PATIENCE`, and of so many at the least, one has to be in
/// time. What the code does not pair never is.
const ATTEMPTS_MIN: usize = 100;
const SERVER_PORT: u16 = 7000;
const CLIENT_PORT: u16 = 2000;
/// Every protocol, as a packet socket wants to hear it.
const ALL_PROTOCOLS: u16 = 0x0003;

/// A segment with something in it: bytes, or an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    from_client: bool,
    client_port: u16,
    sequence: u32,
    payload_bytes: usize,
    fin: bool,
}

impl Segment {
    /// Of an IPv4 packet from or to the port of a server.
    fn parse(packet: &[u8], port: u16) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
        let ip_bytes = usize::from(packet.first()? & 0x0F) * 4;
        if packet.first()? >> 4 != 4 || *packet.get(9)? != 6 {
            return None;
        }
        let (source, destination) = (word(ip_bytes)?, word(ip_bytes + 2)?);
        let from_client = destination == port;
        if !from_client && source != port {
            return None;
        }
        let sequence = u32::from_be_bytes(packet.get(ip_bytes + 4..ip_bytes + 8)?.try_into().ok()?);
        let tcp_bytes = usize::from(packet.get(ip_bytes + 12)? >> 4) * 4;
        let payload_bytes = usize::from(word(2)?).checked_sub(ip_bytes + tcp_bytes)?;
        let fin = packet.get(ip_bytes + 13)? & 1 != 0;
        let client_port = if from_client { source } else { destination };
        (fin || payload_bytes > 0).then_some(Self { from_client, client_port, sequence, payload_bytes, fin })
    }
}

/// Everything that comes and goes at one port of a host.
struct Tap {
    socket: Socket,
    port: u16,
    /// The client of the last connection, which may still be shown.
    past: Option<u16>,
}

impl Tap {
    fn new(host: &Host, port: u16) -> Self {
        let open = || {
            let protocol = Protocol::from(i32::from(ALL_PROTOCOLS.to_be()));
            let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).unwrap();
            socket.set_recv_buffer_size(4 << 20).unwrap();
            socket
        };
        Self { socket: host.enter(open).unwrap(), port, past: None }
    }

    /// What one connection carried, until both sides have ended. A segment that was sent again counts once, and so does
    /// one that the loopback device shows twice.
    fn connection(&mut self) -> Vec<Segment> {
        let deadline = Instant::now() + PATIENCE;
        let mut segments: Vec<Segment> = Vec::new();
        let mut packet = [0; 2048];
        while segments.iter().filter(|segment| segment.fin).count() < 2 {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the connection does not end: {segments:?}");
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
            let Ok(count) = self.socket.read(&mut packet) else { continue };
            if let Some(segment) = Segment::parse(&packet[..count], self.port)
                && self.past != Some(segment.client_port)
                && !segments.contains(&segment)
            {
                segments.push(segment);
            }
        }
        self.past = segments.first().map(|segment| segment.client_port);
        segments
    }
}

fn relays(client: &Host, server: &Host, runtime: &Path, to: SocketAddr, flags: &[&str]) -> [Outlast; 2] {
    let at = server.socket_addr(SERVER_PORT).to_string();
    let to = to.to_string();
    let front = format!("127.0.0.1:{CLIENT_PORT}");
    let start = |host: &Host, arguments: &[&str]| {
        // A process is started in the network of the thread that starts it.
        let mut relay = host.enter(|| Outlast::start(runtime, arguments)).unwrap();
        let address = relay.address();
        (relay, address)
    };
    let (server, _) = start(server, &[&["listen", &at, "--to", &to], flags].concat());
    let (client, _) = start(client, &[&["connect", &front, "--via", &at], flags].concat());
    [server, client]
}

/// Says all it has to say in one segment, the end included.
fn say(stream: &TcpStream, words: &[u8]) {
    assert_eq!(SockRef::from(stream).send_with_flags(words, libc::MSG_MORE).unwrap(), words.len());
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Answers every request, and whatever comes behind it.
fn answer(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        stream.read_exact(&mut [0]).unwrap();
        say(&stream, b"!");
        stream.read_to_end(&mut Vec::new()).ok();
    }
}

/// One transaction of a program that connects, asks, hears the answer to its end and leaves. It may end its own stream
/// along with its request.
fn transaction(ends_at_once: bool) {
    let mut program = TcpStream::connect(("127.0.0.1", CLIENT_PORT)).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    if ends_at_once {
        say(&program, b"?");
    } else {
        program.write_all(b"?").unwrap();
    }
    let mut heard = Vec::new();
    program.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"!");
}

/// Segments with bytes: from the client, and from the server.
fn with_bytes(segments: &[Segment]) -> (usize, usize) {
    let count = |from_client: bool| {
        segments.iter().filter(|s| s.from_client == from_client && s.payload_bytes > 0).count()
    };
    (count(true), count(false))
}

/// Whether the only byte of one side brought its end along.
fn ends_with_its_byte(segments: &[Segment], from_client: bool) -> bool {
    segments.iter().any(|s| s.from_client == from_client && s.payload_bytes == 1 && s.fin)
}

/// Taps at the program, between the relays and at the service.
struct Bench {
    client: Host,
    taps: [Tap; 3],
}

impl Bench {
    /// Fails if no transaction goes as it should.
    fn expect(&mut self, what: &str, ends_at_once: bool, holds: impl Fn(&[Vec<Segment>; 3]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        for attempts in 1.. {
            self.client.enter(|| transaction(ends_at_once)).unwrap();
            let segments = self.taps.each_mut().map(Tap::connection);
            if holds(&segments) {
                return;
            }
            assert!(
                attempts < ATTEMPTS_MIN || Instant::now() < deadline,
                "{what}: not in {attempts} transactions, the last of which is {segments:#?}"
            );
        }
    }
}

#[test]
fn what_belongs_together_goes_in_one_segment() {
    outlast_lab::require!("segments of a relayed transaction");
    // In band, either side acknowledges the other's end, and the client has one of its own to send: later, as the program
    // ends when it has heard the answer. The server's goes with the answer; its Welcome goes before the service hears anything
    // (PROTOCOL 3.16).
    for (mode, client_max, server_max) in [("kernel", 1, 2), ("inband", 3, 3)] {
        let folder = folder();
        let lab = Lab::new("segments").unwrap();
        let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
        let _cable = lab.connect(&client, &server).unwrap();
        let service = server.enter(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let to = service.local_addr().unwrap();
        std::thread::spawn(move || answer(&service));
        let _relays = relays(&client, &server, folder.path(), to, &["--ack", mode]);
        let taps =
            [Tap::new(&client, CLIENT_PORT), Tap::new(&server, SERVER_PORT), Tap::new(&server, to.port())];
        let mut bench = Bench { client, taps };
        bench.expect("Hello with the request, one Welcome, one answer", false, |[_, link, _]| {
            let (from_client, from_server) = with_bytes(link);
            from_client <= client_max && from_server <= server_max
        });
        // In band, the end is a frame, and the FIN follows when both sides have said theirs.
        let link_ends = |link: &[Segment], from_client| {
            mode == "inband"
                || link.iter().any(|s| s.from_client == from_client && s.payload_bytes > 0 && s.fin)
        };
        bench.expect("end with the answer, between the relays", false, |[_, link, _]| link_ends(link, false));
        bench.expect("end with the request, between the relays", true, |[_, link, _]| link_ends(link, true));
        bench.expect("end with the answer", false, |[program, _, _]| ends_with_its_byte(program, false));
        bench.expect("end with the request", true, |[_, _, service]| ends_with_its_byte(service, true));
    }
}
