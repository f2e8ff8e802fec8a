//! A program's own handlers of faults are left to it: what it goes on behind is no crash, and what it dies of is one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{PATIENCE, Server};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

#[test]
fn a_fault_that_the_program_deals_with_is_no_crash() {
    let server = Server::start("barrier", &["127.0.0.1:0"]);
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = BufReader::new(stream);
    let mut ask = |question: &str| {
        client.get_mut().write_all(format!("{question}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        answer
    };
    for faults in 1..=20 {
        assert_eq!(ask("a"), format!("1 {faults}\n"));
    }
    // Nobody has gone on for it meanwhile, and somebody does now.
    assert_eq!(ask("!abort"), "2 1\n");
    assert_eq!(ask("a"), "2 2\n");
}
