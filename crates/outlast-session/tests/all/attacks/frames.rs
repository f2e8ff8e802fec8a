//! A valid handshake, and then lies: frames that are none, acknowledgements of what was never sent.

use super::ALONE;
use super::raw::{Raw, Victim, bytes_of, fresh_id, hello};
use crate::common::{pattern, quick, within};
use outlast_session::proto::{Frame, FrameHeader, Hello, LinkMode, Message};
use outlast_session::{Config, blocking};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;

fn frame(frame: &Frame<'_>, ack_offset: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(ack_offset, &mut bytes);
    bytes
}

#[test]
fn frames_that_cannot_be_end_the_link_and_nothing_else() {
    let _shared = ALONE.read();
    within(|| {
        let victim = Victim::new(quick());
        let mut oversized = FrameHeader::data(1, 0).encode().to_vec();
        oversized[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        let mut reserved = FrameHeader::data(1, 0).encode().to_vec();
        reserved[2] = 1;
        let mut empty = FrameHeader::data(1, 0).encode().to_vec();
        empty[4..8].fill(0);
        let lies = [
            vec![0xee; 4096],
            oversized,
            reserved,
            empty,
            frame(&Frame::Ack, 1 << 40),
            frame(&Frame::Ack, u64::MAX),
            frame(&Frame::End { end_offset: 77 }, 0),
            frame(&Frame::EndAck, 0),
            frame(&Frame::Pong { token: 5 }, 9),
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        ];
        for (number, lie) in lies.iter().enumerate() {
            let mut raw = Raw::connect(victim.address());
            raw.say(&bytes_of(&hello(fresh_id())));
            assert!(matches!(raw.hear(), Some(Message::Welcome(_))), "number {number}");
            raw.say(lie);
            // An End that nobody asked for is harmless: all others end the link.
            if !matches!(number, 7) {
                raw.drain();
            }
        }
        victim.unharmed();
    });
}

/// The application sees what came before the garbage, and never the garbage.
#[test]
fn garbage_is_not_delivered() {
    let _shared = ALONE.read();
    within(|| {
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &Arc::new(quick())).unwrap();
        let mut raw = Raw::connect(listener.local_addr());
        let mut bytes = bytes_of(&hello(fresh_id()));
        bytes.extend(FrameHeader::data(4, 0).encode());
        bytes.extend(b"good");
        bytes.extend([0xee; 100]);
        raw.say(&bytes);
        let mut session = listener.accept().unwrap();
        let mut got = [0; 4];
        session.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"good");
        let reader = session.clone();
        let reader = std::thread::spawn(move || (&reader).read(&mut [0; 100]));
        raw.drain();
        session.kill();
        assert!(reader.join().unwrap().is_err());
    });
}

/// PROTOCOL 4.6: what comes behind the end of a stream is no part of it, and ends the link.
#[test]
fn bytes_behind_an_end_are_not_delivered() {
    let _shared = ALONE.read();
    within(|| {
        for at_once in [true, false] {
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &Arc::new(quick())).unwrap();
            let mut raw = Raw::connect(listener.local_addr());
            let mut bytes = bytes_of(&hello(fresh_id()));
            bytes.extend(FrameHeader::data(4, 0).encode());
            bytes.extend(b"good");
            bytes.extend(frame(&Frame::End { end_offset: 4 }, 0));
            let behind = [&FrameHeader::data(3, 0).encode()[..], b"bad"].concat();
            if at_once {
                bytes.extend(&behind);
            }
            raw.say(&bytes);
            let mut session = listener.accept().unwrap();
            let mut got = Vec::new();
            session.read_to_end(&mut got).unwrap();
            if !at_once {
                raw.say(&behind);
            }
            // A writer that waits for acknowledgements takes input in. The link is given up; the stream ended where it
            // was said to.
            let writer = session.clone();
            let writer = std::thread::spawn(move || (&writer).write_all(&[7; 1 << 20]));
            raw.drain();
            assert_eq!(got, b"good");
            assert_eq!(session.read(&mut [0; 8]).unwrap(), 0);
            assert_eq!(session.info().read_bytes, 4);
            session.kill();
            assert!(writer.join().unwrap().is_err());
        }
    });
}

/// A peer that reads and never acknowledges holds at most the ring.
#[test]
fn memory_for_a_peer_that_never_acknowledges_is_bounded() {
    let _shared = ALONE.read();
    within(|| {
        let config = Arc::new(quick());
        let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
        let mut raw = Raw::connect(listener.local_addr());
        raw.say(&bytes_of(&hello(fresh_id())));
        let session = listener.accept().unwrap();
        swallow(&session, &config, raw);
    });
}

/// In window mode the peer says how much its kernel can hold. A number from the moon must not make us retain so much.
// Open bug: the peer's number is believed, and large writes go past the ring.
#[test]
fn memory_for_a_window_from_the_moon_is_bounded() {
    let _shared = ALONE.read();
    within(|| {
        for auto in [false, true] {
            let config = Arc::new(quick());
            let listener = blocking::Listener::bind_with("127.0.0.1:0", &config).unwrap();
            let stream = std::net::TcpStream::connect(listener.local_addr()).unwrap();
            let mut moon = Hello::open(fresh_id(), LinkMode::Window);
            moon.auto = auto;
            moon.receive_buffer_bytes = 1 << 60;
            moon.direct_proof = Some(tcp_timestamp(&stream));
            moon.source_port = Some(stream.local_addr().unwrap().port());
            let mut raw = Raw::over(stream);
            raw.say(&bytes_of(&moon));
            // To refuse it is as good as to bound it.
            if let Some(Message::Welcome(_)) = raw.hear() {
                swallow(&listener.accept().unwrap(), &config, raw);
            }
        }
    });
}

fn swallow(session: &blocking::Session, config: &Config, mut raw: Raw) {
    let reader = std::thread::spawn(move || raw.drain());
    let chunk = pattern(64 << 10);
    session.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    let mut most = 0;
    for _ in 0..256 {
        if (&*session).write(&chunk).is_err() {
            break;
        }
        most = most.max(session.info().unacked_bytes);
    }
    // A large write may exceed the ring by what goes past it in one piece.
    let allowed = (config.retain_bytes_max + chunk.len()) as u64;
    assert!(most <= allowed, "{most} bytes were retained, {allowed} are allowed");
    session.kill();
    reader.join().unwrap();
}

fn tcp_timestamp(stream: &std::net::TcpStream) -> u32 {
    let (mut value, mut length) = (0u32, 4 as libc::socklen_t);
    // SAFETY: both pointers are to live variables of the sizes given.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_TIMESTAMP,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0);
    value
}
