//! The receiving half of a session: how far the stream has come, where it ends, what the frames mean.

#[cfg(any(feature = "io", feature = "fuzzing", test))]
use super::detached::Receiving;
use super::frame::{Control, FRAME_HEADER_BYTES, FrameError, FrameHeader, FrameKind};
use super::wire::LinkMode;

/// What the front of the received bytes is, in `inband` mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Not enough to tell.
    Incomplete,
    /// So many bytes of the stream come next, of which the first may already be there.
    Payload {
        /// Framing to skip before them.
        skip_bytes: usize,
    },
    /// A control frame of `bytes` in all.
    Control {
        /// Its length, header included.
        bytes: usize,
        /// What it says.
        control: Control,
    },
}

/// The receiving half.
#[derive(Debug, Default)]
pub struct Receiver {
    next_offset: u64,
    end_offset: Option<u64>,
    framed: bool,
    /// Payload still to come of the present frame.
    payload_left_bytes: usize,
    /// The highest acknowledgement seen on any frame.
    peer_acked_offset: u64,
}

impl Receiver {
    /// As it was when its process stopped.
    #[cfg(any(feature = "io", feature = "fuzzing", test))]
    pub(crate) fn restored(rest: &Receiving) -> Self {
        Self { next_offset: rest.next_offset, end_offset: rest.end_offset, ..Self::default() }
    }

    /// Everything before this has been taken in.
    pub fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Where the peer's stream ends, once known.
    pub fn end_offset(&self) -> Option<u64> {
        self.end_offset
    }

    /// Whether everything has been taken in, the end included.
    pub fn is_complete(&self) -> bool {
        self.end_offset == Some(self.next_offset)
    }

    /// What the peer has taken in of our stream, by its frames.
    pub fn peer_acked_offset(&self) -> u64 {
        self.peer_acked_offset
    }

    /// A link begins; a frame that the last one cut short is forgotten, the peer sends the rest again.
    pub fn link(&mut self, mode: LinkMode) {
        self.framed = mode == LinkMode::Inband;
        self.payload_left_bytes = 0;
    }

    /// Whether payload has to be found between frame headers.
    pub fn is_framed(&self) -> bool {
        self.framed
    }

    /// Payload that comes before the next header.
    pub fn payload_left_bytes(&self) -> usize {
        self.payload_left_bytes
    }

    /// Looks at the front of what was received. A header is taken note of: after [`Piece::Payload`] call
    /// [`took`](Self::took) with what was read of it.
    ///
    /// # Errors
    /// [`FrameError`] if this is no frame, or contradicts what is known: the link cannot be used any more.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Piece, FrameError> {
        if self.payload_left_bytes > 0 {
            return Ok(Piece::Payload { skip_bytes: 0 });
        }
        let Some(header) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(Piece::Incomplete);
        };
        let header = FrameHeader::decode(header)?;
        let length_bytes = header.length_bytes();
        if header.kind() == FrameKind::Data {
            // PROTOCOL 4.6
            let after_offset = self.next_offset.saturating_add(length_bytes as u64);
            if let Some(end_offset) = self.end_offset.filter(|end_offset| after_offset > *end_offset) {
                return Err(FrameError::BehindEnd { bytes: after_offset - end_offset });
            }
            self.peer_acked_offset = self.peer_acked_offset.max(header.ack_offset());
            self.payload_left_bytes = length_bytes;
            return Ok(Piece::Payload { skip_bytes: FRAME_HEADER_BYTES });
        }
        let Some(body) = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length_bytes) else {
            return Ok(Piece::Incomplete);
        };
        let control = Control::decode(&header, body)?;
        self.peer_acked_offset = self.peer_acked_offset.max(header.ack_offset());
        Ok(Piece::Control { bytes: FRAME_HEADER_BYTES + length_bytes, control })
    }

    /// So many payload bytes were taken in.
    #[inline]
    pub fn took(&mut self, bytes: usize) {
        self.next_offset += bytes as u64;
        self.payload_left_bytes = self.payload_left_bytes.saturating_sub(bytes);
    }

    /// The peer says that its stream ends at `offset`. False if that cannot be.
    pub fn ends_at(&mut self, offset: u64) -> bool {
        let possible = offset >= self.next_offset && self.end_offset.is_none_or(|known| known == offset);
        if possible {
            self.end_offset = Some(offset);
        }
        possible
    }
}
