//! What is kept of single connections, and what is not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, eventually, folder, free_port, has_ended, is_installed, kill, wait_until_held,
    wait_until_read,
};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Answers whole, by halves, or not at all, as the path says.
const PROGRAM: &str = r#"
import socketserver, sys, time
class H(socketserver.StreamRequestHandler):
    def handle(s):
        while True:
            line = s.rfile.readline()
            if not line: return
            path = line.split()[1]
            while s.rfile.readline().strip(): pass
            if path == b"/half":
                s.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"); time.sleep(99)
            elif path == b"/events":
                s.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n"); time.sleep(99)
            elif path == b"/never": time.sleep(99)
            elif path == b"/socket":
                s.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n12345"); time.sleep(99)
            else: s.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
class T(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True; daemon_threads = True; request_queue_size = 50
T(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"#;

pub fn program(folder: &Path, port: u16) -> Command {
    let file = folder.join("program.py");
    std::fs::write(&file, PROGRAM).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string());
    command
}

#[test]
fn idle_connections_are_kept_and_half_answers_end_over_twenty_crashes() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("connections"));
    let server = Server::start(&program(&folder, port), true);
    let mut idle: Vec<Client> = (0..5).map(|_| Client::connect(port)).collect();
    for crash in 0..20 {
        let mut busy: Vec<Client> = Vec::new();
        for path in ["/half", "/events", "/never"] {
            let mut client = Client::connect(port);
            client.0.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
            busy.push(client);
        }
        for client in &mut idle {
            assert!(client.get("/"), "crash {crash}");
        }
        wait_until_held(&server, &idle);
        busy.iter().for_each(wait_until_read);
        let main = server.main();
        kill(main, if crash % 2 == 0 { libc::SIGKILL } else { libc::SIGSEGV });
        for client in &mut busy {
            assert_eq!(client.answered(), None, "crash {crash}");
        }
        eventually("the next one is not there", || (server.main() != main).then_some(()));
    }
    for client in &mut idle {
        assert!(client.get("/"));
    }
    assert!(server.said("kept: 5").len() >= 19, "{:?}", server.said("PartEnded"));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn connections_that_go_over_to_another_protocol_are_named_and_counted() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("switched"));
    let server = Server::start(&program(&folder, port), true);
    for crash in 1..3 {
        let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(port)).collect();
        for client in &mut clients {
            let asked = b"GET /socket HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            client.0.write_all(asked).unwrap();
            let (mut said, mut room) = (Vec::new(), [0; 200]);
            while !said.ends_with(b"12345") {
                let count = client.0.read(&mut room).unwrap();
                assert_ne!(count, 0);
                said.extend_from_slice(&room[..count]);
            }
        }
        // A client that only asks for it is kept.
        let mut declined = Client::connect(port);
        declined.0.write_all(b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n").unwrap();
        assert!(declined.answered().is_some());
        wait_until_held(&server, [&declined]);
        kill(server.main(), libc::SIGKILL);
        for client in &mut clients {
            assert_eq!(client.0.read(&mut [0; 1]).unwrap_or(0), 0, "it is kept");
        }
        assert!(declined.get("/"));
        eventually("they are not counted", || {
            (server.said("kept: 1, closed: 3").len() == crash).then_some(())
        });
    }
    eventually("it is not said", || (server.said("Switched").len() == 1).then_some(()));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

/// While there is a file "die", it is killed between accepting a connection and reading from it, and one of those files less.
const DIES: &str = r#"
import os, socket, sys, threading
folder = sys.argv[2]
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
def serve(c):
    while c.recv(4096): c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
while True:
    c = s.accept()[0]
    for n in range(3):
        if os.path.exists(folder + "/die%d" % n):
            os.remove(folder + "/die%d" % n); os.kill(os.getpid(), 9)
    threading.Thread(target=serve, args=(c,), daemon=True).start()
"#;

