use super::*;
use crate::proto::wire::{ForeignProtocol, LinkMode};
use alloc::vec;

const CLIENT_NONCE: [u8; 32] = [0xC1; 32];
const SERVER_NONCE: [u8; 32] = [0x5E; 32];
const BINDING: [u8; 32] = [0xB1; 32];

fn id() -> SessionId {
    SessionId::from_bytes([0x1D; 16])
}

fn psk(byte: u8) -> Psk {
    Psk::from_bytes(&[byte; 32]).unwrap()
}

fn opening() -> Hello {
    Hello::open(id(), LinkMode::Kernel)
}

fn resume(epoch: u64) -> Hello {
    Hello { epoch, intent: Intent::Resume, next_offset: 5, sent_offset: 9, ..opening() }
}

fn client(hello: Hello, credentials: Credentials) -> ClientHandshake {
    ClientHandshake::new(hello, credentials, CLIENT_NONCE).unwrap()
}

/// What the two ends came to.
#[derive(Debug)]
struct Outcome {
    client: ClientStep,
    server: Result<Box<Greeted>, HandshakeError>,
}

impl Outcome {
    fn key(&self) -> SessionKey {
        let ClientStep::Welcomed(welcomed) = &self.client else { panic!("{:?}", self.client) };
        let server = self.server.as_ref().unwrap();
        assert_eq!(welcomed.session_key, server.session_key);
        welcomed.session_key.clone().unwrap()
    }
}

/// Joins the two ends, byte by byte if `dribble`, with a stream right behind every message.
fn run(mut client: ClientHandshake, demand: Demand, known: Option<SessionKey>, dribble: bool) -> Outcome {
    let mut server = ServerHandshake::new(demand, SERVER_NONCE);
    let mut to_server = client.start().to_vec();
    let mut server_outcome = None;
    for _ in 0..4 {
        let mut to_client = Vec::new();
        let mut step = feed_slowly(&mut to_server, dribble, |bytes| server.feed(bytes));
        if let ServerStep::NeedKey { id: asked } = step {
            assert_eq!(asked, id());
            step = server.provide_key(known.clone());
        }
        match step {
            ServerStep::Send { bytes, consumed_bytes } => {
                to_server.drain(..consumed_bytes);
                to_client = bytes;
            }
            ServerStep::Greeted(greeted) => {
                let rest = &to_server[greeted.consumed_bytes..];
                assert_eq!(rest, b"STREAM", "the stream follows the last message exactly");
                to_client = match greeted.auth {
                    Auth::Proven => server.accept(Welcome::to_new(&greeted.hello)),
                    Auth::Unproven => refuse(Refusal::UnknownSession),
                };
                server_outcome = Some(Ok(greeted));
            }
            ServerStep::Failed(error) => {
                to_client = error.refusal().map(refuse).unwrap_or_default();
                server_outcome = Some(Err(error));
            }
            ServerStep::NeedMore | ServerStep::NeedKey { .. } => {}
        }
        match feed_slowly(&mut to_client, dribble, |bytes| client.feed(bytes)) {
            ClientStep::Send { bytes, consumed_bytes } => {
                assert_eq!(&to_client[consumed_bytes..], b"STREAM");
                to_server = bytes;
            }
            step => {
                if let ClientStep::Welcomed(welcomed) = &step {
                    assert_eq!(&to_client[welcomed.consumed_bytes..], b"STREAM");
                }
                return Outcome { client: step, server: server_outcome.unwrap() };
            }
        }
    }
    panic!("the handshake does not end");
}

/// Hands growing starts of `bytes` to `feed` until it comes to something; the stream is there as well.
fn feed_slowly<S: core::fmt::Debug>(
    bytes: &mut Vec<u8>,
    dribble: bool,
    mut feed: impl FnMut(&[u8]) -> S,
) -> S {
    let message_bytes = bytes.len();
    bytes.extend_from_slice(b"STREAM");
    if dribble {
        for length in 0..message_bytes {
            let step = feed(&bytes[..length]);
            assert!(alloc::format!("{step:?}") == "NeedMore", "{step:?} after {length} bytes");
        }
    }
    feed(bytes)
}

