//! Processes with a client each that keep their master's listening socket open, as some FTP servers have them: they never
//! accept anybody there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, children, eventually, family, folder, free_port, is_installed, kill};
use std::io::{Read, Write};
use std::process::Command;

/// Each session says its number. For "data" it listens at a port of its own, says which, and greets who comes there.
const SESSIONS: &str = r#"
import os, signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(100)
while True:
    c = s.accept()[0]
    if os.fork() == 0:
        while True:
            said = c.recv(100)
            if not said: os._exit(0)
            if said == b"data":
                data = socket.socket(); data.bind(("127.0.0.1", 0)); data.listen(1)
                c.sendall(b"%d\n" % data.getsockname()[1])
                one = data.accept()[0]; one.sendall(b"%d\n" % os.getpid()); one.close(); data.close()
            else: c.sendall(b"%d\n" % os.getpid())
    c.close()
"#;

/// A line with a number; none at the end.
fn number(client: &mut Client) -> Option<u32> {
    let (mut said, mut room) = (String::new(), [0; 100]);
    while !said.ends_with('\n') {
        let count = client.0.read(&mut room).ok().filter(|count| *count > 0)?;
        said.push_str(&String::from_utf8_lossy(&room[..count]));
    }
    said.trim().parse().ok()
}

fn ask(client: &mut Client, what: &[u8]) -> Option<u32> {
    client.0.write_all(what).ok()?;
    number(client)
}

#[test]
fn sessions_that_keep_the_listening_socket_open_go_on_when_the_master_is_killed() {
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let (port, folder) = (free_port(), folder("session-listeners"));
    let file = folder.join("program.py");
    std::fs::write(&file, SESSIONS).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string());
    let server = Server::start(&command, true);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(port)).collect();
    let pids: Vec<u32> = clients.iter_mut().map(|client| ask(client, b"who").unwrap()).collect();
    // One of them has accepted somebody, at a socket of its own.
    let data = u16::try_from(ask(&mut clients[0], b"data").unwrap()).unwrap();
    assert_eq!(number(&mut Client::connect(data)), Some(pids[0]));
    let mut master = server.main();
    for _ in 0..2 {
        let before = family(server.pid());
        kill(master, libc::SIGKILL);
        let is_new = |pid: &u32| !before.contains(pid);
        master = eventually("it is not started again", || children(server.pid()).into_iter().find(is_new));
        ask(&mut Client::connect(port), b"who").unwrap();
        let again: Vec<u32> = clients.iter_mut().filter_map(|client| ask(client, b"who")).collect();
        assert_eq!(again, pids, "{:?}", server.said(""));
    }
    server.says("LeftAlone", 2);
    server.stop();
    assert_eq!(clients[0].0.read(&mut [0; 1]).unwrap_or(0), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
