//! Passing bulk on without copying it: from a socket of the application to the link, and from the link into a pipe.
//!
//! Bytes to be sent take this way, and stay pages of the kernel all along:
//!
//! ```text
//! application's socket --splice--> way --splice--> link
//!                                   |
//!                                  tee, before they go
//!                                   v
//!                                  held --splice--> /dev/null, when acknowledged
//! ```
//!
//! `held` retains what the peer may not have yet, as the ring does otherwise. Whatever needs the bytes in memory (a
//! loss of the link, an ordinary write) has them [`put back`](Engine::put_back) into the ring first, so that nothing
//! else has to know about pipes.

use super::memory::PipeBytes;
use super::tx::Flush;
use super::{Engine, Link, Progress, Tx, Waiting};
use crate::error::{Error, Result, in_words};
use crate::proto::LinkMode;
use crate::sys::Pipe;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// Slots, in bytes of pages, of a pipe that bytes only pass. Its contents make one round: more of them would leave
/// the cache before they are sent.
pub(crate) const WAY_SLOTS_BYTES: libc::c_int = 256 << 10;
/// Slots of the pipe that retains: as many as anybody may have without privilege (`pipe-max-size`).
const HELD_SLOTS_BYTES: libc::c_int = 1 << 20;
/// Passed on in one round.
pub(crate) const ROUND_BYTES_MAX: usize = 512 << 10;
/// The kernel is asked for its queue when so much is held: often enough for the pages to be used again while they
/// are in the cache.
const ASK_BYTES: usize = 128 << 10;
/// Copied at a time when bytes are put back.
const PUT_BACK_BYTES: usize = 64 << 10;

/// The pipes of one direction.
#[derive(Debug)]
pub(crate) struct Hold {
    way: Pipe,
    /// Taken from the application, not yet given to the link.
    way_bytes: usize,
    held: Pipe,
    held_bytes: usize,
    /// So many bytes at the front of `way` are in `held` as well.
    teed_bytes: usize,
    /// What counts towards the process's memory.
    pub(super) charge: PipeBytes,
}

/// What passing on came to.
#[derive(Debug)]
pub(crate) enum Passed {
    /// What was taken is with the link.
    On,
    /// The source has ended.
    End,
    /// The source has nothing at the moment, or failed.
    Source(io::Error),
    /// Not possible now: write as usual.
    Unsuited,
}

impl Hold {
    fn new() -> io::Result<Self> {
        let (way, held) = (Pipe::with_slots_for(WAY_SLOTS_BYTES)?, Pipe::with_slots_for(HELD_SLOTS_BYTES)?);
        Ok(Self { way, way_bytes: 0, held, held_bytes: 0, teed_bytes: 0, charge: PipeBytes::default() })
    }

    /// Whether nothing is on its way that was taken from the application.
    pub(crate) fn is_sent(&self) -> bool {
        self.way_bytes == 0
    }

    /// Taken from the application, and not with the link yet.
    pub(crate) fn way_bytes(&self) -> usize {
        self.way_bytes
    }

    /// Drops what need not be retained: all but the last `aside_bytes` that were sent.
    fn forget(&mut self, aside_bytes: usize) -> io::Result<()> {
        while self.held_bytes > aside_bytes + self.teed_bytes {
            self.held_bytes -= self.held.forget(self.held_bytes - aside_bytes - self.teed_bytes)?;
        }
        Ok(())
    }

