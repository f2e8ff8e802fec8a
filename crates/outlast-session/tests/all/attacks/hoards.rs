//! Clients that open sessions to a service that has much to say, and leave.

use super::ALONE;
use super::descriptors::alone;
use super::floods::many_descriptors;
use super::raw::{Raw, bytes_of, fresh_id, hello, newcomer};
use crate::common::{quick, within};
use outlast_session::proto::{Frame, FrameHeader, Intent, LinkMode, Message, Refusal};
use outlast_session::{AckMode, Config, Error, Memory, Targets, blocking};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const BUDGET_BYTES: u64 = 32 << 20;
/// More than a session takes with 1 MiB that its client has not taken.
const SESSION_BYTES: u64 = 2 << 20;

/// Serves zeroes without end, and an echo to whoever says "echo".
fn serve(listener: &Arc<blocking::Listener>) {
    let listener = listener.clone();
    std::thread::spawn(move || {
        while let Ok(mut session) = listener.accept() {
            std::thread::spawn(move || {
                let mut four = [0; 4];
                session.read_exact(&mut four)?;
                let echo = &four == b"echo";
                let zeroes = vec![0; 64 << 10];
                loop {
                    if echo {
                        session.write_all(&four)?;
                        session.read_exact(&mut four)?;
                    } else {
                        session.write_all(&zeroes)?;
                    }
                }
                #[allow(unreachable_code)]
                std::io::Result::Ok(())
            });
        }
    });
}

/// A connection from a network of its own.
pub fn from(block: u8, target: SocketAddr) -> Raw {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 9, block, 1), 0)).into()).unwrap();
    // What is not read stays at the server.
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&target.into()).unwrap();
    Raw::over(std::net::TcpStream::from(socket))
}

/// Hundreds of sessions that ask for a download and are abandoned, or read nothing: what they hold stays within the
/// budget, those without a link make room, and live sessions of others see nothing of it.
#[test]
fn what_abandoned_sessions_hold_is_bounded() {
    // The budget is the process's.
    alone("hoards::what_abandoned_sessions_hold_is_bounded", || {
        many_descriptors();
        Memory::set_budget(BUDGET_BYTES);
        let config = Arc::new(Config { retain_bytes_max: 4 << 20, ..quick() });
        let listener = Arc::new(blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap());
        serve(&listener);
        let address = listener.local_addr();
        let connect = |first: &[u8]| {
            let mut session = blocking::Session::connect_with(&Targets::from(address), &config).unwrap();
            session.write_all(first).unwrap();
            session
        };
        let mut live = connect(b"echo");
        let mut download = connect(b"give");
        let mut four = [0; 4];
        live.read_exact(&mut four).unwrap();
        let mut first = None;
        let mut standing = Vec::new();
        let mut refused = 0;
        for number in 0..200u8 {
            let mut raw = from(1 + number % 2, address);
            let id = fresh_id();
            raw.say(&bytes_of(&hello(id)));
            match raw.hear() {
                Some(Message::Welcome(_)) => {}
                Some(Message::Refuse(refuse)) => {
                    assert!(matches!(refuse.refusal, Refusal::Busy { .. }), "{:?}", refuse.refusal);
                    refused += 1;
                    continue;
                }
                other => panic!("{other:?}"),
            }
            // A frame of data: "give".
            let mut frame = FrameHeader::data(4, 0).encode().to_vec();
            frame.extend_from_slice(b"give");
            raw.say(&frame);
            std::thread::sleep(Duration::from_millis(2));
            if number % 4 == 0 {
                standing.push(raw);
            } else {
                first.get_or_insert(id);
            }
            // The honest go on all the while.
            live.write_all(&four).unwrap();
            live.read_exact(&mut four).unwrap();
            let mut piece = vec![1; 64 << 10];
            download.read_exact(&mut piece).unwrap();
            assert!(piece.iter().all(|byte| *byte == 0));
            let memory = Memory::now();
            assert!(memory.used_bytes <= BUDGET_BYTES, "{memory:?} after {number}");
        }
        println!("{refused} refused, {:?}", Memory::now());
        assert_eq!((live.info().outages, download.info().outages), (0, 0));
        // A network that holds nothing gets in, at once or when room was made.
        let local_address = Some(SocketAddr::from(([127, 200, 0, 1], 0)));
        let newcomers = Arc::new(Config { local_address, ..(*config).clone() });
        let mut elsewhere = enters(address, &newcomers);
        elsewhere.write_all(b"echo").unwrap();
        elsewhere.read_exact(&mut four).unwrap();
        // Who is refused has some make room, and a client that comes back then is told that it is too late.
        while Memory::now().shed_sessions == 0 {
            let mut raw = from(1, address);
            raw.say(&bytes_of(&hello(fresh_id())));
            let _ = raw.hear();
            std::thread::sleep(Duration::from_millis(10));
        }
        let first = first.unwrap();
        if !listener.sessions().iter().any(|info| info.id == first) {
            let mut late = hello(first);
            (late.intent, late.epoch) = (Intent::Resume, 2);
            let mut raw = from(1, address);
            raw.say(&bytes_of(&late));
            assert_eq!(raw.verdict(), Some(Refusal::Expired));
        }
        drop(standing);
    });
}

