//! Servers that shut their listening socket down when they end: to tell workers, who wait there, or themselves alone.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, PYTHON, children, eventually, folder, free_port, has_ended, is_installed, kill, script,
};
use std::io::{Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const SERVER: &str = r#"
import os, signal, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
# Waited for, not handled: one that comes just before `pause` would be heard of with the next signal only.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
workers = []
for number in range(2):
    worker = os.fork()
    if worker == 0:
        while True:
            try: c = s.accept()[0]
            except OSError: os._exit(0)
            c.recv(1000); c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"); c.close()
    workers.append(worker)
signal.sigwait([signal.SIGTERM])
s.shutdown(socket.SHUT_RDWR)
for worker in workers: os.waitpid(worker, 0)
"#;

/// `outlast run` with a program in Python.
struct Run {
    outlast: PathBuf,
    name: String,
    log: PathBuf,
    child: Child,
}

impl Run {
    fn start(folder: &Path, port: u16, text: &str) -> Self {
        let (program, log) = (script(folder, "server.py", text), folder.join("log"));
        let this = std::env::current_exe().unwrap();
        let outlast = this.parent().unwrap().parent().unwrap().join("outlast");
        let name = format!("told-by-shutdown-{port}-{}", std::process::id());
        let mut run = Command::new(&outlast);
        run.args(["run", "--name", &name, "--stop-timeout", "20s", "--preload", "always", "--", PYTHON]);
        run.arg(&program).arg(port.to_string()).stdin(Stdio::null());
        let child = run.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        Self { outlast, name, log, child }
    }

    fn upgrade(&self) -> Output {
        Command::new(&self.outlast).args(["upgrade", &self.name]).output().unwrap()
    }

    fn stop(self) {
        let said = std::fs::read_to_string(&self.log).unwrap();
        assert!(!said.contains("has not ended in time"), "{said}");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        kill(self.child.id(), libc::SIGTERM);
        let _ = self.child.wait();
    }
}

#[test]
fn workers_of_a_server_that_is_upgraded_are_told() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("told-by-shutdown"), free_port());
    let run = Run::start(&folder, port, SERVER);
    assert!(Client::connect(port).get("/"));
    let main = eventually("it has no workers", || {
        children(run.child.id()).into_iter().find(|main| children(*main).len() == 2)
    });
    let upgraded = run.upgrade();
    assert!(upgraded.status.success(), "{upgraded:?}");
    eventually("it does not end", || has_ended(main).then_some(()));
    assert!(Client::connect(port).get("/"));
    run.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// All of them, when they have a processor again.
#[test]
fn workers_that_stand_still_are_told_later() {
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("told-later"), free_port());
    let run = Run::start(&folder, port, SERVER);
    assert!(Client::connect(port).get("/"));
    let workers = eventually("it has no workers", || {
        let workers = children(run.child.id()).into_iter().map(children).find(|workers| workers.len() == 2);
        workers.filter(|_| Client::connect(port).get("/"))
    });
    workers.iter().for_each(|worker| kill(*worker, libc::SIGSTOP));
    std::thread::scope(|scope| {
        let upgrading = scope.spawn(|| run.upgrade());
        std::thread::sleep(Duration::from_millis(500));
        workers.iter().for_each(|worker| kill(*worker, libc::SIGCONT));
        let upgraded = upgrading.join().unwrap();
        assert!(upgraded.status.success(), "{upgraded:?}");
    });
    assert!(Client::connect(port).get("/"));
    run.stop();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Workers, which are processes or threads, wait for clients in one of several calls, and end when the socket is shut down. What
/// they have accepted they answer.
const WORKERS: &str = r#"
import os, select, signal, socket, sys, threading
WAY = "way"
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
s.setblocking(WAY in ("accept", "threads"))
def accepted():
    if WAY == "poll":
        wait = select.poll(); wait.register(s, select.POLLIN); wait.poll()
    if WAY == "epoll":
        wait = select.epoll(); wait.register(s, select.EPOLLIN); wait.poll(); wait.close()
    return s.accept()[0]
def work():
    while True:
        try: c = accepted()
        except BlockingIOError: continue
        except OSError: return
        c.setblocking(True)
        try: c.recv(1000); c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        except OSError: pass
        c.close()
# No thread but the first is to get it.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
workers = []
for number in range(4):
    if WAY == "threads":
        workers.append(threading.Thread(target=work)); workers[-1].start()
    else:
        workers.append(os.fork())
        if workers[-1] == 0: work(); os._exit(0)
