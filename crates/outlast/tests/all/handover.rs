//! A listener is stopped and another one started in its place, under sessions that are in use.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{
    AT_ONCE, both_ends, connect, ends, is_running, listen, open, open_with_small_buffer, say, stop, stopped,
};
use crate::common::{KEY, Outlast, PATIENCE, echo, folder, nobody, output, pattern, secret_file};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Sent through an echo while listeners come and go.
const BULK_BYTES: usize = 64 << 20;
const RESTARTS: usize = 4;

#[test]
fn sessions_go_on_in_the_next_process_whatever_their_state() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let mut server = listen(runtime, address, &to, &[]);
    let (client, front) = connect(runtime, address, &[]);
    let pair = || both_ends(front, &service);
    let (mut quiet, mut quiet_served) = pair();
    // Its program has said all it has to say.
    let (mut asked, mut asked_served) = pair();
    asked.write_all(b"the question").unwrap();
    asked.shutdown(Shutdown::Write).unwrap();
    let mut question = Vec::new();
    asked_served.read_to_end(&mut question).unwrap();
    assert_eq!(question, b"the question");
    // Its service has, and has not been heard; nobody reads on either side.
    let (mut full, mut full_served) = pair();
    let content = pattern(300_000);
    full.write_all(&content).unwrap();
    full_served.write_all(&content).unwrap();
    full_served.shutdown(Shutdown::Write).unwrap();
    // Its client is away when the listener goes.
    std::thread::sleep(Duration::from_millis(200));
    client.freeze();
    let keeper = stop(&mut server, 3);
    client.signal("CONT");

    let mut server = listen(runtime, address, &to, &[]);
    server.wait_for("going on with 3 sessions");
    quiet.write_all(b"hello").unwrap();
    let mut heard = [0; 5];
    quiet_served.read_exact(&mut heard).unwrap();
    quiet_served.write_all(&heard).unwrap();
    quiet.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
    asked_served.write_all(b"the answer").unwrap();
    drop(asked_served);
    let mut answer = Vec::new();
    asked.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"the answer");
    for (mut reader, ends) in [(full_served.try_clone().unwrap(), false), (full.try_clone().unwrap(), true)] {
        let mut received = vec![0; content.len()];
        reader.read_exact(&mut received).unwrap();
        assert!(received == content, "the bytes differ");
        if ends {
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
    }
    full.write_all(b"bye").unwrap();
    full.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    full_served.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"bye");
    ends(keeper);
    // Nothing is left to be kept but the quiet one, which ends in order in the process that has taken it over.
    drop(quiet);
    assert_eq!(quiet_served.read(&mut [0]).unwrap(), 0);
}