/// Reads until it has so much of the stream since it began, and acknowledges that on the way: where memory is scarce the
/// server retains little, and has nothing more to send until it hears of it.
fn take(raw: &mut Raw, offset: u64) {
    let headers_bytes = 64 << 10;
    let mut buffer = vec![0; 64 << 10];
    while (raw.input.len() as u64) < offset + headers_bytes {
        let count = raw.wire.read(&mut buffer).unwrap();
        assert!(count > 0);
        raw.input.extend_from_slice(&buffer[..count]);
        let mut frame = Vec::new();
        Frame::Ack.encode((raw.input.len() as u64).saturating_sub(headers_bytes), &mut frame);
        raw.say(&frame);
    }
}

/// Many networks with one session each, whose client is there and reads nothing, or nothing more: newcomers get in all the
/// same.
#[test]
fn networks_that_read_nothing_leave_room_for_newcomers() {
    alone("hoards::networks_that_read_nothing_leave_room_for_newcomers", || {
        many_descriptors();
        Memory::set_budget(BUDGET_BYTES);
        let config = Arc::new(Config {
            retain_bytes_max: 4 << 20,
            detect_timeout: Duration::from_secs(60),
            ..quick()
        });
        let listener = Arc::new(blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap());
        serve(&listener);
        let address = listener.local_addr();
        let mut standing = Vec::new();
        for block in 1..=14 {
            let mut raw = from(block, address);
            raw.say(&bytes_of(&hello(fresh_id())));
            assert!(matches!(raw.hear(), Some(Message::Welcome(_))), "network {block}");
            let mut frame = FrameHeader::data(4, 0).encode().to_vec();
            frame.extend_from_slice(b"give");
            raw.say(&frame);
            standing.push(raw);
            std::thread::sleep(Duration::from_millis(100));
        }
        // Who has taken nothing holds little.
        std::thread::sleep(Duration::from_millis(300));
        let used_bytes = Memory::now().used_bytes;
        assert!((14 * (256 << 10)..=14 * (384 << 10)).contains(&used_bytes), "{:?}", Memory::now());
        // Each takes a part, and nothing more: it holds what it can.
        for offset in [192 << 10, 768 << 10] {
            standing.iter_mut().for_each(|raw| take(raw, offset));
        }
        std::thread::sleep(Duration::from_secs(1));
        assert!(Memory::now().used_bytes > BUDGET_BYTES / 2, "{:?}", Memory::now());
        let mut four = [0; 4];
        for _ in 0..10 {
            let local_address = Some(SocketAddr::from(([127, 200, 0, 1], 0)));
            let newcomers = Arc::new(Config { local_address, ..(*config).clone() });
            let targets = Targets::from(address);
            let mut session = blocking::Session::connect_with(&targets, &newcomers).unwrap();
            session.write_all(b"echo").unwrap();
            session.read_exact(&mut four).unwrap();
        }
        assert_eq!(Memory::now().shed_sessions, 0);
        drop(standing);
    });
}

