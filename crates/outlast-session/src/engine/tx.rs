//! Writing: from the application into the ring and onto the link.

mod reserve;

use super::memory::ROOM_BYTES_FIRST;
use super::pool::SharedPool;
use super::splice::Hold;
use super::{Engine, Helper, Link, Progress};
use crate::error::{Error, Result, in_words};
use crate::proto::{FRAME_HEADER_BYTES, FrameHeader, LinkMode, Sender};
use crate::sys::{self, Then};
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// Joined small writes go out when so many bytes have come together.
const JOINED_BYTES_MAX: usize = 64 << 10;
/// Writes from this size on go from the application's buffer to the link, and only what the kernel still holds
/// afterwards is copied.
const BYPASS_BYTES_MIN: usize = 32 << 10;
/// The kernel is asked for its queue when so much is retained: often enough for the ring to stay in the cache.
const ASK_BYTES: usize = 16 << 10;

/// A message of so many bytes and its header are put together, which is cheaper than having the kernel gather them.
const FRAMED_AT_ONCE_BYTES_MAX: usize = 112;

/// How much may be retained before the kernel is asked, when so much is sent at a time. Asking costs as much as a few
/// cache misses: many sessions with small messages must not each walk through 16 KiB.
fn ask_after(sent_bytes: u64) -> usize {
    usize::try_from(sent_bytes).map_or(ASK_BYTES, |bytes| (16 * bytes).clamp(ASK_BYTES / 8, ASK_BYTES))
}

/// What writers share.
#[derive(Debug)]
pub(crate) struct Tx {
    pub(crate) sender: Sender<SharedPool>,
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) failure: Option<Error>,
    /// What passed the ring by.
    pub(crate) hold: Option<Box<Hold>>,
    /// A task that waits for room.
    pub(crate) waker: Option<Waker>,
    /// Everything before `mark_offset` was written before `mark_ms`: how old the oldest unacknowledged byte is.
    mark_offset: u64,
    pub(crate) mark_ms: u64,
    /// What the end was when the helper last looked: unchanged means idle.
    pub(crate) idle_end_offset: u64,
}

/// What sending came to.
#[derive(Debug)]
pub(crate) enum Flush {
    /// Everything is with the kernel.
    All,
    /// The link takes no more for now.
    Full(Arc<Link>),
    /// There is no link.
    NoLink,
    /// The link broke.
    Broken(Arc<Link>, io::Error),
}

impl Tx {
    pub(crate) fn new(retain_bytes_max: usize) -> Self {
        Self {
            sender: Sender::new(SharedPool, retain_bytes_max.min(ROOM_BYTES_FIRST)),
            link: None,
            failure: None,
            hold: None,
            waker: None,
            mark_offset: 0,
            mark_ms: 0,
            idle_end_offset: 0,
        }
    }

    pub(crate) fn wait(&mut self, waker: Option<&Waker>) {
        if let Some(waker) = waker
            && !self.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            self.waker = Some(waker.clone());
        }
    }
}

