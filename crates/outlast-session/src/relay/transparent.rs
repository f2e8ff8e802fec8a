//! Connections that the firewall diverts to us, and where they were going.
//!
//! With TPROXY the accepted socket's own address is the original destination; the listener needs
//! `IP_TRANSPARENT`, hence `CAP_NET_ADMIN`. With REDIRECT (NAT on this host) connection tracking remembers it.

use super::{Destination, local};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use tokio::net::{TcpListener, TcpStream};

/// Pending connections in the kernel's accept queue. Default 1024.
const BACKLOG: i32 = 1024;

/// Where the firewall sends connections to.
#[derive(Debug)]
pub struct TransparentListener {
    listener: TcpListener,
    address: SocketAddr,
    tproxy: bool,
}

impl TransparentListener {
    /// Listens. Without the privilege for TPROXY it still serves REDIRECT, see [`serves_tproxy`](Self::serves_tproxy).
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        let tproxy = match address {
            SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
            SocketAddr::V6(_) => socket.set_ip_transparent_v6(true),
        };
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        // Each accepted socket has these from the beginning: one may wait for its turn when this process is killed.
        local::set_options(&socket);
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from_std(socket.into())?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, tproxy: tproxy.is_ok() })
    }

    /// Whether TPROXY works; if not, the process lacks `CAP_NET_ADMIN`.
    #[must_use]
    pub fn serves_tproxy(&self) -> bool {
        self.tproxy
    }

    /// The address that is listened on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, and where it was going; `None` if it was meant for us, which would be a loop.
    ///
    /// # Errors
    /// Of accept(2).
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr, Option<Destination>)> {
        let (stream, peer) = self.listener.accept().await?;
        let destination = self.destination(&stream);
        Ok((stream, peer, destination))
    }

    fn destination(&self, stream: &TcpStream) -> Option<Destination> {
        let own = canonical(stream.local_addr().ok()?);
        let meant_for_us = own.port() == self.address.port()
            && (self.address.ip().is_unspecified() || own.ip() == self.address.ip().to_canonical());
        if !meant_for_us {
            return Some(own.into());
        }
        let socket = socket2::SockRef::from(stream);
        let tracked = if own.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
        let original = canonical(tracked.ok()?.as_socket()?);
        (original != own).then(|| original.into())
    }
}

impl AsFd for TransparentListener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_to_the_listener_itself_is_a_loop() {
        let listener = TransparentListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = TcpStream::connect(listener.local_addr()).await.unwrap();
        let (_, _, destination) = listener.accept().await.unwrap();
        assert_eq!(destination, None);
    }
}
