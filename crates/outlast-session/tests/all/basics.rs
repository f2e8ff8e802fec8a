//! Sessions on loopback, nothing broken: both shells, every mode, both ways.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

use outlast_session::{AckMode, Config, LinkMode, Targets, blocking};
use std::io::{Read, Write};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn config(ack: AckMode) -> Arc<Config> {
    Arc::new(Config { ack, ..Config::default() })
}

fn modes() -> Vec<AckMode> {
    vec![
        AckMode::Auto,
        AckMode::Fixed(LinkMode::Kernel),
        AckMode::Fixed(LinkMode::Window),
        AckMode::Fixed(LinkMode::Udp),
        AckMode::Fixed(LinkMode::Inband),
    ]
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 % 251) as u8 ^ (i >> 8) as u8).collect()
}

/// Its thread had the socket open for a while.
#[test]
fn the_address_of_a_dropped_listener_is_free() {
    let config = config(AckMode::Auto);
    let address = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap().local_addr();
    for _ in 0..200 {
        drop(blocking::Listener::bind_with(address, &config).unwrap());
    }
}

#[test]
fn blocking_round_trips_streams_and_ends() {
    for ack in modes() {
        let server_config = config(AckMode::Auto);
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &server_config).unwrap();
        let targets = Targets::from(listener.local_addr());
        let server = std::thread::spawn(move || {
            let mut session = listener.accept().unwrap();
            let mut byte = [0];
            for _ in 0..1000 {
                session.read_exact(&mut byte).unwrap();
                session.write_all(&byte).unwrap();
            }
            let mut all = Vec::new();
            session.read_to_end(&mut all).unwrap();
            session.write_all(&all).unwrap();
            session.finish().unwrap();
            all.len()
        });
        let mut session = blocking::Session::connect_with(&targets, &config(ack)).unwrap();
        let mut byte = [0];
        for i in 0..1000u32 {
            session.write_all(&[i as u8]).unwrap();
            session.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], i as u8, "{ack}");
        }
        let sent = pattern(3_000_000);
        for chunk in sent.chunks(100_003) {
            session.write_all(chunk).unwrap();
        }
        session.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        session.read_to_end(&mut back).unwrap();
        assert!(back == sent, "{ack}: {} of {} bytes came back right", back.len(), sent.len());
        let info = session.info();
        assert_eq!(info.outages, 0, "{ack}");
        assert_eq!(server.join().unwrap(), sent.len());
    }
}

#[test]
fn tokio_round_trips_streams_and_ends() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for ack in modes() {
            let listener = outlast_session::tokio::Listener::bind_with("127.0.0.1:0", &config(AckMode::Auto))
                .await
                .unwrap();
            let targets = Targets::from(listener.local_addr());
            let server = tokio::spawn(async move {
                let mut session = listener.accept().await.unwrap();
                let mut byte = [0];
                for _ in 0..1000 {
                    session.read_exact(&mut byte).await.unwrap();
                    session.write_all(&byte).await.unwrap();
                }
                let mut all = Vec::new();
                session.read_to_end(&mut all).await.unwrap();
                session.write_all(&all).await.unwrap();
                session.finish().await.unwrap();
                all.len()
            });
            let mut session =
                outlast_session::tokio::Session::connect_with(&targets, &config(ack)).await.unwrap();
            let mut byte = [0];
            for i in 0..1000u32 {
                session.write_all(&[i as u8]).await.unwrap();
                session.read_exact(&mut byte).await.unwrap();
                assert_eq!(byte[0], i as u8, "{ack}");
            }
            let sent = pattern(3_000_000);
            for chunk in sent.chunks(100_003) {
                session.write_all(chunk).await.unwrap();
            }
            session.shutdown().await.unwrap();
            let mut back = Vec::new();
            session.read_to_end(&mut back).await.unwrap();
            assert!(back == sent, "{ack}: {} of {} bytes came back right", back.len(), sent.len());
            assert_eq!(server.await.unwrap(), sent.len());
        }
    });
}
