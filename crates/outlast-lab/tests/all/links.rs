//! Hosts reach each other as their links say: addresses, names, delay, loss, rate, order.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is the message"
)]

use std::io::{Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Pair, dial, pass};
use outlast_lab::{Connections, Direction, Host, Lab, Side, WireSpec, require};

fn two(lab: &Lab) -> (Host, Host) {
    (lab.host("client").unwrap(), lab.host("server").unwrap())
}

#[test]
fn a_cable_carries_both_families() {
    require!();
    let lab = Lab::new("links").unwrap();
    let (client, server) = two(&lab);
    assert!(client.address().is_loopback());
    let link = lab.connect(&client, &server).unwrap();
    assert_eq!(link.addresses(Side::Client).map(|a| IpAddr::from(a.v4)), Some(client.address()));
    assert!(!link.is_wire() && link.stats(Direction::ToServer).is_none());
    Pair::v4(&client, &server).assert_works();
    Pair::v6(&client, &server).assert_works();
}

#[test]
fn labs_do_not_see_each_other() {
    require!();
    let (one, other) = (Lab::new("same").unwrap(), Lab::new("same").unwrap());
    let ((a, b), (c, d)) = (two(&one), two(&other));
    one.connect(&a, &b).unwrap();
    other.connect(&c, &d).unwrap();
    assert_eq!(a.address(), c.address());
    assert_ne!(a.namespace(), c.namespace());
    let here = Pair::v4(&a, &b);
    assert!(dial(&c, here.address, crate::common::SHORT).is_err());
}

#[test]
fn a_switch_joins_many_hosts() {
    require!();
    let lab = Lab::new("switch").unwrap();
    let switch = lab.switch("middle").unwrap();
    let hosts: Vec<_> = (0..4).map(|n| lab.host(&format!("host{n}")).unwrap()).collect();
    let links: Vec<_> = hosts.iter().map(|host| lab.attach(host, &switch).unwrap()).collect();
    for from in &hosts {
        for to in hosts.iter().filter(|to| *to != from) {
            Pair::v4(from, to).assert_works();
            Pair::v6(from, to).assert_works();
        }
    }
    links[0].set_up(Side::Client, false).unwrap();
    links[0].set_up(Side::Client, true).unwrap();
    links[1].change_address(Side::Client).unwrap();
    Pair::v4(&hosts[0], &hosts[1]).assert_works();
    Pair::v6(&hosts[1], &hosts[0]).assert_works();
}

#[test]
fn a_wire_delays_both_ways() {
    require!();
    let lab = Lab::new("delay").unwrap();
    let (client, server) = two(&lab);
    let link = lab.wire(&client, &server, WireSpec::delay_ms(20)).unwrap();
    for pair in [Pair::v4(&client, &server), Pair::v6(&client, &server)] {
        let start = Instant::now();
        pair.assert_works();
        assert!(start.elapsed() >= Duration::from_millis(40), "{:?}", start.elapsed());
    }
    link.set_spec(WireSpec::default()).unwrap();
    let pair = Pair::v4(&client, &server);
    let quickest = (0..20).map(|_| {
        let start = Instant::now();
        pair.assert_works();
        start.elapsed()
    });
    assert!(quickest.min().unwrap() < Duration::from_millis(20));
}

/// So many datagrams may be under way: the receiver's buffer holds some 270 of them, and on a busy machine neither the
/// receiver nor the wire has its turn for a while.
const UNDER_WAY: u32 = 100;

/// Sends numbered datagrams and returns the numbers that arrive. Of more than `UNDER_WAY` the wire must not lose so many in a
/// row.
fn datagrams(client: &Host, server: &Host, count: u32) -> Vec<u32> {
    let to = server.enter(|| UdpSocket::bind(server.socket_addr(0))).unwrap().unwrap();
    let from = client.enter(|| UdpSocket::bind(client.socket_addr(0))).unwrap().unwrap();
    from.connect(to.local_addr().unwrap()).unwrap();
    to.set_read_timeout(Some(crate::common::SHORT)).unwrap();
    let (all_sent, seen) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..count {
                while n > seen.load(Ordering::Relaxed) + UNDER_WAY {
                    std::thread::sleep(Duration::from_micros(50));
                }
                from.send(&n.to_be_bytes()).unwrap();
                std::thread::sleep(Duration::from_micros(20));
            }
            all_sent.store(true, Ordering::Relaxed);
        });
        let mut bytes = [0; 4];
        let numbers = std::iter::from_fn(|| {
            loop {
                // Asked before: what comes while nobody has sent for a while is the last.
                let is_last = all_sent.load(Ordering::Relaxed);
                match to.recv(&mut bytes) {
                    Ok(_) => {
                        let number = u32::from_be_bytes(bytes);
                        seen.fetch_max(number, Ordering::Relaxed);
                        return Some(number);
                    }
                    Err(_) if is_last => return None,
                    Err(_) => {}
                }
            }
        });
        numbers.collect()
    })
}

