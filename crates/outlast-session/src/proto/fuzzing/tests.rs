//! Replays the committed corpus, and random changes to it.

extern crate std;

use super::*;
use crate::proto::{
    Answer, Challenge, DatagramKind, Frame, FrameHeader, Receiving, Refusal, Refuse, SecurityKind, Sending,
    Times, refuse,
};
use alloc::borrow::ToOwned;
use outlast_stream::SplitMix64;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

fn corpus(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "fuzz", "corpus", target].iter().collect()
}

/// The corpus that everything starts from: one input for every interesting thing.
fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |target, name: &str, bytes: Vec<u8>| all.push((target, name.to_owned(), bytes));
    let selected = |selector: u8, bytes: &[u8]| [&[selector], bytes].concat();
    for (name, bytes) in messages() {
        add("message", name, bytes.clone());
        for security in 0..3u8 {
            let suffix = SecurityKind::from_u8(security + 1).unwrap();
            add("client_handshake", &format!("{name}_{suffix}_open"), selected(security, &bytes));
            add("client_handshake", &format!("{name}_{suffix}_resume"), selected(security | 4, &bytes));
        }
    }
    for security in 0..3u8 {
        for known in [0, 4] {
            for intent in [0, 4, 12] {
                let name = format!("security_{security}_known_{known}_intent_{intent}");
                let mut input = selected(security | known, client(security | intent).start());
                let mut server = server(security);
                if let ServerStep::Send { bytes, .. } = server.feed(&input[1..])
                    && let ClientStep::Send { bytes, .. } = client(security | intent).feed(&bytes)
                {
                    input.extend_from_slice(&bytes);
                }
                input.extend_from_slice(b"stream");
                add("server_handshake", &name, input);
            }
        }
        for intent in [0, 4] {
            let mut client = client(security | intent);
            let mut server = server(security);
            let mut input = selected(security | intent, &[]);
            let mut step = server.feed(client.start());
            if let ServerStep::Send { bytes, .. } = &step {
                input.extend_from_slice(bytes);
                let ClientStep::Send { bytes, .. } = client.feed(bytes) else { panic!() };
                step = server.feed(&bytes);
            }
            if let ServerStep::NeedKey { .. } = step {
                step = server.provide_key((intent == 4).then(|| SessionKey::from_bytes(KEY)));
            }
            let ServerStep::Greeted(greeted) = step else { panic!("{step:?}") };
            input.extend_from_slice(&server.accept(Welcome::to_new(&greeted.hello)));
            input.extend_from_slice(b"stream");
            add("client_handshake", &format!("accepted_{security}_intent_{intent}"), input);
        }
    }
    for cut in [1, 5, 200] {
        add("frames", &format!("conversation_cut_{cut}"), selected(cut, &conversation()));
    }
    add("frames", "garbage", selected(3, b"GET / HTTP/1.1\r\n\r\n"));
    for (name, kind, key) in [
        ("ack", DatagramKind::Ack, None),
        ("close_with_key", DatagramKind::Close, Some(SessionKey::from_bytes(KEY))),
        ("confirm", DatagramKind::Confirm { of: 3 }, None),
    ] {
        let needs_confirm = kind == DatagramKind::Close;
        let id = SessionId::from_bytes([0x1D; 16]);
        let datagram = Datagram { kind, needs_confirm, id, epoch: 2, offset: 1 << 33 };
        add("datagram", name, datagram.encode(key.as_ref(), true).as_ref().to_vec());
    }
    for (name, bytes) in syns() {
        add("saved_syn", name, bytes);
    }
    for (name, session) in sessions_at_rest() {
        add("detached", name, session.encode());
    }
    add("ring", "push_and_trim", [&[0, 64][..], &[0, 40, 5, 30, 1, 50, 5, 60, 7, 0, 0, 64]].concat());
    add(
        "ring",
        "reserve_over_the_edge",
        [&[0x10, 0][..], &[0x80, 40, 0x85, 30, 0x83, 20, 3, 200, 0x80, 40]].concat(),
    );
    add("ring", "overwrite", [&[0, 100][..], &[2, 60, 2, 60, 0x82, 3, 3, 9, 6, 5, 2, 255]].concat());
    all
}

