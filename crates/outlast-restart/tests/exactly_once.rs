//! Requests are answered exactly once, byte by byte, by a server that is killed all the time. `OUTLAST_CRASHES=n` says how
//! often, `OUTLAST_SEED=n` when.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, clippy::cast_possible_truncation, reason = "a test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Of each of the tests.
const CRASHES: u64 = 5000;
const CLIENTS: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(30);

/// Small and repeatable (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn answer_to(line: &[u8]) -> Vec<u8> {
    let backwards: Vec<u8> = line.iter().rev().copied().collect();
    [backwards.repeat(line.len() % 20 + 1), b"\n".to_vec()].concat()
}

/// Sends lines of all lengths, up to some ahead of what it has heard, and checks every byte of the answers.
fn client(address: SocketAddr, seed: u64, stop: &AtomicBool, heard_bytes: &AtomicU64) {
    let mut random = Random(seed);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut asked = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let (mut questions, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..=random.below(8) {
            let length = [1, 10, 100, 3000][random.below(4) as usize];
            let mut line = format!("{asked}:").into_bytes();
            line.resize(line.len() + random.below(length) as usize, b'a' + random.below(26) as u8);
            answers.extend(answer_to(&line));
            line.push(b'\n');
            questions.extend(line);
            asked += 1;
        }
        // In pieces, which end anywhere.
        for piece in questions.chunks(1 + random.below(5000) as usize) {
            stream.write_all(piece).unwrap();
        }
        let mut heard = vec![0; answers.len()];
        stream.read_exact(&mut heard).unwrap_or_else(|error| panic!("seed {seed}, line {asked}: {error}"));
        assert!(heard == answers, "seed {seed}: another answer than expected up to line {asked}");
        heard_bytes.fetch_add(answers.len() as u64, Ordering::Relaxed);
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "seed {seed}: more answers than questions");
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        signal(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

#[test]
fn whatever_dies_every_byte_is_the_right_one() {
    crash_and_check("127.0.0.1:0");
}

#[test]
fn and_over_ipv6() {
    crash_and_check("[::1]:0");
}

fn crash_and_check(address: &str) {
    let this = std::env::current_exe().unwrap();
    let program = this.parent().unwrap().parent().unwrap().join("examples/lines");
    let mut child = Command::new(program).arg(address).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let server = Server(child);
    let first = said.next().unwrap().unwrap();
    let address: SocketAddr = first.strip_prefix("listening on ").unwrap().parse().unwrap();
    let (stop, heard_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    // Whoever serves says so.
    let serving = AtomicU32::new(0);
    let number = |name, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (seed, count) = (number("OUTLAST_SEED", 1), number("OUTLAST_CRASHES", CRASHES));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (stop, heard_bytes) = (&stop, &heard_bytes);
                scope.spawn(move || client(address, seed * 100 + number, stop, heard_bytes))
            })
            .collect();
        let serving = &serving;
        scope.spawn(move || {
            for line in said.map_while(Result::ok) {
                let pid = line.rsplit_once(' ').and_then(|(_, pid)| pid.parse().ok()).unwrap();
                serving.store(pid, Ordering::Relaxed);
            }
        });
        let mut random = Random(seed);
        // Each within a tenth of a second on average, on whatever machine.
        let deadline = Instant::now() + PATIENCE + Duration::from_millis(100 * count);
        let mut crashes = 0;
        while crashes < count && clients.iter().all(|client| !client.is_finished()) {
            std::thread::sleep(Duration::from_micros(2000 + random.below(20_000)));
            let pid = serving.swap(0, Ordering::Relaxed);
            // Not SEGV: one that is sent only takes the handler of the standard library away.
            if pid != 0 {
                signal(pid, ["KILL", "ABRT", "ILL"][random.below(3) as usize]);
                crashes += 1;
            }
            assert!(Instant::now() < deadline, "{crashes} crashes only");
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        println!("{crashes} crashes, {} bytes heard, seed {seed}", heard_bytes.load(Ordering::Relaxed));
        drop(server);
    });
}
