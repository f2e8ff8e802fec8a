//! What the tests share: real TCP connections through the lab.
#![allow(dead_code, missing_docs, reason = "each test uses a part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use outlast_lab::Host;

/// Long enough for anything that is to happen, short enough to notice that it does not.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough for anything that would happen without a fault.
pub const SHORT: Duration = Duration::from_millis(150);

/// A connection with both ends in hand, and the listener it came from.
pub struct Pair {
    pub listener: TcpListener,
    pub client: TcpStream,
    pub server: TcpStream,
    pub address: SocketAddr,
}

pub fn listen(server: &Host, address: SocketAddr) -> TcpListener {
    server.enter(|| TcpListener::bind(address)).unwrap().unwrap()
}

pub fn dial(client: &Host, address: SocketAddr, wait: Duration) -> std::io::Result<TcpStream> {
    client.enter(|| TcpStream::connect_timeout(&address, wait)).unwrap()
}

impl Pair {
    pub fn at(client: &Host, server: &Host, address: SocketAddr) -> Self {
        let listener = listen(server, address);
        let address = listener.local_addr().unwrap();
        let client = dial(client, address, PATIENCE).unwrap();
        let server = listener.accept().unwrap().0;
        for end in [&client, &server] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
            end.set_nodelay(true).unwrap();
        }
        Self { listener, client, server, address }
    }

    pub fn v4(client: &Host, server: &Host) -> Self {
        Self::at(client, server, server.socket_addr(0))
    }

    pub fn v6(client: &Host, server: &Host) -> Self {
        Self::at(client, server, server.socket_addr_v6(0))
    }

    /// Both directions carry bytes.
    pub fn assert_works(&self) {
        pass(&self.client, &self.server);
        pass(&self.server, &self.client);
    }
}

/// Sends a few bytes and reads them at the other end, whatever was under way before.
pub fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    from.write_all(b"ping").unwrap();
    let mut bytes = [0; 4];
    to.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"ping");
}

/// Nothing arrives for a while.
pub fn assert_silent(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    let kind = stream.read(&mut [0; 16]).expect_err("nothing should arrive").kind();
    assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind:?}");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

/// The error that ends the reading.
pub fn read_error(mut stream: &TcpStream) -> i32 {
    let mut bytes = [0; 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => panic!("the stream ended without an error"),
            Ok(_) => {}
            Err(e) => return e.raw_os_error().unwrap_or_default(),
        }
    }
}
