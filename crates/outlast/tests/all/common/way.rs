//! A way to a server that can be cut, and mended.

use super::nobody;
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Carries connections to a server while it is whole. Cut, nobody listens there, and nobody else can.
pub struct Way {
    pub address: SocketAddr,
    server: SocketAddr,
    socket: Socket,
    carrying: Option<JoinHandle<()>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    is_mute: Arc<AtomicBool>,
}

impl Way {
    pub fn to(server: SocketAddr) -> Self {
        let address = nobody();
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&address.into()).unwrap();
        let mut way =
            Self { address, server, socket, carrying: None, open: Arc::default(), is_mute: Arc::default() };
        way.mend();
        way
    }

    pub fn mend(&mut self) {
        self.socket.listen(16).unwrap();
        let listener = TcpListener::from(self.socket.try_clone().unwrap());
        let (server, open) = (self.server, Arc::clone(&self.open));
        self.mute(false);
        let is_mute = Arc::clone(&self.is_mute);
        self.carrying = Some(std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let Ok(far) = TcpStream::connect(server) else { continue };
                for (from, to, may_be_mute) in [(&near, &far, false), (&far, &near, true)] {
                    let is_mute = Arc::clone(&is_mute);
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    open.lock().unwrap().push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut room = [0; 1 << 16];
                        while let Ok(count @ 1..) = from.read(&mut room) {
                            let is_lost = may_be_mute && is_mute.load(Ordering::SeqCst);
                            if !is_lost && to.write_all(&room[..count]).is_err() {
                                break;
                            }
                        }
                        to.shutdown(Shutdown::Write).ok();
                    });
                }
            }
        }));
    }

    /// Whether what the server says from here on is lost, until it is mended.
    pub fn mute(&self, is_mute: bool) {
        self.is_mute.store(is_mute, Ordering::SeqCst);
    }

    /// Its port stays its own.
    pub fn cut(&mut self) {
        self.socket.shutdown(Shutdown::Both).unwrap();
        self.carrying.take().unwrap().join().unwrap();
        for stream in self.open.lock().unwrap().drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        if self.carrying.is_some() {
            self.cut();
        }
    }
}
