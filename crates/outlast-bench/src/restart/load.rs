//! Clients that ask again as soon as they have the answer, all on the thread that calls: on one core, so that what they
//! cost is the same whatever they talk to.
//!
//! A client that loses its connection, or waits in vain, counts a failed request, connects again and asks again.

use super::answer::{Answer, Exchange, Flaw};
use crate::stats::Latencies;
use anyhow::{Context, Result, bail};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Events taken at once.
const EVENTS: usize = 256;
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// Between two attempts to connect, and two looks for those that wait in vain.
const PAUSE: Duration = Duration::from_millis(1);
/// For the last answers when the time is over.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// What clients saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// From a request to the end of its answer, of those that did not fail.
    pub latencies: Latencies,
    /// The longest time between two answers of each client since the last [fault](Fleet::run), fault by fault.
    pub pauses: Latencies,
    /// Requests without an answer: connections lost, refused or in vain.
    pub failed: u64,
    /// Answers with a wrong byte.
    pub wrong: u64,
    /// Answers that came in time.
    answered: u64,
    /// In what time.
    pub time: Duration,
}

impl Seen {
    /// Answers per second.
    pub fn rate(&self) -> f64 {
        self.answered as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Adds what was seen at another time.
    pub fn append(&mut self, other: &Seen) {
        self.latencies.append(&other.latencies);
        self.pauses.append(&other.pauses);
        self.failed += other.failed;
        self.wrong += other.wrong;
        self.answered += other.answered;
        self.time += other.time;
    }
}

#[derive(Debug)]
struct Client {
    stream: Option<TcpStream>,
    answer: Answer,
    /// When it asked, if it waits for an answer.
    asked: Option<Instant>,
    last_answer: Instant,
    longest_pause: Duration,
}

/// Clients of one server, with the same request each.
#[derive(Debug)]
pub struct Fleet {
    address: SocketAddr,
    exchange: Exchange,
    /// A client waits so long for an answer.
    patience: Duration,
    events: OwnedFd,
    clients: Vec<Client>,
    buffer: Vec<u8>,
}

impl Fleet {
    /// Connects so many clients. Each waits for `patience` at most.
    pub fn connect(
        address: SocketAddr,
        count: usize,
        exchange: Exchange,
        patience: Duration,
    ) -> Result<Self> {
        let events = epoll::create(CreateFlags::CLOEXEC).context("cannot make an epoll")?;
        let clients = Vec::with_capacity(count);
        let mut fleet = Self { address, exchange, patience, events, clients, buffer: vec![0; READ_BYTES] };
        for number in 0..count {
            let now = Instant::now();
            fleet.clients.push(Client {
                stream: None,
                answer: Answer::default(),
                asked: None,
                last_answer: now,
                longest_pause: Duration::ZERO,
            });
            fleet.reach(number).context("cannot connect to the server")?;
        }
        Ok(fleet)
    }

