//! Hears from the kernel when an address or a route of this host changes (rtnetlink multicast groups).

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A netlink socket that becomes readable when the host's addresses, links or routes change.
#[derive(Debug)]
pub(crate) struct RouteWatch {
    socket: OwnedFd,
}

impl RouteWatch {
    /// Subscribes; needs no privilege.
    pub(crate) fn open() -> io::Result<Self> {
        // SAFETY: no memory is involved; the descriptor is checked and owned right away.
        let fd = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                libc::NETLINK_ROUTE,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a fresh descriptor that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sockaddr_nl is plain integers, for which zero is valid.
        let mut address: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
        #[allow(clippy::cast_possible_truncation)] // AF_NETLINK is 16.
        {
            address.nl_family = libc::AF_NETLINK as u16;
        }
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV6_ROUTE;
        address.nl_groups = groups.cast_unsigned();
        #[allow(clippy::cast_possible_truncation)] // 12 bytes.
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: `address` is a valid sockaddr_nl of `length` bytes.
        if unsafe { libc::bind(fd, (&raw const address).cast(), length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket })
    }

    /// Takes all waiting messages; true if there was any. What they say does not matter: they are a reason to
    /// look. An overrun (ENOBUFS) is one too.
    pub(crate) fn drain(&self) -> bool {
        let mut seen = false;
        let mut buffer = [0u8; 8192];
        loop {
            // SAFETY: `buffer` is writable for its length.
            let count = unsafe {
                libc::recv(
                    self.socket.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if count > 0 {
                seen = true;
                continue;
            }
            let overrun = io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
            if count < 0 && overrun {
                seen = true;
                continue;
            }
            return seen;
        }
    }
}

impl AsFd for RouteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
