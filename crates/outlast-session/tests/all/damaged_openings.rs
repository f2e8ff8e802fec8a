//! An opening under TLS of which one byte arrives damaged: it is tried again, as after a reset. What a certificate or its
//! absence decides is decided by the first attempt, and what no attempt can agree on has its own message.

use crate::common::{Case, Protection, certificates, quick, within};
use outlast_session::{AckMode, Config, Error, Security, Targets, TlsConfig, blocking, tokio as async_face};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Which byte, counted from the connection's first one.
#[derive(Clone, Copy, Debug)]
enum Damage {
    ToServer(usize),
    ToClient(usize),
}

/// A relay that changes one byte of each of its first connections.
struct Relay {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Relay {
    fn new(server: SocketAddr, damaged: usize, damage: Damage) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let damage = (count.fetch_add(1, Ordering::SeqCst) < damaged).then_some(damage);
                // The test may be over.
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(server)) else { return };
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (to_server, to_client) = match damage {
                    Some(Damage::ToServer(at)) => (Some(at), None),
                    Some(Damage::ToClient(at)) => (None, Some(at)),
                    None => (None, None),
                };
                std::thread::spawn(move || carry(near, far, to_server));
                std::thread::spawn(move || carry(far_too, near_too, to_client));
            }
        });
        Self { address, accepted }
    }

    fn targets(&self) -> Targets {
        Targets::from(self.address)
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, damaged: Option<usize>) {
    let mut passed = 0;
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Some(at) = damaged.and_then(|at| at.checked_sub(passed))
            && let Some(byte) = buffer[..count].get_mut(at)
        {
            *byte ^= 0x14;
        }
        passed += count;
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn tls() -> Config {
    let case = Case { ack: AckMode::Auto, protection: Protection::Tls };
    Config { watch_network: false, ..case.config() }
}

/// A server of the version before, whose certificate comes in the clear.
fn old_tls() -> Config {
    let security = Security::Tls(TlsConfig {
        client: Some(certificates().client(None)),
        server_name: Some("localhost".into()),
        server: Some(certificates().old_server()),
    });
    Config { watch_network: false, security, ..quick() }
}

fn echo_with(client: &blocking::Session, listener: &blocking::Listener, what: &str) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = listener.accept().unwrap();
            let mut got = [0; 4];
            (&server).read_exact(&mut got).unwrap();
            (&server).write_all(&got).unwrap();
            server.finish().unwrap();
        });
        let mut client = client;
        client.write_all(b"ping").unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(got, b"ping", "{what}");
        client.finish().unwrap();
    });
}

/// As a program does that has patience: only what it is no use to try again ends it. A damaged length has both ends wait
/// for bytes that never come, until the handshake has taken too long.
fn open_patiently(relay: &Relay, config: &Arc<Config>, what: &str) -> blocking::Session {
    loop {
        match blocking::Session::connect_with(&relay.targets(), config) {
            Ok(session) => return session,
            Err(Error::Connect { .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn every_byte_of_a_handshake_may_be_damaged_once() {
    within(|| {
        for (name, config) in [("TLS 1.3", tls()), ("TLS 1.2", old_tls())] {
            let config = Arc::new(Config { handshake_timeout: Duration::from_millis(400), ..config });
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
            // The heads of the first records byte by byte, the rest in strides: hellos, certificate, Finished, Welcome.
            let places = (0..6).chain((6..1_000).step_by(61));
            let damages = places.flat_map(|at| [Damage::ToServer(at), Damage::ToClient(at)]);
            for damage in damages {
                let what = format!("{name}, {damage:?}");
                let relay = Relay::new(listener.local_addr(), 1, damage);
                let client = open_patiently(&relay, &config, &what);
                echo_with(&client, &listener, &what);
            }
        }
    });
}

/// In the server's certificate, and in what the client proves that it has the same keys with.
const UNMISTAKABLE: [Damage; 2] = [Damage::ToClient(500), Damage::ToServer(300)];

#[test]
fn one_call_of_a_thread_opens_although_connections_are_damaged() {
    within(|| {
        let config = Arc::new(tls());
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        for damage in UNMISTAKABLE {
            let relay = Relay::new(listener.local_addr(), 4, damage);
            let client = blocking::Session::connect_with(&relay.targets(), &config)
                .unwrap_or_else(|error| panic!("{damage:?}: {error}"));
            echo_with(&client, &listener, &format!("{damage:?}"));
            assert!(relay.accepted() >= 5, "{damage:?}: nothing was damaged");
        }
    });
}

#[test]
fn one_call_of_a_task_opens_although_connections_are_damaged() {
    within(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let config = Arc::new(tls());
            let listener = async_face::Listener::bind_with("127.0.0.1:0", &config).await.unwrap();
            for damage in UNMISTAKABLE {
                let relay = Relay::new(listener.local_addr(), 4, damage);
                let client = async_face::Session::connect_with(&relay.targets(), &config)
                    .await
                    .unwrap_or_else(|error| panic!("{damage:?}: {error}"));
                client.established().await.unwrap_or_else(|error| panic!("{damage:?}: {error}"));
                assert!(relay.accepted() >= 5, "{damage:?}: nothing was damaged");
            }
        });
    });
}

#[test]
fn a_path_that_damages_every_handshake_is_named() {
    within(|| {
        let config = Arc::new(tls());
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let relay = Relay::new(listener.local_addr(), usize::MAX, Damage::ToClient(500));
        let error = blocking::Session::connect_with(&relay.targets(), &config).unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        assert!(error.to_string().contains("bytes were changed on the way"), "{error}");
        assert!(relay.accepted() > 1, "it was tried once only");
    });
}

#[test]
fn a_version_of_tls_that_one_side_lacks_is_an_error_of_its_own() {
    within(|| {
        let server = Arc::new(old_tls());
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &server).unwrap();
        let relay = Relay::new(listener.local_addr(), 0, Damage::ToServer(0));
        let security = Security::Tls(TlsConfig {
            client: Some(certificates().new_client()),
            server_name: Some("localhost".into()),
            server: None,
        });
        let config = Arc::new(Config { security, ..tls() });
        let error = blocking::Session::connect_with(&relay.targets(), &config).unwrap_err();
        assert!(matches!(error, Error::Tls { .. }), "{error:?}");
        assert!(!error.to_string().contains("certificate"), "{error}");
        assert!((2..=4).contains(&relay.accepted()), "tried {} times", relay.accepted());
    });
}

#[test]
fn a_certificate_that_is_not_trusted_is_refused_by_the_first_attempt() {
    within(|| {
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &Arc::new(tls())).unwrap();
        let relay = Relay::new(listener.local_addr(), 0, Damage::ToServer(0));
        let security = Security::Tls(TlsConfig {
            client: Some(certificates().misled_client()),
            server_name: Some("localhost".into()),
            server: None,
        });
        let config = Arc::new(Config { security, ..tls() });
        let error = blocking::Session::connect_with(&relay.targets(), &config).unwrap_err();
        assert!(matches!(error, Error::Untrusted { .. }), "{error:?}");
        assert_eq!(relay.accepted(), 1);
    });
}
