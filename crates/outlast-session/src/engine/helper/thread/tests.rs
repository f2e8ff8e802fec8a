//! What the thread is asked for, and whether it may sleep: without the thread.

use super::super::super::{Role, new_session_id};
use super::*;
use crate::config::Config;
use crate::proto::LinkMode;
use std::net::{TcpListener, TcpStream};

/// A helper whose thread is the test.
fn idle_thread() -> (&'static Helper, Thread) {
    let helper: &'static Helper = Box::leak(Box::default());
    let mut thread = Thread::new(helper, Poll::new().unwrap());
    thread.quiet_ticks = QUIET_TICKS_MAX;
    (helper, thread)
}

#[test]
fn a_listener_is_looked_at_once_however_many_links_its_sessions_lose() {
    let (helper, mut thread) = idle_thread();
    let acceptor = Acceptor::new(Arc::default());
    let other = Acceptor::new(Arc::default());
    for _ in 0..100 {
        helper.watch_expiry(&acceptor);
        helper.watch_expiry(&other);
        thread.tick();
    }
    assert_eq!(thread.acceptors.len(), 2);
}

/// A session that has ended is remembered for an hour, and nothing happens before that is over.
#[test]
fn a_listener_that_only_remembers_wakes_nobody() {
    let (helper, mut thread) = idle_thread();
    let acceptor = Acceptor::new(Arc::default());
    let id = new_session_id();
    let peer = std::net::Ipv4Addr::LOCALHOST.into();
    let engine = Engine::new(id, Role::Server, Arc::new(Config::default()));
    acceptor.registry.lock().insert(id, engine, 1, peer).unwrap();
    acceptor.registry.lock().end(&id, 0, None, acceptor.now());
    helper.watch_expiry(&acceptor);
    thread.tick();
    thread.next_idle_check = Instant::now();
    thread.tick();
    thread.quiet_ticks = QUIET_TICKS_MAX;
    let sleeps = thread.timeout().unwrap();
    assert!(sleeps > Duration::from_secs(3000), "{sleeps:?}");
}

/// Somebody asks while the thread still looks at the requests by itself, and wakes nobody. Before it sleeps it looks again.
#[test]
fn no_request_is_slept_over() {
    let engine = Engine::new(new_session_id(), Role::Client, Arc::new(Config::default()));
    let acceptor = Acceptor::new(Arc::default());
    type Ask = fn(&Helper, &Arc<Engine>, &Arc<Acceptor>);
    let requests: [(&str, Ask); 6] = [
        ("flush", |helper, engine, _| helper.flush_soon(engine)),
        ("idle", |helper, engine, _| helper.watch_idle(engine)),
        ("linger", |helper, engine, _| helper.linger(engine)),
        ("expiry", |helper, _, acceptor| helper.watch_expiry(acceptor)),
        ("network", |helper, engine, _| helper.watch_network(engine)),
        ("repeat", |helper, engine, _| helper.repeat_ack(engine)),
    ];
    for (what, ask) in requests {
        let (helper, mut thread) = idle_thread();
        assert_eq!(thread.timeout(), None, "nothing to do");
        helper.ticking.store(true, Ordering::Release);
        ask(helper, &engine, &acceptor);
        assert_eq!(thread.timeout(), Some(Duration::ZERO), "{what}");
    }
}

fn link() -> (Arc<Link>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let link = Link::new(stream.into(), None, 1, LinkMode::Inband, address, true);
    let (peer, _) = listener.accept().unwrap();
    // Dropping it is news for whoever watches the link, for whatever.
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    (Arc::new(link), peer)
}

/// Whether the kernel has it in the thread's poll.
fn is_registered(thread: &Thread, link: &Link) -> bool {
    let fd = link.as_fd().as_raw_fd();
    let registry = thread.poll.registry();
    match registry.register(&mut SourceFd(&fd), Token(usize::MAX), Interest::PRIORITY) {
        Ok(()) => {
            registry.deregister(&mut SourceFd(&fd)).unwrap();
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            true
        }
    }
}

/// What the kernel reports, until it reports something of `link`.
fn hear_of(thread: &mut Thread, link: &Link) -> (usize, Ready) {
    let mut events = mio::Events::with_capacity(8);
    let wanted = link_token(link.as_fd().as_raw_fd()).unwrap();
    loop {
        thread.poll.poll(&mut events, Some(Duration::from_secs(60))).unwrap();
        if let Some(event) = events.iter().find(|event| event.token() == wanted) {
            return (event.token().0, Ready::of(event));
        }
    }
}

