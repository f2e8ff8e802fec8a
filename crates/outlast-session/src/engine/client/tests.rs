//! A resume that is given up at its deadline, with a server made by hand on a real connection: what that has said until
//! then, and nothing after it, counts.

use super::super::{Role, SessionState};
use super::*;
use crate::config::{AckMode, Config};
use crate::proto::{Decoded, LastWord, Message, Modes, SecurityKind, Welcome, decode, refuse};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// A client's engine and the listener of the server that it takes to be one.
struct Pair {
    engine: Arc<Engine>,
    listener: TcpListener,
}

/// A resume that waits for its answer.
struct Resume {
    link: Arc<Link>,
    shake: Box<Shake>,
    server: TcpStream,
    hello: Hello,
}

impl Pair {
    /// A session that was welcomed, has received nothing and has lost its link.
    fn lost() -> Self {
        Self::lost_in(AckMode::Fixed(LinkMode::Kernel))
    }

    fn lost_in(ack: AckMode) -> Self {
        let config = Config { ack, ..Config::default() };
        let engine = Engine::new(new_session_id(), Role::Client, Arc::new(config));
        let pair = Self { engine, listener: TcpListener::bind("127.0.0.1:0").unwrap() };
        let (link, mut server) = pair.connect();
        let Begun::Installed = pair.engine.client_begin(link).unwrap() else { panic!("no early data") };
        let link = pair.engine.link().unwrap();
        let welcome = Welcome::to_new(&hear(&mut server));
        answer(&mut server, &link, &Message::Welcome(welcome).to_bytes());
        pair.engine.lost(&link, "cut");
        assert_eq!(pair.engine.info().state, SessionState::Lost);
        pair
    }

    fn connect(&self) -> (Link, TcpStream) {
        let address = self.listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        let link = self.engine.client_link(stream.into(), "localhost", address).unwrap();
        (link, self.listener.accept().unwrap().0)
    }

