//! The two messages that start a link: what the client asks for, and what the server grants.

use super::wire::{Fields, LinkMode, SecurityKind, SessionId, WireError, Writer, printable};
use alloc::string::String;

const TAG_END_OFFSET: u8 = 1;
const TAG_DIRECT_PROOF: u8 = 2;
const TAG_SOURCE_PORT: u8 = 3;
const TAG_UDP_PORT: u8 = 4;
const TAG_NONCE: u8 = 5;
pub(crate) const TAG_PROOF: u8 = 6;
pub(crate) const TAG_REASON: u8 = 7;
const TAG_PAUSED: u8 = 8;

const FLAG_AUTO: u8 = 1;
const FLAG_HELLO_URGENT: u8 = 2;
const FLAG_WELCOME_URGENT: u8 = 1;

/// What the client wants with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Intent {
    /// Begin the session, or begin it again if the first Welcome never arrived.
    Open = 1,
    /// Go on with it.
    Resume = 2,
    /// Give it up: nothing follows, and the server ends it with an error for its application.
    Abort = 3,
}

/// The client's first message on every link.
///
/// "Retained", "sent" and "end" are positions of the client's own stream; "next" is one of the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The session.
    pub id: SessionId,
    /// Counts the links of the session from 1 and rises with every attempt; an older link never wins.
    pub epoch: u64,
    /// Open or resume.
    pub intent: Intent,
    /// How bytes are acknowledged on this link.
    pub mode: LinkMode,
    /// The client can do with another mode, and wants to hear "not direct" rather than to be turned away.
    pub auto: bool,
    /// The client takes urgent bytes (PROTOCOL 11).
    pub takes_urgent: bool,
    /// What the proofs in this message rest on. Set by the handshake driver.
    pub security: SecurityKind,
    /// The next byte the client expects.
    pub next_offset: u64,
    /// The earliest byte the client can still send.
    pub retained_offset: u64,
    /// The end of what the client has ever given to a link.
    pub sent_offset: u64,
    /// Where the client's stream ends, if it has ended.
    pub end_offset: Option<u64>,
    /// The largest send buffer the client's sockets of this session ever had. Counts in `window` mode.
    pub send_buffer_bytes: u64,
    /// The largest receive buffer the client's sockets of this session ever had. Counts in `window` mode.
    pub receive_buffer_bytes: u64,
    /// The client's `TCP_TIMESTAMP` just after connecting: proof that the path is direct.
    pub direct_proof: Option<u32>,
    /// The port the client connected from, as it sees it.
    pub source_port: Option<u16>,
    /// Where the client takes acknowledgement datagrams (`udp` mode).
    pub udp_port: Option<u16>,
    /// Fresh and unpredictable. Set by the handshake driver.
    pub nonce: Option<[u8; 32]>,
    /// Why the session is given up, for people; what does not fit into 255 bytes is cut off. Goes with
    /// [`Intent::Abort`].
    pub reason: Option<String>,
    /// For how long nothing has passed, in milliseconds, as far as the client knows (PROTOCOL 3.17). Goes with
    /// [`Intent::Resume`].
    pub paused_ms: Option<u64>,
    /// That the client may resume, or abort. Set by the handshake driver; always the last field.
    pub proof: Option<[u8; 32]>,
}

impl Hello {
    /// The Hello that opens `id`: first epoch, positions at 0, no ports, no proofs.
    pub const fn open(id: SessionId, mode: LinkMode) -> Self {
        Self {
            id,
            epoch: 1,
            intent: Intent::Open,
            mode,
            auto: false,
            takes_urgent: false,
            security: SecurityKind::Open,
            next_offset: 0,
            retained_offset: 0,
            sent_offset: 0,
            end_offset: None,
            send_buffer_bytes: 0,
            receive_buffer_bytes: 0,
            direct_proof: None,
            source_port: None,
            udp_port: None,
            nonce: None,
            reason: None,
            paused_ms: None,
            proof: None,
        }
    }