/// Sessions of many networks, none of which holds much, and together all that there is: they make room for newcomers, too.
#[test]
fn many_networks_that_hold_a_little_make_room() {
    alone("hoards::many_networks_that_hold_a_little_make_room", || {
        many_descriptors();
        Memory::set_budget(BUDGET_BYTES);
        // A sixteenth is twice that.
        let config = Arc::new(Config { retain_bytes_max: 1 << 20, retain_follows_path: false, ..quick() });
        let listener = Arc::new(blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap());
        serve(&listener);
        let address = listener.local_addr();
        let mut frame = FrameHeader::data(4, 0).encode().to_vec();
        frame.extend_from_slice(b"give");
        let mut links = Vec::new();
        for block in 1..200 {
            let mut raw = from(block, address);
            raw.say(&bytes_of(&hello(fresh_id())));
            match raw.hear() {
                Some(Message::Welcome(_)) => {
                    raw.say(&frame);
                    links.push(raw);
                }
                Some(Message::Refuse(_)) if Memory::now().used_bytes > BUDGET_BYTES - SESSION_BYTES => break,
                // What those before are about to take is spoken for.
                Some(Message::Refuse(_)) => {}
                other => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(links);
        let local_address = Some(SocketAddr::from(([127, 200, 0, 1], 0)));
        let newcomers = Arc::new(Config { local_address, ..(*config).clone() });
        enters(address, &newcomers);
        assert!(Memory::now().shed_sessions > 0, "{:?}", Memory::now());
    });
}

/// A newcomer tries until it is let in.
pub fn enters(address: SocketAddr, config: &Arc<Config>) -> blocking::Session {
    loop {
        match newcomer(address, config) {
            Ok(session) => return session,
            Err(Error::Refused { refusal: Refusal::Busy { .. }, .. }) => {}
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A session that has lost its link takes no more from its service than was under way, or one small buffer.
#[test]
fn without_a_link_a_session_takes_no_more() {
    let _alone = ALONE.write();
    within(|| {
        let config = Arc::new(Config { retain_bytes_max: 4 << 20, ..quick() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let mut raw = Raw::connect(listener.local_addr());
        raw.say(&bytes_of(&hello(fresh_id())));
        assert!(matches!(raw.hear(), Some(Message::Welcome(_))));
        let session = listener.accept().unwrap();
        drop(raw);
        while session.info().pause_now_ms.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut writer = session.clone();
        std::thread::spawn(move || {
            let block = [7; 4096];
            while writer.write_all(&block).is_ok() {}
        });
        // On a busy machine the writer is a while in coming.
        while session.info().unacked_bytes < 64 << 10 {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(session.info().unacked_bytes, 64 << 10);
        session.kill();
    });
}

/// What each of its links leaves behind is acknowledged, and nobody reads it: the next link has a mode in which the server decides
/// how much comes.
#[test]
fn a_client_that_comes_back_before_it_is_read_comes_back_in_another_mode() {
    alone("hoards::a_client_that_comes_back_before_it_is_read_comes_back_in_another_mode", || {
        Memory::set_budget(16 << 20);
        let config = Arc::new(Config { retain_bytes_max: 1 << 20, ..quick() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let mut client =
            blocking::Session::connect_with(&Targets::from(listener.local_addr()), &config).unwrap();
        let mut server = listener.accept().unwrap();
        client.established().unwrap();
        assert_eq!(client.info().mode, Some(LinkMode::Kernel));
        let (block, mut sent) = (vec![7; 40 << 10], 0);
        while client.info().mode != Some(LinkMode::Inband) {
            assert!(sent < 64 << 20, "{:?}", client.info());
            client.write_all(&block).unwrap();
            sent += block.len();
            while !client.passivate().unwrap() {
                std::thread::yield_now();
            }
            client.write_all(&[7]).unwrap();
            sent += 1;
            while client.info().mode.is_none() {
                std::thread::yield_now();
            }
        }
        assert!(sent > 2 << 20, "{sent}");
        let mut read = vec![0; sent];
        server.read_exact(&mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 7));
    });
}

/// The server's application may wait for its client, which has no other mode.
#[test]
fn a_client_that_insists_on_a_mode_gets_a_link_when_its_server_waits_for_it() {
    alone("hoards::a_client_that_insists_on_a_mode_gets_a_link_when_its_server_waits_for_it", || {
        Memory::set_budget(16 << 20);
        let ack = AckMode::Fixed(LinkMode::Kernel);
        let config = Arc::new(Config { retain_bytes_max: 1 << 20, ack, ..quick() });
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let mut client =
            blocking::Session::connect_with(&Targets::from(listener.local_addr()), &config).unwrap();
        let mut server = listener.accept().unwrap();
        let (block, mut sent) = (vec![7; 40 << 10], 0);
        let refused = || listener.refusals().iter().any(|(reason, count)| *reason == "busy" && *count > 0);
        while !refused() {
            client.write_all(&block).unwrap();
            sent += block.len();
            while !client.passivate().unwrap() && !refused() {
                std::thread::yield_now();
            }
        }
        const ANSWER_BYTES: usize = 4 << 20;
        let serving = std::thread::spawn(move || {
            server.write_all(&vec![8; ANSWER_BYTES]).unwrap();
            server.read_exact(&mut vec![0; sent]).unwrap();
            server
        });
        let mut answer = vec![0; ANSWER_BYTES];
        client.read_exact(&mut answer).unwrap();
        assert!(answer.iter().all(|byte| *byte == 8));
        serving.join().unwrap();
    });
}
