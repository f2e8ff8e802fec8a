//! The `udp` mode: bare streams whose acknowledgements are datagrams, some of which get lost, forged or blocked.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

use outlast_lab::{Fault, Host, Lab, Link, Target};
use outlast_session::proto::{Datagram, DatagramKind, SessionKey};
use outlast_session::{AckMode, Config, Info, LinkMode, Psk, Security, SessionId, Targets, blocking};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STREAM_BYTES: usize = 20_000_000;

fn config(security: Security) -> Arc<Config> {
    Arc::new(Config { ack: AckMode::Fixed(LinkMode::Udp), security, ..Config::default() })
}

fn psk() -> Security {
    Security::Psk(Psk::from_bytes(&[7; 32]).unwrap())
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 % 251) as u8 ^ (i >> 8) as u8).collect()
}

/// Both ways at once, and both ends finish. Returns what the writer knows.
fn exchange(session: &blocking::Session) -> Info {
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut session = session;
            for chunk in pattern(STREAM_BYTES).chunks(100_003) {
                session.write_all(chunk).unwrap();
            }
            session.finish().unwrap();
            session.info()
        });
        let mut received = Vec::new();
        let mut session = session;
        session.read_to_end(&mut received).unwrap();
        assert!(received == pattern(STREAM_BYTES), "{} bytes, or wrong ones", received.len());
        writer.join().unwrap()
    })
}

fn check(info: &Info) {
    assert_eq!(info.mode.unwrap_or(LinkMode::Udp), LinkMode::Udp);
    assert_eq!(info.unacked_bytes, 0, "finish() means that everything was read");
}

fn serve(listener: blocking::Listener) -> JoinHandle<(blocking::Listener, Info)> {
    std::thread::spawn(move || {
        let info = exchange(&listener.accept().unwrap());
        (listener, info)
    })
}

#[test]
fn threads_stream_both_ways_and_finish() {
    for security in [Security::Open, psk()] {
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config(security.clone())).unwrap();
        let targets = Targets::from(listener.local_addr());
        let server = serve(listener);
        let session = blocking::Session::connect_with(&targets, &config(security)).unwrap();
        let began = Instant::now();
        check(&exchange(&session));
        let (listener, info) = server.join().unwrap();
        check(&info);
        println!("{STREAM_BYTES} bytes each way: {:?}; {:?}", began.elapsed(), listener.refusals());
    }
}

/// A server that only reads, and owes an acknowledgement whenever it has a moment, still says its Welcome.
#[test]
fn a_server_that_only_reads_welcomes_its_client() {
    for _ in 0..50 {
        let config = Arc::new(Config { retain_bytes_max: 64 << 10, ..(*config(Security::Open)).clone() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let targets = Targets::from(listener.local_addr());
        let server = std::thread::spawn(move || {
            let mut received = Vec::new();
            listener.accept().unwrap().read_to_end(&mut received).unwrap();
            received.len()
        });
        let mut session = blocking::Session::connect_with(&targets, &config).unwrap();
        session.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        for chunk in pattern(200_000).chunks(5_000) {
            session.write_all(chunk).expect("no Welcome, no room");
        }
        session.finish().unwrap();
        assert_eq!(server.join().unwrap(), 200_000);
    }
}

#[test]
fn tasks_stream_both_ways_and_finish() {
    async fn exchange(session: outlast_session::tokio::Session) {
        let (mut reader, mut writer) = tokio::io::split(session);
        let writing = tokio::spawn(async move {
            for chunk in pattern(STREAM_BYTES).chunks(100_003) {
                writer.write_all(chunk).await.unwrap();
            }
            writer.flush().await.unwrap();
            writer
        });
        let mut received = vec![0; STREAM_BYTES];
        reader.read_exact(&mut received).await.unwrap();
        assert!(received == pattern(STREAM_BYTES));
        let session = reader.unsplit(writing.await.unwrap());
        session.finish().await.unwrap();
        check(&session.info());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for security in [Security::Open, psk()] {
            let config = config(security);
            let listener = outlast_session::tokio::Listener::bind_with("127.0.0.1:0", &config).await.unwrap();
            let targets = Targets::from(listener.local_addr());
            let server = tokio::spawn(async move {
                exchange(listener.accept().await.unwrap()).await;
                listener
            });
            exchange(outlast_session::tokio::Session::connect_with(&targets, &config).await.unwrap()).await;
            server.await.unwrap();
        }
    });
}

struct Two {
    client: Host,
    server: Host,
    link: Link,
    _lab: Lab,
}

impl Two {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name).unwrap();
        let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
        let link = lab.connect(&client, &server).unwrap();
        for host in [&client, &server] {
            host.use_cubic().unwrap();
        }
        Self { client, server, link, _lab: lab }
    }

    fn listen(&self, config: &Arc<Config>) -> blocking::Listener {
        let address = self.server.socket_addr(7000);
        self.server.enter(|| blocking::Listener::bind_with(address, config)).unwrap().unwrap()
    }

    fn connect(&self, config: &Arc<Config>) -> blocking::Session {
        let targets = Targets::from(self.server.socket_addr(7000));
        self.client.enter(|| blocking::Session::connect_with(&targets, config)).unwrap().unwrap()
    }
}

