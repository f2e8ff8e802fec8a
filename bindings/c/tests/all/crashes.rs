//! The example server is killed, or replaced by another binary, all the time, and nobody who talks to it notices. `OUTLAST_CRASHES=n` says how often,
//! `OUTLAST_SEED=n` when.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, clippy::cast_possible_truncation, reason = "a test")]

use crate::common::{BIG_BYTES, Client, Httpd, PATIENCE, Random, big, count_in, get, number, signal};
use outlast_restart::board::{Board, UpgradeEnd};
use outlast_restart::policy::Policy;
use outlast_restart::supervisor::upgrade_signal;
use std::io::Read;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CRASHES: u64 = 200;
const UPGRADES: u64 = 20;

/// What the threads of a test share.
struct Test<'a> {
    server: &'a Httpd,
    big: Vec<u8>,
    seed: u64,
    stop: AtomicBool,
    answers: AtomicU64,
}

impl Test<'_> {
    fn goes_on(&self) -> bool {
        self.answers.fetch_add(1, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }

    /// A random request, and the status and body that it has to be answered with.
    fn question(&self, random: &mut Random) -> (String, u32, Vec<u8>) {
        match random.below(8) {
            0 => ("HEAD /big HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 200, Vec::new()),
            1 => (get("/nothing", ""), 404, b"404 Not Found\n".to_vec()),
            2 => (get("/sub%20dir/", ""), 200, b"<p>index".to_vec()),
            3 => (get("/cgi-bin/status", ""), 418, b"short and stout".to_vec()),
            4 => {
                let word = random.below(u64::MAX).to_string();
                let length = word.len();
                let head =
                    format!("POST /cgi-bin/echo?{word} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n");
                let body = format!("POST /cgi-bin/echo  {word} {length} \n{word}");
                (format!("{head}\r\n{word}"), 200, body.into_bytes())
            }
            5 | 6 => {
                let begin = random.below(BIG_BYTES as u64 - 1);
                let end = (begin + 1 + random.below(300_000)).min(BIG_BYTES as u64);
                let body = self.big[begin as usize..end as usize].to_vec();
                (get("/big", &format!("Range: bytes={begin}-{}\r\n", end - 1)), 206, body)
            }
            _ => (get("/hello.txt", ""), 200, b"hello, world\n".to_vec()),
        }
    }

    /// Several requests at a time, in pieces that end anywhere.
    fn asks_ahead(&self, seed: u64) {
        let mut random = Random(seed);
        let mut client = Client::of(self.server.address);
        while self.goes_on() {
            let questions: Vec<_> = (0..=random.below(6)).map(|_| self.question(&mut random)).collect();
            let text: String = questions.iter().map(|(request, ..)| request.as_str()).collect();
            for piece in text.as_bytes().chunks(1 + random.below(300) as usize) {
                client.say(piece);
            }
            for (request, status, body) in &questions {
                let answer = client.hear(request.starts_with("HEAD "));
                assert_eq!(answer.status, *status, "seed {seed}: {request}");
                assert!(answer.body == *body, "seed {seed}: {request}: other bytes");
            }
            if random.below(10) == 0 {
                client = Client::of(self.server.address);
            }
        }
    }

    /// A session, the program of which crashes, too.
    fn counts(&self, seed: u64, byte_by_byte: bool) {
        let mut random = Random(seed);
        let mut client = Client::of(self.server.address);
        let mut cookie = String::new();
        let mut count = 0;
        while self.goes_on() {
            let crash = random.one_of(&["", "before", "during", "after", "random"]);
            let posted = "x".repeat(random.below(if byte_by_byte { 50 } else { 20_000 }) as usize);
            let length = posted.len();
            let request = format!(
                "POST /cgi-bin/session?crash={crash} HTTP/1.1\r\nHost: h\r\n{cookie}Content-Length: {length}\r\n\r\n{posted}"
            );
            for piece in request.as_bytes().chunks(if byte_by_byte { 1 } else { 5000 }) {
                client.say(piece);
                if byte_by_byte {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            let answer = client.hear(false);
            count += 1;
            assert_eq!(count_in(&answer, posted.as_bytes()), count, "seed {seed}: {crash}");
            let session = answer.headers["set-cookie"].split(';').next().unwrap();
            cookie = format!("Cookie: {session}\r\n");
            if random.below(5) == 0 {
                client = Client::of(self.server.address);
            }
        }
    }

    fn reads_slowly(&self) {
        while self.goes_on() {
            let mut client = Client::of(self.server.address);
            client.say(get("/big", "Range: bytes=0-3999999\r\nConnection: close\r\n"));
            // The kernels' buffers are full for most of the time.
            let mut received = Vec::new();
            let mut piece = [0; 64 << 10];
            loop {
                let count = client.0.get_mut().read(&mut piece).unwrap();
                if count == 0 {
                    break;
                }
                received.extend_from_slice(&piece[..count]);
                std::thread::sleep(Duration::from_millis(2));
            }
            let begin = received.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
            assert!(received[begin..] == self.big[..4_000_000], "{} bytes", received.len() - begin);
        }
    }

    fn downloads(&self) {
        while self.goes_on() {
            let mut curl = Command::new("curl");
            // No retries: what fails fails.
            curl.args(["-sSf", "--max-time", "120", "--limit-rate", "40M"]).arg(self.server.url("/big"));
            let output = curl.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout == self.big, "{} bytes", output.stdout.len());
        }
    }
}

/// Does something to a server that has clients of all kinds, who notice nothing; it is told whether they are through
/// nevertheless.
fn under_load(server: &Httpd, seed: u64, harm: impl FnOnce(&mut dyn FnMut() -> bool) -> u64) -> u64 {
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let test = Test { server, big: big(), seed, stop, answers };
    std::thread::scope(|scope| {
        let test = &test;
        let mut clients = vec![
            scope.spawn(|| test.downloads()),
            scope.spawn(|| test.reads_slowly()),
            scope.spawn(|| test.counts(test.seed * 100, true)),
        ];
        for number in 1..=2 {
            clients.push(scope.spawn(move || test.asks_ahead(test.seed * 100 + number)));
            clients.push(scope.spawn(move || test.counts(test.seed * 100 + 10 + number, false)));
        }
        let count = harm(&mut || clients.iter().any(|client| client.is_finished()));
        test.stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        println!("{count} times, {} rounds, seed {seed}", test.answers.load(Ordering::Relaxed));
        count
    })
}

#[test]
fn every_answer_is_whole_and_every_request_counts_once() {
    let server = Httpd::start("httpd-outlast", "crashes");
    let (seed, count) = (number("OUTLAST_SEED", 1), number("OUTLAST_CRASHES", CRASHES));
    let crashes = under_load(&server, seed, |is_over| server.crash(count, seed, is_over));
    assert_eq!(crashes, count);
    // It has died of nothing else.
    assert_eq!(u64::from(server.generation().0), count + 1);
    // What generations leave to each other is not lost on the way: nobody is connected any more.
    let deadline = Instant::now() + PATIENCE;
    while server.generation().1 > 12 {
        assert!(Instant::now() < deadline, "{} descriptors are open", server.generation().1);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_file_that_changes_while_it_is_sent_is_sent_as_it_was_or_not_to_its_end() {
    let server = Httpd::start("httpd-outlast", "changes");
    let (file, big) = (server.files.join("big"), big());
    let begin = |client: &mut Client| {
        client.say(get("/big", ""));
        let mut head = [0; 1000];
        client.0.read_exact(&mut head).unwrap();
        head.to_vec()
    };
    let rest = |client: &mut Client, mut received: Vec<u8>| {
        client.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        client.0.read_to_end(&mut received).unwrap();
        received
    };
    // Another one has its name: the former one is sent.
    let mut client = Client::of(server.address);
    let received = begin(&mut client);
    std::fs::write(server.files.join("new"), "another one").unwrap();
    std::fs::rename(server.files.join("new"), &file).unwrap();
    assert_eq!(server.crash(1, 1, || false), 1);
    assert!(rest(&mut client, received).ends_with(&big[1000..]));
    assert_eq!(Client::of(server.address).ask(get("/big", "")).text(), "another one");
    // It is itself another one: better half of an answer than one of two halves.
    std::fs::write(&file, &big).unwrap();
    let mut client = Client::of(server.address);
    let received = begin(&mut client);
    let other: Vec<u8> = big.iter().map(|byte| !byte).collect();
    std::fs::write(&file, other).unwrap();
    assert_eq!(server.crash(1, 2, || false), 1);
    assert!(rest(&mut client, received).len() < BIG_BYTES);
}

#[test]
fn another_binary_goes_on_in_the_middle_of_files_and_programs() {
    let (memory, board) = Board::create(&Policy::default()).unwrap();
    let server = Httpd::start_below(&memory, "upgrades");
    let another = server.files.join("httpd-new");
    std::fs::copy(Httpd::program("httpd-outlast"), &another).unwrap();
    let mut random = Random(1);
    let upgraded = under_load(&server, 1, |is_over| {
        let mut upgrades = 0;
        while upgrades < UPGRADES && !is_over() {
            std::thread::sleep(Duration::from_millis(20 + random.below(100)));
            let wish = board.want_upgrade(&another, PATIENCE);
            signal(server.pid(), &upgrade_signal().to_string());
            let begin = Instant::now();
            while board.upgrade_end(wish).is_none() {
                assert!(begin.elapsed() < 2 * PATIENCE, "an upgrade has no end");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(board.upgrade_end(wish), Some(UpgradeEnd::Done), "upgrade {upgrades}");
            upgrades += 1;
        }
        upgrades
    });
    assert_eq!(upgraded, UPGRADES);
    assert_eq!(board.generation(), u32::try_from(UPGRADES).unwrap() + 1, "it has died of nothing else");
}
