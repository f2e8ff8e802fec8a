//! Packets that this process writes itself: what gets a connection going again that has just been made on this machine.

use super::repair;
use crate::connection::{Ends, Flags, SynOptions};
use crate::replica::{LastAck, Restore};
use etherparse::{PacketBuilder, TcpOptionElement};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::iter::repeat_n;
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
#[derive(Clone, Copy)]
struct Said<'a> {
    sequence: u32,
    ack: u32,
    window: u16,
    flags: Flags,
    timestamp: Option<u32>,
    /// The peer's timestamp. 0 echoes nothing (RFC 7323, section 3.2).
    echo: u32,
    /// Of a SYN.
    options: Option<SynOptions>,
    bytes: &'a [u8],
}

const NONE: Flags = Flags { syn: false, ack: true, fin: false, rst: false };
const FIN: Flags = Flags { fin: true, ..NONE };
const RST: Flags = Flags { rst: true, ..NONE };
const SYN: Flags = Flags { syn: true, ..NONE };

impl Said<'_> {
    const fn nothing() -> Self {
        Self {
            sequence: 0,
            ack: 0,
            window: 0,
            flags: NONE,
            timestamp: None,
            echo: 0,
            options: None,
            bytes: &[],
        }
    }
}

/// Sends packets past the sockets of the kernel.
#[derive(Debug)]
pub struct Raw {
    v4: Socket,
    v6: Option<Socket>,
    /// Without the mark: what they send to this machine's portal comes to its queue.
    injecting: (Socket, Option<Socket>),
}

