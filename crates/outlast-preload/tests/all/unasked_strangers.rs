//! The holder has other things to do than to look at strangers, or to look at nothing.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, PYTHON, Server, eventually, folder, free_port, is_installed, kill, python};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Serves, and has a child that lives for a while, again and again, if it is told.
const SERVER: &str = r#"
import socket, subprocess, sys, threading, time
folder, port, children = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", port)); s.listen(100)
def again():
    while True: subprocess.run(["sleep", "1.6"]); time.sleep(3.13)
if children: threading.Thread(target=again, daemon=True).start()
while True:
    c = s.accept()[0]
    if c.recv(4096): c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    c.close()
"#;

/// The holder's socket, as any process can find it.
fn holder_of(process: u32) -> SocketAddr {
    let variables = std::fs::read(format!("/proc/{process}/environ")).unwrap();
    let name =
        variables.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"OUTLAST_CUSTODY="));
    SocketAddr::from_abstract_name(name.unwrap()).unwrap()
}

/// Connects and goes: the library that would do it does not know sockets of this kind.
fn connect(to: &SocketAddr) {
    use std::os::fd::{FromRawFd, OwnedFd};
    let name = to.as_abstract_name().unwrap();
    // SAFETY: zeroes are a value; all that follows is within its bounds.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX.try_into().unwrap();
        for (place, byte) in address.sun_path[1..].iter_mut().zip(name) {
            *place = byte.cast_signed();
        }
        let socket =
            libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        let socket = OwnedFd::from_raw_fd(socket);
        let length = (size_of::<libc::sa_family_t>() + 1 + name.len()).try_into().unwrap();
        libc::connect(std::os::fd::AsRawFd::as_raw_fd(&socket), (&raw const address).cast(), length);
    }
}

#[test]
fn strangers_who_connect_all_the_time_do_not_keep_a_crashed_server_down() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("unasked"), free_port());
    let mut command = python(&folder, SERVER, &[port]);
    let server = Server::start(command.arg("0"), true);
    assert!(Client::connect(port).get("/"));
    let (holder, is_over, connects) = (holder_of(server.main()), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    connect(&holder);
                    connects.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("nobody connects", || (connects.load(Ordering::Relaxed) > 1_000).then_some(()));
        let first = server.main();
        kill(first, libc::SIGSEGV);
        let begin = Instant::now();
        let is_again = || server.main_now().filter(|main| *main != first);
        let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("it is not started again", is_again)
        }));
        is_over.store(true, Ordering::Relaxed);
        assert!(
            started.is_ok(),
            "not started again in {:?} of {} connects",
            begin.elapsed(),
            connects.load(Ordering::Relaxed)
        );
    });
    assert!(Client::connect(port).get("/"));
    std::fs::remove_dir_all(folder).unwrap();
}

/// What the holder's thread has used so far, in hundredths of a second.
fn used(supervisor: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{supervisor}/task")).unwrap().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let of = |text: String| -> Option<u64> {
        let (name, rest) = text.rsplit_once(") ")?;
        let words: Vec<&str> = rest.split(' ').collect();
        name.ends_with("(holder")
            .then(|| words[11].parse::<u64>().unwrap() + words[12].parse::<u64>().unwrap())
    };
    texts.filter_map(of).sum()
}

#[test]
fn the_holder_sleeps_behind_a_change_of_processes() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("asleep"), free_port());
    let mut command = python(&folder, SERVER, &[port]);
    let server = Server::start(command.arg("1"), true);
    assert!(Client::connect(port).get("/"));
    std::thread::sleep(Duration::from_secs(2));
    let before = used(server.pid());
    std::thread::sleep(Duration::from_secs(8));
    let used = used(server.pid()) - before;
    // Looking at processes takes about one; it was 50 to 160.
    assert!(used < 20, "{used} hundredths of a second");
    std::fs::remove_dir_all(folder).unwrap();
}
