//! The server under test where the example in C will not do: one that can be told how to die, how much memory to use, and
//! where its sockets come from. One thread, one loop around epoll; with Outlast and without it.

use super::answer::pattern;
use super::load::now_ns;
use super::store::Keeper;
use crate::options::{Death, RestartServeArguments};
use crate::place;
use anyhow::{Context, Result};
use outlast_restart::policy::Policy;
use outlast_restart::{Connection, Generation};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, Signal};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Descriptors of 10,000 connections and what else there is.
const DESCRIPTORS: u64 = 32_768;
const BACKLOG: i32 = 4096;
const EVENTS: usize = 64;
const READ_BYTES: usize = 64 << 10;

/// Serves until it is told to end.
pub fn run(arguments: &RestartServeArguments) -> Result<()> {
    place::raise_descriptor_limit(DESCRIPTORS).context("cannot have many descriptors")?;
    // Whoever runs an experiment takes its servers along.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    limit_dumps(arguments.core_dumps)?;
    let listener = match arguments.listener {
        // SAFETY: who has started this program has opened it for it, and nobody else here knows the number.
        Some(number) => TcpListener::from(unsafe { OwnedFd::from_raw_fd(number) }),
        None => listen(arguments.address)?,
    };
    listener.set_nonblocking(true)?;
    println!("listening on {}", listener.local_addr()?);
    let past = Past::new()?;
    let policy = Policy { intensity: 20, intensity_window_ms: 1, ..Policy::default() };
    let mut generation =
        if arguments.registered { Some(outlast_restart::register_with(policy)?) } else { None };
    let first_ns = now_ns();
    let left = match &mut generation {
        Some(generation) => generation.inherited()?.connections,
        None => Vec::new(),
    };
    let mut server = Server::new(listener, generation, past, first_ns)?;
    if let Some(path) = &arguments.store {
        let (keeper, kept) = Keeper::reach(path)?;
        server.keeper = Some(keeper);
        for connection in kept {
            server.adopt(connection)?;
        }
    }
    for connection in left {
        server.await_trial();
        server.adopt(connection)?;
    }
    let number = server.generation.as_ref().map_or(1, Generation::number);
    println!("generation {number} {}", std::process::id());
    server.serve()
}

fn limit_dumps(wanted: bool) -> Result<()> {
    let most = rustix::process::getrlimit(Resource::Core).maximum;
    let current = if wanted { most } else { Some(0) };
    rustix::process::setrlimit(Resource::Core, Rlimit { current, maximum: most })
        .context("cannot limit core dumps")
}

/// A listener whose connections do not wait for more to send.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into()).with_context(|| format!("cannot listen at {address}"))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What all generations know of the last death: when it was, and which one.
struct Past(File);

impl Past {
    fn new() -> Result<Self> {
        let file = rustix::fs::memfd_create("past", rustix::fs::MemfdFlags::CLOEXEC)?;
        file_of_words(&File::from(file.try_clone()?), [0, 0])?;
        Ok(Self(file.into()))
    }

    fn read(&self) -> io::Result<(u64, u64)> {
        let (mut number, mut fault_ns) = ([0; 8], [0; 8]);
        self.0.read_exact_at(&mut number, 0)?;
        self.0.read_exact_at(&mut fault_ns, 8)?;
        Ok((u64::from_ne_bytes(number), u64::from_ne_bytes(fault_ns)))
    }
}

fn file_of_words(file: &File, words: [u64; 2]) -> io::Result<()> {
    words.iter().zip([0, 8]).try_for_each(|(word, at)| file.write_all_at(&word.to_ne_bytes(), at))
}

/// A connection, with Outlast or without.
enum Link {
    Held(Box<Connection>),
    /// With what has come of a request that is not whole.
    Plain(TcpStream, Vec<u8>),
}

impl Link {
    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Held(connection) => connection.socket(),
            Self::Plain(stream, _) => stream.as_fd(),
        }
    }
}

struct Server {
    listener: TcpListener,
    generation: Option<Generation>,
    keeper: Option<Keeper>,
    past: Past,
    /// When this generation began.
    first_ns: u64,
    events: OwnedFd,
    /// By their descriptors.
    links: BTreeMap<i32, Link>,
    answers: BTreeMap<usize, Arc<[u8]>>,
    memory: Vec<u8>,
    buffer: Vec<u8>,
}

impl Server {
    fn new(listener: TcpListener, generation: Option<Generation>, past: Past, first_ns: u64) -> Result<Self> {
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        let number = u64::try_from(listener.as_raw_fd())?;
        epoll::add(&events, &listener, EventData::new_u64(number), EventFlags::IN)?;
        let (links, answers) = (BTreeMap::new(), BTreeMap::new());
        // Held connections have theirs elsewhere.
        let (memory, buffer) = (Vec::new(), vec![0; if generation.is_none() { READ_BYTES } else { 0 }]);
        let keeper = None;
        Ok(Self { listener, generation, keeper, past, first_ns, events, links, answers, memory, buffer })
    }

