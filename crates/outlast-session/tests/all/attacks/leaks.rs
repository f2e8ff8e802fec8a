//! Nothing is left behind: descriptors, threads, memory.

use super::ALONE;
use super::floods::descriptors;
use crate::common::{Case, Protection, quick, within};
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking, tokio as async_face};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn memory_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Waits until both counts are back; a leak is a hang, and the test says what is left.
fn settle(before: (usize, usize)) {
    for _ in 0..500 {
        if descriptors() <= before.0 && threads() <= before.1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("descriptors {} -> {}, threads {} -> {}", before.0, descriptors(), before.1, threads());
}

fn check(round: impl Fn(usize)) {
    round(50);
    std::thread::sleep(Duration::from_millis(300));
    let before = (descriptors(), threads());
    round(1_000);
    settle(before);
    // What is leaked grows with every round; what the allocator keeps, for more threads at a time, does so once.
    let mut grown = Vec::new();
    while grown.len() < 5 {
        let memory_before = memory_bytes();
        round(1_000);
        settle(before);
        // On a busy machine the last of them are still on their way out.
        for _ in 0..100 {
            if memory_bytes() < memory_before + (8 << 20) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        grown.push(memory_bytes() - memory_before);
    }
    panic!("{grown:?} bytes more each time for 1,000 sessions that are gone");
}

fn configs() -> [Arc<Config>; 3] {
    let tls = Case { ack: AckMode::Auto, protection: Protection::Tls }.config();
    [quick(), Config { ack: AckMode::Fixed(LinkMode::Inband), ..quick() }, tls].map(Arc::new)
}

/// Sessions that end in order, by being dropped and by being killed, one after another.
#[test]
fn blocking_sessions_leave_nothing_behind() {
    let _alone = ALONE.write();
    within(|| {
        for config in configs() {
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
            let targets = Targets::from(listener.local_addr());
            check(|count| {
                for number in 0..count {
                    let mut client = blocking::Session::connect_with(&targets, &config).unwrap();
                    client.write_all(b"ping").unwrap();
                    let mut server = listener.accept().unwrap();
                    let mut four = [0; 4];
                    server.read_exact(&mut four).unwrap();
                    server.write_all(b"pong").unwrap();
                    client.read_exact(&mut four).unwrap();
                    match number % 4 {
                        1 => server.kill(),
                        2 => drop(server.shutdown(std::net::Shutdown::Write)),
                        _ => {}
                    }
                }
            });
            while listener.sessions().iter().any(|info| info.pause_now_ms.is_none()) {
                std::thread::yield_now(); // Dropped a moment ago.
            }
            assert_eq!(listener.sessions().len(), 0, "sessions that are over are still kept");
        }
    });
}

#[test]
fn tokio_sessions_leave_nothing_behind() {
    let _alone = ALONE.write();
    within(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        for config in configs() {
            let listener = runtime.block_on(async_face::Listener::bind_with("127.0.0.1:0", &config)).unwrap();
            let targets = Targets::from(listener.local_addr());
            check(|count| {
                runtime.block_on(async {
                    for number in 0..count {
                        let mut client = async_face::Session::connect_with(&targets, &config).await.unwrap();
                        client.write_all(b"ping").await.unwrap();
                        let mut server = listener.accept().await.unwrap();
                        let mut four = [0; 4];
                        server.read_exact(&mut four).await.unwrap();
                        server.write_all(b"pong").await.unwrap();
                        client.read_exact(&mut four).await.unwrap();
                        match number % 4 {
                            1 => server.kill(),
                            2 => drop(server.shutdown().await),
                            _ => {}
                        }
                    }
                });
            });
            assert_eq!(runtime.metrics().num_alive_tasks(), 1, "only the listener's own");
            while listener.sessions().iter().any(|info| info.pause_now_ms.is_none()) {
                std::thread::yield_now(); // Dropped a moment ago.
            }
            assert_eq!(listener.sessions().len(), 0, "sessions that are over are still kept");
        }
    });
}

/// A listener that is dropped takes its thread and its sockets along.
#[test]
fn listeners_leave_nothing_behind() {
    let _alone = ALONE.write();
    within(|| {
        let config = Arc::new(quick());
        let round = |count| {
            for _ in 0..count {
                let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
                let _half_open = std::net::TcpStream::connect(listener.local_addr()).unwrap();
            }
        };
        round(5);
        std::thread::sleep(Duration::from_millis(300));
        let before = (descriptors(), threads());
        round(100);
        settle(before);
    });
}
