//! What both ends of a connection said when it began: a successor cannot ask a machine that is dead.

use super::segment::{Ends, Segment, SynOptions};
use super::sequence::InitialSequence;

/// SYN and SYN-ACK of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The two ends.
    pub ends: Ends,
    /// Where the client's stream begins.
    pub client: InitialSequence,
    /// Where the answers begin.
    pub server: InitialSequence,
    /// What the client has offered.
    pub client_options: SynOptions,
    /// What the portal's kernel has answered.
    pub server_options: SynOptions,
}

/// What holds for a connection: what both ends have offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The client takes segments of so many bytes.
    pub segment_bytes_max: u16,
    /// Shifts of the client's and of the portal's windows (RFC 7323, section 2.2: both, or neither).
    pub window_shifts: Option<(u8, u8)>,
    /// Selective acknowledgements (RFC 2018).
    pub selective_acks: bool,
    /// The portal's first timestamp, where both send them (RFC 7323, section 3.2).
    pub timestamp: Option<u32>,
}

/// Where a client says nothing of segments (RFC 9293, section 3.7.1).
const SEGMENT_BYTES_V4: u16 = 536;
const SEGMENT_BYTES_V6: u16 = 1_220;

impl Handshake {
    /// From the two packets, if the second answers the first.
    #[must_use]
    pub fn new(syn: &Segment, syn_ack: &Segment) -> Option<Self> {
        let answers = syn.flags.syn
            && !syn.flags.ack
            && syn_ack.flags.syn
            && syn_ack.flags.ack
            && syn_ack.ack == syn.sequence.wrapping_add(1)
            && syn.ends == syn_ack.ends;
        answers.then_some(Self {
            ends: syn.ends,
            client: InitialSequence(syn.sequence),
            server: InitialSequence(syn_ack.sequence),
            client_options: syn.options,
            server_options: syn_ack.options,
        })
    }

    /// What holds for the connection.
    #[must_use]
    pub fn agreed(&self) -> Agreed {
        let (client, server) = (&self.client_options, &self.server_options);
        let default = if self.ends.client.is_ipv4() { SEGMENT_BYTES_V4 } else { SEGMENT_BYTES_V6 };
        Agreed {
            segment_bytes_max: client.segment_bytes_max.unwrap_or(default),
            window_shifts: client.window_shift.zip(server.window_shift),
            selective_acks: client.selective_acks && server.selective_acks,
            timestamp: server.timestamp.filter(|_| client.timestamp.is_some()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::*;
    use crate::connection::segment::Flags;

    fn syn(sequence: u32, ack: Option<u32>, options: SynOptions) -> Segment {
        let ends =
            Ends { portal: "[fd00::1]:80".parse().unwrap(), client: "[fd00::9]:40000".parse().unwrap() };
        let flags = Flags { syn: true, ack: ack.is_some(), ..Flags::default() };
        Segment { ends, sequence, ack: ack.unwrap_or(0), flags, window: 0, payload_bytes: 0, options }
    }

    const ALL: SynOptions = SynOptions {
        segment_bytes_max: Some(1_400),
        window_shift: Some(7),
        selective_acks: true,
        timestamp: Some(900),
    };

    #[test]
    fn what_only_one_end_offers_does_not_hold() {
        let none = SynOptions::default();
        let all = Handshake::new(&syn(u32::MAX, None, ALL), &syn(5, Some(0), ALL)).unwrap().agreed();
        let expected = Agreed {
            segment_bytes_max: 1_400,
            window_shifts: Some((7, 7)),
            selective_acks: true,
            timestamp: Some(900),
        };
        assert_eq!(all, expected);
        for (client, server, segment_bytes_max) in [(ALL, none, 1_400), (none, ALL, SEGMENT_BYTES_V6)] {
            let one = Handshake::new(&syn(9, None, client), &syn(5, Some(10), server)).unwrap().agreed();
            let expected =
                Agreed { segment_bytes_max, window_shifts: None, selective_acks: false, timestamp: None };
            assert_eq!(one, expected);
        }
    }

    #[test]
    fn only_an_answer_to_the_syn_makes_a_connection() {
        let (first, answer) = (syn(9, None, ALL), syn(5, Some(10), ALL));
        assert!(Handshake::new(&first, &answer).is_some());
        assert_eq!(Handshake::new(&first, &syn(5, Some(11), ALL)), None);
        assert_eq!(Handshake::new(&first, &first), None);
        assert_eq!(Handshake::new(&answer, &answer), None);
    }
}
