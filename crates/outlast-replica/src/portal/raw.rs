//! Packets that this process writes itself: what gets a connection going again that has just been made on this machine.

use super::repair;
use crate::connection::Ends;
use crate::replica::Restore;
use etherparse::{PacketBuilder, TcpOptionElement};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// So many segments are sent again at once: about as much as a new connection begins with, several times over.
const SEGMENTS_MAX: usize = 64;
/// Of an IPv6 and a TCP header with a timestamp, in the smallest packet that every network takes.
const SEGMENT_BYTES_MAX: usize = 1_400;
/// Of a timestamp, beside the bytes of a segment.
const TIMESTAMP_BYTES: usize = 12;
const HOPS: u8 = 64;
/// Shifted as the connection has agreed on. The kernel tells more with its next packet.
const WINDOW_BYTES: u32 = 1 << 16;

/// What one packet says.
struct Said<'a> {
    sequence: u32,
    ack: u32,
    window: u16,
    timestamp: Option<u32>,
    fin: bool,
    bytes: &'a [u8],
}

/// Sends packets past the sockets of the kernel.
#[derive(Debug)]
pub struct Raw {
    v4: Socket,
    v6: Option<Socket>,
}

impl Raw {
    /// Its packets carry this mark, by which the rules of the packet filter know them.
    ///
    /// # Errors
    /// This process may not (`CAP_NET_RAW`, `CAP_NET_ADMIN`).
    pub fn open(mark: u32) -> io::Result<Self> {
        let open = |domain| {
            // With this protocol what is sent has its header with it (raw(7), ipv6(7)).
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
            socket.set_mark(mark)?;
            socket.set_nonblocking(true)?;
            io::Result::Ok(socket)
        };
        // Some machines have no IPv6.
        Ok(Self { v4: open(Domain::IPV4)?, v6: open(Domain::IPV6).ok() })
    }

    /// Tells the client of a connection that was made again where it stands, and sends the first of what it may not have: the kernel
    /// does so only after seconds, as it has measured no round trip, and takes all for sent. Again after some milliseconds, as long as
    /// the client has not acknowledged all of it. Gives how many bytes it has not.
    ///
    /// # Errors
    /// A packet cannot be sent.
    pub fn kick(&self, connection: &Restore<'_>, socket: &Socket) -> io::Result<usize> {
        let (front, back) = connection.unacked;
        let left_bytes = repair::unacked_bytes(socket)?;
        let acked_bytes = (front.len() + back.len()).saturating_sub(left_bytes);
        let unacked_bytes = u32::try_from(front.len() + back.len()).unwrap_or(u32::MAX);
        let timestamp = connection.agreed.timestamp.map(|_| repair::timestamp(socket)).transpose()?;
        let shift = connection.agreed.window_shifts.map_or(0, |(_, portal)| portal);
        let said = |sequence: u32, bytes, fin| Said {
            sequence,
            ack: connection.receive_sequence.wrapping_add(connection.client_ended.into()),
            window: u16::try_from(WINDOW_BYTES >> shift).unwrap_or(u16::MAX),
            timestamp,
            fin,
            bytes,
        };
        let end = connection.send_sequence.wrapping_add(unacked_bytes);
        self.send(&connection.ends, &said(end, &[], false))?;
        let segment_bytes = usize::from(connection.agreed.segment_bytes_max).saturating_sub(TIMESTAMP_BYTES);
        let begin = u32::try_from(acked_bytes).unwrap_or(0);
        let mut sequence = connection.send_sequence.wrapping_add(begin);
        let unacked = [
            front.get(acked_bytes..).unwrap_or_default(),
            back.get(acked_bytes.saturating_sub(front.len())..).unwrap_or_default(),
        ];
        let segments =
            unacked.into_iter().flat_map(|part| part.chunks(segment_bytes.clamp(1, SEGMENT_BYTES_MAX)));
        for bytes in segments.take(SEGMENTS_MAX) {
            self.send(&connection.ends, &said(sequence, bytes, false))?;
            sequence = sequence.wrapping_add(u32::try_from(bytes.len()).unwrap_or(0));
        }
        if connection.answers_ended && sequence == end {
            self.send(&connection.ends, &said(end, &[], true))?;
        }
        Ok(left_bytes)
    }

    fn send(&self, ends: &Ends, said: &Said<'_>) -> io::Result<()> {
        let packet = packet(ends.portal, ends.client, said)?;
        let (socket, to) = match ends.client.ip() {
            IpAddr::V4(_) => (&self.v4, ends.client),
            IpAddr::V6(_) => (self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?, ends.client),
        };
        // A port would be taken for the protocol.
        match socket.send_to(&packet, &SockAddr::from(SocketAddr::new(to.ip(), 0))) {
            // The device has no room for it: it is lost, as any packet may be.
            Err(error) if [Some(libc::ENOBUFS), Some(libc::EAGAIN)].contains(&error.raw_os_error()) => Ok(()),
            sent => sent.map(drop),
        }
    }
}

fn packet(from: SocketAddr, to: SocketAddr, said: &Said<'_>) -> io::Result<Vec<u8>> {
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            PacketBuilder::ipv4(source.octets(), destination.octets(), HOPS)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            PacketBuilder::ipv6(source.octets(), destination.octets(), HOPS)
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let mut tcp = ip.tcp(from.port(), to.port(), said.sequence, said.window).ack(said.ack);
    if let Some(timestamp) = said.timestamp {
        // What the client has sent last is not known here: 0 echoes nothing (RFC 7323, section 3.2).
        let options =
            [TcpOptionElement::Noop, TcpOptionElement::Noop, TcpOptionElement::Timestamp(timestamp, 0)];
        tcp = tcp.options(&options).map_err(io::Error::other)?;
    }
    if !said.bytes.is_empty() {
        tcp = tcp.psh();
    }
    if said.fin {
        tcp = tcp.fin();
    }
    let mut packet = Vec::with_capacity(tcp.size(said.bytes.len()));
    tcp.write(&mut packet, said.bytes).map_err(io::Error::other)?;
    Ok(packet)
}
