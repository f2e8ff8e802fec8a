//! QUIC by quinn, as a peer to compare with: one stream of one connection stands for a TCP connection.

use super::identity::{Identity, SERVER_NAME};
use anyhow::{Context, Result};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{self, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf};

const PROTOCOL: &str = "outlast-bench";

/// Both directions of a stream; the connection lives as long.
pub struct Stream {
    both: Join<RecvStream, SendStream>,
    connection: Connection,
}

impl Stream {
    /// A handle to the connection.
    pub fn connection(&self) -> Connection {
        self.connection.clone()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.both).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.both).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.both).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.both).poll_shutdown(cx)
    }
}

/// Makes connections, all from one socket.
#[derive(Clone)]
pub struct Dialer {
    address: SocketAddr,
    config: ClientConfig,
    endpoint: Arc<OnceLock<Endpoint>>,
}

impl Dialer {
    /// To a server at `address`.
    pub fn new(address: SocketAddr, identity: &Identity) -> Result<Self> {
        let tls = QuicClientConfig::try_from(identity.client(Some(PROTOCOL))?)?;
        Ok(Self { address, config: ClientConfig::new(Arc::new(tls)), endpoint: Arc::default() })
    }

    /// A new connection with one stream.
    pub async fn dial(&self) -> Result<Stream> {
        let endpoint = match self.endpoint.get() {
            Some(endpoint) => endpoint,
            None => {
                let made = Endpoint::client(SocketAddr::new(self.any(), 0))?;
                self.endpoint.get_or_init(|| made)
            }
        };
        let connecting = endpoint.connect_with(self.config.clone(), self.address, SERVER_NAME)?;
        let connection = connecting.await.context("no QUIC connection")?;
        let (send, receive) = connection.open_bi().await?;
        let both = tokio::io::join(receive, send);
        Ok(Stream { both, connection })
    }

    fn any(&self) -> std::net::IpAddr {
        if self.address.is_ipv4() {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        }
    }
}

/// A server.
pub fn listen(address: SocketAddr, identity: &Identity) -> Result<Endpoint> {
    let tls = QuicServerConfig::try_from(identity.server(Some(PROTOCOL))?)?;
    let endpoint = Endpoint::server(ServerConfig::with_crypto(Arc::new(tls)), address);
    endpoint.with_context(|| format!("cannot listen for QUIC on {address}"))
}

/// The first stream of the next connection.
pub async fn accept(endpoint: &Endpoint) -> Result<Stream> {
    let incoming = endpoint.accept().await.context("the QUIC endpoint is closed")?;
    let connection = incoming.await?;
    let (send, receive) = connection.accept_bi().await?;
    Ok(Stream { both: tokio::io::join(receive, send), connection })
}