/// Ends the stream when nobody has the other end of `last_part` any more. Until then the session cannot complete, however much the
/// buffers of kernels on the way hold (tcp_rmem may allow 32 MiB, for each link).
fn write_in_two_parts(mut stream: &TcpStream, sent: &[u8], last_part: std::sync::mpsc::Receiver<()>) {
    let (most, last) = sent.split_at(sent.len() - 1);
    stream.write_all(most).unwrap();
    let _ = last_part.recv();
    stream.write_all(last).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn bulk_goes_on_through_one_listener_after_another() {
    for flags in [&[][..], &["--ack", "inband"], &["--ack", "udp"]] {
        let folder = folder();
        let runtime = folder.path();
        let (address, to) = (nobody(), echo().to_string());
        let mut server = listen(runtime, address, &to, &[]);
        let (_client, front) = connect(runtime, address, flags);
        let mut idle = open(front);
        let stream = open_with_small_buffer(front);
        let sent = pattern(BULK_BYTES);
        std::thread::scope(|scope| {
            let (last, last_part) = std::sync::mpsc::channel();
            scope.spawn(|| {
                write_in_two_parts(&stream, &sent, last_part);
            });
            // What is not read yet holds the rest up, so that there is always something under way.
            let (progress, restarts) = std::sync::mpsc::channel();
            let (go_on, going_on) = std::sync::mpsc::channel();
            let reader = scope.spawn(|| {
                let (progress, going_on) = (progress, going_on);
                let mut received = Vec::new();
                for _ in 0..RESTARTS {
                    let part = BULK_BYTES / (2 * RESTARTS);
                    (&stream).take(part as u64).read_to_end(&mut received).unwrap();
                    let _ = progress.send(());
                    let _ = going_on.recv();
                }
                (&stream).read_to_end(&mut received).unwrap();
                received
            });
            for _ in 0..RESTARTS {
                restarts.recv().unwrap();
                server.signal("TERM");
                go_on.send(()).unwrap();
                stopped(&mut server, 2);
                server = listen(runtime, address, &to, &[]);
            }
            drop((go_on, last));
            let received = reader.join().unwrap();
            assert_eq!(received.len(), sent.len(), "{flags:?}");
            assert!(received == sent, "{flags:?}: the bytes differ");
        });
        say(&mut idle, b"still there");
    }
}

#[test]
fn a_session_with_a_key_proves_itself_to_the_next_process() {
    let folder = folder();
    let runtime = folder.path();
    let key = secret_file(runtime, "key", KEY);
    let with_key = ["--psk-file", &key];
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen(runtime, address, &to, &with_key);
    let (_client, front) = connect(runtime, address, &with_key);
    let mut stream = open(front);
    stop(&mut server, 1);
    let server = listen(runtime, address, &to, &with_key);
    say(&mut stream, b"the same session");
    drop(server);
}

#[test]
fn what_nobody_comes_for_is_given_up_and_may_be_given_up_at_once() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let mut server = listen(runtime, address, &to, &["--hand-over-timeout", "300ms"]);
    let (mut client, front) = connect(runtime, address, &[]);
    let mut program = TcpStream::connect(front).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"x").unwrap();
    let (mut served, _) = service.accept().unwrap();
    served.read_exact(&mut [0]).unwrap();
    // An opening that the client has no answer to is made again at the next server.
    served.write_all(b"y").unwrap();
    program.read_exact(&mut [0]).unwrap();
    let keeper = stop(&mut server, 1);
    assert!(is_running(keeper));
    ends(keeper);
    assert!(served.read(&mut [0]).is_err(), "the service was told that this is the end of the stream");
    // The next one knows nothing of it, and says so.
    let mut server = listen(runtime, address, &to, &["--hand-over-timeout", "0s", "--drain-timeout", "0s"]);
    assert!(program.read(&mut [0]).is_err());
    client.wait_for("was away for longer than --hand-over-timeout or --keep there");

    let mut program = TcpStream::connect(front).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"x").unwrap();
    let (mut served, _) = service.accept().unwrap();
    served.read_exact(&mut [0]).unwrap();
    // An opening that the client has no answer to is made again at the next server.
    served.write_all(b"y").unwrap();
    program.read_exact(&mut [0]).unwrap();
    server.signal("TERM");
    server.wait_for("1 session was still open");
    assert!(server.ended().success());
    assert!(program.read(&mut [0]).is_err());
    assert_eq!(
        std::fs::read_dir(runtime.join("outlast")).map_or(0, |files| {
            files.flatten().filter(|file| file.file_name().to_string_lossy().ends_with(".kept")).count()
        }),
        0
    );
}