impl Raw {
    /// Its packets carry this mark, by which the rules of the packet filter know them.
    ///
    /// # Errors
    /// This process may not (`CAP_NET_RAW`, `CAP_NET_ADMIN`).
    pub fn open(mark: u32) -> io::Result<Self> {
        let open = |domain, mark: Option<u32>| {
            // With this protocol what is sent has its header with it (raw(7), ipv6(7)).
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
            mark.map_or(Ok(()), |mark| socket.set_mark(mark))?;
            socket.set_nonblocking(true)?;
            io::Result::Ok(socket)
        };
        // Some machines have no IPv6.
        let injecting = (open(Domain::IPV4, None)?, open(Domain::IPV6, None).ok());
        Ok(Self { v4: open(Domain::IPV4, Some(mark))?, v6: open(Domain::IPV6, Some(mark)).ok(), injecting })
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
            ack: connection.stable_ack,
            window: u16::try_from(WINDOW_BYTES >> shift).unwrap_or(u16::MAX),
            timestamp,
            flags: if fin { FIN } else { NONE },
            bytes,
            ..Said::nothing()
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

    /// Ends the client's stream for the socket here: the client has said so to the machine before, and does not say it again.
    ///
    /// # Errors
    /// The packet cannot be sent.
    pub fn end_input(&self, connection: &Restore<'_>) -> io::Result<()> {
        let said = Said {
            sequence: connection.receive_sequence,
            ack: connection.send_sequence,
            flags: FIN,
            // Whatever it were, the kernel would take the client's own for older ones where they are half a turn ahead (RFC 7323,
            // section 5). Linux takes a packet without one.
            timestamp: None,
            ..Said::nothing()
        };
        self.send_between(connection.ends.client, connection.ends.portal, &said)
    }

    /// Tells a client that its connection is over.
    ///
    /// # Errors
    /// The packet cannot be sent.
    pub fn reset(&self, connection: &Restore<'_>) -> io::Result<()> {
        let (front, back) = connection.unacked;
        let unacked_bytes = u32::try_from(front.len() + back.len()).unwrap_or(u32::MAX);
        let sequence = connection.send_sequence.wrapping_add(unacked_bytes);
        let ack = connection.stable_ack;
        self.send(&connection.ends, &Said { sequence, ack, flags: RST, ..Said::nothing() })
    }

    /// Answers a SYN as the machine before has answered it.
    ///
    /// # Errors
    /// The packet cannot be sent.
    pub fn answer_syn(&self, connection: &Restore<'_>) -> io::Result<()> {
        let Some(handshake) = connection.syn_ack else { return Ok(()) };
        let (offered, asked) = (&handshake.server_options, &handshake.client_options);
        let said = Said {
            sequence: handshake.server.0,
            ack: handshake.client.0.wrapping_add(1),
            flags: SYN,
            window: u16::MAX,
            options: Some(*offered),
            timestamp: repair::timestamp_at(connection),
            echo: asked.timestamp.unwrap_or(0),
            bytes: &[],
        };
        self.send(&connection.ends, &said)
    }

    /// Says once more what ended a connection.
    ///
    /// # Errors
    /// The packet cannot be sent.
    pub fn acknowledge(&self, last: &LastAck, now_ms: u64, epoch: u64) -> io::Result<()> {
        let age_ms = now_ms.saturating_sub(last.opened_at_ms);
        let timestamp = last.handshake.agreed().timestamp.map(|first| repair::ahead(first, age_ms, epoch));
        let said = Said { sequence: last.sequence, ack: last.ack, timestamp, ..Said::nothing() };
        self.send(&last.handshake.ends, &said)
    }

    /// Has this machine take a packet of a client as if it came from the network.
    ///
    /// # Errors
    /// It is none of IP, or cannot be sent.
    pub fn inject(&self, packet: &[u8]) -> io::Result<()> {
        let to = etherparse::IpSlice::from_slice(packet).map_err(io::Error::other)?.destination_addr();
        let socket = match to {
            IpAddr::V4(_) => &self.injecting.0,
            IpAddr::V6(_) => self.injecting.1.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        socket.send_to(packet, &SockAddr::from(SocketAddr::new(to, 0))).map(drop)
    }

    fn send(&self, ends: &Ends, said: &Said<'_>) -> io::Result<()> {
        self.send_between(ends.portal, ends.client, said)
    }

    fn send_between(&self, from: SocketAddr, to: SocketAddr, said: &Said<'_>) -> io::Result<()> {
        let packet = packet(from, to, said)?;
        let socket = match to.ip() {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        // A port would be taken for the protocol.
        match socket.send_to(&packet, &SockAddr::from(SocketAddr::new(to.ip(), 0))) {
            // The device has no room for it: it is lost, as any packet may be.
            Err(error) if [Some(libc::ENOBUFS), Some(libc::EAGAIN)].contains(&error.raw_os_error()) => Ok(()),
            sent => sent.map(drop),
        }
    }
}

/// Computes the checksum of TCP: a device may have been about to do so, or the kernel has made one packet of many. None: it is no TCP.
pub fn renew_checksum(packet: &mut [u8]) -> Option<()> {
    /// Of the header (RFC 9293, section 3.1).
    const CHECKSUM_AT: usize = 16;
    let (checksum, tcp_bytes) = checksum_of(packet)?;
    let at = packet.len() - tcp_bytes + CHECKSUM_AT;
    packet.get_mut(at..at + 2)?.copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

/// And how long the part is over which it is.
fn checksum_of(packet: &[u8]) -> Option<(u16, usize)> {
    let slices = etherparse::SlicedPacket::from_ip(packet).ok()?;
    let Some(etherparse::TransportSlice::Tcp(tcp)) = &slices.transport else { return None };
    let header = tcp.to_header();
    let checksum = match slices.net.as_ref()? {
        etherparse::NetSlice::Ipv4(ip) => {
            let ip = ip.header();
            header.calc_checksum_ipv4_raw(ip.source(), ip.destination(), tcp.payload()).ok()?
        }
        etherparse::NetSlice::Ipv6(ip) => {
            let ip = ip.header();
            header.calc_checksum_ipv6_raw(ip.source(), ip.destination(), tcp.payload()).ok()?
        }
        etherparse::NetSlice::Arp(_) => return None,
    };
    Some((checksum, tcp.slice().len()))
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
    tcp = tcp.options(&options(said)).map_err(io::Error::other)?;
    if !said.bytes.is_empty() {
        tcp = tcp.psh();
    }
    if said.flags.fin {
        tcp = tcp.fin();
    }
    if said.flags.syn {
        tcp = tcp.syn();
    }
    if said.flags.rst {
        tcp = tcp.rst();
    }
    let mut packet = Vec::with_capacity(tcp.size(said.bytes.len()));
    tcp.write(&mut packet, said.bytes).map_err(io::Error::other)?;
    Ok(packet)
}

/// They fill whole words.
fn options(said: &Said<'_>) -> Vec<TcpOptionElement> {
    use TcpOptionElement::{
        MaximumSegmentSize, Noop, SelectiveAcknowledgementPermitted, Timestamp, WindowScale,
    };
    let mut options = Vec::new();
    if let Some(offered) = &said.options {
        options.extend(offered.segment_bytes_max.map(MaximumSegmentSize));
        if offered.selective_acks {
            options.extend([Noop, Noop, SelectiveAcknowledgementPermitted]);
        }
        if let Some(shift) = offered.window_shift {
            options.extend([Noop, WindowScale(shift)]);
        }
    }
    if let Some(timestamp) = said.timestamp {
        options.extend(repeat_n(Noop, 2).chain([Timestamp(timestamp, said.echo)]));
    }
    options
}
