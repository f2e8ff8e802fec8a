//! Input of links that were given up, for an application that has not read it yet.

use super::super::Link;
use super::super::inbox::Inbox;
use super::super::memory::FrozenBytes;
use super::Rx;
use crate::error::{Error, Result};
use crate::sys;
use std::io;
use std::sync::Arc;

/// So many links that were given up may hold input. Of further ones it is taken.
const FROZEN_LINKS_MAX: usize = 4;
/// And of those that have no more than this.
const COPIED_BYTES_MAX: u64 = 64 << 10;
/// More is put aside in further pieces: each is freed when it is read, and a long one would be moved again and again.
const STASHED_BYTES_MAX: usize = 256 << 10;

/// Bytes of the stream that come before those of the present link.
#[derive(Debug)]
pub(crate) enum Segment {
    /// Already in memory.
    Bytes(Inbox),
    /// Still in the kernel, in the receive queue of an earlier link that was frozen.
    Frozen {
        /// The link.
        link: Arc<Link>,
        /// Bytes still to be read from it.
        left_bytes: u64,
        /// Those that it had at first.
        _charge: FrozenBytes,
    },
}

impl Rx {
    /// Reads from what earlier links left behind.
    pub(in crate::engine) fn read_backlog(&mut self, buffer: &mut [u8]) -> Option<Result<usize>> {
        loop {
            let segment = self.backlog.front_mut()?;
            let count = match segment {
                Segment::Bytes(inbox) => inbox.read(buffer),
                Segment::Frozen { link, left_bytes, .. } => {
                    let most = usize::try_from(*left_bytes).unwrap_or(usize::MAX).min(buffer.len());
                    let room = buffer.get_mut(..most).unwrap_or_default();
                    match sys::receive(&**link, room, false) {
                        Ok(count) if count > 0 || most == 0 => {
                            *left_bytes -= count as u64;
                            count
                        }
                        // The kernel had promised these bytes (SIOCINQ on a frozen socket).
                        Ok(_) => return Some(Err(broken_promise(*left_bytes, "end of input"))),
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        Err(error) => return Some(Err(broken_promise(*left_bytes, &error.to_string()))),
                    }
                }
            };
            self.backlog_bytes -= count as u64;
            let empty = match segment {
                Segment::Bytes(inbox) => inbox.is_empty(),
                Segment::Frozen { left_bytes, .. } => *left_bytes == 0,
            };
            if empty {
                self.backlog.pop_front();
            }
            if count > 0 || buffer.is_empty() {
                return Some(Ok(count));
            }
        }
    }

    /// Puts decoded bytes aside for the application.
    pub(super) fn stash(&mut self, bytes: &[u8]) {
        self.backlog_bytes += bytes.len() as u64;
        if let Some(Segment::Bytes(inbox)) = self.backlog.back_mut()
            && inbox.len() + bytes.len() <= STASHED_BYTES_MAX
        {
            inbox.extend(bytes);
            return;
        }
        let mut inbox = Inbox::default();
        inbox.extend(bytes);
        self.backlog.push_back(Segment::Bytes(inbox));
    }

    /// Counts what a frozen link has received and nobody has read, and keeps it: where it is, or, where that is little or
    /// there are others already, as bytes. Each link takes a descriptor, and a peer that resumes again and again makes many.
    pub(in crate::engine) fn keep_unread(&mut self, link: &Arc<Link>, left_bytes: u64) {
        let is_frozen = |segment: &&Segment| matches!(segment, Segment::Frozen { .. });
        let has_many = || self.backlog.iter().filter(is_frozen).count() >= FROZEN_LINKS_MAX;
        let taken_bytes =
            if left_bytes <= COPIED_BYTES_MAX || has_many() { self.take_unread(link, left_bytes) } else { 0 };
        let left_bytes = left_bytes - taken_bytes;
        if left_bytes > 0 {
            self.backlog_bytes += left_bytes;
            self.receiver.took(usize::try_from(left_bytes).unwrap_or(usize::MAX));
            let _charge = FrozenBytes::new(left_bytes);
            self.backlog.push_back(Segment::Frozen { link: link.clone(), left_bytes, _charge });
        }
    }

    /// Takes what a link has received, up to so many bytes, and counts it: how many these are.
    pub(in crate::engine) fn take_unread(&mut self, link: &Link, most_bytes: u64) -> u64 {
        let (mut taken_bytes, mut room) = (0, [0; 16 << 10]);
        while taken_bytes < most_bytes {
            let most = usize::try_from(most_bytes - taken_bytes).unwrap_or(usize::MAX).min(room.len());
            match sys::receive(link, room.get_mut(..most).unwrap_or_default(), false) {
                Ok(count) if count > 0 => {
                    self.stash(room.get(..count).unwrap_or_default());
                    self.receiver.took(count);
                    taken_bytes += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        taken_bytes
    }

    /// Throws away what nobody will read. It counts as received, as the peer has been told.
    pub(crate) fn drop_input(&mut self) {
        self.backlog.clear();
        self.backlog_bytes = 0;
        // Between the payload of frames there is more to know, such as the peer's end; and an answer is none of it.
        if !self.receiver.is_framed() && self.opening.is_none() {
            self.receiver.took(self.inbox.len());
            self.inbox.clear();
            self.inbox.shrink();
        }
    }
}

fn broken_promise(left_bytes: u64, what: &str) -> Error {
    tracing::error!(left_bytes, what, "a frozen link lost received bytes");
    Error::System { what: "read the rest of a replaced link", errno: crate::error::Errno(libc::EIO) }
}
