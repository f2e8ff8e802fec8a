//! A server that tells its workers to end by shutting down the socket at which all of them wait.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, children, eventually, folder, free_port, has_ended, is_installed, kill};
use std::process::{Command, Stdio};

const SERVER: &str = r#"
import os, signal, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
workers = []
for number in range(2):
    worker = os.fork()
    if worker == 0:
        while True:
            try: c = s.accept()[0]
            except OSError: os._exit(0)
            c.recv(1000); c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"); c.close()
    workers.append(worker)
def end(*_):
    s.shutdown(socket.SHUT_RDWR)
    for worker in workers: os.waitpid(worker, 0)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
while True: signal.pause()
"#;

#[test]
fn workers_of_a_server_that_is_upgraded_are_told() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (folder, port) = (folder("told-by-shutdown"), free_port());
    let (program, log) = (folder.join("server.py"), folder.join("log"));
    std::fs::write(&program, SERVER).unwrap();
    let this = std::env::current_exe().unwrap();
    let outlast = this.parent().unwrap().parent().unwrap().join("outlast");
    let name = format!("told-by-shutdown-{}", std::process::id());
    let mut run = Command::new(&outlast);
    run.args([
        "run",
        "--name",
        &name,
        "--stop-timeout",
        "20s",
        "--preload",
        "always",
        "--",
        "/usr/bin/python3",
    ]);
    run.arg(&program).arg(port.to_string()).stdin(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let mut run = run.spawn().unwrap();
    assert!(Client::connect(port).get("/"));
    let main = eventually("it has no workers", || {
        children(run.id()).into_iter().find(|main| children(*main).len() == 2)
    });
    let upgraded = Command::new(&outlast).args(["upgrade", &name]).output().unwrap();
    assert!(upgraded.status.success(), "{upgraded:?}");
    eventually("it does not end", || has_ended(main).then_some(()));
    assert!(Client::connect(port).get("/"));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!said.contains("has not ended in time"), "{said}");
    kill(run.id(), libc::SIGTERM);
    run.wait().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}
