//! The listening socket: its options, which what is accepted inherits.

use super::super::udp::Mailbox;
use super::super::{set_detection, set_link_options};
use super::Acceptor;
use crate::config::{AckMode, Security};
use crate::error::{Error, Result};
use crate::proto::LinkMode;
use crate::sys;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;

/// Connections are accepted with their first bytes: it saves waiting for them one by one, and a flood of silent ones
/// stays in the kernel for so long.
const ACCEPT_SILENCE_S: i32 = 1;
/// Connections that wait to be accepted, at most; `net.core.somaxconn` bounds it, too.
const BACKLOG: i32 = 4096;

/// A socket that is bound to the first of `addresses` that can be had, and does not listen yet: what is accepted before
/// a [`prepare`](Acceptor::prepare) could not prove its path, and clients that come back for their sessions are quick.
pub(crate) fn bind(addresses: &[SocketAddr]) -> Result<TcpListener> {
    let bind_one = |address: &SocketAddr| {
        let domain = socket2::Domain::for_address(*address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&(*address).into())?;
        Ok(socket)
    };
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "there is no address");
    for address in addresses {
        match bind_one(address) {
            Ok(socket) => return Ok(socket.into()),
            Err(error) => failure = error,
        }
    }
    Err(Error::system("listen", &failure))
}

impl Acceptor {
    /// Options of the listening socket; what is accepted inherits them.
    pub(crate) fn prepare(&self, listener: &socket2::Socket) -> Result<()> {
        if let Security::Tls(tls) = &self.config.security
            && tls.server.is_none()
        {
            return Err(Error::Config("tls is wanted, but there is no server configuration".into()));
        }
        let listens = listener.is_listener().map_err(|error| Error::system("listen", &error))?;
        self.has_early_connections.store(listens, Ordering::Relaxed);
        set_link_options(listener)?;
        set_detection(listener, self.config.detect_timeout)?;
        // The kernel's queue also holds who has not said anything yet, and when it is full SYNs are no longer kept.
        listener.listen(BACKLOG).map_err(|error| Error::system("listen", &error))?;
        if let Err(error) = sys::defer_accept(listener, ACCEPT_SILENCE_S) {
            tracing::debug!(%error, "connections are accepted before they say anything");
        }
        if let Err(error) = sys::save_syn(listener) {
            tracing::warn!(%error, "cannot keep the SYN of connections: no path counts as direct");
        }
        self.open_mailbox(listener)
    }

    /// Made now, as it has to be in the network namespace of the thread that listens.
    fn open_mailbox(&self, listener: &socket2::Socket) -> Result<()> {
        let wanted = matches!(self.config.ack, AckMode::Auto | AckMode::Fixed(LinkMode::Udp));
        let Some(address) = listener.local_addr().ok().and_then(|address| address.as_socket()) else {
            return Ok(());
        };
        if !wanted || matches!(self.config.security, Security::Tls(_)) {
            return Ok(());
        }
        match Mailbox::for_listener(address) {
            Ok(mailbox) => {
                let _ = self.mailbox.set(mailbox);
                Ok(())
            }
            Err(error) if self.config.ack == AckMode::Auto => {
                tracing::warn!(%error, "no socket for acknowledgement datagrams: mode udp is refused");
                Ok(())
            }
            Err(error) => Err(Error::system("make a socket for acknowledgement datagrams", &error)),
        }
    }

    /// Gives a connection the options that it has not inherited. The kernel's queue is in order: behind the first
    /// connection that has them, all do.
    pub(super) fn season(&self, socket: &socket2::Socket) -> Result<()> {
        if socket.linger().is_ok_and(|linger| linger.is_some()) {
            self.has_early_connections.store(false, Ordering::Relaxed);
            return Ok(());
        }
        set_link_options(socket)?;
        set_detection(socket, self.config.detect_timeout)
    }
}
