//! What becomes of the other processes of a server when its master is killed: as little as can be, and no crash is told that
//! was none.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, children, compiled_server, eventually, family, folder, free_port, is_installed, kill,
    python_at, wait_until_held,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A master whose workers wait for no client that another one has accepted, and have this done with what each says. What waits
/// has the second half of its answer when the file "go" is there.
const MASTER: &str = r#"
import os, select, socket, sys, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(200); s.setblocking(False)
def work(deal):
    waiting, all = [], [s]
    while True:
        for one in select.select(all, [], [], 0.01)[0]:
            if one is s:
                try: all.append(s.accept()[0])
                except BlockingIOError: pass
                continue
            try: said = one.recv(4096)
            except OSError: said = b""
            if said: deal(one, said, waiting)
            else: all.remove(one); one.close()
        if os.path.exists(sys.argv[2] + "/go"):
            while waiting: waiting.pop().sendall(b"67890")
def master(workers, deal):
    for n in range(workers):
        if os.fork() == 0: work(deal)
    while True: time.sleep(99)
"#;

/// Two workers, which go on when it is gone. An answer to `/slow` has a second half; to `/never` there is none.
const WORKERS: &str = r#"
def deal(one, said, waiting):
    path = said.split()[1]
    if path == b"/slow":
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"); waiting.append(one)
    elif path == b"/never": one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
    else: one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
master(2, deal)
"#;

/// A process for each client, which does not listen, and goes on when the master is gone. Each says its number. The file
/// "lock" can be had by one of them alone who asks for it, and the next master needs it.
const SESSIONS: &str = r#"
import fcntl, os, signal, socket, sys
lock = open(sys.argv[2] + "/lock", "w")
try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: sys.exit(7)
lock.close()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
while True:
    c = s.accept()[0]
    if os.fork() == 0:
        s.close()
        while True:
            said = c.recv(100)
            if not said: os._exit(0)
            if said == b"lock":
                lock = open(sys.argv[2] + "/lock", "w"); fcntl.flock(lock, fcntl.LOCK_EX)
            c.sendall(b"%d\n" % os.getpid())
    c.close()
"#;

/// A worker that reads the second request of its only client in a way that the library does not see, and answers when the file
/// "go" is there. Those of the next master answer whatever they read.
const READS_UNSEEN: &str = r#"
#include <fcntl.h>
#include <stdio.h>

int main(int count, char **arguments) {
    int listener = listening_at(arguments[1]);
    if (listener < 0 || chdir(arguments[2])) return 1;
    int is_first = access("begun", F_OK) != 0;
    fclose(fopen("begun", "w"));
    if (fork()) for (;;) pause();
    if (!is_first) return serve_one_by_one(listener);
    static char request[4096];
    const char *answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nslow!\n";
    int client = accept(listener, 0, 0);
    serve(client);
    syscall(SYS_recvfrom, client, request, sizeof request, 0, 0, 0);
    fclose(fopen("read", "w"));
    while (access("go", F_OK)) usleep(1000);
    write(client, answer, strlen(answer));
    for (;;) pause();
}
"#;

/// Kills this master, and waits for the next one.
fn crash(server: &Server, main: u32) -> u32 {
    let before = family(server.pid());
    kill(main, libc::SIGKILL);
    let is_new = |pid: &u32| !before.contains(pid);
    eventually("it is not started again", || children(server.pid()).into_iter().find(is_new))
}

fn ask(client: &mut Client, path: &str) {
    client.0.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
}

/// Who is said to have crashed, but for the master.
fn crashed(server: &Server, master: u32) -> Vec<String> {
    let is_other = |line: &String| !line.contains(&format!("pid: {master},"));
    server.said("PartEnded").into_iter().filter(is_other).collect()
}

/// So much of an answer is there.
fn begins(client: &mut Client) {
    let (mut bytes, mut room) = (Vec::new(), [0; 100]);
    while !bytes.ends_with(b"12345") {
        let count = client.0.read(&mut room).unwrap();
        assert_ne!(count, 0);
        bytes.extend_from_slice(&room[..count]);
    }
}

