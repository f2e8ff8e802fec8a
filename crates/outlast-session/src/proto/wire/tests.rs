use super::*;
use crate::proto::hello::Intent;
use alloc::string::{String, ToString};
use alloc::{format, vec};
use outlast_stream::SplitMix64;

fn id() -> SessionId {
    SessionId::from_bytes(*b"0123456789abcdef")
}

fn full_hello() -> Hello {
    Hello {
        epoch: 2,
        intent: Intent::Resume,
        auto: true,
        security: SecurityKind::Psk,
        next_offset: 10,
        retained_offset: 20,
        sent_offset: 30,
        end_offset: Some(30),
        send_buffer_bytes: 40,
        receive_buffer_bytes: 50,
        direct_proof: Some(0xDEAD_BEEF),
        source_port: Some(60),
        udp_port: Some(70),
        nonce: Some([8; 32]),
        paused_ms: Some(80),
        proof: Some([9; 32]),
        ..Hello::open(id(), LinkMode::Udp)
    }
}

fn abort(reason: &str) -> Hello {
    Hello { intent: Intent::Abort, reason: Some(reason.into()), proof: Some([9; 32]), ..full_hello() }
}

fn reason_read(hello: Hello) -> String {
    match decode(&Message::Hello(hello).to_bytes()) {
        Ok(Decoded::Message { message: Message::Hello(hello), .. }) => hello.reason.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn reasons_are_texts_that_fit_and_are_safe_to_show() {
    assert_eq!(reason_read(abort("")), "");
    assert_eq!(reason_read(abort("why\u{1b}[2J not")), "why?[2J not");
    let cut = reason_read(abort(&"\u{e4}".repeat(200)));
    assert_eq!((cut.len(), cut.chars().all(|c| c == '\u{e4}')), (254, true));
    let mut bytes = Message::Hello(abort("plain")).to_bytes();
    let at = bytes.windows(5).position(|window| window == b"plain").unwrap();
    bytes[at + 1] = 0xFF;
    let Ok(Decoded::Message { message: Message::Hello(hello), .. }) = decode(&bytes) else { panic!() };
    assert_eq!(hello.reason.as_deref(), Some("p?ain"));
}

fn full_welcome() -> Welcome {
    Welcome {
        next_offset: 1,
        retained_offset: 2,
        sent_offset: 3,
        end_offset: Some(4),
        send_buffer_bytes: 5,
        receive_buffer_bytes: 6,
        udp_port: Some(7),
        keep_ms: 8,
        paused_ms: Some(10),
        proof: Some([9; 32]),
        ..Welcome::to_new(&full_hello())
    }
}

fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::UnknownSession,
        Refusal::Expired,
        Refusal::Busy { retry_after_ms: RETRY_AFTER_MS_MAX },
        Refusal::NotDirect,
        Refusal::BadKey,
        Refusal::Ended { offset: 7 },
        Refusal::StaleEpoch { current: 8 },
        Refusal::Version { min: 2, max: 5 },
        Refusal::ModeRefused { offered: Modes::only(LinkMode::Udp) },
        Refusal::SecurityRequired { wanted: SecurityKind::Tls },
        Refusal::OffsetOutOfRange,
        Refusal::Quota,
        Refusal::Draining { retry_after_ms: 9 },
        Refusal::Malformed,
        Refusal::Other { code: 200 },
    ]
}

fn messages() -> Vec<Message> {
    let mut all = vec![
        Message::Hello(Hello::open(id(), LinkMode::Kernel)),
        Message::Hello(full_hello()),
        Message::Welcome(Welcome::to_new(&full_hello())),
        Message::Welcome(full_welcome()),
        Message::Challenge(Challenge { nonce: [1; 32], proof: [2; 32] }),
        Message::Answer(Answer { proof: [3; 32] }),
    ];
    all.push(Message::Refuse(Refuse {
        refusal: Refusal::Ended { offset: 7 },
        why: Some("no way there".into()),
    }));
    all.extend(refusals().into_iter().map(|refusal| Message::Refuse(refusal.into())));
    all
}

#[test]
fn every_message_comes_back_whatever_follows_it() {
    for message in messages() {
        let mut bytes = message.to_bytes();
        let consumed_bytes = bytes.len();
        bytes.extend_from_slice(b"the stream itself");
        assert_eq!(decode(&bytes), Ok(Decoded::Message { message, consumed_bytes }));
    }
}

#[test]
fn every_shorter_start_needs_more_and_says_how_much() {
    for message in messages() {
        let bytes = message.to_bytes();
        for length in 0..bytes.len() {
            let needed = if length < PREFIX_BYTES { PREFIX_BYTES } else { bytes.len() };
            assert_eq!(decode(&bytes[..length]), Ok(Decoded::NeedMore { at_least: needed }), "{message:?}");
        }
    }
}

