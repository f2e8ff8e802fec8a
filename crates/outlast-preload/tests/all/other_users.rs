//! Processes of other users, below a supervisor of root's: they get nothing that they would not have without it.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, eventually, folder, free_port, is_installed, is_root, kill, python, python_at,
    wait_until_held,
};
use std::io::{Read, Write};
use std::time::Duration;

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

/// A server of root's that has left a process of another user behind, which binds to its address, written as the first of
/// these says, when the server has crashed, and serves.
const LEAVES_STRANGER: &str = r#"
import os, signal, socket, sys, time
port, folder, written = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def stranger():
    signal.alarm(60); os.setsid(); os.setgroups([]); os.setgid(65534); os.setuid(65534)
    while not os.path.exists(folder + "/go"): time.sleep(0.01)
    said = "nothing"
    try:
        q = socket.socket(socket.AF_INET6 if ":" in written else socket.AF_INET)
        q.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); q.bind((written, port)); q.close()
        s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", port)); s.listen(100)
        said = "listens"
    except OSError: pass
    with open(folder + "/said.new", "w") as f: f.write(said)
    os.rename(folder + "/said.new", folder + "/said")
    while said == "listens":
        c = s.accept()[0]; c.recv(1000)
        c.sendall(b"HTTP/1.1 200 stranger\r\nContent-Length: 0\r\n\r\n")
    time.sleep(60)
if not os.path.exists(folder + "/first"):
    open(folder + "/first", "w").close()
    if os.fork() == 0:
        try: stranger()
        finally: os._exit(0)
else:
    open(folder + "/second", "w").close()
    while not os.path.exists(folder + "/said"): time.sleep(0.01)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port)); s.listen(100)
def serve(c):
    while c.recv(1000): c.sendall(b"HTTP/1.1 200 server\r\nContent-Length: 0\r\n\r\n")
import threading
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

/// A process of another user listens where root's server has listened, which has closed that, and has a worker with a client.
const STRANGER_LISTENS: &str = r#"
import os, signal, socket, sys, time
port, folder = int(sys.argv[1]), sys.argv[2]
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port)); s.listen(100)
if os.fork() == 0:
    signal.alarm(60); c = s.accept()[0]; s.close()
    with open(folder + "/worker.new", "w") as f: f.write(str(os.getpid()))
    os.rename(folder + "/worker.new", folder + "/worker")
    while c.recv(1000): c.sendall(b"HTTP/1.1 200 server\r\nContent-Length: 0\r\n\r\n")
    os._exit(0)
if os.fork() == 0:
    signal.alarm(60); s.close()
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    while not os.path.exists(folder + "/go"): time.sleep(0.01)
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    while True:
        try: s.bind(("127.0.0.1", port)); break
        except OSError: time.sleep(0.1)
    s.listen(100)
    open(folder + "/listens", "w").close()
    while True:
        c = s.accept()[0]
        if c.recv(1000): c.sendall(b"HTTP/1.1 200 stranger\r\nContent-Length: 0\r\n\r\n")
        c.close()
while not os.path.exists(folder + "/worker"): time.sleep(0.01)
s.close()
while True: time.sleep(1)
"#;

