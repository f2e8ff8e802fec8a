//! Packets that the kernel holds until this process has said what becomes of them: a rule of the packet filter
//! (`-j NFQUEUE --queue-num N`) sends them here, and where nobody has the queue, they are dropped.
//!
//! After linux/netfilter/nfnetlink_queue.h and net/netfilter/nfnetlink_queue.c of Linux.

use crate::message::{HEADER_LEN, Message, attributes, flags, take, u32_at};
use crate::socket::{Protocol, open};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Of nfnetlink, which numbers its messages within each part.
const SUBSYSTEM: u16 = 3 << 8;
const PACKET: u16 = SUBSYSTEM;
const VERDICT: u16 = SUBSYSTEM | 1;
const CONFIG: u16 = SUBSYSTEM | 2;

const CONFIG_COMMAND: u16 = 1;
const CONFIG_PARAMETERS: u16 = 2;
const CONFIG_LENGTH_MAX: u16 = 3;
const CONFIG_MASK: u16 = 4;
const CONFIG_FLAGS: u16 = 5;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// Packets of many segments come as one.
const FLAG_GSO: u32 = 4;

const PACKET_HEADER: u16 = 1;
const VERDICT_HEADER: u16 = 2;
const MARK: u16 = 3;
const PAYLOAD: u16 = 10;
const LENGTH: u16 = 13;
const INFO: u16 = 14;
/// Of `INFO`: a device, or the last one to handle the packet, has yet to compute its checksum; and it is made of many.
const CHECKSUM_IS_OPEN: u32 = 1 | 2;

const DROP: u32 = 0;
const ACCEPT: u32 = 1;

/// With what a message of nfnetlink begins: the family, a version, and the queue.
const FIXED_BYTES: usize = 4;
/// Of one verdict, as it is said: the message's header, what all messages to queues begin with, and one attribute.
const VERDICT_BYTES: usize = HEADER_LEN + FIXED_BYTES + 4 + 8;
/// Said at a time: a message must fit into what a socket may send at least (`net.core.wmem_default` is 212,992 bytes).
const VERDICTS_MAX: usize = 1_024;
/// Where the kernel has no memory for a message: how many times it is tried, and the pause between two tries.
const TRIES_MAX: u32 = 1_000;
const AGAIN: Duration = Duration::from_micros(100);
/// Of a packet's message, beside the packet.
const BESIDE_BYTES: usize = 512;

/// Where on its way a packet is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// It is about to be given to a local socket.
    Input,
    /// A local socket has sent it.
    Output,
    /// Anywhere else.
    Other,
}

/// A packet that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// By which its verdict is said.
    pub id: u32,
    /// Where it is held.
    pub hook: Hook,
    /// Its mark, 0 if it has none.
    pub mark: u32,
    /// Its first bytes, from its IP header on, as many as were asked for.
    pub bytes: &'a [u8],
    /// How long it is.
    pub packet_bytes: u32,
    /// The checksum of its protocol is not in it: it has not left a machine, or the kernel has made one packet of many. Any other is not verified yet.
    pub checksum_is_open: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Accept,
    /// It never was.
    Drop,
}

/// How a queue is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of each packet so many bytes are shown, at most 65,531.
    pub copy_bytes: u32,
    /// So many packets are held; more are dropped.
    pub packets_max: u32,
    /// What the kernel keeps for this process until it is read, in bytes.
    pub socket_bytes: usize,
}

/// What came of asking for the next packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// The next one.
    Packet(Packet<'a>),
    /// There is none.
    Nothing,
    /// There was no room for some, which were dropped: this process was too slow.
    Overflow,
}

/// A queue of this process. When it is dropped, so are all packets in it, and those that come later.
#[derive(Debug)]
pub struct Queue {
    socket: OwnedFd,
    number: u16,
    /// Packets that came before the kernel's answer to the settings.
    early: VecDeque<Vec<u8>>,
    room: Vec<u8>,
    verdicts: Vec<u8>,
}

