//! `outlast run` with servers that were not changed: several that are called the same, and what is said of what is not kept.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::restarts::{ends, is_running};
use crate::common::supervised::{status, until};
use crate::common::{Outlast, command, folder, output};
use crate::run_preload::{Client, Comes, PROGRAM, await_idle, free_port, library, signal};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The server at this port, called by its file.
fn arguments(folder: &Path, port: u16) -> Vec<String> {
    arguments_of(PROGRAM, folder, port)
}

fn arguments_of(program: &str, folder: &Path, port: u16) -> Vec<String> {
    let file = folder.join("program.py");
    std::fs::write(&file, program).unwrap();
    let library = library().to_str().unwrap().to_owned();
    // What it is called is nobody else's.
    let interpreter = folder.join(name());
    let _ = std::os::unix::fs::symlink("/usr/bin/python3", &interpreter);
    let run = ["run", "--preload", "always", "--preload-library", &library, "--"];
    let run = run.into_iter().chain([interpreter.to_str().unwrap(), file.to_str().unwrap()]);
    run.map(str::to_owned).chain([port.to_string()]).collect()
}

fn name() -> String {
    format!("server-{}", std::process::id())
}

fn start(folder: &Path, port: u16) -> Outlast {
    let arguments = arguments(folder, port);
    Outlast::start(folder, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A server whose supervisor is killed: what it answers.
fn left_behind(folder: &Path, arguments: &[&str], port: u16) -> String {
    let mut outlast = Outlast::start(folder, arguments);
    outlast.wait_for("is ready");
    let old = Client::connect(port).get();
    outlast.signal("KILL");
    outlast.ended();
    old
}

#[test]
fn servers_of_one_program_are_no_strangers_to_each_other() {
    let (folder, ports) = (folder(), [free_port(), free_port(), free_port()]);
    let [mut first, mut second] = [ports[0], ports[1]].map(|port| start(folder.path(), port));
    let pids = [ports[0], ports[1]].map(|port| Client::connect(port).get());
    let page = String::from_utf8(output(folder.path(), &["status"]).stdout).unwrap();
    assert_eq!(page.matches(&format!("keeps {} running", name())).count(), 2, "{page}");
    first.signal("KILL");
    first.ended();
    // One at another address leaves it alone, and says what still runs.
    let mut third = start(folder.path(), ports[2]);
    let line = third.wait_for(&format!("process {} of an earlier {} still runs", pids[0], name()));
    assert!(line.contains("listens at the same address"), "{line}");
    third.wait_for("is ready");
    Client::connect(ports[2]).get();
    assert_eq!(Client::connect(ports[0]).get(), pids[0]);
    // The next one at its address takes over from it.
    let comes = Comes::begin(ports[0]);
    let mut next = start(folder.path(), ports[0]);
    let line = next.wait_for("has got 1 listening sockets of an earlier one");
    assert!(line.contains(&format!("process {} (", pids[0])) && line.contains("told to end"), "{line}");
    ends(pids[0].parse().unwrap());
    assert_ne!(Client::connect(ports[0]).get(), pids[0]);
    assert_eq!(comes.refused(), 0, "some were refused");
    assert_eq!(Client::connect(ports[1]).get(), pids[1]);
    assert!(is_running(pids[1].parse().unwrap()));
    for outlast in [&mut second, &mut third, &mut next] {
        outlast.signal("TERM");
        outlast.ended();
    }
    assert!(!second.said().contains("told to end (SIGKILL)"), "{}", second.said());
}

/// It takes a lock when it listens, which the one before has until it has ended: 2 s after it was told to.
#[test]
fn a_start_that_fails_beside_its_predecessor_waits_for_the_end_of_that() {
    let (folder, port) = (folder(), free_port());
    let locks = "import fcntl, http.server, os, signal, sys, time
class Locking(http.server.ThreadingHTTPServer):
    def server_activate(self):
        super().server_activate()
        self.lock = os.open(__file__ + '.lock', os.O_CREAT | os.O_RDWR)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
def end(*_):
    time.sleep(2)
    os._exit(0)
signal.signal(signal.SIGTERM, end)";
    let program = PROGRAM.replacen("import http.server, os, sys", locks, 1);
    let program = program.replacen("http.server.ThreadingHTTPServer((", "Locking((", 1);
    let arguments = arguments_of(&program, folder.path(), port);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let old = left_behind(folder.path(), &arguments, port);
    let comes = Comes::begin(port);
    let mut next = Outlast::start(folder.path(), &arguments);
    next.wait_for("has got 1 listening sockets of an earlier one");
    ends(old.parse().unwrap());
    assert_ne!(Client::connect(port).get(), old);
    assert_eq!(comes.refused(), 0, "some were refused");
    next.signal("TERM");
    assert_eq!(next.ended().code(), Some(0), "{}", next.said());
    // It has failed once, and then nothing was tried in vain.
    assert_eq!(next.said().matches("BlockingIOError").count(), 1, "{}", next.said());
}

/// Its workers listen, each for itself, and it starts others in the place of those that have ended.
#[test]
fn a_master_that_does_not_listen_itself_is_ended_with_its_workers() {
    let (folder, port) = (folder(), free_port());
    let program = "
import os, signal, socket, sys
def work():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(('127.0.0.1', int(sys.argv[1])))
    listener.listen(64)
    while True:
        client, _ = listener.accept()
        client.recv(9999)
        body = str(os.getppid())
        client.sendall(f'HTTP/1.1 200 OK\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}'.encode())
        client.close()
def end(*_):
    for worker in workers: os.kill(worker, signal.SIGTERM)
    os._exit(0)
workers = set()
signal.signal(signal.SIGTERM, end)
while True:
    while len(workers) < 2:
        worker = os.fork()
        if worker == 0: work()
        workers.add(worker)
    workers.discard(os.wait()[0])
";
    let arguments = arguments_of(program, folder.path(), port);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let master = left_behind(folder.path(), &arguments, port);
    let listed = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
    let workers: Vec<u32> = listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    let mut next = Outlast::start(folder.path(), &arguments);
    next.wait_for("listening sockets of an earlier one");
    // A worker that is about to end may still accept a client, which is lost with it: the kernel looks for clients first.
    [master.parse().unwrap()].into_iter().chain(workers).for_each(ends);
    match Client::connect(port).try_get() {
        Ok(served_by) => assert_ne!(served_by, master),
        Err(heard) => panic!("it has ended: {heard:?}\n{}", next.said_so_far()),
    }
    next.signal("TERM");
    assert_eq!(next.ended().code(), Some(0), "{}", next.said());
}

/// Its sockets are those of the user that it has become. The supervisor's memory, which it has, is root's.
#[test]
fn a_server_that_has_given_its_rights_away_is_taken_over_as_well() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give rights away");
        return;
    }
    let (folder, port) = (folder(), free_port());
    let program = PROGRAM.replacen(
        "http.server.Threading",
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\nhttp.server.Threading",
        1,
    );
    let arguments = arguments_of(&program, folder.path(), port);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let old = left_behind(folder.path(), &arguments, port);
    let owner = std::fs::read_to_string(format!("/proc/{old}/status")).unwrap();
    assert!(owner.contains("Uid:\t65534\t65534"), "{owner}");
    let comes = Comes::begin(port);
    let mut next = Outlast::start(folder.path(), &arguments);
    next.wait_for("has got 1 listening sockets of an earlier one");
    ends(old.parse().unwrap());
    assert_ne!(Client::connect(port).get(), old);
    assert_eq!(comes.refused(), 0, "some were refused");
    next.signal("TERM");
    next.ended();
}

