//! Real programs with the library loaded, which are killed.
#![allow(dead_code, clippy::print_stderr, reason = "each test uses a part of it, and says what it skips")]

use outlast_restart::board::Board;
use outlast_restart::policy::Policy;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);
/// Crashes as often as anybody likes.
pub const PATIENT: Policy =
    Policy { transient_after_ms: 0, intensity: 20, intensity_window_ms: 1000, hang_timeout_ms: 0 };

/// The library, which cargo builds beside the tests of its package.
pub fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("liboutlast_preload.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

/// One of the programs beside the tests. With the interpreter itself: what is called so may be a script.
pub fn python(name: &str, arguments: &[&str]) -> Command {
    static INTERPRETER: OnceLock<String> = OnceLock::new();
    let interpreter = INTERPRETER.get_or_init(|| {
        let said =
            Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
        String::from_utf8(said.stdout).unwrap().trim_end().to_owned()
    });
    let mut command = Command::new(interpreter);
    command.arg(program(name)).args(arguments);
    command
}

pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers").join(name)
}

/// A port that nobody listens at. The server is told it, as it has to ask for the same one again.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A folder of this test's.
pub fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("outlast-preload-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A program below its keeper.
pub struct Server {
    pub keeper: Child,
    pub board: &'static Board,
    memory: OwnedFd,
}

impl Server {
    pub fn start(command: Command) -> Self {
        Self::start_with(command, &PATIENT)
    }

    pub fn start_with(mut command: Command, policy: &Policy) -> Self {
        let (memory, board) = Board::create(policy).unwrap();
        let number = memory.as_raw_fd();
        // So that whoever goes on without it can be found.
        command.process_group(0);
        command.env("LD_PRELOAD", library()).env("OUTLAST_PRELOAD", "start");
        command.env(outlast_restart::board::ENVIRONMENT, number.to_string());
        // SAFETY: a system call with numbers.
        unsafe {
            command.pre_exec(move || {
                libc::fcntl(number, libc::F_SETFD, 0);
                Ok(())
            })
        };
        Self { keeper: command.spawn().unwrap(), board, memory }
    }

    /// The process that serves, once there is one.
    pub fn serving(&self) -> u32 {
        eventually("nobody serves", || self.board.is_ready().then(|| self.board.serving_pid()))
    }

    /// Kills the program with `signal`, and waits until the next generation listens.
    pub fn crash(&self, signal: i32) {
        let serving = self.serving();
        let before = self.board.generation();
        kill(serving, signal);
        eventually("the next generation does not listen", || {
            (self.board.generation() > before).then_some(())
        });
    }

    pub fn ended(&mut self) -> ExitStatus {
        eventually("it does not end", || self.keeper.try_wait().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill(self.keeper.id(), libc::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && self.keeper.try_wait().is_ok_and(|status| status.is_none()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.keeper.kill();
        // SAFETY: numbers.
        unsafe { libc::kill(-self.keeper.id().cast_signed(), libc::SIGKILL) };
    }
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: numbers.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

pub fn eventually<T>(what: &str, mut happens: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = happens() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace().map(str::to_owned).collect())
}

/// As `ps` tells it: Z for one that is dead and not buried.
pub fn state(pid: u32) -> Option<char> {
    stat(pid)?.first()?.chars().next()
}

/// The processes below one, and what they are called.
pub fn children(pid: u32) -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let below = pids.filter(|&child| stat(child).is_some_and(|stat| stat[1] == pid.to_string()));
    below.map(|child| (child, name(child))).collect()
}

pub fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Somebody with one connection.
pub struct Client<S = TcpStream>(pub S);

impl Client {
    /// Waits for the server to begin.
    pub fn of(port: u16) -> Self {
        let stream = eventually("nobody listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn say(&mut self, words: &str) {
        self.0.write_all(words.as_bytes()).unwrap();
    }

    /// Up to the first line's end, or nothing when the connection has ended in whatever way.
    pub fn hear(&mut self) -> Option<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        loop {
            match self.0.read(&mut byte) {
                Ok(0) => return None,
                Ok(_) if byte[0] == b'\n' => {
                    return Some(String::from_utf8(line).unwrap().trim_end().to_owned());
                }
                Ok(_) => line.push(byte[0]),
                Err(error) => {
                    let kind = error.kind();
                    assert_eq!(kind, std::io::ErrorKind::ConnectionReset, "no answer, and no end: {error}");
                    return None;
                }
            }
        }
    }

    pub fn ask(&mut self, words: &str) -> String {
        self.say(&format!("{words}\n"));
        self.hear().unwrap_or_else(|| panic!("the connection has ended: {words}"))
    }

    /// The body of the answer.
    pub fn get(&mut self, path: &str) -> String {
        self.try_get(path).unwrap_or_else(|| panic!("the connection has ended"))
    }

    /// The body of the answer, or nothing when the connection has ended.
    pub fn try_get(&mut self, path: &str) -> Option<String> {
        self.0.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).ok()?;
        let mut length = None;
        loop {
            let line = self.hear()?;
            if let Some(number) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = Some(number.parse::<usize>().unwrap());
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length.unwrap()];
        match self.0.read_exact(&mut body) {
            Ok(()) => Some(String::from_utf8(body).unwrap()),
            Err(error) => {
                let ended = [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::UnexpectedEof];
                assert!(ended.contains(&error.kind()), "no answer, and no end: {error}");
                None
            }
        }
    }
}

/// Long enough for whoever has answered to wait for the next question.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(20));
}

pub fn is_installed(program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain([PathBuf::from("/usr/sbin")])
        .any(|folder| folder.join(program).exists());
    if !found {
        eprintln!("SKIPPED: {program} is not installed; tools/deps.sh installs it");
    }
    found
}

/// With so many workers, in the foreground.
pub fn nginx(folder: &Path, port: u16, workers: u32) -> Command {
    let path = folder.display();
    let config = format!(
        "daemon off; worker_processes {workers}; pid {path}/pid; error_log {path}/log;
        events {{ worker_connections 256; }}
        http {{
            access_log off; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;
            fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
            server {{
                listen 127.0.0.1:{port}; root {path}; keepalive_requests 100000;
                location /pid {{ return 200 $pid; }}
            }}
        }}"
    );
    std::fs::write(folder.join("nginx.conf"), config).unwrap();
    std::fs::write(folder.join("file"), "from a file").unwrap();
    let mut command = Command::new("/usr/sbin/nginx");
    command.arg("-e").arg(folder.join("log")).arg("-c").arg(folder.join("nginx.conf"));
    command
}

/// The processes that serve below each worker's keeper, of a server that forks them.
pub fn workers(master: u32) -> Vec<u32> {
    let below = |(keeper, _): (u32, String)| {
        children(keeper).into_iter().filter(|(_, name)| name != "outlast-keeper")
    };
    children(master).into_iter().flat_map(below).map(|(pid, _)| pid).collect()
}
