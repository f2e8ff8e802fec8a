//! The blocking face.

use crate::common::{PAUSE, each, pattern};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

#[test]
fn basic_io_both_ways() {
    each(|case| {
        let pair = case.blocking();
        let sent = pattern(600_000);
        thread::scope(|scope| {
            for session in [&pair.client, &pair.server] {
                scope.spawn(|| {
                    for chunk in sent.chunks(10_007) {
                        (&*session).write_all(chunk).unwrap();
                    }
                    session.shutdown(Shutdown::Write).unwrap();
                });
                scope.spawn(|| {
                    let mut got = Vec::new();
                    (&*session).read_to_end(&mut got).unwrap();
                    assert!(got == sent, "{case}: {} bytes", got.len());
                });
            }
        });
    });
}

#[test]
fn ping_pong() {
    each(|case| {
        let mut pair = case.blocking();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = [0; 8];
                while pair.server.read_exact(&mut number).is_ok() {
                    let next = u64::from_be_bytes(number) + 1;
                    pair.server.write_all(&next.to_be_bytes()).unwrap();
                }
            });
            let mut number = [0; 8];
            for round in 0..500u64 {
                pair.client.write_all(&(round * 2).to_be_bytes()).unwrap();
                pair.client.read_exact(&mut number).unwrap();
                assert_eq!(u64::from_be_bytes(number), round * 2 + 1, "{case}");
            }
            pair.client.shutdown(Shutdown::Both).unwrap();
        });
    });
}

/// Many readers: every byte goes to exactly one of them.
// Open bug: over TLS a link breaks with "received plaintext buffer full".
#[test]
fn racy_read() {
    each(|case| {
        let pair = case.blocking();
        let sent = pattern(200_000);
        let total = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let (bytes, sum) = thread::scope(|scope| {
            let readers: Vec<_> = (0..8)
                .map(|reader| {
                    let mut session = pair.server.try_clone().unwrap();
                    scope.spawn(move || {
                        let mut buffer = vec![0; 100 + reader * 500];
                        let (mut bytes, mut sum) = (0, 0);
                        loop {
                            match session.read(&mut buffer).unwrap() {
                                0 => return (bytes, sum),
                                count => {
                                    bytes += count;
                                    sum += total(&buffer[..count]);
                                }
                            }
                        }
                    })
                })
                .collect();
            for chunk in sent.chunks(1_003) {
                (&pair.client).write_all(chunk).unwrap();
            }
            pair.client.shutdown(Shutdown::Write).unwrap();
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap())
                .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        });
        assert_eq!((bytes, sum), (sent.len(), total(&sent)), "{case}");
    });
}

/// Many writers: writes of one byte value each never mix within a record that fits one write call.
#[test]
fn racy_write() {
    each(|case| {
        let mut pair = case.blocking();
        let mut got = Vec::new();
        thread::scope(|scope| {
            let writers: Vec<_> = (0..8u8)
                .map(|writer| {
                    let mut session = pair.client.try_clone().unwrap();
                    scope.spawn(move || {
                        for _ in 0..200 {
                            session.write_all(&[writer; 97]).unwrap();
                        }
                    })
                })
                .collect();
            let client = &pair.client;
            scope.spawn(move || {
                for writer in writers {
                    writer.join().unwrap();
                }
                client.shutdown(Shutdown::Write).unwrap();
            });
            pair.server.read_to_end(&mut got).unwrap();
        });
        let mut counts = [0; 8];
        got.iter().for_each(|writer| counts[usize::from(*writer)] += 1);
        assert_eq!(counts, [200 * 97; 8], "{case}");
    });
}

#[test]
fn a_read_times_out_and_the_next_one_gets_everything() {
    each(|case| {
        let mut pair = case.blocking();
        assert_eq!(
            pair.client.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        let mut buffer = [0; 16];
        for timeout in [Duration::from_nanos(1), Duration::from_micros(300), PAUSE] {
            pair.client.set_read_timeout(Some(timeout)).unwrap();
            assert_eq!(pair.client.read(&mut buffer).unwrap_err().kind(), ErrorKind::TimedOut, "{case}");
        }
        // A time-out is not an end: the stream goes on where it was.
        pair.client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        pair.server.write_all(b"after").unwrap();
        pair.client.read_exact(&mut buffer[..5]).unwrap();
        assert_eq!(&buffer[..5], b"after", "{case}");
        pair.client.set_read_timeout(None).unwrap();
        pair.server.write_all(b"again").unwrap();
        pair.client.read_exact(&mut buffer[..5]).unwrap();
        assert_eq!(&buffer[..5], b"again", "{case}");
    });
}

#[test]
fn many_readers_time_out() {
    each(|case| {
        let pair = case.blocking();
        pair.client.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let error = (&pair.client).read(&mut [0; 16]).unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::TimedOut, "{case}");
                    }
                });
            }
        });
    });
}

