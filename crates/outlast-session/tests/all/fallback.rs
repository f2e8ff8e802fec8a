//! A path that was direct, and for one link could not be seen to be: the one after it is as before.

use crate::common::quick;
use outlast_lab::{Fault, Host, Lab, Link, Target};
use outlast_session::{Config, LinkMode, Targets, blocking};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn inject(what: &str, wire: &Link) -> outlast_lab::Injected {
    what.parse::<Fault>().unwrap().inject(&Target::new(wire)).unwrap()
}

/// What the library warns of, from now on.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u8>>>);

impl Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Warnings {
    fn collect() -> Self {
        let all = Self::default();
        let writer = all.clone();
        let make = move || writer.clone();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::WARN);
        subscriber.with_ansi(false).with_writer(make).try_init().unwrap();
        all
    }

    fn count(&self, words: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().unwrap()).matches(words).count()
    }
}

/// One byte there and back, on whatever link.
fn round_trip(client: &blocking::Session, server: &blocking::Session) -> LinkMode {
    (&*client).write_all(b"x").unwrap();
    (&*server).read_exact(&mut [0]).unwrap();
    (&*server).write_all(b"y").unwrap();
    (&*client).read_exact(&mut [0]).unwrap();
    client.info().mode.unwrap()
}

/// Whether a connection is being made there whose first SYN, or the answer to it, was lost.
fn sends_a_syn_again(host: &Host) -> bool {
    let table = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap()).unwrap();
    // Columns: 3 the state (02: SYN sent), 6 how often it was sent again.
    table.lines().skip(1).any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns[3] == "02" && u32::from_str_radix(columns[6], 16).unwrap() > 0
    })
}

/// Waits until the first answers to a connection's SYN were lost: it takes seconds, and could be anybody's.
fn wait_for_a_loss(client_host: &Host) {
    while !sends_a_syn_again(client_host) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_session_whose_opening_lost_a_packet_is_kernel_with_its_next_link() {
    outlast_lab::require!("drops packets");
    let lab = Lab::new("fallback-opening").unwrap();
    let (client_host, server_host): (Host, Host) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let wire = lab.connect(&client_host, &server_host).unwrap();
    let config = Arc::new(Config { watch_network: false, ..quick() });
    let address = server_host.socket_addr(0);
    let listener = server_host.enter(|| blocking::Listener::bind_with(address, &config).unwrap()).unwrap();
    let targets = Targets::from(listener.local_addr());
    let lost = inject("drop to-client", &wire);
    let client = std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            client_host.enter(|| blocking::Session::connect_with(&targets, &config).unwrap()).unwrap()
        });
        wait_for_a_loss(&client_host);
        lost.heal().unwrap();
        opening.join().unwrap()
    });
    (&client).write_all(b"x").unwrap();
    let server = listener.accept().unwrap();
    (&server).read_exact(&mut [0]).unwrap();
    assert_eq!(round_trip(&client, &server), LinkMode::Inband, "the proof is spoilt");
    inject("reset both", &wire).heal().unwrap();
    assert_eq!(round_trip(&client, &server), LinkMode::Kernel, "the path is direct");
}

#[test]
fn a_link_whose_first_packet_was_lost_is_inband_and_the_next_is_kernel_again() {
    outlast_lab::require!("drops packets");
    let warnings = Warnings::collect();
    let lab = Lab::new("fallback").unwrap();
    let (client_host, server_host): (Host, Host) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let wire = lab.connect(&client_host, &server_host).unwrap();
    let config = Arc::new(Config { watch_network: false, ..quick() });
    let address = server_host.socket_addr(0);
    let listener = server_host.enter(|| blocking::Listener::bind_with(address, &config).unwrap()).unwrap();
    let targets = Targets::from(listener.local_addr());
    let client = client_host.enter(|| blocking::Session::connect_with(&targets, &config).unwrap()).unwrap();
    (&client).write_all(b"x").unwrap();
    let server = listener.accept().unwrap();
    (&server).read_exact(&mut [0]).unwrap();
    assert_eq!(round_trip(&client, &server), LinkMode::Kernel);
    let lost = inject("drop to-client", &wire);
    inject("reset both", &wire).heal().unwrap();
    // That the link is lost is noticed now.
    (&client).write_all(b"x").unwrap();
    wait_for_a_loss(&client_host);
    lost.heal().unwrap();
    (&server).read_exact(&mut [0]).unwrap();
    assert_eq!(round_trip(&client, &server), LinkMode::Inband, "the proof is spoilt");
    inject("reset both", &wire).heal().unwrap();
    assert_eq!(round_trip(&client, &server), LinkMode::Kernel, "the path is direct");
    assert_eq!(client.info().outages, 2);
    let said = warnings.count(
        "the path was direct, and the server cannot see that it still is: using inband for the next link",
    );
    assert_eq!(said, 1, "{:?}", warnings.0.lock().map(|text| String::from_utf8_lossy(&text).into_owned()));
}
