//! Blocking streams and what a client does with them. The loops are methods of the trait, so that they are compiled
//! for each kind of stream: a call through a table for each byte would count against the fastest.

use super::identity::Identity;
use super::{BOUNDED_SEND_BUFFER_BYTES, Endpoint, Kind, REQUEST_BYTES, RESPONSE_BYTES, wants};
use crate::stats::Latencies;
use anyhow::{Context, Result, bail, ensure};
use outlast_session::blocking::Session;
use outlast_session::{Config, Targets};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Round trips between two looks at the clock.
const ROUND_TRIPS_BETWEEN_LOOKS: usize = 16;

/// Of a read, where bulk data come.
const DRAIN_BYTES: usize = 256 << 10;

/// How much went through in which time.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Bytes that the peer has read.
    pub bytes: u64,
    /// From the first write until the peer said that it has them all.
    pub time: Duration,
}

impl Flood {
    /// MB/s.
    pub fn megabytes_per_second(self) -> f64 {
        self.bytes as f64 / 1e6 / self.time.as_secs_f64()
    }
}

/// Writes between two looks at the clock.
pub fn writes_between_looks(size: usize) -> usize {
    (16384 / size.max(1)).clamp(1, 1024)
}

/// A blocking stream.
pub trait Link: Read + Write + Send + 'static {
    /// Ends the sending direction.
    fn half_close(&mut self) -> io::Result<()>;

    /// Sends `bytes` bytes that are written where the stream retains them; streams that cannot give an error.
    fn send_in_place(&mut self, bytes: usize) -> io::Result<()>;

    /// Asks for an echo and goes round a few times, so that what comes next is steady.
    fn warm_up(&mut self, times: usize) -> io::Result<()> {
        let mut byte = [wants::ECHO];
        for _ in 0..times.max(1) {
            self.write_all(&byte)?;
            self.read_exact(&mut byte)?;
        }
        Ok(())
    }

    /// 1-byte round trips for some time.
    fn round_trips(&mut self, window: Duration, into: &mut Latencies) -> io::Result<()> {
        self.ping_pong(&mut [0], window, into)
    }

    /// A message, and the same back, for some time.
    fn ping_pong(&mut self, message: &mut [u8], window: Duration, into: &mut Latencies) -> io::Result<()> {
        let end = Instant::now() + window;
        let mut before = Instant::now();
        while before < end {
            for _ in 0..ROUND_TRIPS_BETWEEN_LOOKS {
                self.write_all(message)?;
                self.read_exact(message)?;
                let after = Instant::now();
                into.push(after - before);
                before = after;
            }
        }
        Ok(())
    }

    /// Writes of one size for some time, until the peer has read everything.
    fn flood(&mut self, size: usize, window: Duration, in_place: bool) -> io::Result<Flood> {
        let data = vec![0x5a; size];
        self.write_all(&[wants::SINK])?;
        let batch = writes_between_looks(size);
        let mut bytes = 0;
        let start = Instant::now();
        while start.elapsed() < window {
            for _ in 0..batch {
                if in_place {
                    self.send_in_place(size)?;
                } else {
                    self.write_all(&data)?;
                }
            }
            bytes += (batch * size) as u64;
        }
        self.half_close()?;
        let mut count = [0; 8];
        self.read_exact(&mut count)?;
        let time = start.elapsed();
        let arrived = u64::from_le_bytes(count);
        if arrived != bytes {
            return Err(io::Error::other(format!("sent {bytes} bytes, {arrived} arrived")));
        }
        Ok(Flood { bytes, time })
    }

    /// So many bytes from the peer, and the end of the stream.
    fn drain(&mut self, bytes: u64) -> io::Result<Flood> {
        let start = Instant::now();
        self.write_all(&[wants::SOURCE])?;
        self.write_all(&bytes.to_le_bytes())?;
        let mut buffer = vec![0; DRAIN_BYTES];
        let mut arrived = 0;
        loop {
            match self.read(&mut buffer)? {
                0 => break,
                count => arrived += count as u64,
            }
        }
        if arrived != bytes {
            return Err(io::Error::other(format!("{arrived} of {bytes} bytes have arrived")));
        }
        Ok(Flood { bytes, time: start.elapsed() })
    }

    /// A request, its response and the end of the stream.
    fn transaction(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.write_all(&[wants::TRANSACTION; REQUEST_BYTES])?;
        let mut bytes = 0;
        loop {
            match self.read(buffer)? {
                0 => break,
                count => bytes += count,
            }
        }
        if bytes == RESPONSE_BYTES {
            return Ok(());
        }
        Err(io::Error::other(format!("a response of {bytes} bytes instead of {RESPONSE_BYTES}")))
    }
}

