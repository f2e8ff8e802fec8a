//! Messages of every kind, and changes to them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use super::fuzzing::order;
use super::{FRAME_BYTES_MAX, LENGTH_BYTES, NoMessage, encode, parse};
use crate::connection::{Ends, Handshake, InitialSequence, SynOptions};
use crate::entry::{ConnectionId, DATA_BYTES_MAX, Entry};
use crate::{Limits, Message, Ordered, Weigh};
use alloc::vec;
use alloc::vec::Vec;
extern crate std;

fn handshake(addresses: (&str, &str), options: SynOptions) -> Handshake {
    Handshake {
        ends: Ends { portal: addresses.0.parse().unwrap(), client: addresses.1.parse().unwrap() },
        client: InitialSequence(u32::MAX),
        server: InitialSequence(7),
        client_options: options,
        server_options: SynOptions::default(),
    }
}

fn entries() -> Vec<Entry> {
    let connection = ConnectionId(u64::MAX - 1);
    let all = SynOptions {
        segment_bytes_max: Some(1_400),
        window_shift: Some(14),
        selective_acks: true,
        timestamp: Some(u32::MAX),
    };
    vec![
        Entry::Open(handshake(("10.0.0.1:80", "10.0.0.9:40000"), SynOptions::default())),
        Entry::Open(handshake(("[fd00::1]:443", "[2001:db8::9]:65535"), all)),
        Entry::Data { connection, offset: 1 << 40, said: 1 << 41, bytes: b"GET /"[..].into() },
        Entry::Data { connection, offset: 0, said: 0, bytes: (&[][..]).into() },
        Entry::Fin { connection },
        Entry::Reset { connection },
        Entry::End { connection, offset: 9 },
        Entry::Abort { connection },
        Entry::Acked { connection, offset: u64::MAX },
        Entry::NoOp,
        Entry::Proceed { index: 1 << 33 },
        Entry::Closed { connection },
    ]
}

fn messages() -> Vec<(&'static str, Message<Entry>)> {
    let ordered = |entries: Vec<Entry>| {
        let number = |(at, entry)| Ordered { epoch: at as u64, entry };
        Message::Entries {
            epoch: 3,
            first: 8,
            entries: entries.into_iter().enumerate().map(number).collect(),
            stable: 7,
        }
    };
    vec![
        ("hello", Message::Hello { epoch: 1, last: 2 }),
        ("start", Message::Start { epoch: u64::MAX, stable: 0 }),
        ("ack", Message::Ack { epoch: 2, index: u64::MAX }),
        ("outdated", Message::Outdated { epoch: 3 }),
        ("missing", Message::Missing { epoch: 2, after: 1 }),
        ("no_entries", ordered(Vec::new())),
        ("entries", ordered(entries())),
    ]
}

fn bytes(message: &Message<Entry>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    bytes
}

#[test]
fn messages_come_back_one_after_the_other() {
    let all: Vec<Message<Entry>> = messages().into_iter().map(|(_, message)| message).collect();
    let mut stream: Vec<u8> = all.iter().flat_map(bytes).collect();
    for message in all {
        let (parsed, length) = parse(&stream).unwrap().unwrap();
        assert_eq!(parsed, message);
        stream.drain(..length);
    }
    assert_eq!(parse(&stream), Ok(None));
}

/// The limits of the order bound messages by weight.
#[test]
fn an_entry_is_no_longer_than_it_weighs_and_the_largest_message_fits() {
    for entry in entries() {
        let message = Message::Entries {
            epoch: 1,
            first: 1,
            entries: vec![Ordered { epoch: 1, entry: entry.clone() }],
            stable: 0,
        };
        let empty = Message::Entries { epoch: 1, first: 1, entries: Vec::new(), stable: 0 };
        let length = bytes(&message).len() - bytes(&empty).len();
        assert!(length <= entry.weight_bytes(), "{entry:?}: {length}");
    }
    let largest = Limits::default().message_bytes_max.max(DATA_BYTES_MAX);
    assert!(largest + 1_000 < FRAME_BYTES_MAX);
}

#[test]
fn what_is_no_message_is_refused() {
    let long = u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_be_bytes();
    assert_eq!(parse(&long), Err(NoMessage::Long));
    let mut unknown = bytes(&Message::Hello { epoch: 1, last: 2 });
    unknown[LENGTH_BYTES] = 99;
    assert_eq!(parse(&unknown), Err(NoMessage::Kind(99)));
    let mut longer = bytes(&Message::Hello { epoch: 1, last: 2 });
    longer[3] += 1;
    longer.push(0);
    assert_eq!(parse(&longer), Err(NoMessage::Length));
}

#[test]
fn the_corpus_has_all_seeds_and_changes_to_them_mislead_nobody() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/order");
    for (name, message) in messages() {
        let (path, bytes) = (folder.join(name), bytes(&message));
        if std::env::var_os("OUTLAST_WRITE_CORPUS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "run with OUTLAST_WRITE_CORPUS=1");
    }
    for entry in std::fs::read_dir(&folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        order(&bytes);
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = value;
                order(&changed);
            }
        }
    }
}
