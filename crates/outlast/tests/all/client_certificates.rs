//! Client certificates that end while their owner is connected.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Pair, check_echo, echo, folder, secret_file};
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
