//! Who waits at a listening socket, and how processes that accept there are woken up.

use super::length;
use libc::c_int;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// An integer option of TCP.
pub fn tcp_option(descriptor: RawFd, name: c_int) -> Option<c_int> {
    let (mut value, mut length) = (0, length::<c_int>());
    // SAFETY: fills a local integer of the length that is given.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::IPPROTO_TCP, name, (&raw mut value).cast(), &raw mut length)
    };
    (result == 0).then_some(value)
}

/// How many clients wait in the queue of a socket of TCP that listens.
pub fn queued_count(descriptor: RawFd) -> Option<u32> {
    /// TCP_LISTEN.
    const LISTENS: u8 = 10;
    let (mut info, mut length) = (MaybeUninit::<libc::tcp_info>::zeroed(), length::<libc::tcp_info>());
    let place = info.as_mut_ptr().cast();
    // SAFETY: fills at most the length that is given; zeroes are a value.
    let info = unsafe {
        let result = libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut length);
        (result == 0).then(|| info.assume_init())
    }?;
    (info.tcpi_state == LISTENS).then_some(info.tcpi_unacked)
}

/// Begins to connect to an address, and does not wait for that. Whether it was begun.
pub fn begin_connecting(socket: RawFd, address: &[u8]) -> bool {
    // SAFETY: numbers; and memory of the length that is given, which is read.
    unsafe {
        let flags = libc::fcntl(socket, libc::F_GETFL);
        libc::fcntl(socket, libc::F_SETFL, flags | libc::O_NONBLOCK);
        let result = libc::syscall(libc::SYS_connect, socket, address.as_ptr(), address.len());
        result == 0 || super::errno() == libc::EINPROGRESS
    }
}

/// Whether the client of a connection has said nothing, and has ended it or broken it off.
pub fn is_over_unsaid(connection: RawFd) -> bool {
    let mut byte = 0u8;
    let (flags, nowhere) = (libc::MSG_PEEK | libc::MSG_DONTWAIT, std::ptr::null_mut::<u8>());
    // SAFETY: fills a local byte at most.
    let count =
        unsafe { libc::syscall(libc::SYS_recvfrom, connection, &raw mut byte, 1, flags, nowhere, nowhere) };
    count == 0 || (count < 0 && super::errno() == libc::ECONNRESET)
}

/// Where the program has the length of its room for an address, if it has any: without room the kernel does not look there.
pub fn length_of(address: *const libc::sockaddr, length: *mut libc::socklen_t) -> *mut libc::socklen_t {
    if address.is_null() { std::ptr::null_mut() } else { length }
}

/// How much room the program has for an address.
pub fn room(length: *const libc::socklen_t) -> libc::socklen_t {
    // SAFETY: null, or what the program has given to the C library.
    unsafe { length.as_ref() }.copied().unwrap_or(0)
}

/// Sets it again, after `accept` has written how much of it is used.
pub fn set_room(length: *mut libc::socklen_t, room: libc::socklen_t) {
    // SAFETY: null, or what the program has given to `accept`, which has written to it.
    if let Some(length) = unsafe { length.as_mut() } {
        *length = room;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn who_waits_and_who_is_gone_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = listener.as_raw_fd();
        assert_eq!((queued_count(number), tcp_option(number, libc::TCP_DEFER_ACCEPT)), (Some(0), Some(0)));
        let wake_up = super::super::new_of_tcp(number).unwrap();
        assert!(begin_connecting(wake_up.as_raw_fd(), super::super::name(number, false).as_ref()));
        drop(wake_up);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(queued_count(number), Some(2));
        let [first, second] = [(); 2].map(|()| listener.accept().unwrap().0);
        assert!(is_over_unsaid(first.as_raw_fd()) && !is_over_unsaid(second.as_raw_fd()));
        client.write_all(b"a").unwrap();
        drop(client);
        assert!(!is_over_unsaid(second.as_raw_fd()));
        assert_eq!((queued_count(number), queued_count(first.as_raw_fd())), (Some(0), None));
    }
}
