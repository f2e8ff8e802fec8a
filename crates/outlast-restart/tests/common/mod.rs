//! Servers that are killed all the time.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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
}

impl Server {
    pub fn start(example: &str, arguments: &[&str]) -> Self {
        let this = std::env::current_exe().unwrap();
        let program = this.parent().unwrap().parent().unwrap().join("examples").join(example);
        let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = said.next().unwrap().unwrap();
        let address = first.strip_prefix("listening on ").unwrap().parse().unwrap();
        let serving = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&serving);
        std::thread::spawn(move || {
            for line in said.map_while(Result::ok) {
                let pid = line.rsplit_once(' ').and_then(|(_, pid)| pid.parse().ok()).unwrap();
                told.store(pid, Ordering::Relaxed);
            }
        });
        Self { child, address, serving }
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

pub fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// From the environment.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}
