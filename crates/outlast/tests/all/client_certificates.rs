//! Client certificates that end, or are asked for no longer, while their owner is connected.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{connect, listen, open, say, stop};
use crate::common::{Outlast, Pair, check_echo, echo, folder, nobody, secret_file};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

/// Long enough for a busy machine to begin.
const VALID_FOR: Duration = Duration::from_secs(8);

/// However often a client has come while its certificate was good: when that has expired it opens nothing more.
#[test]
fn an_expired_certificate_opens_no_session() {
    let folder = folder();
    let write = |name: &str, content: &str| secret_file(folder.path(), name, content);
    let server = rcgen::generate_simple_self_signed(vec!["server.example".into()]).unwrap();
    let (certificate, key) = (server.cert.pem(), server.signing_key.serialize_pem());
    let (certificate, key) = (write("server.pem", &certificate), write("server.key", &key));
    let own_key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(vec!["client.example".into()]).unwrap();
    let expires = SystemTime::now() + VALID_FOR;
    parameters.not_after = expires.into();
    let own = write("client.pem", &parameters.self_signed(&own_key).unwrap().pem());
    let own_key = write("client.key", &own_key.serialize_pem());
    let pair = Pair::start(
        folder.path(),
        &echo().to_string(),
        &["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &own],
        &[
            "--tls",
            "--tls-ca",
            &certificate,
            "--tls-name",
            "server.example",
            "--tls-cert",
            &own,
            "--tls-key",
            &own_key,
        ],
    );
    check_echo(pair.address, 1000);
    check_echo(pair.address, 1000);
    // A second is what certificates are counted in.
    std::thread::sleep(
        expires.duration_since(SystemTime::now()).unwrap_or_default() + Duration::from_millis(1100),
    );
    let mut stream = TcpStream::connect(pair.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stream.write_all(b"x").ok();
    let read = stream.read(&mut [0]);
    assert!(!matches!(read, Ok(1)), "a session was opened with a certificate that has expired");
}

/// A session is its certificate's: a listener that asks for none could not let its client back in.
#[test]
fn a_listener_that_asks_for_no_certificate_does_not_take_certified_sessions_over() {
    let folder = folder();
    let runtime = folder.path();
    let write = |name: &str, content: &str| secret_file(runtime, name, content);
    let made = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let key = write(&format!("{name}.key"), &made.signing_key.serialize_pem());
        (write(&format!("{name}.pem"), &made.cert.pem()), key)
    };
    let ((certificate, key), (own, own_key)) = (made("server.example"), made("client.example"));
    let (address, to) = (nobody(), echo().to_string());
    let without = ["--tls-cert", &certificate, "--tls-key", &key];
    let with = [&without[..], &["--tls-client-ca", &own]].concat();
    let mut server = listen(runtime, address, &to, &with);
    let identity = ["--tls-cert", &own, "--tls-key", &own_key];
    let trust = ["--tls", "--tls-ca", &certificate, "--tls-name", "server.example"];
    let (_client, front) = connect(runtime, address, &[&trust[..], &identity].concat());
    let mut stream = open(front);
    stop(&mut server, 1);
    let at = address.to_string();
    let start = [&["listen", &at, "--to", &to][..], &without].concat();
    let mut wrong = Outlast::start(runtime, &start);
    assert_eq!(wrong.ended().code(), Some(2));
    let said = wrong.said();
    assert!(
        said.contains("belongs to the certificate of its client") && said.contains("--tls-client-ca"),
        "{said}"
    );
    let mut server = listen(runtime, address, &to, &with);
    server.wait_for("going on with 1 session");
    say(&mut stream, b"still there");
}