fn fixed(number: u16) -> [u8; FIXED_BYTES] {
    let [high, low] = number.to_be_bytes();
    [0, 0, high, low]
}

fn parameters(copy_bytes: u32) -> [u8; 5] {
    let [a, b, c, d] = copy_bytes.to_be_bytes();
    [a, b, c, d, COPY_PACKET]
}

impl Queue {
    /// Takes a queue, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Another process has it (`EPERM` or `EBUSY`), this one may not (`CAP_NET_ADMIN`), or the kernel has none.
    pub fn bind(number: u16, settings: Settings) -> io::Result<Self> {
        let socket = open(Protocol::Netfilter)?;
        // More than the system's limit needs a right that this process has, or the queue cannot be had at all.
        if sockopt::set_socket_recv_buffer_size_force(&socket, settings.socket_bytes).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, settings.socket_bytes)?;
        }
        let mut message = Message::new(CONFIG, flags::ACK, &fixed(number));
        message
            .attribute(CONFIG_COMMAND, &[BIND, 0, 0, 0])
            .attribute(CONFIG_PARAMETERS, &parameters(settings.copy_bytes))
            .attribute(CONFIG_LENGTH_MAX, &settings.packets_max.to_be_bytes())
            .attribute(CONFIG_MASK, &FLAG_GSO.to_be_bytes())
            .attribute(CONFIG_FLAGS, &FLAG_GSO.to_be_bytes());
        const FIRST: u32 = 1;
        rustix::net::send(&socket, &message.finish(FIRST), SendFlags::empty())?;
        let room = vec![0; settings.copy_bytes as usize + BESIDE_BYTES];
        let mut queue = Self { socket, number, early: VecDeque::new(), room, verdicts: Vec::new() };
        loop {
            let (count, _) = match rustix::net::recv(&queue.socket, &mut queue.room[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            let message = &queue.room[..count];
            if is_packet(message) {
                queue.early.push_back(message.to_vec());
            } else if take(message, FIRST, &mut Vec::new())? {
                break;
            }
        }
        rustix::io::ioctl_fionbio(&queue.socket, true)?;
        Ok(queue)
    }

    /// From now on so many bytes of each packet are shown. Those that have come before, and were not read, have what was asked for then.
    ///
    /// # Errors
    /// The kernel's.
    pub fn copy(&mut self, copy_bytes: u32) -> io::Result<()> {
        let mut message = Message::new(CONFIG, 0, &fixed(self.number));
        message.attribute(CONFIG_PARAMETERS, &parameters(copy_bytes));
        send(&self.socket, &message.finish(0))?;
        let room = copy_bytes as usize + BESIDE_BYTES;
        // Longer ones may wait still.
        if room > self.room.len() {
            self.room.resize(room, 0);
        }
        Ok(())
    }

    /// The next packet, without waiting: this can be polled for it ([`AsFd`]).
    ///
    /// # Errors
    /// The socket cannot be read.
    pub fn receive(&mut self) -> io::Result<Received<'_>> {
        loop {
            let count = if let Some(early) = self.early.pop_front() {
                self.room[..early.len()].copy_from_slice(&early);
                early.len()
            } else {
                match rustix::net::recv(&self.socket, &mut self.room[..], RecvFlags::empty()) {
                    Ok((count, _)) => count.min(self.room.len()),
                    Err(Errno::AGAIN) => return Ok(Received::Nothing),
                    Err(Errno::NOBUFS) => return Ok(Received::Overflow),
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(error.into()),
                }
            };
            // Asked twice, as the first answer would keep it borrowed.
            if parse(&self.room[..count]).is_some() {
                let packet = parse(&self.room[..count]);
                return Ok(packet.map_or(Received::Nothing, Received::Packet));
            }
        }
    }

    /// Notes what becomes of a packet: said with the next [`flush`](Self::flush).
    pub fn decide(&mut self, id: u32, verdict: Verdict) {
        let mut message = Message::new(VERDICT, 0, &fixed(self.number));
        let mut header = [0; 8];
        let number = if verdict == Verdict::Accept { ACCEPT } else { DROP };
        header[..4].copy_from_slice(&number.to_be_bytes());
        header[4..].copy_from_slice(&id.to_be_bytes());
        message.attribute(VERDICT_HEADER, &header);
        self.verdicts.extend_from_slice(&message.finish(0));
    }

    /// Says what was noted, in as few calls as the kernel takes it.
    ///
    /// # Errors
    /// The socket cannot be written to.
    pub fn flush(&mut self) -> io::Result<()> {
        // A whole number of verdicts, which are all as long.
        for piece in self.verdicts.chunks(VERDICT_BYTES * VERDICTS_MAX) {
            send(&self.socket, piece)?;
        }
        self.verdicts.clear();
        Ok(())
    }
}

