//! A relay that changes its process, as it goes over a local socket: its session, its program's connection, and what is
//! under way between the two.
//!
//! Each parcel is a length, a header of that length in JSON, and the bytes that the header announces. The connection
//! rides with the length (`SCM_RIGHTS`). A length of 0 ends the sequence: whoever stops without it has failed.
//!
//! A session that holds much is in a file in memory, which rides with the length as well: it is copied twice, and not at each of the
//! two sockets, and all the while it is in memory once or twice, and not in three processes.

use anyhow::{Context, Result, ensure};
use outlast_session::Detached;
use outlast_session::relay::{DetachedRelay, Rest};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest header.
const HEADER_BYTES_MAX: u32 = 4 << 10;
/// Longest session or rest: more than any ring and any kernel's buffer.
const PART_BYTES_MAX: u64 = 1 << 30;
/// Of the header. Another process may be of another version.
const VERSION: u32 = 1;
/// Of one whose session is in a file.
const VERSION_WITH_FILE: u32 = 2;
/// Sessions of more bytes are put into files.
const FILE_BYTES_MIN: usize = 4 << 20;

/// One relay between two processes. A process that only keeps it need not understand the session.
#[derive(Debug)]
pub struct Parcel {
    /// What is written on it.
    pub label: Label,
    /// The session.
    session: Content,
    /// The local program's connection.
    pub local: OwnedFd,
    /// What was under way.
    pub rest: Rest,
}

/// A session as [`Detached::into_parts`] has made it.
#[derive(Debug)]
enum Content {
    Bytes(Vec<Vec<u8>>),
    /// So many bytes of the file, which has no more.
    File(File, u64),
}

impl Default for Content {
    fn default() -> Self {
        Self::Bytes(Vec::new())
    }
}

impl Content {
    /// Puts much of it into a file, if there can be one.
    fn of(parts: Vec<Vec<u8>>) -> Self {
        let bytes: usize = parts.iter().map(Vec::len).sum();
        let is_allowed = || {
            // A process that writes more is killed.
            let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
            limit.is_none_or(|limit| bytes as u64 <= limit)
        };
        let in_file = bytes >= FILE_BYTES_MIN && is_allowed();
        let file = in_file.then(|| written(&parts)).and_then(io::Result::ok);
        file.map_or(Self::Bytes(parts), |file| Self::File(file, bytes as u64))
    }

    fn len(&self) -> u64 {
        match self {
            Self::Bytes(parts) => parts.iter().map(|part| part.len() as u64).sum(),
            Self::File(_, bytes) => *bytes,
        }
    }

    fn file(&self) -> Option<&File> {
        match self {
            Self::Bytes(_) => None,
            Self::File(file, _) => Some(file),
        }
    }

    fn read(self) -> Result<Vec<u8>> {
        match self {
            Self::Bytes(mut parts) if parts.len() == 1 => Ok(parts.swap_remove(0)),
            Self::Bytes(parts) => Ok(parts.concat()),
            Self::File(file, bytes) => {
                let mut whole = vec![0; usize::try_from(bytes)?];
                file.read_exact_at(&mut whole, 0)?;
                Ok(whole)
            }
        }
    }
}

/// A file in memory.
fn written(parts: &[Vec<u8>]) -> io::Result<File> {
    let mut file = File::from(memfd_create("outlast-session", MemfdFlags::CLOEXEC)?);
    parts.iter().try_for_each(|part| file.write_all(part))?;
    Ok(file)
}

/// What came is not what this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherVersion;

impl std::fmt::Display for OtherVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("they are of another version of outlast")
    }
}

impl std::error::Error for OtherVersion {}

/// What people can be told of a session by a process that does not understand it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Label {
    /// The session's name.
    pub id: String,
    /// Where its client was.
    pub peer: Option<IpAddr>,
    /// Bytes that its client is not known to have.
    pub unacked_bytes: u64,
    /// Bytes from its client that the service behind it has not been given.
    pub unread_bytes: u64,
    /// How long it may still wait for its client from the moment at which it was packed. None in parcels of earlier versions.
    pub keep_left_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    /// An earlier version does without.
    #[serde(default)]
    label: Label,
    session_bytes: u64,
    to_local_bytes: u64,
    up_ended: bool,
    /// An earlier version does without these two: what they tell is found out again.
    #[serde(default)]
    down_ended: bool,
    #[serde(default)]
    broken: bool,
}

