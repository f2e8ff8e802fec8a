//! What the thread is asked for, and whether it may sleep: without the thread.

use super::super::super::{Role, new_session_id};
use super::*;
use crate::config::Config;

/// A helper whose thread is the test.
fn idle_thread() -> (&'static Helper, Thread) {
    let helper: &'static Helper = Box::leak(Box::new(Helper {
        requests: parking_lot::Mutex::default(),
        ticking: std::sync::atomic::AtomicBool::new(false),
        waker: None,
    }));
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