/// The session has asked once more, and is gone before this thread hears of it; its request still holds the link.
#[test]
fn a_link_whose_session_is_gone_is_watched_no_more() {
    let (helper, mut thread) = idle_thread();
    let engine = Engine::new(new_session_id(), Role::Server, Arc::new(Config::default()));
    let (link, peer) = link();
    helper.watch_end(&engine, &link);
    thread.tick();
    assert!(is_registered(&thread, &link));
    helper.watch_writable(&engine, &link);
    drop((engine, peer));
    let (token, ready) = hear_of(&mut thread, &link);
    thread.ready(token, ready);
    assert!(!is_registered(&thread, &link), "the kernel still reports it, and nobody knows of it");
    thread.tick();
    assert!(!is_registered(&thread, &link) && thread.watches.is_empty(), "nobody is left to hear of it");
}

/// A look at a writer that waits finds its link full again and again.
#[test]
fn a_link_that_is_full_is_asked_for_room_once() {
    let (helper, mut thread) = idle_thread();
    let engine = Engine::new(new_session_id(), Role::Server, Arc::new(Config::default()));
    let (link, _peer) = link();
    for _ in 0..3 {
        helper.watch_writable(&engine, &link);
        assert!(!helper.requests.lock().is_empty(), "nobody watches it");
        thread.tick();
        helper.watch_writable(&engine, &link);
        assert!(helper.requests.lock().is_empty(), "the thread is woken for what it knows");
        // There is room: from here on it may be full once more.
        let (token, ready) = hear_of(&mut thread, &link);
        thread.ready(token, ready);
    }
}

/// Somebody asks for a session that is looked at already, whenever that is: it is on one list, once.
#[test]
fn a_writer_that_waits_is_listed_once() {
    let (helper, mut thread) = idle_thread();
    let engine = Engine::new(new_session_id(), Role::Server, Arc::new(Config::default()));
    let (link, _peer) = link();
    engine.ctl().link = Some(Arc::clone(&link));
    helper.flush_soon(&engine);
    for _ in 0..300 {
        engine.writer_waits.store(true, Ordering::Release);
        let requests = {
            let mut requests = helper.requests.lock();
            std::mem::take(&mut requests.flush)
        };
        for listed in requests.iter().filter_map(Weak::upgrade) {
            thread.look_after(&listed);
            helper.flush_soon(&listed);
        }
        thread.stalled.look(helper);
        helper.flush_soon(&engine);
        let count = helper.requests.lock().flush.len() + thread.stalled.len();
        assert_eq!(count, 1);
    }
}

/// The kernel has called it writable and taken nothing, as where TCP has no memory: it would do so again and again.
#[test]
fn a_link_that_is_writable_and_takes_nothing_is_asked_again_after_a_pause() {
    let (helper, mut thread) = idle_thread();
    let engine = Engine::new(new_session_id(), Role::Server, Arc::new(Config::default()));
    let (link, _peer) = link();
    let mut pauses = Vec::new();
    for refusals in [1, 4, u8::MAX] {
        link.refusals.store(refusals, Ordering::Relaxed);
        helper.watch_writable(&engine, &link);
        thread.tick();
        assert!(
            !is_registered(&thread, &link) && thread.watches.is_empty(),
            "the kernel would say it at once"
        );
        // Whoever finds it full meanwhile leaves it at that.
        helper.watch_writable(&engine, &link);
        assert!(helper.requests.lock().is_empty());
        thread.quiet_ticks = QUIET_TICKS_MAX;
        let pause = thread.timeout().expect("it does not sleep over it");
        std::thread::sleep(pause);
        thread.tick();
        assert!(is_registered(&thread, &link), "after {pause:?}");
        pauses.push(pause);
        // This session has nothing to send: so much was taken.
        let (token, ready) = hear_of(&mut thread, &link);
        thread.ready(token, ready);
        assert_eq!(link.refusals.load(Ordering::Relaxed), 0);
    }
    let ms = |number| Duration::from_millis(number);
    assert!(pauses[0] <= ms(1) && pauses[1] <= ms(8) && pauses[1] > ms(2), "{pauses:?}");
    assert!(pauses[2] <= ms(32) && pauses[2] > ms(16), "{pauses:?}");
}
