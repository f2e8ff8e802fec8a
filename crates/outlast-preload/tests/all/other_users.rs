//! Processes of other users, below a supervisor of root's: they get nothing that they would not have without it.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, folder, free_port, is_installed, is_root, kill};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

/// Asks the holder for what listens at an address, again and again, until long after the first main process has ended.
/// Says what it has got, and serves with it.
const STRANGER: &str = r#"
import os, signal, socket, struct, sys, time
signal.alarm(60); signal.signal(signal.SIGTERM, signal.SIG_IGN)
name, port, main, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
k = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); k.settimeout(3); k.connect("\0" + name)
address = struct.pack("=H", 2) + struct.pack("!H", port) + b"\x7f\0\0\x01" + b"\0" * 8
ask = struct.pack("=IiIIQ", 2, -1, 0, len(address), 0) + address.ljust(128, b"\0")
got, left = None, 30
while not got and left:
    k.send(ask)
    said, fds, _, _ = socket.recv_fds(k, 152, 1)
    if struct.unpack("=I", said[:4])[0] == 8 and fds: got = socket.socket(fileno=fds[0])
    try: os.kill(main, 0)
    except ProcessLookupError: left -= 1
    except PermissionError: pass
    time.sleep(0.01)
with open(folder + "/said.new", "w") as f: f.write("got it" if got else "nothing")
os.rename(folder + "/said.new", folder + "/said")
while got:
    got.setblocking(True)
    c = got.accept()[0]; c.recv(1000); c.sendall(b"stranger"); c.close()
"#;

/// The first start has a process of another user. The next one binds when that has said what it has got.
const SERVER: &str = r#"
import os, socket, subprocess, sys, time
port, folder = int(sys.argv[1]), sys.argv[2]
if os.path.exists(folder + "/first"):
    while not os.path.exists(folder + "/said"): time.sleep(0.01)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port)); s.listen(100)
if not os.path.exists(folder + "/first"):
    open(folder + "/first", "w").close()
    arguments = [os.environ["OUTLAST_CUSTODY"], str(port), str(os.getpid()), folder]
    subprocess.Popen([sys.executable, folder + "/stranger.py"] + arguments, user=65534, group=65534, extra_groups=[],
                     env={"PATH": "/usr/bin:/bin"}, start_new_session=True, cwd="/")
while True:
    c = s.accept()[0]; c.recv(1000); c.sendall(b"server"); c.close()
"#;

/// Gives its rights away in those starts that are told, before it makes its socket, and serves.
const GIVES_AWAY: &str = r#"
import os, socket, sys, time
port, folder, starts = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
start = len([name for name in os.listdir(folder) if name.startswith("start")])
open(folder + "/start%d" % start, "w").close()
if start: 
    while not os.path.exists(folder + "/go"): time.sleep(0.01)
if str(start) in starts: os.setgroups([]); os.setgid(65534); os.setuid(65534)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port)); s.listen(100)
while True:
    c = s.accept()[0]; c.recv(1000); c.sendall(b"%d %d" % (start, os.getuid())); c.close()
"#;

fn program(text: &str, folder: &Path, port: u16) -> Command {
    let file = folder.join("program.py");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(file).arg(port.to_string()).arg(folder);
    command
}

fn ask(mut client: Client) -> Option<String> {
    let mut said = String::new();
    client.0.write_all(b"x").ok()?;
    client.0.read_to_string(&mut said).ok()?;
    Some(said).filter(|said| !said.is_empty())
}

fn answer(port: u16) -> String {
    eventually("nobody answers", || Client::try_connect(port).ok().and_then(ask))
}

#[test]
fn a_process_of_another_user_does_not_get_a_listening_socket_of_roots() {
    if !is_installed("/usr/bin/python3") || !is_root() {
        return;
    }
    let (folder, port) = (folder("other-users"), free_port());
    std::fs::write(folder.join("stranger.py"), STRANGER).unwrap();
    let server = Server::start(&program(SERVER, &folder, port), true);
    assert_eq!(answer(port), "server");
    kill(server.main(), libc::SIGKILL);
    let said = eventually("the stranger says nothing", || std::fs::read_to_string(folder.join("said")).ok());
    assert_eq!(said, "nothing");
    assert_eq!(answer(port), "server");
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_server_that_gives_its_rights_away_gets_its_own_socket_and_clients() {
    if !is_installed("/usr/bin/python3") || !is_root() {
        return;
    }
    let (folder, port) = (folder("gives-away"), free_port());
    let mut command = program(GIVES_AWAY, &folder, port);
    let server = Server::start(command.arg("0,1"), true);
    assert_eq!(answer(port), "0 65534");
    kill(server.main(), libc::SIGKILL);
    eventually("it is not started again", || folder.join("start1").exists().then_some(()));
    // Nobody else listens there yet.
    let waits = Client::try_connect(port).unwrap();
    std::fs::write(folder.join("go"), "").unwrap();
    assert_eq!(ask(waits).unwrap(), "1 65534");
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_server_that_is_another_users_from_one_start_on_serves_as_it_would_without_us() {
    if !is_installed("/usr/bin/python3") || !is_root() {
        return;
    }
    // From root to another user, and back.
    for (starts, said) in [("1", ["0 0", "1 65534"]), ("0", ["0 65534", "1 0"])] {
        let (folder, port) = (folder("other-user"), free_port());
        std::fs::write(folder.join("go"), "").unwrap();
        let mut command = program(GIVES_AWAY, &folder, port);
        let server = Server::start(command.arg(starts), true);
        assert_eq!(answer(port), said[0]);
        kill(server.main(), libc::SIGKILL);
        eventually("it does not serve", || (answer(port) == said[1]).then_some(()));
        assert_eq!(server.stop(), 128 + libc::SIGTERM);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