/// The worked example of `PROTOCOL.md`, section 1.9.
#[test]
fn the_document_shows_these_bytes() {
    let document = include_str!("../../../../../PROTOCOL.md");
    let hello = Hello { auto: true, direct_proof: Some(0x0123_4567), ..Hello::open(id(), LinkMode::Kernel) };
    let welcome = Welcome { keep_ms: 86_400_000, ..Welcome::to_new(&hello) };
    let refuse = Message::Refuse(Refusal::StaleEpoch { current: 3 }.into());
    for message in [Message::Hello(hello), Message::Welcome(welcome), refuse] {
        let hex: Vec<String> = message.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let dump: Vec<String> = hex.chunks(16).map(|line| line.join(" ")).collect();
        let dump = dump.join("\n");
        assert!(document.contains(&dump), "PROTOCOL.md lacks:\n{dump}");
    }
}

#[test]
fn the_document_names_every_refusal() {
    let document = include_str!("../../../../../PROTOCOL.md");
    for refusal in refusals() {
        let row = format!("| {} | `{}` |", refusal.code(), refusal.name());
        assert!(
            document.contains(&row) || matches!(refusal, Refusal::Other { .. }),
            "PROTOCOL.md lacks: {row}"
        );
    }
}

#[test]
fn other_protocols_are_recognised_from_their_first_bytes() {
    let cases: [(&[u8], ForeignProtocol); 16] = [
        (b"GET / HTTP/1.1\r\n", ForeignProtocol::Http),
        (b"HTTP/1.1 400 Bad Request", ForeignProtocol::Http),
        (b"PRI * HTTP/2.0", ForeignProtocol::Http),
        (b"H", ForeignProtocol::Http),
        (b"PO", ForeignProtocol::Http),
        (&[22, 3, 1, 2, 0], ForeignProtocol::Tls),
        (&[22], ForeignProtocol::Tls),
        (&[21, 3, 3, 0, 2], ForeignProtocol::Tls),
        (b"SSH-2.0-OpenSSH_9.2", ForeignProtocol::Ssh),
        (b"S", ForeignProtocol::Ssh),
        (b"PROXY TCP4 ", ForeignProtocol::ProxyV1),
        (b"\r\n\r\n\0\r\nQUIT\n!", ForeignProtocol::ProxyV2),
        (b"\r", ForeignProtocol::ProxyV2),
        (b"P", ForeignProtocol::Unknown),
        (&[0xD7, b'O', b'L', b'U'], ForeignProtocol::Unknown),
        (&[22, 4], ForeignProtocol::Unknown),
    ];
    for (bytes, protocol) in cases {
        assert_eq!(decode(bytes), Err(WireError::Foreign(protocol)), "{bytes:?}");
        assert!(protocol.to_string().starts_with("peer "));
    }
}

#[test]
fn other_versions_are_refused_but_their_refusals_are_read() {
    let mut hello = Message::Hello(full_hello()).to_bytes();
    hello[4] = VERSION + 1;
    assert_eq!(decode(&hello), Err(WireError::Version(VERSION + 1)));
    hello[4] = 0;
    assert_eq!(decode(&hello), Err(WireError::Version(0)));
    let mut refuse = Message::Refuse(Refusal::Version { min: 3, max: 4 }.into()).to_bytes();
    refuse[4] = 4;
    assert!(matches!(decode(&refuse), Ok(Decoded::Message { message: Message::Refuse(_), .. })));
}

fn with_field(mut bytes: Vec<u8>, field: &[u8]) -> Result<Decoded, WireError> {
    bytes.extend_from_slice(field);
    let body_bytes = u16::try_from(bytes.len() - PREFIX_BYTES).unwrap();
    bytes[6..8].copy_from_slice(&body_bytes.to_be_bytes());
    decode(&bytes)
}

#[test]
fn unknown_tags_are_ignored_and_known_ones_are_strict() {
    let bytes = Message::Hello(Hello::open(id(), LinkMode::Kernel)).to_bytes();
    let plain = decode(&bytes);
    let Ok(Decoded::Message { message, .. }) = plain else { panic!("{plain:?}") };
    match with_field(bytes.clone(), &[99, 2, 0, 0]) {
        Ok(Decoded::Message { message: same, .. }) => assert_eq!(same, message),
        other => panic!("{other:?}"),
    }
    let error = |field: &[u8]| with_field(bytes.clone(), field).unwrap_err();
    assert_eq!(error(&[99, 2, 0]), WireError::Truncated);
    assert_eq!(error(&[99]), WireError::Truncated);
    assert_eq!(error(&[99, 0, 99, 0]), WireError::Duplicate(99));
    assert_eq!(error(&[3, 2, 0, 1, 3, 2, 0, 1]), WireError::Duplicate(3));
    assert_eq!(error(&[3, 3, 0, 1, 2]), WireError::FieldLength { tag: 3, bytes: 3 });
    let mut proof_first = vec![6, 32];
    proof_first.extend_from_slice(&[0; 32]);
    proof_first.extend_from_slice(&[3, 2, 0, 1]);
    assert_eq!(error(&proof_first), WireError::Value("proof"));
}

