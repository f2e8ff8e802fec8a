//! Connections of those who ask for metrics: a few at a time, and each for a short time. Whoever can connect there cannot
//! take the descriptors that sessions need.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// So many at a time. Others wait in the kernel's queue.
pub(super) const CONNECTIONS_MAX: usize = 32;
/// A connection is closed after this time, whatever it does: a scrape takes milliseconds.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// After an error of the listening socket, such as too few descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket with limits.
#[derive(Debug)]
pub(super) struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Limited {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl axum::serve::Listener for Limited {
    type Io = Timed;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Timed, SocketAddr) {
        loop {
            let place = Arc::clone(&self.places).acquire_owned().await;
            match (place, self.listener.accept().await) {
                (Ok(place), Ok((stream, peer))) => {
                    let over = Box::pin(sleep(CONNECTION_TIME));
                    return (Timed { stream, over, _place: place }, peer);
                }
                _ => sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends after a time.
#[derive(Debug)]
pub(super) struct Timed {
    stream: TcpStream,
    over: Pin<Box<Sleep>>,
    /// Until it is closed.
    _place: OwnedSemaphorePermit,
}

impl Timed {
    /// The stream, while it has time.
    fn in_time(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        match self.over.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(Pin::new(&mut self.stream)),
        }
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