    /// Whether the stream follows this message at once, without waiting for the Welcome.
    ///
    /// A server that knows the session may have other plans with the stream, so only the very first link
    /// qualifies; and a server that demands proof of a key takes nothing before it.
    pub const fn carries_early_data(&self) -> bool {
        // PROTOCOL 3.2
        self.epoch == 1 && matches!(self.intent, Intent::Open) && !matches!(self.security, SecurityKind::Psk)
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        writer.bytes(self.id.as_bytes());
        writer.u64(self.epoch);
        writer.byte(self.intent as u8);
        writer.byte(self.mode as u8);
        writer.byte(self.security as u8);
        let urgent = if self.takes_urgent { FLAG_HELLO_URGENT } else { 0 };
        writer.byte(if self.auto { FLAG_AUTO | urgent } else { urgent });
        for value in [
            self.next_offset,
            self.retained_offset,
            self.sent_offset,
            self.send_buffer_bytes,
            self.receive_buffer_bytes,
        ] {
            writer.u64(value);
        }
        writer.tag(TAG_END_OFFSET, self.end_offset.map(u64::to_be_bytes));
        writer.tag(TAG_DIRECT_PROOF, self.direct_proof.map(u32::to_be_bytes));
        writer.tag(TAG_SOURCE_PORT, self.source_port.map(u16::to_be_bytes));
        writer.tag(TAG_UDP_PORT, self.udp_port.map(u16::to_be_bytes));
        writer.tag(TAG_NONCE, self.nonce);
        writer.text(TAG_REASON, self.reason.as_deref());
        writer.tag(TAG_PAUSED, self.paused_ms.map(u64::to_be_bytes));
        // PROTOCOL 1.5: the proof comes last, it covers everything before it.
        writer.tag(TAG_PROOF, self.proof);
    }

    pub(crate) fn decode(mut fields: Fields<'_>) -> Result<Self, WireError> {
        let id = SessionId::from_bytes(fields.array()?);
        let epoch = fields.u64()?;
        let [intent, mode, security, flags] = fields.array()?;
        let intent = match intent {
            1 => Intent::Open,
            2 => Intent::Resume,
            3 => Intent::Abort,
            _ => return Err(WireError::Value("intent")),
        };
        let mode = LinkMode::from_u8(mode).ok_or(WireError::Value("mode"))?;
        let mut hello = Self::open(id, mode);
        hello.intent = intent;
        hello.epoch = epoch;
        hello.security = SecurityKind::from_u8(security).ok_or(WireError::Value("security"))?;
        // Other bits are for later versions.
        hello.auto = flags & FLAG_AUTO != 0;
        hello.takes_urgent = flags & FLAG_HELLO_URGENT != 0;
        hello.next_offset = fields.offset("next offset")?;
        hello.retained_offset = fields.offset("retained offset")?;
        hello.sent_offset = fields.offset("sent offset")?;
        hello.send_buffer_bytes = fields.offset("send buffer")?;
        hello.receive_buffer_bytes = fields.offset("receive buffer")?;
        fields.tags(|tag, field| {
            match tag {
                TAG_END_OFFSET => hello.end_offset = Some(field.offset("end offset")?),
                TAG_DIRECT_PROOF => hello.direct_proof = Some(u32::from_be_bytes(field.array()?)),
                TAG_SOURCE_PORT => hello.source_port = Some(u16::from_be_bytes(field.array()?)),
                TAG_UDP_PORT => hello.udp_port = Some(u16::from_be_bytes(field.array()?)),
                TAG_NONCE => hello.nonce = Some(field.array()?),
                TAG_REASON => hello.reason = Some(printable(field.value())),
                TAG_PAUSED => hello.paused_ms = Some(u64::from_be_bytes(field.array()?)),
                TAG_PROOF if !field.is_last => return Err(WireError::Value("proof")),
                TAG_PROOF => hello.proof = Some(field.array()?),
                _ => {}
            }
            Ok(())
        })?;
        if hello.epoch == 0 || hello.epoch >= super::wire::OFFSET_MAX {
            return Err(WireError::Value("epoch"));
        }
        check_stream(hello.retained_offset, hello.sent_offset, hello.end_offset)?;
        Ok(hello)
    }
}

