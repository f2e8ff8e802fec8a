//! Schedules of the listener's side that real connections meet too seldom.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::proto::{DirectVerdict, Hello, Intent, Message, NotDirect};
use std::net::{TcpListener, TcpStream};

/// Two ends of a connection, the near one as a listener gets it.
fn connection(acceptor: &Acceptor) -> (Link, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, peer_addr) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    (acceptor.server_link(near.into(), peer_addr).unwrap(), far)
}

fn hello(id: SessionId, intent: Intent, epoch: u64) -> Hello {
    Hello { intent, epoch, ..Hello::open(id, LinkMode::Inband) }
}

/// All of a handshake at once.
fn say(acceptor: &Acceptor, hello: &Hello) -> (Outcome, TcpStream) {
    let (link, far) = connection(acceptor);
    let mut greeting = acceptor.greeting(&link);
    let bytes = Message::Hello(hello.clone()).to_bytes();
    (acceptor.greet(&mut greeting, &mut Some(link), &bytes), far)
}

/// The first Hello of a session is overtaken by the second, between the making of the session and its first link: the
/// session is opened all the same, once, and its end is booked.
#[test]
fn a_session_is_opened_by_whichever_hello_is_first() {
    let acceptor = Acceptor::new(Arc::new(Config::default()));
    let id = SessionId::from_bytes([7; 16]);
    let first = hello(id, Intent::Open, 1);
    let (mut link, _far) = connection(&acceptor);
    let mut greeting = acceptor.greeting(&link);
    greeting.input = Message::Hello(first).to_bytes();
    let ServerStep::Greeted(greeted) = greeting.handshake.feed(&greeting.input) else { panic!("no Hello") };
    link.mark(1, LinkMode::Inband);
    let link = Arc::new(link);
    let (engine, booked) =
        acceptor.book(&link, &greeted, DirectVerdict::NotDirect(NotDirect::NoProof)).unwrap();
    assert!(booked);

    let (second, _far2) = say(&acceptor, &hello(id, Intent::Open, 2));
    assert!(matches!(second, Outcome::Opened(_)), "nobody serves the session: {second:?}");
    let late = acceptor.enter(engine.clone(), &mut greeting, &link, &greeted, booked);
    assert!(matches!(late, Outcome::Closed), "{late:?}");

    // The registry knows the link that the session has: its loss counts.
    let present = engine.link().unwrap();
    engine.lost(&present, "a test");
    assert_eq!(acceptor.registry.lock().stats().detached, 1, "never expires");
    let (third, _far3) = say(&acceptor, &hello(id, Intent::Resume, 3));
    assert!(matches!(third, Outcome::Resumed), "{third:?}");
}

/// A listener is gone, and a handshake that is still under way keeps its table: a session that loses its link now ends,
/// as nobody can carry it on.
#[test]
fn a_link_lost_behind_a_closed_listener_ends_its_session() {
    let acceptor = Acceptor::new(Arc::new(Config::default()));
    let (outcome, far) = say(&acceptor, &hello(SessionId::from_bytes([8; 16]), Intent::Open, 1));
    let Outcome::Opened(engine) = outcome else { panic!("{outcome:?}") };
    acceptor.close();
    assert!(engine.failure().is_none(), "its link is there");
    drop(far);
    let present = engine.link().unwrap();
    engine.lost(&present, "a test");
    assert!(matches!(engine.failure(), Some(Error::Closed { .. })), "waits for ever");
    // And nobody opens another one that nobody would see.
    let (outcome, _far) = say(&acceptor, &hello(SessionId::from_bytes([9; 16]), Intent::Open, 1));
    assert!(matches!(outcome, Outcome::Closed), "{outcome:?}");
}

/// Ending thousands of sessions at once would keep those with a link waiting for as long as that takes.
#[test]
fn sessions_that_make_room_go_a_few_at_a_time() {
    let acceptor = Acceptor::new(Arc::new(Config::default()));
    let ids: Vec<SessionId> = (0..50).map(|number| SessionId::from_bytes([number; 16])).collect();
    for id in &ids {
        let (outcome, far) = say(&acceptor, &hello(*id, Intent::Open, 1));
        let Outcome::Opened(engine) = outcome else { panic!("{outcome:?}") };
        drop(far);
        engine.lost(&engine.link().unwrap(), "a test");
    }
    let detached = || acceptor.registry.lock().stats().detached;
    assert_eq!(detached(), ids.len());
    acceptor.shed(&ids, &[], "a test");
    assert!((20..50).contains(&detached()), "{} are left", detached());
    // What is chosen meanwhile waits for the next look.
    acceptor.shed(&ids[40..], &[], "a test");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while detached() > 0 {
        assert!(std::time::Instant::now() < deadline, "{} are left", detached());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
