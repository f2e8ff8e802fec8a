//! Requests are answered exactly once, byte by byte, by a server that is killed all the time. `OUTLAST_CRASHES=n` says how
//! often, `OUTLAST_SEED=n` when.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, clippy::cast_possible_truncation, reason = "a test")]

mod common;

use common::{PATIENCE, Random, Server, number};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Of each of the tests.
const CRASHES: u64 = 5000;
const CLIENTS: u64 = 8;

fn answer_to(line: &[u8]) -> Vec<u8> {
    let backwards: Vec<u8> = line.iter().rev().copied().collect();
    [backwards.repeat(line.len() % 20 + 1), b"\n".to_vec()].concat()
}

/// Sends lines of all lengths, up to some ahead of what it has heard, and checks every byte of the answers.
fn client(address: SocketAddr, seed: u64, stop: &AtomicBool, heard_bytes: &AtomicU64) {
    let mut random = Random(seed);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut asked = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let (mut questions, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..=random.below(8) {
            let length = [1, 10, 100, 3000][random.below(4) as usize];
            let mut line = format!("{asked}:").into_bytes();
            line.resize(line.len() + random.below(length) as usize, b'a' + random.below(26) as u8);
            answers.extend(answer_to(&line));
            line.push(b'\n');
            questions.extend(line);
            asked += 1;
        }
        // In pieces, which end anywhere.
        for piece in questions.chunks(1 + random.below(5000) as usize) {
            stream.write_all(piece).unwrap();
        }
        let mut heard = vec![0; answers.len()];
        stream.read_exact(&mut heard).unwrap_or_else(|error| panic!("seed {seed}, line {asked}: {error}"));
        assert!(heard == answers, "seed {seed}: another answer than expected up to line {asked}");
        heard_bytes.fetch_add(answers.len() as u64, Ordering::Relaxed);
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "seed {seed}: more answers than questions");
}

#[test]
fn whatever_dies_every_byte_is_the_right_one() {
    crash_and_check("127.0.0.1:0");
}

#[test]
fn and_over_ipv6() {
    crash_and_check("[::1]:0");
}

fn crash_and_check(address: &str) {
    let server = Server::start("lines", &[address]);
    let (stop, heard_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (seed, count) = (number("OUTLAST_SEED", 1), number("OUTLAST_CRASHES", CRASHES));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (address, stop, heard_bytes) = (server.address, &stop, &heard_bytes);
                scope.spawn(move || client(address, seed * 100 + number, stop, heard_bytes))
            })
            .collect();
        let crashes = server.crash(count, seed, || clients.iter().any(|client| client.is_finished()));
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        println!("{crashes} crashes, {} bytes heard, seed {seed}", heard_bytes.load(Ordering::Relaxed));
    });
}
