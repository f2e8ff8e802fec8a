//! Programs that have an epoll watch their socket before it is bound or listens, as Boost.Asio and Netty do: they go on to hear of
//! clients when a held socket takes that one's place.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, family, folder, free_port, is_installed, kill, python_at};
use std::path::Path;

/// Waits for an edge after each time that nobody is left to accept. What it does when is told.
const SERVER: &str = r#"
import select, socket, sys
how = sys.argv[3]
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.setblocking(False)
if how == "shared": s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
e = select.epoll()
if how == "many": others = [select.epoll() for n in range(40)]; [o.register(s, select.EPOLLIN) for o in others]
e.register(s, 0 if how == "modified" else select.EPOLLIN | select.EPOLLET)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
if how == "modified": e.modify(s, select.EPOLLIN | select.EPOLLET)
while True:
    for fd, event in e.poll():
        while True:
            try: c = s.accept()[0]
            except BlockingIOError: break
            c.setblocking(True); c.recv(4096)
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n"); c.close()
"#;

fn serves_again(how: &str) {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder(&format!("watched-{how}")));
    let mut command = python_at(port, &folder, SERVER);
    let server = Server::start(command.arg(how), true);
    assert!(Client::connect(port).get("/"), "{how}");
    for _ in 0..3 {
        let main = server.main();
        kill(main, libc::SIGKILL);
        eventually("it is not started again", || (!family(server.pid()).contains(&main)).then_some(()));
        for _ in 0..3 {
            assert!(Client::connect(port).get("/"), "{how}");
        }
    }
    server.stop();
    std::fs::remove_dir_all(Path::new(&folder)).unwrap();
}

#[test]
fn a_socket_that_was_watched_before_it_was_bound_is_watched_still() {
    serves_again("bound");
}

#[test]
fn so_is_one_whose_port_others_may_have() {
    serves_again("shared");
}

#[test]
fn and_one_that_is_watched_for_nothing_at_first() {
    serves_again("modified");
}

#[test]
fn and_one_that_many_watch() {
    serves_again("many");
}
