//! Attackers: sockets that speak the protocol, or nearly. And a victim: an honest session under load.

use crate::common::pattern;
use outlast_session::proto::{Decoded, Hello, LinkMode, Message, Refusal, SessionId, decode};
use outlast_session::{Config, Error, Targets, blocking};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A socket, possibly with TLS around it.
pub trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

/// A connection by hand.
pub struct Raw {
    pub wire: Box<dyn Wire>,
    pub input: Vec<u8>,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Raw {
        Raw::over(TcpStream::connect(address).unwrap())
    }

    pub fn over(wire: impl Wire + 'static) -> Raw {
        Raw { wire: Box::new(wire), input: Vec::new() }
    }

    /// Whether the peer hung up already does not matter: its answer does.
    pub fn say(&mut self, bytes: &[u8]) {
        let _ = self.wire.write_all(bytes);
        let _ = self.wire.flush();
    }

    /// The next message; `None` when the peer has closed.
    pub fn hear(&mut self) -> Option<Message> {
        loop {
            match decode(&self.input).unwrap() {
                Decoded::Message { message, consumed_bytes } => {
                    self.input.drain(..consumed_bytes);
                    return Some(message);
                }
                Decoded::NeedMore { .. } => {}
            }
            if !self.more() {
                return None;
            }
        }
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.wire.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                true
            }
        }
    }

    /// What the peer says before it closes.
    pub fn verdict(&mut self) -> Option<Refusal> {
        match self.hear() {
            None => None,
            Some(Message::Refuse(refuse)) => Some(refuse.refusal),
            Some(other) => panic!("not turned away: {other:?}"),
        }
    }

    /// Returns when the peer has closed.
    pub fn drain(&mut self) {
        while self.more() {}
    }
}

/// The Hello of an opening in the clear, framed, so that no proof of the path is needed.
pub fn hello(id: SessionId) -> Hello {
    Hello::open(id, LinkMode::Inband)
}

pub fn bytes_of(hello: &Hello) -> Vec<u8> {
    Message::Hello(hello.clone()).to_bytes()
}

/// A name that nobody else has.
pub fn fresh_id() -> SessionId {
    SessionId::from_bytes(rand::random())
}

/// A listener that echoes, and one honest session that checks the echo until it is told to stop.
pub struct Victim {
    pub listener: Arc<blocking::Listener>,
    pub session: blocking::Session,
    config: Arc<Config>,
    stop: Arc<AtomicBool>,
    stream: Option<JoinHandle<u64>>,
}

impl Victim {
    pub fn new(config: Config) -> Victim {
        let config = Arc::new(config);
        let listener = Arc::new(blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap());
        // Ends with the process; a thread that waits in `accept` holds the listener.
        let accepting = listener.clone();
        std::thread::spawn(move || {
            while let Ok(session) = accepting.accept() {
                std::thread::spawn(move || echo(session));
            }
        });
        let session =
            blocking::Session::connect_with(&Targets::from(listener.local_addr()), &config).unwrap();
        session.established().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (client, told) = (session.clone(), stop.clone());
        let stream = std::thread::spawn(move || check_echo(client, &told));
        Victim { listener, session, config, stop, stream: Some(stream) }
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    pub fn refused(&self, name: &str) -> u64 {
        self.listener.refusals().iter().find(|(reason, _)| *reason == name).map_or(0, |(_, count)| *count)
    }

    /// Waits until so many were turned away for this reason.
    pub fn wait_refused(&self, name: &str, least: u64) {
        while self.refused(name) < least {
            std::thread::yield_now();
        }
    }

    /// The honest session was never disturbed, and another one gets in.
    pub fn unharmed(mut self) {
        let before = self.session.info().read_bytes;
        while self.session.info().read_bytes == before {
            std::thread::yield_now();
        }
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.stream.take().unwrap().join().unwrap() > 0);
        let info = self.session.info();
        assert_eq!((info.outages, info.epoch), (0, 1), "the honest session was disturbed");
        let mut other = newcomer(self.address(), &self.config).unwrap();
        other.write_all(b"welcome").unwrap();
        let mut echo = [0; 7];
        other.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"welcome");
    }
}

pub fn newcomer(address: SocketAddr, config: &Arc<Config>) -> Result<blocking::Session, Error> {
    let session = blocking::Session::connect_with(&Targets::from(address), config)?;
    session.established()?;
    Ok(session)
}

fn echo(mut session: blocking::Session) -> io::Result<()> {
    let mut buffer = [0; 8192];
    loop {
        match session.read(&mut buffer)? {
            0 => return Ok(()),
            count => session.write_all(&buffer[..count])?,
        }
    }
}

fn check_echo(mut session: blocking::Session, stop: &AtomicBool) -> u64 {
    let block = pattern(5_003);
    let mut back = vec![0; block.len()];
    let mut bytes = 0;
    while !stop.load(Ordering::Relaxed) {
        session.write_all(&block).unwrap();
        session.read_exact(&mut back).unwrap();
        assert!(back == block, "after {bytes} bytes");
        bytes += block.len() as u64;
        // Attackers need a core, too.
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    bytes
}
