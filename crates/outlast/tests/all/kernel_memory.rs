//! What services send to sessions whose client has left waits in the kernel, and counts as what sessions hold.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::supervised::until;
use crate::common::{Outlast, folder};
use crate::strangers::service;
use outlast_session::proto::{FrameHeader, Hello, LinkMode, Message, SessionId};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const ABANDONED: u8 = 20;

/// A service on this machine has some 3 MB under way to a session whose client has asked for a download and left, of which
/// the relay has 64 KiB. All of it counts.
#[test]
fn what_waits_in_the_kernel_for_sessions_without_a_link_is_counted() {
    let folder = folder();
    let service = service().to_string();
    let listen = ["listen", "127.0.0.1:0", "--to", &service, "--memory", "128M"];
    let mut server = Outlast::start(folder.path(), &listen);
    let address = server.address();
    for number in 1..=ABANDONED {
        let mut stream = TcpStream::connect(address).unwrap();
        let hello = Hello::open(SessionId::from_bytes([number; 16]), LinkMode::Inband);
        let mut first = Message::Hello(hello).to_bytes();
        first.extend_from_slice(&FrameHeader::data(1, 0).encode());
        first.push(b'd');
        stream.write_all(&first).unwrap();
        // It has been welcomed.
        stream.read_exact(&mut [0; 8]).unwrap();
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    until(folder.path(), "what they hold counted", |status| {
        status["memory"]["kernel_bytes"].as_u64().is_some_and(|bytes| bytes > u64::from(ABANDONED) << 20)
    });
}