fn sessions_at_rest() -> Vec<(&'static str, Detached)> {
    let fresh = Detached {
        id: SessionId::from_bytes([0x1D; 16]),
        epoch: 1,
        security: SecurityKind::Open,
        key: None,
        owner: None,
        peer: [192, 0, 2, 1].into(),
        outages: 0,
        times: None,
        sending: Sending::default(),
        receiving: Receiving::default(),
    };
    let busy = Detached {
        epoch: 7,
        security: SecurityKind::Tls,
        key: Some(SessionKey::from_bytes(KEY)),
        peer: [0x2001, 0xDB8, 0, 0, 0, 0, 0, 1].into(),
        outages: 6,
        times: Some(Times { opened_ms: 1, lost_ms: 4, paused_ms: 3, detached_ms: 9, ..Times::default() }),
        sending: Sending {
            retained_offset: 1 << 33,
            acked_offset: (1 << 33) + 2,
            sent_offset: (1 << 33) + 5,
            ended: true,
            end_acked: false,
            retained: b"retained".to_vec(),
        },
        receiving: Receiving { next_offset: 9, end_offset: Some(9), unread: b"unread".to_vec() },
        ..fresh.clone()
    };
    vec![("fresh", fresh), ("busy", busy)]
}

#[test]
fn a_session_at_rest_keeps_its_owner() {
    for (_, session) in sessions_at_rest() {
        let owned = Detached { owner: Some([9; 32]), ..session };
        let bytes = owned.encode();
        assert_eq!(Detached::decode(&bytes), Ok(owned));
        assert!(Detached::decode(&bytes[..bytes.len() - 32]).is_err(), "it does not get lost");
    }
}

#[test]
fn a_session_at_rest_keeps_what_is_left_of_its_time() {
    let times = Times { lost_ms: 40_000, detached_ms: 70_000, keep_ms: 50_000, ..Times::default() };
    for (_, session) in sessions_at_rest() {
        let mut session = Detached { times: Some(times), ..session };
        let bytes = session.encode();
        assert_eq!(Detached::decode(&bytes).as_ref(), Ok(&session));
        assert!(Detached::decode(&bytes[..bytes.len() - 56]).is_err(), "they do not get lost");
        assert_eq!(session.keep_left(), Some(Duration::from_secs(20)));
        session.times = Some(Times { keep_ms: 10_000, ..times });
        assert_eq!(session.keep_left(), Some(Duration::ZERO));
        session.times = None;
        assert_eq!(session.keep_left(), None);
    }
}

fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let full = Hello {
        end_offset: Some(9),
        sent_offset: 9,
        direct_proof: Some(1),
        source_port: Some(2),
        udp_port: Some(3),
        nonce: Some([4; 32]),
        proof: Some([5; 32]),
        ..hello(Intent::Resume)
    };
    let abort = Hello { reason: Some("because".into()), ..hello(Intent::Abort) };
    let welcome = Welcome { end_offset: Some(7), udp_port: Some(8), ..Welcome::to_new(&full) };
    vec![
        ("hello", Message::Hello(hello(Intent::Open)).to_bytes()),
        ("hello_full", Message::Hello(full).to_bytes()),
        ("hello_abort", Message::Hello(abort).to_bytes()),
        ("welcome", Message::Welcome(welcome).to_bytes()),
        ("challenge", Message::Challenge(Challenge { nonce: [1; 32], proof: [2; 32] }).to_bytes()),
        ("answer", Message::Answer(Answer { proof: [3; 32] }).to_bytes()),
        ("refuse", refuse(Refusal::Busy { retry_after_ms: 5 })),
        (
            "refuse_and_why",
            refuse(Refuse { refusal: Refusal::Ended { offset: 9 }, why: Some("gone\n".into()) }),
        ),
        ("http", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("tls", vec![22, 3, 1, 0, 100, 1]),
    ]
}

/// Every kind of frame.
fn conversation() -> Vec<u8> {
    let mut bytes = FrameHeader::data(5, 0).encode().to_vec();
    bytes.extend_from_slice(b"hello");
    Frame::Ping { token: 1 }.encode(3, &mut bytes);
    Frame::Pong { token: 2 }.encode(4, &mut bytes);
    Frame::Ack.encode(5, &mut bytes);
    bytes.extend_from_slice(&FrameHeader::data(3, 9).encode());
    bytes.extend_from_slice(b"you");
    Frame::End { end_offset: 8 }.encode(9, &mut bytes);
    Frame::EndAck.encode(9, &mut bytes);
    Frame::Goodbye.encode(9, &mut bytes);
    Frame::reset("because").encode(9, &mut bytes);
    bytes
}

