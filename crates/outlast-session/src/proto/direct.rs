//! Proof that nothing between the two ends terminates TCP.
//!
//! Linux adds a random offset, different for every connection, to the clock it puts into the TCP timestamp option
//! (RFC 7323), and lets a process read the sum for its own connection (`TCP_TIMESTAMP`). The client reads it just
//! after connecting and says it in its Hello; the server compares it with the value in the SYN that it received,
//! which its kernel kept for it (`TCP_SAVE_SYN`, `TCP_SAVED_SYN`). End to end, network address translation
//! included, the two lie as far apart as the two moments. Behind anything that answers the client's SYN itself they
//! are unrelated numbers. `PROTOCOL.md`, section 7.

use core::fmt;

/// How long after its SYN a client may read its clock: a connection that takes longer counts as not proven.
///
/// With the allowance for a clock that reads a moment early, an unrelated number falls
/// into the window with a probability of 1002 / 2^32, less than 2^-22. With a wrong mode a later resume would then
/// notice the missing bytes, loudly.
pub const DIRECT_ELAPSED_MS_MAX: u32 = 1000;

/// The client's clock may be behind the SYN's by a rounding.
const EARLY_MS_MAX: u32 = 1;

const PROTOCOL_TCP: u8 = 6;
const TCP_HEADER_BYTES: usize = 20;

/// What of a SYN the proof needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedSyn {
    /// The port the SYN came from, as the server sees it.
    pub source_port: u16,
    /// TSval of the timestamp option; `None` if the SYN had none.
    pub tsval: Option<u32>,
    /// It came from this machine: from loopback, or from the address that it went to.
    pub is_local: bool,
}

/// Bytes that are no SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SynError {
    /// Cut short.
    #[error("saved syn is cut short")]
    Truncated,
    /// Neither IPv4 nor IPv6.
    #[error("saved syn is neither ipv4 nor ipv6")]
    IpVersion,
    /// A header that contradicts itself.
    #[error("saved syn has a garbled header")]
    Garbled,
    /// Something other than TCP, a fragment, or an IPv6 extension header that cannot be skipped.
    #[error("saved syn has no plain tcp header")]
    NotTcp,
    /// TCP, but not a SYN.
    #[error("saved packet is not a syn")]
    NotSyn,
}

impl SavedSyn {
    /// Reads what `TCP_SAVED_SYN` gives: the IP header, the TCP header, and whatever follows.
    ///
    /// # Errors
    /// [`SynError`] for anything else. The bytes come from the network and are trusted in nothing.
    pub fn parse(bytes: &[u8]) -> Result<Self, SynError> {
        let (tcp, is_local) = match bytes.first().map(|byte| byte >> 4) {
            None => return Err(SynError::Truncated),
            Some(4) => {
                (after_ipv4(bytes)?, bytes.get(12..16) == bytes.get(16..20) || bytes.get(12) == Some(&127))
            }
            Some(6) => (after_ipv6(bytes)?, bytes.get(8..24) == bytes.get(24..40)),
            Some(_) => return Err(SynError::IpVersion),
        };
        let header = tcp.first_chunk::<TCP_HEADER_BYTES>().ok_or(SynError::Truncated)?;
        let &[port_high, port_low, _, _, _, _, _, _, _, _, _, _, offset, flags, ..] = header;
        // RFC 9293, 3.1: SYN set; ACK, RST and FIN not.
        if flags & 0b1_0111 != 0b0_0010 {
            return Err(SynError::NotSyn);
        }
        let header_bytes = usize::from(offset >> 4) * 4;
        if header_bytes < TCP_HEADER_BYTES {
            return Err(SynError::Garbled);
        }
        let options = tcp.get(TCP_HEADER_BYTES..header_bytes).ok_or(SynError::Truncated)?;
        let source_port = u16::from_be_bytes([port_high, port_low]);
        Ok(Self { source_port, tsval: timestamp(options)?, is_local })
    }
}

/// RFC 791: skips the header with its options.
fn after_ipv4(bytes: &[u8]) -> Result<&[u8], SynError> {
    let &[first, _, _, _, _, _, fragment_high, fragment_low, _, protocol, ..] =
        bytes.first_chunk::<20>().ok_or(SynError::Truncated)?;
    let header_bytes = usize::from(first & 0x0F) * 4;
    if header_bytes < 20 {
        return Err(SynError::Garbled);
    }
    let fragment_offset = u16::from_be_bytes([fragment_high, fragment_low]) & 0x1FFF;
    if protocol != PROTOCOL_TCP || fragment_offset != 0 {
        return Err(SynError::NotTcp);
    }
    bytes.get(header_bytes..).ok_or(SynError::Truncated)
}

