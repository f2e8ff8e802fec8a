//! Listing and destroying TCP connections of a host through sock_diag: microseconds, no program started.

use std::io;

use outlast_netlink::Socket;
use outlast_netlink::tcp;
pub use outlast_netlink::tcp::Connection;
pub(crate) use outlast_netlink::tcp::listeners;

/// Which connections of a host are meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    /// Only connections with this port at either end; `None`: every TCP connection of the host.
    pub port: Option<u16>,
    /// Also those that stay on the host: no fault of a link touches them.
    pub local: bool,
}

impl Connections {
    /// Every TCP connection.
    #[must_use]
    pub fn all() -> Self {
        Self { port: None, local: true }
    }

    /// Every TCP connection with another host.
    #[must_use]
    pub fn outward() -> Self {
        Self::default()
    }

    /// Connections with `port` at either end.
    #[must_use]
    pub fn on_port(port: u16) -> Self {
        Self { port: Some(port), local: true }
    }

    fn includes(self, connection: &Connection) -> bool {
        let stays = connection.peer.ip().to_canonical() == connection.local.ip().to_canonical()
            || connection.peer.ip().to_canonical().is_loopback();
        (self.local || !stays)
            && self.port.is_none_or(|port| connection.local.port() == port || connection.peer.port() == port)
    }
}

/// The connections among `which`, both address families.
pub(crate) fn list(socket: &mut Socket, which: Connections) -> io::Result<Vec<Connection>> {
    let mut found = tcp::connections(socket)?;
    found.retain(|connection| which.includes(connection));
    Ok(found)
}

/// Aborts the connections among `which` and says how many there were: the host's programs get an error, and the
/// peer is sent a reset.
pub(crate) fn destroy(socket: &mut Socket, which: Connections) -> io::Result<usize> {
    let mut destroyed = 0;
    for connection in list(socket, which)? {
        match tcp::destroy(socket, &connection) {
            Ok(()) => destroyed += 1,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {} // ended by itself in between
            Err(e) => return Err(e),
        }
    }
    Ok(destroyed)
}
