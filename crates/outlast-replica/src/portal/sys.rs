//! Everything unsafe of this crate: options of sockets that no library knows.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an option that is a list of numbers, or one.
pub(super) fn set(socket: BorrowedFd<'_>, level: i32, name: i32, value: &[u32]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(value)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes of the slice, which are there, and are integers.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), length) })
}

/// How many bytes a socket has sent, or has to send, that are not acknowledged.
pub(super) fn unacked_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: fills a local integer.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    usize::try_from(bytes).map_err(io::Error::other)
}

/// Sends a packet without its Ethernet header from a device.
pub(super) fn send_at_device(
    socket: BorrowedFd<'_>,
    index: u32,
    protocol: u16,
    to: [u8; 6],
    packet: &[u8],
) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&to);
    let address = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or(0),
        sll_protocol: protocol.to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: address,
    };
    let length = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    let to = (&raw const address).cast();
    // SAFETY: the kernel reads the packet and the address, both of the lengths that are told.
    let sent = unsafe {
        libc::sendto(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), libc::MSG_DONTWAIT, to, length)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How many bytes of those were not sent even once.
pub(super) fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    // linux/sockios.h
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    let mut bytes: libc::c_int = 0;
    // SAFETY: fills a local integer.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCOUTQNSD, &raw mut bytes) })?;
    usize::try_from(bytes).map_err(io::Error::other)
}

/// Whether the kernel has done all that there was to do for a connection.
pub(super) fn is_closed(socket: BorrowedFd<'_>) -> bool {
    // The first byte of struct tcp_info is the state.
    const TCP_CLOSE: u8 = 7;
    let mut info = [0u8; 8];
    let mut length = libc::socklen_t::try_from(size_of_val(&info)).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes, which are there.
    let told = check(unsafe {
        let place = info.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut length)
    });
    told.is_ok() && info[0] == TCP_CLOSE
}

/// Reads an option that is a number.
pub(super) fn get(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<u32> {
    let (mut value, mut length) = (0u32, libc::socklen_t::try_from(size_of::<u32>()).unwrap_or(4));
    // SAFETY: the kernel writes at most `length` bytes to a local integer of that size.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    })?;
    Ok(value)
}