#[test]
fn a_wire_loses_duplicates_and_reorders_as_told() {
    require!();
    let lab = Lab::new("loss").unwrap();
    let (client, server) = two(&lab);
    let link = lab.wire(&client, &server, WireSpec::default().with_loss(0.2)).unwrap();
    let arrived = datagrams(&client, &server, 2000).len();
    assert!((1450..1750).contains(&arrived), "{arrived} of 2000");
    let stats = link.stats(Direction::ToServer).unwrap();
    assert_eq!((stats.lost + stats.delivered, stats.delivered), (2000, arrived as u64));

    link.set_spec(WireSpec { duplicate: 1.0, ..WireSpec::default() }).unwrap();
    assert_eq!(datagrams(&client, &server, 100).len(), 200);

    link.set_spec(WireSpec { reorder: 0.3, ..WireSpec::default() }).unwrap();
    let mut arrived = datagrams(&client, &server, 500);
    assert!(arrived.windows(2).any(|pair| pair[0] > pair[1]), "nothing was overtaken");
    arrived.sort_unstable();
    assert!(arrived.into_iter().eq(0..500));

    link.set_spec_one_way(Direction::ToClient, WireSpec::default().with_loss(1.0)).unwrap();
    link.set_spec_one_way(Direction::ToServer, WireSpec::default()).unwrap();
    assert_eq!(datagrams(&client, &server, 50).len(), 50);
    assert_eq!(datagrams(&server, &client, 50).len(), 0);
}

#[test]
fn a_wire_with_a_rate_is_no_faster() {
    require!();
    let lab = Lab::new("rate").unwrap();
    let (client, server) = two(&lab);
    lab.wire(&client, &server, WireSpec::delay_ms(1).with_rate(2_000_000)).unwrap();
    let pair = Pair::v4(&client, &server);
    let start = Instant::now();
    let data = vec![7; 600_000];
    std::thread::scope(|scope| {
        scope.spawn(|| (&pair.client).write_all(&data).unwrap());
        (&pair.server).read_exact(&mut vec![0; data.len()]).unwrap();
    });
    assert!(start.elapsed() >= Duration::from_millis(290), "{:?}", start.elapsed());
}

#[test]
fn a_bad_wire_still_carries_a_stream_correctly() {
    require!();
    let lab = Lab::new("bad").unwrap();
    let (client, server) = two(&lab);
    let bad = WireSpec {
        jitter: Duration::from_micros(300),
        loss: 0.02,
        reorder: 0.05,
        reorder_by: Duration::from_micros(500),
        duplicate: 0.05,
        ..WireSpec::delay_ms(1)
    };
    lab.wire(&client, &server, bad).unwrap();
    let pair = Pair::v4(&client, &server);
    let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_be_bytes).collect();
    let mut received = vec![0; data.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| (&pair.client).write_all(&data).unwrap());
        (&pair.server).read_exact(&mut received).unwrap();
    });
    assert!(received == data);
}

#[test]
fn specs_that_make_no_sense_are_refused() {
    require!();
    let lab = Lab::new("refuse").unwrap();
    let (client, server) = two(&lab);
    let refused = [
        WireSpec::default().with_loss(1.5),
        WireSpec { duplicate: f64::NAN, ..WireSpec::default() },
        WireSpec { mtu_bytes: 500, ..WireSpec::default() },
        WireSpec::default().with_rate(0),
    ];
    for spec in refused {
        assert!(lab.wire(&client, &server, spec).is_err(), "{spec:?}");
    }
    assert!(lab.host("client").is_err(), "the name is taken");
    assert!(lab.host("Not A Name").is_err() && Lab::new("").is_err());
}

