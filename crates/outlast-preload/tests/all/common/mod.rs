//! Real programs below the example `supervise`, or as they are.
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

mod held;
mod programs;

pub use held::{holds, holds_listener, wait_until_held, wait_until_held_unix, wait_until_read};
pub use programs::{PYTHON, compiled, compiled_server, python, python_at, script};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(20);

/// A program, below a supervisor or by itself.
pub struct Server {
    child: Child,
    supervised: bool,
    said: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn start(command: &Command, supervised: bool) -> Self {
        Self::start_with(command, supervised, |_| ())
    }

    /// In the supervisor's process something is done before, too.
    pub fn start_with(command: &Command, supervised: bool, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut started = if supervised {
            let this = std::env::current_exe().unwrap();
            let supervise = this.parent().unwrap().parent().unwrap().join("examples/supervise");
            let mut started = Command::new(supervise);
            started.arg(command.get_program());
            started.env("OUTLAST_PRELOAD_LIBRARY", this.with_file_name("liboutlast_preload.so"));
            started
        } else {
            Command::new(command.get_program())
        };
        started.args(command.get_args());
        started.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        started.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Some tell all of their group to end: this test is none of it.
        started.process_group(0);
        prepare(&mut started);
        let mut child = started.spawn().unwrap();
        let (said, output) = (Arc::new(Mutex::new(Vec::new())), child.stdout.take().unwrap());
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                heard.lock().unwrap().push(line);
            }
        });
        Self { child, supervised, said }
    }

    /// What the supervisor has said with these words in it.
    pub fn said(&self, words: &str) -> Vec<String> {
        self.said.lock().unwrap().iter().filter(|line| line.contains(words)).cloned().collect()
    }

    /// Waits until it has said this `count` times. Fails if it has said it more often by then.
    pub fn says(&self, words: &str, count: usize) {
        let is_said = || (self.said(words).len() >= count).then_some(());
        eventually_or(is_said, || format!("not {words:?} {count} times: {:?}", self.said("")));
        assert_eq!(self.said(words).len(), count, "{:?}", self.said(""));
    }

    /// The supervisor, or the program itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process that was started as the program.
    pub fn main(&self) -> u32 {
        let child = self.child.id();
        if !self.supervised {
            return child;
        }
        let find = || children(child).first().copied();
        eventually_or(find, || format!("no program: {:?}", self.said("")))
    }

    /// The same, if there is one now.
    pub fn main_now(&self) -> Option<u32> {
        children(self.child.id()).first().copied()
    }

    /// Told to end: how it did.
    pub fn stop(mut self) -> i32 {
        kill(self.child.id(), libc::SIGTERM);
        code(eventually("it does not end", || self.child.try_wait().unwrap()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let below: Vec<u32> = family(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
        below.into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
    }
}

/// As a shell tells it.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// All below a process.
pub fn family(root: u32) -> Vec<u32> {
    let (mut found, mut next) = (children(root), 0);
    while let Some(&pid) = found.get(next) {
        next += 1;
        found.extend(children(pid));
    }
    found
}

pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

/// Whether no thread of a killed process reads anything any more.
pub fn has_ended(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    threads <= 1 && !Path::new(&format!("/proc/{pid}/fd/0")).exists()
}

/// One process, never a group or everybody.
pub fn kill(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).unwrap();
    assert!(pid > 1);
    // SAFETY: numbers.
    unsafe { libc::kill(pid, signal) };
}

pub fn eventually<T>(what: &str, happens: impl FnMut() -> Option<T>) -> T {
    eventually_or(happens, || what.to_owned())
}

/// The same, with more to say where it does not.
pub fn eventually_or<T>(mut happens: impl FnMut() -> Option<T>, what: impl Fn() -> String) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = happens() {
            return value;
        }
        assert!(Instant::now() < deadline, "{}", what());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port where nobody listens, of those that the system gives to no client.
pub fn free_port() -> u16 {
    outlast_lab::free_port().unwrap()
}

/// A folder of this test's, that servers which give their rights away can read.
pub fn folder(name: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("outlast-preload-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    path
}

/// Whether it is there. If not, that is said; where all are required, it is a failure.
pub fn is_installed(program: &str) -> bool {
    let found = if program.starts_with('/') {
        Path::new(program).exists()
    } else {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|folder| folder.join(program).exists())
    };
    if !found {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{program} is not installed");
        eprintln!("SKIPPED: {program} is not installed; tools/deps.sh installs it");
    }
    found
}

/// Whether this test can become other users. If not, that is said; where all are required, it is a failure.
pub fn is_root() -> bool {
    // SAFETY: no arguments, cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "this test needs root");
        eprintln!("SKIPPED: only root can become another user");
    }
    is_root
}

/// One connection, and whether it is a failure if nothing comes on it.
pub struct Client(pub TcpStream, pub bool);

impl Client {
    /// None: it is refused.
    pub fn try_connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Ok(Self(stream, true))
    }

    /// Waits for the server to begin.
    pub fn connect(port: u16) -> Self {
        eventually("nobody listens", || Self::try_connect(port).ok())
    }

    /// Whether a request is answered in full. Fails if nothing comes at all.
    pub fn get(&mut self, path: &str) -> bool {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        self.0.write_all(request.as_bytes()).is_ok() && self.answered().is_some()
    }

    /// The answer's first line; none if the connection ends before.
    pub fn answered(&mut self) -> Option<String> {
        let (mut bytes, mut room) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
                let field = |name: &str| {
                    head.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
                };
                let body = &bytes[end + 4..];
                let complete = match field("content-length:") {
                    Some(length) => body.len() >= length.parse::<usize>().unwrap(),
                    None => body.ends_with(b"0\r\n\r\n"),
                };
                if complete {
                    return head.lines().next().map(str::to_owned);
                }
            }
            match self.0.read(&mut room) {
                Ok(0) => return None,
                Ok(count) => bytes.extend_from_slice(&room[..count]),
                Err(error) => {
                    let silent = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
                    assert!(!self.1 || !silent.contains(&error.kind()), "no answer, and no end");
                    return None;
                }
            }
        }
    }
}