#[test]
fn workers_of_a_killed_master_finish_their_answers_and_are_not_called_crashed() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("finishing"));
    let server = Server::start(&python_at(port, &folder, &[MASTER, WORKERS].concat()), true);
    let mut slow = Client::connect(port);
    ask(&mut slow, "/slow");
    begins(&mut slow);
    let mut idle: Vec<Client> = (0..6).map(|_| Client::connect(port)).collect();
    assert!(idle.iter_mut().all(|client| client.get("/")));
    wait_until_held(&server, &idle);
    let master = server.main();
    let old = family(master);
    // The next one is there while an answer of the last one is under way.
    let next = crash(&server, master);
    eventually("it has no workers", || (children(next).len() == 2).then_some(()));
    assert!(Client::connect(port).get("/"));
    eventually("it is not said that they finish", || (server.said("Finishing").len() == 1).then_some(()));
    std::fs::write(folder.join("go"), "").unwrap();
    let mut rest = [0; 5];
    slow.0.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"67890");
    // All of the old ones are gone, and nobody's connection with them.
    eventually("old workers are left", || {
        let all = family(server.pid());
        old.iter().all(|pid| !all.contains(pid)).then_some(())
    });
    let lost: Vec<usize> = (0..)
        .zip(idle.iter_mut().chain([&mut slow]))
        .filter_map(|(number, client)| (!client.get("/")).then_some(number))
        .collect();
    assert_eq!(
        lost,
        Vec::<usize>::new(),
        "the connections that are lost (6: the slow one) {:?}",
        server.said("")
    );
    assert_eq!(crashed(&server, master), Vec::<String>::new());
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Connects again and again, and asks a moment later: how many of these have no answer.
fn newcomers(port: u16, ends: Arc<AtomicBool>) -> impl FnOnce() -> usize {
    move || {
        let mut lost = 0;
        while !ends.load(Ordering::Relaxed) {
            let mut client = Client::try_connect(port).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            lost += usize::from(!client.get("/"));
        }
        lost
    }
}

#[test]
fn a_worker_that_never_finishes_is_killed_in_time_and_idle_connections_are_kept() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("never-finishing"));
    let server = Server::start(&python_at(port, &folder, &[MASTER, WORKERS].concat()), true);
    let mut never: Vec<Client> = (0..4).map(|_| Client::connect(port)).collect();
    for client in &mut never {
        ask(client, "/never");
        begins(client);
    }
    let mut idle: Vec<Client> = (0..6).map(|_| Client::connect(port)).collect();
    assert!(idle.iter_mut().all(|client| client.get("/")));
    wait_until_held(&server, &idle);
    let master = server.main();
    // Some come all the time, also to the old workers, and in the moment in which those are killed.
    let ends = Arc::new(AtomicBool::new(false));
    let newcomers: Vec<_> = (0..3).map(|_| std::thread::spawn(newcomers(port, Arc::clone(&ends)))).collect();
    crash(&server, master);
    for client in &mut never {
        assert_eq!(client.0.read(&mut [0; 1]).unwrap_or(0), 0, "the rest of an answer that has none");
    }
    ends.store(true, Ordering::Relaxed);
    for lost in newcomers {
        assert_eq!(lost.join().unwrap(), 0, "newcomers are lost");
    }
    assert!(idle.iter_mut().all(|client| client.get("/")));
    assert_eq!(crashed(&server, master), Vec::<String>::new());
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

fn say(client: &mut Client, what: &[u8]) -> Option<u32> {
    client.0.write_all(what).ok()?;
    let (mut said, mut room) = (String::new(), [0; 100]);
    while !said.ends_with('\n') {
        let count = client.0.read(&mut room).ok().filter(|count| *count > 0)?;
        said.push_str(&String::from_utf8_lossy(&room[..count]));
    }
    said.trim().parse().ok()
}

