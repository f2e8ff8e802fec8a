//! Peers that are not there, speak something else, or have another key or version: what is said, and which code it ends with.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::bad_input::{assert_complaint, write};
use crate::common::{Outlast, command, echo, ended, folder, http, nobody, output, speaking};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Output, Stdio};

/// `--stdio` against some peer, with an input that stays open.
fn stdio(runtime: &Path, via: &str, flags: &[&str]) -> Output {
    let mut child = command(runtime, &[&["connect", "--stdio", "--via", via], flags].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take();
    ended(&mut child);
    drop(input);
    child.wait_with_output().unwrap()
}

#[test]
fn nobody_there_ends_with_4() {
    let folder = folder();
    let nobody = nobody().to_string();
    assert_complaint(&stdio(folder.path(), &nobody, &[]), 4, "is the server running");
    assert_complaint(&stdio(folder.path(), "nowhere.invalid:7000", &[]), 4, "nowhere.invalid");
}

#[test]
fn a_patience_that_was_given_is_kept_and_then_ends_with_4() {
    let folder = folder();
    let output = stdio(folder.path(), &nobody().to_string(), &["--patience", "700ms"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("trying again"), "{said}");
}

#[test]
fn peers_that_speak_something_else_end_with_3() {
    let folder = folder();
    let garbage: &[u8] = b"\x00\xff\x13\x37garbage garbage garbage garbage garbage garbage garbage garbage";
    for peer in [
        http("not a session"),
        speaking(b"SSH-2.0-OpenSSH_9.2\r\n"),
        speaking(b"220 mail.example ESMTP\r\n"),
        speaking(b"\x15\x03\x03\x00\x02\x02\x46"),
        speaking(garbage),
    ] {
        assert_complaint(
            &stdio(folder.path(), &peer.to_string(), &[]),
            3,
            "does not speak the outlast session protocol",
        );
    }
}

#[test]
fn a_wrong_key_ends_with_3() {
    let folder = folder();
    let ours = write(folder.path(), "ours", "8e1fb6d03c52a7794410dfa9ee3c65b2\n");
    let theirs = write(folder.path(), "theirs", "27d0915cc2be8f3606a94d71fa2085be\n");
    let service = http("secret").to_string();
    let arguments = ["listen", "127.0.0.1:0", "--to", &service, "--psk-file", &ours];
    let mut server = Outlast::start(folder.path(), &arguments);
    let via = server.address().to_string();
    let wrong = stdio(folder.path(), &via, &["--psk-file", &theirs]);
    assert_complaint(&wrong, 3, "check that both sides use the same key file");
    assert_complaint(&stdio(folder.path(), &via, &[]), 3, "refused");
}

#[test]
fn a_target_that_cannot_be_reached_is_named_at_the_client() {
    let folder = folder();
    let target = nobody().to_string();
    let why = format!("the server cannot connect to {target}: connection refused");
    for (security, listening, connecting) in &securities(folder.path()) {
        let mut arguments = vec!["listen", "127.0.0.1:0", "--to", &target];
        arguments.extend(listening.iter().map(String::as_str));
        let mut server = Outlast::start(folder.path(), &arguments);
        let via = server.address().to_string();
        let modes: &[&str] = if *security == "tls" { &["auto"] } else { &["kernel", "udp", "inband"] };
        for mode in modes {
            println!("{security}, {mode}");
            let mut flags: Vec<&str> = connecting.iter().map(String::as_str).collect();
            flags.extend(["--ack", mode]);
            assert_complaint(&stdio(folder.path(), &via, &flags), 3, &why);
            // A relay says it at the level that is always shown.
            let arguments = [&["connect", "127.0.0.1:0", "--via", &via], &flags[..]].concat();
            let mut relay = Outlast::start(folder.path(), &arguments);
            let _program = TcpStream::connect(relay.address()).unwrap();
            let line = relay.wait_for("WARN session");
            assert!(line.contains(&why), "{line}");
        }
    }
}

/// The flags of a listener and of a client, for each kind of security.
pub fn securities(folder: &Path) -> [(&'static str, Vec<String>, Vec<String>); 3] {
    let psk = write(folder, "psk", "8e1fb6d03c52a7794410dfa9ee3c65b2\n");
    let certified = rcgen::generate_simple_self_signed(vec!["outlast.test".into()]).unwrap();
    let certificate = write(folder, "certificate.pem", &certified.cert.pem());
    let key = write(folder, "key.pem", &certified.signing_key.serialize_pem());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let with_key = words(&["--psk-file", &psk]);
    let client = words(&["--tls", "--tls-ca", &certificate, "--tls-name", "outlast.test"]);
    [
        ("open", Vec::new(), Vec::new()),
        ("psk", with_key.clone(), with_key),
        ("tls", words(&["--tls-cert", &certificate, "--tls-key", &key]), client),
    ]
}

#[test]
fn sides_that_differ_in_security_end_with_3_and_are_told_which_is_wanted() {
    let folder = folder();
    let service = http("secret").to_string();
    let securities = securities(folder.path());
    for (wanted, listening, _) in &securities {
        let mut arguments = vec!["listen", "127.0.0.1:0", "--to", &service];
        arguments.extend(listening.iter().map(String::as_str));
        let mut server = Outlast::start(folder.path(), &arguments);
        let via = server.address().to_string();
        for (used, _, connecting) in securities.iter().filter(|(used, ..)| used != wanted) {
            let flags: Vec<&str> = connecting.iter().map(String::as_str).collect();
            println!("{used} client, {wanted} listener");
            let told = stdio(folder.path(), &via, &flags);
            let advice = match *wanted {
                "open" => "does not speak tls: leave --psk-file and --tls away here",
                "psk" => "wants a shared key and does not speak tls: use the same --psk-file",
                _ => "speaks tls only: use --tls here",
            };
            assert_complaint(&told, 3, advice);
            let line = server.wait_for(&format!("peer uses {used} security, this side wants {wanted}"));
            assert!(line.contains("handshake failed"), "{line}");
        }
    }
}

#[test]
fn tls_against_what_is_no_tls_is_one_line_and_ends_with_3() {
    let folder = folder();
    let [.., (_, _, tls)] = securities(folder.path());
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    for peer in [echo(), speaking(b"SSH-2.0-OpenSSH_9.2\r\n"), http("not a session")] {
        let told = stdio(folder.path(), &peer.to_string(), &tls);
        assert_complaint(&told, 3, "does not speak tls");
    }
}

/// It is reset before it is heard, so it cannot know that this was meant: to it the server is out of reach.
#[test]
fn a_client_that_is_not_allowed_gets_no_connection() {
    let folder = folder();
    let service = http("not for you").to_string();
    let arguments = ["listen", "127.0.0.1:0", "--to", &service, "--deny", "127.0.0.0/8"];
    let mut server = Outlast::start(folder.path(), &arguments);
    let via = server.address().to_string();
    let output = stdio(folder.path(), &via, &["--patience", "500ms"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    server.wait_for("not allowed to connect");
}

/// A message of a version that is not spoken here: the prefix of PROTOCOL 1.1, a body as long as it says.
const LATER_WELCOME: &[u8] = b"\xd7OLS\x07\x02\x00\x04body";
const LATER_HELLO: &[u8] = b"\xd7OLS\x07\x01\x00\x04body";
/// A refusal for the version (code 8) by a server that speaks 7 to 9: PROTOCOL 1.3.
const LATER_REFUSE: &[u8] = b"\xd7OLS\x07\x05\x00\x09\x08\0\0\0\0\0\0\x07\x09";

#[test]
fn a_server_of_another_version_ends_with_3() {
    let folder = folder();
    let welcome = stdio(folder.path(), &speaking(LATER_WELCOME).to_string(), &[]);
    assert_complaint(&welcome, 3, "peer speaks protocol version 7, this side 1 to 1: update the older");
    assert!(!String::from_utf8_lossy(&welcome.stderr).contains("--via"), "the address is right: {welcome:?}");
    let refused = stdio(folder.path(), &speaking(LATER_REFUSE).to_string(), &[]);
    assert_complaint(&refused, 3, "the server speaks protocol versions 7 to 9 only: update the older");
}

#[test]
fn a_client_of_another_version_is_told_which_are_spoken() {
    let folder = folder();
    let service = http("still here").to_string();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &service]);
    let via = server.address();
    let mut client = TcpStream::connect(via).unwrap();
    client.write_all(LATER_HELLO).unwrap();
    let mut answer = Vec::new();
    // The connection may end in a reset; what came before counts.
    let _ = client.read_to_end(&mut answer);
    // PROTOCOL 1.3: a Refuse, code 8, versions 1 to 1.
    assert_eq!(answer, b"\xd7OLS\x01\x05\x00\x09\x08\0\0\0\0\0\0\x01\x01");
    let line = server.wait_for("peer speaks protocol version 7, this side 1 to 1: update the older");
    assert!(line.contains(&client.local_addr().unwrap().to_string()), "which client? {line}");
    // It serves the others.
    let request = "GET / HTTP/1.0\r\n\r\n";
    let mut other = command(folder.path(), &["connect", "--stdio", "--via", &via.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    other.stdin.take().unwrap().write_all(request.as_bytes()).unwrap();
    assert_eq!(ended(&mut other).code(), Some(0));
    let said = other.wait_with_output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&said).contains("still here"), "{said:?}");
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for_without_end() {
    let folder = folder();
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let via = mute.local_addr().unwrap().to_string();
    let output = output(folder.path(), &["connect", "--stdio", "--via", &via, "--detect", "1s"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("takes the connection and has not welcomed the session"), "{said}");
}

#[test]
fn destinations_for_a_listener_that_takes_none_are_refused() {
    let folder = folder();
    let output =
        output(folder.path(), &["listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--allow-to", "any:80"]);
    assert_eq!(output.status.code(), Some(2));
}