/// Fills all buffers between the ends; returns what was written.
fn fill(session: &mut impl Write) -> (u64, ErrorKind) {
    let chunk = pattern(16 << 10);
    let mut written = 0;
    loop {
        let at = usize::try_from(written).unwrap() % chunk.len();
        match session.write(&chunk[at..]) {
            Ok(count) => written += count as u64,
            Err(error) => return (written, error.kind()),
        }
    }
}

#[test]
fn a_write_times_out_and_what_was_taken_arrives() {
    each(|case| {
        let mut pair = case.blocking();
        assert!(pair.client.set_write_timeout(Some(Duration::ZERO)).is_err());
        pair.client.set_write_timeout(Some(PAUSE)).unwrap();
        let (written, kind) = fill(&mut pair.client);
        assert_eq!(kind, ErrorKind::TimedOut, "{case}");
        check_filled(pair, written, &case.to_string());
    });
}

#[test]
fn nonblocking_calls_say_so() {
    each(|case| {
        let mut pair = case.blocking();
        pair.client.set_nonblocking(true).unwrap();
        assert_eq!(pair.client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock, "{case}");
        let (written, kind) = fill(&mut pair.client);
        assert_eq!(kind, ErrorKind::WouldBlock, "{case}");
        assert_eq!(
            pair.client.reserve(8).err().map(|error| error.kind()),
            Some(ErrorKind::WouldBlock),
            "{case}"
        );
        check_filled(pair, written, &case.to_string());
    });
}

/// The peer gets exactly what was taken, and the session goes on.
fn check_filled(mut pair: crate::common::BlockingPair, written: u64, case: &str) {
    pair.client.set_nonblocking(false).unwrap();
    pair.client.set_write_timeout(None).unwrap();
    pair.client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    pair.server.read_to_end(&mut got).unwrap();
    assert_eq!(got.len() as u64, written, "{case}");
    let chunk = pattern(16 << 10);
    assert!(got.chunks(chunk.len()).all(|part| *part == chunk[..part.len()]), "{case}");
    pair.server.write_all(b"back").unwrap();
    let mut back = [0; 4];
    pair.client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"back", "{case}");
}

#[test]
fn zero_length_io_does_nothing_and_does_not_wait() {
    each(|case| {
        let mut pair = case.blocking();
        for session in [&mut pair.client, &mut pair.server] {
            assert_eq!(session.read(&mut []).unwrap(), 0, "{case}");
            assert_eq!(session.write(&[]).unwrap(), 0, "{case}");
            session.flush().unwrap();
            session.reserve(0).unwrap().commit(0);
        }
        assert_eq!(pair.client.info().written_bytes, 0, "{case}");
        pair.client.write_all(b"x").unwrap();
        let mut byte = [0];
        pair.server.read_exact(&mut byte).unwrap();
        pair.client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(pair.server.read(&mut []).unwrap(), 0, "{case}");
        assert_eq!(pair.server.read(&mut byte).unwrap(), 0, "{case}");
    });
}

#[test]
fn what_is_reserved_and_committed_is_the_stream() {
    each(|case| {
        let mut pair = case.blocking();
        let sent = pattern(300_000);
        let mut got = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 0;
                while at < sent.len() {
                    drop(pair.client.reserve(100).unwrap()); // Dropped: nothing is written.
                    let mut room = pair.client.reserve((sent.len() - at).min(9_999)).unwrap();
                    let count = room.len().min(sent.len() - at);
                    room[..count].copy_from_slice(&sent[at..at + count]);
                    room.commit(count);
                    at += count;
                }
                pair.client.shutdown(Shutdown::Write).unwrap();
            });
            pair.server.read_to_end(&mut got).unwrap();
        });
        assert!(got == sent, "{case}: {} bytes", got.len());
    });
}

#[test]
fn every_method_at_the_same_time() {
    each(|case| {
        let pair = case.blocking();
        let sent = pattern(300_000);
        thread::scope(|scope| {
            scope.spawn(|| {
                for chunk in sent.chunks(997) {
                    (&pair.client).write_all(chunk).unwrap();
                }
                pair.client.shutdown(Shutdown::Write).unwrap();
            });
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        for session in [&pair.client, &pair.server] {
                            let info = session.info();
                            assert!(info.unacked_bytes <= info.written_bytes, "{case}");
                            assert_eq!(session.id(), info.id);
                            session.peer_addr().unwrap();
                            (&*session).flush().unwrap();
                            session.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
                        }
                        assert!(!pair.listener.sessions().is_empty());
                    }
                });
            }
            let mut got = Vec::new();
            (&pair.server).read_to_end(&mut got).unwrap();
            assert!(got == sent, "{case}");
        });
    });
}