fn iptables(host: &Host, rule: &str) {
    let output = host.command("iptables-legacy").args(rule.split(' ')).output().unwrap();
    assert!(output.status.success(), "{rule}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Packets that the first rule of the input chain has matched.
fn dropped(host: &Host) -> u64 {
    let output =
        host.command("iptables-legacy").args(["-L", "INPUT", "1", "-v", "-x", "-n"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text:?}"))
}

#[test]
fn lost_datagrams_are_asked_for_again() {
    outlast_lab::require!("loses acknowledgement datagrams");
    let two = Two::new("udploss");
    for host in [&two.client, &two.server] {
        iptables(host, "-A INPUT -p udp -m statistic --mode random --probability 0.3 -j DROP");
    }
    for round in 0..5 {
        let security = if round % 2 == 0 { Security::Open } else { psk() };
        let listener = two.listen(&config(security.clone()));
        let server = serve(listener);
        let session = two.connect(&config(security));
        let began = Instant::now();
        let client = two.client.enter(|| exchange(&session)).unwrap();
        check(&client);
        check(&server.join().unwrap().1);
        println!(
            "round {round}: {:?}; lost {} and {}",
            began.elapsed(),
            dropped(&two.client),
            dropped(&two.server)
        );
    }
    assert!(dropped(&two.client) > 0 && dropped(&two.server) > 0);
}

/// Not a test: the client of the next one, in a process of its own, as resuming threads belong to the network of the
/// process.
#[test]
fn client_program() {
    let Ok(security) = std::env::var("OUTLAST_UDP_CLIENT") else { return };
    let security = if security == "psk" { psk() } else { Security::Open };
    let targets: Targets = "server:7000".parse().unwrap();
    let info = exchange(&blocking::Session::connect_with(&targets, &config(security)).unwrap());
    check(&info);
    println!("outages {}, sent again {}", info.outages, info.resent_bytes);
}

/// Says that a test is over, also where it fails: who waits for it ends, too.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn resumes_after_resets() {
    outlast_lab::require!("resets connections");
    for security in [Security::Open, psk()] {
        let two = Two::new("udpreset");
        let name = if matches!(security, Security::Open) { "open" } else { "psk" };
        let listener = two.listen(&config(security));
        let mut command = two.client.command(std::env::current_exe().unwrap());
        command.args(["udp_mode::client_program", "--exact", "--nocapture"]).env("OUTLAST_UDP_CLIENT", name);
        let (info, output) = std::thread::scope(|scope| {
            let client = scope.spawn(move || command.output().unwrap());
            let session = listener.accept().unwrap();
            let reset: Fault = "reset both".parse().unwrap();
            let link = &two.link;
            let break_it = move || reset.inject(&Target::new(link)).unwrap().heal().unwrap();
            // Once for sure, and then wherever the stream is by then: how many of these hit a link depends on how busy
            // the machine is.
            break_it();
            let over = Arc::new(AtomicBool::new(false));
            let breaker = scope.spawn({
                let session = session.clone();
                let over = over.clone();
                move || {
                    for part in 1..=8 {
                        while session.info().read_bytes < part * STREAM_BYTES as u64 / 10 {
                            if over.load(Ordering::Relaxed) {
                                return;
                            }
                            std::thread::sleep(Duration::from_micros(200));
                        }
                        break_it();
                    }
                }
            });
            let over = SetOnDrop(over);
            exchange(&session);
            let info = session.info();
            drop(over);
            breaker.join().unwrap();
            (info, client.join().unwrap())
        });
        check(&info);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        println!("{name}: server outages {}, sent again {}; {text}", info.outages, info.resent_bytes);
        assert!(info.outages > 0);
    }
}

#[test]
fn without_datagrams_a_writer_waits_and_goes_on_when_they_come() {
    outlast_lab::require!("blocks datagrams");
    let two = Two::new("udpblock");
    iptables(&two.client, "-A INPUT -p udp -j DROP");
    let config =
        Arc::new(Config { detect_timeout: Duration::from_millis(300), ..(*config(Security::Open)).clone() });
    let server = serve(two.listen(&config));
    let session = two.connect(&config);
    let watch = session.clone();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| two.client.enter(|| exchange(&session)).unwrap());
        std::thread::sleep(Duration::from_secs(1));
        let info = watch.info();
        assert!(info.written_bytes <= config.retain_bytes_max as u64, "{info:?}");
        assert_eq!(info.unacked_bytes, info.written_bytes);
        assert_eq!(info.outages, 0);
        iptables(&two.client, "-D INPUT 1");
        check(&client.join().unwrap());
    });
    check(&server.join().unwrap().1);
}

