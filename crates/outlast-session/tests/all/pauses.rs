//! A pause is as long as nothing passes: the time until that is noticed is part of it, at both ends.

use crate::common::{HANG, quick};
use outlast_lab::{Fault, Host, Injected, Lab, Link, Target};
use outlast_session::{AckMode, Config, EventKind, LinkMode, Targets, blocking};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The kernel's clock for what it has heard.
const TICKS: Duration = Duration::from_millis(20);
/// A kernel has received something so long, at the most, before it says so (Linux: `TCP_DELACK_MAX`).
const DELAYED_ACK: Duration = Duration::from_millis(200);

/// A client with a session to a server, each on a host of its own.
struct Pair {
    client: blocking::Session,
    server: blocking::Session,
    wire: Link,
    /// Kept for as long as they talk.
    _listener: blocking::Listener,
    _hosts: [Host; 2],
    _lab: Lab,
}

impl Pair {
    /// Each end has heard of the other. `name` is that of the lab, which no other test has.
    fn new(name: &str, config: Config) -> Self {
        let config = Arc::new(config);
        let lab = Lab::new(name).unwrap();
        let (client_host, server_host) = (lab.host("client").unwrap(), lab.host("server").unwrap());
        let wire = lab.connect(&client_host, &server_host).unwrap();
        let address = server_host.socket_addr(0);
        let listener =
            server_host.enter(|| blocking::Listener::bind_with(address, &config).unwrap()).unwrap();
        let targets = Targets::from(listener.local_addr());
        let client =
            client_host.enter(|| blocking::Session::connect_with(&targets, &config).unwrap()).unwrap();
        (&client).write_all(b"x").unwrap();
        client.established().unwrap();
        let server = listener.accept().unwrap();
        (&server).read_exact(&mut [0]).unwrap();
        Self { client, server, wire, _listener: listener, _hosts: [client_host, server_host], _lab: lab }
    }

    /// From here on until it is healed.
    fn inject(&self, fault: &str) -> Injected {
        fault.parse::<Fault>().unwrap().inject(&Target::new(&self.wire)).unwrap()
    }
}

fn elapsed_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap()
}

/// Both ends say something all the time: what is under way when the wire is cut tells how long nothing passes.
#[test]
fn a_pause_begins_with_the_last_byte_that_has_passed() {
    outlast_lab::require!("drops what passes");
    let modes = [LinkMode::Kernel, LinkMode::Inband];
    let faults = ["drop both", "link down client"];
    for (mode, fault) in modes.into_iter().flat_map(|mode| faults.map(|fault| (mode, fault))) {
        let config = Config {
            ack: AckMode::Fixed(mode),
            detect_timeout: Duration::from_secs(1),
            handshake_timeout: Duration::from_millis(500),
            watch_network: false,
            ..quick()
        };
        let pair = Pair::new(&format!("pauses-{mode}-{}", fault.len()), config);
        let Pair { client, server, .. } = &pair;
        let mut events = [client.events(), server.events()];
        let over = Arc::new(AtomicBool::new(false));
        let began = Instant::now();
        // When what each end has read last was written, after so many milliseconds.
        let written_ms = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let talking = [(client, &written_ms[0]), (server, &written_ms[1])].map(|(session, written_ms)| {
            let (reader, writer, over) = (session.clone(), session.clone(), over.clone());
            let written_ms = written_ms.clone();
            std::thread::spawn(move || {
                let mut tick = [0; 8];
                while (&reader).read_exact(&mut tick).is_ok() {
                    written_ms.store(u64::from_be_bytes(tick), Ordering::Relaxed);
                }
            });
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    (&writer).write_all(&elapsed_ms(began).to_be_bytes()).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            })
        });
        std::thread::sleep(Duration::from_millis(200));
        let drop = pair.inject(fault);
        let cut = Instant::now();
        // What was written has passed after that. On a busy machine it is read some time later, or the cut takes a while.
        // A pause counts from the last byte in the direction that stopped first: a peer that gets nothing may still be heard.
        let last_written = written_ms.map(|ms| began + Duration::from_millis(ms.load(Ordering::Relaxed)));
        let oldest = last_written[0].min(last_written[1]);
        std::thread::sleep(Duration::from_secs(2));
        let lasted = cut.elapsed();
        drop.heal().unwrap();
        for (end, events) in ["client", "server"].iter().zip(&mut events) {
            let pause = loop {
                assert!(
                    cut.elapsed() < HANG,
                    "{mode}, {fault}: the {end} is not told that the session goes on"
                );
                match events.try_recv().map(|event| event.kind) {
                    Some(EventKind::Resumed { pause, .. }) => break pause,
                    Some(_) => {}
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            let most = oldest.elapsed() + DELAYED_ACK + TICKS;
            let is_right = pause + TICKS >= lasted && pause <= most;
            assert!(is_right, "{mode}, {fault}: the {end} says {pause:?}, it was {lasted:?} to {most:?}");
        }
        for info in [client.info(), server.info()] {
            let lasted_ms = u64::try_from((lasted - TICKS).as_millis()).unwrap();
            assert!(info.pause_longest_ms >= lasted_ms && info.pause_total_ms >= lasted_ms, "{info:?}");
        }
        over.store(true, Ordering::Relaxed);
        talking.into_iter().for_each(|thread| thread.join().unwrap());
        client.kill();
        assert!(client.kill_told(HANG));
    }
}

