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

/// A record: what it takes to give the session up, the number of its server, whether it was given up, and zeroes. It never
/// crosses a page.
const RECORD_BYTES: usize = 64;
/// Where a record says that its session was given up.
const GIVEN_UP_AT: usize = LAST_WORD_BYTES + size_of::<u32>();
const GIVEN_UP: u8 = 1;

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    pub word: LastWord,
    /// The number of its server.
    pub server: u32,
    /// The relay has ended the session itself, and could not say so.
    pub given_up: bool,
}

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

/// The record of one session. Wiped when dropped, unless the session was [given up](Slot::give_up).
#[derive(Debug)]
pub struct Slot {
    table: Arc<Table>,
    number: u32,
    given_up: bool,
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
        let slot = Slot { table: Arc::clone(self), number, given_up: false };
        if let Err(error) = self.write(number, 0, &record) {
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

    /// Changes a part of a record.
    fn write(&self, number: u32, from: usize, part: &[u8]) -> io::Result<()> {
        let at = u64::from(number) * RECORD_BYTES as u64 + from as u64;
        // The limit of this process's user is for files on a disk.
        beyond_limit(at + part.len() as u64, || self.file.write_all_at(part, at))
    }
}

impl Slot {
    /// The relay has ended the session, and its server does not know: the record stays until [`said`](Self::said), also when this
    /// process ends.
    pub fn give_up(&mut self) {
        self.given_up = true;
        self.mark_given_up();
    }

    fn mark_given_up(&self) {
        self.table.write(self.number, GIVEN_UP_AT, &[GIVEN_UP]).ok();
    }

    /// The server knows, or will never be told.
    pub fn said(mut self) {
        self.given_up = false;
    }

    /// What the record says.
    pub fn noted(&self) -> Option<Noted> {
        let mut record = [0; RECORD_BYTES];
        let at = u64::from(self.number) * RECORD_BYTES as u64;
        self.table.file.read_exact_at(&mut record, at).ok()?;
        decoded(&record)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.given_up {
            return;
        }
        if self.table.closed.load(Ordering::SeqCst) {
            return self.mark_given_up();
        }
        // One that cannot be wiped is told to a server that knows nothing of it any more.
        self.table.write(self.number, 0, &[0; RECORD_BYTES]).ok();
        self.table.free.lock().unwrap_or_else(PoisonError::into_inner).given_back.push(self.number);
    }
}

fn decoded(record: &[u8; RECORD_BYTES]) -> Option<Noted> {
    let (word, rest) = record.split_at(LAST_WORD_BYTES);
    let word = LastWord::decode(word.try_into().ok()?).ok()?;
    let server = u32::from_be_bytes(*rest.first_chunk()?);
    Some(Noted { word, server, given_up: record.get(GIVEN_UP_AT) == Some(&GIVEN_UP) })
}

/// What a table has.
pub fn read(file: &File) -> io::Result<Vec<Noted>> {
    let mut found = Vec::new();
    let mut record = [0; RECORD_BYTES];
    for number in 0u64.. {
        match file.read_exact_at(&mut record, number * RECORD_BYTES as u64) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        found.extend(decoded(&record));
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
        assert!(!found.iter().any(|noted| [21, 41].contains(&noted.server)));
        assert!(found.contains(&Noted { word: word(100), server: 100, given_up: false }));
        let again = [table.enter(&word(7), 7), table.enter(&word(8), 8)];
        assert_eq!(reader.metadata().unwrap().len(), 100 * RECORD_BYTES as u64);
        drop(again);
        table.close();
        drop(slots);
        let found = read(&reader).unwrap();
        assert_eq!(found.len(), 98);
        assert!(found.iter().all(|noted| noted.given_up));
    }

    #[test]
    fn a_session_that_was_given_up_stays_until_its_server_knows() {
        let table = Arc::new(Table::new().unwrap());
        let reader = File::from(table.share().unwrap());
        let mut slots = [1, 2].map(|n| table.enter(&word(n), n.into()).unwrap());
        slots.iter_mut().for_each(Slot::give_up);
        let [first, second] = slots;
        let given_up = Noted { word: word(1), server: 1, given_up: true };
        assert_eq!(first.noted().as_ref(), Some(&given_up));
        second.said();
        assert_eq!(read(&reader).unwrap(), std::slice::from_ref(&given_up));
        drop(first);
        assert_eq!(read(&reader).unwrap(), [given_up]);
    }
}
