//! The tokio face.

use crate::common::{PAUSE, TokioPair, each_tokio, pattern};
use outlast_session::{Error, SessionState};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

#[test]
fn basic_io_both_ways() {
    each_tokio(|case| async move {
        let pair = case.tokio().await;
        let sent = Arc::new(pattern(600_000));
        let mut tasks = Vec::new();
        for session in [pair.client, pair.server] {
            let (mut read, mut write) = session.into_split();
            let bytes = sent.clone();
            tasks.push(tokio::spawn(async move {
                for chunk in bytes.chunks(10_007) {
                    write.write_all(chunk).await.unwrap();
                }
                write.shutdown().await.unwrap();
            }));
            let bytes = sent.clone();
            tasks.push(tokio::spawn(async move {
                let mut got = Vec::new();
                read.read_to_end(&mut got).await.unwrap();
                assert!(got == *bytes, "{case}: {} bytes", got.len());
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn ping_pong_in_one_task_and_in_two() {
    each_tokio(|case| async move {
        let TokioPair { mut client, mut server, listener: _listener } = case.tokio().await;
        for round in 0..300u64 {
            client.write_u64(round).await.unwrap();
            assert_eq!(server.read_u64().await.unwrap(), round, "{case}");
            server.write_u64(round + 1).await.unwrap();
            assert_eq!(client.read_u64().await.unwrap(), round + 1, "{case}");
        }
        let echo = tokio::spawn(async move {
            while let Ok(number) = server.read_u64().await {
                server.write_u64(number + 1).await.unwrap();
            }
        });
        for round in 0..300u64 {
            client.write_u64(round).await.unwrap();
            assert_eq!(client.read_u64().await.unwrap(), round + 1, "{case}");
        }
        client.shutdown().await.unwrap();
        echo.await.unwrap();
    });
}

/// A read that was given up loses nothing.
#[test]
fn reads_given_up_lose_nothing() {
    each_tokio(|case| async move {
        let mut pair = case.tokio().await;
        let sent = pattern(100_000);
        let bytes = sent.clone();
        let writer = tokio::spawn(async move {
            for chunk in bytes.chunks(5_003) {
                pair.client.write_all(chunk).await.unwrap();
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
            pair.client.finish().await.unwrap();
        });
        let mut got = Vec::new();
        let mut buffer = [0; 3_000];
        loop {
            match timeout(Duration::from_micros(100), pair.server.read(&mut buffer)).await {
                Err(_) => {}
                Ok(result) => match result.unwrap() {
                    0 => break,
                    count => got.extend_from_slice(&buffer[..count]),
                },
            }
        }
        assert!(got == sent, "{case}: {} bytes", got.len());
        writer.await.unwrap();
    });
}

/// A write that was given up while everything was full: what was taken arrives, once.
#[test]
fn full_buffers_hold_the_writer_up() {
    each_tokio(|case| async move {
        let mut pair = case.tokio().await;
        let chunk = pattern(16 << 10);
        let mut written = 0usize;
        while let Ok(count) = timeout(PAUSE, pair.client.write(&chunk[written % chunk.len()..])).await {
            written += count.unwrap();
        }
        pair.client.shutdown().await.unwrap();
        let mut got = Vec::new();
        pair.server.read_to_end(&mut got).await.unwrap();
        assert_eq!(got.len(), written, "{case}");
        assert!(got.chunks(chunk.len()).all(|part| *part == chunk[..part.len()]), "{case}");
    });
}

#[test]
fn zero_length_io() {
    each_tokio(|case| async move {
        let mut pair = case.tokio().await;
        for session in [&mut pair.client, &mut pair.server] {
            assert_eq!(session.read(&mut []).await.unwrap(), 0, "{case}");
            assert_eq!(session.write(&[]).await.unwrap(), 0, "{case}");
            session.flush().await.unwrap();
        }
        assert_eq!(pair.client.info().written_bytes, 0, "{case}");
    });
}

#[test]
fn half_close() {
    each_tokio(|case| async move {
        let TokioPair { mut client, mut server, listener: _listener } = case.tokio().await;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe, "{case}");
        let mut question = Vec::new();
        server.read_to_end(&mut question).await.unwrap();
        assert_eq!(question, b"question", "{case}");
        let answer = pattern(300_000);
        let sent = answer.clone();
        let writer = tokio::spawn(async move {
            server.write_all(&sent).await.unwrap();
            server.finish().await.unwrap();
            server.finish().await.unwrap();
        });
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert!(got == answer, "{case}");
        writer.await.unwrap();
    });
}

/// Dropping the writing half ends its direction; the session is let go of with the reading half.
#[test]
fn a_dropped_half_ends_its_direction() {
    each_tokio(|case| async move {
        let TokioPair { client, mut server, listener: _listener } = case.tokio().await;
        let (mut read, mut write) = client.into_split();
        write.write_all(b"bye").await.unwrap();
        drop(write);
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"bye", "{case}");
        server.write_all(b"too").await.unwrap();
        drop(server);
        got.clear();
        read.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"too", "{case}");
    });
}

#[test]
fn kill_wakes_reader_and_writer() {
    each_tokio(|case| async move {
        let TokioPair { client, mut server, listener: _listener } = case.tokio().await;
        let (mut read, mut write) = client.into_split();
        let session = {
            let reader = tokio::spawn(async move {
                let result = read.read(&mut [0; 8]).await;
                (read, result)
            });
            let writer = tokio::spawn(async move { write.write_all(&pattern(4 << 20)).await });
            tokio::time::sleep(PAUSE).await;
            // The server ends it: its own reader and the client's are told.
            server.kill();
            assert!(
                server.read(&mut [0; 8]).await.is_err() || server.read_to_end(&mut Vec::new()).await.is_err()
            );
            let (read, result) = reader.await.unwrap();
            assert!(result.is_err(), "{case}");
            assert!(writer.await.unwrap().is_err(), "{case}");
            read
        };
        assert_eq!(session.session().info().state, SessionState::Failed, "{case}");
        assert!(session.session().finish().await.is_err(), "{case}");
        assert!(matches!(server.finish().await, Err(Error::Killed { .. })), "{case}");
    });
}

#[test]
fn dropping_delivers_everything() {
    each_tokio(|case| async move {
        let TokioPair { mut client, mut server, listener: _listener } = case.tokio().await;
        let sent = pattern(200_000);
        let bytes = sent.clone();
        let writer = tokio::spawn(async move {
            client.write_all(&bytes).await.unwrap();
            drop(client);
        });
        tokio::time::sleep(PAUSE).await;
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        assert!(got == sent, "{case}: {} bytes", got.len());
        writer.await.unwrap();
    });
}

#[test]
fn passive_until_the_next_byte() {
    each_tokio(|case| async move {
        let TokioPair { mut client, mut server, listener: _listener } = case.tokio().await;
        assert!(server.passivate().is_err(), "{case}");
        for round in 0..3u64 {
            client.write_u64(round).await.unwrap();
            assert_eq!(server.read_u64().await.unwrap(), round, "{case}");
            server.write_u64(round).await.unwrap();
            assert_eq!(client.read_u64().await.unwrap(), round, "{case}");
            while !client.passivate().unwrap() {
                tokio::task::yield_now().await;
            }
            assert_eq!(client.info().state, SessionState::Passive, "{case}");
        }
        client.write_u64(9).await.unwrap();
        assert_eq!(server.read_u64().await.unwrap(), 9, "{case}");
        assert_eq!(client.info().outages, 0, "{case}");
    });
}

/// Methods from many tasks while a stream runs.
#[test]
fn every_method_at_the_same_time() {
    each_tokio(|case| async move {
        let pair = case.tokio().await;
        let sent = pattern(300_000);
        let bytes = sent.clone();
        let (read, mut write) = pair.client.into_split();
        let (mut server_read, _server_write) = pair.server.into_split();
        let writer = tokio::spawn(async move {
            for chunk in bytes.chunks(997) {
                write.write_all(chunk).await.unwrap();
            }
            write.shutdown().await.unwrap();
        });
        let read = Arc::new(read);
        let watchers: Vec<_> = (0..3)
            .map(|_| {
                let read = read.clone();
                tokio::spawn(async move {
                    for _ in 0..200 {
                        let info = read.session().info();
                        assert!(info.unacked_bytes <= info.written_bytes, "{case}");
                        read.session().peer_addr().unwrap();
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let mut got = Vec::new();
        server_read.read_to_end(&mut got).await.unwrap();
        assert!(got == sent, "{case}");
        writer.await.unwrap();
        for watcher in watchers {
            watcher.await.unwrap();
        }
    });
}
