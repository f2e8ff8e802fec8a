//! A holder in a thread, and a client that says what it likes.

use outlast_restart::holder::protocol::Request;
use outlast_restart::holder::{Client, Event, Options, listen, serve};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, shutdown, socket_with,
};
use std::io::{self, IoSlice, IoSliceMut, PipeWriter};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Stopped when dropped.
pub struct Holder {
    _folder: tempfile::TempDir,
    pub path: PathBuf,
    options: Options,
    running: Option<(PipeWriter, JoinHandle<io::Result<()>>)>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Holder {
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holder");
        let mut holder = Self { _folder: folder, path, options, running: None, events: Arc::default() };
        holder.restart();
        holder
    }

    pub fn restart(&mut self) {
        self.stop();
        let listener = listen(&self.path, false).unwrap();
        let (stop, stopper) = io::pipe().unwrap();
        let (options, events) = (self.options.clone(), Arc::clone(&self.events));
        let holding = std::thread::spawn(move || {
            serve(listener, &options, stop, |event| events.lock().unwrap().push(event))
        });
        self.running = Some((stopper, holding));
    }

    /// Everything it held is closed.
    pub fn stop(&mut self) {
        if let Some((stopper, holding)) = self.running.take() {
            drop(stopper);
            holding.join().unwrap().unwrap();
        }
    }

    pub fn client(&self, service: &str) -> Client {
        Client::new(&self.path, service).unwrap()
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A connection on loopback: the user's end, and the server's.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let user = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (user, listener.accept().unwrap().0)
}

/// A client without manners.
pub struct Raw(OwnedFd);

impl Raw {
    pub fn connect(path: &Path) -> Self {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(socket)
    }

    /// Does not wait for room.
    pub fn try_send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags)?;
        Ok(())
    }

    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.try_send(bytes, descriptors).unwrap();
    }

    /// The next packet; nothing: the end.
    pub fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        // What comes with it is closed again.
        let length =
            recvmsg(&self.0, &mut parts, &mut control, RecvFlags::empty()).map_or(0, |packet| packet.bytes);
        bytes.truncate(length);
        bytes
    }

    pub fn ask(&self, request: &Request<'_>, descriptor: Option<BorrowedFd<'_>>) -> Vec<u8> {
        self.send(&request.encode(), descriptor.as_slice());
        self.receive()
    }

    /// Says nothing more.
    pub fn end(&self) {
        let _ = shutdown(&self.0, rustix::net::Shutdown::Write);
    }

    pub fn until_the_end(&self) -> Vec<Vec<u8>> {
        std::iter::repeat_with(|| self.receive()).take_while(|packet| !packet.is_empty()).collect()
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
