//! Taking over somebody else's session.

use super::ALONE;
use super::raw::{Raw, Victim, bytes_of, fresh_id, hello};
use crate::common::{certificates, psk, quick, tls_of_both_ends, within};
use outlast_session::proto::{
    Answer, BINDING_LABEL, ClientHandshake, ClientStep, Credentials, Hello, Intent, Message, Refusal,
    SessionId, SessionKey, Welcomed,
};
use outlast_session::{Config, Security, TlsConfig};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

fn resume(id: SessionId, epoch: u64) -> Hello {
    let mut hello = hello(id);
    (hello.intent, hello.epoch) = (Intent::Resume, epoch);
    hello
}

/// One whole handshake; what was sent, and how it ended.
pub(super) fn shake(
    raw: &mut Raw,
    hello: Hello,
    credentials: Credentials,
    nonce: [u8; 32],
) -> (Vec<Vec<u8>>, ClientStep) {
    let mut handshake = ClientHandshake::new(hello, credentials, nonce).unwrap();
    let mut sent = vec![handshake.start().to_vec()];
    raw.say(handshake.start());
    loop {
        let message = raw.hear().expect("an answer").to_bytes();
        match handshake.feed(&message) {
            ClientStep::Send { bytes, .. } => {
                raw.say(&bytes);
                sent.push(bytes);
            }
            ClientStep::NeedMore => {}
            end => return (sent, end),
        }
    }
}

fn welcomed(step: ClientStep) -> Welcomed {
    match step {
        ClientStep::Welcomed(welcomed) => *welcomed,
        other => panic!("not welcomed: {other:?}"),
    }
}