    fn serve(&mut self) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for requests"),
            }
            for event in &events {
                let number = i32::try_from(event.data.u64())?;
                if number == self.listener.as_raw_fd() {
                    self.accept()?;
                } else {
                    self.go(number);
                }
            }
        }
    }

    fn await_trial(&self) {
        if let Some(generation) = &self.generation {
            generation.await_trial();
        }
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    if let Some(keeper) = &mut self.keeper {
                        keeper.keep(&stream)?;
                    }
                    self.adopt(stream.into())?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error).context("cannot accept"),
            }
        }
    }

    /// Serves a connection from now on.
    fn adopt(&mut self, socket: OwnedFd) -> Result<()> {
        let number = socket.as_raw_fd();
        let link = match &self.generation {
            Some(generation) => Link::Held(Box::new(generation.hold(socket)?)),
            None => Link::Plain(socket.into(), Vec::new()),
        };
        epoll::add(&self.events, link.socket(), EventData::new_u64(u64::try_from(number)?), EventFlags::IN)?;
        self.links.insert(number, link);
        // What earlier generations have received is told by no event.
        self.go(number);
        Ok(())
    }

    /// As far as it goes now.
    fn go(&mut self, number: i32) {
        let Some(mut link) = self.links.remove(&number) else { return };
        let goes_on = match &mut link {
            Link::Held(connection) => self.go_held(connection),
            Link::Plain(stream, input) => self.go_plain(stream, input),
        };
        if goes_on.is_ok() {
            self.links.insert(number, link);
        } else if let Some(keeper) = &mut self.keeper {
            let _ = keeper.drop_kept(number);
        }
    }

    fn go_held(&mut self, connection: &mut Connection) -> io::Result<()> {
        loop {
            while let Some(length) = head_length(connection.input()) {
                let answer = self.answer(connection.input().get(..length).unwrap_or_default())?;
                connection.write_all(&answer)?;
                connection.done(length);
            }
            match connection.receive() {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn go_plain(&mut self, stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<()> {
        loop {
            while let Some(length) = head_length(input) {
                let answer = self.answer(input.get(..length).unwrap_or_default())?;
                write_all(stream, &answer)?;
                input.drain(..length);
                if input.is_empty() {
                    // Who has nothing to say needs no memory.
                    *input = Vec::new();
                }
            }
            match stream.read(&mut self.buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => input.extend_from_slice(self.buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The whole answer to a request.
    fn answer(&mut self, head: &[u8]) -> io::Result<Arc<[u8]>> {
        let text = String::from_utf8_lossy(head);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let words: Vec<&str> = path.split('/').skip(1).collect();
        match words.as_slice() {
            ["bytes", length] => {
                let Ok(length) = length.parse() else { return Ok(missing()) };
                let answer = self.answers.entry(length).or_insert_with(|| whole(&pattern(length)));
                Ok(Arc::clone(answer))
            }
            ["work", microseconds, length] => {
                let (Ok(microseconds), Ok(_)) = (microseconds.parse(), length.parse::<usize>()) else {
                    return Ok(missing());
                };
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(microseconds) {
                    std::hint::spin_loop();
                }
                self.answer(format!("GET /bytes/{length} ").as_bytes())
            }
            ["fill", mib] => {
                let Ok(mib) = mib.parse::<usize>() else { return Ok(missing()) };
                self.memory = vec![1; mib << 20];
                Ok(whole(b""))
            }
            ["die", how, number] => match (how.parse(), number.parse()) {
                (Ok(how), Ok(number)) => self.die(how, number),
                _ => Ok(missing()),
            },
            _ => Ok(missing()),
        }
    }

    /// Dies, in the first generation that is asked; the next one tells when that was, and when it began.
    fn die(&self, how: Death, number: u64) -> io::Result<Arc<[u8]>> {
        let (last, fault_ns) = self.past.read()?;
        if last == number {
            return Ok(whole(format!("{fault_ns} {}", self.first_ns).as_bytes()));
        }
        file_of_words(&self.past.0, [number, now_ns()])?;
        match how {
            Death::Fault => {
                // SAFETY: it is not: nothing is mapped there, which is the point. The process ends here.
                let nothing = unsafe { std::ptr::without_provenance::<u8>(8).read_volatile() };
                std::hint::black_box(nothing);
            }
            Death::Abort => std::process::abort(),
            Death::Kill => rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)?,
            Death::Exit => std::process::exit(3),
        }
        Err(io::Error::other("outlived its death"))
    }
}

/// Up to and with the empty line.
fn head_length(input: &[u8]) -> Option<usize> {
    input.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

fn whole(body: &[u8]) -> Arc<[u8]> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat().into()
}

fn missing() -> Arc<[u8]> {
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".as_slice().into()
}

fn write_all(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut events = [rustix::event::PollFd::new(&*stream, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut events, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
