//! Both ends of sessions without a thread of theirs: a test says what happens when.

use crate::config::Config;
use crate::engine::{Acceptor, Begun, Engine, Link, Role, Shaken, Shaking, Verdict, new_session_id};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// A server and, as far as it has one, its client's engine.
pub(super) struct ByHand {
    pub(super) acceptor: Arc<Acceptor>,
    pub(super) socket: TcpListener,
    pub(super) client: Arc<Engine>,
}

impl ByHand {
    pub(super) fn new(config: Config) -> Self {
        let config = Arc::new(config);
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let acceptor = Acceptor::new(config.clone());
        acceptor.prepare(&socket.try_clone().unwrap().into()).unwrap();
        let client = Engine::new(new_session_id(), Role::Client, config);
        Self { acceptor, socket, client }
    }

    fn connect(&self) -> Link {
        let address = self.socket.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        self.client.client_link(stream.into(), "localhost", address).unwrap()
    }

    /// The connection that has said something.
    pub(super) fn accept(&self) -> Shaking {
        let (stream, peer) = self.socket.accept().unwrap();
        Shaking::new(self.acceptor.server_link(stream.into(), peer).unwrap())
    }

    /// Opens the session: the server's engine, which has sent its Welcome.
    pub(super) fn open(&self) -> Arc<Engine> {
        let begun = self.client.client_begin(self.connect()).unwrap();
        assert!(matches!(begun, Begun::Installed), "no early data");
        self.client.flush();
        let mut shaking = self.accept();
        let server = loop {
            match shaking.step(&self.acceptor).unwrap() {
                Shaken::Opened(engine) => break engine,
                Shaken::Wait => std::thread::yield_now(),
                Shaken::Done => panic!("refused"),
            }
        };
        server.flush();
        while !self.client.is_established() {
            self.client.pump_input();
        }
        server
    }

    /// Makes a new link for the session.
    pub(super) fn resume(&self) {
        let Begun::Shake(link, mut shake) = self.client.client_begin(self.connect()).unwrap() else {
            panic!("a resume waits for its welcome")
        };
        let mut shaking = None;
        loop {
            let mut buffer = [0; 4096];
            match shake.step(&link, &mut buffer) {
                Ok(count) => match self.client.client_feed(shake, &link, &buffer[..count]) {
                    Verdict::More(more) => shake = more,
                    Verdict::Installed => return,
                    verdict => panic!("{verdict:?}"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let shaking = shaking.get_or_insert_with(|| self.accept());
                    let _ = shaking.step(&self.acceptor).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}
