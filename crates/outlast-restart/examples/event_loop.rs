//! As [`lines`](../lines.rs), by one thread that waits for the events of all its connections at once, as many servers do.
//!
//! `cargo run --example event_loop -- 127.0.0.1:7 edge` (or `level`) and `nc 127.0.0.1 7`.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::policy::Policy;
use outlast_restart::{Connection, Generation};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const LISTENER: u64 = u64::MAX;
const EVENTS_AT_ONCE: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let edge_triggered = match arguments.next().as_deref() {
        None | Some("edge") => true,
        Some("level") => false,
        Some(_) => return Err("say edge or level".into()),
    };
    let listener = outlast_restart::listen(&address)?;
    listener.set_nonblocking(true)?;
    println!("listening on {}", listener.local_addr()?);
    // For an example that is there to be crashed.
    let policy = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let mut generation = outlast_restart::register_with(policy)?;
    println!("generation {} {}", generation.number(), std::process::id());
    // Before anything is opened. What the last generation waited with is among the rest of it, which is closed.
    let left = generation.inherited()?.connections;
    let mut server = Server {
        generation,
        edge_triggered,
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        clients: BTreeMap::new(),
    };
    epoll::add(&server.epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    for socket in left {
        server.welcome(socket)?;
    }
    server.run(&listener)
}

struct Server {
    generation: Generation,
    edge_triggered: bool,
    epoll: OwnedFd,
    clients: BTreeMap<u64, Client>,
}

impl Server {
    fn run(mut self, listener: &TcpListener) -> Result<(), Box<dyn std::error::Error>> {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                waited => waited?,
            };
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => {
                        while let Ok((client, _)) = listener.accept() {
                            self.welcome(client.into())?;
                        }
                    }
                    number => self.go_on(number)?,
                }
            }
        }
    }

    /// Of one that is left, some of the input may be held already, of which no event tells.
    fn welcome(&mut self, socket: OwnedFd) -> io::Result<()> {
        let socket = TcpStream::from(socket);
        socket.set_nonblocking(true)?;
        let connection = self.generation.hold(socket)?;
        let number = u64::from(connection.socket().as_raw_fd().unsigned_abs());
        let events = match self.edge_triggered {
            true => EventFlags::IN | EventFlags::OUT | EventFlags::ET,
            false => EventFlags::IN,
        };
        epoll::add(&self.epoll, connection.socket(), EventData::new_u64(number), events)?;
        self.clients
            .insert(number, Client { connection, line_bytes: 0, answer: Vec::new(), written_bytes: 0 });
        self.go_on(number)
    }

    fn go_on(&mut self, number: u64) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        let waits_for = match client.go_on() {
            Ok(waits_for) => waits_for,
            // Gone, in order or not.
            Err(_) => {
                self.clients.remove(&number);
                return Ok(());
            }
        };
        if !self.edge_triggered {
            epoll::modify(
                &self.epoll,
                client.connection.socket().as_fd(),
                EventData::new_u64(number),
                waits_for,
            )?;
        }
        Ok(())
    }
}

struct Client {
    connection: Connection,
    /// Of the line that is being answered.
    line_bytes: usize,
    answer: Vec<u8>,
    written_bytes: usize,
}

impl Client {
    /// As far as it is possible without waiting, and for what it waits then.
    fn go_on(&mut self) -> io::Result<EventFlags> {
        loop {
            while let Some(rest) = self.answer.get(self.written_bytes..).filter(|rest| !rest.is_empty()) {
                match self.connection.write(rest) {
                    Ok(count) => self.written_bytes += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(EventFlags::OUT),
                    Err(error) => return Err(error),
                }
            }
            if self.line_bytes > 0 {
                // From here on nobody deals with it again.
                self.connection.done(self.line_bytes);
                (self.line_bytes, self.written_bytes) = (0, 0);
                self.answer.clear();
            }
            if let Some(length) = self.connection.input().iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.connection.input()[..length].iter().rev().copied().collect();
                self.answer = [line.repeat(length % 20 + 1), b"\n".to_vec()].concat();
                self.line_bytes = length + 1;
                continue;
            }
            match self.connection.receive() {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(EventFlags::IN),
                Err(error) => return Err(error),
            }
        }
    }
}
