//! State in memory with a descriptor of its own, for keepers that keep descriptors only.
//!
//! There are two places, each of a number that counts its changes, a length and the state. The older one is written: first the
//! state, then the eight bytes before it. The kernel copies these at once, and a process that is killed before leaves the other
//! place as it was. No message is needed to change state.

use super::protocol::STATE_BYTES_MAX;
use crate::sys::file_size::beyond_limit;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Two pages for each place, so that its header is within one.
const PLACE_BYTES: u64 = 8192;
const HEADER_BYTES: u64 = 8;

#[derive(Debug)]
pub(super) struct StateFile {
    file: File,
    /// Of the last change. The place is its last bit.
    count: u32,
}

impl StateFile {
    pub(super) fn new(state: &[u8]) -> io::Result<Self> {
        let size = usize::try_from(2 * PLACE_BYTES).map_err(io::Error::other)?;
        let mut new = Self { file: crate::sys::memfd::create(c"outlast-kept", size)?.into(), count: 0 };
        new.write(state)?;
        Ok(new)
    }

    /// One that an earlier process has written. None if it is something else.
    pub(super) fn open(descriptor: OwnedFd) -> Option<(Self, Vec<u8>)> {
        let file = File::from(descriptor);
        let newest =
            [0, 1].into_iter().filter_map(|place| read(&file, place)).max_by_key(|(count, _)| *count);
        let (count, state) = newest?;
        Some((Self { file, count }, state))
    }

    /// `state` is at most [`STATE_BYTES_MAX`].
    pub(super) fn write(&mut self, state: &[u8]) -> io::Result<()> {
        let count = self.count.checked_add(1).ok_or_else(|| io::Error::other("changed 4 billion times"))?;
        let length = u32::try_from(state.len()).map_err(io::Error::other)?;
        let at = u64::from(count % 2) * PLACE_BYTES;
        let [[a, b, c, d], [e, f, g, h]] = [count.to_ne_bytes(), length.to_ne_bytes()];
        beyond_limit(2 * PLACE_BYTES, || {
            self.file.write_all_at(state, at + HEADER_BYTES)?;
            self.file.write_all_at(&[a, b, c, d, e, f, g, h], at)
        })?;
        self.count = count;
        Ok(())
    }
}

impl AsFd for StateFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The number and the state of a place, if there are any.
fn read(file: &File, place: u32) -> Option<(u32, Vec<u8>)> {
    let at = u64::from(place) * PLACE_BYTES;
    let mut header = [0; 8];
    file.read_exact_at(&mut header, at).ok()?;
    let [a, b, c, d, e, f, g, h] = header;
    let (count, length) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    let length = usize::try_from(length).ok().filter(|length| *length <= STATE_BYTES_MAX)?;
    if count == 0 || count % 2 != place {
        return None;
    }
    let mut state = vec![0; length];
    file.read_exact_at(&mut state, at + HEADER_BYTES).ok()?;
    Some((count, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reopened(file: &StateFile) -> Option<Vec<u8>> {
        Some(StateFile::open(file.as_fd().try_clone_to_owned().unwrap())?.1)
    }

    #[test]
    fn the_last_state_is_found() {
        let mut file = StateFile::new(b"first").unwrap();
        assert_eq!(reopened(&file).unwrap(), b"first");
        for length in [0, 1, STATE_BYTES_MAX, 3] {
            let state = vec![u8::try_from(length % 251).unwrap(); length];
            file.write(&state).unwrap();
            assert_eq!(reopened(&file).unwrap(), state);
            let (mut next, _) = StateFile::open(file.as_fd().try_clone_to_owned().unwrap()).unwrap();
            next.write(&state).unwrap();
            file.count = next.count;
        }
    }

    /// Killed after any part of a change: the state before it is there.
    #[test]
    fn a_change_that_was_not_finished_has_not_happened() {
        let mut file = StateFile::new(b"one").unwrap();
        file.write(b"second").unwrap();
        let at = u64::from((file.count + 1) % 2) * PLACE_BYTES;
        for written in 0..6 {
            file.file.write_all_at(&b"torn!!"[..written], at + HEADER_BYTES).unwrap();
            assert_eq!(reopened(&file).unwrap(), b"second");
        }
    }

    #[test]
    fn what_is_no_state_is_none() {
        let empty = crate::sys::memfd::create(c"test", 16384).unwrap();
        assert!(StateFile::open(empty).is_none());
        assert!(StateFile::open(crate::sys::memfd::create(c"test", 3).unwrap()).is_none());
        let file = StateFile::new(b"x").unwrap();
        file.file.write_all_at(&[0xff; 8], PLACE_BYTES).unwrap();
        assert!(reopened(&file).is_none());
    }
}