#[test]
fn a_request_that_no_process_has_read_goes_to_the_next_one() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("unread"));
    let file = folder.join("dies.py");
    std::fs::write(&file, DIES).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string()).arg(&folder);
    let server = Server::start(&command, true);
    let mut idle: Vec<Client> = (0..4).map(|_| Client::connect(port)).collect();
    assert!(idle.iter_mut().all(|client| client.get("/")));
    wait_until_held(&server, &idle);
    (0..3).for_each(|number| std::fs::write(folder.join(format!("die{number}")), "").unwrap());
    let main = server.main();
    kill(main, libc::SIGKILL);
    // None of its threads reads anything more from here on: one that waits for its end in `recv` would still take a request.
    eventually("it does not end", || has_ended(main).then_some(()));
    let lost: Vec<usize> =
        (0..).zip(&mut idle).filter_map(|(number, client)| (!client.get("/")).then_some(number)).collect();
    assert_eq!(lost, Vec::<usize>::new(), "{:?}", server.said(""));
    assert!((0..3).all(|number| !folder.join(format!("die{number}")).exists()));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A client may end its side behind its request: it still waits for the answer.
#[test]
fn a_request_with_an_end_behind_it_that_comes_while_the_server_is_down_is_answered() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("ends"));
    let (started, file) = (program(&folder, port), folder.join("program.py"));
    // From the second start on it waits to be let go.
    let text = "import os, time\nf = os.path.dirname(sys.argv[0])\nwhile os.path.exists(f + '/down') and not os.path.exists(f + '/up'): time.sleep(0.01)\n";
    let whole = std::fs::read_to_string(&file).unwrap();
    let (imports, rest) = whole.split_once("class H").unwrap();
    std::fs::write(&file, format!("{imports}\n{text}class H{rest}")).unwrap();
    let server = Server::start(&started, true);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(port)).collect();
    clients.iter_mut().for_each(|client| assert!(client.get("/")));
    wait_until_held(&server, &clients);
    std::fs::write(folder.join("down"), "").unwrap();
    // One asks before the supervisor hears of the crash, the others later.
    let main = server.main();
    kill(server.pid(), libc::SIGSTOP);
    kill(main, libc::SIGKILL);
    eventually("its threads do not end", || has_ended(main).then_some(()));
    for (number, client) in clients.iter_mut().enumerate() {
        client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        client.0.shutdown(std::net::Shutdown::Write).unwrap();
        if number == 0 {
            std::thread::sleep(Duration::from_millis(50));
            kill(server.pid(), libc::SIGCONT);
            eventually("it has not crashed", || (!server.said("Crashed").is_empty()).then_some(()));
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    std::fs::write(folder.join("up"), "").unwrap();
    for client in &mut clients {
        assert!(client.answered().is_some());
    }
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_program_that_closes_idle_connections_really_does() {
    if !is_installed("/usr/sbin/nginx") {
        return;
    }
    let (port, folder) = (free_port(), folder("closes"));
    let mut command = crate::servers::nginx(&folder, port);
    let file = folder.join("nginx.conf");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("return 200 'hello'", "keepalive_timeout 1s; return 200 $remote_port");
    std::fs::write(&file, text).unwrap();
    let server = Server::start(&command, true);
    let mut client = Client::connect(port);
    assert!(client.get("/"));
    // A copy of it is held, and nevertheless it ends when the server closes it.
    assert_eq!(client.answered(), None);
    assert_eq!(server.stop(), 0);
    command.arg("-t");
    std::fs::remove_dir_all(folder).unwrap();
}

/// What the holder has a copy of is not in the way of the program itself, however soon that asks for it.
#[test]
fn a_program_that_closes_its_listener_can_bind_there_again_at_once() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("rebinds"));
    let file = folder.join("program.py");
    let text = "import os, socket, sys, time\n\
        def listen(port):\n    s = socket.socket(); s.bind(('127.0.0.1', port)); s.listen(5); return s\n\
        for n in range(300):\n    s = listen(0); port = s.getsockname()[1]; s.close(); listen(port).close()\n    \
        if n % 50 == 0:\n        s = listen(0); port = s.getsockname()[1]; s.close()\n        \
        if os.fork() == 0: listen(port); os._exit(0)\n        assert os.wait()[1] == 0\n\
        s = listen(int(sys.argv[1]))\nwhile True: s.accept()[0].sendall(b'here')\n";
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string());
    let server = Server::start(&command, true);
    Client::connect(port);
    assert_eq!(server.said("Crashed"), Vec::<String>::new());
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Reads the first 24 bytes of a request, then the rest; writes the head of an answer in pieces. "/wait" is answered when
/// eight answers have been written.
const BY_PIECES: &str = r#"
import re, socket, socketserver, sys, time
written = []
class H(socketserver.BaseRequestHandler):
    def handle(s):
        c, said, room = s.request, b"", 24
        while True:
            got = c.recv(room)
            if not got: return
            said, room = said + got, 4096
            while True:
                whole = re.match(rb"(\r\n)*([A-Z]+) .*?\r\n\r\n", said, re.S)
                if not whole: break
                head, end = whole[0].lower(), whole.end()
                if b"chunked" in head:
                    end = said.find(b"0\r\n\r\n", end) + 5
                    if end < 5: break
                said = said[end:]
                room = 24
                while b"/wait" in head and len(written) < 8: time.sleep(.005)
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")
                c.sendall(b"ngth: 6\r\n"); c.sendall(b"\r\n"); c.sendall(b"hello\n")
                written.append(1)
