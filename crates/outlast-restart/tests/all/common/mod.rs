//! Servers that are killed all the time.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::print_stderr, reason = "a test")]

pub mod bank;
pub mod family;
pub mod forbid;
pub mod holder;
pub mod program;
pub mod state;
pub mod tracer;
pub mod victim;

use outlast_lab::MemoryGroup;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(30);

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
}

/// An example that says where it listens, and each of its generations which process it is.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    serving: Arc<AtomicU32>,
    complaints: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn start(example: &str, arguments: &[&str]) -> Self {
        Self::hear(program(example).args(arguments))
    }

    /// One whose standard error is kept, in a group of processes of its own.
    pub fn start_heard(example: &str, arguments: &[&str]) -> Self {
        let mut command = program(example);
        let mut server = Self::hear(command.args(arguments).stderr(Stdio::piped()).process_group(0));
        let (said, complaints) = (server.child.stderr.take().unwrap(), Arc::clone(&server.complaints));
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                complaints.lock().unwrap().push(line);
            }
        });
        server
    }

    /// What it has said on its standard error so far.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap().clone()
    }

    /// The zygote, which is then buried.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Whether the process that was started has been killed by the kernel, or is in a moment.
    pub fn was_killed(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(1);
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status.signal() == Some(libc::SIGKILL),
                None if Instant::now() > deadline => return false,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn hear(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = said.next().unwrap().unwrap();
        let address = first.strip_prefix("listening on ").unwrap().parse().unwrap();
        Self::of(child, address, said)
    }

    /// One that has no more memory than its group.
    pub fn start_in(group: &MemoryGroup, example: &str, arguments: &[&str]) -> Self {
        Self::hear(group.command(self::example(example)).args(arguments))
    }

    /// One in this folder, whose dumps may have so many blocks, or `unlimited`.
    pub fn start_dumping(folder: &Path, limit: &str, example: &str, arguments: &[&str]) -> Self {
        Self::hear(limited("-c", limit, example, arguments).current_dir(folder))
    }

    /// One that may have so many descriptors.
    pub fn start_with_descriptors(limit: u32, example: &str, arguments: &[&str]) -> Self {
        Self::hear(&mut limited("-n", &limit.to_string(), example, arguments))
    }

    /// One with a supervisor's board.
    pub fn start_below(board: &OwnedFd, example: &str, arguments: &[&str]) -> Self {
        Self::start_below_with(board, example, arguments, |_| {})
    }

    /// As [`start_below`](Self::start_below), with a change to how it is started.
    pub fn start_below_with(
        board: &OwnedFd,
        example: &str,
        arguments: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        // Copies made by `dup` are inherited by whoever is executed.
        let number = rustix::io::dup(board).unwrap();
        rustix::io::fcntl_setfd(&number, rustix::io::FdFlags::empty()).unwrap();
        let mut command = program(example);
        let variable = outlast_restart::board::ENVIRONMENT;
        command.args(arguments).env(variable, std::os::fd::AsRawFd::as_raw_fd(&number).to_string());
        change(&mut command);
        Self::hear(&mut command)
    }

    /// The process that was started.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// One that has no address, and speaks of itself on its standard error.
    pub fn start_between(example: &str, input: OwnedFd, output: OwnedFd) -> Self {
        let mut command = program(example);
        let mut child = command.stdin(input).stdout(output).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        Self::of(child, SocketAddr::from(([0; 4], 0)), said)
    }

    fn of(
        child: Child,
        address: SocketAddr,
        said: impl Iterator<Item = io::Result<String>> + Send + 'static,
    ) -> Self {
        let serving = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&serving);
        std::thread::spawn(move || {
            for line in said.map_while(Result::ok) {
                match line.rsplit_once(' ').and_then(|(_, pid)| pid.parse().ok()) {
                    Some(pid) => told.store(pid, Ordering::Relaxed),
                    None => eprintln!("{line}"),
                }
            }
        });
        Self { child, address, serving, complaints: Arc::default() }
    }

    /// The zygote.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process that has said last that it serves.
    pub fn serving(&self) -> u32 {
        self.serving.load(Ordering::Relaxed)
    }

    /// The process that serves next, once it has said so, or nothing if it is `over` before.
    pub fn take_serving(&self, mut over: impl FnMut() -> bool) -> Option<u32> {
        let deadline = Instant::now() + PATIENCE;
        while !over() {
            match self.serving.swap(0, Ordering::Relaxed) {
                0 => std::thread::sleep(Duration::from_micros(500)),
                serving => return Some(serving),
            }
            assert!(Instant::now() < deadline, "nobody serves");
        }
        None
    }

    /// Kills who serves at random instants, so often, or until `over`. How often it was.
    pub fn crash(&self, count: u64, seed: u64, mut over: impl FnMut() -> bool) -> u64 {
        let mut random = Random(seed);
        // Each within a tenth of a second on average, on whatever machine.
        let deadline = Instant::now() + PATIENCE + Duration::from_millis(100) * u32::try_from(count).unwrap();
        let mut crashes = 0;
        while crashes < count && !over() {
            std::thread::sleep(Duration::from_micros(2000 + random.below(20_000)));
            let pid = self.serving.swap(0, Ordering::Relaxed);
            // Not SEGV: one that is sent only takes the handler of the standard library away.
            if pid != 0 {
                signal(pid, ["KILL", "ABRT", "ILL"][usize::try_from(random.below(3)).unwrap()]);
                crashes += 1;
            }
            assert!(Instant::now() < deadline, "{crashes} crashes only");
        }
        crashes
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

/// By an option of the shell's `ulimit`.
fn limited(option: &str, limit: &str, example: &str, arguments: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit \"$0\" \"$1\" && shift && exec \"$@\"", option, limit]);
    shell.arg(self::example(example)).args(arguments);
    shell
}

fn program(name: &str) -> Command {
    Command::new(example(name))
}

/// Where an example was built.
pub fn example(name: &str) -> std::path::PathBuf {
    let this = std::env::current_exe().unwrap();
    this.parent().unwrap().parent().unwrap().join("examples").join(name)
}

pub fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// From the environment.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}