#[test]
fn sessions_of_a_killed_master_go_on_until_the_supervisor_stops() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("sessions"));
    let server = Server::start(&python_at(port, &folder, SESSIONS), true);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(port)).collect();
    let pids: Vec<u32> = clients.iter_mut().map(|client| say(client, b"who").unwrap()).collect();
    let mut master = server.main();
    for _ in 0..2 {
        master = crash(&server, master);
        say(&mut Client::connect(port), b"who").unwrap();
        let again: Vec<u32> = clients.iter_mut().filter_map(|client| say(client, b"who")).collect();
        assert_eq!(again, pids);
    }
    server.says("LeftAlone", 2);
    server.stop();
    assert_eq!(clients[0].0.read(&mut [0; 1]).unwrap_or(0), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A start fails as a session has what the next master needs, which nobody has before the next one.
#[test]
fn a_session_that_keeps_the_next_start_from_serving_is_ended() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("in-the-way"));
    let server = Server::start(&python_at(port, &folder, SESSIONS), true);
    let mut client = Client::connect(port);
    say(&mut client, b"lock").unwrap();
    crash(&server, server.main());
    assert_eq!(client.0.read(&mut [0; 1]).unwrap_or(0), 0, "it is left alone");
    say(&mut Client::connect(port), b"who").unwrap();
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// It lives on without its only listening socket: whoever balances load has to see that.
#[test]
fn clients_are_refused_by_a_program_that_closes_its_listener_and_lives_on() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("drains"));
    let text = "import signal, socket, sys, time\n\
        s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
        s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(100)\n\
        signal.signal(signal.SIGUSR1, lambda *a: s.close())\n\
        while True: time.sleep(99)\n";
    let server = Server::start(&python_at(port, &folder, text), true);
    Client::connect(port);
    // Not only soon after the start.
    std::thread::sleep(Duration::from_millis(1500));
    let main = server.main();
    kill(main, libc::SIGUSR1);
    eventually("clients wait for nobody", || {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let refused = TcpStream::connect_timeout(&address, Duration::from_secs(1)).err();
        refused.filter(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
    assert_eq!(server.main(), main);
    // And when it is killed then, the next one listens there as the first one did.
    crash(&server, main);
    Client::connect(port);
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// One worker. Whoever says a line that is not HTTP waits.
const PATIENT: &str = r#"
def deal(one, said, waiting):
    if said == b"wait\n": waiting.append(one)
    else: one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
master(1, deal)
"#;

/// The supervisor has few descriptors, and half of them are copies of idle connections already.
#[test]
fn a_worker_with_more_clients_than_the_supervisor_has_descriptors_left_finishes_its_answer() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("many-clients"));
    let server =
        Server::start_with(&python_at(port, &folder, &[MASTER, PATIENT].concat()), true, |command| {
            let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
            let set = move || {
                // SAFETY: a system call reads a copied value.
                let failed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } < 0;
                if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            };
            // SAFETY: between fork and exec it makes a system call only.
            unsafe { command.pre_exec(set) };
        });
    let mut idle: Vec<Client> = (0..130).map(|_| Client::connect(port)).collect();
    assert!(idle.iter_mut().all(|client| client.get("/")));
    wait_until_held(&server, &idle);
    // Behind all the others in the worker's table.
    let mut waits = Client::connect(port);
    // The kernel tells by its clock that the client was the last to say something.
    std::thread::sleep(Duration::from_millis(50));
    waits.0.write_all(b"wait\n").unwrap();
    let master = server.main();
    let next = crash(&server, master);
    eventually("it has no worker", || (children(next).len() == 1).then_some(()));
    assert!(Client::connect(port).get("/"));
    std::fs::write(folder.join("go"), "").unwrap();
    let mut answer = [0; 5];
    waits.0.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"67890");
    assert!(idle.iter_mut().all(|client| client.get("/")));
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// A request that comes just when its master dies: the worker has read it, and has had no time to write that down.
#[test]
fn a_worker_that_has_read_a_request_just_now_is_not_taken_for_idle() {
    let (port, folder) = (free_port(), folder("reads-unseen"));
    let mut command = Command::new(compiled_server(&folder, "program", READS_UNSEEN));
    command.arg(port.to_string()).arg(&folder);
    let server = Server::start(&command, true);
    let mut client = Client::connect(port);
    assert!(client.get("/"));
    wait_until_held(&server, [&client]);
    ask(&mut client, "/slow");
    eventually("nothing is read", || folder.join("read").exists().then_some(()));
    crash(&server, server.main());
    std::fs::write(folder.join("go"), "").unwrap();
    let (mut answer, mut room) = (Vec::new(), [0; 100]);
    while !answer.ends_with(b"slow!\n") {
        let count = client.0.read(&mut room).unwrap();
        assert_ne!(count, 0, "its worker was killed");
        answer.extend_from_slice(&room[..count]);
    }
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