signal.sigwait([signal.SIGTERM])
s.shutdown(socket.SHUT_RDWR)
for worker in workers: worker.join() if WAY == "threads" else os.waitpid(worker, 0)
os._exit(0)
"#;

#[test]
fn nobody_is_refused_or_reset_at_upgrades_of_a_server_whose_workers_accept() {
    const CLIENTS: usize = 6;
    const UPGRADES: usize = 3;
    if !is_installed(PYTHON) {
        return;
    }
    for way in ["accept", "poll", "epoll", "threads"] {
        let (folder, port) = (folder("shut-down-workers"), free_port());
        let run = Run::start(&folder, port, &WORKERS.replace("\"way\"", &format!("{way:?}")));
        assert!(Client::connect(port).get("/"));
        let (is_over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (upgraded, failed): (Vec<Output>, Vec<Error>) = std::thread::scope(|scope| {
            let come = || {
                let mut failed = Vec::new();
                while !is_over.load(Ordering::SeqCst) {
                    match is_answered(port) {
                        Ok(()) => drop(served.fetch_add(1, Ordering::SeqCst)),
                        Err(error) => failed.push(error),
                    }
                }
                failed
            };
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(come)).collect();
            let upgrade = |_| {
                std::thread::sleep(Duration::from_millis(300));
                run.upgrade()
            };
            let upgraded = (0..UPGRADES).map(upgrade).collect();
            is_over.store(true, Ordering::SeqCst);
            (upgraded, clients.into_iter().flat_map(|client| client.join().unwrap()).collect())
        });
        assert!(upgraded.iter().all(|upgraded| upgraded.status.success()), "{way}: {upgraded:?}");
        assert!(failed.is_empty() && served.load(Ordering::SeqCst) > 0, "{way}: {failed:?}");
        assert!(Client::connect(port).get("/"));
        run.stop();
        std::fs::remove_dir_all(folder).unwrap();
    }
}

fn is_answered(port: u16) -> std::io::Result<()> {
    let mut client = Client::try_connect(port)?;
    client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let mut said = Vec::new();
    client.0.read_to_end(&mut said)?;
    if said.ends_with(b"ok") { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// A child serves each client, and has the listening socket open, at which it never accepts anybody.
const SESSIONS: &str = r#"
import os, signal, socket, sys, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def end(*_):
    s.shutdown(socket.SHUT_RDWR); s.close(); os._exit(0)
signal.signal(signal.SIGTERM, end)
while True:
    c = s.accept()[0]
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        c.sendall(b"hello\n"); c.recv(10); os._exit(0)
    c.close()
    time.sleep(.005)
"#;

fn is_greeted(port: u16) -> std::io::Result<()> {
    let mut client = Client::try_connect(port)?;
    let mut said = [0; 6];
    client.0.read_exact(&mut said)?;
    assert_eq!(&said, b"hello\n");
    let _ = client.0.write_all(b"bye\n");
    Ok(())
}

#[test]
fn newcomers_are_served_by_the_next_one_of_a_server_that_has_a_process_for_each_client() {
    const CLIENTS: usize = 8;
    const UPGRADES: usize = 4;
    if !is_installed(PYTHON) {
        return;
    }
    let (folder, port) = (folder("shut-down-sessions"), free_port());
    let run = Run::start(&folder, port, SESSIONS);
    Client::connect(port);
    let is_over = AtomicBool::new(false);
    let (upgraded, failed): (Vec<Output>, Vec<Error>) = std::thread::scope(|scope| {
        let come = || {
            let mut failed = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                failed.extend(is_greeted(port).err());
            }
            failed
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(come)).collect();
        let upgrade = |_| {
            std::thread::sleep(Duration::from_millis(300));
            run.upgrade()
        };
        let upgraded = (0..UPGRADES).map(upgrade).collect();
        is_over.store(true, Ordering::SeqCst);
        (upgraded, clients.into_iter().flat_map(|client| client.join().unwrap()).collect())
    });
    assert!(upgraded.iter().all(|upgraded| upgraded.status.success()), "{upgraded:?}");
    // Who is accepted at the end of a process ends with it.
    let refused = failed.iter().filter(|error| error.kind() != ErrorKind::UnexpectedEof);
    assert_eq!(refused.count(), 0, "{failed:?}");
    assert!(failed.len() <= UPGRADES, "{failed:?}");
    run.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
