//! `outlast run` with servers that were not changed and take their time to end: clients wait for the next one, and none is
//! refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, command, eventually, folder};
use crate::run_preload::{Client, Comes, PROGRAM, free_port, library};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

/// Of one thread, so that it may shut its socket down, as Perl's servers do: after that it ends when a file is there.
const SHUTS_DOWN: &str = "
import os, signal, socket, sys, time
port, folder = int(sys.argv[1]), sys.argv[2]
def is_there(name): return os.path.exists(os.path.join(folder, name))
def put(name): open(os.path.join(folder, name), 'w').close()
def told(*_):
    if is_there('shut'): os._exit(0)
    put('told')
    while not is_there('may-shut'): time.sleep(0.01)
    s.shutdown(socket.SHUT_RDWR)
    try: s.accept(); put('accepts')
    except OSError: pass
    put('shut')
    while not is_there('may-end'): time.sleep(0.01)
    os._exit(0)
signal.alarm(120)
signal.signal(signal.SIGTERM, told)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', port)); s.listen(200)
while True:
    c = s.accept()[0]
    if c.recv(1000):
        body = str(os.getpid()).encode()
        c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s' % (len(body), body))
    c.close()
";

fn run<'a>(library: &'a str, port: &'a str, files: [&'a str; 2]) -> [&'a str; 14] {
    let [program, folder] = files;
    [
        "run",
        "--name",
        "web",
        "--preload",
        "always",
        "--preload-library",
        library,
        "--stop-timeout",
        "1000s",
        "--",
        "/usr/bin/python3",
        program,
        port,
        folder,
    ]
}

fn is_there(folder: &Path, name: &str) -> bool {
    folder.join(name).exists()
}

/// Its supervisor has no time for it just then, as on a machine that is busy, and the upgrade is withdrawn.
#[test]
fn a_server_that_shuts_its_socket_down_when_it_is_replaced_refuses_nobody() {
    let (folder, port, library) = (folder(), free_port(), library());
    let file = folder.path().join("program.py");
    std::fs::write(&file, SHUTS_DOWN).unwrap();
    let port_text = port.to_string();
    let files = [file.to_str().unwrap(), folder.path().to_str().unwrap()];
    let mut outlast = Outlast::start(folder.path(), &run(library.to_str().unwrap(), &port_text, files));
    outlast.wait_for("is ready");
    let old = Client::connect(port).get();
    let mut upgrade = command(folder.path(), &["upgrade", "web"]);
    upgrade.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut upgrade = Outlast::from(upgrade);
    eventually("it is not told to end", || is_there(folder.path(), "told").then_some(()));
    upgrade.signal("INT");
    upgrade.ended();
    outlast.signal("STOP");
    let connect = || TcpStream::connect(("127.0.0.1", port)).map(Client);
    let before = connect();
    std::fs::write(folder.path().join("may-shut"), "").unwrap();
    eventually("it does not shut its socket down", || is_there(folder.path(), "shut").then_some(()));
    let behind = connect();
    outlast.signal("CONT");
    std::fs::write(folder.path().join("may-end"), "").unwrap();
    for (which, client) in [("before", before), ("behind", behind)] {
        let mut client = client.unwrap_or_else(|error| panic!("the one {which}: {error}"));
        client.0.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        match client.try_get() {
            Ok(next) => assert_ne!(next, old),
            Err(heard) => panic!("the one {which}: {heard}\n{}", outlast.said_so_far()),
        }
    }
    assert!(!is_there(folder.path(), "accepts"), "it has shut its socket down, and accepts somebody");
    outlast.signal("TERM");
    outlast.ended();
}

/// Killed before, it would leave files that keep the next one from starting (dovecot).
#[test]
fn a_server_without_its_supervisor_has_all_of_its_time_to_end_while_clients_wait() {
    let (folder, port, library) = (folder(), free_port(), library());
    let file = folder.path().join("program.py");
    // More than others get.
    let ends = "import signal, time; signal.alarm(120)\n\
        def put(name):\n with open(sys.argv[2] + '/' + name, 'w') as file: file.write(str(os.getpid()))\n\
        def told(*_): put('told'); time.sleep(6); put('ended'); os._exit(0)\n\
        signal.signal(signal.SIGTERM, told)\nhttp.server.Threading";
    std::fs::write(&file, PROGRAM.replacen("http.server.Threading", ends, 1)).unwrap();
    let port_text = port.to_string();
    let files = [file.to_str().unwrap(), folder.path().to_str().unwrap()];
    let library = library.to_str().unwrap();
    let mut first = Outlast::start(folder.path(), &run(library, &port_text, files));
    first.wait_for("is ready");
    let old = Client::connect(port).get();
    first.signal("KILL");
    first.ended();
    let comes = Comes::begin(port);
    let mut next = Outlast::start(folder.path(), &run(library, &port_text, files));
    let noted = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let line = next.wait_for("web of before still runs without its supervisor");
    let told = "new clients wait until the next one listens. It is told to end, and killed after 16m 40s (--stop-timeout)";
    assert!(line.contains(told), "{line}");
    assert_eq!(noted("ended"), "", "nobody was told meanwhile");
    next.wait_for("is ready");
    assert_eq!(noted("ended"), old, "it was killed");
    let old = Client::connect(port).get();
    assert_eq!(comes.refused(), 0, "some were refused");
    next.signal("KILL");
    next.ended();
    // Who is in a hurry does not wait for that.
    let mut hurried = Outlast::start(folder.path(), &run(library, &port_text, files));
    eventually("it is not told to end", || (noted("told") == old).then_some(()));
    hurried.signal("TERM");
    hurried.ended();
    assert_ne!(noted("ended"), old, "it was waited for");
}
