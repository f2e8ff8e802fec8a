//! A server's session is taken out of one listener and gone on with by another, as bytes. Both faces, every mode.
// A failed expectation is the message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)]

use crate::common::{quick, within};
use outlast_session::{AckMode, Config, Detached, Error, LinkMode, Targets, blocking, tokio as async_face};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MODES: [LinkMode; 4] = [LinkMode::Kernel, LinkMode::Window, LinkMode::Udp, LinkMode::Inband];

fn config(mode: LinkMode) -> Arc<Config> {
    Arc::new(Config { ack: AckMode::Fixed(mode), watch_network: false, ..quick() })
}

/// As it goes from process to process.
fn packed(detached: &Detached) -> Detached {
    let bytes = detached.encode();
    assert_eq!(Detached::decode(&bytes[..bytes.len() - 1]).ok(), None);
    Detached::decode(&bytes).unwrap()
}

/// What the client does: everything it says is answered, whatever happens to its server.
fn client(targets: &Targets, config: &Arc<Config>) {
    let mut session = blocking::Session::connect_with(targets, config).unwrap();
    session.write_all(b"first, and unread").unwrap();
    let mut answer = [0; 5];
    session.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"early");
    session.write_all(b", and later").unwrap();
    session.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    session.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b" and late");
}

#[test]
fn threads_go_on_with_a_session() {
    for mode in MODES {
        within(move || {
            let config = config(mode);
            let address = own_address();
            let socket = TcpListener::bind(address).unwrap();
            let (targets, its_config) = (Targets::from(address), config.clone());
            let connect = move || std::thread::spawn(move || client(&targets, &its_config));
            // The client may be there before the listener is: the kernel has accepted it, without the proof of a
            // direct path.
            let (listener, client) = if mode.needs_direct_path() {
                (blocking::Listener::from_std(socket, &config).unwrap(), connect())
            } else {
                let client = connect();
                std::thread::sleep(Duration::from_millis(50));
                (blocking::Listener::from_std(socket, &config).unwrap(), client)
            };
            let mut session = listener.accept().unwrap();
            let id = session.id();
            let mut first = [0; 5];
            session.read_exact(&mut first).unwrap();
            session.write_all(b"early").unwrap();
            let clone = session.try_clone().unwrap();
            let detached = packed(&session.detach().unwrap());
            assert_eq!(detached.id(), id);
            assert!(matches!(clone.detach(), Err(Error::Closed { .. })));
            drop(listener);
            // The client may be there before the listener is: turned away for lack of a proof, it comes again.
            let socket = again(address);
            socket.listen(128).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let socket = socket.into();
            let (listener, mut sessions) =
                blocking::Listener::from_std_with(socket, &config, vec![detached.clone(), detached]).unwrap();
            assert!(matches!(sessions.pop().unwrap(), Err(Error::Config(_))), "the same session twice");
            let mut session = sessions.pop().unwrap().unwrap();
            session.write_all(b" and late").unwrap();
            let mut rest = String::new();
            session.read_to_string(&mut rest).unwrap();
            assert_eq!((&first[..], rest.as_str()), (&b"first"[..], ", and unread, and later"));
            session.finish().unwrap();
            client.join().unwrap();
            assert!(session.info().outages >= 1);
            drop(listener);
        });
    }
}

#[test]
fn tasks_go_on_with_a_session() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for mode in MODES {
        within(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let config = config(mode);
                let listener = async_face::Listener::bind_with(own_address(), &config).await.unwrap();
                let address = listener.local_addr();
                let (targets, its_config) = (Targets::from(address), config.clone());
                let client = std::thread::spawn(move || client(&targets, &its_config));
                let mut session = listener.accept().await.unwrap();
                let mut first = [0; 5];
                session.read_exact(&mut first).await.unwrap();
                session.write_all(b"early").await.unwrap();
                listener.stop_listening();
                let detached = packed(&session.detach().unwrap());
                drop(listener);
                tokio::task::yield_now().await;
                let (listener, mut sessions) =
                    async_face::Listener::from_std_with(again(address).into(), &config, vec![detached])
                        .unwrap();
                let mut session = sessions.pop().unwrap().unwrap();
                session.write_all(b" and late").await.unwrap();
                let mut rest = String::new();
                session.read_to_string(&mut rest).await.unwrap();
                assert_eq!((&first[..], rest.as_str()), (&b"first"[..], ", and unread, and later"));
                session.finish().await.unwrap();
                client.join().unwrap();
                drop(listener);
            });
        });
    }
}

/// Neither the age of a session nor its pauses begin again in the next process.
#[test]
fn times_go_on_in_the_next_process() {
    within(|| {
        // By the kernel's coarse clock.
        const TICK_MS: u64 = 10;
        let config = config(LinkMode::Inband);
        let listener = blocking::Listener::bind_with(own_address(), &config).unwrap();
        let address = listener.local_addr();
        let opened = Instant::now();
        let mut client = blocking::Session::connect_with(&Targets::from(address), &config).unwrap();
        client.write_all(b"x").unwrap();
        let mut session = listener.accept().unwrap();
        session.read_exact(&mut [0]).unwrap();
        let accepted_age = session.info().age_ms;
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        let lost = Instant::now();
        let mut detached = packed(&session.detach().unwrap());
        drop(listener);
        drop(client);
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(50));
            let socket = again(address);
            let (listener, mut sessions) =
                blocking::Listener::from_std_with(socket.into(), &config, vec![detached]).unwrap();
            let session = sessions.pop().unwrap().unwrap();
            let (floor, since_lost) = (began.elapsed(), lost.elapsed());
            let info = session.info();
            assert!(info.age_ms + TICK_MS >= accepted_age + floor.as_millis() as u64, "{info:?}");
            assert!(info.age_ms <= opened.elapsed().as_millis() as u64 + TICK_MS, "{info:?}");
            assert!(info.outages >= 1, "{info:?}");
            assert!(info.pause_longest_ms + TICK_MS >= since_lost.as_millis() as u64, "{info:?}");
            assert!(info.pause_total_ms >= info.pause_longest_ms, "{info:?}");
            detached = packed(&session.detach().unwrap());
            drop(listener);
        }
    });
}

#[test]
fn a_client_cannot_be_detached() {
    let config = config(LinkMode::Inband);
    let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
    let session = blocking::Session::connect_with(&Targets::from(listener.local_addr()), &config).unwrap();
    assert!(matches!(session.detach(), Err(Error::Config(_))));
}

/// Nobody else has its port while nobody listens there.
fn own_address() -> std::net::SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, outlast_lab::free_port().unwrap()).into()
}

/// The port, as soon as the listener before has closed it. Nobody listens there yet.
fn again(address: std::net::SocketAddr) -> socket2::Socket {
    for _ in 0..1000 {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        match socket.bind(&address.into()) {
            Ok(()) => return socket,
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    panic!("the port {address} is not closed");
}
