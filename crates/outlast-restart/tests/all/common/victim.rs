//! A server that takes one crash after the other while it is watched, and a client of it.

use super::family::{
    acknowledge, children, descriptors, eventually, send, send_to_thread, serving_and_standing_by,
};
use super::tracer::{Reached, Step, Tracer};
use super::{PATIENCE, Server};
use rustix::io::ioctl_fionbio;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Asks, and checks what it hears.
pub struct Client {
    /// Of a socket both are the same.
    to: File,
    from: File,
    expected: Vec<u8>,
    heard: usize,
    /// Whether the server is to close the connection behind its answers.
    is_closed: bool,
}

impl Client {
    fn of(server: &Server, is_closed: bool) -> Self {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_nodelay(true).unwrap();
        let to = OwnedFd::from(stream.try_clone().unwrap());
        Self::between(to.into(), OwnedFd::from(stream).into(), is_closed)
    }

    fn between(to: File, from: File, is_closed: bool) -> Self {
        Self { to, from, expected: Vec::new(), heard: 0, is_closed }
    }

    fn say(&mut self, questions: &[u8]) {
        ioctl_fionbio(&self.to, false).unwrap();
        self.to.write_all(questions).unwrap();
    }

    /// Whether it has heard everything that it expects, and the end behind it.
    fn has_heard(&mut self) -> bool {
        ioctl_fionbio(&self.from, true).unwrap();
        acknowledge(&self.from);
        let mut bytes = [0; 65536];
        while self.heard < self.expected.len() {
            match self.from.read(&mut bytes) {
                Ok(0) => panic!("the connection has ended after {} bytes", self.heard),
                Ok(count) => {
                    let expected = self.expected.get(self.heard..self.heard + count);
                    assert!(expected == Some(&bytes[..count]), "another answer at {}", self.heard);
                    self.heard += count;
                    acknowledge(&self.from);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => panic!("{error} after {} bytes", self.heard),
            }
        }
        self.expected.clear();
        self.heard = 0;
        match self.from.read(&mut bytes) {
            Ok(0) if self.is_closed => true,
            Ok(count) => panic!("{count} bytes behind the answers"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => !self.is_closed,
            Err(error) => panic!("{error} behind the answers"),
        }
    }

    fn hears_everything(&mut self, when: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.has_heard() {
            assert!(Instant::now() < deadline, "{when}: {} of {} bytes", self.heard, self.expected.len());
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// What is asked, in two halves, and the answers.
pub type Questions = fn(round: u64) -> ([Vec<u8>; 2], Vec<u8>);

/// For the example of this name.
pub fn lines(round: u64) -> ([Vec<u8>; 2], Vec<u8>) {
    let (mut questions, mut answers) = ([Vec::new(), Vec::new()], Vec::new());
    for (number, length) in [1usize, 40, 3, 2000, 17, 20].into_iter().enumerate() {
        let mut line = format!("{round}:{number}:").into_bytes();
        line.resize(line.len() + length, b'a' + u8::try_from(round % 26).unwrap());
        let backwards: Vec<u8> = line.iter().rev().copied().collect();
        answers.extend(backwards.repeat(line.len() % 20 + 1));
        answers.push(b'\n');
        line.push(b'\n');
        questions[usize::from(number >= 3)].extend(line);
    }
    (questions, answers)
}

/// For the example of this name.
pub fn tally(round: u64) -> ([Vec<u8>; 2], Vec<u8>) {
    let counts: String = (1..=6).map(|count| format!("{}\n", round * 6 + count)).collect();
    ([b"add one\n".repeat(3), b"add one\n".repeat(3)], counts.into_bytes())
}

/// For the example `trouble`, which is told to close the connection then.
pub fn closing(round: u64) -> ([Vec<u8>; 2], Vec<u8>) {
    let question = format!("question {round}\n").into_bytes();
    ([question.clone(), b"!bye\n".to_vec()], question)
}

/// How it is made to die.
#[derive(Clone, Copy, Debug)]
pub enum Means {
    Kill,
    /// The signal of a fault, which its own handler gets.
    Fault(i32),
}

/// Once others have taken over.
const DIES_WITHIN: Duration = Duration::from_secs(2);

/// Whether a signal was sent that waits until it is let in.
fn is_held_back(pid: u32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let has = |name: &str| {
        let set = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(set.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
    };
    has("SigBlk:") && (has("SigPnd:") || has("ShdPnd:"))
}

/// Runs whoever takes over up to where it is to die; it is told whether everything is answered.
type Way<'a> = &'a dyn Fn(&mut Tracer, &mut dyn FnMut() -> bool) -> Reached;

/// The examples put up with 20 crashes within 20 ms, of which a round may have three.
const ROUND_PAUSE: Duration = Duration::from_millis(4);

/// A server that takes one crash after the other, and a client of it.
pub struct Victim {
    server: Server,
    client: Client,
    questions: Questions,
    rounds: u64,
    descriptors: usize,
}

impl Victim {
    pub fn start(example: &str, questions: Questions) -> Self {
        Self::start_closing(example, questions, false)
    }

    /// One that closes each connection, if that is so, when it has answered its questions.
    pub fn start_closing(example: &str, questions: Questions, closes: bool) -> Self {
        let server = Server::start(example, &["127.0.0.1:0"]);
        let client = Client::of(&server, closes);
        Self::of(server, client, questions)
    }

    /// One that reads from a pipe, and writes to another one.
    pub fn start_between_pipes(example: &str, questions: Questions) -> Self {
        let (to_server, to) = std::io::pipe().unwrap();
        let (from, from_server) = std::io::pipe().unwrap();
        let server = Server::start_between(example, to_server.into(), from_server.into());
        let client = Client::between(OwnedFd::from(to).into(), OwnedFd::from(from).into(), false);
        Self::of(server, client, questions)
    }

    fn of(server: Server, client: Client, questions: Questions) -> Self {
        let mut victim = Self { server, client, questions, rounds: 0, descriptors: 0 };
        victim.ask();
        victim.client.hears_everything("before the first crash");
        victim.descriptors = descriptors(victim.server.pid());
        victim
    }

    /// What is asked next. The answers are expected from now on.
    fn next(&mut self) -> [Vec<u8>; 2] {
        let (questions, answers) = (self.questions)(self.rounds);
        self.rounds += 1;
        self.client.expected = answers;
        questions
    }

    fn ask(&mut self) {
        let [first, second] = self.next();
        self.client.say(&[first, second].concat());
    }

    /// Whoever takes over dies at this step. False if it has answered everything before.
    pub fn kill_successor_at(&mut self, step: Step, stop: u64, means: Means) -> bool {
        let to_stop: Way<'_> = &|tracer, over| tracer.run(step, stop, over);
        self.kill_successor(&format!("{step:?} {stop}"), step, to_stop, means)
    }

    /// Whoever takes over dies so many instructions behind the call by which its last answer has gone. False if it has had
    /// nothing more to do before.
    pub fn kill_successor_behind_answers(&mut self, instructions: u64) -> bool {
        let way: Way<'_> = &|tracer, over| match tracer.run_to(&mut *over) {
            Reached::Stop => tracer.run(Step::Instruction, instructions, over),
            reached => reached,
        };
        self.kill_successor(&format!("{instructions} behind"), Step::Instruction, way, Means::Kill)
    }

    fn kill_successor(&mut self, place: &str, step: Step, way: Way<'_>, means: Means) -> bool {
        // A third one may be faster than who is watched.
        loop {
            std::thread::sleep(ROUND_PAUSE);
            if let Some(has_died) = self.try_to_kill_successor(place, step, way, means) {
                return has_died;
            }
        }
    }

    fn try_to_kill_successor(&mut self, place: &str, step: Step, way: Way<'_>, means: Means) -> Option<bool> {
        let (serving, stands_by) = serving_and_standing_by(&self.server);
        let mut tracer = Tracer::of(stands_by).unwrap();
        if self.client.is_closed {
            self.client = Client::of(&self.server, true);
        }
        let [first, second] = self.next();
        self.client.say(&first);
        let zygote = self.server.pid();
        if step == Step::Instruction {
            // Whoever is so slow would be overtaken.
            send(zygote, libc::SIGSTOP);
        }
        send(serving, libc::SIGKILL);
        self.client.say(&second);
        let (client, server) = (&mut self.client, &self.server);
        let mut has_served = false;
        let reached = way(&mut tracer, &mut || {
            has_served = server.serving() == stands_by;
            client.has_heard()
        });
        if reached == Reached::Stop
            && let Means::Fault(signal) = means
        {
            let (mut heard, mut held_back) = (None, false);
            let faulting = tracer.standing();
            let end = tracer.fault(signal, || {
                client.has_heard() && {
                    let heard = heard.get_or_insert_with(Instant::now);
                    held_back = is_held_back(stands_by, signal);
                    held_back || heard.elapsed() > DIES_WITHIN
                }
            });
            if end == Reached::End {
                assert_eq!(tracer.ended_by, Some(signal), "{place}: its handler has failed");
            } else if tracer.has_lost(&faulting) {
                // It was about to end, and its signal has ended with it: there is no fault at this place.
                tracer.kill();
            } else {
                assert!(held_back, "{place}, {means:?}: it has handed over and goes on");
                // It has had no turn, and will have none.
                tracer.kill();
                return None;
            }
        } else if reached != Reached::End {
            tracer.kill();
        }
        send(zygote, libc::SIGCONT);
        self.client.hears_everything(&format!("{place}, {means:?}"));
        (reached == Reached::Stop || has_served).then_some(reached == Reached::Stop)
    }
}

impl Victim {
    /// Who serves gets a fault's signal, and is killed so many instructions later. False if it has died before.
    pub fn kill_after_fault(&mut self, signal: i32, instructions: u64) -> bool {
        std::thread::sleep(ROUND_PAUSE);
        let (serving, _) = serving_and_standing_by(&self.server);
        let mut tracer = Tracer::of(serving).unwrap();
        let [first, second] = self.next();
        self.client.say(&first);
        send_to_thread(serving, serving, signal);
        let client = &mut self.client;
        let reached = tracer.run(Step::Instruction, instructions, || client.has_heard());
        if reached != Reached::End {
            tracer.kill();
        }
        self.client.say(&second);
        self.client.hears_everything(&format!("{instructions} instructions after signal {signal}"));
        reached == Reached::Stop
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let zygote = self.server.pid();
        eventually("one serves, one stands by, and the dead are buried", || children(zygote).len() == 2);
        let expected = self.descriptors;
        eventually("as many descriptors as before", || descriptors(zygote) == expected);
    }
}