#[test]
fn open_security_takes_one_message_each_way() {
    for dribble in [false, true] {
        let opening = client(opening(), Credentials::Open);
        assert!(opening.carries_early_data());
        let outcome = run(opening, Demand::Open, None, dribble);
        assert!(matches!(outcome.client, ClientStep::Welcomed(_)));
        assert_eq!(outcome.server.unwrap().hello.nonce, None);
        let outcome = run(client(resume(2), Credentials::Open), Demand::Open, None, dribble);
        assert!(matches!(outcome.client, ClientStep::Welcomed(_)));
    }
}

#[test]
fn psk_opens_in_two_round_trips_and_resumes_in_one() {
    for dribble in [false, true] {
        let credentials = Credentials::Psk { psk: psk(1), key: None };
        let opening = client(opening(), credentials);
        assert!(!opening.carries_early_data());
        let key = run(opening, Demand::Psk(psk(1)), None, dribble).key();
        let credentials = Credentials::Psk { psk: psk(1), key: Some(key.clone()) };
        let resumed = run(client(resume(2), credentials), Demand::Psk(psk(1)), Some(key.clone()), dribble);
        assert_eq!(resumed.key(), key);
    }
}

#[test]
fn tls_opens_and_resumes_in_one_round_trip() {
    for dribble in [false, true] {
        let demand = Demand::Tls { binding: BINDING };
        let opening = client(opening(), Credentials::Tls { binding: BINDING, key: None });
        assert!(opening.carries_early_data());
        let key = run(opening.clone(), demand.clone(), None, dribble).key();
        // The Welcome was lost: opened again, with the same nonce.
        assert_eq!(run(opening, demand.clone(), Some(key.clone()), dribble).key(), key);
        let credentials = Credentials::Tls { binding: BINDING, key: Some(key.clone()) };
        assert_eq!(run(client(resume(2), credentials), demand, Some(key.clone()), dribble).key(), key);
    }
}

#[test]
fn wrong_keys_fail_at_whoever_sees_it_first() {
    let wrong = Some(SessionKey::from_bytes([2; 32]));
    let right = Some(SessionKey::from_bytes([1; 32]));
    // A client with another key notices that the server has not got it.
    let credentials = Credentials::Psk { psk: psk(1), key: None };
    let mut opening_client = client(opening(), credentials);
    let mut server = ServerHandshake::new(Demand::Psk(psk(2)), SERVER_NONCE);
    let ServerStep::Send { bytes, .. } = server.feed(opening_client.start()) else { panic!() };
    assert!(matches!(opening_client.feed(&bytes), ClientStep::Failed(HandshakeError::BadProof)));
    // A client that goes on all the same is found out by the server.
    let answer = Message::Answer(Answer { proof: [0; 32] }).to_bytes();
    assert!(matches!(server.feed(&answer), ServerStep::Failed(HandshakeError::BadProof)));
    // Resumes.
    let credentials = Credentials::Psk { psk: psk(1), key: wrong.clone() };
    let outcome = run(client(resume(2), credentials), Demand::Psk(psk(1)), right.clone(), false);
    assert!(matches!(outcome.client, ClientStep::Refused(Refuse { refusal: Refusal::UnknownSession, .. })));
    assert_eq!(outcome.server.unwrap().auth, Auth::Unproven);
    // Openings over TLS of a session that another client has opened.
    let opening = client(opening(), Credentials::Tls { binding: BINDING, key: None });
    let outcome = run(opening, Demand::Tls { binding: BINDING }, wrong, false);
    assert!(matches!(outcome.client, ClientStep::Refused(Refuse { refusal: Refusal::BadKey, .. })));
}

#[test]
fn a_proof_is_of_no_use_on_another_tls_connection() {
    let key = Some(SessionKey::from_bytes([1; 32]));
    let credentials = Credentials::Tls { binding: BINDING, key: key.clone() };
    let outcome = run(client(resume(2), credentials), Demand::Tls { binding: [0xB2; 32] }, key, false);
    assert_eq!(outcome.server.unwrap().auth, Auth::Unproven);
}

