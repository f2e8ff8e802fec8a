//! Connections that are given to the program again.

use super::*;
use crate::custody::message::AddressBytes;
use crate::custody::table::Table;
use crate::sys::process;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// A program that listens, and connections that it has accepted, but not read from, with their clients.
struct Scene {
    listener: TcpListener,
    listeners: Listeners,
    connections: Connections,
    _clients: Vec<TcpStream>,
}

fn scene(count: usize) -> Scene {
    let (_memory, table) = Table::create(false, "a test").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut listeners, mut connections) = (Listeners::default(), Connections::new(table, None));
    connections.set_limit(count);
    let bytes = AddressBytes::new(&sys::local_address(listener.as_fd())).unwrap();
    let socket = listener.as_fd().try_clone_to_owned().unwrap();
    assert!(listeners.add(socket, bytes, None, (process::pid(), None), &[], table));
    let mut clients = Vec::new();
    for number in 0..count {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        writeln!(client, "{number}").unwrap();
        clients.push(client);
        connections.pass_on(listener.accept().unwrap().0.into());
    }
    Scene { listener, listeners, connections, _clients: clients }
}

impl Scene {
    /// The program accepts, and asks what it has got.
    fn accept(&mut self) -> Given {
        let (accepted, us) = (self.listener.accept().unwrap().0, process::pid());
        let known = process::open(us).unwrap();
        let peer = Address::parse(&sys::peer_address(accepted.as_fd())).unwrap();
        self.connections.swap(&self.listeners, (us, known.as_fd()), accepted.as_raw_fd(), &peer).unwrap()
    }
}

fn reads(given: Given) -> String {
    let mut said = [0; 8];
    let length = TcpStream::from(given.socket).read(&mut said).unwrap();
    String::from_utf8_lossy(&said[..length]).trim().to_owned()
}

#[test]
fn all_are_given_and_those_first_that_wait_longest() {
    const COUNT: usize = 100;
    let mut scene = scene(COUNT);
    for number in 0..COUNT {
        scene.connections.offer(&scene.listeners, None, Instant::now());
        assert!(scene.connections.has_waiting());
        assert_eq!(scene.connections.loose.offered.len(), OFFERS.min(COUNT - number));
        let given = scene.accept();
        assert_eq!(reads(given), number.to_string());
    }
    assert!(!scene.connections.has_waiting() && scene.connections.loose.is_empty());
}

fn listens_at(port: u16) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    listen(&socket, 10).unwrap();
    socket
}

/// One that is held, of this process, and its client; `linger_s` is what its listener says of closing.
fn served_by(owner: process::Pid, linger_s: Option<u64>) -> (Connections, TcpStream) {
    let (_memory, table) = Table::create(false, "a test").unwrap();
    let mut connections = Connections::new(table, None);
    connections.set_limit(9);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let linger = linger_s.map(std::time::Duration::from_secs);
    rustix::net::sockopt::set_socket_linger(&listener, linger).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    connections.pass_on(listener.accept().unwrap().0.into());
    let number = *connections.all.keys().next().unwrap();
    connections.change(number, State::Served);
    let held = connections.all.get_mut(&number).unwrap();
    (held.owner, held.number, held.got_at) =
        (owner, 0, Instant::now().checked_sub(super::super::SETTLED * 2).unwrap());
    (connections, client)
}

#[test]
fn what_a_process_has_that_takes_long_to_be_gone_is_not_closed() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let (mut connections, _client) = served_by(child.id().cast_signed(), None);
    child.kill().unwrap();
    while !sys::is_exiting(child.id().cast_signed()) {}
    connections.sweep();
    connections.settle_doubts();
    assert_eq!(connections.count(), 1);
    // And what one has closed that lives is.
    child.wait().unwrap();
    let (mut connections, _client) = served_by(process::pid(), None);
    connections.sweep();
    connections.settle_doubts();
    assert_eq!(connections.count(), 0);
}

#[test]
fn a_close_does_not_wait_for_the_client() {
    let (mut connections, mut client) = served_by(process::pid(), Some(60));
    let held = connections.all.values().next().unwrap().socket.try_clone().unwrap();
    let mut held = TcpStream::from(held);
    held.set_nonblocking(true).unwrap();
    while held.write(&[0; 10_000]).is_ok() {}
    drop(held);
    let began = Instant::now();
    connections.clear();
    assert!(began.elapsed().as_secs() < 20);
    // All of it comes.
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert!(all.len() > 10_000);
}

