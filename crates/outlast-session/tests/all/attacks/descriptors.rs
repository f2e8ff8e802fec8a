//! Nobody uses up the descriptors of a process: openings end first, and those that are there go on.

use super::floods::descriptors;
use super::hoards::{enters, from};
use super::raw::{Raw, Victim, bytes_of, fresh_id, hello, newcomer};
use crate::common::{quick, within};
use outlast_session::proto::{Hello, Intent, LinkMode, Message, Refusal};
use outlast_session::{Config, Error, Memory, blocking};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// For limits of the process: a process of its own for the test of this name.
pub fn alone(name: &str, test: fn()) {
    const CHILD: &str = "OUTLAST_TEST_ALONE";
    if std::env::var_os(CHILD).is_some() {
        return within(test);
    }
    let path = format!("attacks::{name}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([path.as_str(), "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn limit_descriptors(most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the pointer is to a live variable of the right type; nothing else runs in this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

fn resume(session: &mut blocking::Session) {
    while !session.passivate().unwrap() {
        std::thread::yield_now();
    }
    session.write_all(b"again").unwrap();
    let mut echo = [0; 5];
    session.read_exact(&mut echo).unwrap();
}

/// New sessions are refused before their Welcome while there is still enough for those that are there.
#[test]
fn openings_end_before_descriptors_do() {
    alone("descriptors::openings_end_before_descriptors_do", || {
        limit_descriptors(400);
        let victim = Victim::new(quick());
        let config = Arc::new(quick());
        let mut session = newcomer(victim.address(), &config).unwrap();
        let mut open = Vec::new();
        let refused = loop {
            let mut raw = Raw::connect(victim.address());
            raw.say(&bytes_of(&hello(fresh_id())));
            match raw.hear() {
                Some(Message::Welcome(_)) => open.push(raw),
                Some(Message::Refuse(refuse)) => break refuse.refusal,
                other => panic!("{other:?} after {}", open.len()),
            }
        };
        assert!(matches!(refused, Refusal::Busy { .. }), "{refused:?}");
        assert!(descriptors() < 350, "{} of 400", descriptors());
        for _ in 0..3 {
            resume(&mut session);
        }
        // A block, and this is one, has its share only: room for others is left.
        assert!(descriptors() < 310, "{} of 400", descriptors());
        drop(open);
        for info in victim.listener.sessions() {
            if info.pause_now_ms.is_some() {
                victim.listener.kill(&info.id);
            }
        }
        victim.unharmed();
    });
}

/// What services hold for sessions that were abandoned makes room for newcomers.
#[test]
fn sessions_without_a_link_make_room() {
    alone("descriptors::sessions_without_a_link_make_room", || {
        limit_descriptors(400);
        let config = Arc::new(quick());
        let listener = Arc::new(blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap());
        let address = listener.local_addr();
        let accepting = listener.clone();
        std::thread::spawn(move || {
            while let Ok(mut session) = accepting.accept() {
                // As a relay's connection to its service.
                let held = File::open("/dev/null").unwrap();
                std::thread::spawn(move || {
                    let _ = session.read(&mut [0]);
                    drop(held);
                });
            }
        });
        let mut number = 0u32;
        while descriptors() < 290 {
            number += 1;
            let mut raw = from(u8::try_from(number % 100).unwrap(), address);
            raw.say(&bytes_of(&hello(fresh_id())));
            match raw.hear() {
                Some(Message::Welcome(_) | Message::Refuse(_)) => {}
                other => panic!("{other:?} after {number}"),
            }
        }
        // The server closes links that have ended in its own time: three quarters, for sure.
        while listener.sessions().iter().any(|session| session.pause_now_ms.is_none()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut files = Vec::new();
        while descriptors() < 304 {
            files.extend((descriptors()..304).map(|_| File::open("/dev/null").unwrap()));
            std::thread::sleep(Duration::from_millis(100));
        }
        let local_address = Some(std::net::SocketAddr::from(([127, 200, 0, 1], 0)));
        enters(address, &Arc::new(Config { local_address, ..quick() }));
        assert!(Memory::now().shed_sessions > 0);
    });
}

/// Where no descriptor is left at all, connections that say nothing make room at once: whoever resumes a session gets in.
#[test]
fn silent_connections_make_room_where_no_descriptor_is_left() {
    alone("descriptors::silent_connections_make_room_where_no_descriptor_is_left", || {
        limit_descriptors(256);
        let victim = Victim::new(quick());
        let config = Arc::new(quick());
        let mut session = newcomer(victim.address(), &config).unwrap();
        // Fewer than there are places for: nobody goes for those.
        let silent: Vec<_> = (0..20).map(|number| from(number, victim.address())).collect();
        std::thread::sleep(Duration::from_millis(100));
        let mut files = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        // For the client's own end of its next link.
        files.truncate(files.len() - 2);
        let began = std::time::Instant::now();
        for _ in 0..3 {
            resume(&mut session);
        }
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        drop((files, silent));
        victim.unharmed();
    });
}

/// Sessions that were opened only to be abandoned take no place for long, where their number is limited.
#[test]
fn abandoned_sessions_make_room_for_newcomers() {
    within(|| {
        let config = Arc::new(Config { sessions_max: 16, ..quick() });
        let listener = Arc::new(blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap());
        let address = listener.local_addr();
        let accepting = listener.clone();
        std::thread::spawn(move || {
            while let Ok(mut session) = accepting.accept() {
                std::thread::spawn(move || std::io::copy(&mut session.try_clone().unwrap(), &mut session));
            }
        });
        let client = Arc::new(quick());
        let mut live = newcomer(address, &client).unwrap();
        for number in 0..15 {
            let mut raw = from(number, address);
            raw.say(&bytes_of(&hello(fresh_id())));
            assert!(matches!(raw.hear(), Some(Message::Welcome(_))), "{number}");
        }
        let refused = newcomer(address, &client);
        assert!(matches!(refused, Err(Error::Refused { refusal: Refusal::Busy { .. }, .. })), "{refused:?}");
        // It stays: it is one of those that are counted.
        let _newcomer = enters(address, &client);
        // Those that had been away for 5 s by then have gone, down to eleven sixteenths.
        let left = listener.sessions().len();
        assert!((12..=16).contains(&left), "{left}");
        resume(&mut live);
    });
}

/// The same where another process had them: it is not forgotten where their clients were.
#[test]
fn abandoned_sessions_that_were_handed_over_make_room_for_newcomers() {
    within(|| {
        let config = Arc::new(Config { sessions_max: 16, ..quick() });
        let first = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let opened: Vec<_> = (0..16)
            .map(|number| {
                let mut raw = from(number, first.local_addr());
                raw.say(&bytes_of(&hello(fresh_id())));
                assert!(matches!(raw.hear(), Some(Message::Welcome(_))), "{number}");
                first.accept().unwrap()
            })
            .collect();
        while first.sessions().iter().any(|session| session.pause_now_ms.is_none()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut detached: Vec<_> = opened.into_iter().map(|session| session.detach().unwrap()).collect();
        // Nobody comes back for them in between.
        for _ in 0..2 {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let (next, sessions) = blocking::Listener::from_std_with(socket, &config, detached).unwrap();
            let sessions: Vec<_> = sessions.into_iter().map(Result::unwrap).collect();
            detached = sessions.into_iter().map(|session| session.detach().unwrap()).collect();
            drop(next);
        }
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (last, sessions) = blocking::Listener::from_std_with(socket, &config, detached).unwrap();
        let _kept: Vec<_> = sessions.into_iter().map(Result::unwrap).collect();
        let last = Arc::new(last);
        let accepting = last.clone();
        std::thread::spawn(move || {
            while let Ok(mut session) = accepting.accept() {
                std::thread::spawn(move || std::io::copy(&mut session.try_clone().unwrap(), &mut session));
            }
        });
        let _newcomer = enters(address, &Arc::new(quick()));
        assert!(last.sessions().len() <= 16);
    });
}

/// Each link that is lost while nobody reads leaves what it has received: no descriptor of its own.
#[test]
fn a_session_that_resumes_again_and_again_takes_no_more_descriptors() {
    alone("descriptors::a_session_that_resumes_again_and_again_takes_no_more_descriptors", || {
        limit_descriptors(400);
        let config = Arc::new(quick());
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let mut hello = Hello { udp_port: Some(9), ..Hello::open(fresh_id(), LinkMode::Udp) };
        let enter = |hello: &Hello| {
            let mut raw = Raw::connect(listener.local_addr());
            raw.say(&bytes_of(hello));
            match raw.hear() {
                Some(Message::Welcome(welcome)) => (raw, welcome.next_offset),
                other => panic!("{other:?}"),
            }
        };
        let _opened = enter(&hello);
        let mut session = listener.accept().unwrap();
        let before = descriptors();
        let mut received = 0;
        for epoch in 2..=200 {
            (hello.intent, hello.epoch) = (Intent::Resume, epoch);
            let (mut raw, now) = enter(&hello);
            assert!(epoch == 2 || now > received, "{now} at {epoch}");
            received = now;
            // Some leave more than is taken at once.
            raw.say(&vec![7; if epoch % 20 == 0 { 100_000 } else { 1 }]);
        }
        assert!(descriptors() < before + 16, "{} of {before}", descriptors());
        let mut read = vec![0; usize::try_from(received).unwrap()];
        session.read_exact(&mut read).unwrap();
        assert!(read.len() > 500_000 && read.iter().all(|byte| *byte == 7));
    });
}

/// Where there is really none left, a client is told so at once, and tries again.
#[test]
fn without_any_descriptor_clients_are_told() {
    alone("descriptors::without_any_descriptor_clients_are_told", || {
        limit_descriptors(300);
        let config = Config { handshakes_max: 16, ..quick() };
        let victim = Victim::new(config);
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        // All that there are, but the one that the listener keeps.
        let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        socket.connect(&victim.address().into()).unwrap();
        let mut raw = Raw::over(std::net::TcpStream::from(socket));
        raw.say(&bytes_of(&hello(fresh_id())));
        let told = raw.verdict();
        drop(taken);
        assert!(matches!(told, Some(Refusal::Busy { .. })), "{told:?}");
        victim.unharmed();
    });
}