/// The kernel works on a message before it takes the next one: only memory can be short.
fn send(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    let mut tries = 0;
    while let Err(error) = rustix::net::send(socket, message, SendFlags::empty()) {
        tries += 1;
        match error {
            Errno::INTR => {}
            Errno::AGAIN | Errno::NOBUFS if tries < TRIES_MAX => std::thread::sleep(AGAIN),
            error => return Err(error.into()),
        }
    }
    Ok(())
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn is_packet(message: &[u8]) -> bool {
    message.get(4..6) == Some(&PACKET.to_ne_bytes())
}

/// None: it is none, or is cut.
fn parse(message: &[u8]) -> Option<Packet<'_>> {
    let (mut id, mut hook, mut mark, mut bytes, mut length) = (None, Hook::Other, 0, None, None);
    let mut checksum_is_open = false;
    let end = usize::try_from(u32_at(message, 0)).ok()?;
    let body = message.get(HEADER_LEN + FIXED_BYTES..end).filter(|_| is_packet(message))?;
    let number = |value: &[u8]| value.get(..4)?.try_into().ok().map(u32::from_be_bytes);
    for (kind, value) in attributes(body) {
        match kind {
            PACKET_HEADER => {
                id = number(value);
                hook = match value.get(6) {
                    Some(1) => Hook::Input,
                    Some(3) => Hook::Output,
                    _ => Hook::Other,
                };
            }
            MARK => mark = number(value)?,
            PAYLOAD => bytes = Some(value),
            LENGTH => length = number(value),
            INFO => checksum_is_open = number(value)? & CHECKSUM_IS_OPEN != 0,
            _ => {}
        }
    }
    let bytes = bytes?;
    let packet_bytes = length.or_else(|| u32::try_from(bytes.len()).ok())?;
    Some(Packet { id: id?, hook, mark, bytes, packet_bytes, checksum_is_open })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Vec<u8> {
        let mut message = Message::new(PACKET, 0, &fixed(7));
        message
            .attribute(PACKET_HEADER, &[0, 0, 0, 9, 8, 0, 3])
            .attribute(MARK, &0x77_u32.to_be_bytes())
            .attribute(LENGTH, &1500_u32.to_be_bytes())
            .attribute(INFO, &1_u32.to_be_bytes())
            .attribute(PAYLOAD, b"packet");
        message.finish(0)
    }

    #[test]
    fn a_packet_is_read_and_a_cut_one_is_none() {
        let message = message();
        let packet = Packet {
            id: 9,
            hook: Hook::Output,
            mark: 0x77,
            bytes: b"packet",
            packet_bytes: 1500,
            checksum_is_open: true,
        };
        assert_eq!(parse(&message), Some(packet));
        for cut in 0..message.len() {
            assert_eq!(parse(&message[..cut]), None, "{cut}");
        }
        for at in 0..message.len() {
            for bit in 0..8 {
                let mut other = message.clone();
                other[at] ^= 1 << bit;
                // Whatever it is, it is read within its bytes.
                let _ = parse(&other);
            }
        }
    }
}
