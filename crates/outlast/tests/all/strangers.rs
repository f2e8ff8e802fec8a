//! What strangers do to a listener, by default flags, beside a live download, a ping-pong and a client that comes back:
//! crowds that say nothing, downloads that are abandoned, sessions without number.
//!
//! `OUTLAST_STRANGERS=9000` for the number of them; then the times are checked, too: a machine that runs other tests has
//! its own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed expectation is the message of a test"
)]

use crate::common::{Outlast, command, eventually, folder, output};
use outlast_session::proto::{FrameHeader, Hello, LinkMode, Message, SessionId};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PING_MAX: Duration = Duration::from_millis(250);
const RESUME_MAX: Duration = Duration::from_secs(2);

fn strangers(default: usize) -> usize {
    std::env::var("OUTLAST_STRANGERS").map_or(default, |text| text.parse().unwrap())
}

fn is_measured() -> bool {
    std::env::var_os("OUTLAST_STRANGERS").is_some()
}

/// Says zeroes without end to whoever begins with `d`, and repeats what the others say.
pub fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut first = [0];
                if stream.read_exact(&mut first).is_ok() && first == *b"d" {
                    while stream.write_all(&[0; 64 << 10]).is_ok() {}
                } else if stream.write_all(&first).is_ok() {
                    std::io::copy(&mut &stream, &mut &stream).ok();
                }
            });
        }
    });
    address
}

