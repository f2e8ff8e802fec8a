//! Clients whose connections were accepted, and on which nothing was said yet, by either side.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, eventually, folder, free_port, has_ended, holds, is_installed, kill, python_at,
    wait_until_held, wait_until_read,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

fn silent(port: u16, count: usize) -> Vec<Client> {
    let clients: Vec<Client> = (0..count).map(|_| Client::connect(port)).collect();
    clients.iter().for_each(wait_until_read);
    clients
}

fn crash(server: &Server) {
    let main = server.main();
    kill(main, libc::SIGKILL);
    eventually("the next one is not there", || (server.main() != main).then_some(()));
}

#[test]
fn who_has_not_sent_a_request_yet_is_served_by_the_next_process() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("silent"));
    let server = Server::start(&crate::connections::program(&folder, port), true);
    // What is spoken here is known by then: clients begin.
    assert!(Client::connect(port).get("/"));
    let mut clients = silent(port, 6);
    for _ in 0..3 {
        wait_until_held(&server, &clients);
        crash(&server);
    }
    eventually("it is not said who was kept", || {
        (!server.said("kept: 6, closed: 0").is_empty()).then_some(())
    });
    let mut late = clients.split_off(3);
    assert!(clients.iter_mut().all(|client| client.get("/")));
    // And those who send theirs before the supervisor hears of another crash.
    late.extend(silent(port, 3));
    wait_until_held(&server, &late);
    let main = server.main();
    kill(server.pid(), libc::SIGSTOP);
    kill(main, libc::SIGKILL);
    eventually("its threads do not end", || has_ended(main).then_some(()));
    for client in &mut late {
        client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    kill(server.pid(), libc::SIGCONT);
    assert!(late.iter_mut().all(|client| client.answered().is_some()), "{:?}", server.said("PartEnded"));
    assert!(clients.iter_mut().all(|client| client.get("/")));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Greets its clients, unless it is to wait; and answers each line.
const GREETS: &str = r#"
import os, socket, sys, threading, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
def serve(c):
    while os.path.exists(sys.argv[2] + "/wait"): time.sleep(.01)
    c.sendall(b"hello\n")
    while c.recv(100): c.sendall(b"yes\n")
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

fn read(client: &mut Client) -> String {
    let mut room = [0; 100];
    let count = client.0.read(&mut room).unwrap_or(0);
    String::from_utf8_lossy(&room[..count]).into_owned()
}

/// Executes a program that greets its client, unless it is to wait.
const EXECUTES: &str = r#"
import os, signal, socket, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
while True:
    c = s.accept()[0]
    while os.path.exists(sys.argv[2] + "/wait"): time.sleep(.01)
    if os.fork() == 0:
        os.dup2(c.fileno(), 1); os.execv("/bin/echo", ["echo", "hello"])
    c.close()
"#;

/// Nobody was greeted yet, or who greets is another program each time: nothing tells that clients wait for that.
#[test]
fn who_may_wait_for_a_greeting_gets_it_from_the_next_process() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    for (program, is_first) in [(GREETS, true), (EXECUTES, true), (EXECUTES, false)] {
        let (port, folder) = (free_port(), folder("greetings"));
        let server = Server::start(&python_at(port, &folder, program), true);
        if !is_first {
            assert_eq!(read(&mut Client::connect(port)), "hello\n");
        }
        std::fs::write(folder.join("wait"), "").unwrap();
        let mut waiting = Client::connect(port);
        wait_until_held(&server, std::slice::from_ref(&waiting));
        crash(&server);
        std::fs::remove_file(folder.join("wait")).unwrap();
        assert_eq!(read(&mut waiting), "hello\n", "first: {is_first}: {:?}", server.said("PartEnded"));
        drop(server);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// Nobody else would ever say anything on them.
#[test]
fn who_was_not_greeted_yet_is_greeted_by_the_next_process_and_who_was_is_told_of_the_crash() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("greets"));
    let server = Server::start(&python_at(port, &folder, GREETS), true);
    let mut greeted = Client::connect(port);
    assert_eq!(read(&mut greeted), "hello\n");
    std::fs::write(folder.join("wait"), "").unwrap();
    let mut others = silent(port, 4);
    wait_until_held(&server, &others);
    crash(&server);
    std::fs::remove_file(folder.join("wait")).unwrap();
    assert_eq!(read(&mut greeted), "");
    for client in &mut others {
        assert_eq!(read(client), "hello\n");
        client.0.write_all(b"a\n").unwrap();
        assert_eq!(read(client), "yes\n");
    }
    eventually("it is not said who was kept", || (!server.said("PartEnded").is_empty()).then_some(()));
    server.says("kept: 4", 1);
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A child serves each client, which in the first generation waits to be let go. The process that accepts it has it open, too, or
/// passes it on, behind the first one, by a message that the child has not received yet.
const FORKS: &str = r#"
import os, socket, sys, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
folder, kept, first = sys.argv[2], [], os.getpid()
waits = not os.path.exists(folder + "/started")
passes = waits and os.path.exists(folder + "/way")
open(folder + "/started", "w").close()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
while True:
    c = s.accept()[0]
    if passes and kept: socket.send_fds(ours, [b"1"], [c.fileno()])
    elif os.fork() == 0:
        s.close()
        while waits and not os.path.exists(folder + "/go"): time.sleep(.01)
        served = socket.socket(fileno=socket.recv_fds(theirs, 9, 1)[1][0]) if passes else c
        served.recv(1000); served.sendall(b"%d\n" % first); os._exit(0)
    kept.append(c)
"#;

#[test]
fn one_that_another_process_has_is_left_to_that_one() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    for passes in [false, true] {
        let (port, folder) = (free_port(), folder("forks"));
        if passes {
            std::fs::write(folder.join("way"), "").unwrap();
        }
        let server = Server::start(&python_at(port, &folder, FORKS), true);
        let _first = passes.then(|| silent(port, 1));
        let mut client = Client::connect(port);
        wait_until_read(&client);
        // A copy is made, or would be, by then.
        std::thread::sleep(Duration::from_millis(300));
        let main = server.main();
        kill(main, libc::SIGKILL);
        eventually("the next one does not serve", || (server.said("Generation").len() == 2).then_some(()));
        client.0.write_all(b"a\n").unwrap();
        std::thread::sleep(Duration::from_millis(500));
        std::fs::write(folder.join("go"), "").unwrap();
        let said = read(&mut client);
        assert_eq!(said, format!("{main}\n"), "passes: {passes}: {:?}", server.said(""));
        drop(server);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// Copies are let go of as soon as something is said on a connection that cannot be kept.
#[test]
fn copies_of_what_is_no_http_are_let_go_of() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("silent-others"));
    let server = Server::start(&crate::connections::program(&folder, port), true);
    let mut clients = silent(port, 2);
    wait_until_held(&server, &clients);
    clients[0].0.write_all(b"what is this?\n").unwrap();
    let port_of = |stream: &TcpStream| stream.local_addr().unwrap().port();
    let [first, second] = [port_of(&clients[0].0), port_of(&clients[1].0)];
    eventually("it is still held", || (!holds(server.pid(), port, &[first])).then_some(()));
    assert!(holds(server.pid(), port, &[second]));
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// It connects, and may send the end of a line.
#[test]
fn who_looks_only_whether_anybody_listens_is_no_reason_to_warn() {
    if !is_installed("/usr/sbin/nginx") {
        return;
    }
    let (port, folder) = (free_port(), folder("checks"));
    let server = Server::start(&crate::servers::nginx(&folder, port), true);
    for line in ["", "\n", "\r\n", "\n\n"] {
        let mut client = Client::connect(port);
        client.0.write_all(line.as_bytes()).unwrap();
        wait_until_read(&client);
    }
    let mut client = Client::connect(port);
    client.0.write_all(b"\n").unwrap();
    wait_until_read(&client);
    assert!(client.get("/"));
    // It is said at the next look at the processes, a second later at the most.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(server.said("NotKept"), Vec::<String>::new());
    Client::connect(port).0.write_all(b"\nwhat is this?\r\n").unwrap();
    eventually("it is not said", || (server.said("kind: Other").len() == 1).then_some(()));
    assert_eq!(server.stop(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