#[test]
fn what_cannot_be_kept_is_said_once_with_the_name_of_the_program() {
    let (folder, port) = (folder(), free_port());
    let mut outlast = start(folder.path(), port);
    for _ in 0..2 {
        let hello: &[u8] = &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0];
        for said in [hello, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PING\r\n", b"\0\0\0\x08\x04\xd2\x16\x2f"] {
            let mut client = Client::connect(port);
            client.0.write_all(said).unwrap();
            // Whatever it answers: it has read that.
            client.0.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = std::io::copy(&mut client.0, &mut std::io::sink());
        }
    }
    let pid = Client::connect(port).get();
    for kind in ["with TLS", "with HTTP/2", "that do not begin with a clear HTTP/1 request"] {
        let line = outlast.wait_for(kind);
        assert!(line.contains(&format!("{}: connections", name())) && line.contains("WARN"), "{line}");
    }
    // Nor again after a crash.
    signal(&pid, "KILL");
    outlast.wait_for("it is started again");
    let mut client = Client::connect(port);
    client.0.write_all(b"PING\r\n").unwrap();
    let _ = std::io::copy(&mut client.0, &mut std::io::sink());
    Client::connect(port).get();
    outlast.signal("TERM");
    outlast.ended();
    assert_eq!(outlast.said().matches("are not kept over a crash").count(), 3, "{}", outlast.said());
}