/// RFC 8200: skips the header and the extension headers that have the common layout.
fn after_ipv6(bytes: &[u8]) -> Result<&[u8], SynError> {
    let (header, mut rest) = bytes.split_first_chunk::<40>().ok_or(SynError::Truncated)?;
    let mut next = header[6];
    // Every round takes at least eight bytes away, so that this ends.
    while next != PROTOCOL_TCP {
        // Hop-by-hop options, routing, destination options. A fragment (44) holds no whole SYN.
        if !matches!(next, 0 | 43 | 60) {
            return Err(SynError::NotTcp);
        }
        let &[following, units] = rest.first_chunk().ok_or(SynError::Truncated)?;
        rest = rest.get(8 + usize::from(units) * 8..).ok_or(SynError::Truncated)?;
        next = following;
    }
    Ok(rest)
}

/// RFC 9293, 3.1 and RFC 7323, 3.2: option kind 8, length 10, TSval, TSecr.
fn timestamp(mut options: &[u8]) -> Result<Option<u32>, SynError> {
    loop {
        match options {
            [] | [0, ..] => return Ok(None),
            [1, rest @ ..] => options = rest,
            [8, 10, a, b, c, d, _, _, _, _, ..] => return Ok(Some(u32::from_be_bytes([*a, *b, *c, *d]))),
            [_, length, ..] if *length >= 2 => {
                options = options.get(usize::from(*length)..).ok_or(SynError::Garbled)?;
            }
            _ => return Err(SynError::Garbled),
        }
    }
}

/// Why a path does not count as direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotDirect {
    /// The client sent no proof, for example because its system has no random timestamps.
    NoProof,
    /// The SYN has no timestamp option, or was not kept.
    NoTimestamp,
    /// The two numbers are unrelated, or too much time lies between them.
    Unrelated {
        /// The client's number minus the SYN's, modulo 2^32.
        difference_ms: u32,
    },
    /// The ports differ where equal ones are asked for.
    OtherPort,
}

impl fmt::Display for NotDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProof => f.write_str("the client offers no proof"),
            Self::NoTimestamp => f.write_str("the connection has no tcp timestamps"),
            Self::Unrelated { difference_ms } => write!(
                f,
                "the client's tcp timestamp is not that of its syn ({difference_ms} apart): \
                 something in between terminates tcp"
            ),
            Self::OtherPort => f.write_str("the client connected from another port than the syn came from"),
        }
    }
}

/// Whether the path was proven to be direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectVerdict {
    /// Yes.
    Direct,
    /// No, or not known: the same thing.
    NotDirect(NotDirect),
}

impl DirectVerdict {
    /// Whether this is [`Direct`](Self::Direct).
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Direct)
    }
}

/// The judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPath {
    /// Widest accepted distance between SYN and proof, in milliseconds.
    pub elapsed_ms_max: u32,
    /// Ask for equal source ports, too, also of clients on other machines. Network address translation often changes
    /// them; a relay on the client's own host over the same pair of addresses can look direct without, on kernels that
    /// derive the random offset from the addresses alone.
    pub same_port: bool,
}

impl Default for DirectPath {
    fn default() -> Self {
        Self { elapsed_ms_max: DIRECT_ELAPSED_MS_MAX, same_port: false }
    }
}

impl DirectPath {
    /// Compares what the client says with what the server's kernel has seen.
    pub fn judge(
        &self,
        hello_tsval: Option<u32>,
        hello_source_port: Option<u16>,
        syn: Option<&SavedSyn>,
    ) -> DirectVerdict {
        let Some(claimed) = hello_tsval else { return DirectVerdict::NotDirect(NotDirect::NoProof) };
        let Some((syn, seen)) = syn.and_then(|syn| Some((syn, syn.tsval?))) else {
            return DirectVerdict::NotDirect(NotDirect::NoTimestamp);
        };
        // PROTOCOL 7.2: modulo 2^32, the clock may wrap between the two.
        let difference_ms = claimed.wrapping_sub(seen);
        if difference_ms.wrapping_add(EARLY_MS_MAX) > self.elapsed_ms_max.saturating_add(EARLY_MS_MAX) {
            return DirectVerdict::NotDirect(NotDirect::Unrelated { difference_ms });
        }
        // PROTOCOL 7.4: no translation lies between a machine and itself, so there it costs nothing to ask.
        if (self.same_port || syn.is_local) && hello_source_port != Some(syn.source_port) {
            return DirectVerdict::NotDirect(NotDirect::OtherPort);
        }
        DirectVerdict::Direct
    }
}

#[cfg(test)]
mod tests;
