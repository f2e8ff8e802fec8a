//! How the blocking face ends things: half-close, close, kill, passivate, finish, drop.

use crate::common::{HANG, PAUSE, each, pattern};
use outlast_session::{Config, Error, EventKind, LinkMode, Role, SessionState, Targets, blocking};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn half_close() {
    each(|case| {
        let mut pair = case.blocking();
        pair.client.write_all(b"question").unwrap();
        pair.client.shutdown(Shutdown::Write).unwrap();
        pair.client.shutdown(Shutdown::Write).unwrap();
        let error = pair.client.write(b"more").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{case}: {error}");
        assert!(error.to_string().contains("shut down"), "{case}: {error}");
        let mut question = Vec::new();
        pair.server.read_to_end(&mut question).unwrap();
        assert_eq!(question, b"question", "{case}");
        // The end stays the end, and the other direction goes on.
        assert_eq!(pair.server.read(&mut [0; 8]).unwrap(), 0, "{case}");
        let answer = pattern(300_000);
        thread::scope(|scope| {
            scope.spawn(|| {
                pair.server.write_all(&answer).unwrap();
                pair.server.finish().unwrap();
                pair.server.finish().unwrap();
            });
            let mut got = Vec::new();
            pair.client.read_to_end(&mut got).unwrap();
            assert!(got == answer, "{case}");
        });
    });
}

/// Its peer says back all that it hears, which nobody reads.
#[test]
fn what_was_written_arrives_though_the_session_was_dropped_and_is_answered() {
    each(|case| {
        // So that much is taken, whatever the peer does.
        let config = Arc::new(Config { retain_bytes_max: 8 << 20, ..case.config() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let mut client =
            blocking::Session::connect_with(&Targets::from(listener.local_addr()), &config).unwrap();
        client.established().unwrap();
        let mut server = listener.accept().unwrap();
        let said = pattern(3 << 20);
        client.set_nonblocking(true).unwrap();
        let mut taken_bytes = 0;
        while let Ok(count @ 1..) = client.write(&said[taken_bytes..]) {
            taken_bytes += count;
        }
        drop(client);
        let mut heard = Vec::new();
        let mut room = vec![0; 64 << 10];
        loop {
            let count = server.read(&mut room).unwrap();
            if count == 0 {
                break;
            }
            heard.extend_from_slice(&room[..count]);
            server.write_all(&room[..count]).unwrap();
        }
        assert!(heard == said[..taken_bytes], "{case}: {} of {taken_bytes}", heard.len());
        server.shutdown(Shutdown::Both).unwrap();
    });
}

/// A link whose peer has ended its own direction is always ready, in a way.
#[test]
fn who_waits_for_room_takes_no_processor_when_the_peer_has_ended_its_direction() {
    each(|case| {
        let mut pair = case.blocking();
        pair.client.write_all(b"question").unwrap();
        pair.client.shutdown(Shutdown::Write).unwrap();
        let mut question = Vec::new();
        pair.server.read_to_end(&mut question).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let began = cpu_time();
                // The client reads nothing.
                let error = (&pair.server).write_all(&vec![0; 256 << 20]).unwrap_err();
                (cpu_time() - began, error)
            });
            thread::sleep(Duration::from_millis(700));
            let since = Instant::now();
            pair.server.kill();
            let (used, error) = writer.join().unwrap();
            assert!(since.elapsed() < HANG, "{case}: {error}");
            // It has filled all buffers with that, and has slept for the rest.
            assert!(used < Duration::from_millis(350), "{case}: {used:?}");
        });
    });
}

/// Of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

#[test]
fn shutdown_for_reading_ends_reads_only() {
    each(|case| {
        let mut pair = case.blocking();
        pair.client.shutdown(Shutdown::Read).unwrap();
        pair.client.shutdown(Shutdown::Read).unwrap();
        assert_eq!(pair.client.read(&mut [0; 8]).unwrap(), 0, "{case}");
        pair.client.write_all(b"still").unwrap();
        let mut got = [0; 5];
        pair.server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still", "{case}");
    });
}

