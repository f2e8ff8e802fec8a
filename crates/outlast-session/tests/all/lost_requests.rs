//! A resume whose request is lost, again and again, after the connection was made: so it is with a server whose queue of new
//! connections is full. The next connection does not wait until the first one is given up. Both faces, every security.
// A failed expectation is the message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Case, Protection, within};
use outlast_session::{AckMode, Config, LinkMode, Targets, blocking, tokio as async_face};
use socket2::{Domain, SockFilter, Socket, Type};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

/// Nobody waits for it in a test.
const HOUR: Duration = Duration::from_secs(3600);

/// The longest head of a TCP packet.
const HEAD_BYTES_MAX: u32 = 60;

/// A program for the kernel: packets with more than a head are lost (linux/filter.h: load the length, jump if greater, return).
const LOSES_DATA: [SockFilter; 4] = [
    SockFilter::new(0x80, 0, 0, 0),
    SockFilter::new(0x25, 0, 1, HEAD_BYTES_MAX),
    SockFilter::new(0x06, 0, 0, 0),
    SockFilter::new(0x06, 0, 0, u32::MAX),
];

/// A relay whose first connection breaks when told, and whose second one is made and never receives anything.
struct Relay {
    address: SocketAddr,
    breaks: mpsc::Sender<()>,
    /// Told when the first connection is broken, and when the third one is there.
    told: mpsc::Receiver<()>,
}

impl Relay {
    fn to(server: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(16).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let ((breaks, breaking), (tell, told)) = (mpsc::channel(), mpsc::channel());
        std::thread::spawn(move || {
            let accept = || TcpStream::from(socket.accept().unwrap().0);
            let first = carry(accept(), server);
            breaking.recv().unwrap();
            // Connections inherit it.
            socket.attach_filter(&LOSES_DATA).unwrap();
            for stream in first {
                reset(&stream);
            }
            tell.send(()).unwrap();
            let second = accept();
            socket.detach_filter().unwrap();
            let third = carry(accept(), server);
            tell.send(()).unwrap();
            // As long as the test lasts.
            let _ = breaking.recv();
            drop((second, third));
        });
        Self { address, breaks, told }
    }
}

fn carry(near: TcpStream, server: SocketAddr) -> [TcpStream; 2] {
    let far = TcpStream::connect(server).unwrap();
    let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
    for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    ends
}

fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    let _ = stream.shutdown(Shutdown::Both);
}

fn config(protection: Protection) -> std::sync::Arc<Config> {
    // One connection for each link: there is a relay in between.
    let case = Case { ack: AckMode::Fixed(LinkMode::Inband), protection };
    Config { watch_network: false, handshake_timeout: HOUR, detect_timeout: HOUR, ..case.config() }.into()
}

const PROTECTIONS: [Protection; 3] = [Protection::Open, Protection::Psk, Protection::Tls];

#[test]
fn threads_make_another_connection() {
    within(|| {
        for protection in PROTECTIONS {
            let config = config(protection);
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
            let relay = Relay::to(listener.local_addr());
            let mut client = blocking::Session::connect_with(&Targets::from(relay.address), &config).unwrap();
            client.established().unwrap();
            client.write_all(b"1").unwrap();
            let mut server = listener.accept().unwrap();
            let echo = std::thread::spawn(move || {
                let mut byte = [0];
                while server.read_exact(&mut byte).is_ok() {
                    server.write_all(&byte).unwrap();
                }
            });
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            relay.breaks.send(()).unwrap();
            relay.told.recv().unwrap();
            client.write_all(b"2").unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"2");
            relay.told.recv().unwrap();
            client.finish().unwrap();
            echo.join().unwrap();
        }
    });
}

#[test]
fn tasks_make_another_connection() {
    within(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            for protection in PROTECTIONS {
                let config = config(protection);
                let listener = async_face::Listener::bind_with("127.0.0.1:0", &config).await.unwrap();
                let relay = Relay::to(listener.local_addr());
                let mut client =
                    async_face::Session::connect_with(&Targets::from(relay.address), &config).await.unwrap();
                client.established().await.unwrap();
                client.write_all(b"1").await.unwrap();
                let mut server = listener.accept().await.unwrap();
                let echo = tokio::spawn(async move {
                    let mut byte = [0];
                    while server.read_exact(&mut byte).await.is_ok() {
                        server.write_all(&byte).await.unwrap();
                    }
                });
                let mut byte = [0];
                client.read_exact(&mut byte).await.unwrap();
                relay.breaks.send(()).unwrap();
                relay.told.recv().unwrap();
                client.write_all(b"2").await.unwrap();
                client.read_exact(&mut byte).await.unwrap();
                assert_eq!(&byte, b"2");
                relay.told.recv().unwrap();
                client.finish().await.unwrap();
                echo.await.unwrap();
            }
        });
    });
}
