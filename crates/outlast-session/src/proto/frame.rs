//! Frames of the `inband` mode: payload and control between sixteen-byte headers (PROTOCOL 4).

use super::wire::{OFFSET_MAX, printable, truncated};
use alloc::string::String;
use alloc::vec::Vec;

/// Length of every frame header.
pub const FRAME_HEADER_BYTES: usize = 16;
/// Longest payload of a data frame that is accepted.
pub const FRAME_DATA_BYTES_MAX: usize = 1 << 20;
/// Longest body of a control frame.
pub const FRAME_CONTROL_BYTES_MAX: usize = 256;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Bytes of the stream.
    Data = 1,
    /// Nothing but the acknowledgement in the header.
    Ack = 2,
    /// The sender's stream ended.
    End = 3,
    /// The end of the receiver's stream has arrived.
    EndAck = 4,
    /// A question for a [`FrameKind::Pong`].
    Ping = 5,
    /// The answer.
    Pong = 6,
    /// The session is over, with a reason.
    Reset = 7,
    /// The sender is about to give up this link on purpose.
    Goodbye = 8,
    /// A byte of the sender's stream is urgent.
    Urgent = 9,
}

impl FrameKind {
    fn from_u8(value: u8) -> Option<Self> {
        use FrameKind::{Ack, Data, End, EndAck, Goodbye, Ping, Pong, Reset, Urgent};
        let kinds = [Data, Ack, End, EndAck, Ping, Pong, Reset, Goodbye, Urgent];
        kinds.into_iter().find(|kind| *kind as u8 == value)
    }
}

/// Why something is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte names no kind.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// Bits that must be zero are not.
    #[error("reserved bits of a frame header are set")]
    Reserved,
    /// The length does not fit the kind.
    #[error("a frame of kind {kind:?} cannot have {length_bytes} bytes")]
    Length {
        /// The kind.
        kind: FrameKind,
        /// What its header says.
        length_bytes: usize,
    },
    /// A position that no stream reaches.
    #[error("frame with the impossible offset {0}")]
    Offset(u64),
    /// More of a stream that has ended.
    #[error("{bytes} bytes behind the end of the stream")]
    BehindEnd {
        /// How many.
        bytes: u64,
    },
}

/// A decoded header: kind u8, three zero bytes, length u32, acknowledged offset u64, all big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    kind: FrameKind,
    length_bytes: u32,
    ack_offset: u64,
}

impl FrameHeader {
    /// The header of a data frame; at most [`FRAME_DATA_BYTES_MAX`] bytes may follow it.
    pub fn data(length_bytes: usize, ack_offset: u64) -> Self {
        debug_assert!(length_bytes <= FRAME_DATA_BYTES_MAX);
        let length_bytes = u32::try_from(length_bytes).unwrap_or(u32::MAX);
        Self { kind: FrameKind::Data, length_bytes, ack_offset }
    }

