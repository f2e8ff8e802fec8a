//! Clients that had left before a crash are not among those whose connections it has closed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, folder, free_port, is_installed, kill, wait_until_held};
use std::io::Write;
use std::process::Command;

/// It closes nothing, whatever its clients do. What is asked for as `/never` has no answer.
const CARELESS: &str = r#"
import selectors, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
all = selectors.DefaultSelector(); all.register(s, selectors.EVENT_READ)
kept = []
while True:
    for key, _ in all.select():
        one = key.fileobj
        if one is s:
            c = s.accept()[0]; kept.append(c); all.register(c, selectors.EVENT_READ); continue
        try: said = one.recv(4096)
        except OSError: said = b""
        if not said: all.unregister(one)
        elif said.split()[1] != b"/never":
            one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
"#;

#[test]
fn connections_whose_clients_had_left_are_not_closed_by_a_crash() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("gone-clients"));
    let file = folder.join("program.py");
    std::fs::write(&file, CARELESS).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string());
    let server = Server::start(&command, true);
    let mut clients: Vec<Client> = (0..9).map(|_| Client::connect(port)).collect();
    assert!(clients.iter_mut().all(|client| client.get("/")));
    wait_until_held(&server, &clients);
    let mut stay = clients.split_off(6);
    // Of those that stay one waits, and of those that leave three: two of these break off.
    for client in clients.iter_mut().take(3).chain(stay.last_mut()) {
        client.0.write_all(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    for client in clients.iter().take(2) {
        breaks_off(client);
    }
    // The third one has ended its side, and may wait still.
    let half = clients.remove(2);
    half.0.shutdown(std::net::Shutdown::Write).unwrap();
    drop(clients);
    std::thread::sleep(std::time::Duration::from_millis(200));
    kill(server.main(), libc::SIGKILL);
    let told = eventually("the crash is not told", || server.said("PartEnded").pop());
    assert!(told.contains("kept: 2, closed: 2 "), "{told}");
    drop((half, stay));
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// It is broken off when it is dropped.
fn breaks_off(client: &Client) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = libc::socklen_t::try_from(size_of::<libc::linger>()).unwrap();
    let at = (&raw const linger).cast();
    // SAFETY: reads a local of the length that is told.
    let set =
        unsafe { libc::setsockopt(client.0.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, length) };
    assert_eq!(set, 0);
}
