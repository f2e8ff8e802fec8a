//! Requests are answered exactly once, byte by byte, by a server that is killed all the time. `OUTLAST_CRASHES=n` says how
//! often, `OUTLAST_SEED=n` when.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, clippy::cast_possible_truncation, reason = "a test")]

use crate::common::{PATIENCE, Random, Server, number};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Over TCP; the other tests have parts of that.
const CRASHES: u64 = 1000;
const CLIENTS: u64 = 8;
const LONG: u64 = 200_000;

fn answer_to(line: &[u8]) -> Vec<u8> {
    let backwards: Vec<u8> = line.iter().rev().copied().collect();
    [backwards.repeat(line.len() % 20 + 1), b"\n".to_vec()].concat()
}

/// Sends lines of all lengths, up to some ahead of what it has heard, and checks every byte of the answers.
fn client(mut stream: TcpStream, seed: u64, stop: &AtomicBool, heard_bytes: &AtomicU64) {
    let mut random = Random(seed);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut asked = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let (mut questions, mut answers) = (Vec::new(), Vec::new());
        // Some are longer than what is held of most.
        let is_long = random.below(200) == 0;
        for _ in 0..=if is_long { 0 } else { random.below(8) } {
            let length = if is_long { LONG } else { [1, 10, 100, 3000][random.below(4) as usize] };
            let mut line = format!("{asked}:").into_bytes();
            line.resize(line.len() + random.below(length) as usize, b'a' + random.below(26) as u8);
            answers.extend(answer_to(&line));
            line.push(b'\n');
            questions.extend(line);
            asked += 1;
        }
        // In pieces, which end anywhere. Of small ones a UNIX socket takes few, and who does not read has to wait for ever.
        let (pieces, mut heard) = (questions.chunks(1 + random.below(5000) as usize), vec![0; answers.len()]);
        std::thread::scope(|scope| {
            let mut writer = stream.try_clone().unwrap();
            scope.spawn(move || pieces.for_each(|piece| writer.write_all(piece).unwrap()));
            stream
                .read_exact(&mut heard)
                .unwrap_or_else(|error| panic!("seed {seed}, line {asked}: {error}"));
        });
        assert!(heard == answers, "seed {seed}: another answer than expected up to line {asked}");
        heard_bytes.fetch_add(answers.len() as u64, Ordering::Relaxed);
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "seed {seed}: more answers than questions");
}

#[test]
fn whatever_dies_every_byte_is_the_right_one() {
    crash_and_check("lines", &["127.0.0.1:0"], CRASHES, |server| TcpStream::connect(server).unwrap());
}

#[test]
fn and_over_ipv6() {
    crash_and_check("lines", &["[::1]:0"], CRASHES / 2, |server| TcpStream::connect(server).unwrap());
}

#[test]
fn and_over_unix_sockets() {
    crash_and_check_over_unix("lines");
}

#[test]
fn and_by_one_thread_that_waits_for_edges_or_levels() {
    for trigger in ["edge", "level"] {
        let connect = |server| TcpStream::connect(server).unwrap();
        crash_and_check("event_loop", &["127.0.0.1:0", trigger], CRASHES / 2, connect);
    }
}

#[test]
#[cfg(feature = "tokio")]
fn and_by_tasks_on_tokio() {
    crash_and_check("async_lines", &["127.0.0.1:0"], CRASHES / 4, |server| {
        TcpStream::connect(server).unwrap()
    });
    // Of all UNIX sockets that are left, some are the runtime's own.
    crash_and_check_over_unix("async_lines");
}

fn crash_and_check_over_unix(example: &str) {
    let path = std::env::temp_dir().join(format!("outlast-{example}-{}", std::process::id()));
    crash_and_check(example, &[&format!("unix:{}", path.display())], CRASHES / 4, |_| {
        // Reads and writes are the same for all streams.
        TcpStream::from(OwnedFd::from(UnixStream::connect(&path).unwrap()))
    });
    std::fs::remove_file(path).unwrap();
}