fn refusal(step: &ClientStep) -> Refusal {
    match step {
        ClientStep::Refused(refuse) => refuse.refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn open_sessions_are_as_safe_as_their_id_and_their_epoch() {
    let _shared = ALONE.read();
    within(|| {
        let victim = Victim::new(quick());
        let id = victim.session.id();
        // Half of the id, as it is shown to people, is not enough.
        let mut guess = *id.as_bytes();
        guess[15] ^= 1;
        let mut raw = Raw::connect(victim.address());
        raw.say(&bytes_of(&resume(SessionId::from_bytes(guess), 2)));
        assert_eq!(raw.verdict(), Some(Refusal::UnknownSession));
        // The first Hello again, and other old ones: their epoch is spent.
        for hello in [hello(id), resume(id, 1)] {
            let mut raw = Raw::connect(victim.address());
            raw.say(&bytes_of(&hello));
            assert_eq!(raw.verdict(), Some(Refusal::StaleEpoch { current: 1 }));
        }
        // A position that was never sent changes nothing, either.
        for (intent, offset) in [(Intent::Resume, 1 << 50), (Intent::Open, 1 << 50)] {
            let mut hello = resume(id, 9);
            (hello.intent, hello.next_offset) = (intent, offset);
            let mut raw = Raw::connect(victim.address());
            raw.say(&bytes_of(&hello));
            assert_eq!(raw.verdict(), Some(Refusal::OffsetOutOfRange));
        }
        for (name, count) in [("unknown_session", 1), ("stale_epoch", 2), ("offset_out_of_range", 2)] {
            assert_eq!(victim.refused(name), count, "{name}");
        }
        victim.unharmed();
    });
}

/// The documented exception (PROTOCOL 6.2): in open security whoever knows the id can take the session.
#[test]
fn whoever_knows_the_id_of_an_open_session_may_resume_it() {
    let _shared = ALONE.read();
    within(|| {
        let config = std::sync::Arc::new(quick());
        let listener = outlast_session::blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let mut raw = Raw::connect(listener.local_addr());
        let id = fresh_id();
        let (_, step) = shake(&mut raw, hello(id), Credentials::Open, [0; 32]);
        assert_eq!(welcomed(step).welcome.epoch, 1);
        let mut thief = Raw::connect(listener.local_addr());
        let (_, step) = shake(&mut thief, resume(id, 2), Credentials::Open, [0; 32]);
        assert_eq!(welcomed(step).welcome.epoch, 2);
        raw.drain();
        assert_eq!(listener.sessions().len(), 1);
    });
}

#[test]
fn psk_sessions_are_not_resumed_without_their_key() {
    let _shared = ALONE.read();
    within(|| {
        let ours = psk(1);
        let victim = Victim::new(Config { security: Security::Psk(ours.clone()), ..quick() });
        let id = victim.session.id();
        // No proof at all.
        let mut raw = Raw::connect(victim.address());
        raw.say(&bytes_of(&resume(id, 2)));
        assert!(matches!(raw.verdict(), Some(Refusal::SecurityRequired { .. })));
        // The right security, but no nonce and no proof.
        let mut naked = bytes_of(&resume(id, 2));
        naked[34] = 2;
        let mut raw = Raw::connect(victim.address());
        raw.say(&naked);
        assert_eq!(raw.verdict(), Some(Refusal::UnknownSession));
        // A session key of one's own making.
        for nonce in [[7; 32], rand::random()] {
            let key = Some(SessionKey::from_bytes([9; 32]));
            let credentials = Credentials::Psk { psk: ours.clone(), key };
            let (_, step) = shake(&mut Raw::connect(victim.address()), resume(id, 2), credentials, nonce);
            assert_eq!(refusal(&step), Refusal::UnknownSession);
        }
        // Ending it takes the same.
        let mut abort = resume(id, 2);
        abort.intent = Intent::Abort;
        let key = Some(SessionKey::from_bytes([9; 32]));
        let credentials = Credentials::Psk { psk: ours.clone(), key };
        let (_, step) = shake(&mut Raw::connect(victim.address()), abort, credentials, [7; 32]);
        assert_eq!(refusal(&step), Refusal::UnknownSession);
        // An answer to the challenge that proves nothing.
        let mut raw = Raw::connect(victim.address());
        let opening =
            ClientHandshake::new(hello(id), Credentials::Psk { psk: ours.clone(), key: None }, [5; 32]);
        raw.say(opening.unwrap().start());
        assert!(matches!(raw.hear(), Some(Message::Challenge(_))));
        raw.say(&Message::Answer(Answer { proof: [1; 32] }).to_bytes());
        assert_eq!(raw.verdict(), Some(Refusal::BadKey));
        // A holder of the key with an epoch that is spent.
        let credentials = Credentials::Psk { psk: ours.clone(), key: None };
        let (_, step) = shake(&mut Raw::connect(victim.address()), hello(id), credentials, [5; 32]);
        assert_eq!(refusal(&step), Refusal::StaleEpoch { current: 1 });
        assert_eq!((victim.refused("bad_key"), victim.refused("unknown_session")), (1, 4));
        assert_eq!(victim.refused("security_required"), 1);
        victim.unharmed();
    });
}

/// Everything a client ever sent, sent again.
#[test]
fn captured_psk_handshakes_are_of_no_use() {
    let _shared = ALONE.read();
    within(|| {
        let ours = psk(1);
        let victim = Victim::new(Config { security: Security::Psk(ours.clone()), ..quick() });
        let id = fresh_id();
        let credentials = |key| Credentials::Psk { psk: ours.clone(), key };
        let mut first = Raw::connect(victim.address());
        let (opening, step) = shake(&mut first, hello(id), credentials(None), rand::random());
        let key = welcomed(step).session_key;
        let mut second = Raw::connect(victim.address());
        let (resuming, step) = shake(&mut second, resume(id, 2), credentials(key.clone()), rand::random());
        welcomed(step);
        // The challenge is another one this time.
        let mut raw = Raw::connect(victim.address());
        raw.say(&opening[0]);
        assert!(matches!(raw.hear(), Some(Message::Challenge(_))));
        raw.say(&opening[1]);
        assert_eq!(raw.verdict(), Some(Refusal::BadKey));
        // The proof is right, the epoch is spent.
        let mut raw = Raw::connect(victim.address());
        raw.say(&resuming[0]);
        assert_eq!(raw.verdict(), Some(Refusal::StaleEpoch { current: 2 }));
        // A later epoch does not fit the proof.
        let mut later = resuming[0].clone();
        later[31] = 3;
        let mut raw = Raw::connect(victim.address());
        raw.say(&later);
        assert_eq!(raw.verdict(), Some(Refusal::UnknownSession));
        // And the session is still its owner's.
        let (_, step) =
            shake(&mut Raw::connect(victim.address()), resume(id, 3), credentials(key), rand::random());
        assert_eq!(welcomed(step).welcome.epoch, 3);
        victim.unharmed();
    });
}

fn tls_raw(address: SocketAddr) -> (Raw, [u8; 32]) {
    tls_raw_as(certificates().client(None), address)
}

fn tls_raw_as(client: Arc<rustls::ClientConfig>, address: SocketAddr) -> (Raw, [u8; 32]) {
    let (stream, binding) = tls_stream(client, address);
    (Raw::over(stream), binding)
}

/// TLS with a server, and what its proofs are bound to.
pub(super) fn tls_stream(
    client: Arc<rustls::ClientConfig>,
    address: SocketAddr,
) -> (rustls::StreamOwned<rustls::ClientConnection, TcpStream>, [u8; 32]) {
    let name = rustls_pki_types::ServerName::try_from("localhost").unwrap();
    let mut connection = rustls::ClientConnection::new(client, name).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    let binding = connection.export_keying_material([0; 32], BINDING_LABEL, None).unwrap();
    (rustls::StreamOwned::new(connection, stream), binding)
}

#[test]
fn tls_sessions_are_bound_to_key_and_connection() {
    let _shared = ALONE.read();
    within(|| {
        let security = tls_of_both_ends();
        let victim = Victim::new(Config { security, ..quick() });
        let stolen = victim.session.id();
        let address = victim.address();
        // Opening it again takes the nonce it was opened with, resuming it the key.
        for epoch in [1, 2] {
            let (mut raw, binding) = tls_raw(address);
            let mut opening = hello(stolen);
            opening.epoch = epoch;
            let credentials = Credentials::Tls { binding, key: None };
            let (_, step) = shake(&mut raw, opening, credentials, rand::random());
            assert_eq!(refusal(&step), Refusal::BadKey);
        }
        let (mut raw, binding) = tls_raw(address);
        let credentials = Credentials::Tls { binding, key: Some(SessionKey::from_bytes([9; 32])) };
        let (_, step) = shake(&mut raw, resume(stolen, 2), credentials, rand::random());
        assert_eq!(refusal(&step), Refusal::UnknownSession);
        // A session of the attacker's own: its key is right, the connection is not.
        let id = fresh_id();
        let (mut own, binding) = tls_raw(address);
        let (_, step) = shake(&mut own, hello(id), Credentials::Tls { binding, key: None }, rand::random());
        let key = welcomed(step).session_key;
        let (mut raw, _) = tls_raw(address);
        let elsewhere = Credentials::Tls { binding, key: key.clone() };
        let (_, step) = shake(&mut raw, resume(id, 2), elsewhere, rand::random());
        assert_eq!(refusal(&step), Refusal::UnknownSession);
        let (mut raw, binding) = tls_raw(address);
        let (_, step) = shake(&mut raw, resume(id, 2), Credentials::Tls { binding, key }, rand::random());
        assert_eq!(welcomed(step).welcome.epoch, 2);
        assert_eq!((victim.refused("bad_key"), victim.refused("unknown_session")), (2, 2));
        victim.unharmed();
    });
}

/// PROTOCOL 6.10: a key that was stolen is of no use to another client of the same authority.
#[test]
fn a_session_belongs_to_the_certificate_that_opened_it() {
    let _shared = ALONE.read();
    within(|| {
        let (owner, other) = (certificates().client(Some(())), certificates().other_client());
        let security = Security::Tls(TlsConfig {
            client: Some(owner.clone()),
            server_name: Some("localhost".into()),
            server: Some(certificates().server(true)),
        });
        let victim = Victim::new(Config { security, ..quick() });
        let address = victim.address();
        let (id, nonce) = (fresh_id(), rand::random());
        let (mut raw, binding) = tls_raw_as(owner.clone(), address);
        let (_, step) = shake(&mut raw, hello(id), Credentials::Tls { binding, key: None }, nonce);
        let key = welcomed(step).session_key;
        // Everything is right but the certificate: the key, the nonce, the connection, the epoch.
        for intent in [Intent::Resume, Intent::Abort, Intent::Open] {
            let (mut raw, binding) = tls_raw_as(other.clone(), address);
            let opens = intent == Intent::Open;
            let key = key.clone().filter(|_| !opens);
            let mut hello = resume(id, 2);
            hello.intent = intent;
            let (_, step) = shake(&mut raw, hello, Credentials::Tls { binding, key }, nonce);
            assert_eq!(refusal(&step), if opens { Refusal::BadKey } else { Refusal::UnknownSession });
        }
        let (mut raw, binding) = tls_raw_as(owner, address);
        let (_, step) = shake(&mut raw, resume(id, 2), Credentials::Tls { binding, key }, rand::random());
        assert_eq!(welcomed(step).welcome.epoch, 2);
        victim.unharmed();
    });
}
