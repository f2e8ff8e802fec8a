//! Every kind of crash, with every kind of client: every byte is the right one. `OUTLAST_CRASHES=n` says how many crashes
//! each combination has.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, reason = "a test")]

use crate::common::family::{acknowledge, send};
use crate::common::{PATIENCE, Server, number};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CRASHES: u64 = 10;
const SIGNALS: [i32; 4] = [libc::SIGKILL, libc::SIGABRT, libc::SIGILL, libc::SIGBUS];

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Long questions, short answers.
    Upload,
    /// Answers that are twenty times as long, read as fast as possible.
    Download,
    /// As much, a kilobyte at a time: the server cannot write on.
    SlowReader,
    /// Byte by byte.
    SlowWriter,
    /// Says that there is nothing more to come before it has heard anything.
    HalfClosed,
    /// Goes away in the middle of an answer.
    Resets,
}

const MANNERS: [Manner; 6] = [
    Manner::Upload,
    Manner::Download,
    Manner::SlowReader,
    Manner::SlowWriter,
    Manner::HalfClosed,
    Manner::Resets,
];

/// As `lines` has it: a line of 20 n - 1 bytes is answered 20 times, one of 20 n once.
fn answer_to(line: &[u8]) -> Vec<u8> {
    let backwards: Vec<u8> = line.iter().rev().copied().collect();
    [backwards.repeat(line.len() % 20 + 1), b"\n".to_vec()].concat()
}

fn line(round: u64, length: usize) -> Vec<u8> {
    let mut line = format!("{round}:").into_bytes();
    line.resize(length, b'a' + u8::try_from(round % 26).unwrap());
    line
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn hear(stream: &mut TcpStream, answer: &[u8], what: &str) {
    let mut heard = vec![0; answer.len()];
    acknowledge(stream);
    stream.read_exact(&mut heard).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(heard == answer, "{what}: another answer");
}

/// One conversation.
fn converse(server: &Server, stream: &mut TcpStream, manner: Manner, round: u64) {
    let what = format!("{manner:?}, round {round}");
    let length = match manner {
        Manner::Upload => 200_000,
        Manner::Download | Manner::Resets => 9_999,
        Manner::SlowReader => 39_999,
        Manner::SlowWriter => 60,
        Manner::HalfClosed => 3_019,
    };
    let question = line(round, length);
    let answer = answer_to(&question);
    let said = [question, b"\n".to_vec()].concat();
    match manner {
        Manner::Upload | Manner::Download => {
            stream.write_all(&said).unwrap();
            hear(stream, &answer, &what);
        }
        Manner::SlowReader => {
            stream.write_all(&said).unwrap();
            for piece in answer.chunks(1024) {
                hear(stream, piece, &what);
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Manner::SlowWriter => {
            for byte in said.chunks(1) {
                stream.write_all(byte).unwrap();
                std::thread::sleep(Duration::from_micros(300));
            }
            hear(stream, &answer, &what);
        }
        Manner::HalfClosed => {
            *stream = connect(server);
            stream.write_all(&[&said[..], &said[..]].concat()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            hear(stream, &answer, &what);
            hear(stream, &answer, &what);
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{what}: more than two answers");
        }
        Manner::Resets => {
            *stream = connect(server);
            stream.write_all(&said.repeat(10)).unwrap();
            // What is unread at a close makes that a reset.
            hear(stream, answer.get(..1000).unwrap(), &what);
        }
    }
}

/// Clients of every manner, and idle ones, while it crashes.
fn crash(example: &str, arguments: &[&str], idle: usize) {
    let server = Server::start(example, arguments);
    let crashes = number("OUTLAST_CRASHES", CRASHES) * MANNERS.len() as u64;
    // A thread for each has to be started, before anybody gets any further.
    let pause = Duration::from_millis(5) + Duration::from_micros(100) * u32::try_from(idle).unwrap();
    let crashes = if idle < 1000 { crashes } else { crashes / 4 };
    let mut waiting: Vec<TcpStream> = (0..idle).map(|_| connect(&server)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = MANNERS
            .into_iter()
            .map(|manner| {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || {
                    let mut stream = connect(server);
                    for round in 0.. {
                        converse(server, &mut stream, manner, round);
                        if stop.load(Ordering::Relaxed) {
                            return round + 1;
                        }
                    }
                    0
                })
            })
            .collect();
        for (_, signal) in (0..crashes).zip(SIGNALS.into_iter().cycle()) {
            // The next one, when it has said that it serves.
            let serving = server.take_serving(|| clients.iter().any(|client| client.is_finished()));
            let Some(serving) = serving else { break };
            send(serving, signal);
            std::thread::sleep(pause);
        }
        stop.store(true, Ordering::Relaxed);
        let rounds: Vec<u64> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        println!("{example} {arguments:?}, {idle} idle: {crashes} crashes, rounds {rounds:?}");
    });
    for (number, stream) in waiting.iter_mut().enumerate() {
        let question = line(number as u64, 60);
        stream.write_all(&[&question[..], b"\n"].concat()).unwrap();
        hear(stream, &answer_to(&question), "idle");
    }
}

#[test]
fn one_client_of_each_kind() {
    crash("lines", &["127.0.0.1:0"], 0);
}

#[test]
fn and_a_hundred_idle_ones_over_ipv6() {
    crash("lines", &["[::1]:0"], 100);
}

#[test]
fn and_a_thousand_idle_ones() {
    crash("lines", &["127.0.0.1:0"], 1000);
}

/// Without a thread for each: edges that were there before the crash come again, and what is held is not waited for.
#[test]
fn of_a_server_with_one_thread_and_edges() {
    crash("event_loop", &["127.0.0.1:0", "edge"], 100);
}

#[test]
fn of_a_server_with_one_thread_and_levels() {
    crash("event_loop", &["127.0.0.1:0", "level"], 100);
}
