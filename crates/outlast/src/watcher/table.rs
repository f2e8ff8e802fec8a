//! The sessions that a relay has, as another process finds them when the relay has died: memory that belongs to no
//! process (memfd_create(2)), with a record for each session.

use outlast_restart::beyond_limit;
use outlast_session::{LAST_WORD_BYTES, LastWord};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A record: what it takes to give the session up, the number of its server, and zeroes. It never crosses a page.
const RECORD_BYTES: usize = 64;

/// Written by the relay, read by nobody while that lives.
#[derive(Debug)]
pub struct Table {
    file: File,
    free: Mutex<Free>,
    /// What is there now is what the watcher is to say.
    closed: AtomicBool,
    warned: AtomicBool,
}

/// Which records are free: those given back, and all from `unused` on.
#[derive(Debug, Default)]
struct Free {
    given_back: Vec<u32>,
    unused: u32,
}

/// The record of one session. Wiped when dropped.
#[derive(Debug)]
pub struct Slot {
    table: Arc<Table>,
    number: u32,
}

impl Table {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        let create = |flags| memfd_create("outlast-sessions", MemfdFlags::CLOEXEC | flags);
        // Kernels before 6.3 do not know the flag, later ones note in their log that it is missing.
        let file = create(MemfdFlags::NOEXEC_SEAL).or_else(|_| create(MemfdFlags::empty()))?;
        let file = File::from(file);
        Ok(Self {
            file,
            free: Mutex::default(),
            closed: AtomicBool::new(false),
            warned: AtomicBool::new(false),
        })
    }

    /// For the watcher.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Notes a session. None if there is no memory for it, which is said once.
    pub fn enter(self: &Arc<Self>, word: &LastWord, server: u32) -> Option<Slot> {
        let number = self.take();
        let mut record = [0; RECORD_BYTES];
        let fields = word.encode().into_iter().chain(server.to_be_bytes());
        for (to, from) in record.iter_mut().zip(fields) {
            *to = from;
        }
        let slot = Slot { table: Arc::clone(self), number };
        if let Err(error) = self.write(number, &record) {
            if !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!("cannot note a session for the process that watches this one: {error}");
            }
            return None;
        }
        Some(slot)
    }

    /// The relay ends: sessions that have not ended by now are for the watcher to give up.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn take(&self) -> u32 {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.given_back.pop().unwrap_or_else(|| {
            free.unused += 1;
            free.unused - 1
        })
    }

    fn write(&self, number: u32, record: &[u8; RECORD_BYTES]) -> io::Result<()> {
        let at = u64::from(number) * RECORD_BYTES as u64;
        // The limit of this process's user is for files on a disk.
        beyond_limit(at + RECORD_BYTES as u64, || self.file.write_all_at(record, at))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.table.closed.load(Ordering::SeqCst) {
            return;
        }
        // One that cannot be wiped is told to a server that knows nothing of it any more.
        self.table.write(self.number, &[0; RECORD_BYTES]).ok();
        self.table.free.lock().unwrap_or_else(PoisonError::into_inner).given_back.push(self.number);
    }
}

/// What a table has, with the numbers of the servers.
pub fn read(file: &File) -> io::Result<Vec<(LastWord, u32)>> {
    let mut found = Vec::new();
    let mut record = [0; RECORD_BYTES];
    for number in 0u64.. {
        match file.read_exact_at(&mut record, number * RECORD_BYTES as u64) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        let (word, rest) = record.split_at(LAST_WORD_BYTES);
        let (Ok(word), Some(server)) = (word.try_into(), rest.first_chunk()) else { continue };
        if let Ok(word) = LastWord::decode(word) {
            found.push((word, u32::from_be_bytes(*server)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(digit: u8) -> LastWord {
        let mut bytes = [digit; LAST_WORD_BYTES];
        (bytes[0], bytes[1]) = (1, 2);
        LastWord::decode(&bytes).unwrap()
    }

    #[test]
    fn the_sessions_that_are_there_are_found_and_records_are_used_again() {
        let table = Arc::new(Table::new().unwrap());
        let reader = File::from(table.share().unwrap());
        assert_eq!(read(&reader).unwrap(), []);
        let mut slots: Vec<Slot> = (1..=100).map(|n| table.enter(&word(n), n.into()).unwrap()).collect();
        assert_eq!(read(&reader).unwrap().len(), 100);
        slots.remove(40);
        slots.remove(20);
        let found = read(&reader).unwrap();
        assert_eq!(found.len(), 98);
        assert!(!found.iter().any(|(_, server)| [21, 41].contains(server)));
        assert!(found.contains(&(word(100), 100)));
        let again = [table.enter(&word(7), 7), table.enter(&word(8), 8)];
        assert_eq!(reader.metadata().unwrap().len(), 100 * RECORD_BYTES as u64);
        drop(again);
        table.close();
        drop(slots);
        assert_eq!(read(&reader).unwrap().len(), 98);
    }
}
