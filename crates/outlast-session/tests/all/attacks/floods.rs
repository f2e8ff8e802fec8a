//! Too many at once.

use super::ALONE;
use super::raw::{Raw, Victim, bytes_of, fresh_id, hello, newcomer};
use crate::common::{psk, quick, within};
use outlast_session::proto::{Message, Refusal, Refuse};
use outlast_session::{Config, Security};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// Descriptors for both ends of everything.
pub fn many_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live variable of the right type.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(result, 0);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above; raising the soft limit to the hard one is always allowed.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(result, 0);
}

pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// 2,000 connections that say nothing, or half a Hello, and never go away by themselves.
#[test]
fn half_open_floods_are_bounded_and_honest_clients_get_in() {
    let _alone = ALONE.write();
    within(|| {
        many_descriptors();
        for security in [Security::Open, Security::Psk(psk(1))] {
            let config = Config {
                handshake_timeout: Duration::from_millis(300),
                handshakes_max: 128,
                security,
                ..quick()
            };
            let victim = Victim::new(config.clone());
            let before = descriptors();
            let half = bytes_of(&hello(fresh_id()));
            let mut flood = Vec::new();
            for number in 0..2_000 {
                let socket =
                    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&victim.address().into());
                if number % 2 == 0 {
                    let _ = socket.send(&half[..20]);
                }
                // What earlier sessions held may go away meanwhile.
                let taken = descriptors().saturating_sub(before + flood.len() + 1);
                assert!(taken <= 128 + 8, "{taken} descriptors for handshakes");
                flood.push(socket);
            }
            // Patience is the client's own: its time-out is the ordinary one.
            let patient = Arc::new(Config { handshake_timeout: Duration::from_secs(5), ..config });
            let mut honest = loop {
                match newcomer(victim.address(), &patient) {
                    Ok(session) => break session,
                    Err(error) => assert!(!error.to_string().contains("refused"), "{error}"),
                }
            };
            honest.write_all(b"in").unwrap();
            let mut echo = [0; 2];
            honest.read_exact(&mut echo).unwrap();
            drop(flood);
            assert!(victim.refused("failed_handshakes") > 0);
            victim.unharmed();
        }
    });
}

/// Sessions of one address, and all sessions, have their limits; those that are there go on.
#[test]
fn quotas_hold() {
    let _shared = ALONE.read();
    within(|| {
        for (per_peer, all, name) in [(10, 1000, "quota"), (1000, 10, "busy")] {
            let victim =
                Victim::new(Config { sessions_per_peer_max: per_peer, sessions_max: all, ..quick() });
            let mut open = Vec::new();
            for number in 1..60u64 {
                let mut raw = Raw::connect(victim.address());
                raw.say(&bytes_of(&hello(fresh_id())));
                match raw.hear() {
                    Some(Message::Welcome(_)) => assert!(number < 10, "{name}: {number}"),
                    Some(Message::Refuse(Refuse { refusal, .. })) => {
                        assert!(matches!(refusal, Refusal::Quota | Refusal::Busy { .. }), "{refusal:?}");
                        assert!(number >= 10, "{name}: {number}");
                    }
                    other => panic!("{other:?}"),
                }
                // Half of them leave without a word: detached sessions count, too.
                if number % 2 == 0 {
                    open.push(raw);
                }
            }
            assert_eq!(victim.refused(name), 50);
            assert_eq!(victim.listener.sessions().len(), 10);
            // Room is made when sessions end.
            for info in victim.listener.sessions() {
                if info.id != victim.session.id() {
                    assert!(victim.listener.kill(&info.id));
                }
            }
            victim.unharmed();
        }
    });
}

/// Detached sessions are kept as long as promised, not longer.
#[test]
fn what_nobody_comes_back_for_expires() {
    let _shared = ALONE.read();
    within(|| {
        let victim = Victim::new(Config { keep: Duration::from_millis(100), ..quick() });
        let ids: Vec<_> = (0..50).map(|_| fresh_id()).collect();
        for id in &ids {
            let mut raw = Raw::connect(victim.address());
            raw.say(&bytes_of(&hello(*id)));
            assert!(matches!(raw.hear(), Some(Message::Welcome(_))));
        }
        while victim.listener.sessions().len() > 1 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut late = hello(ids[7]);
        (late.intent, late.epoch) = (outlast_session::proto::Intent::Resume, 2);
        let mut raw = Raw::connect(victim.address());
        raw.say(&bytes_of(&late));
        assert_eq!(raw.verdict(), Some(Refusal::Expired));
        victim.unharmed();
    });
}