/// PROTOCOL 3.7: what a stranger tries on a session that is there looks as if it were not.
#[test]
fn without_the_right_proof_known_and_unknown_sessions_look_alike() {
    let [key, other] = [1, 2].map(|byte| Some(SessionKey::from_bytes([byte; 32])));
    let zero = Some(SessionKey::from_bytes([0; 32]));
    for intent in [Intent::Resume, Intent::Abort] {
        let hello = Hello { intent, ..resume(2) };
        let proven = |key: &Option<SessionKey>| {
            let credentials = Credentials::Psk { psk: psk(1), key: key.clone() };
            client(hello.clone(), credentials).hello().clone()
        };
        let naked = Hello { security: SecurityKind::Psk, nonce: Some([7; 32]), ..hello.clone() };
        let nonceless = Hello { nonce: None, ..naked.clone() };
        for stranger in [proven(&other), proven(&zero), naked, nonceless] {
            let bytes = Message::Hello(stranger).to_bytes();
            let mut stories = [&key, &None].map(|known| {
                let mut server = ServerHandshake::new(Demand::Psk(psk(1)), SERVER_NONCE);
                let first = alloc::format!("{:?}", server.feed(&bytes));
                let ServerStep::Greeted(greeted) = server.provide_key(known.clone()) else { panic!() };
                assert_eq!((greeted.auth, greeted.session_key), (Auth::Unproven, None));
                first
            });
            let [known, unknown] = &mut stories;
            assert_eq!(known, unknown);
        }
        let outcome = run(
            client(hello.clone(), Credentials::Psk { psk: psk(1), key: key.clone() }),
            Demand::Psk(psk(1)),
            None,
            false,
        );
        assert_eq!(outcome.server.unwrap().auth, Auth::Unproven);
        assert!(matches!(
            outcome.client,
            ClientStep::Refused(Refuse { refusal: Refusal::UnknownSession, .. })
        ));
    }
}

/// PROTOCOL 3.11: as a resume, and no resume can be made one.
#[test]
fn an_abort_is_proven_as_a_resume_is() {
    let [right, wrong] = [1, 2].map(|byte| SessionKey::from_bytes([byte; 32]));
    let abort = || Hello { intent: Intent::Abort, reason: Some("enough".into()), ..resume(2) };
    for (demand, credentials) in [
        (Demand::Psk(psk(1)), Credentials::Psk { psk: psk(1), key: Some(right.clone()) }),
        (Demand::Tls { binding: BINDING }, Credentials::Tls { binding: BINDING, key: Some(right.clone()) }),
    ] {
        let greet = |bytes: &[u8], key: &SessionKey| {
            let mut server = ServerHandshake::new(demand.clone(), SERVER_NONCE);
            let ServerStep::NeedKey { .. } = server.feed(bytes) else { panic!() };
            match server.provide_key(Some(key.clone())) {
                ServerStep::Greeted(greeted) => Some((greeted.auth, greeted.hello)),
                _ => None,
            }
        };
        let proven =
            |bytes: &[u8], key: &SessionKey| greet(bytes, key).is_some_and(|(auth, _)| auth == Auth::Proven);
        let aborting = client(abort(), credentials.clone());
        assert!(!aborting.carries_early_data());
        let (auth, hello) = greet(aborting.start(), &right).unwrap();
        assert_eq!(
            (auth, hello.intent, hello.reason.as_deref()),
            (Auth::Proven, Intent::Abort, Some("enough"))
        );
        assert!(!proven(aborting.start(), &wrong));
        let mut resuming = client(resume(2), credentials).start().to_vec();
        assert!(proven(&resuming, &right));
        resuming[32] = Intent::Abort as u8;
        assert!(!proven(&resuming, &right));
    }
}

