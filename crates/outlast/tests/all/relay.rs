//! A pair of relays between real programs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    KEY, Outlast, PATIENCE, Pair, check_echo, command, echo, ended, folder, pattern, secret_file, speaking,
    unix_echo,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

#[test]
fn bytes_and_half_closes_pass_both_ways() {
    let folder = folder();
    let pair = Pair::start(folder.path(), &echo().to_string(), &[], &[]);
    for length in [0, 1, 1_000, 3_000_000] {
        check_echo(pair.address, length);
    }
}

#[test]
fn a_service_may_speak_first() {
    let folder = folder();
    let pair = Pair::start(folder.path(), &speaking(b"220 ready\r\n").to_string(), &[], &[]);
    let mut program = TcpStream::connect(pair.address).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = [0; 11];
    program.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"220 ready\r\n");
}

#[test]
fn many_streams_at_once_do_not_mix() {
    let folder = folder();
    let pair = Pair::start(folder.path(), &echo().to_string(), &[], &[]);
    std::thread::scope(|scope| {
        for client in 0..30 {
            let address = pair.address;
            scope.spawn(move || check_echo(address, 10_000 + client));
        }
    });
}

#[test]
fn every_mode_and_every_security_carries() {
    let folder = folder();
    let key = secret_file(folder.path(), "key", KEY);
    let key = key.as_str();
    for flags in [
        &["--ack", "kernel"][..],
        &["--ack", "window"],
        &["--ack", "udp"],
        &["--ack", "inband"],
        &["--psk-file", key],
        &["--psk-file", key, "--ack", "inband"],
    ] {
        let pair = Pair::start(folder.path(), &echo().to_string(), flags, flags);
        check_echo(pair.address, 500_000);
    }
}

#[test]
fn tls_with_both_certificates_carries() {
    let folder = folder();
    let certified = rcgen::generate_simple_self_signed(vec!["outlast.test".into()]).unwrap();
    let certificate = folder.path().join("certificate.pem");
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    let key = secret_file(folder.path(), "key.pem", &certified.signing_key.serialize_pem());
    let (certificate, key) = (certificate.to_str().unwrap(), key.as_str());
    let server = ["--tls-cert", certificate, "--tls-key", key];
    let client = ["--tls", "--tls-ca", certificate, "--tls-name", "outlast.test"];
    let pair = Pair::start(folder.path(), &echo().to_string(), &server, &client);
    check_echo(pair.address, 500_000);
}

#[test]
fn unix_sockets_serve_at_both_ends() {
    let folder = folder();
    let service = folder.path().join("service.sock");
    let front = folder.path().join("front.sock");
    unix_echo(&service);
    let to = format!("unix:{}", service.display());
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &to]);
    let via = server.address().to_string();
    let at = format!("unix:{}", front.display());
    let mut client = Outlast::start(folder.path(), &["connect", &at, "--via", &via]);
    client.wait_for("listening on");
    let mut stream = UnixStream::connect(&front).unwrap();
    stream.write_all(b"over two sockets").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "over two sockets");
    client.signal("TERM");
    assert!(client.ended().success());
    assert!(!front.exists(), "the socket stays behind");
}

#[test]
fn standard_input_and_output_are_carried() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let via = server.address().to_string();
    let mut child = command(folder.path(), &["connect", "--stdio", "--via", &via])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = pattern(2_000_000);
    let mut input = child.stdin.take().unwrap();
    let to_send = sent.clone();
    let writer = std::thread::spawn(move || input.write_all(&to_send).unwrap());
    let mut received = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == sent, "{} bytes came back of {}", received.len(), sent.len());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(ended(&mut child).success(), "{said}");
    assert_eq!(said, "", "it is quiet in pipes");
}

#[test]
fn standard_streams_may_be_files() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let via = server.address().to_string();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, pattern(300_000)).unwrap();
    let mut child = command(folder.path(), &["connect", "--stdio", "--via", &via])
        .stdin(std::fs::File::open(&from).unwrap())
        .stdout(std::fs::File::create(&to).unwrap())
        .spawn()
        .unwrap();
    assert!(ended(&mut child).success());
    assert!(std::fs::read(&to).unwrap() == pattern(300_000));
}

#[test]
fn it_ends_when_nobody_reads_its_output() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let via = server.address().to_string();
    let mut child = command(folder.path(), &["connect", "--stdio", "--via", &via])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    input.write_all(b"read").unwrap();
    output.read_exact(&mut [0; 4]).unwrap();
    drop(output);
    // The answers find nobody; the input stays open. One answer is not enough: a process that another test is just
    // starting may hold a copy of the output for a moment.
    let deadline = std::time::Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(std::time::Instant::now() < deadline, "it does not end");
        input.write_all(b"lost").ok();
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    // Not everything was delivered.
    assert_eq!(status.code(), Some(7));
    drop(input);
}

#[test]
fn output_that_takes_nothing_is_told() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let via = server.address().to_string();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = command(folder.path(), &["connect", "--stdio", "--via", &via])
        .stdin(Stdio::piped())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"an answer").unwrap();
    let status = ended(&mut child);
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(status.code(), Some(7), "{told}");
    assert!(told.contains("standard input or output failed"), "{told}");
    drop(input);
}

#[test]
fn a_reset_of_the_local_program_is_a_reset_for_the_service() {
    local_reset(&["--ack", "inband"]);
}

#[test]
fn a_reset_of_the_local_program_is_a_reset_for_the_service_in_kernel_mode() {
    local_reset(&["--ack", "kernel"]);
}

fn local_reset(flags: &[&str]) {
    let folder = folder();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::start(folder.path(), &listener.local_addr().unwrap().to_string(), flags, flags);
    let mut program = TcpStream::connect(pair.address).unwrap();
    program.write_all(b"x").unwrap();
    let (mut service, _) = listener.accept().unwrap();
    service.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut byte = [0];
    service.read_exact(&mut byte).unwrap();
    reset(program);
    let error = service.read(&mut byte).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_reset_of_the_service_is_a_reset_for_the_local_program() {
    let folder = folder();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::start(folder.path(), &listener.local_addr().unwrap().to_string(), &[], &[]);
    let mut program = TcpStream::connect(pair.address).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"x").unwrap();
    let (mut service, _) = listener.accept().unwrap();
    service.read_exact(&mut [0]).unwrap();
    reset(service);
    let error = program.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_service_that_is_not_there_resets_the_local_program() {
    let folder = folder();
    let mut pair = Pair::start(folder.path(), &crate::common::nobody().to_string(), &[], &[]);
    let mut program = TcpStream::connect(pair.address).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"x").ok();
    let error = program.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    pair.server.wait_for("connection refused");
}

#[test]
fn what_a_program_says_before_it_leaves_is_delivered() {
    let folder = folder();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::start(folder.path(), &listener.local_addr().unwrap().to_string(), &[], &[]);
    let mut program = TcpStream::connect(pair.address).unwrap();
    // No more than its kernel can hand to the relay's at once: what it still holds when it is told that nobody
    // takes the answer is lost in any TCP.
    program.write_all(&pattern(30_000)).unwrap();
    drop(program);
    let (mut service, _) = listener.accept().unwrap();
    service.set_read_timeout(Some(PATIENCE)).unwrap();
    // It speaks to somebody who is gone.
    service.write_all(b"anybody there?").unwrap();
    let mut received = vec![0; 30_000];
    service.read_exact(&mut received).unwrap();
    assert!(received == pattern(30_000));
}

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
}
