//! Sessions that a `connect` ends while their server cannot be reached: the server hears of it when it can be again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{connect, listen};
use crate::common::way::Way;
use crate::common::{KEY, Outlast, PATIENCE, command, folder, nobody, secret_file};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Tries are 5 s apart at the most. `--keep` is a day.
const SOON: Duration = Duration::from_secs(9);

/// A server behind a way, with its service.
struct Scene {
    _server: Outlast,
    service: TcpListener,
    way: Way,
}

impl Scene {
    fn new(runtime: &Path, flags: &[&str]) -> Self {
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, to) = (nobody(), service.local_addr().unwrap().to_string());
        let server = listen(runtime, address, &to, flags);
        Self { _server: server, service, way: Way::to(address) }
    }

    /// A server that connects to whatever its clients name.
    fn to_any(runtime: &Path) -> Self {
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = nobody();
        let any = ["listen", &address.to_string(), "--to-any", "--allow-to", "127.0.0.1"];
        let mut server = Outlast::start(runtime, &any);
        server.wait_for("listening on");
        Self { _server: server, service, way: Way::to(address) }
    }

    fn accept(&self) -> TcpStream {
        let (mut served, _) = self.service.accept().unwrap();
        served.read_exact(&mut [0]).unwrap();
        served
    }

    /// The service still waits, and no longer than this after the way is mended.
    fn is_told(&mut self, mut served: TcpStream, what: &str) {
        served.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let kind = served.read(&mut [0]).unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut),
            "{what}: {kind:?} before it can be told"
        );
        self.way.mend();
        let mended = Instant::now();
        served.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = served.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}");
        let waited = mended.elapsed();
        println!("{what}: {waited:?}");
        assert!(waited < SOON, "{what}: {waited:?}");
    }
}

#[test]
fn standard_streams_that_are_told_to_end() {
    let folder = folder();
    let runtime = folder.path();
    let key = secret_file(runtime, "key", KEY);
    for (signal, flags) in [("TERM", &[][..]), ("HUP", &[]), ("INT", &["--psk-file", &key])] {
        let mut scene = Scene::new(runtime, flags);
        let via = scene.way.address.to_string();
        let arguments = [&["connect", "--stdio", "--via", &via], flags].concat();
        let mut command = command(runtime, &arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = Outlast::from(command);
        client.child().stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let served = scene.accept();
        scene.way.cut();
        client.signal(signal);
        client.ended();
        scene.is_told(served, signal);
    }
}

/// What was sent and is not confirmed is waited for, for some seconds. A second signal ends the wait.
#[test]
fn standard_streams_that_are_told_to_end_twice() {
    let folder = folder();
    let runtime = folder.path();
    let mut scene = Scene::new(runtime, &[]);
    let via = scene.way.address.to_string();
    let mut command = command(runtime, &["connect", "--stdio", "--via", &via]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Outlast::from(command);
    let mut typed = client.child().stdin.take().unwrap();
    typed.write_all(b"x").unwrap();
    let served = scene.accept();
    scene.way.cut();
    typed.write_all(b"not delivered").unwrap();
    client.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    assert!(client.child().try_wait().unwrap().is_none(), "it does not wait for what is not delivered");
    let again = Instant::now();
    client.signal("TERM");
    client.ended();
    assert!(again.elapsed() < Duration::from_secs(3), "{:?}", again.elapsed());
    scene.is_told(served, "twice");
}

#[test]
fn a_relay_that_is_told_to_end() {
    let folder = folder();
    let runtime = folder.path();
    let mut scene = Scene::new(runtime, &[]);
    let (mut client, front) = connect(runtime, scene.way.address, &["--drain-timeout", "0s"]);
    let mut program = TcpStream::connect(front).unwrap();
    program.write_all(b"x").unwrap();
    let served = scene.accept();
    scene.way.cut();
    client.signal("TERM");
    client.ended();
    scene.is_told(served, "SIGTERM");
    drop(program);
}

#[test]
fn a_relay_that_has_lost_its_patience_and_lives() {
    let folder = folder();
    let runtime = folder.path();
    let mut scene = Scene::new(runtime, &[]);
    let (mut client, front) = connect(runtime, scene.way.address, &["--patience", "300ms"]);
    let mut program = TcpStream::connect(front).unwrap();
    program.write_all(b"x").unwrap();
    let served = scene.accept();
    scene.way.cut();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(program.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    client.wait_for("tells it later");
    scene.is_told(served, "--patience");
    // What was given up is over: another session is as good as the first.
    let mut again = TcpStream::connect(front).unwrap();
    again.write_all(b"y").unwrap();
    drop(scene.accept());
    assert!(client.child().try_wait().unwrap().is_none());
}

/// A program that asks a proxy for the service, and the service's end of it: the answer has not come, and does not.
fn asked(scene: &mut Scene, runtime: &Path, flags: &[&str]) -> (Outlast, TcpStream, TcpStream) {
    let front = nobody();
    let (at, via) = (front.to_string(), scene.way.address.to_string());
    // With other modes the server would refuse what comes by a relay, and the refusal would be lost.
    let connect = ["connect", "--socks5", &at, "--via", &via, "--ack", "inband"];
    let mut client = Outlast::start(runtime, &[&connect[..], flags].concat());
    client.wait_for("listening on");
    scene.way.mute(true);
    let mut program = TcpStream::connect(front).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(&[5, 1, 0]).unwrap();
    program.read_exact(&mut [0; 2]).unwrap();
    let port = scene.service.local_addr().unwrap().port().to_be_bytes();
    program.write_all(&[&[5, 1, 0, 1, 127, 0, 0, 1][..], &port].concat()).unwrap();
    let (served, _) = scene.service.accept().unwrap();
    scene.way.cut();
    (client, program, served)
}

#[test]
fn a_proxy_that_has_lost_its_patience_before_an_answer() {
    let folder = folder();
    let mut scene = Scene::to_any(folder.path());
    let (mut client, mut program, served) = asked(&mut scene, folder.path(), &["--patience", "300ms"]);
    let mut refused = [0; 2];
    program.read_exact(&mut refused).unwrap();
    assert_eq!(refused, [5, 1]);
    client.wait_for("tells it later");
    scene.is_told(served, "--patience");
}

#[test]
fn a_proxy_that_is_told_to_end_before_an_answer() {
    let folder = folder();
    let mut scene = Scene::to_any(folder.path());
    let (mut client, _program, served) = asked(&mut scene, folder.path(), &["--drain-timeout", "0s"]);
    client.signal("TERM");
    client.ended();
    scene.is_told(served, "SIGTERM");
}