    /// What the frame is for.
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Bytes that follow the header.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes as usize
    }

    /// The sender of the frame has taken in everything before this.
    pub fn ack_offset(&self) -> u64 {
        self.ack_offset
    }

    /// As it goes over the wire.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let (front, ack) = bytes.split_at_mut(8);
        if let [kind, _, _, _, length @ ..] = front {
            *kind = self.kind as u8;
            length.copy_from_slice(&self.length_bytes.to_be_bytes());
        }
        ack.copy_from_slice(&self.ack_offset.to_be_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError`]: the stream is not framed, or the peer is out of step.
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, FrameError> {
        let [kind, zero @ .., l0, l1, l2, l3, a0, a1, a2, a3, a4, a5, a6, a7] = *bytes;
        // PROTOCOL 4.3: what is not understood ends the link, not the session.
        let kind = FrameKind::from_u8(kind).ok_or(FrameError::Kind(kind))?;
        if zero != [0; 3] {
            return Err(FrameError::Reserved);
        }
        let length_bytes = u32::from_be_bytes([l0, l1, l2, l3]);
        let ack_offset = checked_offset(u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]))?;
        let header = Self { kind, length_bytes, ack_offset };
        let fits = match kind {
            FrameKind::Data => (1..=FRAME_DATA_BYTES_MAX).contains(&header.length_bytes()),
            FrameKind::Ack | FrameKind::EndAck | FrameKind::Goodbye => length_bytes == 0,
            FrameKind::End | FrameKind::Ping | FrameKind::Pong | FrameKind::Urgent => length_bytes == 8,
            FrameKind::Reset => header.length_bytes() <= FRAME_CONTROL_BYTES_MAX,
        };
        if fits { Ok(header) } else { Err(FrameError::Length { kind, length_bytes: header.length_bytes() }) }
    }
}

/// A control frame to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Acknowledges.
    Ack,
    /// Our stream ended here.
    End {
        /// Its length.
        end_offset: u64,
    },
    /// The peer's end has arrived.
    EndAck,
    /// Asks for a [`Frame::Pong`].
    Ping {
        /// Comes back in the answer.
        token: u64,
    },
    /// Answers.
    Pong {
        /// From the question.
        token: u64,
    },
    /// Ends the session.
    Reset {
        /// Why, for people.
        reason: &'a str,
    },
    /// The sender, a server, is through with the session: it has everything, and knows that its own end has arrived.
    Goodbye,
    /// A byte of our stream is urgent; it is still to come.
    Urgent {
        /// Its position.
        offset: u64,
    },
}

impl<'a> Frame<'a> {
    /// A reset whose reason fits into a frame.
    pub fn reset(reason: &'a str) -> Self {
        Frame::Reset { reason: truncated(reason, FRAME_CONTROL_BYTES_MAX) }
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, ack_offset: u64, out: &mut Vec<u8>) {
        let number;
        let (kind, body): (FrameKind, &[u8]) = match self {
            Frame::Ack => (FrameKind::Ack, &[]),
            Frame::EndAck => (FrameKind::EndAck, &[]),
            Frame::Goodbye => (FrameKind::Goodbye, &[]),
            Frame::End { end_offset: value } => {
                number = value.to_be_bytes();
                (FrameKind::End, &number)
            }
            Frame::Ping { token: value } => {
                number = value.to_be_bytes();
                (FrameKind::Ping, &number)
            }
            Frame::Pong { token: value } => {
                number = value.to_be_bytes();
                (FrameKind::Pong, &number)
            }
            Frame::Urgent { offset: value } => {
                number = value.to_be_bytes();
                (FrameKind::Urgent, &number)
            }
            Frame::Reset { reason } => (FrameKind::Reset, reason.as_bytes()),
        };
        let header = FrameHeader { ack_offset, ..FrameHeader::data(body.len(), 0) };
        out.extend_from_slice(&FrameHeader { kind, ..header }.encode());
        out.extend_from_slice(body);
    }
}

/// What a control frame said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Only how far the peer has come; it is in the header.
    Acked,
    /// The peer's stream ended.
    End {
        /// Its length.
        end_offset: u64,
    },
    /// The peer has the end of our stream.
    EndAcked,
    /// To be answered.
    Ping {
        /// To be sent back.
        token: u64,
    },
    /// An answer.
    Pong {
        /// From the question.
        token: u64,
    },
    /// The session is over.
    Reset {
        /// Why, for people; control characters are replaced.
        reason: String,
    },
    /// The server is through with the session: it has everything, and knows that its own end has arrived.
    Goodbye,
    /// A byte of the peer's stream is urgent.
    Urgent {
        /// Its position.
        offset: u64,
    },
}

impl Control {
    /// Reads the body of a control frame.
    ///
    /// # Errors
    /// [`FrameError`] if body and header do not belong together, or the body has an impossible value.
    pub fn decode(header: &FrameHeader, body: &[u8]) -> Result<Self, FrameError> {
        let wrong = FrameError::Length { kind: header.kind, length_bytes: body.len() };
        let number = || body.try_into().map(u64::from_be_bytes).map_err(|_| wrong);
        if body.len() != header.length_bytes() {
            return Err(wrong);
        }
        Ok(match header.kind {
            FrameKind::Data => return Err(wrong),
            FrameKind::Ack => Control::Acked,
            FrameKind::EndAck => Control::EndAcked,
            FrameKind::Goodbye => Control::Goodbye,
            FrameKind::End => Control::End { end_offset: checked_offset(number()?)? },
            FrameKind::Urgent => Control::Urgent { offset: checked_offset(number()?)? },
            FrameKind::Ping => Control::Ping { token: number()? },
            FrameKind::Pong => Control::Pong { token: number()? },
            FrameKind::Reset => Control::Reset { reason: printable(body) },
        })
    }
}

fn checked_offset(offset: u64) -> Result<u64, FrameError> {
    if offset < OFFSET_MAX { Ok(offset) } else { Err(FrameError::Offset(offset)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(frame: Frame<'_>) -> Control {
        let mut bytes = Vec::new();
        frame.encode(77, &mut bytes);
        let header = FrameHeader::decode(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(header.ack_offset(), 77);
        assert_eq!(header.length_bytes(), bytes.len() - FRAME_HEADER_BYTES);
        Control::decode(&header, &bytes[FRAME_HEADER_BYTES..]).unwrap()
    }

    #[test]
    fn control_frames_come_back_as_they_went() {
        assert_eq!(round_trip(Frame::Ack), Control::Acked);
        assert_eq!(round_trip(Frame::EndAck), Control::EndAcked);
        assert_eq!(round_trip(Frame::Goodbye), Control::Goodbye);
        assert_eq!(round_trip(Frame::End { end_offset: 1 << 62 }), Control::End { end_offset: 1 << 62 });
        assert_eq!(round_trip(Frame::Urgent { offset: 7 }), Control::Urgent { offset: 7 });
        assert_eq!(round_trip(Frame::Ping { token: 9 }), Control::Ping { token: 9 });
        assert_eq!(round_trip(Frame::Pong { token: 9 }), Control::Pong { token: 9 });
        assert_eq!(round_trip(Frame::reset("a\nb")), Control::Reset { reason: "a?b".into() });
        let long = "ü".repeat(300);
        let Control::Reset { reason } = round_trip(Frame::reset(&long)) else { panic!("no reset") };
        assert_eq!(reason.len(), FRAME_CONTROL_BYTES_MAX);
    }

    #[test]
    fn headers_out_of_range_are_refused() {
        let good = FrameHeader::data(5, 6).encode();
        assert_eq!(FrameHeader::decode(&good).unwrap(), FrameHeader::data(5, 6));
        for (index, value) in [(0, 0), (0, 10), (0, 255), (1, 1), (3, 1), (4, 255), (8, 128), (0, 2), (0, 3)]
        {
            let mut bad = good;
            bad[index] = value;
            assert!(FrameHeader::decode(&bad).is_err(), "byte {index} = {value}");
        }
        assert!(FrameHeader::decode(&FrameHeader::data(0, 6).encode()).is_err(), "an empty data frame");
    }

    #[test]
    fn bodies_that_do_not_fit_their_header_are_refused() {
        let header = |kind: u8, length: u8| {
            let mut bytes = FrameHeader::data(usize::from(length), 0).encode();
            bytes[0] = kind;
            FrameHeader::decode(&bytes).unwrap()
        };
        assert!(Control::decode(&header(FrameKind::Reset as u8, 3), b"no").is_err());
        assert!(Control::decode(&header(FrameKind::Ping as u8, 8), &[0; 9]).is_err());
        assert!(Control::decode(&header(FrameKind::Data as u8, 2), &[0; 2]).is_err());
        let end = Control::decode(&header(FrameKind::End as u8, 8), &[0xFF; 8]);
        assert_eq!(end, Err(FrameError::Offset(u64::MAX)));
    }

    #[test]
    fn random_headers_decode_to_what_encodes_to_the_same_bytes() {
        let mut random = outlast_stream::SplitMix64::new(11);
        for _ in 0..100_000 {
            let mut bytes = [0; FRAME_HEADER_BYTES];
            random.fill(&mut bytes);
            bytes[0] &= 0x0F;
            if !random.one_in(8) {
                bytes[1..6].fill(0);
                bytes[8] &= 0x7F;
            }
            if let Ok(header) = FrameHeader::decode(&bytes) {
                assert_eq!(header.encode(), bytes);
            }
        }
    }
}