/// The server sends, and the client only reads. The wire works again just before the server gives the link up.
#[test]
fn a_client_that_only_reads_hears_when_its_server_gives_up() {
    outlast_lab::require!("drops what passes");
    let detect_timeout = Duration::from_millis(5500);
    let config = Config { ack: AckMode::Fixed(LinkMode::Kernel), detect_timeout, ..quick() };
    let pair = Pair::new("pauses-read", config);
    let Pair { client, server, .. } = &pair;
    let over = Arc::new(AtomicBool::new(false));
    let (writer, stop) = (server.clone(), over.clone());
    let writing = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            (&writer).write_all(b"tick").unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let mut reader = client;
    let mut read = || reader.read_exact(&mut [0; 4]).unwrap();
    (0..20).for_each(|_| read());
    let drop = pair.inject("drop both");
    let cut = Instant::now();
    // The kernel of the server has sent the first of it again after 0.2, 0.6, 1.4 and 3 s, and would do so after 6.2 s. Where
    // acknowledgements took up to 40 ms before, as those that are delayed do, each of these is up to a fifth later: 3.6 s. That
    // of the client asks after 2.8 s, and after 4.1 s, when it is answered; it would ask again after 6.9 s.
    std::thread::sleep(Duration::from_millis(3850));
    drop.heal().unwrap();
    let mut gap = Duration::ZERO;
    // What was not lost comes at once.
    while gap < Duration::from_millis(500) {
        assert!(cut.elapsed() < HANG, "nothing comes");
        let before = Instant::now();
        read();
        gap = gap.max(before.elapsed());
    }
    over.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    let paused = cut.elapsed();
    // Half a second between two looks, and a new link.
    assert!(paused < detect_timeout + Duration::from_millis(1200), "{paused:?}");
    for info in [client.info(), server.info()] {
        assert_eq!(info.outages, 1, "{info:?}");
        let told = Duration::from_millis(info.pause_total_ms);
        let (least, most) = (paused - Duration::from_millis(250), paused + Duration::from_millis(100));
        assert!((least..most).contains(&told), "{paused:?}: {info:?}");
    }
}

/// The client waits for an answer to what it has said. The server has said nothing that is not confirmed, and would notice nothing
/// for 10 s: it knows of the pause from its client, who makes a new link long before that.
#[test]
fn a_server_with_nothing_under_way_shows_the_pause_of_its_client() {
    outlast_lab::require!("drops what passes");
    for mode in [LinkMode::Kernel, LinkMode::Inband] {
        let config = Config { ack: AckMode::Fixed(mode), watch_network: false, ..Config::default() };
        let pair = Pair::new(&format!("pauses-asked-{mode}"), config);
        let Pair { client, server, .. } = &pair;
        let answering = server.clone();
        let answers = std::thread::spawn(move || {
            let (mut from, mut to) = (&answering, &answering);
            std::io::copy(&mut from, &mut to)
        });
        let (mut ask, mut answer) = (client, [0; 4]);
        for _ in 0..3 {
            ask.write_all(b"tick").unwrap();
            ask.read_exact(&mut answer).unwrap();
            // Longer than what delays a confirmation.
            std::thread::sleep(Duration::from_millis(300));
        }
        let drop = pair.inject("drop both");
        let cut = Instant::now();
        ask.write_all(b"tick").unwrap();
        std::thread::sleep(Duration::from_secs(4));
        drop.heal().unwrap();
        ask.read_exact(&mut answer).unwrap();
        let paused = cut.elapsed();
        let infos = [client.info(), server.info()];
        for info in &infos {
            assert_eq!(info.outages, 1, "{mode}: {infos:?}");
            let told = Duration::from_millis(info.pause_total_ms);
            // The last answer came so long before the cut.
            let (least, most) = (paused - Duration::from_millis(500), paused + Duration::from_millis(500));
            assert!((least..most).contains(&told), "{mode}: {paused:?}: {infos:?}");
        }
        client.kill();
        assert!(client.kill_told(HANG));
        assert!(answers.join().unwrap().is_err());
    }
}

