//! A program that closes a connection, or its listening socket, hears no more of it by its epolls, as without this library: many have
//! freed by then what the event would point to. The supervisor may have a descriptor of its own for longer.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, folder, free_port, is_installed, kill, python_at, wait_until_held};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Answers with how many events it has heard of what it had closed by then. `/stop` closes the listening socket.
const SERVER: &str = r#"
import os, select, socket, sys
how, stale = sys.argv[3], 0
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
epolls = [select.epoll() for n in range(3 if how == "several" else 1)]
def watch(it):
    for e in epolls: e.register(it, select.EPOLLIN)
u = socket.socket(socket.AF_UNIX); path = os.path.join(sys.argv[2], "socket"); u.bind(path); u.listen(10)
watch(s); watch(u)
clients, spare = {}, open("/dev/null")
child = 0
def close(c):
    if how == "replaced": os.dup2(spare.fileno(), c.fileno())
    c.close()
while True:
    heard = [fd for e in epolls for fd, event in e.poll(0.01 if len(epolls) > 1 else None)]
    for fd in dict.fromkeys(heard):
        if fd == s.fileno():
            c = s.accept()[0]; clients[c.fileno()] = c; watch(c); continue
        if fd not in clients: stale += 1; continue
        c = clients[fd]
        try: said = c.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError: continue
        if not said:
            del clients[fd]; close(c)
            if how == "forking" and os.fork() == 0:
                # Closes what it has of its parent's, which goes on hearing of that.
                for o in list(clients.values()) + [s]: o.close()
                os._exit(0)
            continue
        if b"/shut" in said:
            # All others, which have said nothing.
            for o in [o for o in clients.values() if o is not c]:
                del clients[o.fileno()]; o.shutdown(socket.SHUT_RDWR); close(o)
            stale += sum(fd not in clients and fd != s.fileno() and fd != u.fileno() for e in epolls for fd, event in e.poll(0))
        if b"/stop" in said:
            s.close(); u.close()
            # Whether anybody seems to listen there is asked by another one of these, too.
            stale += 1000 if socket.socket(socket.AF_UNIX).connect_ex(path) == 0 else 0
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n%6d" % stale)
"#;

/// What the server says.
fn stale_events(client: &mut Client, path: &str) -> u32 {
    client.0.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    let (mut answer, mut room) = (String::new(), [0; 512]);
    while !answer.contains("\r\n\r\n") {
        let count = client.0.read(&mut room).unwrap();
        assert!(count > 0, "the connection ended: {answer:?}");
        answer.push_str(std::str::from_utf8(&room[..count]).unwrap());
    }
    answer[answer.len() - 6..].trim().parse().unwrap()
}

/// A server of this kind, after twenty of its clients have gone, and a client of its that was held meanwhile.
fn after_closing(how: &str) -> Option<(Server, Client, u16, PathBuf)> {
    if !is_installed("/usr/bin/python3") {
        return None;
    }
    let (port, folder) = (free_port(), folder(&format!("stale-{how}-{}", free_port())));
    let mut command = python_at(port, &folder, SERVER);
    let server = Server::start(command.arg(how), true);
    let mut asks = Client::connect(port);
    assert_eq!(stale_events(&mut asks, "/"), 0, "{how}");
    for _ in 0..20 {
        let mut client = Client::connect(port);
        stale_events(&mut client, "/");
        wait_until_held(&server, [&client]);
        drop(client);
        // It hears of the connections that are open.
        stale_events(&mut asks, "/");
    }
    Some((server, asks, port, folder))
}

fn has_no_stale_event(how: &str) {
    let Some((_server, mut asks, _, folder)) = after_closing(how) else { return };
    assert_eq!(stale_events(&mut asks, "/"), 0, "{how}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_event_comes_of_a_connection_that_was_closed() {
    has_no_stale_event("one");
}

#[test]
fn nor_by_several_epolls() {
    has_no_stale_event("several");
}

#[test]
fn nor_of_one_whose_number_was_given_to_a_file() {
    has_no_stale_event("replaced");
}

#[test]
fn what_a_child_closes_is_heard_of_by_its_parent() {
    has_no_stale_event("forking");
}

#[test]
fn no_event_comes_of_silent_connections_that_were_shut_down_and_closed() {
    silent_ones_are_heard_of_no_more("silent");
}

#[test]
fn nor_of_such_whose_numbers_were_given_to_a_file() {
    silent_ones_are_heard_of_no_more("replaced");
}

fn silent_ones_are_heard_of_no_more(how: &str) {
    let Some((server, mut asks, port, folder)) = after_closing(how) else { return };
    for _ in 0..10 {
        let silent: Vec<Client> = (0..10).map(|_| Client::connect(port)).collect();
        wait_until_held(&server, &silent);
        kill(server.pid(), libc::SIGSTOP);
        let stale = stale_events(&mut asks, "/shut");
        kill(server.pid(), libc::SIGCONT);
        assert_eq!(stale, 0);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A child that goes by its parent's epoll hears of clients when the parent has closed the socket.
const FORKS: &str = r#"
import os, select, socket, sys, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
e = select.epoll(); e.register(s, select.EPOLLIN)
if os.fork():
    s.close(); time.sleep(600)
while True:
    e.poll(); c = s.accept()[0]; c.recv(4096)
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n"); c.close()
"#;

#[test]
fn a_child_hears_of_clients_by_its_parents_epoll() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("stale-child"));
    let server = Server::start(&python_at(port, &folder, FORKS), true);
    for _ in 0..3 {
        assert!(Client::connect(port).get("/"));
    }
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_event_comes_of_a_listening_socket_that_was_closed() {
    let Some((_server, mut asks, port, folder)) = after_closing("listens") else { return };
    assert_eq!(stale_events(&mut asks, "/stop"), 0);
    let waiting: Vec<_> = (0..3).filter_map(|_| TcpStream::connect(("127.0.0.1", port)).ok()).collect();
    let of_unix: Vec<_> = (0..3).filter_map(|_| UnixStream::connect(folder.join("socket")).ok()).collect();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(stale_events(&mut asks, "/"), 0, "{}, {} clients wait", waiting.len(), of_unix.len());
    std::fs::remove_dir_all(folder).unwrap();
}
