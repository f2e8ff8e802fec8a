//! Nobody sees the service crash: it is killed all the time while clients check every byte. `OUTLAST_CRASHES=n` says how
//! often, `OUTLAST_SEED=n` when.
#![cfg(feature = "outlast")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, reason = "a test")]

use crate::common::{Answer, Client, PATIENCE, Random, Server, Stop, Stops, number, request};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CRASHES: u64 = 500;
const COUNTERS: u64 = 24;
const VALUE_BYTES_MAX: usize = 3 << 20;

/// What all clients share.
struct Crowd<'a> {
    server: &'a Server,
    seed: u64,
    stop: Stop,
    counted: AtomicU64,
    transferred_bytes: AtomicU64,
}

impl Crowd<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.is_said()
    }

    fn address(&self, number: u64) -> SocketAddr {
        self.server.addresses[usize::try_from(number % 2).unwrap()]
    }
}

/// What a client does until it is stopped. Its number is its own.
type Role = fn(&Crowd, u64);

/// Counts under a name of its own, and under one that all share; many requests at once.
fn count(crowd: &Crowd, number: u64) {
    let mut random = Random(crowd.seed * 1000 + number);
    let mut client = Client::new(crowd.address(number));
    let (mut mine, mut last_ours) = (0, 0);
    while crowd.goes_on() {
        let count = 1 + random.below(20);
        for _ in 0..count {
            client.say(&request("POST", &format!("/counter/{number}"), b""));
            client.say(&request("POST", "/counter/all", b""));
        }
        for _ in 0..count {
            mine += 1;
            assert_eq!(client.hear().number(), mine, "client {number}, seed {}", crowd.seed);
            let ours = client.hear().number();
            assert!(ours > last_ours, "client {number}, seed {}", crowd.seed);
            last_ours = ours;
        }
        if random.below(50) == 0 {
            client = Client::new(crowd.address(number));
        }
    }
    crowd.counted.fetch_add(mine, Ordering::Relaxed);
}

/// Puts values, adds to them, reads them and takes them away, and knows what each has to be.
fn keep(crowd: &Crowd, number: u64) {
    let mut random = Random(crowd.seed * 1000 + number);
    let mut client = Client::new(crowd.address(number));
    let mut known: [Option<Vec<u8>>; 3] = [None, None, None];
    while crowd.goes_on() {
        let name = random.size(known.len());
        let (path, value) = (format!("/kv/{number}-{name}"), &mut known[name]);
        let bound = [10, 5000, VALUE_BYTES_MAX][random.size(3)];
        match random.below(6) {
            0 | 1 => {
                let length = random.size(bound);
                let content = random.bytes(length);
                let appends =
                    random.below(3) == 0 && value.as_ref().is_none_or(|value| value.len() < VALUE_BYTES_MAX);
                let method = if appends { "POST" } else { "PUT" };
                let answer = match random.below(2) {
                    0 => client.ask_in_chunks(method, &path, &content, &mut random),
                    _ => client.ask(method, &path, &content),
                };
                let was_new = value.is_none();
                let whole = value.get_or_insert_default();
                if !appends {
                    whole.clear();
                }
                whole.extend_from_slice(&content);
                let text = format!("{}\n", whole.len()).into_bytes();
                let expected = match (appends, was_new) {
                    (true, _) => Answer { status: 200, content: text },
                    (false, true) => Answer { status: 201, content: Vec::new() },
                    (false, false) => Answer { status: 204, content: Vec::new() },
                };
                assert_eq!(answer, expected, "seed {}, {method} {path}", crowd.seed);
                crowd.transferred_bytes.fetch_add(content.len() as u64, Ordering::Relaxed);
            }
            2 => {
                let status = if value.take().is_some() { 204 } else { 404 };
                assert_eq!(client.ask("DELETE", &path, b"").status, status, "seed {}, {path}", crowd.seed);
            }
            _ => {
                client.say(&request("GET", &path, b""));
                let is_slow = random.below(8) == 0;
                let answer = client.hear_after(|_| {
                    if is_slow && random.below(4) == 0 {
                        std::thread::sleep(Duration::from_millis(1 + random.below(5)));
                    }
                });
                match value {
                    Some(value) => {
                        let same = answer.status == 200 && answer.content == *value;
                        assert!(same, "seed {}: {path} is another one: {}", crowd.seed, answer.status);
                        crowd.transferred_bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
                    }
                    None => assert_eq!(answer.status, 404, "seed {}, {path}", crowd.seed),
                }
            }
        }
    }
}