impl Engine {
    pub(crate) fn tx(&self) -> MutexGuard<'_, Tx> {
        self.tx.lock()
    }

    pub(super) fn check_writable(&self, tx: &Tx) -> Result<()> {
        if let Some(failure) = &tx.failure {
            return Err(failure.clone());
        }
        if tx.sender.is_ended() {
            return Err(Error::ShutDown { id: self.id });
        }
        Ok(())
    }

    /// Takes bytes from the application; at least one, unless the link or the ring is full.
    ///
    /// What was taken is retained until the peer has it. `waker` is woken when a stalled write may go on.
    ///
    /// # Errors
    /// The session failed, or was shut down for writing.
    pub(crate) fn write(&self, bytes: &[u8], waker: Option<&Waker>) -> Result<Progress<usize>> {
        let mut tx = self.tx.lock();
        self.check_writable(&tx)?;
        if bytes.is_empty() {
            return Ok(Progress::Done(0));
        }
        if tx.hold.is_some() {
            self.put_back(&mut tx);
        }
        if tx.sender.room_bytes() < bytes.len() {
            self.want_room(&mut tx, bytes.len());
        }
        let joinable = self.config.coalesce && self.wrote.load(Ordering::Relaxed);
        if joinable && bytes.len() < BYPASS_BYTES_MIN {
            let pending_bytes = usize::try_from(tx.sender.pending_bytes()).unwrap_or(usize::MAX);
            if pending_bytes + bytes.len() < JOINED_BYTES_MAX && tx.sender.room_bytes() >= bytes.len() {
                tx.sender.push(bytes);
                self.mark_dirty();
                return Ok(Progress::Done(bytes.len()));
            }
        }
        if !joinable {
            self.wrote.store(true, Ordering::Relaxed);
        }
        if bytes.len() >= BYPASS_BYTES_MIN && tx.link.is_some() {
            self.write_large(tx, bytes, waker)
        } else {
            self.write_small(tx, bytes, waker)
        }
    }

    /// Through the ring, and out at once.
    fn write_small(
        &self,
        mut tx: MutexGuard<'_, Tx>,
        bytes: &[u8],
        waker: Option<&Waker>,
    ) -> Result<Progress<usize>> {
        if let Some(count) = Self::send_then_retain(&mut tx, bytes) {
            self.settle_sent(tx, count);
            return Ok(Progress::Done(count));
        }
        if self.frame_then_retain(&mut tx, bytes).is_some() {
            if tx.sender.has_output() {
                let flush = self.flush_locked(&mut tx);
                self.after_flush(tx, flush);
            } else {
                self.settle_sent(tx, bytes.len());
            }
            return Ok(Progress::Done(bytes.len()));
        }
        let mut taken_bytes = tx.sender.push(bytes);
        let flush = self.flush_locked(&mut tx);
        if taken_bytes == 0 {
            self.learn_acked(&mut tx);
            taken_bytes = tx.sender.push(bytes);
            if taken_bytes == 0 {
                return Ok(self.stalled(tx, flush, waker));
            }
            let again = self.flush_locked(&mut tx);
            self.after_flush(tx, again);
            return Ok(Progress::Done(taken_bytes));
        }
        self.after_flush(tx, flush);
        Ok(Progress::Done(taken_bytes))
    }

    /// The short way for a message that nothing is before: to the link first, then into the ring. None if it cannot
    /// be gone; whatever is wrong with the link is found again on the long way.
    #[inline]
    fn send_then_retain(tx: &mut Tx, bytes: &[u8]) -> Option<usize> {
        if !tx.sender.can_bypass() || tx.sender.room_bytes() < bytes.len() {
            return None;
        }
        let link = tx.link.as_ref().filter(|link| link.mode() == LinkMode::Kernel && !link.is_tls())?;
        let count = link.send_in_the_clear(bytes).ok()?;
        tx.sender.bypassed_whole(bytes.get(..count)?);
        Some(count)
    }

    /// As [`send_then_retain`](Self::send_then_retain) in mode `inband`: all of `bytes` is taken, or none. What the link did
    /// not take is pending.
    fn frame_then_retain(&self, tx: &mut Tx, bytes: &[u8]) -> Option<()> {
        if !tx.sender.can_frame() || tx.sender.room_bytes() < bytes.len() {
            return None;
        }
        let link = tx.link.as_ref().filter(|link| !link.is_tls())?;
        let mut frame = [0; FRAME_HEADER_BYTES + FRAMED_AT_ONCE_BYTES_MAX];
        let (header, payload) = frame.split_first_chunk_mut::<FRAME_HEADER_BYTES>()?;
        payload.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let ack_offset = self.received_offset.load(Ordering::Acquire);
        *header = FrameHeader::data(bytes.len(), ack_offset).encode();
        let sent_bytes = link.send_in_the_clear(frame.get(..FRAME_HEADER_BYTES + bytes.len())?).ok()?;
        tx.sender.framed(bytes, ack_offset, sent_bytes);
        self.ack_told_offset.store(ack_offset, Ordering::Relaxed);
        Some(())
    }

    /// Past the ring where the mode allows it.
    fn write_large(
        &self,
        mut tx: MutexGuard<'_, Tx>,
        bytes: &[u8],
        waker: Option<&Waker>,
    ) -> Result<Progress<usize>> {
        if tx.sender.has_output() {
            match self.flush_locked(&mut tx) {
                Flush::All => {}
                Flush::Full(link) if !tx.sender.is_confirmed() || tx.sender.room_bytes() == 0 => {
                    return Ok(self.stalled(tx, Flush::Full(link), waker));
                }
                Flush::Full(link) => {
                    tx.wait(waker);
                    return Ok(Progress::Wait(link));
                }
                other => {
                    self.after_flush(tx, other);
                    return self.write_small(self.tx.lock(), bytes, waker);
                }
            }
        }
        let Some(link) = tx.link.clone() else { return self.write_small(tx, bytes, waker) };
        if tx.sender.is_lent() {
            return Ok(self.stalled(tx, Flush::All, waker));
        }
        if !tx.sender.can_bypass() || link.is_tls() {
            return self.write_small(tx, bytes, waker);
        }
        link.tune_for_bulk();
        if link.mode() != LinkMode::Window && tx.sender.room_bytes() < bytes.len() {
            self.learn_acked(&mut tx);
        }
        let room_bytes = match link.mode() {
            // Every write pushes out what is a window older than it.
            LinkMode::Window => tx.sender.room_bytes().max(JOINED_BYTES_MAX),
            _ => tx.sender.room_bytes(),
        };
        if room_bytes == 0 {
            return Ok(self.stalled(tx, Flush::All, waker));
        }
        let offered = bytes.get(..room_bytes.min(bytes.len())).unwrap_or(bytes);
        match link.send_one(offered) {
            Ok(count) => {
                let held_bytes = match link.mode() {
                    LinkMode::Kernel => sys::unacked_bytes(&*link).unwrap_or(u64::MAX),
                    _ => u64::MAX,
                };
                tx.sender.bypassed(offered.get(..count).unwrap_or(offered), held_bytes);
                self.list_idle();
                Ok(Progress::Done(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tx.wait(waker);
                Ok(Progress::Wait(link))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Progress::Wait(link)),
            Err(error) => {
                drop(tx);
                self.lost(&link, &in_words(&error));
                self.write_small(self.tx.lock(), bytes, waker)
            }
        }
    }

    /// Nothing could be taken.
    pub(super) fn stalled(
        &self,
        mut tx: MutexGuard<'_, Tx>,
        flush: Flush,
        waker: Option<&Waker>,
    ) -> Progress<usize> {
        tx.wait(waker);
        if !self.writer_waits.swap(true, Ordering::AcqRel) {
            self.looks_in_vain.store(0, Ordering::Relaxed);
        }
        match flush {
            Flush::Full(link) if tx.sender.is_confirmed() && link.mode() == LinkMode::Kernel => {
                Progress::Wait(link)
            }
            Flush::Broken(link, error) => {
                drop(tx);
                self.lost(&link, &in_words(&error));
                Progress::Stalled
            }
            _ => {
                // Only the peer can make room: its acknowledgements are looked for in the background.
                drop(tx);
                Helper::get().watch_stalled(self);
                Progress::Stalled
            }
        }
    }

    /// A small message was sent whole.
    #[inline]
    fn settle_sent(&self, mut tx: MutexGuard<'_, Tx>, bytes: usize) {
        if tx.sender.retained_bytes() >= ask_after(bytes as u64) {
            self.learn_acked(&mut tx);
        }
        drop(tx);
        self.list_idle();
    }

    /// Takes care of what a flush left behind.
    pub(super) fn after_flush(&self, tx: MutexGuard<'_, Tx>, flush: Flush) {
        match flush {
            Flush::All => self.list_idle(),
            Flush::NoLink => {
                // A flush that had nothing to send is no reason to end a passive session's rest.
                let wanted = tx.sender.pending_bytes() > 0 || self.writer_is_stalled();
                drop(tx);
                if wanted {
                    self.wake_passive();
                }
            }
            Flush::Full(link) => {
                drop(tx);
                Helper::get().watch_writable(self, &link);
            }
            Flush::Broken(link, error) => {
                drop(tx);
                self.lost(&link, &in_words(&error));
            }
        }
    }

    /// Hands everything pending to the link, as far as it takes it.
    pub(crate) fn flush_locked(&self, tx: &mut Tx) -> Flush {
        let Some(link) = tx.link.as_ref() else { return Flush::NoLink };
        self.dirty.store(false, Ordering::Relaxed);
        self.welcome_waits.store(false, Ordering::Relaxed);
        let ask_bytes = ask_after(tx.sender.pending_bytes());
        loop {
            let received_offset = self.received_offset.load(Ordering::Acquire);
            // Only the header of a frame that begins now carries the acknowledgement.
            let acks = tx.sender.can_push_frame() && tx.sender.ready_bytes() > 0;
            tx.sender.prepare(received_offset);
            if !tx.sender.has_output() {
                break;
            }
            if tx.sender.fin_due() {
                break;
            }
            let then = if tx.sender.end_follows() { Then::End } else { Then::Nothing };
            match Self::send_next(tx, link, then) {
                // Nothing to send where there is output: it would be tried for ever, and all would wait for this lock.
                Ok(0) => return Flush::Broken(link.clone(), io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    tx.sender.sent(count);
                    if acks {
                        self.ack_told_offset.store(received_offset, Ordering::Relaxed);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Flush::Full(link.clone()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Flush::Broken(link.clone(), error),
            }
        }
        if link.is_tls()
            && let Err(error) = link.flush()
        {
            if error.kind() == io::ErrorKind::WouldBlock {
                return Flush::Full(link.clone());
            }
            return Flush::Broken(link.clone(), error);
        }
        if tx.sender.fin_due() {
            // PROTOCOL 2.4: the end of the stream is the FIN.
            if let Err(error) = sys::shut_write(&**link) {
                return Flush::Broken(link.clone(), error);
            }
            tx.sender.fin_sent();
        }
        if tx.sender.retained_bytes() >= ask_bytes {
            self.learn_acked(tx);
        }
        Flush::All
    }

    /// Sends what is pending; the rest follows in the background.
    pub(crate) fn flush(&self) {
        let mut tx = self.tx.lock();
        let flush = self.flush_locked(&mut tx);
        self.after_flush(tx, flush);
    }

    /// As [`flush`](Self::flush). False if `link` is full, and has taken nothing.
    pub(super) fn flush_some(&self, link: &Link) -> bool {
        let mut tx = self.tx.lock();
        let given_before = tx.sender.given_bytes();
        link.took_some.store(false, Ordering::Relaxed);
        let flush = self.flush_locked(&mut tx);
        let took_some = tx.sender.given_bytes() != given_before || link.took_some.load(Ordering::Relaxed);
        let is_full = matches!(&flush, Flush::Full(full) if std::ptr::eq(&raw const **full, link));
        let is_refused = is_full && !took_some;
        self.after_flush(tx, flush);
        !is_refused
    }

    /// Before a read that may wait: sends what is joined, unless a writer is at it. Called with `rx` held, hence
    /// without waiting for a lock; what is left to be done is for [`settle`](Self::settle).
    #[inline]
    pub(crate) fn flush_before_read(&self) -> Option<Flush> {
        if self.begin_read() || self.welcome_waits.load(Ordering::Relaxed) {
            return None;
        }
        let mut tx = self.tx.try_lock()?;
        let flush = self.flush_locked(&mut tx);
        matches!(flush, Flush::Full(_) | Flush::Broken(..)).then_some(flush)
    }

    /// As [`flush_before_read`](Self::flush_before_read) where nothing is joined: false if something is.
    #[inline]
    pub(crate) fn begin_read(&self) -> bool {
        if self.wrote.load(Ordering::Relaxed) {
            self.wrote.store(false, Ordering::Relaxed);
        }
        !self.dirty.load(Ordering::Relaxed)
    }

    /// Takes care of what a flush left behind.
    pub(crate) fn settle(&self, flush: Flush) {
        self.after_flush(self.tx.lock(), flush);
    }

    /// A Hello waits to ride with the application's first bytes; it goes alone if the application reads before it
    /// writes, or does neither.
    pub(crate) fn flush_with_first_write(&self) {
        self.mark_dirty();
    }

    /// As [`flush_with_first_write`](Self::flush_with_first_write) for a Welcome, which is in no hurry: its client sends
    /// already. It waits for the answer, at most until the next tick, even while the application reads.
    pub(crate) fn answer_with_first_write(&self) {
        self.welcome_waits.store(true, Ordering::Relaxed);
        self.mark_dirty();
    }

    /// Asks the kernel what it still holds, and forgets the rest.
    pub(crate) fn learn_acked(&self, tx: &mut Tx) {
        let Some(link) = &tx.link else { return };
        match link.mode() {
            LinkMode::Kernel => {
                if let Ok(held_bytes) = sys::unacked_bytes(&**link) {
                    tx.sender.kernel_holds(held_bytes);
                }
            }
            LinkMode::Window => {
                if tx.sender.is_confirmed()
                    && tx.sender.is_end_sent()
                    && sys::unacked_bytes(&**link).is_ok_and(|held_bytes| held_bytes == 0)
                {
                    let end_offset = tx.sender.end_offset();
                    if tx.sender.acked(end_offset).is_ok() {
                        tx.sender.end_acked();
                    }
                }
            }
            LinkMode::Udp | LinkMode::Inband => {}
        }
        let acked_offset = tx.sender.acked_offset();
        if acked_offset >= tx.mark_offset {
            tx.mark_offset = tx.sender.end_offset();
            tx.mark_ms = sys::coarse_now_ms();
        }
    }

    /// The next write need not go out at once.
    pub(crate) fn join_next_write(&self) {
        self.wrote.store(true, Ordering::Relaxed);
    }

    /// Output waits: the helper sends it at the next tick unless somebody does before.
    #[inline]
    fn mark_dirty(&self) {
        if !self.dirty.swap(true, Ordering::Relaxed) {
            Helper::get().flush_soon(self);
        }
    }

    /// Something was sent: have the helper look again later, to forget what was acknowledged and to give memory back.
    #[inline]
    pub(super) fn list_idle(&self) {
        if !self.idle_listed.load(Ordering::Relaxed) {
            self.list_idle_now();
        }
    }

    #[cold]
    fn list_idle_now(&self) {
        if !self.idle_listed.swap(true, Ordering::Relaxed) {
            Helper::get().watch_idle(self);
        }
    }
}
