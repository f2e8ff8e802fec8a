//! Nothing is left of thousands of generations: no descriptor, no process, no memory. `OUTLAST_GENERATIONS=n` says how many.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, reason = "a test")]

use crate::common::family::{acknowledge, descriptors, memory_kb, send, serving_and_standing_by};
use crate::common::{PATIENCE, Server, number};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

const GENERATIONS: u64 = 2_500;
/// Until everything has grown that does once.
const FIRST_GENERATIONS: u64 = 200;
const IDLE: usize = 50;
/// Of pages that are touched by chance.
const SLACK_KB: u64 = 128;

#[derive(Debug)]
struct Held {
    descriptors: usize,
    /// Memory of its own. How much of files is mapped is by chance: the kernel maps what is in its cache around a page.
    zygote_kb: u64,
    /// The same of a new generation, and what it shares with others.
    serving_kb: u64,
    shared_kb: u64,
}

fn own_kb(pid: u32) -> u64 {
    memory_kb(pid, "status", "RssAnon") + memory_kb(pid, "status", "RssShmem")
}

fn held(server: &Server) -> Held {
    // The dead are buried.
    let (serving, _) = serving_and_standing_by(server);
    Held {
        descriptors: descriptors(server.pid()),
        zygote_kb: own_kb(server.pid()),
        serving_kb: own_kb(serving),
        shared_kb: memory_kb(serving, "status", "RssShmem"),
    }
}

fn ask(client: &mut BufReader<TcpStream>, words: &str) {
    client.get_mut().write_all(format!("{words}\n").as_bytes()).unwrap();
    acknowledge(client.get_ref());
    let mut answer = String::new();
    client.read_line(&mut answer).unwrap();
    let backwards: String = words.chars().rev().collect();
    assert_eq!(answer, format!("{}\n", backwards.repeat(words.len() % 20 + 1)));
}

fn connect(server: &Server) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

fn crash(server: &Server, client: &mut BufReader<TcpStream>, generations: u64) {
    for generation in 0..generations {
        let (serving, _) = serving_and_standing_by(server);
        send(serving, if generation % 2 == 0 { libc::SIGABRT } else { libc::SIGKILL });
        ask(client, &format!("crash {generation}"));
        // The policy of the example: 20 within 20 ms.
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn nothing_is_left_of_thousands_of_generations() {
    let server = Server::start("lines", &["127.0.0.1:0"]);
    let mut idle: Vec<_> = (0..IDLE).map(|_| connect(&server)).collect();
    let mut client = connect(&server);
    ask(&mut client, "first");
    crash(&server, &mut client, FIRST_GENERATIONS);
    let before = held(&server);
    let generations = number("OUTLAST_GENERATIONS", GENERATIONS);
    crash(&server, &mut client, generations);
    let after = held(&server);
    println!("{generations} generations: {before:?}, then {after:?}");
    assert_eq!(after.descriptors, before.descriptors);
    let pairs = [
        (before.zygote_kb, after.zygote_kb),
        (before.serving_kb, after.serving_kb),
        (before.shared_kb, after.shared_kb),
    ];
    assert!(pairs.iter().all(|(before, after)| *after <= before + SLACK_KB), "{before:?}, then {after:?}");
    for (number, client) in idle.iter_mut().enumerate() {
        ask(client, &format!("idle {number}"));
    }
}