#[test]
fn programs_see_the_network_and_the_names_of_their_host() {
    require!();
    let lab = Lab::new("programs").unwrap();
    let (client, server) = two(&lab);
    let link = lab.wire(&client, &server, WireSpec::default()).unwrap();
    let names = || {
        let output = client.command("getent").args(["ahosts", "server"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(names().starts_with(&format!("{} ", server.address())), "{}", names());
    link.change_address(Side::Server).unwrap();
    assert!(names().starts_with(&format!("{} ", server.address())), "{}", names());
    let six = client.command("getent").args(["ahosts", "server6"]).output().unwrap();
    assert!(String::from_utf8(six.stdout).unwrap().starts_with(&format!("{} ", server.address_v6())));

    let mut failing = client.command("sh");
    let output = failing.args(["-c", "echo out; echo err >&2; exit 7"]).output().unwrap();
    assert_eq!((output.stdout, output.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(failing.status().unwrap().code(), Some(7), "a command can be used again");
    let missing = client.command("no-such-program").spawn().unwrap_err().to_string();
    assert!(missing.contains("no-such-program") && missing.contains("client"), "{missing}");
}

#[test]
fn threads_enter_and_leave() {
    require!();
    let lab = Lab::new("threads").unwrap();
    let (client, server) = two(&lab);
    lab.connect(&client, &server).unwrap();
    let here = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let home = here();
    let guard = client.enter_guard().unwrap();
    assert_ne!(here(), home);
    let nested = server.enter_guard().unwrap();
    drop(nested);
    drop(guard);
    assert_eq!(here(), home);
    let panic = std::panic::catch_unwind(|| client.enter(|| panic!("inside")).unwrap());
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"inside"));
    assert_eq!(here(), home);
}

#[test]
fn cubic_is_used_on_request_and_stays_after_an_outage() {
    require!();
    let lab = Lab::new("cubic").unwrap();
    let (client, server) = two(&lab);
    client.use_cubic().unwrap();
    let link = lab.connect(&client, &server).unwrap();
    link.set_up(Side::Client, false).unwrap();
    link.set_up(Side::Client, true).unwrap();
    for pair in [Pair::v4(&client, &server), Pair::v6(&client, &server)] {
        assert_eq!(congestion_control(&pair.client), "cubic");
    }
    let local = Pair::at(&client, &client, "127.0.0.1:0".parse().unwrap());
    assert_eq!(congestion_control(&local.client), "cubic");
}

fn congestion_control(stream: &std::net::TcpStream) -> String {
    use std::os::fd::AsRawFd;
    let mut name = [0_u8; 16];
    let mut len = libc::socklen_t::try_from(name.len()).unwrap();
    let fd = stream.as_raw_fd();
    // SAFETY: the buffer outlives the call and is as long as said.
    let result = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_mut_ptr().cast(), &raw mut len)
    };
    assert_eq!(result, 0);
    String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
}

#[test]
fn connections_are_listed() {
    require!();
    let lab = Lab::new("list").unwrap();
    let (client, server) = two(&lab);
    lab.connect(&client, &server).unwrap();
    let (four, six) = (Pair::v4(&client, &server), Pair::v6(&client, &server));
    let all = client.connections(Connections::all()).unwrap();
    assert_eq!(all.len(), 2);
    for pair in [&four, &six] {
        let found = client.connections(Connections::on_port(pair.address.port())).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].local, found[0].peer), (pair.client.local_addr().unwrap(), pair.address));
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_runtime_lives_in_its_host() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    require!();
    let lab = Lab::new("runtime").unwrap();
    let (client, server) = two(&lab);
    lab.wire(&client, &server, WireSpec::delay_ms(1)).unwrap();
    let (at_client, at_server) = (client.runtime(1).unwrap(), server.runtime(2).unwrap());
    let address = server.socket_addr(0);
    let listener = at_server.block_on(tokio::net::TcpListener::bind(address)).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let echo = async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
    };
    at_server.spawn(echo).unwrap();
    let ask = at_client.spawn(async move {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await.unwrap();
        bytes
    });
    assert_eq!(&at_client.block_on(ask.unwrap()).unwrap().unwrap(), b"ping");
}

#[test]
fn a_cut_wire_stays_cut_under_load() {
    require!();
    let lab = Lab::new("load").unwrap();
    let (client, server) = two(&lab);
    let link = lab.wire(&client, &server, WireSpec::default()).unwrap();
    let pair = Pair::v4(&client, &server);
    pass(&pair.client, &pair.server);
    pair.client.set_write_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let block = vec![0; 1 << 16];
            while (&pair.client).write_all(&block).is_ok() {}
        });
        let mut bytes = vec![0; 1 << 20];
        for _ in 0..100 {
            let _ = (&pair.server).read(&mut bytes).unwrap();
        }
        link.set_blocked(Direction::ToServer, true).unwrap();
        // What the server's kernel has received by now it still hands out; then there is silence.
        pair.server.set_read_timeout(Some(crate::common::SHORT)).unwrap();
        while (&pair.server).read(&mut bytes).is_ok() {}
        assert!((&pair.server).read(&mut bytes).is_err());
        client.abort_connections(Connections::all()).unwrap();
    });
}
