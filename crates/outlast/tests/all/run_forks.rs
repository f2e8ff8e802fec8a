//! `outlast run` with servers that fork: nobody is left over when it ends, and none goes into the background unnoticed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::supervised::{pid, status, until};
use crate::common::{Outlast, PATIENCE, command, eventually, eventually_or, folder};
use crate::run_preload::{Client, PROGRAM, library, signal};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const REDIS: &str = "/usr/bin/redis-server";
const NGINX: &str = "/usr/sbin/nginx";

fn free_port() -> u16 {
    outlast_lab::free_port().unwrap()
}

/// nginx with two workers below `outlast run`, in the background or not. None where there is none.
fn nginx(folder: &Path, port: u16, daemon: &str) -> Option<Outlast> {
    if !Path::new(NGINX).exists() {
        eprintln!("SKIPPED: nginx is not installed; tools/deps.sh installs it");
        return None;
    }
    let path = folder.display();
    let config = format!(
        "daemon {daemon}; worker_processes 2; pid {path}/pid; error_log {path}/log;
        events {{ }}
        http {{
            access_log off; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;
            fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
            server {{ listen 127.0.0.1:{port}; location / {{ return 200 here; }} }}
        }}"
    );
    std::fs::write(folder.join("nginx.conf"), config).unwrap();
    let this = std::env::current_exe().unwrap();
    let library = this.parent().unwrap().join("liboutlast_preload.so");
    let (config, log) = (folder.join("nginx.conf"), folder.join("log"));
    let run = ["run", "--name", "web", "--preload", "always", "--preload-library", library.to_str().unwrap()];
    let program = ["--", NGINX, "-e", log.to_str().unwrap(), "-c", config.to_str().unwrap()];
    let mut command = command(folder, &[&run[..], &program].concat());
    command.env("OUTLAST_LOG", "info").stdout(Stdio::null()).stderr(Stdio::piped());
    Some(Outlast::from(command))
}

/// One that has been answered, whoever was there before.
fn client(port: u16) -> TcpStream {
    eventually("nobody answers", || {
        let mut client = TcpStream::connect(("127.0.0.1", port)).ok()?;
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        ask(&mut client).ok().map(|()| client)
    })
}

fn ask(client: &mut TcpStream) -> std::io::Result<()> {
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\nhere") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        heard.push(byte[0]);
    }
    Ok(())
}

/// The processes with this folder in their command line, but `outlast` itself: all of nginx.
fn of(folder: &Path) -> Vec<u32> {
    let folder = folder.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_nginx = |pid: &u32| {
        let text = |file| String::from_utf8(std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default());
        let own = |file| text(file).unwrap_or_default();
        let state = own("stat").rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        let maps = own("environ");
        own("comm").trim() != "outlast" && maps.contains(folder) && state != Some('Z')
    };
    pids.filter(is_nginx).collect()
}

fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// The one that has written its number.
fn master(folder: &Path) -> u32 {
    eventually("no master", || std::fs::read_to_string(folder.join("pid")).ok()?.trim().parse().ok())
}

