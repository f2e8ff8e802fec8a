//! What a client makes of an answer that it had not read when its opening link broke. The server is made by hand, so that
//! the answer is known to be there. Both faces.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

#[path = "conformance/common.rs"]
mod common;

use common::{quick, within};
use outlast_session::proto::{
    Auth, Demand, Greeted, Hello, Intent, Refusal, ServerHandshake, ServerStep, Welcome, refuse,
};
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking, tokio as async_face};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A connection whose Hello was read.
struct Newcomer {
    stream: TcpStream,
    handshake: ServerHandshake,
    hello: Hello,
}

fn greet(listener: &TcpListener) -> Newcomer {
    let (mut stream, _) = listener.accept().unwrap();
    let mut handshake = ServerHandshake::new(Demand::Open, [0; 32]);
    let (mut input, mut buffer) = (Vec::new(), [0; 512]);
    loop {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the client has left");
        input.extend_from_slice(&buffer[..count]);
        match handshake.feed(&input) {
            ServerStep::NeedMore => {}
            ServerStep::Greeted(greeted) => {
                let Greeted { hello, auth, .. } = *greeted;
                assert_eq!(auth, Auth::Proven);
                return Newcomer { stream, handshake, hello };
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Newcomer {
    /// Answers, waits until the client's kernel has it all, and resets the connection.
    fn answer_and_reset(mut self, answer: &[u8]) {
        self.stream.write_all(answer).unwrap();
        // Over loopback what was sent is received when `write` returns, or a moment later.
        std::thread::sleep(Duration::from_millis(20));
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    fn welcome(&mut self) -> Vec<u8> {
        self.handshake.accept(Welcome::to_new(&self.hello))
    }
}

/// The clients of both faces, which write and do not read until they have been reset.
fn clients(ack: AckMode, server: fn(TcpListener) -> TcpStream, client_reads: &'static [u8]) {
    let config = Arc::new(Config { ack, watch_network: false, ..quick() });
    let serve = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let targets = Targets::from(listener.local_addr().unwrap());
        (targets, std::thread::spawn(move || server(listener)))
    };
    let (targets, server_thread) = serve();
    let mut session = blocking::Session::connect_with(&targets, &config).unwrap();
    let mut epoch = session.info().epoch;
    while epoch < 2 {
        session.write_all(b"w").unwrap();
        session.flush().unwrap();
        epoch = session.info().epoch;
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut got = vec![0; client_reads.len()];
    session.read_exact(&mut got).unwrap();
    assert_eq!(got, client_reads);
    // The link lives as long as the server's end of it.
    let link = server_thread.join().unwrap();
    session.kill();
    drop(link);

    let (targets, server_thread) = serve();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut session = async_face::Session::connect_with(&targets, &config).await.unwrap();
        let mut epoch = session.info().epoch;
        while epoch < 2 {
            session.write_all(b"w").await.unwrap();
            session.flush().await.unwrap();
            epoch = session.info().epoch;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut got = vec![0; client_reads.len()];
        session.read_exact(&mut got).await.unwrap();
        assert_eq!(got, client_reads);
        session.kill();
    });
    drop(server_thread.join().unwrap());
}

/// PROTOCOL 3.5: the server has taken "seen" for delivered, as the client's kernel acknowledged it.
#[test]
fn an_unread_welcome_counts_and_so_does_what_follows_it() {
    within(|| {
        fn server(listener: TcpListener) -> TcpStream {
            let mut newcomer = greet(&listener);
            assert_eq!((newcomer.hello.intent, newcomer.hello.mode), (Intent::Open, LinkMode::Kernel));
            let answer = [&newcomer.welcome()[..], b"seen"].concat();
            newcomer.answer_and_reset(&answer);
            let mut newcomer = greet(&listener);
            assert_eq!((newcomer.hello.intent, newcomer.hello.next_offset), (Intent::Resume, 4));
            let welcome = Welcome {
                next_offset: newcomer.hello.retained_offset,
                retained_offset: 4,
                sent_offset: 4,
                ..Welcome::to_new(&newcomer.hello)
            };
            let answer = [&newcomer.handshake.accept(welcome)[..], b", and more"].concat();
            newcomer.stream.write_all(&answer).unwrap();
            newcomer.stream
        }
        clients(AckMode::Fixed(LinkMode::Kernel), server, b"seen, and more");
    });
}

/// The mode of the next link is chosen when the answer on the last one is known, not before.
#[test]
fn an_unread_refusal_changes_the_mode_of_the_next_link() {
    within(|| {
        fn server(listener: TcpListener) -> TcpStream {
            let newcomer = greet(&listener);
            assert!(newcomer.hello.auto && newcomer.hello.mode == LinkMode::Kernel);
            newcomer.answer_and_reset(&refuse(Refusal::NotDirect));
            let mut newcomer = greet(&listener);
            let hello = &newcomer.hello;
            assert_eq!((hello.intent, hello.mode, hello.auto), (Intent::Open, LinkMode::Inband, false));
            let welcome = newcomer.welcome();
            newcomer.stream.write_all(&welcome).unwrap();
            newcomer.stream
        }
        clients(AckMode::Auto, server, b"");
    });
}