/// As with a `TcpStream`: whoever sleeps in a read gets the end.
#[test]
fn shutdown_wakes_a_reader() {
    each(|case| {
        for how in [Shutdown::Read, Shutdown::Both] {
            let pair = case.blocking();
            thread::scope(|scope| {
                let reader = scope.spawn(|| (&pair.client).read(&mut [0; 8]));
                thread::sleep(PAUSE);
                pair.client.shutdown(how).unwrap();
                assert_eq!(reader.join().unwrap().unwrap(), 0, "{case} {how:?}");
            });
        }
    });
}

#[test]
fn kill_wakes_readers_and_writers_on_both_sides() {
    each(|case| {
        let pair = case.blocking();
        let big = pattern(4 << 20);
        thread::scope(|scope| {
            let readers: Vec<_> = (0..3).map(|_| scope.spawn(|| (&pair.client).read(&mut [0; 8]))).collect();
            let writer = scope.spawn(|| (&pair.client).write_all(&big));
            thread::sleep(PAUSE);
            pair.client.kill();
            for reader in readers {
                let error = reader.join().unwrap().unwrap_err();
                assert!(error.to_string().contains("killed"), "{case}: {error}");
            }
            let error = writer.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("killed"), "{case}: {error}");
        });
        pair.client.kill();
        assert_eq!(pair.client.info().state, SessionState::Failed, "{case}");
        assert!(matches!(pair.client.finish(), Err(Error::Killed { .. })), "{case}");
        assert!(matches!(pair.client.shutdown(Shutdown::Write), Err(Error::Killed { .. })), "{case}");
    });
}

/// The server ends a session: the client is told at its next attempt at the latest.
#[test]
fn killed_by_the_server_the_client_gets_an_error() {
    each(|case| {
        let mut pair = case.blocking();
        let id = pair.client.id();
        thread::scope(|scope| {
            let reader = scope.spawn(|| pair.client.read(&mut [0; 8]).unwrap_err());
            thread::sleep(PAUSE);
            assert!(pair.listener.kill(&id), "{case}");
            let error = reader.join().unwrap();
            let kinds = [ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused];
            assert!(kinds.contains(&error.kind()), "{case}: {error}");
        });
        assert!(!pair.listener.kill(&id), "{case}");
        assert!(pair.server.read(&mut [0; 8]).is_err(), "{case}");
        assert!(pair.server.write(b"x").is_err(), "{case}");
    });
}

/// And the other way round. PROTOCOL 3.11: the modes without frames say it on a connection of its own.
#[test]
fn killed_by_the_client_the_server_gets_an_error() {
    each(|case| {
        let mut pair = case.blocking();
        pair.client.write_all(b"x").unwrap();
        pair.server.read_exact(&mut [0]).unwrap();
        pair.client.kill_with("enough of it");
        let error = pair.server.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{case}: {error}");
        assert!(error.to_string().contains("enough of it"), "{case}: {error}");
        assert!(pair.client.kill_told(HANG), "{case}");
        // The reader is woken a moment before the table is cleared.
        while !pair.listener.sessions().is_empty() {
            thread::yield_now();
        }
    });
}

/// The server has no link when the session is killed, and hears of it all the same; what was delivered is read.
#[test]
fn killed_while_passive() {
    each(|case| {
        let mut pair = case.blocking();
        pair.client.write_all(b"x").unwrap();
        pair.server.read_exact(&mut [0]).unwrap();
        while !pair.client.passivate().unwrap() {
            thread::yield_now();
        }
        pair.client.kill();
        assert_eq!(pair.server.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{case}");
    });
}

#[test]
fn a_dropped_peer_is_the_end_of_its_stream() {
    each(|case| {
        let crate::common::BlockingPair { mut client, server, listener } = case.blocking();
        drop(server);
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got.is_empty(), "{case}");
        client.shutdown(Shutdown::Write).unwrap();
        client.finish().unwrap();
        drop(listener);
    });
}

/// What was written is delivered after the last handle is gone.
#[test]
fn dropping_delivers_everything() {
    each(|case| {
        let crate::common::BlockingPair { mut client, mut server, listener: _listener } = case.blocking();
        let sent = pattern(200_000);
        let other = client.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&sent).unwrap();
                drop(client);
                drop(other);
            });
            thread::sleep(PAUSE);
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            assert!(got == sent, "{case}: {} bytes", got.len());
        });
    });
}

