//! The example server in C, built both ways, and what talks to it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const BIG_BYTES: usize = 24 << 20;

/// Small and repeatable (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

/// From the environment.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

fn binding() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The folder of liboutlast. Tests of it do not link it: unless all was built, which `OUTLAST_BUILT` says, it is built now.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let this = std::env::current_exe().unwrap();
        let target = this.ancestors().nth(3).unwrap();
        if std::env::var_os("OUTLAST_BUILT").is_none() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--offline", "-p", "outlast-c", "--target-dir"]).arg(target);
            run(cargo.current_dir(binding()));
        }
        target.join("debug")
    })
}

/// A C program of the tests, linked with liboutlast.
pub fn compile(source: &str, options: &[&str]) -> PathBuf {
    let folder = shared_folder(&format!("{source}{}", options.concat()));
    let program = folder.path.join("program");
    let source = binding().join("tests").join(source);
    let made = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let header = binding().join("include/outlast.h");
    let needed = [source.as_path(), &header, &library().join("liboutlast.so")];
    if made(&program).is_some() && needed.iter().all(|needed| made(needed) < made(&program)) {
        return program;
    }
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]).args(options);
    cc.arg("-I").arg(binding().join("include")).arg("-o").arg(&program);
    cc.arg(source);
    cc.arg("-L").arg(library()).arg(format!("-Wl,-rpath,{}", library().display())).arg("-loutlast");
    run(&mut cc);
    program
}

/// An empty one below Cargo's, of this process.
pub fn folder(name: &str) -> PathBuf {
    let own = format!("{}-{name}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_PKG_NAME")).join(own);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A folder that all processes with tests of this package share; theirs alone as long as this is there.
struct SharedFolder {
    path: PathBuf,
    _lock: std::fs::File,
}

/// What is built from the same sources is built once, by whoever needs it first.
fn shared_folder(name: &str) -> SharedFolder {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_PKG_NAME")).join(name);
    std::fs::create_dir_all(&path).unwrap();
    let lock = std::fs::File::create(path.join("lock")).unwrap();
    lock.lock().unwrap();
    SharedFolder { path, _lock: lock }
}

/// Where the example's programs are, built.
fn httpd() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = shared_folder("httpd");
        let out = folder.path.clone();
        let mut make = Command::new("make");
        make.arg("-C").arg(binding().join("../../examples/httpd"));
        make.arg(format!("OUT={}", out.display())).arg(format!("OUTLAST_LIB={}", library().display()));
        run(&mut make);
        out
    })
}

pub fn big() -> Vec<u8> {
    let mut random = Random(42);
    (0..BIG_BYTES / 8).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect()
}

const ECHO: &str = "#!/bin/sh
printf 'Content-Type: text/plain\\r\\nX-Id: %s\\r\\n\\r\\n' \"$OUTLAST_REQUEST_ID\"
echo \"$REQUEST_METHOD $SCRIPT_NAME $PATH_INFO $QUERY_STRING $CONTENT_LENGTH $HTTP_X_WORD\"
cat
";

/// The server, with files and programs.
pub struct Httpd {
    child: Child,
    pub address: SocketAddr,
    pub files: PathBuf,
    folder: PathBuf,
    serving: Arc<AtomicU32>,
    generation: Arc<AtomicU32>,
}

impl Httpd {
    /// `httpd` or `httpd-outlast`.
    pub fn start(build: &str, name: &str) -> Self {
        Self::start_with(build, name, |_| {})
    }

    /// One with a supervisor's board.
    pub fn start_below(board: &OwnedFd, name: &str) -> Self {
        // Copies made by `dup` are inherited by whoever is executed.
        // SAFETY: a number that is open; gives a new one.
        let number = unsafe { libc::dup(board.as_raw_fd()) };
        assert!(number >= 0);
        let variable = outlast_restart::board::ENVIRONMENT;
        let server = Self::start_with("httpd-outlast", name, |command| {
            command.env(variable, number.to_string());
        });
        // SAFETY: made above, and nobody else's.
        unsafe { libc::close(number) };
        server
    }

