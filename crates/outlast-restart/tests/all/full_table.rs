//! Servers whose table of descriptors is full: whoever connects waits.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::family::{descriptors, eventually};
use crate::common::{PATIENCE, Server};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;

const DESCRIPTORS: u32 = 40;
/// More than there is room for.
const CLIENTS: usize = 60;

fn who_finds_no_descriptor_waits_for_one(example: &str) {
    let server = Server::start_with_descriptors(DESCRIPTORS, example, &["127.0.0.1:0"]);
    let mut clients: VecDeque<_> = (0..CLIENTS)
        .map(|number| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            writeln!(stream, "{number}").unwrap();
            BufReader::new(stream)
        })
        .collect();
    let serving = server.take_serving(|| false);
    eventually("the table is full", || descriptors(server.pid()) >= DESCRIPTORS as usize);
    let mut number = 0;
    while let Some(mut client) = clients.pop_front() {
        let mut answer = String::new();
        let heard = client.read_line(&mut answer);
        assert!(answer.ends_with('\n'), "{example}: client {number} has heard {answer:?} and then {heard:?}");
        if let Some(last) = clients.back().filter(|_| number == 0) {
            last.get_ref().set_nonblocking(true).unwrap();
            let error = last.get_ref().peek(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "there is no room for it yet");
            last.get_ref().set_nonblocking(false).unwrap();
        }
        // Its end makes room for another one.
        number += 1;
    }
    assert!(serving.is_some() && server.serving() == 0, "{example}: it has ended");
}

#[test]
fn of_threads() {
    who_finds_no_descriptor_waits_for_one("lines");
}

#[test]
#[cfg(feature = "tokio")]
fn of_tasks() {
    who_finds_no_descriptor_waits_for_one("async_lines");
}
