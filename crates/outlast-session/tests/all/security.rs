//! Who may open a session: keys and certificates, right and wrong. Both faces.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

use crate::common::{Case, Protection, certificates, psk, quick, within};
use outlast_session::proto::Psk;
use outlast_session::{
    AckMode, Config, Error, LinkMode, PeerFilter, Refusal, Security, Targets, TlsConfig, blocking,
    tokio as async_face,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

fn config(security: Security) -> Arc<Config> {
    Arc::new(Config { security, ..quick() })
}

fn tls(client: Arc<rustls::ClientConfig>, name: &str, wants_client_certificate: bool) -> Arc<Config> {
    config(Security::Tls(TlsConfig {
        client: Some(client),
        server_name: Some(name.to_owned()),
        server: Some(certificates().server(wants_client_certificate)),
    }))
}

fn count(refusals: &[(&'static str, u64)], name: &str) -> u64 {
    refusals.iter().find(|(reason, _)| *reason == name).map_or(0, |(_, count)| *count)
}

/// Opens as a blocking client and waits for the welcome.
fn open(targets: &Targets, config: &Arc<Config>) -> Result<blocking::Session, Error> {
    let session = blocking::Session::connect_with(targets, config)?;
    session.established()?;
    Ok(session)
}

/// Has both faces try what must not work, against listeners of both faces; `name` is what is counted.
fn refused(server: &Arc<Config>, client: &Arc<Config>, name: &'static str, check: fn(&Error) -> bool) {
    let listener = blocking::Listener::bind_with("127.0.0.1:0", server).unwrap();
    let targets = Targets::from(listener.local_addr());
    let error = open(&targets, client).unwrap_err();
    assert!(check(&error), "blocking: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let error = match async_face::Session::connect_with(&targets, client).await {
            Ok(session) => session.established().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(check(&error), "tokio: {error}");
        let other = async_face::Listener::bind_with("127.0.0.1:0", server).await.unwrap();
        let targets = Targets::from(other.local_addr());
        let error = match async_face::Session::connect_with(&targets, client).await {
            Ok(session) => session.established().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(check(&error), "tokio to tokio: {error}");
        while count(&other.refusals(), name) < 1 {
            tokio::task::yield_now().await;
        }
        assert!(other.sessions().is_empty());
    });
    // The server counts when it hears of it, which can be after the client has.
    while count(&listener.refusals(), name) < 2 {
        std::thread::yield_now();
    }
    assert!(listener.sessions().is_empty());
}

#[test]
fn a_wrong_key_is_noticed_by_the_client() {
    within(|| {
        // The server proves itself first, so the client knows and tells nothing more.
        let [ours, theirs] = [1, 2].map(|byte| config(Security::Psk(psk(byte))));
        refused(&theirs, &ours, "failed_handshakes", |error| {
            matches!(error, Error::Untrusted { .. })
                && error.to_string().contains("could not prove that it holds the key")
        });
    });
}

#[test]
fn other_security_than_the_server_wants() {
    within(|| {
        let open = config(Security::Open);
        let key = config(Security::Psk(psk(1)));
        fn wanted(error: &Error) -> bool {
            matches!(error, Error::Refused { refusal: Refusal::SecurityRequired { .. }, .. })
                && error.to_string().contains("use the same --psk-file here")
                    != error.to_string().contains("leave --psk-file and --tls away here")
        }
        refused(&key, &open, "security_required", wanted);
        refused(&open, &key, "security_required", wanted);
    });
}

#[test]
fn tls_against_a_server_without_and_the_other_way_round() {
    within(|| {
        let open = config(Security::Open);
        let tls = tls(certificates().client(None), "localhost", false);
        fn wanted(error: &Error) -> bool {
            matches!(error, Error::Refused { refusal: Refusal::SecurityRequired { .. }, .. })
        }
        // PROTOCOL 6.8
        refused(&open, &tls, "security_required", wanted);
        refused(&tls, &open, "security_required", wanted);
    });
}

#[test]
fn a_certificate_of_somebody_else() {
    within(|| {
        let certificates = certificates();
        fn unknown_issuer(error: &Error) -> bool {
            matches!(error, Error::Untrusted { .. }) && error.to_string().contains("certificate")
        }
        let server = tls(certificates.client(None), "localhost", false);
        refused(
            &server,
            &tls(certificates.misled_client(), "localhost", false),
            "failed_handshakes",
            unknown_issuer,
        );
        refused(
            &server,
            &tls(certificates.client(None), "example.org", false),
            "failed_handshakes",
            unknown_issuer,
        );
    });
}

/// The client believes itself connected, and its first bytes are under way, when the alert comes.
#[test]
fn a_client_certificate_that_is_wanted() {
    within(|| {
        let certificates = certificates();
        let with = tls(certificates.client(Some(())), "localhost", true);
        let without = tls(certificates.client(None), "localhost", true);
        refused(&without, &without, "failed_handshakes", |error| {
            matches!(error, Error::Untrusted { .. }) && error.to_string().contains("client certificate")
        });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &with).unwrap();
        let mut client = open(&Targets::from(listener.local_addr()), &with).unwrap();
        let mut server = listener.accept().unwrap();
        client.write_all(b"certified").unwrap();
        let mut got = [0; 9];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"certified");
    });
}

#[test]
fn nothing_in_the_clear_over_tls() {
    within(|| {
        // A relay that looks: the application's bytes must not be seen on the path.
        let case = Case { ack: AckMode::Auto, protection: Protection::Tls };
        let config = Arc::new(case.config());
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let relay = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let relay_addr = relay.local_addr().unwrap();
        let server_addr = listener.local_addr();
        let watcher = std::thread::spawn(move || {
            let (mut near, _) = relay.accept().unwrap();
            let mut far = std::net::TcpStream::connect(server_addr).unwrap();
            let (mut near2, mut far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let back = std::thread::spawn(move || {
                let _ = std::io::copy(&mut far2, &mut near2);
                let _ = near2.shutdown(std::net::Shutdown::Both);
            });
            let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(count) = near.read(&mut buffer) {
                if count == 0 {
                    break;
                }
                seen.extend_from_slice(&buffer[..count]);
                if far.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _ = far.shutdown(std::net::Shutdown::Both);
            back.join().unwrap();
            seen
        });
        let mut client = open(&Targets::from(relay_addr), &config).unwrap();
        let mut server = listener.accept().unwrap();
        client.write_all(b"the secret words").unwrap();
        let mut got = [0; 16];
        server.read_exact(&mut got).unwrap();
        let id = *client.id().as_bytes();
        client.kill();
        let seen = watcher.join().unwrap();
        assert!(seen.len() > 100);
        assert!(!seen.windows(16).any(|window| window == b"the secret words" || window == id));
        assert!(!seen.windows(4).any(|window| window == outlast_session::proto::MAGIC));
    });
}

// Open bug: a listener without a server configuration starts.
#[test]
fn settings_that_cannot_work_are_refused_before_anything_starts() {
    let certificates = certificates();
    for mode in [LinkMode::Kernel, LinkMode::Window, LinkMode::Udp] {
        let config = Config {
            ack: AckMode::Fixed(mode),
            ..(*tls(certificates.client(None), "localhost", false)).clone()
        };
        assert!(matches!(config.check(), Err(Error::Config(_))), "{mode}");
        assert!(blocking::Listener::bind_with("127.0.0.1:0", &Arc::new(config)).is_err());
    }
    // A side without its own half of the TLS settings, and a name that no certificate has.
    let listener = blocking::Listener::bind("127.0.0.1:0").unwrap();
    let targets = Targets::from(listener.local_addr());
    let empty = config(Security::Tls(TlsConfig::default()));
    let error = blocking::Session::connect_with(&targets, &empty).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    let nameless = tls(certificates.client(None), "no name", false);
    let error = blocking::Session::connect_with(&targets, &nameless).unwrap_err();
    assert!(matches!(error, Error::Config(_)) && error.to_string().contains("no name"), "{error}");
    // A listener that could not serve anybody says so when it is made.
    let error = blocking::Listener::bind_with("127.0.0.1:0", &empty).map(drop).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

/// A ring that cannot hold what `window` mode must retain would stop for ever: refused, or made to fit.
// Open bug: it is not, and every such session stops for ever.
#[test]
fn a_window_larger_than_the_ring_is_refused() {
    let config = Config {
        ack: AckMode::Fixed(LinkMode::Window),
        retain_bytes_max: 256 << 10,
        window_buffer_bytes: 1 << 20,
        ..Config::default()
    };
    assert!(matches!(config.check(), Err(Error::Config(_))));
}

#[test]
fn keys_have_a_least_and_a_greatest_length() {
    assert!(Psk::from_bytes(&[0; 15]).is_err());
    assert!(Psk::from_bytes(&[1; 16]).is_ok());
    assert!(Psk::from_bytes(&[1; 1025]).is_err());
    assert!(!format!("{:?}", psk(0x5a)).contains("5a"), "a key is never shown");
    assert!(!format!("{:?}", config(Security::Psk(psk(90)))).contains("90, 90"), "a key is never shown");
}

/// What becomes of a connection from 127.0.0.2 that says the first byte of a handshake and no more.
fn first_byte_from_elsewhere(address: SocketAddr) -> ErrorKind {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // It may have been reset already.
    let _ = stream.write_all(b"O");
    stream.read(&mut [0]).expect_err("an answer or an orderly end").kind()
}

#[test]
fn connections_that_the_filter_denies_are_reset_before_they_are_read() {
    within(|| {
        let elsewhere = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2));
        // A handshake that was begun would be waited for longer than the test waits.
        let server = Arc::new(Config {
            peer_filter: Some(PeerFilter::new(move |address| address != elsewhere)),
            handshake_timeout: Duration::from_secs(60),
            ..quick()
        });
        let counts = |refusals: &[(&'static str, u64)]| {
            (count(refusals, "denied_peers"), count(refusals, "failed_handshakes"))
        };
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &server).unwrap();
        let reset = first_byte_from_elsewhere(listener.local_addr());
        assert_eq!(reset, ErrorKind::ConnectionReset);
        assert_eq!(counts(&listener.refusals()), (1, 0));
        open(&Targets::from(listener.local_addr()), &config(Security::Open)).unwrap();

        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(async_face::Listener::bind_with("127.0.0.1:0", &server)).unwrap();
        let reset = first_byte_from_elsewhere(listener.local_addr());
        assert_eq!(reset, ErrorKind::ConnectionReset);
        assert_eq!(counts(&listener.refusals()), (1, 0));
        open(&Targets::from(listener.local_addr()), &config(Security::Open)).unwrap();
    });
}
