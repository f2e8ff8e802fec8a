//! Hears from the kernel when an address or a route of this host changes (rtnetlink multicast groups).

use outlast_netlink::{Protocol, Socket};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// A netlink socket that becomes readable when the host's addresses, links or routes change.
#[derive(Debug)]
pub(crate) struct RouteWatch {
    socket: Socket,
}

impl RouteWatch {
    /// Subscribes; needs no privilege.
    pub(crate) fn open() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV6_ROUTE;
        Ok(Self { socket: Socket::subscribe(Protocol::Route, groups.cast_unsigned())? })
    }

    /// Takes all waiting messages; true if there was any. What they say does not matter: they are a reason to
    /// look. An overrun (ENOBUFS) is one too.
    pub(crate) fn drain(&self) -> bool {
        self.socket.drain()
    }
}

impl AsFd for RouteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