#[test]
fn one_is_given_to_who_has_a_socket_that_may_serve_it_and_not_to_who_has_a_strangers() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (_memory, table) = Table::create(false, "a test").unwrap();
    let (mut listeners, mut connections) = (Listeners::default(), Connections::new(table, None));
    connections.set_limit(10);
    let ours = listens_at(0);
    let port = TcpListener::from(ours.try_clone().unwrap()).local_addr().unwrap().port();
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(b"hello").unwrap();
    connections.pass_on(TcpListener::from(ours.try_clone().unwrap()).accept().unwrap().0.into());
    let strangers = listens_at(port);
    rustix::fs::fchown(&strangers, Some(rustix::fs::Uid::from_raw(65534)), None).unwrap();
    for socket in [&ours, &strangers] {
        let bytes = AddressBytes::new(&sys::local_address(socket.as_fd())).unwrap();
        let socket = socket.try_clone().unwrap();
        assert!(listeners.add(socket, bytes, None, (process::pid(), None), &[], table));
    }
    connections.offer(&listeners, None, Instant::now());
    // It may have come to either.
    let both = [ours, strangers].map(TcpListener::from);
    both.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
    let accepted = both.iter().find_map(|listener| listener.accept().ok()).unwrap().0;
    let peer = Address::parse(&sys::peer_address(accepted.as_fd())).unwrap();
    // It has what was accepted, and neither of these.
    let mut other = std::process::Command::new("sleep");
    let mut other = other.arg("60").stdin(OwnedFd::from(accepted.try_clone().unwrap())).spawn().unwrap();
    let pid = Pid::try_from(other.id()).unwrap();
    let known = process::open(pid).unwrap();
    assert!(connections.swap(&listeners, (pid, known.as_fd()), 0, &peer).is_none());
    let us = process::open(process::pid()).unwrap();
    let ours = (process::pid(), us.as_fd());
    let given = connections.swap(&listeners, ours, accepted.as_raw_fd(), &peer);
    assert_eq!(reads(given.unwrap()), "hello");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn places_without_a_copy_are_free_when_their_process_ends_or_at_once_if_it_was_closed() {
    let mut scene = scene(1);
    scene.connections.set_limit(2);
    let (table, accepted) =
        (scene.connections.table, TcpStream::connect(scene.listener.local_addr().unwrap()).unwrap());
    let (us, at) = (process::pid(), accepted.as_raw_fd());
    let known = process::open(us).unwrap();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let is_free = |number: u32| table.slot(number).unwrap().cookie.load(SeqCst) == 0;
    let claim =
        |cookie: u64| table.claim(cookie, us.cast_unsigned(), at.cast_unsigned(), Phase::Idle).unwrap();
    // The program has no such process.
    let number = claim(sys::cookie(accepted.as_fd()));
    scene.connections.take(|_| None);
    assert!(!is_free(number));
    assert_eq!(scene.connections.ended(us, true, &epoll, |_| Vec::new()), (0, 1));
    assert!(is_free(number));
    // Another connection has that number by now.
    let number = claim(u64::MAX);
    scene.connections.take(|_| Some(known.as_fd()));
    assert!(is_free(number));
    assert_eq!(scene.connections.ended(us, true, &epoll, |_| Vec::new()), (0, 0));
}

/// A server with a process for each client, which ends before anybody has looked.
#[test]
fn places_of_processes_that_nobody_knew_are_free_when_these_are_gone() {
    let mut scene = scene(1);
    let table = scene.connections.table;
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let phases = [Phase::Busy, Phase::Idle, Phase::Unclear];
    let claim = |owner: u32, from: u64| {
        (from..)
            .zip(phases)
            .map(|(cookie, phase)| table.claim(cookie, owner, 3, phase).unwrap())
            .collect::<Vec<_>>()
    };
    let (gone, ours) = (claim(child.id(), 100), claim(process::pid().cast_unsigned(), 200));
    let are_free =
        |numbers: &[u32]| numbers.iter().all(|number| table.slot(*number).unwrap().cookie.load(SeqCst) == 0);
    for _ in 0..3 {
        scene.connections.take(|_| None);
    }
    scene.connections.forget_gone(|_| true);
    assert!(!are_free(&gone), "the end of one that is known is told");
    scene.connections.forget_gone(|_| false);
    assert!(are_free(&gone) && !are_free(&ours));
    ours.iter().for_each(|number| table.slot(*number).unwrap().free());
    scene.connections.forget_gone(|_| false);
    assert!(!scene.connections.has_new(), "the holder would look again and again");
}

#[test]
fn one_of_a_process_that_was_not_known_yet_is_copied_when_it_is() {
    let mut scene = scene(0);
    scene.connections.set_limit(9);
    let table = scene.connections.table;
    let _client = TcpStream::connect(scene.listener.local_addr().unwrap()).unwrap();
    let accepted = scene.listener.accept().unwrap().0;
    let (us, cookie) = (process::pid(), sys::cookie(accepted.as_fd()));
    let known = process::open(us).unwrap();
    table.claim(cookie, us.cast_unsigned(), accepted.as_raw_fd().cast_unsigned(), Phase::Idle).unwrap();
    scene.connections.take(|_| None);
    scene.connections.take(|_| Some(known.as_fd()));
    assert_eq!(scene.connections.count(), 0, "it is looked at once, and not again and again");
    scene.connections.look_again(us + 1);
    scene.connections.take(|_| Some(known.as_fd()));
    assert_eq!(scene.connections.count(), 0);
    scene.connections.look_again(us);
    scene.connections.take(|_| Some(known.as_fd()));
    assert_eq!(scene.connections.count(), 1);
}