    fn resume(&self) -> Resume {
        let (link, mut server) = self.connect();
        let Begun::Shake(link, mut shake) = self.engine.client_begin(link).unwrap() else {
            panic!("a resume waits for its welcome")
        };
        let step = shake.step(&link, &mut [0; 512]);
        assert_eq!(step.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let hello = hear(&mut server);
        assert_eq!(hello.intent, Intent::Resume);
        Resume { link, shake, server, hello }
    }

    /// The deadline has passed.
    fn give_up(&self, shake: Box<Shake>, link: &Arc<Link>) -> Verdict {
        self.engine.client_give_up(shake, link, io::ErrorKind::TimedOut.into())
    }
}

fn hear(server: &mut TcpStream) -> Hello {
    let mut input = vec![0; 512];
    let count = server.read(&mut input).unwrap();
    match decode(&input[..count]) {
        Ok(Decoded::Message { message: Message::Hello(hello), .. }) => hello,
        other => panic!("{other:?}"),
    }
}

/// Returns when the client's kernel has all of it.
fn answer(server: &mut TcpStream, link: &Link, bytes: &[u8]) {
    server.write_all(bytes).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while sys::unread_bytes(link).unwrap() < bytes.len() as u64 {
        assert!(Instant::now() < deadline, "the answer does not arrive");
        std::thread::yield_now();
    }
}

fn assert_tries_again(verdict: &Verdict) {
    let Verdict::Elsewhere { error } = verdict else { panic!("{verdict:?}") };
    assert_eq!(error, "the handshake took too long");
}

#[test]
fn a_server_that_says_nothing_is_tried_again_with_a_later_link() {
    let pair = Pair::lost();
    let Resume { link, shake, hello, .. } = pair.resume();
    assert_tries_again(&pair.give_up(shake, &link));
    assert!(link.is_dead(), "nothing that comes later may count");
    assert!(!pair.engine.is_over());
    // PROTOCOL 3.4
    assert!(pair.resume().hello.epoch > hello.epoch);
}

/// What the server says to the next link, which asks for `mode`.
fn refuse_next(pair: &Pair, mode: LinkMode, refusal: Refusal) -> Verdict {
    let Resume { link, shake, hello, .. } = pair.resume();
    assert_eq!(hello.mode, mode);
    let bytes = Message::Refuse(refusal.into()).to_bytes();
    pair.engine.client_feed(shake, &link, &bytes)
}

#[test]
fn in_auto_a_server_that_refuses_a_mode_is_asked_for_another() {
    if !sys::can_freeze() {
        return;
    }
    let said = |offered| Refusal::ModeRefused { offered };
    let pair = Pair::lost_in(AckMode::Auto);
    // PROTOCOL 3.13: one that does not say what it offers is asked for all.
    for mode in [LinkMode::Kernel, LinkMode::Inband, LinkMode::Udp] {
        let verdict = refuse_next(&pair, mode, said(Modes::NONE));
        let Verdict::Again { after: Duration::ZERO, .. } = verdict else { panic!("{verdict:?}") };
    }
    // One that does is asked for that, also for what a process before it has refused.
    for (mode, offered) in [(LinkMode::Window, LinkMode::Udp), (LinkMode::Udp, LinkMode::Kernel)] {
        let verdict = refuse_next(&pair, mode, said(Modes::only(offered)));
        let Verdict::Again { .. } = verdict else { panic!("{verdict:?}") };
    }
    // Where there is no other mode, a proof that a lost packet has spoilt is no reason to end the session.
    let verdict = refuse_next(&pair, LinkMode::Kernel, Refusal::NotDirect);
    let Verdict::Again { after, .. } = verdict else { panic!("{verdict:?}") };
    assert!(!after.is_zero());
    assert_eq!(pair.resume().hello.mode, LinkMode::Kernel);
    assert!(!pair.engine.is_over());
}

#[test]
fn a_mode_that_was_asked_for_is_not_exchanged_and_the_error_says_what_both_sides_want() {
    let pair = Pair::lost();
    let refusal = Refusal::ModeRefused { offered: Modes::only(LinkMode::Inband) };
    let verdict = refuse_next(&pair, LinkMode::Kernel, refusal);
    let Verdict::Fatal(error) = verdict else { panic!("{verdict:?}") };
    let said = error.to_string();
    assert!(said.contains("allows inband only") && said.contains("(--ack kernel here)"), "{said}");
}

#[test]
fn half_a_welcome_is_none() {
    let pair = Pair::lost();
    let Resume { link, shake, mut server, hello } = pair.resume();
    let welcome = Message::Welcome(Welcome::to_new(&hello)).to_bytes();
    answer(&mut server, &link, &welcome[..welcome.len() - 1]);
    assert_tries_again(&pair.give_up(shake, &link));
    // The rest comes too late.
    let _ = server.write_all(&welcome[welcome.len() - 1..]);
    assert_eq!(pair.engine.info().state, SessionState::Lost);
    assert_eq!(pair.resume().hello.next_offset, 0);
}

#[test]
fn a_welcome_that_had_arrived_counts_with_what_follows_it_and_the_link_is_lost() {
    // PROTOCOL 3.5: the server's kernel knows that "seen" was acknowledged.
    let pair = Pair::lost();
    let Resume { link, shake, mut server, hello } = pair.resume();
    let welcome = Message::Welcome(Welcome::to_new(&hello)).to_bytes();
    answer(&mut server, &link, &[&welcome[..], b"seen"].concat());
    let verdict = pair.give_up(shake, &link);
    assert!(matches!(verdict, Verdict::Installed), "{verdict:?}");
    let _ = server.write_all(b"too late");
    let info = pair.engine.info();
    assert_eq!((info.state, info.epoch, info.outages), (SessionState::Lost, hello.epoch, 2));
    assert_eq!(pair.resume().hello.next_offset, 4);
}

#[test]
fn a_refusal_that_had_arrived_ends_the_session() {
    let pair = Pair::lost();
    let Resume { link, shake, mut server, .. } = pair.resume();
    answer(&mut server, &link, &refuse(Refusal::UnknownSession));
    let verdict = pair.give_up(shake, &link);
    let Verdict::Fatal(Error::Refused { refusal, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(refusal, Refusal::UnknownSession);
    assert!(pair.engine.is_over());
}

#[test]
fn a_server_that_never_had_the_session_ends_it_only_if_nobody_has_it() {
    let pair = Pair::lost();
    let other = Pair { engine: pair.engine.clone(), listener: TcpListener::bind("127.0.0.1:0").unwrap() };
    for (tried, ends) in [(2, false), (1, true)] {
        pair.engine.begin_round();
        let Resume { link, shake, mut server, .. } = other.resume();
        answer(&mut server, &link, &refuse(Refusal::UnknownSession));
        let verdict = other.give_up(shake, &link);
        assert!(matches!(verdict, Verdict::Elsewhere { .. }), "{verdict:?}");
        let end = pair.engine.end_round(tried, 2);
        assert_eq!(matches!(end, Some(Verdict::Fatal(Error::Refused { .. }))), ends, "{end:?}");
        assert_eq!(pair.engine.is_over(), ends);
    }
}

/// PROTOCOL 3.14, for a session that was given up. Its last resume may still be under way, and ask the same servers.
#[test]
fn an_abort_is_told_when_each_server_has_answered_or_one_address_of_a_name() {
    let id = new_session_id();
    for (answers, tried, targets, told) in [
        (&[1, 1][..], 2, 2, false),
        (&[1, 2], 2, 2, true),
        (&[1], 2, 1, true),
        (&[1], 2, 2, false),
        (&[], 0, 1, false),
    ] {
        let word = LastWord { id, security: SecurityKind::Open, key: None };
        let engine = Engine::for_last_word(word, "killed", &Arc::default());
        engine.begin_round();
        for port in answers {
            let server = SocketAddr::from(([127, 0, 0, 1], *port));
            assert!(engine.ctl().client.may_be_stranger(server, &Error::Closed { id }));
        }
        let end = engine.end_round(tried, targets);
        assert_eq!(matches!(end, Some(Verdict::Fatal(_))), told, "{answers:?} {tried} {targets}: {end:?}");
        assert_eq!(engine.owes_abort(), !told);
    }
}

#[test]
fn two_links_that_are_refused_for_their_path_are_followed_by_one_of_another_mode() {
    if !sys::can_freeze() {
        eprintln!("SKIPPED: without CAP_NET_ADMIN no mode but inband is tried");
        return;
    }
    let engine = Engine::new(new_session_id(), Role::Client, Arc::default());
    let pair = Pair { engine, listener: TcpListener::bind("127.0.0.1:0").unwrap() };
    let open = || {
        let (link, mut server) = pair.connect();
        let link = match pair.engine.client_begin(link).unwrap() {
            Begun::Installed => pair.engine.link().unwrap(),
            Begun::Shake(link, mut shake) => {
                let step = shake.step(&link, &mut [0; 512]);
                assert_eq!(step.unwrap_err().kind(), io::ErrorKind::WouldBlock);
                link
            }
        };
        (hear(&mut server), link, server)
    };
    let (first_hello, first, _first_server) = open();
    pair.engine.lost(&first, "cut");
    // It has begun before anybody acts on what the first one heard.
    let (second_hello, second, _second_server) = open();
    assert_eq!((first_hello.mode, second_hello.mode), (LinkMode::Kernel, LinkMode::Kernel));
    for link in [&first, &second] {
        let verdict = pair.engine.refused(&Refuse { refusal: Refusal::NotDirect, why: None }, link);
        assert!(matches!(verdict, Verdict::Again { .. }), "{verdict:?}");
    }
    pair.engine.lost(&second, "refused");
    let (third_hello, third, _third_server) = open();
    assert_eq!(third_hello.mode, LinkMode::Inband);
    let verdict = pair.engine.refused(&Refuse { refusal: Refusal::NotDirect, why: None }, &third);
    assert!(matches!(verdict, Verdict::Fatal(_)), "nothing else is left to be tried: {verdict:?}");
}

#[test]
fn a_path_that_seems_not_to_be_direct_is_tried_again_before_an_opening_fails() {
    let ack = AckMode::Fixed(LinkMode::Window);
    let engine = Engine::new(new_session_id(), Role::Client, Arc::new(Config { ack, ..Config::default() }));
    let pair = Pair { engine, listener: TcpListener::bind("127.0.0.1:0").unwrap() };
    let open = || {
        let (link, _server) = pair.connect();
        let begun = pair.engine.client_begin(link).unwrap();
        let link = match begun {
            Begun::Installed => pair.engine.link().unwrap(),
            Begun::Shake(link, _) => link,
        };
        let verdict = pair.engine.refused(&Refuse { refusal: Refusal::NotDirect, why: None }, &link);
        pair.engine.lost(&link, "refused");
        verdict
    };
    for _ in 1..NOT_DIRECT_MAX {
        let verdict = open();
        assert!(matches!(verdict, Verdict::Again { after: Duration::ZERO, .. }), "{verdict:?}");
    }
    let verdict = open();
    assert!(matches!(verdict, Verdict::Fatal(Error::Refused { .. })), "{verdict:?}");
}