/// The server's answer: the link carries the session now, and the stream follows.
///
/// "Retained", "sent" and "end" are positions of the server's own stream; "next" is one of the client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// As in the Hello that is answered.
    pub epoch: u64,
    /// As in the Hello that is answered.
    pub mode: LinkMode,
    /// The next byte the server expects.
    pub next_offset: u64,
    /// The earliest byte the server can still send.
    pub retained_offset: u64,
    /// The end of what the server has ever given to a link.
    pub sent_offset: u64,
    /// Where the server's stream ends, if it has ended.
    pub end_offset: Option<u64>,
    /// The largest send buffer the server's sockets of this session ever had. Counts in `window` mode.
    pub send_buffer_bytes: u64,
    /// The largest receive buffer the server's sockets of this session ever had. Counts in `window` mode.
    pub receive_buffer_bytes: u64,
    /// Where the server takes acknowledgement datagrams (`udp` mode).
    pub udp_port: Option<u16>,
    /// How long the server keeps the session without a link.
    pub keep_ms: u64,
    /// The server takes urgent bytes (PROTOCOL 11).
    pub takes_urgent: bool,
    /// For how long nothing of what the server had sent has passed, in milliseconds, as far as it knows (PROTOCOL 3.17).
    pub paused_ms: Option<u64>,
    /// That the server holds the session's key. Set by the handshake driver; always the last field.
    pub proof: Option<[u8; 32]>,
}

impl Welcome {
    /// The answer to `hello` from a server that has neither sent nor received anything.
    pub const fn to_new(hello: &Hello) -> Self {
        Self {
            epoch: hello.epoch,
            mode: hello.mode,
            next_offset: 0,
            retained_offset: 0,
            sent_offset: 0,
            end_offset: None,
            send_buffer_bytes: 0,
            receive_buffer_bytes: 0,
            udp_port: None,
            keep_ms: 0,
            takes_urgent: false,
            paused_ms: None,
            proof: None,
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.epoch);
        writer.byte(self.mode as u8);
        writer.byte(if self.takes_urgent { FLAG_WELCOME_URGENT } else { 0 });
        for value in [
            self.next_offset,
            self.retained_offset,
            self.sent_offset,
            self.send_buffer_bytes,
            self.receive_buffer_bytes,
            self.keep_ms,
        ] {
            writer.u64(value);
        }
        writer.tag(TAG_END_OFFSET, self.end_offset.map(u64::to_be_bytes));
        writer.tag(TAG_UDP_PORT, self.udp_port.map(u16::to_be_bytes));
        writer.tag(TAG_PAUSED, self.paused_ms.map(u64::to_be_bytes));
        writer.tag(TAG_PROOF, self.proof);
    }

    pub(crate) fn decode(mut fields: Fields<'_>) -> Result<Self, WireError> {
        let epoch = fields.u64()?;
        let [mode, flags] = fields.array()?;
        let mode = LinkMode::from_u8(mode).ok_or(WireError::Value("mode"))?;
        let mut welcome = Self {
            epoch,
            mode,
            next_offset: fields.offset("next offset")?,
            retained_offset: fields.offset("retained offset")?,
            sent_offset: fields.offset("sent offset")?,
            end_offset: None,
            send_buffer_bytes: fields.offset("send buffer")?,
            receive_buffer_bytes: fields.offset("receive buffer")?,
            udp_port: None,
            keep_ms: fields.u64()?,
            // Other bits are for later versions.
            takes_urgent: flags & FLAG_WELCOME_URGENT != 0,
            paused_ms: None,
            proof: None,
        };
        fields.tags(|tag, field| {
            match tag {
                TAG_END_OFFSET => welcome.end_offset = Some(field.offset("end offset")?),
                TAG_UDP_PORT => welcome.udp_port = Some(u16::from_be_bytes(field.array()?)),
                TAG_PAUSED => welcome.paused_ms = Some(u64::from_be_bytes(field.array()?)),
                TAG_PROOF if !field.is_last => return Err(WireError::Value("proof")),
                TAG_PROOF => welcome.proof = Some(field.array()?),
                _ => {}
            }
            Ok(())
        })?;
        check_stream(welcome.retained_offset, welcome.sent_offset, welcome.end_offset)?;
        Ok(welcome)
    }
}

/// Positions of one stream that cannot be are caught before anything is done with them.
fn check_stream(retained_offset: u64, sent_offset: u64, end_offset: Option<u64>) -> Result<(), WireError> {
    // PROTOCOL 1.6: retained <= sent <= end.
    if retained_offset > sent_offset {
        return Err(WireError::Value("retained offset"));
    }
    if end_offset.is_some_and(|end_offset| end_offset < sent_offset) {
        return Err(WireError::Value("end offset"));
    }
    Ok(())
}