/// One value that is replaced, and taken away, while others download it: they get one of them as a whole.
fn share(crowd: &Crowd, number: u64) {
    let mut random = Random(crowd.seed * 1000 + number);
    let mut client = Client::new(crowd.address(number));
    while crowd.goes_on() {
        if random.below(4) == 0 {
            let content = vec![b'a' + u8::try_from(random.below(26)).unwrap(); random.size(VALUE_BYTES_MAX)];
            let answer = client.ask("PUT", "/kv/shared", &content);
            assert!(matches!(answer.status, 201 | 204), "{}", answer.status);
        } else if random.below(20) == 0 {
            assert!(matches!(client.ask("DELETE", "/kv/shared", b"").status, 204 | 404));
        } else {
            let answer = client.ask("GET", "/kv/shared", b"");
            let first = answer.content.first().copied().unwrap_or_default();
            let is_one = answer.status == 404 || answer.content.iter().all(|&byte| byte == first);
            assert!(is_one, "seed {}: parts of two values", crowd.seed);
        }
    }
}

/// Comes, asks once, and goes, or goes in the middle of what it wants to say.
fn come_and_go(crowd: &Crowd, number: u64) {
    let mut random = Random(crowd.seed * 1000 + number);
    while crowd.goes_on() {
        let mut client = Client::new(crowd.address(random.below(2)));
        if random.below(3) == 0 {
            let part = request("PUT", &format!("/kv/unfinished-{}", random.below(3)), &[7; 100_000]);
            client.say(&part[..random.size(part.len())]);
            continue;
        }
        client.say(b"GET /counter/none HTTP/1.1\r\nHost: kv\r\nConnection: close\r\n\r\n");
        assert_eq!(client.hear().number(), 0);
        client.ends();
    }
    // What was begun was not put.
    let mut client = Client::new(crowd.address(number));
    assert_eq!(client.ask("GET", "/kv?prefix=unfinished", b"").content, b"");
}

/// Sends what crashes whoever deals with it, and is refused.
fn sabotage(crowd: &Crowd, number: u64) {
    let mut random = Random(crowd.seed * 1000 + number);
    while crowd.goes_on() {
        let mut client = Client::new(crowd.address(random.below(2)));
        let how = ["segv", "abort", "panic", "exit"][random.size(4)];
        client.say(&request("GET", &format!("/crash?how={how}"), b""));
        assert_eq!(client.hear().status, 500, "seed {}: {how}", crowd.seed);
        client.ends();
        std::thread::sleep(Duration::from_millis(random.below(2000)));
    }
}

/// A program that knows nothing of this.
fn curl(crowd: &Crowd, number: u64) {
    let mut random = Random(crowd.seed * 1000 + number);
    let folder = std::env::temp_dir().join(format!("outlast-kv-{}-{number}", crowd.server.pid()));
    std::fs::create_dir_all(&folder).unwrap();
    let (up, down) = (folder.join("up"), folder.join("down"));
    while crowd.goes_on() {
        let length = random.size(VALUE_BYTES_MAX);
        std::fs::write(&up, random.bytes(length)).unwrap();
        let url = format!("http://{}/kv/curl-{number}", crowd.address(random.below(2)));
        let run = |arguments: &[&str]| {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--fail", "--max-time", "120", "--output"]).arg(&down);
            let ended = curl.args(arguments).arg(&url).status().unwrap();
            assert!(ended.success(), "seed {}: curl {arguments:?}: {ended}", crowd.seed);
        };
        let up_name = up.to_str().unwrap();
        match random.below(2) {
            0 => run(&["--upload-file", up_name]),
            _ => run(&["--header", "Transfer-Encoding: chunked", "--upload-file", up_name]),
        }
        run(&[]);
        assert!(std::fs::read(&up).unwrap() == std::fs::read(&down).unwrap(), "seed {}", crowd.seed);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn whatever_dies_every_request_is_executed_once_and_every_byte_is_right() {
    crash_among_all(&[], CRASHES);
}

#[test]
fn and_in_several_processes_with_one_state() {
    crash_among_all(&["--workers", "3"], CRASHES / 4);
}

fn crash_among_all(arguments: &[&str], kills: u64) {
    // Less memory than is put into it: what is not needed any more has to be found and given back.
    let some = ["--memory-mib", "512", "--crashes", "--hang-timeout-ms", "0"];
    let server = Server::start(&[&some, arguments].concat());
    let seed = number("OUTLAST_SEED", 1);
    let crowd = Crowd {
        server: &server,
        seed,
        stop: Stop::default(),
        counted: AtomicU64::new(0),
        transferred_bytes: AtomicU64::new(0),
    };
    let crowd = &crowd;
    let crashes = std::thread::scope(|scope| {
        let roles =
            [(count as Role, COUNTERS), (keep, 6), (share, 3), (come_and_go, 2), (sabotage, 1), (curl, 1)];
        let roles = roles.into_iter().flat_map(|(role, many)| (0..many).map(move |_| role));
        let clients: Vec<_> =
            (0..).zip(roles).map(|(number, role)| scope.spawn(move || role(crowd, number))).collect();
        let stops = Stops(&crowd.stop);
        let crashes = server.crash(number("OUTLAST_CRASHES", kills), seed, || {
            clients.iter().any(|client| client.is_finished())
        });
        drop(stops);
        for client in clients {
            client.join().unwrap();
        }
        crashes
    });
    let counted = crowd.counted.load(Ordering::Relaxed);
    let all = Client::new(server.addresses[0]).ask("GET", "/counter/all", b"").number();
    assert_eq!(all, counted, "seed {seed}");
    println!(
        "{crashes} kills, {} generations: {counted} counted twice each, {} MB put and got, seed {seed}",
        server.generations.load(Ordering::Relaxed),
        crowd.transferred_bytes.load(Ordering::Relaxed) / 1_000_000
    );
    assert!(counted > crashes, "too little happens: {counted}");
}

#[test]
fn a_request_that_crashes_everybody_is_refused_and_the_others_see_nothing() {
    let server = Server::start(&["--crashes", "--hang-timeout-ms", "500"]);
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let bystanders: Vec<_> = (0..20usize)
            .map(|number| {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || {
                    let mut client = Client::new(server.addresses[number % 2]);
                    let mut count = 0;
                    while !stop.is_said() {
                        count += 1;
                        let path = format!("/counter/{number}");
                        assert_eq!(client.ask("POST", &path, b"").number(), count, "bystander {number}");
                    }
                    count
                })
            })
            .collect();
        let stops = Stops(&stop);
        for how in ["segv", "abort", "panic", "hang", "exit"] {
            let before = server.generations.load(Ordering::Relaxed);
            let mut client = Client::new(server.addresses[0]);
            // What comes before it is answered as always.
            let good = request("POST", "/counter/poisoner", b"");
            client.say(&[good, request("GET", &format!("/crash?how={how}"), b"")].concat());
            assert_eq!(client.hear().status, 200, "{how}");
            assert_eq!(client.hear().status, 500, "{how}");
            client.ends();
            // Their lines may come a little later, and one too many later still.
            let counted = || server.generations.load(Ordering::Relaxed) - before;
            let deadline = Instant::now() + PATIENCE;
            while counted() < 3 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(100));
            let generations = counted();
            assert_eq!(generations, 3, "{how}: that many crashes it takes");
        }
        drop(stops);
        let counts: Vec<u64> = bystanders.into_iter().map(|bystander| bystander.join().unwrap()).collect();
        println!("20 bystanders have counted up to {counts:?}");
    });
    let poisoner = Client::new(server.addresses[1]).ask("GET", "/counter/poisoner", b"");
    assert_eq!(poisoner.number(), 5);
}

