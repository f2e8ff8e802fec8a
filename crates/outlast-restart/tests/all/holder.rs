//! A holder and its clients: what is kept comes back, whoever dies, and garbage gets a clear answer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::PATIENCE;
use crate::common::holder::{Holder, Raw, tcp_pair};
use outlast_restart::holder::protocol::{Answer, Request};
use outlast_restart::holder::{Client, Error, Event, Keeper, Limits, Options, Refusal, listen};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn names(kept: &[outlast_restart::holder::Kept]) -> Vec<&str> {
    kept.iter().map(|one| one.name.as_str()).collect()
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Refusal {
    match outcome {
        Err(Error::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Until it comes true.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_next_process_of_a_service_gets_everything_back() {
    let holder = Holder::start();
    let (mut user, connection) = tcp_pair();
    let mut first = holder.client("echo");
    first.keep("a", connection.as_fd(), b"1").unwrap();
    first.keep("gone", connection.as_fd(), b"").unwrap();
    first.update("a", b"2").unwrap();
    first.release("gone").unwrap();
    first.release("never there").unwrap();
    drop((first, connection));
    // The user has noticed nothing: what is sent now is read by the next one.
    user.write_all(b"hello").unwrap();
    let mut next = holder.client("echo");
    let mut kept = next.recover().unwrap();
    assert_eq!((names(&kept), kept[0].state.as_slice()), (vec!["a"], &b"2"[..]));
    let mut connection = std::net::TcpStream::from(kept.remove(0).descriptor);
    let mut room = [0; 5];
    connection.read_exact(&mut room).unwrap();
    connection.write_all(&room).unwrap();
    user.read_exact(&mut room).unwrap();
    assert_eq!(&room, b"hello");
    // Another service has its own names.
    assert!(holder.client("other").recover().unwrap().is_empty());
    // Released and closed, the user is told of the end.
    next.release("a").unwrap();
    drop((connection, next.recover().unwrap()));
    assert_eq!(user.read(&mut room).unwrap(), 0);
}

#[test]
fn thousands_come_back_with_their_state() {
    let holder = Holder::start();
    let mut first = holder.client("many");
    let (kept, _other) = UnixStream::pair().unwrap();
    for n in 0..3000 {
        first.keep(&format!("{n}"), kept.as_fd(), &vec![7; n]).unwrap();
    }
    drop(first);
    let all = holder.client("many").recover().unwrap();
    assert_eq!(all.len(), 3000);
    assert!(all.iter().all(|one| one.state == vec![7; one.name.parse().unwrap()]));
}

/// Its last message may have arrived after its successor's first.
#[test]
fn what_a_process_has_sent_before_its_successor_came_counts_and_it_is_told() {
    let holder = Holder::start();
    let (_user, connection) = tcp_pair();
    let mut old = holder.client("echo");
    old.keep("a", connection.as_fd(), b"").unwrap();
    let raw = Raw::connect(&holder.path);
    raw.ask(&Request::Hello("racing"), None);
    for n in 0..50 {
        raw.send(&Request::Keep(&format!("{n}"), b"").encode(), &[connection.as_fd()]);
    }
    assert_eq!(holder.client("racing").recover().unwrap().len(), 50);

    let mut new = holder.client("echo");
    assert_eq!(names(&new.recover().unwrap()), ["a"]);
    assert_eq!(refusal(old.keep("b", connection.as_fd(), b"")), Refusal::Superseded);
    // It does not come back by itself, so that two processes do not take everything from each other for ever.
    assert_eq!(refusal(old.tend()), Refusal::Superseded);
    assert_eq!(refusal(old.recover()), Refusal::Superseded);
    new.keep("c", connection.as_fd(), b"").unwrap();
    assert_eq!(names(&new.recover().unwrap()), ["a", "c"]);
}

#[test]
fn when_the_holder_dies_services_go_on_and_the_next_holder_gets_everything() {
    let mut holder = Holder::start();
    let (mut user, connection) = tcp_pair();
    let mut service = holder.client("echo");
    service.keep("stays", connection.as_fd(), b"1").unwrap();
    service.keep("released meanwhile", connection.as_fd(), b"").unwrap();
    holder.stop();
    until("the service notices", || service.tend().is_err());
    assert!(matches!(service.update("stays", b"2"), Err(Error::Away { .. })));
    assert!(service.release("released meanwhile").is_err());
    assert!(matches!(service.keep("new", connection.as_fd(), b"3"), Err(Error::Away { .. })));
    (&connection).write_all(b"on").unwrap();
    user.read_exact(&mut [0; 2]).unwrap();

    holder.restart();
    until("the service finds the next holder", || service.tend().is_ok());
    drop((service, connection));
    let mut next = holder.client("echo");
    let kept = next.recover().unwrap();
    let states: Vec<_> = kept.iter().map(|one| (one.name.as_str(), one.state.as_slice())).collect();
    assert_eq!(states, [("new", &b"3"[..]), ("stays", b"2")]);

    // Both are gone: a clean end.
    drop((kept, next));
    holder.stop();
    assert_eq!(user.read(&mut [0]).unwrap(), 0);
}

/// A connection to the holder is lost, and the holder lives: what was released meanwhile is not kept for ever.
#[test]
fn after_a_lost_connection_the_holder_keeps_what_the_service_has() {
    let holder = Holder::start_with(Options { clients_max: 2, ..Options::default() });
    let (_user, connection) = tcp_pair();
    let mut service = holder.client("echo");
    for name in ["a", "b"] {
        service.keep(name, connection.as_fd(), b"").unwrap();
    }
    let handle = service.connection().unwrap().try_clone_to_owned().unwrap();
    rustix::net::shutdown(&handle, rustix::net::Shutdown::Both).unwrap();
    assert!(matches!(service.release("a"), Err(Error::Away { .. })));
    drop(handle);
    until("it is back", || service.tend().is_ok());
    assert_eq!(names(&service.recover().unwrap()), ["b"]);
}

#[test]
fn what_nobody_comes_back_for_is_closed_in_time() {
    let options =
        Options { limits: Limits { keep_ms: 200, ..Options::default().limits }, ..Options::default() };
    let holder = Holder::start_with(options);
    let (mut user, connection) = tcp_pair();
    let mut service = holder.client("echo");
    service.keep("a", connection.as_fd(), b"").unwrap();
    drop(connection);
    std::thread::sleep(Duration::from_millis(300));
    user.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert!(user.read(&mut [0]).is_err(), "kept as long as the service is there");
    user.set_read_timeout(None).unwrap();
    drop(service);
    assert_eq!(user.read(&mut [0]).unwrap(), 0);
    until("it is told", || {
        holder.events().iter().any(|event| matches!(event, Event::Expired { closed: 1, .. }))
    });
}

#[test]
fn only_connections_that_are_over_are_dropped() {
    let holder = Holder::start();
    let mut service = holder.client("echo");
    let mut users = Vec::new();
    for name in ["alive", "half closed", "reset", "ended, unread", "ended"] {
        let (user, connection) = tcp_pair();
        service.keep(name, connection.as_fd(), b"").unwrap();
        match name {
            "half closed" => user.shutdown(Shutdown::Write).unwrap(),
            "reset" => {
                rustix::net::sockopt::set_socket_linger(&user, Some(Duration::ZERO)).unwrap();
                drop(user);
                continue;
            }
            "ended, unread" | "ended" => {
                if name != "ended" {
                    (&user).write_all(b"last").unwrap();
                }
                connection.shutdown(Shutdown::Write).unwrap();
                user.shutdown(Shutdown::Write).unwrap();
            }
            _ => {}
        }
        users.push(user);
    }
    // Neither listeners nor pipes nor files are connections.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    service.keep("listener", listener.as_fd(), b"").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(writer);
    service.keep("pipe", reader.as_fd(), b"").unwrap();
    service.keep("file", std::fs::File::open("/dev/null").unwrap().as_fd(), b"").unwrap();
    let left = ["alive", "ended, unread", "file", "half closed", "listener", "pipe"];
    until("those that are over are dropped", || names(&service.recover().unwrap()) == left);
    assert_eq!(refusal(service.update("reset", b"")), Refusal::Unknown);
}

#[test]
fn limits_are_told_and_hurt_nobody_else() {
    let limits = Limits { descriptors_max: 20, bytes_max: 1000, ..Options::default().limits };
    let holder = Holder::start_with(Options { limits, clients_max: 3, ..Options::default() });
    let (_user, connection) = tcp_pair();
    let (mut greedy, mut modest) = (holder.client("greedy"), holder.client("modest"));
    modest.keep("mine", connection.as_fd(), b"state").unwrap();
    for n in 0..19 {
        greedy.keep(&format!("{n}"), connection.as_fd(), b"").unwrap();
    }
    for n in 20..500 {
        let outcome = greedy.keep(&format!("{n}"), connection.as_fd(), b"");
        assert_eq!(refusal(outcome), Refusal::Descriptors);
    }
    assert_eq!(refusal(greedy.update("3", &[0; 1000])), Refusal::Bytes);
    modest.update("mine", b"other").unwrap();
    let mut third = holder.client("third");
    third.recover().unwrap();
    assert_eq!(refusal(holder.client("fourth").recover()), Refusal::Clients);
    drop(third);
    until("a place is free again", || holder.client("fourth").recover().is_ok());
    assert_eq!(names(&modest.recover().unwrap()), ["mine"]);
    // Before anything is sent.
    assert!(matches!(modest.keep("a:b", connection.as_fd(), b""), Err(Error::Name(_))));
    assert!(matches!(modest.keep("x", connection.as_fd(), &[0; 4097]), Err(Error::State(4097))));
    assert!(matches!(Client::new(&holder.path, ""), Err(Error::Name(_))));
}

#[test]
fn garbage_gets_a_reason_and_an_end_and_its_descriptors_are_closed() {
    let holder = Holder::start();
    let (mut user, connection) = tcp_pair();
    let connection: OwnedFd = connection.into();
    let fd = connection.as_fd();
    let hello = Request::Hello("s").encode();
    let mut version_2 = hello.clone();
    version_2[2] = 2;
    let keep = Request::Keep("k", b"").encode();
    for (case, refusal, messages) in [
        ("other version", Refusal::Version, vec![(version_2, vec![])]),
        ("no message", Refusal::Malformed, vec![(b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![fd])]),
        ("too long", Refusal::Malformed, vec![(vec![b'O'; 100_000], vec![])]),
        ("no hello", Refusal::Order, vec![(keep.clone(), vec![fd])]),
        ("two hellos", Refusal::Order, vec![(hello.clone(), vec![]), (hello.clone(), vec![])]),
        ("none", Refusal::Malformed, vec![(hello.clone(), vec![]), (keep.clone(), vec![])]),
        ("two", Refusal::Malformed, vec![(hello.clone(), vec![]), (keep.clone(), vec![fd, fd])]),
        ("200", Refusal::Malformed, vec![(hello.clone(), vec![]), (keep.clone(), vec![fd; 200])]),
        ("one too many", Refusal::Malformed, vec![(Request::Hello("s").encode(), vec![fd])]),
    ] {
        let raw = Raw::connect(&holder.path);
        for (bytes, descriptors) in &messages {
            raw.send(bytes, descriptors);
        }
        let mut answers = raw.until_the_end();
        let last = answers.pop().unwrap_or_default();
        match Answer::parse(&last) {
            Ok(Answer::Refused(why, text)) => {
                assert!(why == refusal && !text.is_empty(), "{case}: {why:?} {text}")
            }
            other => panic!("{case}: {other:?}"),
        }
        assert_eq!(answers.len(), messages.len() - 1, "{case}");
    }
    // Nobody has a duplicate any more.
    drop(connection);
    assert_eq!(user.read(&mut [0]).unwrap(), 0);
    assert!(holder.client("s").recover().unwrap().is_empty());
}

#[test]
fn thousands_of_mutated_messages_end_in_an_answer_or_an_end_and_leave_nothing_behind() {
    let holder = Holder::start();
    let (mut user, connection) = tcp_pair();
    let mut honest = holder.client("honest");
    honest.keep("k", connection.as_fd(), b"state").unwrap();
    let connection: OwnedFd = connection.into();
    let seed = crate::common::number("OUTLAST_SEED", 1);
    let mut random = crate::common::Random(seed);
    let mut below = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap();
    for _ in 0..5000 {
        let raw = Raw::connect(&holder.path);
        let _ = raw.try_send(&Request::Hello("mutant").encode(), &[]);
        for _ in 0..below(4) {
            let request = [
                Request::Keep("x", b"abc"),
                Request::Update("x", b""),
                Request::Release("x"),
                Request::Recover,
            ];
            let mut bytes = request[below(4)].encode();
            if below(3) > 0 {
                let at = below(bytes.len());
                bytes[at] = u8::try_from(below(256)).unwrap();
            }
            let descriptors = vec![connection.as_fd(); below(3)];
            let _ = raw.try_send(&bytes, &descriptors);
        }
        if below(2) == 0 {
            raw.end();
            raw.until_the_end();
        }
    }
    assert_eq!(names(&honest.recover().unwrap()), ["k"], "seed {seed}");
    let mut mutant = holder.client("mutant");
    for kept in mutant.recover().unwrap() {
        mutant.release(&kept.name).unwrap();
    }
    honest.release("k").unwrap();
    drop((connection, mutant, honest));
    assert_eq!(user.read(&mut [0]).unwrap(), 0, "seed {seed}");
}

#[test]
fn who_says_nothing_is_shown_out_and_who_does_not_listen_keeps_nobody_waiting() {
    let options = Options { hello_timeout: Duration::from_millis(200), ..Options::default() };
    let holder = Holder::start_with(options);
    let silent = Raw::connect(&holder.path);
    let (_user, connection) = tcp_pair();
    let deaf = Raw::connect(&holder.path);
    deaf.ask(&Request::Hello("deaf"), None);
    for n in 0..500 {
        deaf.ask(&Request::Keep(&format!("{n}"), &[0; 4000]), Some(connection.as_fd()));
    }
    // Two thousand large answers, none of which it takes.
    while deaf.try_send(&Request::Recover.encode(), &[]).is_ok() {}
    let mut service = holder.client("echo");
    service.keep("a", connection.as_fd(), b"").unwrap();
    assert_eq!(names(&service.recover().unwrap()), ["a"]);
    assert_eq!(silent.until_the_end(), Vec::<Vec<u8>>::new());
    drop(deaf);
    assert_eq!(holder.client("deaf").recover().unwrap().len(), 500);
}

#[test]
fn a_connection_to_the_holder_is_not_kept_by_it() {
    let holder = Holder::start();
    let raw = Raw::connect(&holder.path);
    raw.ask(&Request::Hello("snake"), None);
    let answer = raw.ask(&Request::Keep("tail", b""), Some(raw.as_fd()));
    assert!(matches!(Answer::parse(&answer), Ok(Answer::Refused(Refusal::Itself, _))), "{answer:?}");
    drop(raw);
    until("its end is seen", || holder.events().iter().any(|event| matches!(event, Event::Left { .. })));
}

#[test]
fn a_holder_takes_the_place_of_a_dead_one_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holder");
    let first = listen(&path, false).unwrap();
    assert_eq!(listen(&path, false).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(first);
    drop(listen(&path, false).unwrap());
    let stream = std::os::unix::net::UnixListener::bind(folder.path().join("stream")).unwrap();
    assert_eq!(
        listen(&folder.path().join("stream"), false).unwrap_err().kind(),
        std::io::ErrorKind::AddrInUse
    );
    drop(stream);
    std::fs::write(folder.path().join("file"), "precious").unwrap();
    assert_eq!(listen(&folder.path().join("file"), false).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "precious");
    let long = folder.path().join("x".repeat(100));
    assert_eq!(listen(&long, false).unwrap_err().kind(), std::io::ErrorKind::InvalidFilename);
}
