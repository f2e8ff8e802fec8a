//! What a client that nobody watches says about a path that is gone for a while.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, PATIENCE, echo, folder};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A path to a server that can be cut, and mended.
struct Path {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: bool,
    streams: Vec<TcpStream>,
}

impl Path {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let mut state = shared.lock().unwrap();
                if state.cut {
                    continue;
                }
                let far = TcpStream::connect(server).unwrap();
                for (mut from, mut to) in [(&near, &far), (&far, &near)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                state.streams.extend([near, far]);
            }
        });
        Self { address, state }
    }

    fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut = true;
        for stream in state.streams.drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn mend(&self) {
        self.state.lock().unwrap().cut = false;
    }
}

#[test]
fn a_long_outage_is_warned_of_and_so_is_its_end() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let path = Path::to(server.address());
    let via = path.address.to_string();
    let mut client = Outlast::start(folder.path(), &["connect", "127.0.0.1:0", "--via", &via]);
    let mut program = TcpStream::connect(client.address()).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0];
    program.write_all(b"a").unwrap();
    program.read_exact(&mut answer).unwrap();
    path.cut();
    let line = client.wait_for("no link for 10");
    assert!(line.contains("WARN session ") && line.contains(&format!(" to {via}: ")), "{line}");
    assert!(line.ends_with("; retrying, nothing is lost"), "{line}");
    path.mend();
    let line = client.wait_for("linked again after 1");
    assert!(line.contains("WARN session ") && line.ends_with(", nothing was lost"), "{line}");
    program.write_all(b"b").unwrap();
    program.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"b");
}