impl Link for TcpStream {
    fn half_close(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn send_in_place(&mut self, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Link for Session {
    fn half_close(&mut self) -> io::Result<()> {
        Ok(self.shutdown(Shutdown::Write)?)
    }

    fn send_in_place(&mut self, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let mut room = self.reserve(left)?;
            let count = room.len().min(left);
            if let Some(first) = room.first_mut() {
                *first = 0x5a;
            }
            room.commit(count);
            left -= count;
        }
        Ok(())
    }
}

/// Knows how to connect with one endpoint.
#[derive(Clone)]
pub struct Dialer {
    kind: Kind,
    address: SocketAddr,
    targets: Targets,
    config: Option<Arc<Config>>,
}

impl Dialer {
    /// To a blocking endpoint at `address`.
    pub fn new(endpoint: Endpoint, address: SocketAddr, identity: &Identity) -> Result<Self> {
        let config = match endpoint.kind {
            Kind::Session(mode, guard) => Some(identity.session(mode, guard)?),
            _ => None,
        };
        Ok(Self { kind: endpoint.kind, address, targets: Targets::from(address), config })
    }

    /// A session, to look into.
    pub fn session(&self) -> Result<Session> {
        let config = self.config.as_ref().context("not a session")?;
        Ok(Session::connect_with(&self.targets, config)?)
    }

    fn tcp(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A stream.
    pub fn dial(&self) -> Result<Box<dyn Link>> {
        Ok(match self.kind {
            Kind::Raw => Box::new(self.tcp()?),
            Kind::RawBounded => {
                let stream = self.tcp()?;
                // The kernel doubles what it is given.
                socket2::SockRef::from(&stream).set_send_buffer_size(BOUNDED_SEND_BUFFER_BYTES / 2)?;
                Box::new(stream)
            }
            Kind::Session(..) => Box::new(self.session()?),
            Kind::Mptcp => {
                let socket =
                    Socket::new(Domain::for_address(self.address), Type::STREAM, Some(Protocol::MPTCP))?;
                socket.connect(&SockAddr::from(self.address))?;
                socket.set_tcp_nodelay(true)?;
                Box::new(TcpStream::from(socket))
            }
            Kind::Quic => bail!("QUIC has no blocking face"),
        })
    }

    /// Connect/request/response/close for some time.
    pub fn transactions(&self, window: Duration, into: &mut Latencies) -> Result<()> {
        match self.kind {
            Kind::Raw => transactions(window, into, || Ok(self.tcp()?)),
            Kind::Session(..) => transactions(window, into, || self.session()),
            _ => transactions(window, into, || self.dial().map(Boxed)),
        }
    }
}

/// A stream of any kind, for where a call through a table does not matter.
struct Boxed(Box<dyn Link>);

impl Read for Boxed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Boxed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Link for Boxed {
    fn half_close(&mut self) -> io::Result<()> {
        self.0.half_close()
    }

    fn send_in_place(&mut self, bytes: usize) -> io::Result<()> {
        self.0.send_in_place(bytes)
    }
}

fn transactions<L: Link>(
    window: Duration,
    into: &mut Latencies,
    mut dial: impl FnMut() -> Result<L>,
) -> Result<()> {
    let mut buffer = vec![0; 2 * RESPONSE_BYTES];
    let start = Instant::now();
    while start.elapsed() < window {
        let before = Instant::now();
        let mut link = dial()?;
        link.transaction(&mut buffer)?;
        drop(link);
        into.push(before.elapsed());
    }
    ensure!(into.len() > 0, "not a single transaction");
    Ok(())
}
