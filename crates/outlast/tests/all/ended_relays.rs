//! Relays that have ended, and have something to deliver still, are in nobody's way.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, folder};
use crate::strangers::open;
use outlast_session::proto::FrameHeader;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

const DOWNLOAD_BYTES: usize = 20 << 20;

/// Says much to whoever begins with `d`, and a word to all others; then it closes.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut first = [0];
                let is_download = stream.read_exact(&mut first).is_ok() && first == *b"d";
                let said = if is_download { vec![0; DOWNLOAD_BYTES] } else { b"answer".to_vec() };
                let _ = stream.write_all(&said);
            });
        }
    });
    address
}

/// Each of these strangers never acknowledges the answer, and goes on sending frames of one byte when the service has closed: its
/// relay finds that out within a turn that does not end all there is to do.
#[test]
fn what_a_relay_that_has_ended_delivers_late_keeps_no_place_from_others() {
    let folder = folder();
    let service = service().to_string();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &service]);
    let address = server.address();
    let frames = [&FrameHeader::data(1, 0).encode()[..], b"x"].concat().repeat(200);
    let mut strangers = Vec::new();
    for number in 0..2 * available_parallelism().map_or(1, NonZero::get) {
        let (stranger, is_welcome) = open(1, address, b"q", number);
        assert!(is_welcome);
        strangers.push(stranger);
    }
    // Until the answers and the ends of the streams are there.
    std::thread::sleep(Duration::from_millis(500));
    for stranger in &mut strangers {
        stranger.write_all(&frames).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    let mut client =
        Outlast::start(folder.path(), &["connect", "127.0.0.1:0", "--via", &address.to_string()]);
    let mut download = TcpStream::connect(client.address()).unwrap();
    download.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    download.write_all(b"d").unwrap();
    let mut got = 0;
    let mut piece = vec![0; 64 << 10];
    while got < DOWNLOAD_BYTES {
        let count = download.read(&mut piece).expect("the download stands still");
        assert!(count > 0, "it ended after {got} bytes");
        got += count;
    }
    drop(strangers);
}
