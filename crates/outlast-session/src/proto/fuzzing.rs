//! What must hold for every input, as functions: the bodies of the fuzz targets in `fuzz/`.
//!
//! The tests run the same functions over the committed corpus and over random changes to it, so that every build
//! checks what a fuzzer once found. A function returns if all is well and panics if not.

use super::{
    ClientHandshake, ClientStep, Control, Credentials, Datagram, Decoded, Demand, Detached, DirectPath,
    FrameError, Hello, Intent, LinkMode, Message, Piece, Psk, Receiver, SavedSyn, ServerHandshake,
    ServerStep, SessionId, SessionKey, Welcome, decode,
};
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use outlast_stream::{BufferPool, RetainRing};

/// One target.
pub type Target = fn(&[u8]);

/// All targets, by the names of their corpus directories.
pub const TARGETS: [(&str, Target); 8] = [
    ("message", message),
    ("frames", frames),
    ("datagram", datagram),
    ("saved_syn", saved_syn),
    ("client_handshake", client_handshake),
    ("server_handshake", server_handshake),
    ("ring", ring),
    ("detached", detached),
];

/// The key both ends hold in every target that needs one.
pub const KEY: [u8; 32] = [0x4B; 32];
/// The client's nonce.
pub const CLIENT_NONCE: [u8; 32] = [0xC1; 32];
/// The server's nonce.
pub const SERVER_NONCE: [u8; 32] = [0x5E; 32];
/// The TLS exporter's value.
pub const BINDING: [u8; 32] = [0xB1; 32];

/// Decoding handshake messages: a start of a message needs more, a message comes back as itself.
pub fn message(bytes: &[u8]) {
    match decode(bytes) {
        Ok(Decoded::NeedMore { at_least }) => assert!(at_least > bytes.len()),
        Ok(Decoded::Message { message, consumed_bytes }) => {
            assert!(consumed_bytes <= bytes.len());
            for length in 0..consumed_bytes {
                let start = decode(&bytes[..length]);
                assert!(matches!(start, Ok(Decoded::NeedMore { at_least }) if at_least > length));
            }
            let again = message.to_bytes();
            let consumed_bytes = again.len();
            assert_eq!(decode(&again), Ok(Decoded::Message { message, consumed_bytes }));
        }
        Err(error) => {
            assert!(!format!("{error}").is_empty());
            // Once wrong, always wrong.
            let mut more = bytes.to_vec();
            more.extend_from_slice(&[0; 16]);
            assert!(decode(&more).is_err());
        }
    }
}

/// What a receiver made of its input.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    payload: Vec<u8>,
    controls: Vec<(u64, Control)>,
    error: Option<FrameError>,
    peer_acked_offset: u64,
}

/// Parsing frames: the result does not depend on how the bytes were cut. The first byte says how.
pub fn frames(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let whole = parse_frames(bytes, bytes.len().max(1));
    let pieces = parse_frames(bytes, usize::from(cut).max(1));
    assert_eq!(whole, pieces);
    assert!(whole.payload.len() <= bytes.len());
}

fn parse_frames(bytes: &[u8], step_bytes: usize) -> Parsed {
    let mut parsed = Parsed::default();
    let mut receiver = Receiver::default();
    receiver.link(LinkMode::Inband);
    let (mut begin, mut end) = (0, 0);
    loop {
        match receiver.parse(&bytes[begin..end]) {
            Ok(Piece::Control { bytes, control }) => {
                assert!(bytes <= end - begin);
                begin += bytes;
                parsed.controls.push((receiver.next_offset(), control));
                continue;
            }
            Ok(Piece::Payload { skip_bytes }) => {
                begin += skip_bytes;
                assert!(begin <= end);
                let taken = receiver.payload_left_bytes().min(end - begin);
                parsed.payload.extend_from_slice(&bytes[begin..begin + taken]);
                begin += taken;
                receiver.took(taken);
                if taken > 0 {
                    continue;
                }
            }
            Ok(Piece::Incomplete) => {}
            Err(error) => parsed.error = Some(error),
        }
        if parsed.error.is_some() || end == bytes.len() {
            break;
        }
        end = (end + step_bytes).min(bytes.len());
    }
    assert_eq!(receiver.next_offset(), parsed.payload.len() as u64);
    parsed.peer_acked_offset = receiver.peer_acked_offset();
    parsed
}

