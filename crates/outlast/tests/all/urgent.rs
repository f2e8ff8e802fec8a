//! Urgent data (MSG_OOB): the byte keeps its place in the stream, and is urgent at the other end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::both_ends;
use crate::common::{Outlast, PATIENCE, Pair, eventually, folder, pattern};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const MODES: [&str; 4] = ["kernel", "window", "udp", "inband"];

pub fn send_urgent(stream: &impl AsFd, byte: u8) {
    assert_eq!(rustix::net::send(stream, &[byte], SendFlags::OOB).unwrap(), 1);
}

/// The urgent byte, as a program gets it that reads it out of band.
fn take_urgent(stream: &TcpStream) -> u8 {
    let mut byte = [0];
    let taken = || rustix::net::recv(stream, &mut byte[..], RecvFlags::OOB | RecvFlags::DONTWAIT).ok();
    eventually("no urgent byte", taken);
    byte[0]
}

pub fn read_inline(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_out_of_band_inline(true).unwrap();
}

/// Both ends of a stream, a byte through it each way: now both relays know what the other can do.
pub fn opened(front: SocketAddr, service: &TcpListener) -> (TcpStream, TcpStream) {
    let (mut program, mut served) = both_ends(front, service);
    served.write_all(b"y").unwrap();
    program.read_exact(&mut [0]).unwrap();
    (program, served)
}

fn pair(runtime: &Path, mode: &str) -> (Pair, TcpListener) {
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = service.local_addr().unwrap().to_string();
    (Pair::start(runtime, &to, &["--ack", mode], &["--ack", mode]), service)
}

/// What comes before the urgent byte and behind it: no read goes past its place.
pub fn check_out_of_band(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"abc").unwrap();
    send_urgent(from, b'D');
    from.write_all(b"efg").unwrap();
    assert_eq!(take_urgent(to), b'D');
    let mut received = Vec::new();
    while received.len() < 6 {
        let mut buffer = [0; 100];
        let count = to.read(&mut buffer).unwrap();
        assert!(received.len() >= 3 || received.len() + count <= 3, "a read past its place");
        received.extend_from_slice(&buffer[..count]);
    }
    assert_eq!(received, b"abcefg");
}

#[test]
fn it_is_urgent_at_the_other_end_in_every_mode() {
    for mode in MODES {
        let folder = folder();
        let (pair, service) = pair(folder.path(), mode);
        let (mut program, mut served) = opened(pair.address, &service);
        for _ in 0..3 {
            check_out_of_band(&mut program, &mut served);
            check_out_of_band(&mut served, &mut program);
        }
        // And the streams go on, and end, as ever.
        program.write_all(b"bye").unwrap();
        program.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        served.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "bye", "{mode}");
    }
}

#[test]
fn a_program_that_reads_it_inline_gets_it_in_its_place() {
    for mode in MODES {
        let folder = folder();
        let (pair, service) = pair(folder.path(), mode);
        let (mut program, mut served) = opened(pair.address, &service);
        read_inline(&served);
        program.write_all(b"abc").unwrap();
        send_urgent(&program, b'D');
        // The end behind it, and nothing else.
        program.shutdown(Shutdown::Write).unwrap();
        let mut received = String::new();
        served.read_to_string(&mut received).unwrap();
        assert_eq!(received, "abcD", "{mode}");
    }
}

#[test]
fn the_very_first_byte_may_be_urgent() {
    for mode in MODES {
        let folder = folder();
        let (pair, service) = pair(folder.path(), mode);
        let program = TcpStream::connect(pair.address).unwrap();
        program.set_read_timeout(Some(PATIENCE)).unwrap();
        send_urgent(&program, b'A');
        let (mut served, _) = service.accept().unwrap();
        served.set_read_timeout(Some(PATIENCE)).unwrap();
        read_inline(&served);
        let mut byte = [0];
        served.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"A", "{mode}");
        // From the server its urgency, too: it has heard what the client can do.
        send_urgent(&served, b'B');
        assert_eq!(take_urgent(&program), b'B', "{mode}");
    }
}

