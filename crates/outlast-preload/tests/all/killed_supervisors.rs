//! The supervisor was killed, and a stranger has taken its name: the program says nothing to it.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, PYTHON, Server, eventually, family, folder, free_port, is_installed, is_root, kill, python,
    script,
};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Counts what it is told, as soon as it has the name, until there is the file "done".
const STRANGER: &str = r#"
import os, signal, socket, struct, sys, time
signal.alarm(60)
name, folder = sys.argv[1:]
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
while True:
    try: s.bind("\0" + name); break
    except OSError: time.sleep(0.01)
s.listen(100); s.setblocking(False)
open(folder + "/has", "w").close()
all, heard, over = [], 0, False
while not over:
    over = os.path.exists(folder + "/done")
    try:
        while True: all.append(s.accept()[0])
    except BlockingIOError: pass
    for one in all:
        one.setblocking(False)
        try:
            while True:
                said, fds, _, _ = socket.recv_fds(one, 152, 2)
                if not said: break
                heard += 1
                one.send(struct.pack("=IiIIQ", 9, -1, 0, 0, 0) + bytes(128))
        except OSError: pass
    time.sleep(0.01)
with open(folder + "/said.new", "w") as f: f.write(str(heard))
os.rename(folder + "/said.new", folder + "/said")
"#;

/// Listens. Later a child that it forks does, too, and one that executes something.
const SERVER: &str = r#"
import os, signal, socket, subprocess, sys, time
signal.alarm(60)
folder, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
def listen(port):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port)); s.listen(100)
    return s
def serve(s):
    while True:
        c = s.accept()[0]; c.recv(1000); c.sendall(b"server"); c.close()
s = listen(ports[0])
if len(ports) == 3:
    while not os.path.exists(folder + "/go"): time.sleep(0.01)
    if os.fork() == 0: serve(listen(ports[1]))
    subprocess.Popen([sys.executable, __file__, folder, str(ports[2])])
serve(s)
"#;

fn answer(port: u16) -> String {
    let mut said = String::new();
    let mut client = Client::connect(port);
    client.0.write_all(b"x").unwrap();
    client.0.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn who_has_the_name_of_a_killed_supervisor_hears_nothing_of_its_program() {
    if !is_installed(PYTHON) || !is_root() {
        return;
    }
    let (folder, ports) = (folder("killed-supervisor"), [free_port(), free_port(), free_port()]);
    let server = Server::start(&python(&folder, SERVER, &ports), true);
    let main = server.main();
    // It listens. It serves when it may go on.
    drop(Client::connect(ports[0]));
    let environment = std::fs::read(format!("/proc/{main}/environ")).unwrap();
    let name = environment
        .split(|byte| *byte == 0)
        .find_map(|line| line.strip_prefix(b"OUTLAST_CUSTODY="))
        .map(|name| String::from_utf8(name.to_vec()).unwrap())
        .unwrap();
    let mut stranger = Command::new(PYTHON)
        .arg(script(&folder, "stranger.py", STRANGER))
        .arg(name)
        .arg(&folder)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .uid(65534)
        .gid(65534)
        .spawn()
        .unwrap();
    kill(server.pid(), libc::SIGKILL);
    eventually("the name stays taken", || folder.join("has").exists().then_some(()));
    std::fs::write(folder.join("go"), "").unwrap();
    let answers = [answer(ports[1]), answer(ports[2])];
    std::fs::write(folder.join("done"), "").unwrap();
    let said = eventually("the stranger says nothing", || std::fs::read_to_string(folder.join("said")).ok());
    stranger.wait().unwrap();
    let below = family(main);
    below.into_iter().chain([main]).for_each(|pid| kill(pid, libc::SIGKILL));
    assert_eq!((said.as_str(), answers), ("0", ["server", "server"].map(String::from)));
    std::fs::remove_dir_all(folder).unwrap();
}