#[test]
fn one_that_was_not_received_is_given_again() {
    let mut scene = scene(1);
    for _ in 0..3 {
        scene.connections.offer(&scene.listeners, None, Instant::now());
        let given = scene.accept();
        scene.connections.take_back(given);
        assert!(scene.connections.has_waiting());
    }
    scene.connections.offer(&scene.listeners, None, Instant::now());
    let given = scene.accept();
    assert_eq!(reads(given), "0");
}

#[test]
fn a_client_waits_as_long_as_the_program_takes_to_begin_and_some_time_more() {
    let mut scene = scene(2);
    let (now, start) = (Instant::now(), Duration::from_secs(3600));
    let serves = Some(now + start);
    let moment = Duration::from_secs(1);
    for (serves_since, at, is_there) in [
        (None, start, true),
        (serves, start, true),
        (serves, start + OFFER - moment, true),
        (serves, start + OFFER + moment, false),
    ] {
        scene.connections.offer(&scene.listeners, serves_since, now + at);
        assert_eq!(scene.connections.has_waiting(), is_there, "{at:?}");
    }
    assert_eq!(scene.connections.count(), 0);
}

/// Another program listens at the same port, accepts what comes to it, and waits for what its clients say.
#[test]
fn those_that_another_program_has_accepted_are_offered_again_at_once() {
    const COUNT: usize = 8;
    let (_memory, table) = Table::create(false, "a test").unwrap();
    let (mut listeners, mut connections) = (Listeners::default(), Connections::new(table, None));
    connections.set_limit(COUNT);
    let listener = TcpListener::from(listens_at(0));
    let bytes = AddressBytes::new(&sys::local_address(listener.as_fd())).unwrap();
    let socket = listener.as_fd().try_clone_to_owned().unwrap();
    assert!(listeners.add(socket, bytes, None, (process::pid(), None), &[], table));
    let clients: Vec<TcpStream> = (0..COUNT)
        .map(|_| {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            connections.pass_on(listener.accept().unwrap().0.into());
            client
        })
        .collect();
    let other = TcpListener::from(listens_at(listener.local_addr().unwrap().port()));
    for listener in [&listener, &other] {
        listener.set_nonblocking(true).unwrap();
    }
    let mut scene = Scene { listener, listeners, connections, _clients: clients };
    let (mut given, mut others, mut now) = (0, Vec::new(), Instant::now());
    // Half of them go wrong each time, and the pauses become longer: each is offered some 60 times.
    for _ in 0..4_000 {
        scene.connections.offer(&scene.listeners, None, now);
        others.extend(std::iter::from_fn(|| other.accept().ok()));
        while let Ok((accepted, _)) = scene.listener.accept() {
            let known = process::open(process::pid()).unwrap();
            let peer = Address::parse(&sys::peer_address(accepted.as_fd())).unwrap();
            let who = (process::pid(), known.as_fd());
            given += usize::from(
                scene.connections.swap(&scene.listeners, who, accepted.as_raw_fd(), &peer).is_some(),
            );
        }
        now += AGAIN;
    }
    assert_eq!(given, COUNT, "{} went to the other program", others.len());
}

/// Without that the kernel tries again after a second.
#[test]
fn those_that_found_the_queue_full_are_offered_again_when_it_is_empty() {
    let mut scene = scene(3);
    assert!(rustix::net::listen(&scene.listener, 0).is_ok());
    let mut now = Instant::now();
    for number in 0..3 {
        scene.connections.offer(&scene.listeners, None, now);
        let given = scene.accept();
        assert_eq!(reads(given), number.to_string());
        now += 64 * AGAIN;
    }
}

/// The socket is closed where they have come, and clients of their own as well.
#[test]
fn what_was_offered_is_no_client_of_its_own() {
    let mut scene = scene(3);
    scene.connections.set_limit(4);
    scene.connections.offer(&scene.listeners, None, Instant::now());
    let mut client = TcpStream::connect(scene.listener.local_addr().unwrap()).unwrap();
    client.write_all(b"new").unwrap();
    let closed = scene.listener.as_fd().try_clone_to_owned().unwrap();
    while crate::sys::tcp::queued_count(closed.as_fd()) != Some(4) {
        std::thread::yield_now();
    }
    scene.connections.pass_on_all(&[closed]);
    assert_eq!(scene.connections.loose.numbers().count(), 4);
    assert!(scene.connections.loose.offered.is_empty());
    scene.listener.set_nonblocking(false).unwrap();
    let mut all: Vec<String> = (0..4)
        .map(|_| {
            scene.connections.offer(&scene.listeners, None, Instant::now());
            reads(scene.accept())
        })
        .collect();
    all.sort();
    assert_eq!(all, ["0", "1", "2", "new"]);
}
