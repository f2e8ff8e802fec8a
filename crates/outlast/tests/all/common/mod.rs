//! The real binary on loopback: processes that end with their guard, and services to talk to.

#![allow(dead_code, reason = "every test file uses its own part")]

pub mod restarts;
pub mod supervised;
pub mod way;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longer than anything takes, so that a hang is a failure with a message.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running `outlast`. Killed when dropped.
pub struct Outlast {
    child: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
}

/// Waits for something to be found; `what` is said where it is not in time.
pub fn eventually<T>(what: &str, found: impl FnMut() -> Option<T>) -> T {
    eventually_or(found, || what.to_owned())
}

/// The same; what is said is asked for then.
pub fn eventually_or<T>(mut found: impl FnMut() -> Option<T>, what: impl FnOnce() -> String) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        if Instant::now() >= deadline {
            panic!("{}", what());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder for the admin sockets and files of one test.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// `outlast` with its own runtime folder, so that tests do not see each other's instances.
pub fn command(runtime: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlast"));
    let mut arguments = arguments.to_vec();
    // Programs run as they are, unless a test is about what is preloaded, wherever this was built.
    let run = arguments.iter().position(|argument| *argument == "run");
    if let Some(run) = run.filter(|_| !arguments.iter().any(|argument| argument.starts_with("--preload"))) {
        arguments.splice(run + 1..run + 1, ["--preload", "never"]);
    }
    command.args(arguments).env("XDG_RUNTIME_DIR", runtime).env_remove("OUTLAST_LOG").stdin(Stdio::null());
    command
}

/// The admin socket of a process: its name begins with the number.
pub fn admin_socket(runtime: &Path, pid: u32) -> PathBuf {
    let begins = format!("{pid}-");
    let files = std::fs::read_dir(runtime.join("outlast")).unwrap().flatten();
    let found = files.map(|file| file.path()).find(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(&begins) && name.ends_with(".sock")
    });
    found.unwrap_or_else(|| panic!("process {pid} has no admin socket"))
}

/// A key that was drawn at random.
pub const KEY: &str = "8e1fb6d03c52a7794410dfa9ee3c65b27d0915cc2be8f3606a94d71fa2085be3";

/// A file that nobody else can read. Its path.
pub fn secret_file(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs `outlast` to its end.
pub fn output(runtime: &Path, arguments: &[&str]) -> Output {
    command(runtime, arguments).output().unwrap()
}

impl Outlast {
    /// Starts it with an informative log.
    pub fn start(runtime: &Path, arguments: &[&str]) -> Self {
        let mut command = command(runtime, arguments);
        command.env("OUTLAST_LOG", "info").stderr(Stdio::piped());
        Self::from(command)
    }

    /// From a command whose standard error is piped.
    pub fn from(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines, heard: Vec::new() }
    }

    /// Waits for a line of its log.
    pub fn wait_for(&mut self, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.heard.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(_) => panic!("no {part:?} in:\n{}", self.heard.join("\n")),
            }
        }
    }

    /// The address after "listening on" in the next such line.
    pub fn address(&mut self) -> SocketAddr {
        let line = self.wait_for("listening on");
        let rest = line.split("listening on ").nth(1).unwrap();
        rest.split([' ', ',']).next().unwrap().parse().unwrap_or_else(|_| panic!("no address in {line}"))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Stops it: none of its threads runs when this returns.
    pub fn freeze(&self) {
        outlast_lab::process::freeze(self.pid()).unwrap();
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        ended(&mut self.child)
    }

    /// Everything it has said by now, how it has ended, and which processes of its session there are: what each does, and
    /// where in the kernel it waits.
    pub fn scene(&mut self) -> String {
        let ended = self.child.try_wait();
        let fields = "pid,ppid,pgid,sess,stat,wchan:28,etime,args";
        let listed = Command::new("ps").args(["-e", "-o", fields]).output().unwrap().stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        // Of this test: also what has left its parents and its session.
        let mark = std::env::var("OUTLAST_TEST").unwrap_or_default();
        let is_of_test = |line: &&str| {
            let pid = line.split_ascii_whitespace().next().unwrap_or_default();
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            pid == "PID"
                || line.contains(&self.child.id().to_string())
                || !mark.is_empty() && String::from_utf8_lossy(&environ).contains(&mark)
        };
        let processes: Vec<&str> = listed.lines().filter(is_of_test).collect();
        format!("\noutlast: {ended:?}\n{}\n{}", self.said_so_far(), processes.join("\n"))
    }

    /// Everything it has said by now.
    pub fn said_so_far(&mut self) -> String {
        self.heard.extend(self.lines.try_iter());
        self.heard.join("\n")
    }

    /// Everything it said, after its end.
    pub fn said(&mut self) -> String {
        self.heard.extend(self.lines.iter());
        self.heard.join("\n")
    }
}

impl Drop for Outlast {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Waits for a child's end.
pub fn ended(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "process {} does not end", child.id());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A service that answers everything with itself, in pieces, until the end of the stream.
pub fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || copy(&mut &stream, &mut &stream));
        }
    });
    address
}

/// The same on a UNIX socket.
pub fn unix_echo(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || copy(&mut &stream, &mut &stream));
        }
    });
}

fn copy(from: &mut impl Read, to: &mut impl Write) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
}

/// A service that answers every connection with `content` as an HTTP response.
pub fn http(content: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    content.len()
                );
                stream.write_all((head + content).as_bytes()).ok();
            });
        }
    });
    address
}

/// A service that says something before it is asked, and then holds the line.
pub fn speaking(words: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                stream.write_all(words).ok();
                let mut rest = [0; 4096];
                while matches!(stream.read(&mut rest), Ok(count) if count > 0) {}
            });
        }
    });
    address
}

/// An address where nobody listens, and no other test does as long as this one runs.
pub fn nobody() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, outlast_lab::free_port().unwrap()).into()
}

/// Bytes that show any loss, repetition or exchange.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}

/// Sends bytes through an echo, both ways at once, with a half-close, and checks what comes back.
pub fn check_echo(address: SocketAddr, length: usize) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent = pattern(length);
    let expected = sent.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        (&stream).read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), expected.len());
        assert!(received == expected, "the bytes differ");
    });
}

/// A server and a client in front of a service.
pub struct Pair {
    pub server: Outlast,
    pub client: Outlast,
    pub server_address: SocketAddr,
    pub address: SocketAddr,
}

impl Pair {
    pub fn start(runtime: &Path, service: &str, server_flags: &[&str], client_flags: &[&str]) -> Self {
        let mut server =
            Outlast::start(runtime, &[&["listen", "127.0.0.1:0", "--to", service], server_flags].concat());
        let server_address = server.address();
        let via = server_address.to_string();
        let mut client =
            Outlast::start(runtime, &[&["connect", "127.0.0.1:0", "--via", &via], client_flags].concat());
        let address = client.address();
        Self { server, client, server_address, address }
    }
}

/// Runs curl. What it prints is the answer, what it says about errors is in the failure.
pub fn curl(arguments: &[&str]) -> Output {
    Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60"])
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs a script in a network namespace of its own. It knows the program as `$OUTLAST`.
pub fn in_own_network(script: &str) -> Output {
    Command::new("timeout")
        .args(["60", "unshare", "--net", "--mount", "bash", "-c"])
        .arg(format!("mount -t sysfs sysfs /sys\n{script}"))
        .env("OUTLAST", env!("CARGO_BIN_EXE_outlast"))
        .output()
        .unwrap()
}
