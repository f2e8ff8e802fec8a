//! The service, in processes of its own that are killed, and clients that check every byte of its answers.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);

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

    pub fn size(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let words = (0..length.div_ceil(8)).flat_map(|_| self.below(u64::MAX).to_le_bytes());
        words.take(length).collect()
    }
}

/// From the environment.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

pub struct Server {
    child: Child,
    /// Over IPv4 and over IPv6.
    pub addresses: [SocketAddr; 2],
    /// The processes that serve, from when they say so until they are killed, by what they are for.
    serving: Arc<Mutex<BTreeMap<String, u32>>>,
    /// How many there were.
    pub generations: Arc<AtomicU32>,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_outlast-kv")), arguments)
    }

    /// By a command that only lacks the arguments.
    pub fn start_by(mut command: Command, arguments: &[&str]) -> Self {
        command.args(["--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--restarts", "20"]);
        // For a service that is there to be crashed.
        command.args(["--restarts-window-ms", "20"]).args(arguments).env("RUST_BACKTRACE", "0");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let addresses = [(); 2].map(|()| {
            let line = said.next().unwrap().unwrap();
            line.strip_prefix("listening on ").unwrap().parse().unwrap()
        });
        let serving = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
        let generations = Arc::new(AtomicU32::new(0));
        let (told, counted) = (Arc::clone(&serving), Arc::clone(&generations));
        std::thread::spawn(move || {
            // Such as "generation 7 1234", or "worker 1 generation 7 1234".
            for line in said.map_while(Result::ok) {
                let (who, rest) = line.split_once("generation ").unwrap();
                let pid = rest.split_once(' ').unwrap().1.parse().unwrap();
                told.lock().unwrap().insert(who.trim().to_owned(), pid);
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let server = Self { child, addresses, serving, generations };
        let workers = arguments.iter().skip_while(|word| **word != "--workers").nth(1);
        let processes = workers.map_or(1, |workers| 1 + workers.parse::<usize>().unwrap());
        while cfg!(feature = "outlast") && server.serving.lock().unwrap().len() < processes {
            std::thread::sleep(Duration::from_millis(1));
        }
        server
    }

    /// The main process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// One of those that serve, which is nobody's victim yet.
    fn victim(&self, random: &mut Random) -> Option<u32> {
        let mut serving = self.serving.lock().unwrap();
        let names: Vec<String> = serving.keys().cloned().collect();
        let name = names.get(random.size(names.len().max(1)))?;
        serving.remove(name)
    }

    /// Kills who serves at random instants, so often, or until `over`. How often it was.
    pub fn crash(&self, count: u64, seed: u64, mut over: impl FnMut() -> bool) -> u64 {
        let mut random = Random(seed);
        let deadline = Instant::now() + PATIENCE + Duration::from_millis(200) * u32::try_from(count).unwrap();
        let mut crashes = 0;
        while crashes < count && !over() {
            std::thread::sleep(Duration::from_micros(2000 + random.below(20_000)));
            // Not SEGV: one that is sent only takes the handler of the standard library away.
            if let Some(pid) = self.victim(&mut random) {
                signal(pid, ["KILL", "ABRT", "ILL"][random.size(3)]);
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

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content: Vec<u8>,
}

impl Answer {
    pub fn number(&self) -> u64 {
        assert_eq!(self.status, 200);
        String::from_utf8_lossy(&self.content).trim_end().parse().unwrap()
    }
}

pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub fn hear(&mut self) -> Answer {
        self.hear_after(|_| {})
    }

    /// With something to do between two reads of the content.
    pub fn hear_after(&mut self, mut pause: impl FnMut(usize)) -> Answer {
        let (status, length) = self.hear_head();
        let mut content = vec![0; length.unwrap_or(0)];
        let mut heard = 0;
        while heard < content.len() {
            pause(heard);
            let count = self.stream.read(&mut content[heard..]).unwrap();
            assert!(count > 0, "the content ends after {heard} of {} bytes", content.len());
            heard += count;
        }
        Answer { status, content }
    }

    /// The status, and the length if there is one.
    pub fn hear_head(&mut self) -> (u16, Option<usize>) {
        let status = self.line();
        let status =
            status.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("{status:?}"))[..3].parse().unwrap();
        let mut length = None;
        loop {
            let line = self.line();
            if line.is_empty() {
                return (status, length);
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = Some(value.parse().unwrap());
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).unwrap() > 0, "the connection has ended");
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, method: &str, path: &str, content: &[u8]) -> Answer {
        self.say(&request(method, path, content));
        self.hear()
    }

    /// The content in chunks of any size, written in pieces that end anywhere.
    pub fn ask_in_chunks(&mut self, method: &str, path: &str, content: &[u8], random: &mut Random) -> Answer {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: kv\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut bytes = head.into_bytes();
        let mut rest = content;
        while !rest.is_empty() {
            let bound = [10, 1000, 100_000][random.size(3)];
            let (chunk, behind) = rest.split_at(rest.len().min(1 + random.size(bound)));
            bytes.extend(format!("{:x}{}\r\n", chunk.len(), ["", ";a=b"][random.size(2)]).into_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend(b"\r\n");
            rest = behind;
        }
        bytes.extend(b"0\r\n");
        bytes.extend([&b""[..], b"Trailer: 1\r\n"][random.size(2)]);
        bytes.extend(b"\r\n");
        for piece in bytes.chunks(1 + random.size(200_000)) {
            self.say(piece);
        }
        self.hear()
    }

    /// Whether it could be said.
    pub fn try_say(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    /// Says no more.
    pub fn finish(&mut self) {
        self.stream.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// All that comes until the end.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
        rest
    }

    /// Nothing follows.
    pub fn ends(&mut self) {
        assert_eq!(self.rest(), b"", "more than was asked for");
    }
}

pub fn request(method: &str, path: &str, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: kv\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), content].concat()
}

/// Told to all when the test is over, also when it fails.
#[derive(Default)]
pub struct Stop(AtomicBool);

impl Stop {
    pub fn is_said(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Says it when it is dropped.
pub struct Stops<'a>(pub &'a Stop);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
