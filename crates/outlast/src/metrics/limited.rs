//! Connections of those who ask for metrics: a few at a time, and each for a short time. Nobody who can connect there can take
//! the descriptors that sessions need, or keep others from asking.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// So many at a time. For a further one the oldest of the address (the /64 of IPv6) that has most of them is closed.
const CONNECTIONS_MAX: usize = 32;
/// A connection is closed after this time, whatever it does: a scrape takes milliseconds.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// After an error of the listening socket, such as too few descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket with limits.
#[derive(Debug)]
pub(super) struct Limited {
    listener: TcpListener,
    guests: Arc<Mutex<Guests>>,
}

/// Connections that are open.
#[derive(Debug, Default)]
struct Guests {
    next: u64,
    /// By their order: whose they are, and how they are told to end.
    all: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

impl Guests {
    /// One more from this address: its number, and what it hears when it is to end.
    fn enter(&mut self, address: IpAddr) -> (u64, oneshot::Receiver<()>) {
        if self.all.len() >= CONNECTIONS_MAX
            && let Some((_, ends)) = self.in_the_way().and_then(|number| self.all.remove(&number))
        {
            // It may be about to end by itself.
            ends.send(()).ok();
        }
        let (ends, is_to_end) = oneshot::channel();
        self.next += 1;
        self.all.insert(self.next, (address, ends));
        (self.next, is_to_end)
    }

    /// The oldest one of the address that has most.
    fn in_the_way(&self) -> Option<u64> {
        let mut counts: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
        for (number, (address, _)) in &self.all {
            counts.entry(*address).or_insert((0, *number)).0 += 1;
        }
        counts.into_values().max_by_key(|(count, _)| *count).map(|(_, oldest)| oldest)
    }
}

/// Whose a connection is: one who has an address of IPv6 usually has all those of its /64.
fn holder(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

fn lock(guests: &Mutex<Guests>) -> MutexGuard<'_, Guests> {
    guests.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Limited {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, guests: Arc::default() }
    }
}

impl axum::serve::Listener for Limited {
    type Io = Timed;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Timed, SocketAddr) {
        loop {
            let Ok((stream, peer)) = self.listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let (number, is_to_end) = lock(&self.guests).enter(holder(peer.ip()));
            let over = Box::pin(sleep(CONNECTION_TIME));
            let guests = Arc::clone(&self.guests);
            return (Timed { stream, over, is_to_end, has_ended: false, number, guests }, peer);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends after a time, or for another one.
#[derive(Debug)]
pub(super) struct Timed {
    stream: TcpStream,
    over: Pin<Box<Sleep>>,
    is_to_end: oneshot::Receiver<()>,
    has_ended: bool,
    number: u64,
    guests: Arc<Mutex<Guests>>,
}

impl Drop for Timed {
    fn drop(&mut self) {
        lock(&self.guests).all.remove(&self.number);
    }
}

impl Timed {
    /// The stream, while it has time.
    fn in_time(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        // Neither is asked again once it has answered.
        self.has_ended = self.has_ended
            || self.over.as_mut().poll(context).is_ready()
            || Pin::new(&mut self.is_to_end).poll(context).is_ready();
        if self.has_ended { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Pin::new(&mut self.stream)) }
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.in_time(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.in_time(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_time(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::serve::Listener;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;

    async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// As a server of HTTP does: it flushes what cannot be read any more.
    #[tokio::test]
    async fn one_that_has_ended_may_be_asked_again() {
        let mut listener = Limited::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let _client = connect([127, 0, 0, 1], listener.local_addr().unwrap()).await;
        let (mut guest, _) = listener.accept().await;
        for _ in 0..CONNECTIONS_MAX {
            lock(&listener.guests).enter([127, 0, 0, 1].into());
        }
        for _ in 0..3 {
            assert!(guest.read_u8().await.is_err());
            assert!(guest.flush().await.is_err());
        }
    }

    #[test]
    fn the_addresses_of_one_machine_are_one_crowd() {
        let holder = |address: &str| holder(address.parse().unwrap()).to_string();
        assert_eq!(holder("2001:db8:0:1:2:3:4:5"), "2001:db8:0:1::");
        assert_eq!(holder("2001:db8:0:2:2:3:4:5"), "2001:db8:0:2::");
        assert_eq!(holder("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(holder("192.0.2.7"), "192.0.2.7");
    }

    #[tokio::test]
    async fn a_crowd_ends_its_own_connections_only() {
        let mut listener = Limited::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (at, guests) = (listener.local_addr().unwrap(), Arc::clone(&listener.guests));
        tokio::spawn(async move {
            loop {
                let (mut guest, _) = listener.accept().await;
                tokio::spawn(async move {
                    let asked = guest.read_u8().await?;
                    guest.write_u8(asked).await
                });
            }
        });
        let mut other = connect([127, 0, 0, 2], at).await;
        let mut crowd = Vec::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            crowd.push(connect([127, 0, 0, 1], at).await);
        }
        // The first of them have made room.
        for early in crowd.drain(..CONNECTIONS_MAX) {
            let mut early = early;
            assert_eq!(early.read(&mut [0]).await.unwrap_or(0), 0);
        }
        assert!(lock(&guests).all.len() <= CONNECTIONS_MAX);
        other.write_u8(7).await.unwrap();
        assert_eq!(other.read_u8().await.unwrap(), 7);
        let last = crowd.last_mut().unwrap();
        last.write_u8(8).await.unwrap();
        assert_eq!(last.read_u8().await.unwrap(), 8);
    }
}