class T(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True; daemon_threads = True; request_queue_size = 50
T(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"#;

#[test]
fn connections_are_kept_however_requests_are_read_and_answers_written() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("pieces"));
    let file = folder.join("pieces.py");
    std::fs::write(&file, BY_PIECES).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string());
    let server = Server::start(&command, true);
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let requests = [
        (get.to_owned(), 1),
        (format!("GET / HTTP/1.1\r\nCookie: {}\r\n\r\n", "x".repeat(6000)), 1),
        (format!("\r\n{get}"), 1),
        (get.repeat(3), 3),
        ("PROPFIND / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 1),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n".to_owned(), 1),
    ];
    let mut clients: Vec<Client> = requests.iter().map(|_| Client::connect(port)).collect();
    for crash in 0..3 {
        for (client, (request, answers)) in clients.iter_mut().zip(&requests) {
            client.0.write_all(request.as_bytes()).unwrap();
            let (mut said, mut room) = (Vec::new(), [0; 4096]);
            while said.windows(6).filter(|window| window == b"hello\n").count() < *answers {
                let count = client.0.read(&mut room).unwrap();
                assert_ne!(count, 0, "crash {crash}: {request:.40?} is not answered");
                said.extend_from_slice(&room[..count]);
            }
        }
        wait_until_held(&server, &clients);
        assert!(Client::connect(port).get("/wait"));
        kill(server.main(), libc::SIGKILL);
        eventually("it does not end", || (server.said("PartEnded").len() > crash).then_some(()));
    }
    for (client, (request, _)) in clients.iter_mut().zip(&requests) {
        assert!(client.get("/"), "{request:.40?}: its connection is closed");
    }
    assert!(server.said("Other").is_empty(), "{:?}", server.said("Other"));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Reads its requests byte by byte.
const SLOW_READER: &str = r#"
import socket, sys, threading
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
def serve(c):
    said = b""
    while True:
        byte = c.recv(1)
        if not byte: return
        said += byte
        if said.endswith(b"\r\n\r\n"):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n"); said = b""
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

#[test]
fn connections_of_a_server_that_reads_single_bytes_are_kept() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("single-bytes"));
    let file = folder.join("program.py");
    std::fs::write(&file, SLOW_READER).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string());
    let server = Server::start(&command, true);
    let mut idle: Vec<Client> = (0..4).map(|_| Client::connect(port)).collect();
    for _ in 0..3 {
        assert!(idle.iter_mut().all(|client| client.get("/")));
        wait_until_held(&server, &idle);
        let main = server.main();
        kill(main, libc::SIGKILL);
        eventually("the next one is not there", || (server.main() != main).then_some(()));
    }
    assert!(idle.iter_mut().all(|client| client.get("/")));
    assert_eq!(server.said("NotKept"), Vec::<String>::new());
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}
