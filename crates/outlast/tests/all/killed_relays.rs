//! A relay is killed in the middle of a stream: the program on its side must not take that for the end of the stream.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{both_ends, connect, is_running, listen, stop};
use crate::common::{Outlast, PATIENCE, Pair, command, eventually, folder, nobody, pattern};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Enough to be in the middle of something.
const SOME_BYTES: usize = 1 << 20;

/// An HTTP service whose answer has no length and no end, and how much of it was taken.
fn endless() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let mut piece = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
                piece.resize(16 << 10, b'x');
                while stream.write_all(&piece).is_ok() {
                    counted.fetch_add(piece.len(), Ordering::Relaxed);
                    // Not faster than needed: other tests run beside this one.
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
        }
    });
    (address, sent)
}

fn in_the_middle(sent: &AtomicUsize) {
    let before = sent.load(Ordering::Relaxed);
    eventually("no download", || (sent.load(Ordering::Relaxed) > before + SOME_BYTES).then_some(()));
}

fn download(arguments: &[&str]) -> Child {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "60", "--output", "/dev/null"]);
    curl.args(arguments).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_download_through_a_killed_connect_fails_by_every_door() {
    let folder = folder();
    let (site, sent) = endless();
    let any = ["listen", "127.0.0.1:0", "--to-any", "--allow-to", &site.to_string()];
    let mut server = Outlast::start(folder.path(), &any);
    let mut fixed = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &site.to_string()]);
    let (any, fixed) = (server.address().to_string(), fixed.address().to_string());
    let url = format!("http://{site}/");
    let unix = folder.path().join("front.sock");
    let unix = unix.to_str().unwrap();
    let unix_front = format!("unix:{unix}");
    let front = "127.0.0.1:0";
    for (door, via, program) in [
        (&[front][..], &fixed, &["http://FRONT/"][..]),
        (&["--socks5", front], &any, &["--socks5", "FRONT", &url]),
        (&["--http-connect", front], &any, &["--proxytunnel", "--proxy", "FRONT", &url]),
        (&[&unix_front], &fixed, &["--unix-socket", unix, "http://service/"]),
    ] {
        let mut client = Outlast::start(folder.path(), &[&["connect", "--via", via], door].concat());
        let line = client.wait_for("listening on");
        let address = line.split("listening on ").nth(1).unwrap().split([' ', ',']).next().unwrap();
        let program: Vec<String> = program.iter().map(|word| word.replace("FRONT", address)).collect();
        let words: Vec<&str> = program.iter().map(String::as_str).collect();
        let mut curl = download(&words);
        in_the_middle(&sent);
        client.signal("KILL");
        let status = curl.wait().unwrap();
        assert!(!status.success(), "{door:?}: curl takes a cut download for a whole one");
    }
}