/// Decoding datagrams: what is taken for one is exactly what would be sent.
pub fn datagram(bytes: &[u8]) {
    let key = SessionKey::from_bytes(KEY);
    for key in [None, Some(&key)] {
        for from_client in [false, true] {
            if let Ok(datagram) = Datagram::decode(bytes, key, from_client) {
                assert_eq!(datagram.encode(key, from_client).as_ref(), bytes);
                assert_eq!(Datagram::claimed_id(bytes), Some(datagram.id));
                if let Some(confirm) = datagram.confirmation() {
                    assert!(datagram.is_confirmed_by(&confirm) && confirm.confirmation().is_none());
                }
            }
        }
    }
}

/// Reading a saved SYN: what follows the headers changes nothing.
pub fn saved_syn(bytes: &[u8]) {
    if let Ok(syn) = SavedSyn::parse(bytes) {
        let mut more = bytes.to_vec();
        more.extend_from_slice(&[0xFF; 64]);
        assert_eq!(SavedSyn::parse(&more), Ok(syn));
        let verdict = DirectPath::default().judge(syn.tsval, Some(syn.source_port), Some(&syn));
        assert_eq!(verdict.is_direct(), syn.tsval.is_some());
    }
}

/// The Hello that the client of these targets starts from.
pub fn hello(intent: Intent) -> Hello {
    let epoch = if intent == Intent::Open { 1 } else { 2 };
    Hello { epoch, intent, ..Hello::open(SessionId::from_bytes([0x1D; 16]), LinkMode::Inband) }
}

fn psk() -> Psk {
    match Psk::from_bytes(&KEY) {
        Ok(psk) => psk,
        Err(error) => unreachable!("{error}"),
    }
}

/// The client that the first byte of the input selects.
pub fn client(selector: u8) -> ClientHandshake {
    let intent = match selector & 12 {
        0 | 8 => Intent::Open,
        4 => Intent::Resume,
        _ => Intent::Abort,
    };
    let key = Some(SessionKey::from_bytes(KEY));
    let credentials = match selector & 3 {
        0 | 3 => Credentials::Open,
        1 => Credentials::Psk { psk: psk(), key },
        _ => Credentials::Tls { binding: BINDING, key },
    };
    match ClientHandshake::new(hello(intent), credentials, CLIENT_NONCE) {
        Ok(client) => client,
        Err(error) => unreachable!("{error}"),
    }
}

/// The server that the first byte of the input selects.
pub fn server(selector: u8) -> ServerHandshake {
    let demand = match selector & 3 {
        0 | 3 => Demand::Open,
        1 => Demand::Psk(psk()),
        _ => Demand::Tls { binding: BINDING },
    };
    ServerHandshake::new(demand, SERVER_NONCE)
}

/// The client's driver: never out of step with the bytes it is given, and the same however they were cut.
pub fn client_handshake(bytes: &[u8]) {
    let Some((&selector, bytes)) = bytes.split_first() else { return };
    let whole = drive_client(selector, bytes, bytes.len().max(1));
    assert_eq!(whole, drive_client(selector, bytes, 1));
    assert_eq!(whole, drive_client(selector, bytes, 7));
}

fn drive_client(selector: u8, mut bytes: &[u8], step_bytes: usize) -> Vec<String> {
    let mut client = client(selector);
    let mut story = Vec::new();
    let mut length = 0;
    // A handshake has at most two messages for the client.
    while story.len() < 4 {
        match client.feed(&bytes[..length]) {
            ClientStep::NeedMore if length == bytes.len() => break,
            ClientStep::NeedMore => length = (length + step_bytes).min(bytes.len()),
            ClientStep::Send { bytes: sent, consumed_bytes } => {
                assert!(consumed_bytes > 0);
                bytes = &bytes[consumed_bytes..];
                length -= consumed_bytes;
                story.push(format!("send {sent:?}"));
            }
            ClientStep::Welcomed(welcomed) => {
                assert!(welcomed.consumed_bytes <= length);
                assert_eq!(welcomed.session_key.is_some(), matches!(selector & 3, 1 | 2));
                story.push(format!("{welcomed:?}"));
                break;
            }
            step @ (ClientStep::Refused(_) | ClientStep::Failed(_)) => {
                story.push(outcome_without_guess(&step));
                break;
            }
        }
    }
    assert!(story.len() < 4, "the handshake does not end");
    story
}

/// Another protocol is told from fewer or more of its bytes, so the guess may differ; that it is one may not.
fn outcome_without_guess(step: &dyn core::fmt::Debug) -> String {
    let text = format!("{step:?}");
    if text.contains("Foreign") { String::from("foreign") } else { text }
}

/// The server's driver: never out of step with the bytes it is given, and the same however they were cut.
pub fn server_handshake(bytes: &[u8]) {
    let Some((&selector, bytes)) = bytes.split_first() else { return };
    let whole = drive_server(selector, bytes, bytes.len().max(1));
    assert_eq!(whole, drive_server(selector, bytes, 1));
    assert_eq!(whole, drive_server(selector, bytes, 7));
}