/// What is written while the client's device is off was never sent: its kernel says that it probes for a window, and would do so
/// again 6.2 s after the first time, which is 2.9 s after it is on again. A second link is tried meanwhile: attempts are at most half
/// as far apart as the outage is long, 1.65 s.
#[test]
fn a_client_whose_device_was_off_has_a_new_link_soon_after_that() {
    outlast_lab::require!("switches a device off");
    let detect_timeout = Duration::from_secs(20);
    let pair =
        Pair::new("pauses-off", Config { ack: AckMode::Fixed(LinkMode::Kernel), detect_timeout, ..quick() });
    let (mut client, server) = (&pair.client, pair.server.clone());
    let answering = std::thread::spawn(move || {
        let mut byte = [0];
        while (&server).read(&mut byte).is_ok_and(|count| count > 0) {
            (&server).write_all(&byte).unwrap();
        }
    });
    let off = pair.inject("link down client");
    client.write_all(b"y").unwrap();
    std::thread::sleep(Duration::from_millis(3300));
    off.heal().unwrap();
    let healed = Instant::now();
    let mut byte = [0];
    client.read_exact(&mut byte).unwrap();
    let took = healed.elapsed();
    assert_eq!(byte, *b"y");
    assert!(took < Duration::from_millis(2500), "{took:?} after the device was on again");
    client.kill();
    answering.join().unwrap();
}

/// A link that worked until it was reset has no time before its loss in which nothing passed.
#[test]
fn an_idle_link_that_is_reset_makes_no_long_pause() {
    outlast_lab::require!("resets connections");
    let config = Config { ack: AckMode::Fixed(LinkMode::Kernel), ..quick() };
    let pair = Pair::new("pauses-reset", config);
    let (mut client, mut server) = (&pair.client, &pair.server);
    let idle = Duration::from_secs(3);
    std::thread::sleep(idle);
    let reset = Instant::now();
    pair.inject("reset both").heal().unwrap();
    // Whoever reads notices.
    let reader = client.clone();
    let reading = std::thread::spawn(move || (&reader).read_exact(&mut [0]).unwrap());
    client.write_all(b"y").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"z").unwrap();
    reading.join().unwrap();
    let took = reset.elapsed();
    for info in [client.info(), server.info()] {
        assert_eq!(info.outages, 1, "{info:?}");
        assert!(Duration::from_millis(info.pause_total_ms) <= took + TICKS, "{took:?}: {info:?}");
    }
}

/// What passes on a connection in one direction. Where the way is silent, it is taken and goes nowhere.
fn forward(mut from: TcpStream, mut to: TcpStream, is_silent: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !is_silent.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A proxy that ends TCP on the way to `server`, and where it listens.
fn proxy(server: SocketAddr, is_silent: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(server) else { continue };
            let both = [(&client, &server), (&server, &client)];
            for (from, to) in both.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap())) {
                let is_silent = Arc::clone(&is_silent);
                std::thread::spawn(move || forward(from, to, &is_silent));
            }
        }
    });
    address
}

/// Behind a proxy the kernels hear of nothing: the ends look whether anything has come, four times in the time that a peer may be
/// silent. The last byte may have come just behind the look before the first of these.
#[test]
fn behind_a_proxy_a_pause_begins_with_the_last_byte_too() {
    let detect_timeout = Duration::from_secs(1);
    let handshake_timeout = Duration::from_secs(1);
    // Of each round, on a busy machine: what a forwarder that has lost its processor lets through late, and the like.
    let late = Duration::from_millis(100);
    let ack = AckMode::Fixed(LinkMode::Inband);
    let config = Arc::new(Config { ack, detect_timeout, handshake_timeout, ..quick() });
    let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
    let is_silent = Arc::new(AtomicBool::new(false));
    let targets = Targets::from(proxy(listener.local_addr(), Arc::clone(&is_silent)));
    let mut client = blocking::Session::connect_with(&targets, &config).unwrap();
    client.write_all(b"x").unwrap();
    client.established().unwrap();
    let mut server = listener.accept().unwrap();
    server.read_exact(&mut [0]).unwrap();
    let mut paused = Duration::ZERO;
    for round in 1..=3u32 {
        is_silent.store(true, Ordering::SeqCst);
        let cut = Instant::now();
        std::thread::sleep(2 * detect_timeout);
        let lasted = cut.elapsed();
        is_silent.store(false, Ordering::SeqCst);
        client.write_all(b"y").unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(b"z").unwrap();
        client.read_exact(&mut [0]).unwrap();
        paused += lasted;
        for info in [client.info(), server.info()] {
            let told = Duration::from_millis(info.pause_total_ms);
            assert!(
                info.outages >= u64::from(round) && told + late * round >= paused,
                "{round}: {paused:?}: {info:?}"
            );
        }
    }
    client.kill();
}
