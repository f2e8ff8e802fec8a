//! What a client makes of an answer that it had not read when its opening link broke, and of an end that the server may not
//! know of. The server is made by hand, so that it is known what is there. Both faces.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

use crate::common::{quick, within};
use outlast_session::proto::{
    Auth, Datagram, DatagramKind, Demand, Frame, FrameHeader, Greeted, Hello, Intent, Refusal,
    ServerHandshake, ServerStep, Welcome, refuse,
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

/// More than fits into what the handshake reads at a time, and all there before that: nothing announces the rest.
#[test]
fn what_comes_with_a_welcome_is_read_to_its_end() {
    static PLENTY: [u8; 1 << 20] = [7; 1 << 20];
    within(|| {
        fn server(listener: TcpListener) -> TcpStream {
            let mut newcomer = greet(&listener);
            let welcome = newcomer.welcome();
            newcomer.answer_and_reset(&welcome);
            let mut newcomer = greet(&listener);
            let welcome = Welcome { sent_offset: 0, ..Welcome::to_new(&newcomer.hello) };
            let welcome = Welcome { next_offset: newcomer.hello.retained_offset, ..welcome };
            let answer = [&newcomer.handshake.accept(welcome)[..], &PLENTY].concat();
            std::thread::sleep(Duration::from_millis(20));
            newcomer.stream.write_all(&answer).unwrap();
            newcomer.stream
        }
        clients(AckMode::Fixed(LinkMode::Kernel), server, &PLENTY);
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
            assert_eq!((hello.intent, hello.mode, hello.auto), (Intent::Open, LinkMode::Inband, true));
            let welcome = newcomer.welcome();
            newcomer.stream.write_all(&welcome).unwrap();
            newcomer.stream
        }
        clients(AckMode::Auto, server, b"");
    });
}

/// PROTOCOL 5.5: what is acknowledged before the Welcome is sent again all the same.
#[test]
fn an_acknowledgement_that_overtakes_the_welcome_does_not_count() {
    within(|| {
        fn server(listener: TcpListener) -> TcpStream {
            let newcomer = greet(&listener);
            let hello = &newcomer.hello;
            let ack = Datagram {
                kind: DatagramKind::Ack,
                needs_confirm: false,
                id: hello.id,
                epoch: hello.epoch,
                offset: 1,
            };
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let acked = ack.encode(None, false);
            socket.send_to(acked.as_ref(), ("127.0.0.1", hello.udp_port.unwrap())).unwrap();
            newcomer.answer_and_reset(b"");
            let mut newcomer = greet(&listener);
            let hello = &newcomer.hello;
            assert_eq!((hello.intent, hello.epoch > 1, hello.retained_offset), (Intent::Open, true, 0));
            let welcome = Welcome { udp_port: Some(1), ..Welcome::to_new(hello) };
            let welcome = newcomer.handshake.accept(welcome);
            newcomer.stream.write_all(&welcome).unwrap();
            newcomer.stream
        }
        clients(AckMode::Fixed(LinkMode::Udp), server, b"");
    });
}

/// PROTOCOL 2.6, 4.8: both streams are through, as far as the client knows, but its link was reset, and once more.
#[test]
fn a_client_whose_last_link_was_reset_makes_another_to_end_in_order() {
    fn server(listener: &TcpListener) {
        let mut newcomer = greet(listener);
        let mut answer = newcomer.welcome();
        // Everything of the client's has arrived, and this is all of the server's.
        Frame::EndAck.encode(5, &mut answer);
        answer.extend_from_slice(&FrameHeader::data(3, 5).encode());
        answer.extend_from_slice(b"bye");
        Frame::End { end_offset: 3 }.encode(5, &mut answer);
        std::thread::sleep(Duration::from_millis(100));
        newcomer.answer_and_reset(&answer);
        let mut client_end = Vec::new();
        Frame::End { end_offset: 5 }.encode(3, &mut client_end);
        let mut end_ack = Vec::new();
        Frame::EndAck.encode(3, &mut end_ack);
        for last in [false, true] {
            let mut newcomer = greet(listener);
            let hello = &newcomer.hello;
            assert_eq!((hello.intent, hello.next_offset, hello.end_offset), (Intent::Resume, 3, Some(5)));
            let welcome = Welcome {
                next_offset: 5,
                retained_offset: 3,
                sent_offset: 3,
                end_offset: Some(3),
                ..Welcome::to_new(hello)
            };
            let mut answer = newcomer.handshake.accept(welcome);
            Frame::End { end_offset: 3 }.encode(5, &mut answer);
            newcomer.stream.write_all(&answer).unwrap();
            let mut said = vec![0; client_end.len() + end_ack.len()];
            newcomer.stream.read_exact(&mut said).unwrap();
            assert!(said.windows(end_ack.len()).any(|frame| frame == end_ack), "{said:?}");
            let mut answer = Vec::new();
            if last {
                // PROTOCOL 4.8: all that the client has waited for.
                Frame::Goodbye.encode(5, &mut answer);
                newcomer.stream.write_all(&answer).unwrap();
                assert_eq!(
                    newcomer.stream.read(&mut [0; 16]).unwrap(),
                    0,
                    "the client closes its link in order"
                );
            } else {
                // Both know everything, but the client cannot know that the server does.
                Frame::EndAck.encode(5, &mut answer);
                newcomer.answer_and_reset(&answer);
            }
        }
    }
    within(|| {
        let ack = AckMode::Fixed(LinkMode::Inband);
        let config = Arc::new(Config { ack, watch_network: false, ..quick() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let targets = Targets::from(listener.local_addr().unwrap());
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| server(&listener));
            let mut session = blocking::Session::connect_with(&targets, &config).unwrap();
            session.write_all(b"hello").unwrap();
            session.shutdown(std::net::Shutdown::Write).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            let mut got = Vec::new();
            session.read_to_end(&mut got).unwrap();
            assert_eq!(got, b"bye");
            drop(session);
            serving.join().unwrap();

            let serving = scope.spawn(|| server(&listener));
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                let mut session = async_face::Session::connect_with(&targets, &config).await.unwrap();
                session.write_all(b"hello").await.unwrap();
                session.shutdown().await.unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
                let mut got = Vec::new();
                session.read_to_end(&mut got).await.unwrap();
                assert_eq!(got, b"bye");
            });
            serving.join().unwrap();
        });
    });
}