/// PROTOCOL 6.9: whoever holds it can end the session, and do nothing else with it.
#[test]
fn a_key_for_aborting_aborts_its_session_and_nothing_else() {
    let key = SessionKey::from_bytes([1; 32]);
    let other = SessionId::from_bytes([0x2D; 16]);
    for (demand, security, binding) in [
        (Demand::Psk(psk(1)), SecurityKind::Psk, None),
        (Demand::Tls { binding: BINDING }, SecurityKind::Tls, Some(BINDING)),
    ] {
        let auth = |hello: &[u8]| {
            let mut server = ServerHandshake::new(demand.clone(), SERVER_NONCE);
            let ServerStep::NeedKey { .. } = server.feed(hello) else { panic!() };
            let ServerStep::Greeted(greeted) = server.provide_key(Some(key.clone())) else { panic!() };
            greeted.auth
        };
        let with = |id: &SessionId, binding: Binding| Credentials::Abort {
            security,
            binding,
            key: key.abort_key(id),
        };
        let abort = || Hello { intent: Intent::Abort, ..resume(2) };
        let aborting = client(abort(), with(&id(), binding)).start().to_vec();
        assert_eq!(auth(&aborting), Auth::Proven);
        // That of another session, or of another TLS connection.
        assert_eq!(auth(client(abort(), with(&other, binding)).start()), Auth::Unproven);
        if binding.is_some() {
            assert_eq!(auth(client(abort(), with(&id(), Some([0; 32]))).start()), Auth::Unproven);
        }
        for intent in [Intent::Open, Intent::Resume] {
            let made =
                ClientHandshake::new(Hello { intent, ..resume(2) }, with(&id(), binding), CLIENT_NONCE);
            assert_eq!(made.err(), Some(HandshakeError::MissingKey));
        }
        // Not even with the means of this code: the proof covers the intent, and is not taken for another one's.
        let mut resuming = aborting.clone();
        resuming[32] = Intent::Resume as u8;
        assert_eq!(auth(&resuming), Auth::Unproven);
        let unproven = without_proof(&resuming).to_vec();
        let proof = key.abort_key(&id()).abort_proof(&binding, &unproven).into_bytes();
        let at = resuming.len() - proof.len();
        resuming[at..].copy_from_slice(&proof);
        assert_eq!(auth(&resuming), Auth::Unproven);
    }
}

#[test]
fn every_changed_bit_of_a_proven_hello_is_noticed() {
    let key = SessionKey::from_bytes([1; 32]);
    let credentials = Credentials::Psk { psk: psk(1), key: Some(key.clone()) };
    let hello = client(resume(2), credentials).start().to_vec();
    for bit in 0..hello.len() * 8 {
        let mut bytes = hello.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut server = ServerHandshake::new(Demand::Psk(psk(1)), SERVER_NONCE);
        match server.feed(&bytes) {
            ServerStep::Failed(_) | ServerStep::NeedMore => {}
            ServerStep::NeedKey { .. } => {
                let step = server.provide_key(Some(key.clone()));
                let ServerStep::Greeted(greeted) = step else { panic!("bit {bit}: {step:?}") };
                assert_eq!(greeted.auth, Auth::Unproven, "bit {bit}");
            }
            // The intent is not covered by a proof once it says "open": the challenge is then.
            ServerStep::Send { .. } => assert_eq!(bit / 8, 32),
            other @ ServerStep::Greeted(_) => panic!("bit {bit}: {other:?}"),
        }
    }
}

#[test]
fn every_changed_bit_of_a_proven_welcome_is_noticed() {
    let key = SessionKey::from_bytes([1; 32]);
    let credentials = Credentials::Psk { psk: psk(1), key: Some(key.clone()) };
    let client = client(resume(2), credentials);
    let mut server = ServerHandshake::new(Demand::Psk(psk(1)), SERVER_NONCE);
    server.feed(client.start());
    let ServerStep::Greeted(greeted) = server.provide_key(Some(key)) else { panic!() };
    let welcome = server.accept(Welcome::to_new(&greeted.hello));
    assert!(matches!(client.clone().feed(&welcome), ClientStep::Welcomed(_)));
    for bit in 0..welcome.len() * 8 {
        let mut bytes = welcome.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let step = client.clone().feed(&bytes);
        assert!(!matches!(step, ClientStep::Welcomed(_) | ClientStep::Send { .. }), "bit {bit}: {step:?}");
    }
}

