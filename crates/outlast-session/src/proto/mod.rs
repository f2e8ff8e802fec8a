//! The protocol itself: no sockets, no clock, no threads, no randomness.
//!
//! Times are [`Duration`](core::time::Duration)s since any origin the caller likes, nonces and seeds are arguments,
//! outputs are values. Built without the feature `io` the crate is just this, `no_std` with `alloc`.
//!
//! | subject | where |
//! |---|---|
//! | what goes over the link, byte by byte | [`Message`], [`Hello`], [`Welcome`], [`Refusal`] |
//! | starting a link | [`ClientHandshake`], [`ServerHandshake`] |
//! | keys and proofs | [`Psk`], [`SessionKey`] |
//! | proof of a direct path | [`SavedSyn`], [`DirectPath`] |
//! | the stream while a link is up | [`Sender`], [`Receiver`], [`Frame`], [`Datagram`] |
//! | noticing that nobody is there | [`Silence`] |
//! | when a link is lost that nobody answers, and who finds that out | [`UserTimeout`] |
//! | who may stand at a server's door, and for how long | [`Door`] |
//! | the server's table of sessions | [`Registry`] |
//! | how much memory sessions may hold, and who makes room | [`Budget`] |
//! | how much of the kernel's memory they may leave to their services' connections | [`KernelMemory`] |
//! | a session without a process | [`Detached`] |
//! | the right to give a session up | [`LastWord`] |
//! | a session's life | [`State`], [`Happening`], [`next_state`] |
//!
//! Rules are numbered in `PROTOCOL.md`; `PROTOCOL 3.4` in a comment means the line below meets that rule.

mod auth;
mod budget;
mod clear;
mod datagram;
mod detached;
mod direct;
mod door;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod hello;
mod kernel_memory;
mod last_word;
mod life;
mod receiver;
mod registry;
#[cfg(test)]
mod rules;
#[cfg(not(feature = "io"))]
mod secret;
mod sender;
mod shortage;
mod silence;
mod user_timeout;
mod wire;

pub use auth::{AbortKey, BINDING_LABEL, Binding, KeyError, PSK_BYTES_MAX, PSK_BYTES_MIN, Psk, SessionKey};
pub use budget::{BUFFER_BYTES_LEAST, Budget, Descriptors, HANDED_OVER, Holder, Places, ring_bytes_max};
pub use clear::{client_in_the_clear, server_in_the_clear};
pub use datagram::{
    DATAGRAM_BYTES, DATAGRAM_BYTES_MAX, Datagram, DatagramError, DatagramKind, EncodedDatagram,
};
pub use detached::Detached;
#[cfg(any(feature = "io", test))]
pub(crate) use detached::Receiving;
#[cfg(test)]
pub(crate) use detached::Sending;
#[cfg(any(feature = "io", test))]
pub(crate) use detached::Times;
pub use direct::{DIRECT_ELAPSED_MS_MAX, DirectPath, DirectVerdict, NotDirect, SavedSyn, SynError};
pub use door::{Door, DoorEffect, DoorInput, DoorLimits, Progress, TurnedAway};
pub use frame::{
    Control, FRAME_CONTROL_BYTES_MAX, FRAME_DATA_BYTES_MAX, FRAME_HEADER_BYTES, Frame, FrameError,
    FrameHeader, FrameKind,
};
pub use handshake::{
    Auth, ClientHandshake, ClientStep, Credentials, Demand, Greeted, HANDSHAKE_BYTES_MAX, HandshakeError,
    ServerHandshake, ServerStep, Welcomed, refuse,
};
pub use hello::{Hello, Intent, Welcome};
pub use kernel_memory::{Growth, KernelMemory, may_grow};
pub use last_word::{LAST_WORD_BYTES, LastWord};
pub use life::{Effect, Happening, Illegal, Life, LifeRole, State, next_state};
pub use receiver::{Piece, Receiver};
pub use registry::{
    AttachError, Block, Decision, Fingerprint, Policy, Registry, RegistryLimits, RegistryStats,
};
pub use sender::{FRAME_PAYLOAD_BYTES_MAX, OffsetError, Sender};
pub use shortage::Shortage;
pub use silence::{LOOKS_PER_TIMEOUT, Silence, SilenceAdvice};
pub use user_timeout::{KernelTimeout, LinkLook, LookAdvice, UserTimeout};
pub use wire::{
    Answer, BODY_BYTES_MAX, Challenge, Decoded, ForeignProtocol, IdError, LinkMode, MAGIC, MESSAGE_BYTES_MAX,
    Message, Modes, OFFSET_MAX, PREFIX_BYTES, RETRY_AFTER_MS_MAX, Refusal, Refuse, SecurityKind, SessionId,
    VERSION, VERSION_MIN, WireError, decode,
};
