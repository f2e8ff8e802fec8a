//! The page of memory from which this node's server has the time of day ([`ServerClock::Order`](crate::ServerClock::Order)): the library
//! `outlast-clock` reads it in the server's process.

use super::machine::Machine;
use super::server_process;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{fcntl_dupfd_cloexec, pwrite};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// How the page begins. The library knows it as well.
const WORD: [u8; 8] = *b"outlast\x01";
/// What the kernel calls it, among the files that a process has mapped.
const NAME: &str = "outlast-clock";
/// Of all that is in it.
const PAGE_BYTES: u64 = 24;
/// Programs between this one and the server may use lower numbers for themselves.
const DESCRIPTOR_MIN: RawFd = 100;
const US_IN_MS: u64 = 1_000;
/// Machines whose clocks are set well differ by less.
const AHEAD_MS_MAX: u64 = 1_000;

/// The page. While it has no time, the server has that of its machine.
#[derive(Clone, Debug)]
pub struct ClockPage(Arc<OwnedFd>);

impl ClockPage {
    /// A new one. Who executes the server has it inherit the [descriptor](Self::descriptor).
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn new() -> io::Result<Self> {
        let memory = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, PAGE_BYTES)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = fcntl_dupfd_cloexec(&memory, DESCRIPTOR_MIN)?;
        let page = Self(Arc::new(memory));
        page.write(&WORD, 0)?;
        page.set(0)?;
        debug_assert_eq!(page.time_ms()?, 0);
        Ok(page)
    }

    /// Its number, in this process and in those that inherit it.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// It is this time from now on, in milliseconds since 1970. 0: that of the machine.
    ///
    /// # Errors
    /// There is no memory.
    pub fn set(&self, time_ms: u64) -> io::Result<()> {
        let time_us = time_ms.saturating_mul(US_IN_MS);
        let mut bytes = [0; 16];
        let (time, turned) = bytes.split_at_mut(8);
        time.copy_from_slice(&time_us.to_ne_bytes());
        turned.copy_from_slice(&(!time_us).to_ne_bytes());
        self.write(&bytes, WORD.len() as u64)
    }

    /// The time that is there. 0: none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn time_ms(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let count = rustix::io::pread(&*self.0, &mut bytes, WORD.len() as u64)?;
        if count == bytes.len() {
            Ok(u64::from_ne_bytes(bytes) / US_IN_MS)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Whether this process has mapped it.
    fn is_mapped_by(&self, pid: u32) -> bool {
        let (Ok(maps), Ok(found)) =
            (std::fs::read_to_string(format!("/proc/{pid}/maps")), rustix::fs::fstat(&*self.0))
        else {
            return false;
        };
        let number = found.st_ino.to_string();
        maps.lines().any(|line| {
            let mut words = line.split_ascii_whitespace().skip(4);
            words.next() == Some(&number) && words.next().is_some_and(|file| file.contains(NAME))
        })
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match pwrite(&*self.0, bytes, at)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
        }
    }
}

impl Machine {
    /// The server has this time from now on.
    pub(super) fn set_clock(&mut self, time_ms: u64) -> io::Result<()> {
        self.clock_page.as_ref().map_or(Ok(()), |page| page.set(time_ms))
    }

    /// Tells the core what the time of day is.
    pub(super) fn look_at_clock(&mut self) {
        let now_ms = self.now_ms();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.replica.handle_time_of_day(u64::try_from(since.as_millis()).unwrap_or(now_ms), now_ms);
        let ahead_ms = self.replica.clock_ahead_ms(now_ms);
        if ahead_ms > AHEAD_MS_MAX && !self.is_ahead_told {
            tracing::warn!(
                ahead_ms,
                "servers have heard of a later time than this machine's: their time goes on at half the speed until it is right"
            );
        }
        self.is_ahead_told = ahead_ms > AHEAD_MS_MAX;
    }
}

/// Whether a server that takes connections at this address has mapped the page: else it has not loaded the library. None: its processes cannot be
/// looked at.
#[must_use]
pub fn is_read(page: &ClockPage, server: SocketAddr) -> Option<bool> {
    let owners = server_process::owners_of(server);
    (!owners.is_empty()).then(|| owners.into_iter().any(|pid| page.is_mapped_by(pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_was_not_started_with_the_library_is_known() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let page = ClockPage::new().unwrap();
        assert_eq!(is_read(&page, server), Some(false));
        drop(listener);
        assert_eq!(is_read(&page, server), None);
    }

    #[test]
    fn a_page_has_the_time_and_its_complement_behind_a_word() {
        let page = ClockPage::new().unwrap();
        page.set(1_500).unwrap();
        let mut bytes = [0; 25];
        let count = rustix::io::pread(&*page.0, &mut bytes, 0).unwrap();
        let words: Vec<u64> =
            bytes[8..24].as_chunks().0.iter().map(|word: &[u8; 8]| u64::from_ne_bytes(*word)).collect();
        assert_eq!((count, &bytes[..8], &*words), (24, &WORD[..], &[1_500_000, !1_500_000][..]));
        assert!(page.descriptor() >= DESCRIPTOR_MIN);
    }
}