fn drive_server(selector: u8, mut bytes: &[u8], step_bytes: usize) -> Vec<String> {
    let mut server = server(selector);
    let mut story = Vec::new();
    let mut length = 0;
    while story.len() < 6 {
        let step = match server.feed(&bytes[..length]) {
            ServerStep::NeedKey { id } => {
                story.push(format!("key of {id:?}"));
                server.provide_key((selector & 4 != 0).then(|| SessionKey::from_bytes(KEY)))
            }
            step => step,
        };
        match step {
            ServerStep::NeedMore if length == bytes.len() => break,
            ServerStep::NeedMore => length = (length + step_bytes).min(bytes.len()),
            ServerStep::NeedKey { .. } => unreachable!("asked for the key twice"),
            ServerStep::Send { bytes: sent, consumed_bytes } => {
                assert!(consumed_bytes > 0);
                bytes = &bytes[consumed_bytes..];
                length -= consumed_bytes;
                story.push(format!("send {sent:?}"));
            }
            ServerStep::Greeted(greeted) => {
                assert!(greeted.consumed_bytes > 0 && greeted.consumed_bytes <= length);
                let welcome = server.accept(Welcome::to_new(&greeted.hello));
                let Ok(Decoded::Message { message: Message::Welcome(welcome), .. }) = decode(&welcome) else {
                    unreachable!("a welcome that is none: {welcome:?}")
                };
                assert_eq!(welcome.proof.is_some(), greeted.session_key.is_some());
                story.push(format!("{greeted:?}"));
                break;
            }
            step @ ServerStep::Failed(_) => {
                story.push(outcome_without_guess(&step));
                break;
            }
        }
    }
    assert!(story.len() < 6, "the handshake does not end");
    story
}

/// The ring against a plain vector, driven by the input: two bytes an operation, kind and size.
pub fn ring(bytes: &[u8]) {
    let Some((&[capacity_high, capacity_low], operations)) = bytes.split_first_chunk() else { return };
    let capacity = usize::from(u16::from_be_bytes([capacity_high, capacity_low])).max(1);
    let mut ring = RetainRing::with_source(0, capacity, BufferPool::new(1 << 16));
    let mut model = vec![];
    let mut start = 0;
    let mut fill = 0u8;
    for operation in operations.chunks_exact(2).take(2000) {
        let &[kind, size] = operation else { return };
        let size = usize::from(size) * if kind & 0x80 == 0 { 1 } else { 97 };
        fill = fill.wrapping_add(1);
        let held = model.len() - start;
        match kind & 7 {
            0 | 1 => {
                let taken = ring.push(&vec![fill; size]);
                assert_eq!(taken, size.min(capacity - held));
                model.extend(core::iter::repeat_n(fill, taken));
            }
            2 => {
                ring.push_overwriting(&vec![fill; size]);
                model.extend(core::iter::repeat_n(fill, size));
                start = start.max(model.len().saturating_sub(capacity));
            }
            3 | 4 => {
                let space = ring.reserve(size / 2, size);
                assert_eq!(space.is_empty(), capacity - held < (size / 2).max(1));
                let taken = space.len();
                space.fill(fill);
                assert_eq!(ring.commit(taken), taken);
                model.extend(core::iter::repeat_n(fill, taken));
            }
            5 | 6 => {
                start += size.min(held);
                ring.trim_to(start as u64);
            }
            _ => ring.shrink(),
        }
        assert_eq!((ring.start_offset(), ring.end_offset()), (start as u64, model.len() as u64));
        let (older, newer) = ring.slices(start as u64, model.len() as u64);
        let (left, right) = model[start..].split_at(older.len());
        assert!(older == left && newer == right);
        assert!(ring.buffer_bytes() <= (2 * capacity).next_power_of_two().max(4096));
    }
}

/// A session at rest: what is read back is what was written, and can be gone on with.
pub fn detached(bytes: &[u8]) {
    let Ok(session) = Detached::decode(bytes) else { return };
    assert_eq!(Detached::decode(&session.encode()), Ok(session.clone()));
    assert!(session.encode().len() == bytes.len());
    let sender = session.sender(BufferPool::new(0), 4096);
    assert_eq!(sender.rest(), session.sending);
    assert_eq!(session.unacked_bytes(), sender.end_offset() - sender.acked_offset());
    assert!(sender.end_offset() - sender.retained_offset() == session.sending.retained.len() as u64);
    let receiver = session.receiver();
    assert_eq!((receiver.next_offset(), receiver.end_offset()), {
        (session.receiving.next_offset, session.receiving.end_offset)
    });
}

#[cfg(test)]
mod tests;
