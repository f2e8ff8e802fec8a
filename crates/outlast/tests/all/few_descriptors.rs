//! `connect` with fewer descriptors than local programs would take.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{listen, say};
use crate::common::{Outlast, PATIENCE, echo, folder, nobody};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAMS: usize = 100;

fn connect_limited(runtime: &Path, via: SocketAddr) -> Outlast {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_outlast"), "connect"])
        .args(["127.0.0.1:0", "--via", &via.to_string()])
        .env("XDG_RUNTIME_DIR", runtime)
        .env_remove("OUTLAST_LOG")
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    Outlast::from(command)
}

fn program(front: SocketAddr) -> TcpStream {
    let program = TcpStream::connect(front).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program
}

/// They wait for a server: if each of them took a descriptor, there would be none for the first link.
#[test]
fn programs_that_wait_for_a_server_leave_descriptors_for_their_links() {
    let folder = folder();
    let address = nobody();
    let mut client = connect_limited(folder.path(), address);
    let front = client.address();
    let waiting: Vec<_> = (0..PROGRAMS)
        .map(|_| {
            let mut program = program(front);
            std::thread::spawn(move || say(&mut program, b"a line\n"))
        })
        .collect();
    client.wait_for("local programs wait until others end");
    let _server = listen(folder.path(), address, &echo().to_string(), &[]);
    for program in waiting {
        program.join().unwrap();
    }
}

/// Those that queue must not get the descriptors of links that are lost for a moment.
#[test]
fn sessions_have_their_next_links_while_other_programs_wait() {
    let folder = folder();
    let (address, service) = (nobody(), echo().to_string());
    let mut server = listen(folder.path(), address, &service, &[]);
    let mut client = connect_limited(folder.path(), address);
    let front = client.address();
    // As many as there is room for, and some that queue.
    let mut programs: Vec<TcpStream> = (0..PROGRAMS).map(|_| program(front)).collect();
    client.wait_for("local programs wait until others end");
    // The first ones have places.
    let served = &mut programs[..5];
    served.iter_mut().for_each(|program| say(program, b"before\n"));
    server.signal("TERM");
    server.ended();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let _next = listen(folder.path(), address, &service, &[]);
    served.iter_mut().for_each(|program| say(program, b"after\n"));
}