/// All of it is there before the relay looks, which is told of it only once.
#[test]
fn much_behind_an_urgent_byte_arrives() {
    let mut sent = pattern(301_001);
    sent[1_000] = b'!';
    for mode in MODES {
        let folder = folder();
        let (pair, service) = pair(folder.path(), mode);
        for _ in 0..5 {
            let mut program = TcpStream::connect(pair.address).unwrap();
            // The relay has looked once, and found nothing.
            std::thread::sleep(Duration::from_millis(50));
            pair.client.signal("STOP");
            program.set_write_timeout(Some(PATIENCE)).unwrap();
            let (received, read) = std::thread::scope(|scope| {
                scope.spawn(|| {
                    program.write_all(&sent[..1_000]).unwrap();
                    send_urgent(&program, sent[1_000]);
                    program.write_all(&sent[1_001..]).unwrap();
                    program.shutdown(Shutdown::Write).unwrap();
                });
                std::thread::sleep(Duration::from_millis(100));
                pair.client.signal("CONT");
                let (mut served, _) = service.accept().unwrap();
                served.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                read_inline(&served);
                let mut received = Vec::new();
                let read = served.read_to_end(&mut received);
                (received, read)
            });
            assert!(read.is_ok(), "{mode}: {read:?} after {} bytes", received.len());
            assert!(received == sent, "{mode}: other bytes");
        }
    }
}

/// The session has no room for what is behind it, and the program waits for an answer: nothing more comes from there.
#[test]
fn what_is_behind_an_urgent_byte_is_read_when_there_is_room() {
    let sent = pattern(40_000 + 1_001 + 60_000);
    for mode in ["inband", "udp"] {
        let folder = folder();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = service.local_addr().unwrap().to_string();
        let pair = Pair::start(folder.path(), &to, &["--ack", mode], &["--ack", mode, "--retain", "64K"]);
        let (mut program, mut served) = opened(pair.address, &service);
        read_inline(&served);
        let (first, rest) = sent.split_at(40_000);
        let (before, behind) = rest.split_at(1_000);
        pair.server.signal("STOP");
        program.write_all(first).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        pair.client.signal("STOP");
        program.write_all(before).unwrap();
        send_urgent(&program, behind[0]);
        program.write_all(&behind[1..]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        pair.client.signal("CONT");
        std::thread::sleep(Duration::from_millis(300));
        pair.server.signal("CONT");
        let mut received = vec![0; sent.len()];
        served.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let read = served.read_exact(&mut received);
        assert!(read.is_ok() && received == sent, "{mode}: {read:?}");
    }
}

/// A relay whose program was reset throws away what the service says, its urgent bytes, too.
#[test]
fn a_service_goes_on_behind_an_urgent_byte_for_a_program_that_was_reset() {
    for mode in MODES {
        let folder = folder();
        let (pair, service) = pair(folder.path(), mode);
        let (mut program, mut served) = opened(pair.address, &service);
        // All buffers are full: the relay does not hear of anything else that the program does.
        program.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        while program.write(&[7; 65_536]).is_ok() {}
        socket2::SockRef::from(&program).set_linger(Some(Duration::ZERO)).unwrap();
        drop(program);
        std::thread::sleep(Duration::from_millis(200));
        send_urgent(&served, b'!');
        served.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let written = served.write_all(&vec![8; 30 << 20]);
        assert!(written.is_ok(), "{mode}: {written:?}");
    }
}

/// Urgent bytes between others, in the middle of what is spliced and of what is not.
pub fn send_with_urgent_bytes(to: &mut TcpStream, sent: &[u8], pieces: &[usize], pause: Duration) {
    let mut rest = sent;
    for piece in pieces.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at((*piece).min(rest.len()));
        let (last, before) = now.split_last().unwrap();
        to.write_all(before).unwrap();
        send_urgent(to, *last);
        rest = later;
        std::thread::sleep(pause);
    }
}