    /// Retains what is next on the way. False if there are no slots for it.
    fn retain(&mut self) -> io::Result<bool> {
        match self.way.tee(&self.held, self.way_bytes) {
            Ok(count) => {
                self.teed_bytes = count;
                self.held_bytes += count;
                Ok(count > 0)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives to the link what is retained.
    fn send(&mut self, link: &Link) -> io::Result<usize> {
        let count = link.splice_from(self.way.output(), self.teed_bytes)?;
        self.way_bytes -= count;
        self.teed_bytes -= count;
        Ok(count)
    }

    /// Everything that is not in the ring, from what the peer may lack to what is still to be sent.
    fn drain(mut self, aside_bytes: usize, mut take: impl FnMut(&[u8]) -> usize) -> io::Result<()> {
        self.forget(aside_bytes)?;
        let mut buffer = vec![0; PUT_BACK_BYTES];
        let mut copy = |pipe: &Pipe, bytes: usize, skip_bytes: usize| {
            let mut done_bytes = 0;
            while done_bytes < bytes {
                let most = (bytes - done_bytes).min(buffer.len());
                let count = pipe.read(buffer.get_mut(..most).unwrap_or_default())?;
                let from = skip_bytes.saturating_sub(done_bytes).min(count);
                let fresh = buffer.get(from..count).unwrap_or_default();
                if count == 0 || take(fresh) < fresh.len() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                done_bytes += count;
            }
            Ok(())
        };
        copy(&self.held, self.held_bytes, 0)?;
        copy(&self.way, self.way_bytes, self.teed_bytes)
    }
}

impl Engine {
    /// Has `fill` splice up to so many bytes into a pipe, and passes them on to the link. They are never copied, and
    /// retained like all others. Goes on with what is under way before it takes more.
    ///
    /// # Errors
    /// As a write.
    pub(crate) fn pass_on(
        &self,
        fill: &mut dyn FnMut(BorrowedFd<'_>, usize) -> io::Result<usize>,
        waker: Option<&Waker>,
    ) -> Result<Progress<Passed>> {
        let mut tx = self.tx();
        self.check_writable(&tx)?;
        if tx.sender.has_output() {
            match self.flush_locked(&mut tx) {
                Flush::All => {}
                Flush::Full(link) if tx.sender.is_confirmed() && link.mode() == LinkMode::Kernel => {
                    tx.wait(waker);
                    return Ok(Progress::Wait(link));
                }
                other => {
                    self.after_flush(tx, other);
                    return Ok(Progress::Done(Passed::Unsuited));
                }
            }
        }
        let link = match &tx.link {
            Some(link) if tx.sender.can_pass_by() && !link.is_tls() => link.clone(),
            _ => return Ok(Progress::Done(Passed::Unsuited)),
        };
        let mut hold = match tx.hold.take() {
            Some(hold) => hold,
            None => match Hold::new() {
                Ok(hold) => Box::new(hold),
                Err(_) => return Ok(Progress::Done(Passed::Unsuited)),
            },
        };
        let round = self.round(&mut tx, &mut hold, &link, fill);
        hold.charge.set((hold.held_bytes + hold.way_bytes - hold.teed_bytes) as u64);
        tx.hold = Some(hold);
        match round {
            Ok(Round::Passed(passed)) => {
                self.list_idle();
                Ok(Progress::Done(passed))
            }
            Ok(Round::LinkFull) => {
                tx.wait(waker);
                Ok(Progress::Wait(link))
            }
            Ok(Round::NoRoom) => Ok(match self.stalled(tx, Flush::All, waker) {
                Progress::Wait(link) => Progress::Wait(link),
                _ => Progress::Stalled,
            }),
            Ok(Round::NoSlots) => {
                self.put_back(&mut tx);
                let flush = self.flush_locked(&mut tx);
                self.after_flush(tx, flush);
                Ok(Progress::Done(Passed::Unsuited))
            }
            Err(error) => {
                drop(tx);
                self.lost(&link, &in_words(&error));
                Ok(Progress::Done(Passed::Unsuited))
            }
        }
    }

    fn round(
        &self,
        tx: &mut Tx,
        hold: &mut Hold,
        link: &Arc<Link>,
        fill: &mut dyn FnMut(BorrowedFd<'_>, usize) -> io::Result<usize>,
    ) -> io::Result<Round> {
        if hold.is_sent() {
            link.tune_for_bulk();
            if tx.sender.room_bytes() < ROUND_BYTES_MAX {
                self.let_go(tx, hold)?;
                self.want_room(tx, ROUND_BYTES_MAX);
            }
            let most = tx.sender.room_bytes().min(ROUND_BYTES_MAX);
            if most == 0 {
                return Ok(Round::NoRoom);
            }
            hold.way_bytes = match fill(hold.way.input(), most) {
                Ok(0) => return Ok(Round::Passed(Passed::End)),
                Ok(count) => count,
                Err(error) => return Ok(Round::Passed(Passed::Source(error))),
            };
        }
        while !hold.is_sent() {
            if hold.teed_bytes == 0 && !hold.retain()? {
                self.let_go(tx, hold)?;
                if !hold.retain()? {
                    return Ok(Round::NoSlots);
                }
            }
            match hold.send(link) {
                Ok(count) => {
                    tx.sender.passed_by(count);
                    self.spliced_bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Round::LinkFull),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if tx.sender.aside_bytes() >= ASK_BYTES {
            self.let_go(tx, hold)?;
        }
        Ok(Round::Passed(Passed::On))
    }

    /// Learns what the peer has, and lets go of it.
    fn let_go(&self, tx: &mut Tx, hold: &mut Hold) -> io::Result<()> {
        self.learn_acked(tx);
        hold.forget(tx.sender.aside_bytes())
    }

    /// Everything that passed the ring by and is still needed goes into it.
    pub(crate) fn put_back(&self, tx: &mut Tx) {
        let Some(hold) = tx.hold.take() else { return };
        let sender = &mut tx.sender;
        let drained = hold.drain(sender.aside_bytes(), |bytes| sender.put_back(bytes));
        if let Err(error) = drained {
            // A pipe of our own gives back what was put in; should it not, the stream has a hole.
            tracing::error!(session = %self.id, %error, "cannot take bytes back from a pipe");
            tx.failure = Some(Error::system("take bytes back from a pipe", &error));
        }
    }

    /// As [`put_back`](Self::put_back), and sends what is pending: from now on the session is written to as usual.
    pub(crate) fn stop_passing(&self) {
        let mut tx = self.tx();
        if tx.hold.is_some() {
            self.put_back(&mut tx);
            let flush = self.flush_locked(&mut tx);
            self.after_flush(tx, flush);
        }
    }

    /// Splices what the link has received into `pipe`. `None` if that is not possible now: read as usual.
    ///
    /// The bytes count as read by the application: they are safe in `pipe`, whatever becomes of the link.
    pub(crate) fn read_into(
        &self,
        pipe: &Pipe,
        mut waiting: Waiting<'_, '_>,
    ) -> Result<Option<Progress<usize>>> {
        let mut rx = self.rx.lock();
        if let Some(flush) = self.flush_before_read() {
            drop(rx);
            self.settle(flush);
            return Ok(None);
        }
        let Some(link) = rx.raw_link().filter(|_| !self.is_read_shut()) else { return Ok(None) };
        match link.splice_to(pipe.input(), ROUND_BYTES_MAX, &mut waiting) {
            // What an end of input means is found out by an ordinary read.
            Ok(0) => Ok(None),
            Ok(count) => {
                self.spliced_bytes.fetch_add(count as u64, Ordering::Relaxed);
                rx.link_read_bytes += count as u64;
                rx.receiver.took(count);
                self.consumed(rx);
                Ok(Some(Progress::Done(count)))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.wait_to_read(&waiting);
                Ok(Some(Progress::Wait(link)))
            }
            Err(error) => {
                drop(rx);
                self.lost(&link, &in_words(&error));
                Ok(None)
            }
        }
    }
}

/// What one round of passing on came to.
enum Round {
    Passed(Passed),
    /// The link takes no more.
    LinkFull,
    /// So much is unacknowledged that no more could be put back into the ring.
    NoRoom,
    /// The pieces are too small for the pipe that retains.
    NoSlots,
}