#[test]
fn what_is_kept_is_shown_and_can_be_ended() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let mut server = listen(runtime, address, &to, &[]);
    let (client, front) = connect(runtime, address, &["--admin-socket", "none"]);
    let pair = || both_ends(front, &service);
    let (mut ended, mut ended_served) = pair();
    let (mut lasting, mut lasting_served) = pair();
    // What the client cannot take is not acknowledged.
    client.freeze();
    let unacked_bytes = 1 << 20;
    let writer = std::thread::spawn(move || {
        lasting_served.write_all(&pattern(unacked_bytes)).unwrap();
        lasting_served
    });
    let lasting_served = writer.join().unwrap();
    let keeper = stop(&mut server, 2);

    let json = output(runtime, &["status", "--json"]);
    let instances: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(instances.as_array().map(Vec::len), Some(1), "{instances}");
    let kept = &instances[0];
    assert_eq!(kept["pid"], keeper);
    assert_eq!(kept["keeps_for"], address.to_string());
    assert!((1..=300_000).contains(&kept["left_ms"].as_u64().unwrap()), "{kept}");
    let sessions = kept["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2);
    let unacked = |session: &serde_json::Value| session["unacked_bytes"].as_u64().unwrap();
    let (quiet, full) = if unacked(&sessions[0]) < unacked(&sessions[1]) { (0, 1) } else { (1, 0) };
    assert_eq!(unacked(&sessions[quiet]), 0, "{kept}");
    assert!(unacked(&sessions[full]) > 0, "{kept}");
    assert_eq!(sessions[quiet]["peer"], "127.0.0.1");
    let id = sessions[quiet]["id"].as_str().unwrap();

    let page = String::from_utf8(output(runtime, &["status"]).stdout).unwrap();
    for part in [
        &format!("process {keeper}, keeps 2 sessions"),
        &format!("`outlast listen {address}` again"),
        &id[..10],
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }

    let killed = output(runtime, &["kill", &id[..12]]);
    assert!(killed.status.success(), "{killed:?}");
    assert_eq!(String::from_utf8_lossy(&killed.stdout), format!("killed {id}\n"));
    assert!(ended_served.read(&mut [0]).is_err(), "the service was told that this is the end of the stream");
    assert_eq!(output(runtime, &["kill", &id[..12]]).status.code(), Some(2));

    // The other one goes on, to the last byte; the client of the killed one is told.
    client.signal("CONT");
    let mut server = listen(runtime, address, &to, &[]);
    server.wait_for("going on with 1 session");
    assert!(ended.read(&mut [0]).is_err());
    drop(lasting_served);
    let mut received = Vec::new();
    lasting.read_to_end(&mut received).unwrap();
    assert!(received == pattern(unacked_bytes), "{} bytes have come", received.len());
    ends(keeper);
    let page = String::from_utf8(output(runtime, &["status"]).stdout).unwrap();
    assert!(!page.contains("keeps") && page.contains(&format!("process {}", server.pid())), "{page}");
}

