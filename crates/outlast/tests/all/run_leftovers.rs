//! What a program that has died has left running ends before it is started again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{ends, is_running};
use crate::common::{Outlast, PATIENCE, folder, nobody};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

/// A master that opens a port, and a worker that serves there, says who they are, and ignores the signal that is named, if one is.
const SERVER: &str = "
import os, signal, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('127.0.0.1', int(sys.argv[1])))
listener.listen()
if os.fork() == 0:
    # Whatever becomes of this test.
    signal.alarm(120)
    if len(sys.argv) > 2:
        signal.signal(getattr(signal, sys.argv[2]), signal.SIG_IGN)
    sys.stderr.write('begun %d %d\\n' % (os.getppid(), os.getpid()))
    while True:
        connection, _ = listener.accept()
        connection.sendall(b'%d' % os.getpid())
        connection.close()
os.wait()
";

/// Master and worker.
fn begun(outlast: &mut Outlast) -> (u32, u32) {
    let line = outlast.wait_for("begun");
    let mut pids = line.split(' ').skip(1).map(|pid| pid.parse().unwrap());
    (pids.next().unwrap(), pids.next().unwrap())
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

fn who_serves(address: SocketAddr) -> u32 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.parse().unwrap()
}

#[test]
fn workers_without_their_master_are_not_in_the_way_of_the_next_one() {
    for (flags, ignored, line) in [
        (&[][..], None, ": told to end (SIGTERM)"),
        (&["--stop-signal", "INT"], None, ": told to end (SIGINT)"),
        (
            &["--stop-timeout", "100ms"],
            Some("SIGTERM"),
            "not ended in time (in the way of the next start), killed",
        ),
    ] {
        let (folder, address) = (folder(), nobody());
        let port = address.port().to_string();
        let run = [&["run", "--name", "server", "--intensity", "20"], flags].concat();
        let mut arguments = [&run[..], &["--", "python3", "-c", SERVER, &port]].concat();
        arguments.extend(ignored);
        let mut outlast = Outlast::start(folder.path(), &arguments);
        let (mut master, mut worker) = begun(&mut outlast);
        for _ in 0..3 {
            assert_eq!(who_serves(address), worker);
            kill(master);
            outlast.wait_for("server has ended, but not process");
            let next = begun(&mut outlast);
            assert!(!is_running(worker), "two at a time");
            (master, worker) = next;
        }
        outlast.signal("TERM");
        outlast.ended();
        [master, worker].into_iter().for_each(ends);
        let said = outlast.said();
        // One restart each time: the port was free.
        assert_eq!(said.matches("it is started again").count(), 3, "{said}");
        assert_eq!(said.matches(line).count(), 3 + usize::from(line.contains("TERM")), "{said}");
    }
}