#[test]
fn impossible_values_are_errors() {
    let hello = |change: fn(&mut Hello)| {
        let mut hello = full_hello();
        change(&mut hello);
        decode(&Message::Hello(hello).to_bytes()).unwrap_err()
    };
    assert_eq!(hello(|hello| hello.epoch = 0), WireError::Value("epoch"));
    assert_eq!(hello(|hello| hello.retained_offset = 31), WireError::Value("retained offset"));
    assert_eq!(hello(|hello| hello.end_offset = Some(29)), WireError::Value("end offset"));
    assert_eq!(hello(|hello| hello.next_offset = OFFSET_MAX), WireError::Value("next offset"));
    let bytes = Message::Hello(full_hello()).to_bytes();
    for (index, name) in [(32, "intent"), (33, "mode"), (34, "security")] {
        let mut bytes = bytes.clone();
        bytes[index] = 9;
        assert_eq!(decode(&bytes), Err(WireError::Value(name)));
    }
    let mut long = bytes.clone();
    long[6..8].copy_from_slice(&2049u16.to_be_bytes());
    assert_eq!(decode(&long[..8]), Err(WireError::TooLong(2049)));
    let mut kind = bytes;
    kind[5] = 6;
    assert_eq!(decode(&kind), Err(WireError::Kind(6)));
}

#[test]
fn a_server_cannot_send_a_client_away_for_ever_nor_past_the_last_epoch() {
    let refused = |refusal| decode(&Message::Refuse(Refuse::from(refusal)).to_bytes());
    let hour = Message::Refuse(Refusal::Busy { retry_after_ms: RETRY_AFTER_MS_MAX }.into());
    let busy = refused(Refusal::Busy { retry_after_ms: u64::MAX });
    assert!(matches!(busy, Ok(Decoded::Message { message, .. }) if message == hour));
    assert_eq!(refused(Refusal::StaleEpoch { current: OFFSET_MAX }), Err(WireError::Value("epoch")));
    assert_eq!(refused(Refusal::Ended { offset: u64::MAX }), Err(WireError::Value("ended offset")));
}

#[test]
fn a_refusal_brings_a_reason_that_people_can_read() {
    let refusal = Refusal::Ended { offset: 7 };
    let came = |bytes: &[u8]| match decode(bytes) {
        Ok(Decoded::Message {
            message: Message::Refuse(Refuse { refusal: Refusal::Ended { offset: 7 }, why }),
            ..
        }) => why,
        other => panic!("{other:?}"),
    };
    let with = |why: &str| Message::Refuse(Refuse { refusal, why: Some(why.into()) }).to_bytes();
    assert_eq!(came(&with("no way\x1b[2J\nthere")).as_deref(), Some("no way?[2J?there"));
    assert_eq!(came(&with(&"\u{e4}".repeat(200))).as_deref(), Some("\u{e4}".repeat(127).as_str()));
    assert_eq!(came(&Message::Refuse(refusal.into()).to_bytes()), None);
    // What is no UTF-8, and a tag of later times.
    let mut bytes = with("xy");
    let at = bytes.len() - 2;
    bytes[at] = 0xff;
    bytes.extend_from_slice(&[99, 1, 0]);
    bytes[7] += 3;
    assert_eq!(came(&bytes).as_deref(), Some("?y"));
    // PROTOCOL 1.4: a tag comes once.
    let mut bytes = with("xy");
    bytes.extend_from_slice(&[7, 0]);
    bytes[7] += 2;
    assert_eq!(decode(&bytes), Err(WireError::Duplicate(7)));
}

#[test]
fn refusals_say_what_to_do() {
    for refusal in refusals() {
        let text = refusal.to_string();
        assert!(text.contains(": ") && text.len() > 40 && text.is_ascii(), "{text}");
        assert_eq!(text.chars().next().map(|first| first.is_lowercase()), Some(true), "{text}");
    }
    assert_eq!(refusals().len(), Refusal::KINDS + 1);
}

#[test]
fn an_id_shows_half_of_itself() {
    assert_eq!(id().to_string(), "3031323334353637");
    assert!(!format!("{:?}", full_hello()).contains("3839616263646566"));
    assert_eq!(id().to_hex().parse(), Ok(id()));
    assert_eq!("30".parse::<SessionId>(), Err(IdError));
    assert_eq!("zz".repeat(16).parse::<SessionId>(), Err(IdError));
}

#[test]
fn random_damage_never_panics_and_survivors_encode_again() {
    let mut random = SplitMix64::new(5);
    let all = messages();
    for _ in 0..50_000 {
        let which = usize::try_from(random.below(all.len() as u64)).unwrap();
        let mut bytes = all[which].to_bytes();
        for _ in 0..=random.below(4) {
            let index = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[index] ^= 1 << random.below(8);
        }
        if let Ok(Decoded::Message { message, .. }) = decode(&bytes) {
            let again = decode(&message.to_bytes());
            assert!(matches!(again, Ok(Decoded::Message { message: same, .. }) if same == message));
        }
    }
}
