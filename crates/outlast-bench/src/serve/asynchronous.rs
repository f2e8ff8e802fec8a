//! Serving with tokio.

use super::BUFFER_BYTES;
use crate::loads::Work;
use crate::wire::asynchronous::Link;
use crate::wire::identity::Identity;
use crate::wire::{Endpoint, Kind, REQUEST_BYTES, RESPONSE_BYTES, quic, wants};
use anyhow::{Context, Result, bail};
use outlast_session::tokio::Listener;
use std::io;
use std::net::SocketAddr;
use std::thread;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};

/// The runtime that serves, on threads of its own.
pub struct Runtime {
    handle: Handle,
}

impl Runtime {
    /// With one worker everything runs on one thread.
    pub fn start(workers: usize) -> Result<Self> {
        let runtime = match workers {
            0 | 1 => Builder::new_current_thread().enable_all().build(),
            more => Builder::new_multi_thread().worker_threads(more).enable_all().build(),
        }
        .context("cannot start a runtime")?;
        let handle = runtime.handle().clone();
        // A current-thread runtime works while somebody blocks on it.
        thread::Builder::new()
            .name("runtime".to_owned())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(Self { handle })
    }

    /// Listens with one endpoint; a task accepts.
    pub fn listen(&self, endpoint: Endpoint, address: SocketAddr, identity: &Identity) -> Result<SocketAddr> {
        let (sender, bound) = std::sync::mpsc::channel();
        let identity = identity.clone();
        self.handle.spawn(async move {
            if let Err(error) = accept_all(endpoint, address, &identity, &sender).await {
                let _ = sender.send(Err(error));
            }
        });
        bound.recv().context("the runtime has ended")?
    }
}

type Bound = std::sync::mpsc::Sender<Result<SocketAddr>>;

async fn accept_all(
    endpoint: Endpoint,
    address: SocketAddr,
    identity: &Identity,
    bound: &Bound,
) -> Result<()> {
    match endpoint.kind {
        Kind::Raw | Kind::RawBounded => {
            let listener = TcpListener::bind(address).await?;
            bound.send(Ok(listener.local_addr()?))?;
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                stream.set_nodelay(true)?;
                tokio::spawn(serve(stream));
            }
        }
        Kind::Session(mode, guard) => {
            let listener = Listener::bind_with(address, &identity.session(mode, guard)?).await?;
            bound.send(Ok(listener.local_addr()))?;
            loop {
                tokio::spawn(serve(listener.accept().await?));
            }
        }
        Kind::Quic => {
            let listener = quic::listen(address, identity)?;
            bound.send(Ok(listener.local_addr()?))?;
            loop {
                let Ok(stream) = quic::accept(&listener).await else { continue };
                tokio::spawn(async move {
                    let connection = stream.connection();
                    serve(stream).await;
                    // Closing would cut off what is under way: that is for the client to do.
                    connection.closed().await;
                });
            }
        }
        Kind::Mptcp => bail!("MPTCP has no tokio face here"),
    }
}

async fn serve<S: Link>(mut stream: S) {
    let mut first = [0; REQUEST_BYTES];
    let Ok(count @ 1..) = stream.read(&mut first).await else { return };
    // Boxed, so that those who only wait do not pay for the buffers of the busiest.
    let _ = match first[0] {
        wants::ECHO if count == 1 => echo_small(stream, first[0]).await,
        wants::SINK => Box::pin(sink(stream, count)).await,
        wants::TRANSACTION => Box::pin(transaction(stream, count)).await,
        wants::WORK => Box::pin(work(stream, first, count)).await,
        _ => Err(io::ErrorKind::InvalidData.into()),
    };
}

async fn echo_small<S: Link>(mut stream: S, first: u8) -> io::Result<()> {
    stream.write_all(&[first]).await?;
    let mut buffer = [0; REQUEST_BYTES];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

async fn sink<S: Link>(mut stream: S, first: usize) -> io::Result<()> {
    let mut bytes = first as u64 - 1;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => bytes += count as u64,
        }
    }
    stream.write_all(&bytes.to_le_bytes()).await?;
    stream.shutdown().await
}

async fn transaction<S: Link>(mut stream: S, mut count: usize) -> io::Result<()> {
    let mut rest = [0; REQUEST_BYTES];
    while count < REQUEST_BYTES {
        match stream.read(&mut rest).await? {
            0 => return Ok(()),
            more => count += more,
        }
    }
    stream.write_all(&[7; RESPONSE_BYTES]).await?;
    stream.shutdown().await
}

async fn work<S: Link>(mut stream: S, mut request: [u8; REQUEST_BYTES], mut count: usize) -> io::Result<()> {
    loop {
        if count < REQUEST_BYTES {
            stream.read_exact(&mut request[count..]).await?;
        }
        Work::of_request(&request).perform().await;
        stream.write_all(&request).await?;
        count = stream.read(&mut request).await?;
        if count == 0 {
            return Ok(());
        }
    }
}
