//! What a packet of TCP says: the parts that decide whether it may pass.

use core::net::SocketAddr;
use etherparse::{IpNumber, LaxIpSlice, LenSource, TcpHeaderSlice};

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    /// The address that clients connect to.
    pub portal: SocketAddr,
    /// The client.
    pub client: SocketAddr,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the portal.
    In,
    /// From the portal to the client.
    Out,
}

/// Flags of TCP (RFC 9293, section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "bits of the header, each with a meaning of its own")]
pub struct Flags {
    /// Begins a stream.
    pub syn: bool,
    /// The acknowledgement number counts.
    pub ack: bool,
    /// Ends a stream.
    pub fin: bool,
    /// Ends the connection at once.
    pub rst: bool,
}

/// What one end offers when the connection begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynOptions {
    /// The largest segment that it takes, in bytes (RFC 9293, section 3.7.1).
    pub segment_bytes_max: Option<u16>,
    /// Its windows are shifted by so many bits (RFC 7323, section 2).
    pub window_shift: Option<u8>,
    /// It understands selective acknowledgements (RFC 2018).
    pub selective_acks: bool,
    /// It sends timestamps, and this is the first (RFC 7323, section 3).
    pub timestamp: Option<u32>,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Of which connection.
    pub ends: Ends,
    /// The number of its first byte, or of its SYN.
    pub sequence: u32,
    /// The number of the byte that it expects next.
    pub ack: u32,
    /// Its flags.
    pub flags: Flags,
    /// Window, not shifted yet.
    pub window: u16,
    /// Bytes of the stream that it carries.
    pub payload_bytes: u32,
    /// Only in a SYN.
    pub options: SynOptions,
}

/// Why a packet is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Its header is not one of IPv4 or IPv6.
    Ip,
    /// It is not of TCP, or something stands before TCP's header that the portal does not know.
    NotTcp,
    /// It is a part of a larger packet.
    Fragment,
    /// Its header of TCP is cut off, or wrong.
    Tcp,
    /// Its headers are longer than all of it, or do not say how long it is.
    Length,
    /// An option of its SYN is cut off.
    Option,
}

impl Segment {
    /// Reads the headers of a packet. Its payload may be cut off.
    ///
    /// # Errors
    /// The packet is none that the portal understands.
    pub fn parse(packet: &[u8], direction: Direction) -> Result<Self, Malformed> {
        let (ip, stopped) = LaxIpSlice::from_slice(packet).map_err(|_| Malformed::Ip)?;
        let (tcp, packet_bytes) = (ip.payload(), packet_bytes(&ip));
        if stopped.is_some() || tcp.ip_number != IpNumber::TCP {
            return Err(Malformed::NotTcp);
        }
        if tcp.fragmented {
            return Err(Malformed::Fragment);
        }
        let header = TcpHeaderSlice::from_slice(tcp.payload).map_err(|_| Malformed::Tcp)?;
        let cut_off_bytes = packet_bytes.saturating_sub(packet.len());
        if tcp.len_source == LenSource::Slice && cut_off_bytes == 0 {
            // The header does not say how long the packet is, as it is longer than a header can say.
            return Err(Malformed::Length);
        }
        let tcp_bytes = tcp.payload.len() + cut_off_bytes;
        let payload_bytes = tcp_bytes.checked_sub(header.slice().len()).ok_or(Malformed::Length)?;
        let from = SocketAddr::new(ip.source_addr(), header.source_port());
        let to = SocketAddr::new(ip.destination_addr(), header.destination_port());
        let flags = Flags { syn: header.syn(), ack: header.ack(), fin: header.fin(), rst: header.rst() };
        Ok(Self {
            ends: match direction {
                Direction::In => Ends { portal: to, client: from },
                Direction::Out => Ends { portal: from, client: to },
            },
            sequence: header.sequence_number(),
            ack: header.acknowledgment_number(),
            flags,
            window: header.window_size(),
            payload_bytes: u32::try_from(payload_bytes).map_err(|_| Malformed::Length)?,
            options: if flags.syn { SynOptions::parse(header.options())? } else { SynOptions::default() },
        })
    }
}

/// What the header says of the whole packet.
fn packet_bytes(ip: &LaxIpSlice<'_>) -> usize {
    match ip {
        LaxIpSlice::Ipv4(packet) => usize::from(packet.header().total_len()),
        LaxIpSlice::Ipv6(packet) => {
            packet.header().slice().len() + usize::from(packet.header().payload_length())
        }
    }
}

