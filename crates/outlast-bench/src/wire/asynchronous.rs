//! tokio streams and what a client does with them.

use super::blocking::{Flood, writes_between_looks};
use super::identity::Identity;
use super::{BOUNDED_SEND_BUFFER_BYTES, Endpoint, Kind, REQUEST_BYTES, RESPONSE_BYTES, quic, wants};
use crate::stats::Latencies;
use anyhow::{Context, Result, bail, ensure};
use outlast_session::tokio::Session;
use outlast_session::{Config, Targets};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Round trips between two looks at the clock.
const ROUND_TRIPS_BETWEEN_LOOKS: usize = 16;

/// A stream.
pub trait Link: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Link for S {}

/// A stream of one of the kinds. Loops are compiled for each.
pub enum Stream {
    /// TCP.
    Plain(TcpStream),
    /// A session.
    Session(Box<Session>),
    /// A stream of a QUIC connection.
    Quic(quic::Stream),
}

macro_rules! with_stream {
    ($stream:expr, $name:ident => $body:expr) => {
        match $stream {
            Stream::Plain($name) => $body,
            Stream::Session($name) => $body,
            Stream::Quic($name) => $body,
        }
    };
}

impl Stream {
    /// Asks for an echo and goes round a few times.
    pub async fn warm_up(&mut self, times: usize) -> io::Result<()> {
        with_stream!(self, stream => warm_up(stream, times).await)
    }

    /// 1-byte round trips for some time.
    pub async fn round_trips(&mut self, window: Duration, into: &mut Latencies) -> io::Result<()> {
        with_stream!(self, stream => round_trips(stream, window, into).await)
    }

    /// Writes of one size for some time, until the peer has read everything.
    pub async fn flood(&mut self, size: usize, window: Duration, in_place: bool) -> io::Result<Flood> {
        match (self, in_place) {
            (Stream::Session(stream), true) => flood_in_place(stream, size, window).await,
            (_, true) => Err(io::ErrorKind::Unsupported.into()),
            (this, false) => with_stream!(this, stream => flood(stream, size, window).await),
        }
    }

    /// One request with work, and its response.
    pub async fn request(&mut self, request: &[u8; REQUEST_BYTES]) -> io::Result<()> {
        with_stream!(self, stream => request_once(stream, request).await)
    }
}

async fn warm_up<S: Link>(stream: &mut S, times: usize) -> io::Result<()> {
    let mut byte = [wants::ECHO];
    for _ in 0..times.max(1) {
        stream.write_all(&byte).await?;
        stream.read_exact(&mut byte).await?;
    }
    Ok(())
}

async fn round_trips<S: Link>(stream: &mut S, window: Duration, into: &mut Latencies) -> io::Result<()> {
    let mut byte = [0];
    let end = Instant::now() + window;
    let mut before = Instant::now();
    while before < end {
        for _ in 0..ROUND_TRIPS_BETWEEN_LOOKS {
            stream.write_all(&byte).await?;
            stream.read_exact(&mut byte).await?;
            let after = Instant::now();
            into.push(after - before);
            before = after;
        }
    }
    Ok(())
}

async fn flood<S: Link>(stream: &mut S, size: usize, window: Duration) -> io::Result<Flood> {
    let data = vec![0x5a; size];
    stream.write_all(&[wants::SINK]).await?;
    let batch = writes_between_looks(size);
    let mut bytes = 0;
    let start = Instant::now();
    while start.elapsed() < window {
        for _ in 0..batch {
            stream.write_all(&data).await?;
        }
        bytes += (batch * size) as u64;
    }
    confirm(stream, bytes, start).await
}

async fn flood_in_place(stream: &mut Session, size: usize, window: Duration) -> io::Result<Flood> {
    stream.write_all(&[wants::SINK]).await?;
    let batch = writes_between_looks(size);
    let mut bytes = 0;
    let start = Instant::now();
    while start.elapsed() < window {
        for _ in 0..batch {
            let mut left = size;
            while left > 0 {
                let mut fill = |room: &mut [u8]| {
                    if let Some(first) = room.first_mut() {
                        *first = 0x5a;
                    }
                    Ok(room.len().min(left))
                };
                left -= poll_fn(|cx| stream.poll_write_with(cx, left, &mut fill)).await?;
            }
        }
        bytes += (batch * size) as u64;
    }
    confirm(stream, bytes, start).await
}