    /// One that may have so many descriptors.
    pub fn start_with_descriptors(limit: u32, build: &str, name: &str) -> Self {
        Self::start_with(build, name, |command| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &limit.to_string()]);
            shell.arg(command.get_program()).args(command.get_args());
            shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            *command = shell;
        })
    }

    fn start_with(build: &str, name: &str, change: impl FnOnce(&mut Command)) -> Self {
        let folder = folder(name);
        let (files, sessions) = (folder.join("files"), folder.join("sessions"));
        std::fs::create_dir_all(files.join("cgi-bin")).unwrap();
        std::fs::create_dir_all(files.join("sub dir")).unwrap();
        std::fs::create_dir_all(&sessions).unwrap();
        std::fs::write(folder.join("secret"), "secret").unwrap();
        std::fs::write(files.join("hello.txt"), "hello, world\n").unwrap();
        std::fs::write(files.join("empty.html"), "").unwrap();
        std::fs::write(files.join("big"), big()).unwrap();
        std::fs::write(files.join("sub dir/index.html"), "<p>index").unwrap();
        std::os::unix::fs::symlink("hello.txt", files.join("inside")).unwrap();
        std::os::unix::fs::symlink("../secret", files.join("outside")).unwrap();
        std::os::unix::fs::symlink(&folder, files.join("above")).unwrap();
        std::fs::copy(httpd().join("session"), files.join("cgi-bin/session")).unwrap();
        for (program, text) in [
            ("echo", ECHO),
            ("fails", "#!/bin/sh\nexit 3\n"),
            ("says-nothing", "#!/bin/sh\n"),
            ("status", "#!/bin/sh\nprintf 'Status: 418 Teapot\\nX-A: b\\n\\nshort and stout'\n"),
            ("moved", "#!/bin/sh\nprintf 'Location: /hello.txt\\n\\n'\n"),
        ] {
            let path = files.join("cgi-bin").join(program);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(httpd().join(build));
        command.arg("127.0.0.1:0").arg(&files).env("SESSION_DIR", &sessions);
        change(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = said.next().unwrap().unwrap();
        let address = first.strip_prefix("listening on ").unwrap().parse().unwrap();
        let serving = Arc::new(AtomicU32::new(0));
        let generation = Arc::new(AtomicU32::new(0));
        let told = (Arc::clone(&serving), Arc::clone(&generation));
        std::thread::spawn(move || {
            for line in said.map_while(Result::ok) {
                let Some(numbers) = line.strip_prefix("generation ") else {
                    // Another binary says so, too.
                    assert_eq!(line, first);
                    continue;
                };
                let mut numbers = numbers.split(' ');
                let mut number = || numbers.next().unwrap().parse().unwrap();
                told.1.store(number(), Ordering::SeqCst);
                told.0.store(number(), Ordering::SeqCst);
            }
        });
        Self { child, address, files, folder, serving, generation }
    }

    /// Where its program is.
    pub fn program(build: &str) -> PathBuf {
        httpd().join(build)
    }

    pub fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The generation that serves, and how many descriptors it has open.
    pub fn generation(&self) -> (u32, usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let pid = self.serving.load(Ordering::SeqCst);
            if pid != 0 {
                let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
                return (self.generation.load(Ordering::SeqCst), descriptors);
            }
            assert!(Instant::now() < deadline, "nobody serves");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills who serves at random instants, so often, or until `over`. How often it was.
    pub fn crash(&self, count: u64, seed: u64, mut over: impl FnMut() -> bool) -> u64 {
        let mut random = Random(seed);
        let deadline = Instant::now() + PATIENCE + Duration::from_millis(200) * u32::try_from(count).unwrap();
        let mut crashes = 0;
        while crashes < count && !over() {
            std::thread::sleep(Duration::from_micros(2000 + random.below(30_000)));
            let pid = self.serving.swap(0, Ordering::Relaxed);
            if pid != 0 {
                signal(pid, random.one_of(&["KILL", "ABRT", "SEGV", "BUS"]));
                crashes += 1;
            }
            assert!(Instant::now() < deadline, "{crashes} crashes only");
        }
        crashes
    }
}

impl Drop for Httpd {
    fn drop(&mut self) {
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// What a server answers.
#[derive(Debug)]
pub struct Answer {
    pub status: u32,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// One connection.
pub struct Client(pub BufReader<TcpStream>);

impl Client {
    pub fn of(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// The next answer. A HEAD has none of the body that it tells the length of.
    pub fn hear(&mut self, head_only: bool) -> Answer {
        let mut line = String::new();
        let length = self.0.read_line(&mut line).unwrap();
        assert!(length > 0, "the server has ended the connection of {:?}", self.0.get_ref().local_addr());
        let status =
            line.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("an answer begins with {line:?}"));
        let status = status[..3].parse().unwrap();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.strip_suffix("\r\n").unwrap();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap();
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length: &String| length.parse().unwrap());
        let mut body = vec![0; if head_only { 0 } else { length }];
        self.0.read_exact(&mut body).unwrap();
        Answer { status, headers, body }
    }

    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.say(&request);
        self.hear(request.as_ref().starts_with(b"HEAD "))
    }

    /// Whether nothing more comes.
    pub fn is_over(&mut self) -> bool {
        self.0.read(&mut [0]).unwrap() == 0
    }
}

/// A request without a body.
pub fn get(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n{headers}\r\n")
}

/// As a program of the example does it (Fowler, Noll, Vo).
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The count that a session has come to, by an answer whose every byte is checked.
pub fn count_in(answer: &Answer, posted: &[u8]) -> u64 {
    assert_eq!(answer.status, 200);
    let text = answer.text();
    let (content, told) = text.strip_suffix('\n').unwrap().rsplit_once("\nsum ").unwrap();
    assert_eq!(u64::from_str_radix(told, 16).unwrap(), sum(content.as_bytes()));
    let mut lines = content.lines().skip(1);
    let count = lines.next().unwrap().strip_prefix("count ").unwrap().parse().unwrap();
    assert_eq!(lines.next().unwrap(), format!("posted {} {:x}", posted.len(), sum(posted)));
    count
}