/// Says that it listens at "victim" in a folder where it may not write, as the user that is told, who has such a socket.
const LINKS: &str = r#"
import os, socket, struct, sys, time
folder, user = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(user); os.setuid(user)
os.chdir(folder + "/its")
l = socket.socket(socket.AF_UNIX); l.bind("victim"); l.listen(5)
k = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); k.settimeout(3); k.connect("\0" + os.environ["OUTLAST_CUSTODY"])
ours = os.open(folder + "/ours", os.O_PATH | os.O_DIRECTORY)
# Another one of the same name: of the first one the file is known by now.
m = socket.socket(socket.AF_UNIX); os.mkdir("other"); os.chdir("other"); 
import ctypes
call = ctypes.CDLL(None).syscall
address = struct.pack("=H", 1) + b"victim\0"
call(49, m.fileno(), address, len(address)); call(50, m.fileno(), 5)
text = struct.pack("=IiIIQ", 3, m.fileno(), 0, len(address), 0) + address.ljust(128, b"\0")
socket.send_fds(k, [text], [m.fileno(), ours])
# It is answered when what was said before is dealt with.
k.send(struct.pack("=IiIIQ", 2, -1, 0, 0, 0) + bytes(128)); k.recv(152)
open(folder + "/its/done", "w").close()
while True: time.sleep(1)
"#;

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
    let server = Server::start(&python_at(port, &folder, SERVER), true);
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
    let mut command = python_at(port, &folder, GIVES_AWAY);
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
        let mut command = python_at(port, &folder, GIVES_AWAY);
        let server = Server::start(command.arg(starts), true);
        assert_eq!(answer(port), said[0]);
        kill(server.main(), libc::SIGKILL);
        eventually("it does not serve", || (answer(port) == said[1]).then_some(()));
        assert_eq!(server.stop(), 128 + libc::SIGTERM);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_process_of_another_user_does_not_get_roots_clients_by_another_way_to_write_the_address() {
    if !is_installed("/usr/bin/python3") || !is_root() {
        return;
    }
    for written in ["127.0.0.1", "::ffff:127.0.0.1"] {
        let (folder, port) = (folder("mapped"), free_port());
        let server = Server::start(python_at(port, &folder, LEAVES_STRANGER).arg(written), true);
        let mut idle = Client::connect(port);
        assert!(idle.get("/"));
        wait_until_held(&server, [&idle]);
        kill(server.main(), libc::SIGKILL);
        eventually("it is not started again", || folder.join("second").exists().then_some(()));
        let mut waits = Client::try_connect(port).unwrap();
        std::fs::write(folder.join("go"), "").unwrap();
        let said = eventually("the stranger is silent", || std::fs::read_to_string(folder.join("said")).ok());
        let answers = [&mut waits, &mut idle].map(|client| {
            client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            client.answered().unwrap_or_default()
        });
        assert_eq!(
            (said.as_str(), answers),
            ("nothing", ["http/1.1 200 server"; 2].map(String::from)),
            "{written}"
        );
        drop(server);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn an_idle_client_of_roots_is_not_given_to_another_user_who_listens_where_it_came_to() {
    if !is_installed("/usr/bin/python3") || !is_root() {
        return;
    }
    let (folder, port) = (folder("listens-later"), free_port());
    let server = Server::start(&python_at(port, &folder, STRANGER_LISTENS), true);
    let mut idle = Client::connect(port);
    assert!(idle.get("/"));
    wait_until_held(&server, [&idle]);
    let worker = eventually("no worker", || std::fs::read_to_string(folder.join("worker")).ok());
    // The holder lets go of what the program has closed.
    eventually("its port stays taken", || Client::try_connect(port).is_err().then_some(()));
    std::fs::write(folder.join("go"), "").unwrap();
    eventually("the stranger does not listen", || folder.join("listens").exists().then_some(()));
    kill(worker.parse().unwrap(), libc::SIGKILL);
    eventually("it is not kept", || server.said("kept: 1").pop());
    idle.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    // It ends soon, as nobody may have it.
    idle.0.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(idle.answered(), None);
    let told = eventually("nobody says so", || server.said("ListensElsewhere").pop());
    assert_eq!(told, "ListensElsewhere { closed: 1 }");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn no_link_is_made_to_a_socket_of_roots_for_another_user() {
    use std::os::unix::fs::PermissionsExt;
    if !is_installed("/usr/bin/python3") || !is_root() {
        return;
    }
    // As a control, for root it is made.
    for (user, links) in [("65534", 0), ("0", 1)] {
        let folder = folder("links");
        for (name, mode) in [("ours", 0o755), ("its", 0o777)] {
            std::fs::create_dir(folder.join(name)).unwrap();
            std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let _victim = std::os::unix::net::UnixListener::bind(folder.join("ours/victim")).unwrap();
        let server = Server::start(python(&folder, LINKS, &[]).arg(user), true);
        eventually("it does not say so", || folder.join("its/done").exists().then_some(()));
        assert_eq!(std::fs::read_dir(folder.join("ours")).unwrap().count(), 1 + links, "{user}");
        // Its own socket has one, in its own folder.
        let its = std::fs::read_dir(folder.join("its")).unwrap().flatten();
        let own = its.filter(|entry| entry.file_name().to_str().unwrap().starts_with(".victim.outlast-"));
        assert_eq!(own.count(), 1, "{user}");
        drop(server);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