/// A way to the listener that can be cut.
struct Cuttable {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cuttable {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let kept = streams.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(target) else { continue };
                for (mut from, mut to) in [(&near, &far), (&far, &near)]
                    .map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
                {
                    std::thread::spawn(move || {
                        std::io::copy(&mut from, &mut to).ok();
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
                kept.lock().unwrap().extend([near, far]);
            }
        });
        Self { address, streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

/// Honest clients, from before an attack to behind it.
struct Honest {
    server: Outlast,
    client: Outlast,
    server_address: SocketAddr,
    stop: Arc<AtomicBool>,
    ping_max_us: Arc<AtomicU64>,
    downloaded_bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    way: Cuttable,
    _second: Outlast,
    returning: TcpStream,
}

impl Honest {
    fn begin(runtime: &Path, limits: &str, flags: &[&str]) -> Self {
        let service = service().to_string();
        let mut listen = command(runtime, &[&["listen", "127.0.0.1:0", "--to", &service], flags].concat());
        let mut shell = std::process::Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("{limits} exec \"$0\" \"$@\""))
            .arg(listen.get_program())
            .args(listen.get_args());
        for (name, value) in listen.get_envs() {
            if let Some(value) = value {
                shell.env(name, value);
            }
        }
        listen = shell;
        listen.env("OUTLAST_LOG", "info").stdin(Stdio::null()).stderr(Stdio::piped());
        let mut server = Outlast::from(listen);
        let server_address = server.address();
        let via = server_address.to_string();
        let mut client = Outlast::start(runtime, &["connect", "127.0.0.1:0", "--via", &via]);
        let address = client.address();
        let way = Cuttable::to(server_address);
        let via = way.address.to_string();
        let mut second = Outlast::start(runtime, &["connect", "127.0.0.1:0", "--via", &via]);
        let returning = TcpStream::connect(second.address()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (ping_max_us, downloaded_bytes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (told, slowest) = (stop.clone(), ping_max_us.clone());
        let mut pinged = TcpStream::connect(address).unwrap();
        pinged.set_nodelay(true).unwrap();
        ping(&mut pinged);
        let pinger = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                slowest.fetch_max(ping(&mut pinged).as_micros() as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let (told, counted) = (stop.clone(), downloaded_bytes.clone());
        let mut download = TcpStream::connect(address).unwrap();
        download.write_all(b"d").unwrap();
        let downloader = std::thread::spawn(move || {
            let mut piece = vec![0; 64 << 10];
            while !told.load(Ordering::Relaxed) {
                download.read_exact(&mut piece).unwrap();
                counted.fetch_add(piece.len() as u64, Ordering::Relaxed);
                // Not all there is: there are others on the machine.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut honest = Self {
            server,
            client,
            server_address,
            stop,
            ping_max_us,
            downloaded_bytes,
            threads: vec![pinger, downloader],
            way,
            _second: second,
            returning,
        };
        ping(&mut honest.returning);
        honest
    }

    /// How long a client is away whose link is cut now.
    fn come_back(&mut self) -> Duration {
        self.way.cut();
        let away = ping(&mut self.returning);
        if is_measured() {
            assert!(away <= RESUME_MAX, "a resume took {away:?}");
        }
        away
    }

    /// Nothing of the attack was noticed.
    fn end(mut self, runtime: &Path, attack: &str, away: &[Duration]) {
        let before = self.downloaded_bytes.load(Ordering::Relaxed);
        eventually("the download stands still", || {
            (self.downloaded_bytes.load(Ordering::Relaxed) > before).then_some(())
        });
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let slowest = Duration::from_micros(self.ping_max_us.load(Ordering::Relaxed));
        let status = status(runtime, self.client.pid());
        for session in status["sessions"].as_array().unwrap() {
            assert_eq!(session["outages"], 0, "{attack}: a link was lost: {session}");
        }
        let memory = self::status(runtime, self.server.pid())["memory"].clone();
        println!("{attack}: slowest ping {slowest:?}, away {away:?}, {memory}");
        // A service has filled the kernel's buffers before that can be measured: only the next opening is refused for it.
        let in_process = memory["used_bytes"].as_u64().unwrap() - memory["kernel_bytes"].as_u64().unwrap();
        assert!(in_process <= memory["budget_bytes"].as_u64().unwrap(), "{attack}: {memory}");
        if is_measured() {
            assert!(slowest <= PING_MAX, "{attack}: a ping took {slowest:?}");
        }
    }
}

fn ping(stream: &mut TcpStream) -> Duration {
    let began = Instant::now();
    stream.write_all(b"p").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    began.elapsed()
}

/// What an instance tells of itself.
fn status(runtime: &Path, pid: u32) -> serde_json::Value {
    let status = output(runtime, &["status", "--json"]);
    let all: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    all.as_array().unwrap().iter().find(|one| one["pid"] == pid).unwrap().clone()
}

/// A socket of somebody from this network, on its way to the listener.
fn stranger(block: usize, target: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let [_, _, high, low] = u32::try_from(block).unwrap().to_be_bytes();
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 9 + high, low, 1), 0)).into()).unwrap();
    // What is not read stays at the other end.
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.connect(&target.into()).ok();
    socket
}

/// One that opens a session and says `first` in it. Whether it was welcomed.
pub fn open(block: usize, target: SocketAddr, first: &[u8], number: usize) -> (TcpStream, bool) {
    let socket = stranger(block, target);
    socket.set_nonblocking(false).unwrap();
    let mut stream = TcpStream::from(socket);
    let mut name = [0x5a; 16];
    name[..8].copy_from_slice(&number.to_be_bytes());
    let mut bytes = Message::Hello(Hello::open(SessionId::from_bytes(name), LinkMode::Inband)).to_bytes();
    bytes.extend_from_slice(&FrameHeader::data(first.len(), 0).encode());
    bytes.extend_from_slice(first);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = [0; 4096];
    let count = stream.write_all(&bytes).and_then(|()| stream.read(&mut answer)).unwrap_or(0);
    // A refusal is short.
    let refused = count == 0
        || matches!(
            outlast_session::proto::decode(&answer[..count]),
            Ok(outlast_session::proto::Decoded::Message { message: Message::Refuse(_), .. })
        );
    (stream, !refused)
}

/// Sockets that say nothing, all from one address, then from many; they come again when they are reset.
#[test]
fn silent_crowds_hold_nobody_up() {
    for blocks in [1, 40] {
        let folder = folder();
        let mut honest = Honest::begin(folder.path(), "", &[]);
        let (target, count) = (honest.server_address, strangers(1_500));
        let mut crowd: Vec<Socket> = (0..count).map(|number| stranger(number % blocks, target)).collect();
        let mut away = Vec::new();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(if is_measured() { 2_000 } else { 500 }));
            away.push(honest.come_back());
            for (number, socket) in crowd.iter_mut().enumerate() {
                let mut byte = [std::mem::MaybeUninit::uninit()];
                if !matches!(socket.recv(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
                {
                    *socket = stranger(number % blocks, target);
                }
            }
        }
        honest.end(folder.path(), &format!("{count} silent sockets from {blocks} networks"), &away);
    }
}

/// Sessions to a service that has much to say, whose clients leave or read nothing.
#[test]
fn abandoned_downloads_stay_within_the_budget() {
    let folder = folder();
    let count = strangers(150).min(2_053);
    let flags: &[&str] = if is_measured() { &[] } else { &["--memory", "32M"] };
    let mut honest = Honest::begin(folder.path(), "", flags);
    let (mut standing, mut away, mut refused) = (Vec::new(), Vec::new(), 0);
    for number in 0..count {
        let (stream, welcomed) = open(number % 3, honest.server_address, b"d", number);
        refused += usize::from(!welcomed);
        if number % 4 == 0 {
            standing.push(stream);
        }
        if number % (count / 4) == 0 {
            away.push(honest.come_back());
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    away.push(honest.come_back());
    honest.end(folder.path(), &format!("{count} downloads abandoned or not read, {refused} refused"), &away);
}

/// Sessions from many addresses until no more are taken: refused before their Welcome, and nobody else notices.
#[test]
fn sessions_without_number_leave_descriptors() {
    let folder = folder();
    let limit = strangers(600).min(8_000);
    let mut honest = Honest::begin(folder.path(), &format!("ulimit -n {limit};"), &[]);
    let (mut kept, mut refused, mut away) = (Vec::new(), 0, Vec::new());
    for number in 0..limit {
        let (stream, welcomed) = open(number / 20, honest.server_address, b"x", number);
        if welcomed {
            kept.push(stream);
        } else {
            refused += 1;
        }
        if refused == 50 {
            break;
        }
    }
    assert!(refused == 50 && kept.len() > limit / 8, "{} sessions, {refused} refused", kept.len());
    for _ in 0..3 {
        away.push(honest.come_back());
    }
    let said = honest.server.said_so_far();
    assert!(!said.contains("Too many open files"), "{said}");
    let warned = said.lines().find(|line| line.contains("WARN") && line.contains("no new session"));
    assert!(warned.is_some_and(|line| line.contains("ulimit -n")), "{warned:?}");
    honest.end(folder.path(), &format!("{} sessions in {limit} descriptors", kept.len()), &away);
}
