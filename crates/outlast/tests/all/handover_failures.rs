//! A hand-over in which something fails: what is not taken over is where it was, and nobody hears of an end that is none.

use crate::common::restarts::{connect, ends, listen, open, say, stop};
use crate::common::{Outlast, command, echo, eventually, folder, nobody};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// The first of its listeners has sessions to go on with; the second finds its address in use.
#[test]
fn a_start_that_fails_leaves_the_sessions_to_the_next() {
    let folder = folder();
    let runtime = folder.path();
    let (address, to) = (nobody(), echo().to_string());
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = runtime.join("two.toml");
    let section = |address| format!("[[listen]]\naddress = \"{address}\"\nto = \"{to}\"\n");
    let both = section(address) + &section(occupied.local_addr().unwrap());
    std::fs::write(&config, both).unwrap();
    let mut server = listen(runtime, address, &to, &[]);
    let (_client, front) = connect(runtime, address, &[]);
    let mut stream = open(front);
    let keeper = stop(&mut server, 1);
    let mut failing = Outlast::start(runtime, &["--config", config.to_str().unwrap()]);
    failing.wait_for("another program listens there");
    assert!(!failing.ended().success());
    // Nobody has heard of an end.
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let heard = stream.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(heard.unwrap_err(), std::io::ErrorKind::WouldBlock);
    stream.set_read_timeout(None).unwrap();
    let mut next = listen(runtime, address, &to, &[]);
    say(&mut stream, b"still there");
    ends(keeper);
    let last = stop(&mut next, 1);
    signal(last, "TERM");
    ends(last);
}

/// A stopped process that goes on finds its calls interrupted.
#[test]
fn a_listener_that_is_stopped_while_a_keeper_answers_takes_over_all_the_same() {
    let folder = folder();
    let runtime = folder.path();
    let address = nobody();
    let keeper = keeper_of(runtime, address);
    let mut server = Outlast::start(runtime, &["listen", &address.to_string(), "--to", "127.0.0.1:9"]);
    let (mut asks, _) = keeper.accept().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for name in ["STOP", "CONT"] {
        server.signal(name);
        std::thread::sleep(Duration::from_millis(100));
    }
    // It has nothing.
    asks.write_all(&[0; 4]).unwrap();
    let mut taken = [0];
    asks.read_exact(&mut taken).unwrap();
    assert_eq!(&taken, b"T");
    drop(keeper);
    server.signal("TERM");
    assert!(server.ended().success());
    let said = server.said();
    assert!(!said.contains("ERROR"), "{said}");
}

/// Clients would be told that there are no such sessions.
#[test]
fn a_keeper_that_fails_in_its_answer_keeps_the_next_listener_from_starting() {
    let folder = folder();
    let runtime = folder.path();
    let address = nobody();
    let keeper = keeper_of(runtime, address);
    let mut server = Outlast::start(runtime, &["listen", &address.to_string(), "--to", "127.0.0.1:9"]);
    let (mut asks, _) = keeper.accept().unwrap();
    // A session without its connection.
    let header = r#"{"version":1,"session_bytes":0,"to_local_bytes":0,"up_ended":true}"#;
    asks.write_all(&u32::try_from(header.len()).unwrap().to_be_bytes()).unwrap();
    asks.write_all(header.as_bytes()).unwrap();
    let line = server.wait_for("cannot take over the sessions of");
    assert!(line.contains(&format!("process {}", std::process::id())), "{line}");
    assert!(!server.ended().success());
}

/// What a process that stops sends to one that has ceased to listen has to fail at once, and what is missing is said.
#[test]
fn a_keeper_that_cannot_take_more_says_how_much_it_has() {
    let folder = folder();
    let (mut giver, theirs) = UnixStream::pair().unwrap();
    giver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut keeper = command(folder.path(), &["keep-detached", &nobody().to_string(), "--time", "1s"])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .unwrap();
    let mut ready = [0];
    giver.read_exact(&mut ready).unwrap();
    giver.write_all(b"\0\0\0\x02no").unwrap();
    let mut kept = [0; 5];
    giver.read_exact(&mut kept).unwrap();
    assert_eq!(&kept, b"K\0\0\0\0");
    // The other end is gone.
    assert!(giver.write_all(&[0; 1 << 20]).is_err());
    assert!(keeper.wait().unwrap().success());
}

/// Whoever has the turn may take its time.
#[test]
fn a_listener_that_waits_for_another_heeds_sigterm() {
    let folder = folder();
    let address = nobody();
    let name = format!("outlast/listen/{}/{}", rustix::process::geteuid().as_raw(), address.port());
    let turn = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .unwrap();
    rustix::net::bind(&turn, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    rustix::net::listen(&turn, 1).unwrap();
    let mut server = Outlast::start(folder.path(), &["listen", &address.to_string(), "--to", "127.0.0.1:9"]);
    // It handles signals by now.
    eventually("it has asked who has the turn", || rustix::net::accept(&turn).ok());
    server.signal("TERM");
    assert!(server.ended().success());
}

/// A socket where listeners at that address look for what is kept for them.
fn keeper_of(runtime: &Path, address: std::net::SocketAddr) -> UnixListener {
    let namespace: String = std::fs::read_link("/proc/self/ns/net")
        .unwrap()
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    let sockets = runtime.join("outlast");
    std::fs::create_dir_all(&sockets).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&sockets, private).unwrap();
    UnixListener::bind(sockets.join(format!("{address}-{namespace}.kept"))).unwrap()
}

fn signal(pid: u32, name: &str) {
    let kill = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(kill.unwrap().success());
}