#[test]
fn security_is_what_the_server_says() {
    let credentials = || {
        let key = Some(SessionKey::from_bytes([1; 32]));
        vec![
            Credentials::Open,
            Credentials::Psk { psk: psk(1), key: key.clone() },
            Credentials::Tls { binding: BINDING, key },
        ]
    };
    let demands = vec![Demand::Open, Demand::Psk(psk(1)), Demand::Tls { binding: BINDING }];
    for (wanted, demand) in demands.into_iter().enumerate() {
        for (used, credentials) in credentials().into_iter().enumerate() {
            for hello in [opening(), resume(3)] {
                let outcome = run_until_refused(client(hello, credentials.clone()), demand.clone());
                assert_eq!(outcome == Some(demand.kind()), wanted != used);
            }
        }
    }
}

fn run_until_refused(mut client: ClientHandshake, demand: Demand) -> Option<SecurityKind> {
    let ServerStep::Failed(error) = ServerHandshake::new(demand, SERVER_NONCE).feed(client.start()) else {
        return None;
    };
    match client.feed(&refuse(error.refusal()?)) {
        ClientStep::Refused(Refuse { refusal: Refusal::SecurityRequired { wanted }, .. }) => Some(wanted),
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_out_of_turn_fail() {
    let welcome = Message::Welcome(Welcome::to_new(&opening())).to_bytes();
    let challenge = Message::Challenge(Challenge { nonce: [0; 32], proof: [0; 32] }).to_bytes();
    let answer = Message::Answer(Answer { proof: [0; 32] }).to_bytes();
    let hello = client(opening(), Credentials::Open).start().to_vec();
    let out_of_turn = |step| matches!(step, HandshakeError::Wire(WireError::OutOfTurn(_)));
    for bytes in [&challenge, &answer, &hello] {
        let step = client(opening(), Credentials::Open).feed(bytes);
        assert!(matches!(step, ClientStep::Failed(error) if out_of_turn(error)));
    }
    let mut expecting_challenge = client(opening(), Credentials::Psk { psk: psk(1), key: None });
    let step = expecting_challenge.feed(&welcome);
    assert!(matches!(step, ClientStep::Failed(error) if out_of_turn(error)), "a welcome without a challenge");
    for bytes in [&challenge, &answer, &welcome] {
        let step = ServerHandshake::new(Demand::Open, SERVER_NONCE).feed(bytes);
        assert!(matches!(step, ServerStep::Failed(error) if out_of_turn(error)));
    }
}

#[test]
fn a_welcome_to_something_else_is_a_mismatch() {
    for change in
        [|welcome: &mut Welcome| welcome.epoch = 7, |welcome: &mut Welcome| welcome.mode = LinkMode::Inband]
    {
        let mut welcome = Welcome::to_new(&opening());
        change(&mut welcome);
        let step = client(opening(), Credentials::Open).feed(&Message::Welcome(welcome).to_bytes());
        assert!(matches!(step, ClientStep::Failed(HandshakeError::Mismatch)));
    }
}

#[test]
fn foreigners_get_no_answer_and_other_versions_get_one() {
    let feed = |bytes: &[u8]| match ServerHandshake::new(Demand::Open, SERVER_NONCE).feed(bytes) {
        ServerStep::Failed(error) => error,
        other => panic!("{other:?}"),
    };
    let http = feed(b"GET / HTTP/1.1\r\n");
    assert_eq!(http, HandshakeError::Wire(WireError::Foreign(ForeignProtocol::Http)));
    assert_eq!(http.refusal(), None);
    let mut hello = client(opening(), Credentials::Open).start().to_vec();
    hello[4] = 9;
    assert_eq!(feed(&hello).refusal(), Some(Refusal::Version { min: VERSION_MIN, max: VERSION }));
}

#[test]
fn a_resume_without_a_key_is_not_even_tried() {
    let credentials = Credentials::Tls { binding: BINDING, key: None };
    let outcome = ClientHandshake::new(resume(2), credentials, CLIENT_NONCE);
    assert_eq!(outcome.err(), Some(HandshakeError::MissingKey));
}