/// Counts as `tally` should, under a name of its own, and under one that all share.
fn count(address: SocketAddr, number: u64, stop: &AtomicBool, together: &AtomicU64) {
    let mut random = Random(number);
    let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
    stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut mine, mut last_ours) = (0u64, 0);
    while !stop.load(Ordering::Relaxed) {
        let count = 1 + random.below(20);
        let questions = format!("add {number}\nadd all\n").repeat(count as usize);
        stream.get_mut().write_all(questions.as_bytes()).unwrap();
        for _ in 0..count {
            let mut hear = || -> u64 {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                line.trim_end().parse().unwrap_or_else(|_| panic!("client {number}: {line:?}"))
            };
            mine += 1;
            assert_eq!(hear(), mine, "client {number}");
            let ours = hear();
            assert!(ours > last_ours, "client {number}");
            last_ours = ours;
        }
    }
    together.fetch_add(mine, Ordering::Relaxed);
}

#[test]
fn and_what_is_counted_is_counted_once() {
    let server = Server::start("tally", &["127.0.0.1:0"]);
    let (stop, together) = (AtomicBool::new(false), AtomicU64::new(0));
    let (seed, crashes) = (number("OUTLAST_SEED", 1), number("OUTLAST_CRASHES", CRASHES / 4));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (address, stop, together) = (server.address, &stop, &together);
                scope.spawn(move || count(address, number, stop, together))
            })
            .collect();
        server.crash(crashes, seed, || clients.iter().any(|client| client.is_finished()));
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
    let mut last = BufReader::new(TcpStream::connect(server.address).unwrap());
    last.get_mut().write_all(b"add all\n").unwrap();
    let mut line = String::new();
    last.read_line(&mut line).unwrap();
    assert_eq!(line, format!("{}\n", together.load(Ordering::Relaxed) + 1), "seed {seed}");
    println!("{crashes} crashes, counted up to {}, seed {seed}", line.trim_end());
}

#[test]
fn and_through_pipes() {
    let (to_server, to) = std::io::pipe().unwrap();
    let (from, from_server) = std::io::pipe().unwrap();
    let server = Server::start_between("filter", to_server.into(), from_server.into());
    let (mut to, mut from) = (File::from(OwnedFd::from(to)), File::from(OwnedFd::from(from)));
    let (seed, count) = (number("OUTLAST_SEED", 1), number("OUTLAST_CRASHES", CRASHES / 4));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut random = Random(seed);
            while !stop.load(Ordering::Relaxed) {
                let mut line = vec![b'a'; 1 + random.below(5000) as usize];
                line.fill_with(|| b'a' + random.below(26) as u8);
                let answer = answer_to(&line);
                line.push(b'\n');
                to.write_all(&line).unwrap();
                let mut heard = vec![0; answer.len()];
                from.read_exact(&mut heard).unwrap();
                assert!(heard == answer, "seed {seed}: another answer than expected");
            }
            drop(to);
            assert_eq!(from.read(&mut [0]).unwrap(), 0, "seed {seed}: more answers than questions");
        });
        let crashes = server.crash(count, seed, || client.is_finished());
        stop.store(true, Ordering::Relaxed);
        client.join().unwrap();
        println!("{crashes} crashes between two pipes, seed {seed}");
    });
}

fn crash_and_check(
    example: &str,
    arguments: &[&str],
    count: u64,
    connect: impl Fn(SocketAddr) -> TcpStream + Sync,
) {
    let server = Server::start(example, arguments);
    let (stop, heard_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (seed, count) = (number("OUTLAST_SEED", 1), number("OUTLAST_CRASHES", count));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (stream, stop, heard_bytes) = (connect(server.address), &stop, &heard_bytes);
                scope.spawn(move || client(stream, seed * 100 + number, stop, heard_bytes))
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