fn syns() -> Vec<(&'static str, Vec<u8>)> {
    let mut tcp = vec![0xA1, 0xB2, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0xA0, 2, 0xFF, 0xFF, 0, 0, 0, 0];
    tcp.extend_from_slice(&[2, 4, 5, 0xB4, 4, 2, 8, 10, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 1, 3, 3, 7]);
    let mut ipv4 = vec![0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    ipv4.extend_from_slice(&tcp);
    let mut ipv6 = vec![0; 40];
    ipv6[0] = 0x60;
    ipv6[6] = 6;
    ipv6.extend_from_slice(&tcp);
    let mut extended = vec![0; 48];
    extended[0] = 0x60;
    extended[6] = 60;
    extended[40] = 6;
    extended.extend_from_slice(&tcp);
    vec![("ipv4", ipv4), ("ipv6", ipv6), ("ipv6_with_options", extended)]
}

/// With `OUTLAST_WRITE_CORPUS` set, writes the seeds; without, checks that they are there.
#[test]
fn the_corpus_has_all_seeds() {
    for (target, name, bytes) in seeds() {
        let path = corpus(target).join(name);
        if env::var_os("OUTLAST_WRITE_CORPUS").is_some() {
            fs::create_dir_all(corpus(target)).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        let committed = fs::read(&path).unwrap_or_default();
        assert!(committed == bytes, "{} is stale: run with OUTLAST_WRITE_CORPUS=1", path.display());
    }
}

fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(corpus(target)).unwrap();
    let mut files: Vec<_> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// A corpus that never gets past the first check would test nothing else.
#[test]
fn the_seeds_reach_the_last_steps() {
    let mut reached = [0; 4];
    for (target, _, bytes) in seeds() {
        let last = |story: Vec<String>| story.last().cloned().unwrap_or_default();
        match (target, bytes.split_first()) {
            ("client_handshake", Some((&selector, bytes))) => {
                reached[0] += usize::from(last(drive_client(selector, bytes, 9)).starts_with("Welcomed"));
            }
            ("server_handshake", Some((&selector, bytes))) => {
                reached[1] += usize::from(last(drive_server(selector, bytes, 9)).starts_with("Greeted"));
            }
            ("frames", Some((_, bytes))) => reached[2] += parse_frames(bytes, 9).controls.len(),
            ("saved_syn", _) => {
                reached[3] += usize::from(SavedSyn::parse(&bytes).is_ok_and(|syn| syn.tsval.is_some()))
            }
            _ => {}
        }
    }
    assert!(reached[0] >= 6 && reached[1] >= 6 && reached[2] == 21 && reached[3] == 3, "{reached:?}");
}

#[test]
fn every_input_of_the_corpus_passes() {
    for (name, target) in TARGETS {
        let inputs = inputs(name);
        assert!(!inputs.is_empty(), "no corpus for {name}");
        for (path, bytes) in inputs {
            let outcome = std::panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "{}", path.display());
        }
    }
}

fn changed(random: &mut SplitMix64, bytes: &[u8], other: &[u8]) -> Vec<u8> {
    let mut below = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap();
    let mut bytes = bytes.to_vec();
    for _ in 0..=below(4) {
        let at = below(bytes.len() + 1);
        match below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, [0, 1, 0x7F, 0x80, 0xFF][below(5)]),
            2 => drop(bytes.splice(at.., other.get(below(other.len() + 1)..).unwrap_or_default().to_vec())),
            3 if at < bytes.len() => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][below(5)],
            _ if at < bytes.len() => bytes[at] ^= 1 << below(8),
            _ => {}
        }
    }
    bytes
}

#[test]
fn random_changes_to_the_corpus_pass() {
    let seed = env::var("OUTLAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for (name, target) in TARGETS {
        let inputs = inputs(name);
        let mut random = SplitMix64::new(seed);
        for _ in 0..20_000 {
            let mut draw = || usize::try_from(random.below(inputs.len() as u64)).unwrap();
            let (one, other) = (&inputs[draw()].1, &inputs[draw()].1);
            let bytes = changed(&mut random, one, other);
            let outcome = std::panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "{name} with OUTLAST_SEED={seed} fails for {bytes:02x?}");
        }
    }
}