    /// Asks and asks, for as long as `window`. `faults` has the times, from the beginning and rising, at which `fault` is called.
    pub fn run(
        &mut self,
        window: Duration,
        faults: &[Duration],
        mut fault: impl FnMut() -> Result<()>,
    ) -> Result<Seen> {
        let start = Instant::now();
        let mut seen = Seen::default();
        let (mut faults, mut had_fault) = (faults.iter().copied().peekable(), false);
        for number in 0..self.clients.len() {
            self.clients[number].last_answer = start;
            self.clients[number].longest_pause = Duration::ZERO;
            self.ask(number, &mut seen);
        }
        let mut looked = start;
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            let now = Instant::now();
            let is_over = now.duration_since(start) >= window;
            if is_over && self.clients.iter().all(|client| client.asked.is_none()) {
                break;
            }
            if now.duration_since(start) > window + DRAIN_MAX {
                bail!("answers are missing");
            }
            if !is_over && faults.next_if(|at| now.duration_since(start) >= *at).is_some() {
                if had_fault {
                    self.note_pauses(&mut seen);
                }
                had_fault = true;
                self.begin_pauses();
                fault()?;
            }
            if now.duration_since(looked) >= PAUSE {
                looked = now;
                self.look(now, is_over, &mut seen);
            }
            events.clear();
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for answers"),
            }
            for event in &events {
                let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                self.hear(number, start + window, &mut seen);
            }
        }
        if had_fault {
            self.note_pauses(&mut seen);
        }
        seen.time = window;
        Ok(seen)
    }

    fn reach(&mut self, number: usize) -> std::io::Result<()> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(&self.events, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
        let client = &mut self.clients[number];
        client.answer.clear();
        client.stream = Some(stream);
        Ok(())
    }

    fn ask(&mut self, number: usize, seen: &mut Seen) {
        let client = &mut self.clients[number];
        client.answer.clear();
        client.asked = Some(Instant::now());
        let Some(stream) = &mut client.stream else { return };
        if stream.write_all(&self.exchange.request).is_err() {
            self.lose(number, seen);
        }
    }

    /// The connection is of no use any more.
    fn lose(&mut self, number: usize, seen: &mut Seen) {
        let client = &mut self.clients[number];
        client.stream = None;
        seen.failed += u64::from(client.asked.is_some());
        client.answer.clear();
    }

    /// Those without a connection connect again, and ask again; those that wait in vain give up.
    fn look(&mut self, now: Instant, is_over: bool, seen: &mut Seen) {
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            if client.asked.is_some_and(|asked| now.duration_since(asked) > self.patience)
                && client.stream.is_some()
            {
                self.lose(number, seen);
            }
            if self.clients[number].stream.is_none() && self.reach(number).is_ok() {
                if is_over {
                    self.clients[number].asked = None;
                } else {
                    self.ask(number, seen);
                }
            }
        }
    }

    fn hear(&mut self, number: usize, end: Instant, seen: &mut Seen) {
        let Some(client) = self.clients.get_mut(number) else { return };
        let Some(stream) = &mut client.stream else { return };
        let count = match stream.read(&mut self.buffer) {
            Ok(0) => return self.lose(number, seen),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Err(_) => return self.lose(number, seen),
        };
        let bytes = self.buffer.get(..count).unwrap_or_default();
        let taken = match client.asked {
            Some(_) => client.answer.take(bytes, &self.exchange),
            // Nobody has asked for that.
            None => Err(Flaw::Wrong),
        };
        match taken {
            Ok(false) => {}
            Ok(true) => {
                let now = Instant::now();
                client.longest_pause = client.longest_pause.max(now - client.last_answer);
                client.last_answer = now;
                if let Some(asked) = client.asked.take() {
                    seen.latencies.push(now - asked);
                }
                if now < end {
                    seen.answered += 1;
                    self.ask(number, seen);
                }
            }
            Err(flaw) => {
                seen.wrong += u64::from(flaw == Flaw::Wrong);
                self.lose(number, seen);
            }
        }
    }

    fn begin_pauses(&mut self) {
        for client in &mut self.clients {
            client.longest_pause = Duration::ZERO;
        }
    }

    fn note_pauses(&mut self, seen: &mut Seen) {
        let now = Instant::now();
        for client in &mut self.clients {
            let waits = if client.asked.is_some() { now - client.last_answer } else { Duration::ZERO };
            seen.pauses.push(client.longest_pause.max(waits));
        }
    }
}

/// One client that waits for what it asks for.
#[derive(Debug)]
pub struct Single(TcpStream);

impl Single {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context("cannot connect to the server")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DRAIN_MAX))?;
        Ok(Self(stream))
    }

    /// The body of the answer, and when its first byte was here, on the [clock](now_ns).
    pub fn ask(&mut self, path: &str) -> Result<(Vec<u8>, u64)> {
        let exchange = Exchange::get(path, None);
        self.0.write_all(&exchange.request).context("cannot ask the server")?;
        let (mut answer, mut first_ns, mut buffer) = (Answer::default(), 0, [0; 4096]);
        loop {
            let count = self.0.read(&mut buffer).with_context(|| format!("no answer to {path}"))?;
            if answer.is_empty() {
                first_ns = now_ns();
            }
            match answer.take(&buffer[..count], &exchange) {
                _ if count == 0 => bail!("{path}: the connection is lost"),
                Ok(true) => return Ok((answer.body().to_vec(), first_ns)),
                Ok(false) => {}
                Err(flaw) => bail!("{path}: the answer is {flaw:?}"),
            }
        }
    }
}

/// The clock that all processes share.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
