//! Messages of every kind, and changes to them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use super::fuzzing::{order, snapshot};
use super::snapshot as copies;
use super::{FRAME_BYTES_MAX, LENGTH_BYTES, NoMessage, encode, parse};
use crate::connection::{Ends, Handshake, InitialSequence, Said, SynOptions};
use crate::entry::{Again, ConnectionId, DATA_BYTES_MAX, Entry};
use crate::{Difference, Known, LastAck, Limits, Message, Ordered, Resume, Snapshot, Weigh};
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
        Entry::Open {
            handshake: handshake(("10.0.0.1:80", "10.0.0.9:40000"), SynOptions::default()),
            at_ms: 0,
        },
        Entry::Open { handshake: handshake(("[fd00::1]:443", "[2001:db8::9]:65535"), all), at_ms: 1 << 42 },
        Entry::Data {
            connection,
            offset: 1 << 40,
            said: 1 << 41,
            report: Said::Digest { parts: 1 << 42, digest: 7 },
            bytes: b"GET /"[..].into(),
        },
        Entry::Data { connection, offset: 0, said: 0, report: Said::Unknown, bytes: (&[][..]).into() },
        Entry::Canonical {
            connection,
            number: 3,
            offset: 1 << 40,
            is_last: true,
            bytes: b"*1\r\n"[..].into(),
        },
        Entry::Fin { connection },
        Entry::Reset { connection },
        Entry::End { connection, offset: 9, report: Said::Skipped { parts: 3 } },
        Entry::Abort { connection, report: Said::Skipped { parts: 4 } },
        Entry::Acked { connection, offset: u64::MAX, report: Said::Unknown },
        Entry::NoOp,
        Entry::Refresh,
        Entry::Tick { at_ms: 1 << 41 },
        Entry::Proceed { index: 1 << 33 },
        Entry::Again { connection: ConnectionId(1 << 33), how: Again::Deadlock },
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
        ("serving", Message::Serving { epoch: 5 }),
        ("compared", Message::Compared { epoch: 1, index: u64::MAX }),
        (
            "differs",
            Message::Differs {
                epoch: 1,
                difference: Difference {
                    index: 9,
                    connection: ConnectionId(7),
                    digest: u64::MAX,
                    offset: 1 << 40,
                    bytes: b"+OK".to_vec(),
                    command: *b"GET\0\0\0\0\0\0\0\0\0\0\0\0\0",
                },
            },
        ),
        ("forwarded", Message::Forwarded { bytes: b"\x45\0\0\x28"[..].into() }),
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

fn snapshots() -> Vec<(&'static str, Snapshot)> {
    let handshake = handshake(("10.0.0.1:80", "[fd00::1]:40000"), SynOptions::default());
    let resume = Resume {
        setup: b"select 3\r\n".to_vec(),
        queued: b"multi\r\n".to_vec(),
        queued_count: 1,
        partial: b"g".to_vec(),
        is_not_compared: true,
    };
    let known = |connection: u64, resume: Option<Resume>| Known {
        connection: ConnectionId(connection),
        handshake,
        age_ms: 1 << 40,
        delivered: 5,
        ended: resume.is_none(),
        produced: 9,
        said: 4,
        own: 2,
        reported: 3,
        unacked: b"+OK".to_vec(),
        end: resume.is_none().then_some(9),
        resume,
        ended_first: connection > 7,
        is_aborted: connection == 9,
        is_reset: connection == 10,
    };
    let closed = vec![(LastAck { handshake, sequence: 1, ack: 2, opened_at_ms: 0 }, 77)];
    let connections =
        vec![known(7, Some(resume)), known(8, Some(Resume::default())), known(9, None), known(10, None)];
    vec![
        (
            "nothing",
            Snapshot { index: 0, at_ms: 0, clock_ms: 0, connections: Vec::new(), closed: Vec::new() },
        ),
        ("all", Snapshot { index: u64::MAX / 2, at_ms: 1 << 41, clock_ms: 1 << 42, connections, closed }),
    ]
}

#[test]
fn snapshots_come_back_and_changes_to_them_mislead_nobody() {
    let messages = snapshots().into_iter().map(|(name, of)| {
        let mut bytes = Vec::new();
        copies::encode(&of, &mut bytes);
        assert_eq!(copies::parse(&bytes), Ok(of));
        (name, bytes)
    });
    check_corpus("snapshot", messages.collect(), snapshot);
}

#[test]
fn the_corpus_has_all_seeds_and_changes_to_them_mislead_nobody() {
    let messages = messages().into_iter().map(|(name, message)| (name, bytes(&message)));
    check_corpus("order", messages.collect(), order);
}

fn check_corpus(target: &str, seeds: Vec<(&'static str, Vec<u8>)>, check: fn(&[u8])) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    for (name, bytes) in seeds {
        let path = folder.join(name);
        if std::env::var_os("OUTLAST_WRITE_CORPUS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "run with OUTLAST_WRITE_CORPUS=1");
    }
    for entry in std::fs::read_dir(&folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        check(&bytes);
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = value;
                check(&changed);
            }
        }
    }
}
