//! Serving with threads.

use super::BUFFER_BYTES;
use crate::wire::blocking::Link;
use crate::wire::identity::Identity;
use crate::wire::{Endpoint, Kind, REQUEST_BYTES, RESPONSE_BYTES, wants};
use anyhow::{Result, bail};
use outlast_session::blocking::Listener;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::thread;

const BACKLOG: i32 = 4096;

/// Listens with one endpoint; a thread accepts.
pub fn listen(endpoint: Endpoint, address: SocketAddr, identity: &Identity) -> Result<SocketAddr> {
    match endpoint.kind {
        Kind::Raw | Kind::RawBounded => listen_plain(TcpListener::bind(address)?),
        Kind::Mptcp => {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::MPTCP))?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            listen_plain(TcpListener::from(socket))
        }
        Kind::Session(mode, guard) => {
            let listener = Listener::bind_with(address, &identity.session(mode, guard)?)?;
            let bound = listener.local_addr();
            accept_all(move || Ok(listener.accept()?))?;
            Ok(bound)
        }
        Kind::Quic => bail!("QUIC has no blocking face"),
    }
}

fn listen_plain(listener: TcpListener) -> Result<SocketAddr> {
    let bound = listener.local_addr()?;
    accept_all(move || {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })?;
    Ok(bound)
}

fn accept_all<L: Link>(mut accept: impl FnMut() -> io::Result<L> + Send + 'static) -> Result<()> {
    thread::Builder::new().name("accept".to_owned()).spawn(move || {
        loop {
            match accept() {
                Ok(link) => welcome(link),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return eprintln!("accepting ends: {error}"),
            }
        }
    })?;
    Ok(())
}

/// Short transactions are served by the thread that accepts; everything else gets a thread.
fn welcome<L: Link>(mut link: L) {
    let mut first = [0; REQUEST_BYTES];
    let Ok(count @ 1..) = link.read(&mut first) else { return };
    if first[0] == wants::TRANSACTION {
        let _ = transaction(&mut link, count);
        return;
    }
    let spawned = thread::Builder::new().name("serve".to_owned()).spawn(move || {
        let _ = match first[0] {
            wants::ECHO => echo(&mut link, &first[..count]),
            wants::SINK => sink(&mut link, count),
            wants::SOURCE => source(&mut link, &first[1..count]),
            _ => Err(ErrorKind::InvalidData.into()),
        };
    });
    if let Err(error) = spawned {
        eprintln!("a client is not served: {error}");
    }
}

fn transaction<L: Link>(link: &mut L, mut count: usize) -> io::Result<()> {
    let mut rest = [0; REQUEST_BYTES];
    while count < REQUEST_BYTES {
        match link.read(&mut rest)? {
            0 => return Ok(()),
            more => count += more,
        }
    }
    link.write_all(&[7; RESPONSE_BYTES])
}

fn echo<L: Link>(link: &mut L, first: &[u8]) -> io::Result<()> {
    link.write_all(first)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match link.read(&mut buffer)? {
            0 => return Ok(()),
            count => link.write_all(&buffer[..count])?,
        }
    }
}

/// The number of bytes may come in pieces.
fn source<L: Link>(link: &mut L, first: &[u8]) -> io::Result<()> {
    let mut number = [0; 8];
    let (head, rest) = number.split_at_mut(first.len().min(8));
    head.copy_from_slice(&first[..head.len()]);
    link.read_exact(rest)?;
    let mut left = u64::from_le_bytes(number);
    let data = vec![0x5a; BUFFER_BYTES];
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
        link.write_all(&data[..count])?;
        left -= count as u64;
    }
    link.half_close()
}

fn sink<L: Link>(link: &mut L, first: usize) -> io::Result<()> {
    let mut bytes = first as u64 - 1;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match link.read(&mut buffer)? {
            0 => break,
            count => bytes += count as u64,
        }
    }
    link.write_all(&bytes.to_le_bytes())?;
    link.flush()
}