impl Parcel {
    /// Packs a relay.
    pub fn pack(relay: DetachedRelay) -> Result<Self> {
        let DetachedRelay { session, local, rest } = relay;
        let label = Label {
            id: session.id().to_string(),
            peer: Some(session.peer()),
            unacked_bytes: session.unacked_bytes(),
            unread_bytes: session.unread_bytes() + rest.to_local.len() as u64,
            keep_left_ms: session.keep_left().map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        };
        Ok(Self { label, session: Content::of(session.into_parts().into()), local: local.into_fd()?, rest })
    }

    /// The session that goes on, which is taken out of it.
    pub fn detached(&mut self) -> Result<Detached> {
        let whole = std::mem::take(&mut self.session).read()?;
        Detached::from_vec(whole).context("a session of another version of outlast")
    }

    /// The program sees a reset when the last process that has its connection closes it, rather than the end of the
    /// stream. Relays of this version have seen to that already; those of earlier versions have not.
    pub fn reset_when_dropped(&self) {
        socket2::SockRef::from(&self.local).set_linger(Some(Duration::ZERO)).ok();
    }

    /// Hands it to the other end, and keeps it.
    pub fn send(&self, mut stream: &UnixStream) -> Result<()> {
        let header = serde_json::to_vec(&Header {
            version: if self.session.file().is_some() { VERSION_WITH_FILE } else { VERSION },
            label: self.label.clone(),
            session_bytes: self.session.len(),
            to_local_bytes: self.rest.to_local.len() as u64,
            up_ended: self.rest.up_ended,
            down_ended: self.rest.down_ended,
            broken: self.rest.broken,
        })?;
        let length = u32::try_from(header.len())?.to_be_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let file = self.session.file().map(AsFd::as_fd);
        let descriptors: Vec<_> = [self.local.as_fd()].into_iter().chain(file).collect();
        ensure!(rights.push(SendAncillaryMessage::ScmRights(&descriptors)), "no room for a descriptor");
        // A stopped process that goes on finds its calls interrupted.
        let sent = retry_on_intr(|| {
            rustix::net::sendmsg(stream, &[IoSlice::new(&length)], &mut rights, SendFlags::NOSIGNAL)
        })?;
        stream.write_all(length.get(sent..).unwrap_or_default())?;
        stream.write_all(&header)?;
        if let Content::Bytes(parts) = &self.session {
            parts.iter().try_for_each(|part| stream.write_all(part))?;
        }
        stream.write_all(&self.rest.to_local)?;
        Ok(())
    }

    /// Takes the next one; none when the other end has no more.
    pub fn receive(mut stream: &UnixStream) -> Result<Option<Self>> {
        let mut length = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut room = [IoSliceMut::new(&mut length)];
            rustix::net::recvmsg(stream, &mut room, &mut rights, RecvFlags::CMSG_CLOEXEC)
        })?;
        ensure!(received.bytes > 0, "the other process has stopped");
        let descriptors = rights.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        let descriptors: Vec<OwnedFd> = descriptors.collect();
        let mut descriptors = descriptors.into_iter();
        let local = descriptors.next();
        stream.read_exact(length.get_mut(received.bytes..).unwrap_or_default())?;
        let length = u32::from_be_bytes(length);
        if length == 0 {
            return Ok(None);
        }
        ensure!(length <= HEADER_BYTES_MAX, OtherVersion);
        let header = part(stream, u64::from(length))?;
        let header: Header = serde_json::from_slice(&header).map_err(|_| OtherVersion)?;
        let session = match header.version {
            VERSION => Content::Bytes(vec![part(stream, header.session_bytes)?]),
            VERSION_WITH_FILE => {
                let file = descriptors.next().context("no descriptor for what it holds (see `ulimit -n`)")?;
                let file = File::from(file);
                let bytes = header.session_bytes;
                ensure!(bytes <= PART_BYTES_MAX && file.metadata()?.len() == bytes, OtherVersion);
                Content::File(file, bytes)
            }
            _ => return Err(OtherVersion.into()),
        };
        let to_local = part(stream, header.to_local_bytes)?;
        let local = local.context("no descriptor for its connection (see `ulimit -n`)")?;
        let Header { up_ended, down_ended, broken, .. } = header;
        let rest = Rest { up_ended, down_ended, broken, to_local };
        Ok(Some(Self { label: header.label, session, local, rest }))
    }
}