async fn confirm<S: Link>(stream: &mut S, bytes: u64, start: Instant) -> io::Result<Flood> {
    stream.shutdown().await?;
    let mut count = [0; 8];
    stream.read_exact(&mut count).await?;
    let time = start.elapsed();
    let arrived = u64::from_le_bytes(count);
    if arrived != bytes {
        return Err(io::Error::other(format!("sent {bytes} bytes, {arrived} arrived")));
    }
    Ok(Flood { bytes, time })
}

async fn request_once<S: Link>(stream: &mut S, request: &[u8; REQUEST_BYTES]) -> io::Result<()> {
    stream.write_all(request).await?;
    let mut response = [0; REQUEST_BYTES];
    stream.read_exact(&mut response).await?;
    Ok(())
}

/// A request, its response and the end of the stream.
pub async fn transaction<S: Link>(mut stream: S, buffer: &mut [u8]) -> io::Result<()> {
    stream.write_all(&[wants::TRANSACTION; REQUEST_BYTES]).await?;
    let mut bytes = 0;
    loop {
        match stream.read(buffer).await? {
            0 => break,
            count => bytes += count,
        }
    }
    if bytes == RESPONSE_BYTES {
        return Ok(());
    }
    Err(io::Error::other(format!("a response of {bytes} bytes instead of {RESPONSE_BYTES}")))
}

/// Knows how to connect with one endpoint.
#[derive(Clone)]
pub struct Dialer {
    kind: Kind,
    address: SocketAddr,
    targets: Targets,
    config: Option<Arc<Config>>,
    quic: Option<quic::Dialer>,
}

impl Dialer {
    /// To a tokio endpoint at `address`.
    pub fn new(endpoint: Endpoint, address: SocketAddr, identity: &Identity) -> Result<Self> {
        let config = match endpoint.kind {
            Kind::Session(mode, guard) => Some(identity.session(mode, guard)?),
            _ => None,
        };
        let quic = (endpoint.kind == Kind::Quic).then(|| quic::Dialer::new(address, identity)).transpose()?;
        Ok(Self { kind: endpoint.kind, address, targets: Targets::from(address), config, quic })
    }

    async fn tcp(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A session.
    pub async fn session(&self) -> Result<Session> {
        let config = self.config.as_ref().context("not a session")?;
        Ok(Session::connect_with(&self.targets, config).await?)
    }

    /// A stream.
    pub async fn dial(&self) -> Result<Stream> {
        Ok(match (self.kind, &self.quic) {
            (Kind::Raw, _) => Stream::Plain(self.tcp().await?),
            (Kind::RawBounded, _) => {
                let stream = self.tcp().await?;
                // The kernel doubles what it is given.
                socket2::SockRef::from(&stream).set_send_buffer_size(BOUNDED_SEND_BUFFER_BYTES / 2)?;
                Stream::Plain(stream)
            }
            (Kind::Session(..), _) => Stream::Session(Box::new(self.session().await?)),
            (Kind::Quic, Some(quic)) => Stream::Quic(quic.dial().await?),
            (kind, _) => bail!("{kind} has no tokio face here"),
        })
    }

    /// Connect/request/response/close for some time.
    pub async fn transactions(&self, window: Duration, into: &mut Latencies) -> Result<()> {
        let mut buffer = vec![0; 2 * RESPONSE_BYTES];
        let start = Instant::now();
        while start.elapsed() < window {
            let before = Instant::now();
            match self.dial().await? {
                Stream::Plain(stream) => transaction(stream, &mut buffer).await?,
                Stream::Session(stream) => transaction(*stream, &mut buffer).await?,
                Stream::Quic(stream) => transaction(stream, &mut buffer).await?,
            }
            into.push(before.elapsed());
        }
        ensure!(into.len() > 0, "not a single transaction");
        Ok(())
    }
}