/// The server has ended the session, and every word about it is lost: the client finds out with a new link.
#[test]
fn an_end_that_is_never_acknowledged_is_found_out() {
    outlast_lab::require!("blocks datagrams");
    let two = Two::new("udpend");
    iptables(&two.client, "-A INPUT -p udp -j DROP");
    let config = Arc::new(Config { detect_timeout: Duration::from_millis(300), ..(*config(psk())).clone() });
    let listener = two.listen(&config);
    let server = std::thread::spawn(move || {
        let mut session = listener.accept().unwrap();
        let mut received = Vec::new();
        session.read_to_end(&mut received).unwrap();
        session.write_all(&received).unwrap();
        session.finish().unwrap();
        (listener, received.len())
    });
    let mut session = two.connect(&config);
    let outages = two.client.enter(|| {
        session.write_all(&pattern(1000)).unwrap();
        session.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        session.read_to_end(&mut received).unwrap();
        assert!(received == pattern(1000));
        session.finish().unwrap();
        session.info().outages
    });
    assert_eq!(server.join().unwrap().1, 1000);
    assert_eq!(outages.unwrap(), 1);
    assert!(dropped(&two.client) > 3);
}

fn send(
    to: SocketAddr,
    id: SessionId,
    epoch: u64,
    kind: DatagramKind,
    offset: u64,
    key: Option<&SessionKey>,
) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagram = Datagram { kind, needs_confirm: false, id, epoch, offset };
    socket.send_to(datagram.encode(key, true).as_ref(), to).unwrap();
}

#[test]
fn garbage_and_forgeries_are_ignored() {
    for security in [Security::Open, psk()] {
        let with_key = matches!(security, Security::Psk(_));
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config(security.clone())).unwrap();
        let address = listener.local_addr();
        let mut client = blocking::Session::connect_with(&Targets::from(address), &config(security)).unwrap();
        client.write_all(b"begin").unwrap();
        let mut server = listener.accept().unwrap();
        let mut buffer = [0; 5];
        server.read_exact(&mut buffer).unwrap();
        // Nobody reads this for now: none of it may count as read.
        server.write_all(&pattern(100_000)).unwrap();
        let id = client.id();
        let forger = SessionKey::from_bytes([9; 32]);
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sent = 0;
        for bytes in [&b""[..], b"x", &[0; 40], &[0xff; 56], &[7; 1400]] {
            stranger.send_to(bytes, address).unwrap();
            sent += 1;
        }
        for (id, epoch, kind, offset, key) in [
            (SessionId::from_bytes([3; 16]), 1, DatagramKind::Ack, 5, None),
            (id, 2, DatagramKind::Ack, 100_000, None),
            (id, 1, DatagramKind::Ack, 100_001, None),
            (id, 1, DatagramKind::Ack, 1 << 60, None),
            (id, 1, DatagramKind::HalfClose, 100_000, None),
            (id, 1, DatagramKind::Close, 5, None),
            (id, 1, DatagramKind::Reset, 0, None),
            (id, 1, DatagramKind::Ack, 100_000, Some(&forger)),
            (id, 1, DatagramKind::HalfClose, 100_000, Some(&forger)),
        ] {
            send(address, id, epoch, kind, offset, key);
            sent += 1;
        }
        if with_key {
            // Without a MAC even what would be true is not believed.
            send(address, id, 1, DatagramKind::Ack, 100_000, None);
            sent += 1;
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        let ignored =
            || listener.refusals().iter().find(|(name, _)| *name == "ignored_datagrams").map(|found| found.1);
        while ignored() != Some(sent) {
            assert!(Instant::now() < deadline, "{:?} of {sent} ignored", ignored());
            std::thread::sleep(Duration::from_millis(5));
        }
        if !with_key {
            // PROTOCOL 5.6: not from the peer's address, so this does not lead answers to its port there.
            let observer = UdpSocket::bind("127.0.0.1:0").unwrap();
            observer.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let elsewhere = UdpSocket::bind(("127.0.0.2", observer.local_addr().unwrap().port())).unwrap();
            elsewhere.set_nonblocking(true).unwrap();
            let kind = DatagramKind::RequestAck;
            let asked = Datagram { kind, needs_confirm: false, id, epoch: 1, offset: 5 };
            elsewhere.send_to(asked.encode(None, true).as_ref(), address).unwrap();
            assert!(observer.recv(&mut [0; 64]).is_err(), "answers were led astray");
            assert!(elsewhere.recv(&mut [0; 64]).is_err(), "a stranger was answered");
        }
        let info = server.info();
        assert_eq!((info.unacked_bytes, info.outages), (100_000, 0), "{info:?}");
        server.shutdown(Shutdown::Write).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert!(rest == pattern(100_000));
        server.read_to_end(&mut rest).unwrap();
        server.finish().unwrap();
        client.finish().unwrap();
        check(&server.info());
    }
}