/// The last one was sent.
pub fn send_end(mut stream: &UnixStream) -> Result<()> {
    Ok(stream.write_all(&0u32.to_be_bytes())?)
}

/// So many bytes. Memory is taken as they come, not as they are announced.
fn part(stream: &UnixStream, bytes: u64) -> Result<Vec<u8>> {
    ensure!(bytes <= PART_BYTES_MAX, "a part of {bytes} bytes");
    let mut part = Vec::new();
    stream.take(bytes).read_to_end(&mut part)?;
    ensure!(part.len() as u64 == bytes, "the other process has stopped");
    Ok(part)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn parcel(session: &[u8]) -> (Parcel, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let program = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (local, _) = listener.accept().unwrap();
        let rest = Rest { up_ended: true, down_ended: true, broken: true, to_local: vec![7; 300_000] };
        let label = Label {
            id: "0f".into(),
            peer: None,
            unacked_bytes: 1,
            unread_bytes: 300_000,
            keep_left_ms: Some(5),
        };
        (
            Parcel { label, session: Content::Bytes(vec![session.to_vec()]), local: local.into(), rest },
            program,
        )
    }

    #[test]
    fn what_is_sent_is_received_with_its_connection() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (sent, mut program) = parcel(b"session");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sent.send(&ours).unwrap();
                sent.send(&ours).unwrap();
                send_end(&ours).unwrap();
            });
            let mut first = Parcel::receive(&theirs).unwrap().unwrap();
            let second = Parcel::receive(&theirs).unwrap().unwrap();
            assert!(Parcel::receive(&theirs).unwrap().is_none());
            assert_eq!((first.session.len(), &first.rest), (7, &sent.rest));
            assert_eq!(first.label, sent.label);
            let mut local = std::net::TcpStream::from(second.local);
            local.write_all(b"hello").unwrap();
            let mut heard = [0; 5];
            program.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"hello");
            assert!(first.detached().is_err(), "not a session");
        });
    }

    #[test]
    fn what_holds_much_goes_as_a_file_and_is_whole_also_when_it_is_passed_on() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bytes: Vec<u8> = (0..FILE_BYTES_MIN).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let (mut sent, _program) = parcel(b"");
        // What is not in the file fits into the sockets' buffers.
        sent.rest.to_local.truncate(100);
        sent.session = Content::of(vec![bytes[..10].to_vec(), bytes[10..].to_vec()]);
        assert!(sent.session.file().is_some());
        sent.send(&ours).unwrap();
        Parcel::receive(&theirs).unwrap().unwrap().send(&ours).unwrap();
        let last = Parcel::receive(&theirs).unwrap().unwrap();
        assert_eq!((last.session.read().unwrap() == bytes, &last.rest), (true, &sent.rest));
        // A file that somebody has made shorter.
        sent.session.file().unwrap().set_len(5).unwrap();
        sent.send(&ours).unwrap();
        assert!(Parcel::receive(&theirs).is_err());
    }

    #[test]
    fn whoever_stops_early_or_lies_is_not_believed() {
        for said in [
            &b""[..],
            b"\0",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x02{}",
            b"\0\0\0\x45{\"version\":1,\"session_bytes\":9999999999,\"to_local_bytes\":0,\"up_ended\":true}",
            b"\0\0\0\x3c{\"version\":1,\"session_bytes\":1,\"to_local_bytes\":1,\"up_ended\":true}",
            b"\0\0\0\x3c{\"version\":1,\"session_bytes\":1,\"to_local_bytes\":1,\"up_ended\":true}ab",
        ] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(said).unwrap();
            drop(ours);
            assert!(Parcel::receive(&theirs).is_err(), "{said:?}");
        }
    }
}