#[test]
fn bulk_keeps_every_urgent_byte_in_its_place() {
    for mode in ["kernel", "inband"] {
        let folder = folder();
        let (pair, service) = pair(folder.path(), mode);
        let (mut program, mut served) = opened(pair.address, &service);
        read_inline(&served);
        read_inline(&program);
        let sent = pattern(6 << 20);
        let pieces = [1, 2_000_000, 3, 700_001, 1, 1, 65_536, 100];
        for _ in 0..2 {
            std::thread::scope(|scope| {
                scope.spawn(|| send_with_urgent_bytes(&mut program, &sent, &pieces, Duration::ZERO));
                let mut received = vec![0; sent.len()];
                served.read_exact(&mut received).unwrap();
                assert!(received == sent, "{mode}: the bytes differ");
            });
            // The other way next.
            std::mem::swap(&mut program, &mut served);
        }
    }
}

/// Carries connections to `server`, and cuts each after a while.
fn cutting(server: SocketAddr, until: &Arc<AtomicBool>) -> SocketAddr {
    let middle = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = middle.local_addr().unwrap();
    let until = Arc::clone(until);
    std::thread::spawn(move || {
        for client in middle.incoming().flatten() {
            let Ok(server) = TcpStream::connect(server) else { return };
            let streams = [client, server];
            for [from, to] in [[0, 1], [1, 0]] {
                let (mut from, mut to) =
                    (streams[from].try_clone().unwrap(), streams[to].try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
            let until = Arc::clone(&until);
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(60));
                if !until.load(Ordering::Relaxed) {
                    streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                } else {
                    std::thread::sleep(PATIENCE);
                }
            });
        }
    });
    address
}

#[test]
fn no_break_of_the_link_loses_doubles_or_moves_it() {
    let folder = folder();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = service.local_addr().unwrap().to_string();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &to]);
    let calm = Arc::new(AtomicBool::new(false));
    let via = cutting(server.address(), &calm).to_string();
    let mut client = Outlast::start(folder.path(), &["connect", "127.0.0.1:0", "--via", &via]);
    let (mut program, mut served) = both_ends(client.address(), &service);
    read_inline(&served);
    let (sent, pieces) = (pattern(200_000), [1, 999, 5, 4_000]);
    std::thread::scope(|scope| {
        scope.spawn(|| send_with_urgent_bytes(&mut program, &sent, &pieces, Duration::from_millis(5)));
        let mut received = vec![0; sent.len()];
        served.read_exact(&mut received).unwrap();
        assert!(received == sent, "the bytes differ");
    });
    client.wait_for("resumed");
    calm.store(true, Ordering::Relaxed);
    socket2::SockRef::from(&served).set_out_of_band_inline(false).unwrap();
    check_out_of_band(&mut program, &mut served);
}

#[test]
fn ftp_aborts_a_transfer_by_urgent_data() {
    const SCRIPT: &str = r#"
import ftplib, sys
control = ftplib.FTP()
control.connect("127.0.0.1", int(sys.argv[1]), timeout=50)
assert control.abort().startswith("226"), "no answer to ABOR"
"#;
    // As a server that reads urgent data in line and takes the command as it is.
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = service.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let (mut served, _) = service.accept().unwrap();
        read_inline(&served);
        served.write_all(b"220 ready\r\n").unwrap();
        let mut command = [0; 6];
        served.read_exact(&mut command).unwrap();
        assert_eq!(&command, b"ABOR\r\n");
        served.write_all(b"226 aborted\r\n").unwrap();
    });
    let folder = folder();
    let pair = Pair::start(folder.path(), &to, &[], &[]);
    let ran = std::process::Command::new("python3")
        .args(["-c", SCRIPT, &pair.address.port().to_string()])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serving.join().unwrap();
}