#[test]
fn idle_clients_of_a_killed_master_are_kept_and_nobody_is_left_at_the_end() {
    let (folder, port) = (folder(), free_port());
    let Some(mut outlast) = nginx(folder.path(), port, "off") else { return };
    let mut held = client(port);
    let killed = master(folder.path());
    until(folder.path(), "held", |now| now["connections"] == 1);
    kill(killed, "-9");
    outlast.wait_for("it is started again");
    ask(&mut held).unwrap();
    eventually("the same one", || (master(folder.path()) != killed).then_some(()));
    client(port);
    outlast.signal("TERM");
    assert!(outlast.ended().code().is_some());
    assert!(of(folder.path()).is_empty());
    assert_eq!(held.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn the_crash_of_a_worker_is_in_the_log_and_in_status() {
    let (folder, port) = (folder(), free_port());
    let Some(mut outlast) = nginx(folder.path(), port, "off") else { return };
    client(port);
    let master = master(folder.path());
    // A process is known a moment after it has begun.
    std::thread::sleep(Duration::from_secs(1));
    let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
    let worker: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    kill(worker, "-SEGV");
    outlast.wait_for(&format!("process {worker} has "));
    until(folder.path(), "in status", |now| {
        let crashes = now["crashes"]["kept"].as_array().unwrap();
        // One, of this process; and the master was not started again.
        matches!(&crashes[..], [one] if one["pid"] == worker && one["how"].to_string().contains("SEGV"))
            && now["crashes"]["count"] == 1
            && now["starts"].as_array().is_some_and(|starts| starts.len() <= 1)
    });
    outlast.signal("TERM");
    assert!(outlast.ended().code().is_some());
}

#[test]
fn what_goes_into_the_background_is_kept_running() {
    let (folder, port) = (folder(), free_port());
    let Some(mut outlast) = nginx(folder.path(), port, "on") else { return };
    outlast.wait_for("web has gone into the background");
    let mut held = client(port);
    let killed = master(folder.path());
    until(folder.path(), "held", |now| now["connections"] == 1);
    kill(killed, "-9");
    outlast.wait_for("it is started again");
    ask(&mut held).unwrap();
    eventually("the same one", || (master(folder.path()) != killed).then_some(()));
    // One process has crashed, once: not the one that had ended in order by then.
    until(folder.path(), "crashed once", |now| {
        let pids = |what: &str| {
            now[what].as_array().unwrap().iter().map(|one| one["pid"].clone()).collect::<Vec<_>>()
        };
        now["crashes"]["count"] == 1 && pids("starts").first() == Some(&killed.into())
    });
    outlast.signal("TERM");
    assert!(outlast.ended().code().is_some());
    assert!(of(folder.path()).is_empty());
}

/// It goes into the background first, and listens then.
#[test]
fn what_listens_in_the_background_only_is_kept_running_each_time() {
    if !Path::new(REDIS).exists() {
        eprintln!("SKIPPED: redis-server is not installed; tools/deps.sh installs it");
        return;
    }
    for _ in 0..5 {
        let (folder, port) = (folder(), free_port().to_string());
        let this = std::env::current_exe().unwrap();
        let library = this.parent().unwrap().join("liboutlast_preload.so");
        let run =
            ["run", "--name", "data", "--preload", "always", "--preload-library", library.to_str().unwrap()];
        let redis = ["--", REDIS, "--port", &port, "--bind", "127.0.0.1", "--save", "", "--daemonize", "yes"];
        let file = folder.path().join("redis.pid");
        let redis_log = folder.path().join("redis.log");
        let files = ["--pidfile", file.to_str().unwrap(), "--logfile", redis_log.to_str().unwrap()];
        let mut outlast = Outlast::start(folder.path(), &[&run[..], &redis, &files].concat());
        outlast.wait_for("data has gone into the background");
        let pid = || -> Option<u32> { std::fs::read_to_string(&file).ok()?.trim().parse().ok() };
        let answers = || {
            let mut client = TcpStream::connect(format!("127.0.0.1:{port}")).ok()?;
            client.write_all(b"PING\r\n").ok()?;
            let mut answer = [0; 7];
            client.read_exact(&mut answer).ok()?;
            (&answer == b"+PONG\r\n").then_some(())
        };
        let scene =
            |outlast: &mut Outlast, what| format!("{what}: {}\n{}", outlast.scene(), read(&redis_log));
        eventually_or(answers, || scene(&mut outlast, "it does not answer"));
        let killed = eventually_or(pid, || scene(&mut outlast, "no number"));
        kill(killed, "-9");
        outlast.wait_for("it is started again");
        let another = || pid().filter(|pid| *pid != killed);
        eventually_or(another, || scene(&mut outlast, "the same one"));
        eventually_or(answers, || scene(&mut outlast, "it does not answer again"));
        outlast.signal("TERM");
        assert!(outlast.ended().code().is_some());
        assert!(TcpStream::connect(format!("127.0.0.1:{port}")).is_err());
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Its first part ends in order each time: that is no end of the service.
#[test]
fn what_fails_in_the_background_is_started_again() {
    const DAEMON: &str = "
import os, socket, sys, time
folder, port = sys.argv[1], int(sys.argv[2])
with open(folder + '/starts', 'a') as file: file.write('x')
starts = os.path.getsize(folder + '/starts')
if os.fork(): os._exit(0)
os.setsid()
if starts == 2: os._exit(3)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', port)); s.listen(5)
with open(folder + '/new', 'w') as file: file.write(str(os.getpid()))
os.rename(folder + '/new', folder + '/pid')
while True: s.accept()[0].sendall(b'here')
";
    let (folder, port, library) = (folder(), free_port(), library());
    let run = ["run", "--name", "data", "--preload", "always", "--preload-library"];
    let at = [folder.path().to_str().unwrap(), &port.to_string()];
    let program = [library.to_str().unwrap(), "--", "/usr/bin/python3", "-c", DAEMON];
    let mut outlast = Outlast::start(folder.path(), &[&run[..], &program, &at].concat());
    outlast.wait_for("data has gone into the background");
    let pid = || read(&folder.path().join("pid")).parse::<u32>().ok();
    let killed = eventually_or(pid, || outlast.scene());
    kill(killed, "-9");
    outlast.wait_for("nobody of it is there: that counts as a crash");
    outlast.wait_for("exited with code 3: it is started again");
    eventually_or(|| pid().filter(|pid| *pid != killed), || outlast.scene());
    let mut said = String::new();
    TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "here");
    outlast.signal("TERM");
    assert!(outlast.ended().code().is_some());
}

/// As rabbitmq's script does: it waits for its server and ends in order, whatever that has died of, and leaves a daemon behind.
#[test]
fn a_daemon_that_is_left_behind_is_not_taken_for_the_server() {
    const PROGRAM: &str = "
import os, socket, sys, time
folder, port, other = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def listen(port):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('127.0.0.1', port)); s.listen(5)
    return s
if not os.path.exists(folder + '/daemon'):
    if os.fork() == 0:
        os.setsid()
        s = listen(other)
        open(folder + '/daemon', 'w').write(str(os.getpid()))
        while True: time.sleep(60)
    while not os.path.exists(folder + '/daemon'): time.sleep(0.01)
server = os.fork()
if server == 0:
    s = listen(port)
    with open(folder + '/new', 'w') as file: file.write(str(os.getpid()))
    os.rename(folder + '/new', folder + '/pid')
    while True: s.accept()[0].sendall(b'here')
os.waitpid(server, 0)
";
    let (folder, port, other, library) = (folder(), free_port(), free_port(), library());
    let run = ["run", "--name", "data", "--restart", "always", "--preload", "always", "--preload-library"];
    let at = [folder.path().to_str().unwrap(), &port.to_string(), &other.to_string()];
    let program = [library.to_str().unwrap(), "--", "/usr/bin/python3", "-c", PROGRAM];
    let mut outlast = Outlast::start(folder.path(), &[&run[..], &program, &at].concat());
    outlast.wait_for("data is ready");
    let pid = || read(&folder.path().join("pid")).parse::<u32>().ok();
    let killed = eventually_or(pid, || outlast.scene());
    kill(killed, "-9");
    outlast.wait_for("it is started again");
    eventually_or(|| pid().filter(|pid| *pid != killed), || outlast.scene());
    let mut said = String::new();
    TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "here");
    outlast.signal("TERM");
    outlast.ended();
    let daemon = read(&folder.path().join("daemon"));
    // It is ended as well, or was before.
    let _ = Command::new("kill").args(["-9", &daemon]).stderr(Stdio::null()).status();
}

/// nginx and nghttpx start their successor so, on SIGUSR2: it inherits the listening sockets and none of the environment.
#[test]
fn a_successor_that_has_not_loaded_the_library_is_kept_running() {
    const PROGRAM: &str = "
import os, signal, socket, sys, time
folder, port = sys.argv[1], int(sys.argv[2])
if len(sys.argv) > 3:
    s = socket.socket(fileno=int(sys.argv[3]))
else:
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('127.0.0.1', port)); s.listen(5); s.set_inheritable(True)
def succeed(*_):
    if os.fork() == 0:
        os.execve('/usr/bin/python3', ['python3', '-c', os.environ['PROGRAM'], folder, str(port), str(s.fileno())], {})
    pid = open(folder + '/pid').read()
    while open(folder + '/pid').read() == pid: time.sleep(0.01)
    os._exit(0)
signal.signal(signal.SIGUSR2, succeed)
with open(folder + '/new', 'w') as file: file.write(str(os.getpid()))
os.rename(folder + '/new', folder + '/pid')
while True: s.accept()[0].sendall(b'here')
";
    let (folder, port, library) = (folder(), free_port(), library());
    let this = folder.path().to_str().unwrap();
    let port_text = port.to_string();
    let run =
        ["run", "--name", "data", "--preload", "always", "--preload-library", library.to_str().unwrap()];
    let program = ["--", "/usr/bin/python3", "-c", PROGRAM, this, &port_text];
    let mut command = command(folder.path(), &[&run[..], &program].concat());
    command.env("OUTLAST_LOG", "info").env("PROGRAM", PROGRAM).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut outlast = Outlast::from(command);
    outlast.wait_for("data is ready");
    let pid = || read(&folder.path().join("pid")).parse::<u32>().ok();
    let first = eventually_or(pid, || outlast.scene());
    kill(first, "-USR2");
    let second = eventually_or(|| pid().filter(|pid| *pid != first), || outlast.scene());
    outlast.wait_for(&format!("data has gone into the background: process {second}"));
    kill(second, "-9");
    outlast.wait_for("it is started again");
    eventually_or(|| pid().filter(|pid| *pid != second), || outlast.scene());
    let mut said = String::new();
    TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "here");
    outlast.signal("TERM");
    outlast.ended();
}

