//! First bytes that are no Hello, or not quite one.

use super::ALONE;
use super::raw::{Raw, Victim, bytes_of, fresh_id, hello};
use crate::common::{psk, quick, within};
use outlast_session::proto::{Answer, Challenge, Intent, MAGIC, Message, Refusal, Welcome};
use outlast_session::{Config, Security};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

fn config() -> Config {
    Config { handshake_timeout: Duration::from_millis(500), ..quick() }
}

/// Says `bytes`; what comes back.
fn told(victim: &Victim, bytes: &[u8]) -> Option<Refusal> {
    let mut raw = Raw::connect(victim.address());
    raw.say(bytes);
    raw.verdict()
}

#[test]
fn other_protocols_get_no_answer_but_tls() {
    let _shared = ALONE.read();
    within(|| {
        let victim = Victim::new(config());
        let mut tls = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
        tls.resize(512, 0x55);
        let others: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\n",
            b"\r\n\r\n\0\r\nQUIT\n",
            &[0xff; 5000],
        ];
        for bytes in others {
            assert_eq!(told(&victim, bytes), None);
        }
        // PROTOCOL 6.8
        assert!(matches!(told(&victim, &tls), Some(Refusal::SecurityRequired { .. })));
        victim.wait_refused("failed_handshakes", 7);
        victim.unharmed();
    });
}

#[test]
fn wrong_versions_kinds_and_lengths_are_told_and_counted() {
    let _shared = ALONE.read();
    within(|| {
        let victim = Victim::new(config());
        let good = bytes_of(&hello(fresh_id()));
        for version in [0, 2, 255] {
            let mut bytes = good.clone();
            bytes[4] = version;
            assert!(matches!(told(&victim, &bytes), Some(Refusal::Version { min: 1, max: 1 })), "{version}");
        }
        victim.wait_refused("version", 3);
        let mut malformed: Vec<Vec<u8>> = Vec::new();
        for kind in [0, 6, 255] {
            let mut bytes = good.clone();
            bytes[5] = kind;
            malformed.push(bytes);
        }
        for length in [0u16, 1, 2049, u16::MAX] {
            let mut bytes = good.clone();
            bytes[6..8].copy_from_slice(&length.to_be_bytes());
            bytes.resize(3000, 0);
            malformed.push(bytes);
        }
        // Intent, mode and security that there are not: bytes 8 + 24, 25, 26.
        for at in [32, 33, 34] {
            let mut bytes = good.clone();
            bytes[at] = 77;
            malformed.push(bytes);
        }
        // Messages that only come later, or from servers.
        malformed.push(Message::Welcome(Welcome::to_new(&hello(fresh_id()))).to_bytes());
        malformed.push(Message::Challenge(Challenge { nonce: [1; 32], proof: [2; 32] }).to_bytes());
        malformed.push(Message::Answer(Answer { proof: [3; 32] }).to_bytes());
        malformed.push(Message::Refuse(Refusal::Quota.into()).to_bytes());
        for (number, bytes) in malformed.iter().enumerate() {
            assert_eq!(told(&victim, bytes), Some(Refusal::Malformed), "number {number}");
        }
        victim.wait_refused("malformed", malformed.len() as u64);
        victim.unharmed();
    });
}

/// Positions that cannot be: not increasing, beyond 2^63, or not zero when opening.
#[test]
fn impossible_positions() {
    let _shared = ALONE.read();
    within(|| {
        let victim = Victim::new(config());
        let mut wrong = Vec::new();
        for number in [u64::MAX, 1 << 63] {
            let mut bytes = bytes_of(&hello(fresh_id()));
            bytes[36..44].copy_from_slice(&number.to_be_bytes());
            wrong.push(bytes);
            let mut bytes = bytes_of(&hello(fresh_id()));
            bytes[24..32].copy_from_slice(&number.to_be_bytes());
            wrong.push(bytes);
        }
        let mut epochless = hello(fresh_id());
        epochless.epoch = 0;
        wrong.push(bytes_of(&epochless));
        let mut backwards = hello(fresh_id());
        backwards.retained_offset = 10;
        backwards.sent_offset = 5;
        wrong.push(bytes_of(&backwards));
        let mut ended = hello(fresh_id());
        ended.sent_offset = 10;
        ended.end_offset = Some(5);
        wrong.push(bytes_of(&ended));
        for (number, bytes) in wrong.iter().enumerate() {
            assert_eq!(told(&victim, bytes), Some(Refusal::Malformed), "number {number}");
        }
        let mut opening = hello(fresh_id());
        opening.next_offset = 1 << 40;
        assert_eq!(told(&victim, &bytes_of(&opening)), Some(Refusal::OffsetOutOfRange));
        let mut resuming = hello(fresh_id());
        (resuming.intent, resuming.epoch) = (Intent::Resume, 2);
        assert_eq!(told(&victim, &bytes_of(&resuming)), Some(Refusal::UnknownSession));
        assert_eq!(victim.listener.sessions().len(), 1, "nothing was begun");
        victim.unharmed();
    });
}

#[test]
fn truncated_handshakes_leave_nothing_behind() {
    let _shared = ALONE.read();
    within(|| {
        for security in [Security::Open, Security::Psk(psk(1))] {
            let victim = Victim::new(Config { security, ..config() });
            let good = bytes_of(&hello(fresh_id()));
            for length in 0..good.len() {
                let stream = TcpStream::connect(victim.address()).unwrap();
                stream.set_nodelay(true).unwrap();
                let mut raw = Raw::over(stream.try_clone().unwrap());
                raw.say(&good[..length]);
                if length % 2 == 0 {
                    stream.shutdown(Shutdown::Write).unwrap();
                } else {
                    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
            }
            // A connection that is reset early enough was never there.
            victim.wait_refused("failed_handshakes", good.len().div_ceil(2) as u64);
            assert_eq!(victim.listener.sessions().len(), 1);
            victim.unharmed();
        }
    });
}

/// A peer that sends one byte after another is cut off when its time is over, however busy it looks.
#[test]
fn slow_handshakes_are_cut() {
    let _shared = ALONE.read();
    within(|| {
        let victim = Victim::new(config());
        let mut slow: Vec<TcpStream> =
            (0..40).map(|_| TcpStream::connect(victim.address()).unwrap()).collect();
        slow.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let good = bytes_of(&hello(fresh_id()));
        for at in 0.. {
            let byte = &good[at.min(MAGIC.len() + 8)..][..1];
            // Anything but "nothing yet" is the end of the connection.
            slow.retain_mut(|stream| {
                let gone = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
                (at >= good.len() / 2 || std::io::Write::write(stream, byte).is_ok())
                    && std::io::Read::read(stream, &mut [0; 64]).err().is_some_and(gone)
            });
            if slow.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(40));
        }
        victim.wait_refused("failed_handshakes", 40);
        victim.unharmed();
    });
}
