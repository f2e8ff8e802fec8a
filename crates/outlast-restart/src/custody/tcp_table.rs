//! The kernel's list of TCP sockets, `/proc/net/tcp` and `/proc/net/tcp6`, of the network namespace of the thread that asks.

use super::address::Address;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// A line of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) local: Address,
    pub(super) remote: Address,
    pub(super) listens: bool,
    pub(super) inode: u64,
}

/// `0A` in the list.
const LISTEN: u8 = 10;
const FILES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// Those that listen: the kernel gives them first, so that the rest is not read. None where it cannot be read.
pub(super) fn listening() -> Vec<Entry> {
    FILES.into_iter().flat_map(|file| entries(file).take_while(|entry| entry.listens)).collect()
}

/// Those that do not, and have an inode.
pub(super) fn connected() -> impl Iterator<Item = Entry> {
    FILES.into_iter().flat_map(entries).filter(|entry| !entry.listens && entry.inode != 0)
}

fn entries(file: &str) -> impl Iterator<Item = Entry> + use<> {
    let lines = File::open(file).map(|file| BufReader::new(file).lines());
    // The first line names the columns.
    lines.into_iter().flatten().map_while(Result::ok).skip(1).filter_map(|line| parse(&line))
}

fn parse(line: &str) -> Option<Entry> {
    let mut columns = line.split_ascii_whitespace();
    let (local, remote) = (address(columns.nth(1)?)?, address(columns.next()?)?);
    let listens = u8::from_str_radix(columns.next()?, 16).ok()? == LISTEN;
    Some(Entry { local, remote, listens, inode: columns.nth(5)?.parse().ok()? })
}

/// The address is in words of 32 bits in this machine's order of bytes, the port a number.
fn address(text: &str) -> Option<Address> {
    let (ip, port) = text.split_once(':')?;
    if !matches!(ip.len(), 8 | 32) || !ip.is_ascii() {
        return None;
    }
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let words: Option<Vec<[u8; 4]>> = (0..ip.len()).step_by(8).map(word).collect();
    Some(Address::Internet {
        ip: words?.concat(),
        port: u16::from_str_radix(port, 16).ok()?.to_be(),
        scope: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::descriptors::inode_of;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_listening_socket_and_a_connection_are_found_with_their_inodes() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                println!("SKIPPED {at}: this machine has no such address");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let own = Address::of(listener.as_raw_fd()).unwrap();
            let its = inode_of(listener.as_raw_fd()).unwrap();
            assert!(listening().iter().any(|entry| entry.local == own && entry.inode == its));
            let from = Address::of(client.as_raw_fd()).unwrap();
            let its = inode_of(client.as_raw_fd()).unwrap();
            let mut found = connected().filter(|entry| entry.inode == its);
            let found = found.next().unwrap();
            assert_eq!((found.local, found.remote), (from, own));
        }
    }

    #[test]
    fn other_lines_are_passed_over() {
        for line in [
            "",
            "sl local_address",
            "0: 0100007F:0050 x:1 0A",
            "0: 0100007é:0050 00000000:0000 0A 0 0 0 0 0 1",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