/// Asks one after the other until it is stopped. How often it has.
fn ask_on(server: &Server, number: usize, stop: &Stop) -> u64 {
    let mut client = Client::new(server.addresses[number % 2]);
    let (mut asked, mut last) = (0, None);
    while !stop.is_said() {
        asked += 1;
        if number == 0 {
            let sum: u64 = requests(&mut client).iter().sum();
            // It is not in its own answer.
            assert!(last.is_none_or(|last| sum > last), "{sum} after {last:?}");
            last = Some(sum);
        } else if asked % 20 == 0 {
            // Somebody else may answer this one.
            client = Client::new(server.addresses[number % 2]);
            assert_eq!(client.ask("GET", "/kv/none", b"").status, 404);
        } else {
            assert_eq!(client.ask("PUT", &format!("/kv/{number}"), b"value").status / 100, 2);
        }
    }
    asked
}

/// How many each worker has dealt with.
fn requests(client: &mut Client) -> Vec<u64> {
    let answer = client.ask("GET", "/status", b"");
    assert_eq!(answer.status, 200);
    let counts = String::from_utf8(answer.content).unwrap();
    counts.split_whitespace().map(|count| count.parse().unwrap()).collect()
}

#[test]
fn a_master_knows_exactly_what_workers_have_done_whoever_dies() {
    let server = Server::start(&["--workers", "3", "--memory-mib", "64"]);
    let (stop, seed) = (Stop::default(), number("OUTLAST_SEED", 1));
    let (asked, crashes) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..12)
            .map(|number| {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || ask_on(server, number, stop))
            })
            .collect();
        let stops = Stops(&stop);
        let over = || clients.iter().any(|client| client.is_finished());
        let crashes = server.crash(number("OUTLAST_CRASHES", CRASHES / 8), seed, over);
        drop(stops);
        (clients.into_iter().map(|client| client.join().unwrap()).sum::<u64>(), crashes)
    });
    let counts = requests(&mut Client::new(server.addresses[0]));
    println!("{crashes} kills, {asked} requests: {counts:?}, seed {seed}");
    assert!(counts.len() == 3 && counts.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!(counts.iter().sum::<u64>(), asked, "seed {seed}");
}

#[test]
fn all_processes_end_when_the_main_one_is_told_to() {
    let server = Server::start(&["--workers", "3", "--memory-mib", "64"]);
    let address = server.addresses[0];
    assert_eq!(requests(&mut Client::new(address)).len(), 3);
    crate::common::signal(server.pid(), "TERM");
    let deadline = std::time::Instant::now() + crate::common::PATIENCE;
    // As long as one process is left, it listens.
    while std::net::TcpStream::connect(address).is_ok() {
        assert!(std::time::Instant::now() < deadline, "somebody is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}