/// `finish` returns when the peer's end of the session has everything, read or not.
#[test]
fn finished_means_delivered() {
    each(|case| {
        let mut pair = case.blocking();
        let sent = pattern(20_000);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut got = Vec::new();
                pair.server.read_to_end(&mut got).unwrap();
                got
            });
            pair.client.write_all(&sent).unwrap();
            pair.client.finish().unwrap();
            assert_eq!(pair.client.info().unacked_bytes, 0, "{case}");
            // No link, no client: what is delivered stays delivered.
            pair.client.kill();
            let got = reader.join().unwrap();
            assert!(got == sent, "{case}: {} bytes", got.len());
        });
    });
}

#[test]
fn passive_until_the_next_byte() {
    each(|case| {
        let mut pair = case.blocking();
        let mut byte = [0];
        assert!(pair.server.passivate().is_err(), "{case}: only a client can make links");
        for round in 0..3u8 {
            pair.client.write_all(&[round]).unwrap();
            pair.server.read_exact(&mut byte).unwrap();
            pair.server.write_all(&[round]).unwrap();
            pair.client.read_exact(&mut byte).unwrap();
            while !pair.client.passivate().unwrap() {
                thread::yield_now();
            }
            assert!(pair.client.passivate().unwrap(), "{case}: passive already");
            let info = pair.client.info();
            assert_eq!((info.state, info.mode), (SessionState::Passive, None), "{case}");
        }
        pair.client.write_all(b"up again").unwrap();
        let mut got = [0; 8];
        pair.server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"up again", "{case}");
        let info = pair.client.info();
        assert_eq!(info.outages, 0, "{case}: on purpose is no outage");
        assert!(info.epoch >= 4, "{case}: {}", info.epoch);
        assert_eq!(pair.server.info().read_bytes, 11, "{case}");
    });
}

#[test]
fn info_and_events_tell_what_happened() {
    each(|case| {
        let mut pair = case.blocking();
        let mut events = pair.client.events();
        let mut all = pair.listener.events();
        pair.client.write_all(b"four").unwrap();
        let mut got = [0; 4];
        pair.server.read_exact(&mut got).unwrap();
        let (client, server) = (pair.client.info(), pair.server.info());
        assert_eq!((client.role, server.role), (Role::Client, Role::Server));
        assert_eq!(
            (client.id, client.state, client.epoch),
            (server.id, SessionState::Connected, 1),
            "{case}"
        );
        assert_eq!((client.mode, client.security), (server.mode, server.security), "{case}");
        assert_eq!((client.written_bytes, server.read_bytes, client.outages), (4, 4, 0), "{case}");
        assert_eq!(client.local_addr, server.peer_addr, "{case}");
        assert_eq!(pair.listener.sessions().len(), 1, "{case}");
        if let outlast_session::AckMode::Fixed(mode) = case.ack {
            assert_eq!(client.mode, Some(mode), "{case}");
        } else if client.security == "tls" {
            assert_eq!(client.mode, Some(LinkMode::Inband), "{case}");
        }
        thread::scope(|scope| {
            scope.spawn(|| pair.server.finish().unwrap());
            pair.client.finish().unwrap();
            assert_eq!(pair.client.read(&mut [0; 8]).unwrap(), 0, "{case}");
            assert_eq!(pair.server.try_clone().unwrap().read(&mut [0; 8]).unwrap(), 0, "{case}");
        });
        let id = pair.client.id();
        drop((pair.client, pair.server));
        let closed = events.blocking_recv().unwrap();
        assert!(matches!(closed.kind, EventKind::Closed) && closed.session == id, "{case}: {closed:?}");
        assert!(events.blocking_recv().is_none(), "{case}");
        while !matches!(all.blocking_recv().unwrap().kind, EventKind::Closed) {}
        // The event comes a moment before the table is cleared.
        while !pair.listener.sessions().is_empty() {
            thread::yield_now();
        }
    });
}