impl SynOptions {
    /// Those that matter; others are passed over, as RFC 9293, section 3.1, asks for (the iterator of `etherparse` ends there).
    fn parse(mut bytes: &[u8]) -> Result<Self, Malformed> {
        let mut options = Self::default();
        loop {
            let length = match bytes {
                // None follow.
                [] | [0, ..] => return Ok(options),
                // A filler.
                [1, ..] => 1,
                [_, length, ..] => usize::from((*length).max(2)),
                [_] => return Err(Malformed::Option),
            };
            let (option, rest) = bytes.split_at_checked(length).ok_or(Malformed::Option)?;
            match option {
                [2, 4, high, low] => options.segment_bytes_max = Some(u16::from_be_bytes([*high, *low])),
                // RFC 7323, section 2.3: larger ones count as 14.
                [3, 3, shift] => options.window_shift = Some((*shift).min(14)),
                [4, 2] => options.selective_acks = true,
                [8, 10, a, b, c, d, ..] => options.timestamp = Some(u32::from_be_bytes([*a, *b, *c, *d])),
                _ => {}
            }
            bytes = rest;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use etherparse::{PacketBuilder, TcpOptionElement};

    const SERVER: ([u8; 4], [u8; 16]) = ([10, 0, 0, 1], [0xfd; 16]);
    const CLIENT: ([u8; 4], [u8; 16]) = ([10, 0, 0, 9], [0xfe; 16]);
    const SYN: Flags = Flags { syn: true, ack: false, fin: false, rst: false };

    fn packets(flags: Flags, options: &[TcpOptionElement], payload: &[u8]) -> [Vec<u8>; 2] {
        [PacketBuilder::ipv4(CLIENT.0, SERVER.0, 64), PacketBuilder::ipv6(CLIENT.1, SERVER.1, 64)].map(|ip| {
            let mut tcp = ip.tcp(40_000, 80, 7, 512).options(options).unwrap();
            if flags.syn {
                tcp = tcp.syn();
            }
            if flags.fin {
                tcp = tcp.fin();
            }
            if flags.rst {
                tcp = tcp.rst();
            }
            if flags.ack {
                tcp = tcp.ack(99);
            }
            let mut packet = Vec::new();
            tcp.write_to_vec(&mut packet, payload).unwrap();
            packet
        })
    }

    #[test]
    fn headers_are_read_also_where_the_payload_is_cut_off() {
        let flags = Flags { ack: true, fin: true, ..Flags::default() };
        for packet in packets(flags, &[TcpOptionElement::Timestamp(1, 2)], &[0; 700]) {
            for bytes in [packet.len(), 128] {
                let segment = Segment::parse(&packet[..bytes], Direction::In).unwrap();
                assert_eq!((segment.sequence, segment.ack, segment.window), (7, 99, 512));
                assert_eq!((segment.flags, segment.payload_bytes), (flags, 700));
                assert_eq!((segment.ends.portal.port(), segment.ends.client.port()), (80, 40_000));
                let back = Segment::parse(&packet[..bytes], Direction::Out).unwrap();
                assert_eq!((back.ends.portal, back.ends.client), (segment.ends.client, segment.ends.portal));
            }
        }
    }

    #[test]
    fn what_a_syn_offers_is_read_and_unknown_options_are_passed_over() {
        let options = [
            TcpOptionElement::MaximumSegmentSize(1_400),
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::Timestamp(77, 0),
            TcpOptionElement::Noop,
            TcpOptionElement::WindowScale(15),
        ];
        let all = SynOptions {
            segment_bytes_max: Some(1_400),
            window_shift: Some(14),
            selective_acks: true,
            timestamp: Some(77),
        };
        for packet in packets(SYN, &options, &[]) {
            assert_eq!(Segment::parse(&packet, Direction::In).unwrap().options, all);
        }
        // An unknown one first, then one that is known, then an end with rubbish behind it.
        let bytes = [34, 4, 1, 2, 2, 4, 5, 120, 0, 9, 9];
        let options = SynOptions::parse(&bytes).unwrap();
        assert_eq!(options, SynOptions { segment_bytes_max: Some(1_400), ..SynOptions::default() });
        for cut in [&[2][..], &[2, 4, 5], &[34, 0], &[99, 200, 1]] {
            let parsed = SynOptions::parse(cut);
            assert!(parsed.is_err() || parsed == Ok(SynOptions::default()), "{cut:?}: {parsed:?}");
        }
    }

    #[test]
    fn no_packet_of_any_length_is_taken_for_more_than_it_is() {
        for packet in packets(SYN, &[TcpOptionElement::MaximumSegmentSize(1_400)], &[1, 2, 3]) {
            let headers_bytes = packet.len() - 3;
            for bytes in 0..packet.len() {
                let parsed = Segment::parse(&packet[..bytes], Direction::In);
                assert_eq!(parsed.is_ok(), bytes >= headers_bytes, "{bytes}: {parsed:?}");
            }
        }
    }

    /// What fuzzing begins with.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let ack = Flags { ack: true, ..Flags::default() };
        let options = [
            TcpOptionElement::MaximumSegmentSize(1_400),
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::Timestamp(77, 0),
            TcpOptionElement::WindowScale(7),
        ];
        let [syn_v4, syn_v6] = packets(SYN, &options, &[]);
        let [data_v4, data_v6] = packets(ack, &[], b"some bytes");
        vec![("syn_ipv4", syn_v4), ("syn_ipv6", syn_v6), ("data_ipv4", data_v4), ("data_ipv6", data_v6)]
    }

    #[test]
    fn the_corpus_has_all_seeds_and_changes_to_them_mislead_nobody() {
        extern crate std;
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/packet");
        for (name, packet) in seeds() {
            let path = folder.join(name);
            if std::env::var_os("OUTLAST_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &packet).unwrap();
            }
            assert_eq!(std::fs::read(&path).unwrap(), packet, "run with OUTLAST_WRITE_CORPUS=1");
        }
        for entry in std::fs::read_dir(&folder).unwrap() {
            let packet = std::fs::read(entry.unwrap().path()).unwrap();
            crate::connection::fuzzing::packet(&packet);
            for at in 0..packet.len() {
                for value in 0..=255 {
                    let mut changed = packet.clone();
                    changed[at] = value;
                    crate::connection::fuzzing::packet(&changed);
                }
            }
        }
    }
}