#[test]
fn a_keeper_that_is_ended_does_not_end_streams_in_order() {
    let folder = folder();
    let runtime = folder.path();
    let (address, service) = (nobody(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = service.local_addr().unwrap().to_string();
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut program = TcpStream::connect(front).unwrap();
    program.write_all(b"x").unwrap();
    let (mut served, _) = service.accept().unwrap();
    served.set_read_timeout(Some(PATIENCE)).unwrap();
    served.read_exact(&mut [0]).unwrap();
    let keeper = stop(&mut server, 1);
    assert!(
        std::process::Command::new("kill").args(["-KILL", &keeper.to_string()]).status().unwrap().success()
    );
    let error = served.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn an_address_and_the_wildcard_go_on_with_what_the_other_has_left() {
    let folder = folder();
    let runtime = folder.path();
    let to = echo().to_string();
    let address = nobody();
    let wildcard = SocketAddr::new("0.0.0.0".parse().unwrap(), address.port());
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    let mut keeper = stop(&mut server, 1);
    for (at, warns) in [(wildcard, false), (address, true), (wildcard, false)] {
        server = listen(runtime, at, &to, &[]);
        server.wait_for("going on with 1 session");
        say(&mut stream, b"still there");
        ends(keeper);
        // Clients of other addresses would not find this one.
        let said = server.said_so_far();
        let warning = said.lines().find(|line| line.contains("do not find their sessions"));
        assert_eq!(warning.is_some(), warns, "{said}");
        if let Some(warning) = warning {
            assert!(warning.contains("WARN"), "{warning}");
            assert!(warning.contains(&format!("{address} is only a part of {wildcard}")), "{warning}");
        }
        keeper = stop(&mut server, 1);
    }

    // An address that is none of these knows nothing of it.
    let other = SocketAddr::new("127.0.0.1".parse().unwrap(), nobody().port());
    let mut server = listen(runtime, other, &to, &[]);
    server.signal("INT");
    server.ended();
    assert!(!server.said().contains("going on"));
    assert!(is_running(keeper));
    let _server = listen(runtime, wildcard, &to, &[]);
    say(&mut stream, b"still there");
    ends(keeper);
}

#[test]
fn a_listener_with_other_security_does_not_go_on_and_says_so() {
    let folder = folder();
    let runtime = folder.path();
    let key = secret_file(runtime, "key", KEY);
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    stop(&mut server, 1);
    let arguments = ["listen", &address.to_string(), "--to", &to, "--psk-file", &key];
    let mut server = Outlast::start(runtime, &arguments);
    assert_eq!(server.ended().code(), Some(2));
    let said = server.said();
    assert!(said.contains("was opened with security open, this listener has psk"), "{said}");
    assert!(said.contains("or end process "), "{said}");
    // Nothing was given up by the mistake.
    let _server = listen(runtime, address, &to, &[]);
    say(&mut stream, b"still there");
}

#[test]
fn what_was_not_delivered_shows_in_the_exit_code() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let mut server = listen(runtime, address, &to, &[]);
    let (mut client, front) = connect(runtime, address, &AT_ONCE);
    let mut stream = open(front);
    let keeper = stop(&mut server, 1);
    stream.write_all(b"nobody hears this").unwrap();
    client.signal("TERM");
    assert_eq!(client.ended().code(), Some(4));
    assert!(client.said().contains("17 bytes are not known to be delivered"));
    // Nobody will come for it.
    assert!(std::process::Command::new("kill").arg(keeper.to_string()).status().unwrap().success());
    ends(keeper);
}

/// The kernel may not let everybody freeze a connection: then the stream is acknowledged in band.
#[test]
fn without_any_privilege_nothing_is_lost_either() {
    let folder = folder();
    let runtime = folder.path();
    std::fs::set_permissions(runtime, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (address, to) = (nobody(), echo().to_string());
    let nobody = |arguments: &[&str]| {
        let mut command = crate::common::command(runtime, arguments);
        command.env("OUTLAST_LOG", "info").stderr(std::process::Stdio::piped());
        if is_root() {
            std::os::unix::process::CommandExt::uid(&mut command, 65534);
        }
        Outlast::from(command)
    };
    let at = address.to_string();
    let start = || {
        let mut server = nobody(&["listen", &at, "--to", &to]);
        server.address();
        server
    };
    let mut server = start();
    let mut client = nobody(&["connect", "127.0.0.1:0", "--via", &at]);
    let front = client.address();
    let stream = open_with_small_buffer(front);
    let sent = pattern(BULK_BYTES);
    std::thread::scope(|scope| {
        let (last, last_part) = std::sync::mpsc::channel();
        scope.spawn(|| {
            write_in_two_parts(&stream, &sent, last_part);
        });
        let mut received = Vec::new();
        for _ in 0..RESTARTS {
            (&stream).take((BULK_BYTES / (2 * RESTARTS)) as u64).read_to_end(&mut received).unwrap();
            stop(&mut server, 1);
            server = start();
        }
        drop(last);
        (&stream).read_to_end(&mut received).unwrap();
        assert!(received == sent, "the bytes differ");
    });
    let said = client.said_so_far();
    assert!(!said.contains("cannot freeze"), "{said}");
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}