/// The copies are descriptors of the supervisor, which must not run out of them.
#[test]
fn where_descriptors_are_few_the_oldest_idle_connections_are_given_up() {
    const LIMIT: usize = 100;
    const CLIENTS: usize = 70;
    let (folder, port) = (folder(), free_port());
    let arguments = arguments(folder.path(), port);
    let plain = command(folder.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut limited = Command::new("/bin/sh");
    limited.arg("-c").arg(format!("ulimit -n {LIMIT}; exec \"$0\" \"$@\""));
    limited.arg(plain.get_program()).args(plain.get_args());
    limited.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.env("OUTLAST_LOG", "info").stdin(Stdio::null()).stderr(Stdio::piped());
    let mut outlast = Outlast::from(limited);
    let mut clients: Vec<Client> = Vec::new();
    for number in 0..CLIENTS {
        let mut client = Client::connect(port);
        let pid = client.get();
        clients.push(client);
        if number == 0 {
            await_idle(folder.path(), &pid, 1);
        }
    }
    let line = outlast.wait_for("more idle connections than can be kept");
    let now = until(folder.path(), "held", |now| now["connections"].as_u64().is_some_and(|held| held > 20));
    let held = usize::try_from(now["connections"].as_u64().unwrap()).unwrap();
    assert!(held < CLIENTS && line.contains(&format!("{} has more", name())), "{held}: {line}");
    let open = std::fs::read_dir(format!("/proc/{}/fd", outlast.pid())).unwrap().count();
    assert!(open < LIMIT, "{open} descriptors");
    // The latest is kept, the first is not.
    let (mut last, mut first) = (clients.pop().unwrap(), clients.swap_remove(0));
    let pid = last.get();
    await_idle(folder.path(), &pid, held as u64);
    signal(&pid, "KILL");
    outlast.wait_for(&format!("process {pid} has been killed"));
    assert_ne!(last.get(), pid);
    assert_eq!(std::io::Read::read(&mut first.0, &mut [0]).unwrap_or(0), 0);
    let crash = &status(folder.path())["crashes"]["kept"][0];
    assert_eq!(crash["kept"], held, "{crash}");
    outlast.signal("TERM");
    outlast.ended();
    assert_eq!(outlast.said().matches("more idle connections").count(), 1);
}

/// The old one is told to end when the new one is about to be started: clients wait meanwhile.
#[test]
fn an_upgrade_of_a_server_that_was_not_changed_refuses_nobody_and_keeps_idle_connections() {
    let (folder, port) = (folder(), free_port());
    let mut outlast = start(folder.path(), port);
    let mut client = Client::connect(port);
    let old = client.get();
    await_idle(folder.path(), &old, 1);
    let comes = Comes::begin(port);
    let done = output(folder.path(), &["upgrade", &name()]);
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert!(done.status.success() && said.contains("restarted from scratch"), "{said}");
    ends(old.parse().unwrap());
    let new = client.get();
    assert_ne!(new, old);
    assert_eq!(comes.refused(), 0, "some were refused");
    // One that cannot be run stops nothing, and one that does not serve is followed by the old one.
    await_idle(folder.path(), &new, 1);
    let comes = Comes::begin(port);
    let done = output(folder.path(), &["upgrade", &name(), "--program", "/no/such/program"]);
    assert_eq!((done.status.code(), client.get()), (Some(2), new.clone()));
    await_idle(folder.path(), &new, 1);
    let done = output(folder.path(), &["upgrade", &name(), "--program", "/bin/false"]);
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert_eq!((done.status.code(), said.contains("before it served (exit 1)")), (Some(8), true), "{said}");
    assert_ne!(client.get(), new);
    assert_eq!(comes.refused(), 0, "some were refused");
    outlast.signal("TERM");
    outlast.ended();
}

/// Nothing can be loaded into a program that is linked statically, nor does one tell anything that calls the kernel by itself.
#[test]
fn a_program_that_does_not_tell_where_it_listens_is_named() {
    let (folder, port, library) = (folder(), free_port(), library());
    // Python, without the C library's function.
    let program = format!(
        "import ctypes, socket, time\ns = socket.socket(); s.bind(('127.0.0.1', {port}))\n\
         ctypes.CDLL(None).syscall({}, s.fileno(), 5)\ntime.sleep(600)",
        libc::SYS_listen
    );
    let preload = ["--preload", "always", "--preload-library", library.to_str().unwrap()];
    let run =
        [&["run", "--name", "silent"], &preload[..], &["--", "/usr/bin/python3", "-c", &program]].concat();
    let mut outlast = Outlast::start(folder.path(), &run);
    let line = outlast.wait_for("does not use the C library for that");
    assert!(
        line.contains("WARN silent is started again") && line.contains("(python3), which listens"),
        "{line}"
    );
    outlast.signal("TERM");
    outlast.ended();
    assert_eq!(outlast.said().matches("does not use the C library").count(), 1);
}

/// What a server that serves by other processes executes may have no library in it, for one reason or the other.
#[test]
fn a_process_into_which_no_library_is_loaded_is_named_with_the_reason() {
    let server = "import http.server, socket\n\
        class H(http.server.BaseHTTPRequestHandler):\n    pass\n\
        s = http.server.HTTPServer(('127.0.0.1', PORT), H, SOCKET is None)\n\
        if SOCKET: s.socket.close(); s.socket = socket.socket(fileno=SOCKET)\n\
        s.serve_forever()";
    let activated = "import os, socket\ns = socket.socket(); s.bind(('127.0.0.1', PORT)); s.listen(50)\n\
        os.set_inheritable(s.fileno(), True); os.dup2(s.fileno(), 30)\n\
        os.execve('/usr/bin/python3', ['python3', '-c', SERVER], {})";
    let secure =
        "import os\nos.setresuid(0, 65534, 0)\nos.execv('/usr/bin/python3', ['python3', '-c', SERVER])";
    let cases = [
        (activated, "30", "its connections are closed", "without the environment"),
        (secure, "None", "its listening sockets and connections are closed", "an effective user other than"),
    ];
    for (launcher, socket, what, why) in cases {
        if launcher == secure && !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can give rights away");
            continue;
        }
        let (folder, port, library) = (folder(), free_port(), library());
        let server = server.replace("SOCKET", socket).replace("PORT", &port.to_string());
        let program = launcher.replace("PORT", &port.to_string()).replace("SERVER", &format!("{server:?}"));
        let preload = ["--preload", "always", "--preload-library", library.to_str().unwrap()];
        let program = ["--", "/usr/bin/python3", "-c", &program];
        let mut outlast =
            Outlast::start(folder.path(), &[&["run", "--name", "bare"], &preload[..], &program].concat());
        let line = outlast.wait_for(what);
        assert!(line.contains("WARN") && line.contains("(python3), which") && line.contains(why), "{line}");
        outlast.signal("TERM");
        outlast.ended();
        assert_eq!(
            outlast.said().matches("which the library is loaded").count(),
            usize::from(socket == "30")
        );
    }
}