/// There it has another number than the one by which the supervisor knows it. Its workers have, too.
#[test]
fn a_server_in_a_pid_namespace_of_its_own_keeps_idle_clients() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can make a namespace");
        return;
    }
    let worker = "import http.server, os, signal, socketserver\nserve = socketserver.BaseServer.serve_forever\n\
        def fork(s):\n    pid = os.fork()\n    if pid == 0: serve(s)\n    os.waitpid(pid, 0); os._exit(3)\n\
        socketserver.BaseServer.serve_forever = fork\n";
    for program in [PROGRAM.to_owned(), format!("{worker}{PROGRAM}")] {
        let (folder, port, library) = (folder(), free_port(), library());
        let preload = ["--preload", "always", "--preload-library", library.to_str().unwrap(), "--"];
        let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let server = ["/usr/bin/python3", "-c", &program, &port.to_string()];
        let mut outlast = Outlast::start(
            folder.path(),
            &[&["run", "--name", "apart", "--stop-timeout", "100ms"], &preload[..], &namespace, &server]
                .concat(),
        );
        let mut idle = Client::connect(port);
        idle.get();
        until(folder.path(), "held", |now| now["connections"] == 1);
        let main = pid(&status(folder.path()), "main_pid");
        let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap();
        signal(children.trim(), "KILL");
        outlast.wait_for("it is started again");
        idle.get();
        outlast.signal("TERM");
        outlast.ended();
    }
}