/// What standard output has got looks whole: only the exit code says that it is not.
#[test]
fn a_download_of_stdio_through_a_killed_listen_has_an_exit_code() {
    let folder = folder();
    let (site, sent) = endless();
    let (address, site) = (nobody(), site.to_string());
    let mut server = listen(folder.path(), address, &site, &[]);
    let mut client = command(folder.path(), &["connect", "--stdio", "--via", &address.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    client.stdin.as_mut().unwrap().write_all(b"GET").unwrap();
    let mut output = client.stdout.take().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    in_the_middle(&sent);
    server.signal("KILL");
    server.ended();
    let _next = listen(folder.path(), address, &site, &[]);
    let status = eventually("the relay goes on", || client.try_wait().unwrap());
    assert_eq!(status.code(), Some(3));
    reader.join().unwrap().unwrap();
}

/// Whoever has ended its stream waits for the answer: an end of file would say that this is all.
#[test]
fn who_has_ended_its_stream_is_told_that_its_relay_was_killed() {
    for mode in ["kernel", "inband"] {
        let folder = folder();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = service.local_addr().unwrap().to_string();
        for kills_client in [true, false] {
            let pair = Pair::start(folder.path(), &to, &["--ack", mode], &["--ack", mode]);
            let (program, served) = both_ends(pair.address, &service);
            let (mut near, mut far) = if kills_client { (program, served) } else { (served, program) };
            near.shutdown(Shutdown::Write).unwrap();
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
            let killed = if kills_client { &pair.client } else { &pair.server };
            killed.signal("KILL");
            assert_eq!(how_it_ends(&mut near), Err(ErrorKind::ConnectionReset), "{mode}, {kills_client}");
        }
    }
}

/// The service has said all that it has to say, and the program says nothing: nobody reads or writes, and both kinds of program
/// are told all the same that the session is gone.
#[test]
fn a_program_that_only_waits_is_told_that_its_session_is_gone() {
    for mode in ["kernel", "inband"] {
        let folder = folder();
        let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
        let to = service.local_addr().unwrap().to_string();
        let mut server = listen(folder.path(), address, &to, &["--ack", mode]);
        let (_client, front) = connect(folder.path(), address, &["--ack", mode]);
        let (mut program, served) = both_ends(front, &service);
        let via = address.to_string();
        let mut child = command(folder.path(), &["connect", "--stdio", "--via", &via, "--ack", mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"x").unwrap();
        let (mut asked, _) = service.accept().unwrap();
        asked.read_exact(&mut [0]).unwrap();
        for service_end in [&served, &asked] {
            service_end.shutdown(Shutdown::Write).unwrap();
        }
        assert_eq!(program.read(&mut [0]).unwrap(), 0);
        assert_eq!(child.stdout.take().unwrap().read(&mut [0]).unwrap(), 0);
        server.signal("KILL");
        server.ended();
        let _next = listen(folder.path(), address, &to, &["--ack", mode]);
        eventually("the program hears nothing", || program.take_error().unwrap());
        let status = eventually("the relay goes on", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(3), "{mode}");
        drop(input);
    }
}

/// What is left of a stream, and how it ends.
fn how_it_ends(stream: &mut impl Read) -> Result<(), ErrorKind> {
    std::io::copy(stream, &mut std::io::sink()).map(drop).map_err(|error| error.kind())
}

/// Sends until it cannot.
fn send_endlessly(mut program: TcpStream) {
    std::thread::spawn(move || while program.write_all(&[b'x'; 4096]).is_ok() {});
}

#[test]
fn an_upload_through_a_killed_listen_fails_for_the_service() {
    for mode in ["kernel", "inband"] {
        let folder = folder();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = service.local_addr().unwrap().to_string();
        let pair = Pair::start(folder.path(), &to, &["--ack", mode], &["--ack", mode]);
        let (program, mut served) = both_ends(pair.address, &service);
        send_endlessly(program);
        let mut some = vec![0; SOME_BYTES];
        served.read_exact(&mut some).unwrap();
        pair.server.signal("KILL");
        assert_eq!(how_it_ends(&mut served), Err(ErrorKind::ConnectionReset), "{mode}");
    }
}

#[test]
fn an_upload_to_a_unix_service_that_has_spoken_fails_too() {
    let folder = folder();
    let path = folder.path().join("service.sock");
    let service = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let pair = Pair::start(folder.path(), &format!("unix:{}", path.display()), &[], &[]);
    let mut program = TcpStream::connect(pair.address).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"x").unwrap();
    let (mut served, _) = service.accept().unwrap();
    served.write_all(b"go on").unwrap();
    program.read_exact(&mut [0; 5]).unwrap();
    send_endlessly(program);
    let mut some = vec![0; SOME_BYTES];
    served.read_exact(&mut some).unwrap();
    pair.server.signal("KILL");
    assert_eq!(how_it_ends(&mut served), Err(ErrorKind::ConnectionReset));
}

#[test]
fn what_was_kept_back_for_that_does_not_get_lost() {
    let folder = folder();
    let (service_path, front_path) = (folder.path().join("service.sock"), folder.path().join("front.sock"));
    crate::common::unix_echo(&service_path);
    let to = format!("unix:{}", service_path.display());
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &to]);
    let via = server.address().to_string();
    let at = format!("unix:{}", front_path.display());
    let mut client = Outlast::start(folder.path(), &["connect", &at, "--via", &via]);
    client.wait_for("listening on");
    let mut stream = UnixStream::connect(&front_path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // Small and large ones, with a wait for each answer or without.
    for length in [1, 2, 1, 100, 3000, 1, 70_000, 5, 1, 4096, 4097, 1] {
        let sent = pattern(length);
        stream.write_all(&sent).unwrap();
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer == sent, "{length} bytes");
    }
    let mut sender = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        for length in 1..600 {
            sender.write_all(&pattern(length)).unwrap();
        }
        sender.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    writer.join().unwrap();
    assert!(answer == (1..600).flat_map(pattern).collect::<Vec<u8>>(), "{} bytes", answer.len());
}

#[test]
fn a_direction_that_goes_on_after_the_end_of_the_other_is_reset_too() {
    let folder = folder();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::start(folder.path(), &service.local_addr().unwrap().to_string(), &[], &[]);
    let (mut program, served) = both_ends(pair.address, &service);
    served.shutdown(Shutdown::Write).unwrap();
    assert_eq!(program.read(&mut [0]).unwrap(), 0);
    pair.client.signal("KILL");
    let error = eventually("no reset", || program.take_error().unwrap());
    // What the kernel calls a reset behind the end of the stream.
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    drop(served);
}

#[test]
fn a_slow_reader_gets_everything_after_an_orderly_end() {
    let folder = folder();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut pair = Pair::start(folder.path(), &service.local_addr().unwrap().to_string(), &[], &[]);
    let (mut program, mut served) = both_ends(pair.address, &service);
    program.shutdown(Shutdown::Write).unwrap();
    let sent = pattern(SOME_BYTES / 2);
    served.write_all(&sent).unwrap();
    drop(served);
    // Both streams have ended, and the relay is through with them; the kernels are not.
    pair.client.wait_for("completed");
    let mut received = Vec::new();
    program.read_to_end(&mut received).unwrap();
    assert!(received == sent, "{} bytes", received.len());
}

#[test]
fn a_connection_that_was_handed_over_is_still_reset() {
    let folder = folder();
    let runtime = folder.path();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, to) = (nobody(), service.local_addr().unwrap().to_string());
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let (mut program, mut served) = both_ends(front, &service);
    let keeper = stop(&mut server, 1);
    let next = listen(runtime, address, &to, &[]);
    eventually("the keeper stays", || (!is_running(keeper)).then_some(()));
    program.write_all(b"y").unwrap();
    served.read_exact(&mut [0]).unwrap();
    next.signal("KILL");
    assert_eq!(how_it_ends(&mut served), Err(ErrorKind::ConnectionReset));
}
