//! A lock that the kernel releases when the thread that holds it dies, whatever kills it (robust futexes,
//! Documentation/locking/robust-futexes.rst).
//!
//! The kernel walks a list of locks that each thread has registered; a C library keeps one for its robust mutexes, and
//! there is one list per thread. So the lock here joins the C library's list, in the form of one of its mutexes: where
//! the list expects the word is said in the head of the list.

use super::futex;
use super::process::thread_id;
use std::cell::UnsafeCell;
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// As the kernel has it, `struct robust_list_head`.
#[repr(C)]
struct Head {
    /// The first entry, or the head itself.
    list: usize,
    /// From an entry to the word of its lock.
    futex_offset: isize,
    pending: usize,
}

/// Who holds it, or that nobody does any more because he has died: `FUTEX_OWNER_DIED`, with the id in the lower bits.
const OWNER_DIED: u32 = 0x4000_0000;
const WAITERS: u32 = 0x8000_0000;
const OWNER: u32 = 0x3fff_ffff;

/// Where in the lock the list's entry is; behind what a mutex of the GNU C library has there.
const ENTRY_OFFSET: isize = 32;
/// Entries are linked backwards, too: by the word before the entry.
const BACK: usize = size_of::<usize>();

/// The lock. In shared memory.
#[repr(C, align(64))]
pub(crate) struct Baton {
    memory: UnsafeCell<[u8; 64]>,
    /// From the beginning of `memory`, in bytes, plus 1; 0: not known yet.
    word_offset: AtomicU32,
}

// SAFETY: the word is only used as an atomic, and the links by the thread that holds the lock (and by the kernel when that
// has died).
unsafe impl Sync for Baton {}

/// The list of the calling thread's robust locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RobustList {
    head: *mut Head,
}

/// Where the list begins that the lock is in, in the process that has it.
static HEAD: AtomicPtr<Head> = AtomicPtr::new(std::ptr::null_mut());

/// For programs whose C library has registered none.
struct OwnHead(UnsafeCell<Head>);

// SAFETY: used by the first thread of a process alone, which registers it.
unsafe impl Sync for OwnHead {}

static OWN_HEAD: OwnHead =
    OwnHead(UnsafeCell::new(Head { list: 0, futex_offset: -ENTRY_OFFSET, pending: 0 }));

impl RobustList {
    /// The calling thread's. A child made by [`split`](super::process::split) has none until it
    /// [registers](Self::register) this.
    pub(crate) fn of_this_thread() -> Self {
        let (mut head, mut length) = (std::ptr::null_mut::<Head>(), 0usize);
        // SAFETY: both point to locals; thread 0 is the calling one.
        let got = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
        let usable = got == 0 && !head.is_null() && length == size_of::<Head>();
        // SAFETY: a registered head stays as long as its thread.
        let fits = usable && (0..=28).contains(&(unsafe { (*head).futex_offset } + ENTRY_OFFSET));
        if fits {
            return Self { head };
        }
        let head = OWN_HEAD.0.get();
        // SAFETY: nobody else uses it: this process has no other thread yet.
        unsafe {
            (*head).list = head as usize;
        }
        Self { head }
    }

    /// Where the C library keeps the id of the thread, which it would not look up again in a child that it has not made.
    pub(crate) fn thread_word(&self) -> Option<&'static AtomicU32> {
        if std::ptr::eq(self.head, OWN_HEAD.0.get()) {
            return None;
        }
        // The GNU C library has `tid`, a word that is not used, a pointer and then the head.
        let word = self.head.cast::<u8>().wrapping_sub(16).cast::<AtomicU32>();
        // SAFETY: the head is in the middle of the C library's block for this thread, which is larger than that on either
        // side, and stays.
        let word = unsafe { &*word };
        (word.load(Ordering::Relaxed) == thread_id().cast_unsigned()).then_some(word)
    }

    /// Has the kernel look after it when the calling thread dies.
    ///
    /// # Errors
    /// The kernel has no robust futexes.
    pub(crate) fn register(&self) -> io::Result<()> {
        // SAFETY: the head outlives the thread: it is in its block, or static.
        let set = unsafe { libc::syscall(libc::SYS_set_robust_list, self.head, size_of::<Head>()) };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Baton {
    /// Once, before it is used: where the word is.
    pub(crate) fn prepare(&self, list: &RobustList) {
        // SAFETY: a head stays as long as its thread, which is the caller.
        let offset = unsafe { (*list.head).futex_offset } + ENTRY_OFFSET;
        self.word_offset.store(u32::try_from(offset).unwrap_or(0) + 1, Ordering::Release);
    }

    /// Nobody has it, or waits for it.
    pub(crate) fn forget(&self) {
        self.word().store(0, Ordering::SeqCst);
    }

    fn word(&self) -> &AtomicU32 {
        let offset = self.word_offset.load(Ordering::Acquire).saturating_sub(1);
        // SAFETY: the offset is from 0 to 28 and a multiple of 4 (a futex's), and that part of the memory is only
        // used as this word.
        unsafe { &*self.memory.get().cast::<u8>().add(offset as usize).cast::<AtomicU32>() }
    }

    /// Takes it for the calling thread, which has registered `list`. Nobody has had it before.
    pub(crate) fn take_first(&self, list: &RobustList) -> io::Result<()> {
        self.take(list, 0);
        // Whoever has waited for it to be taken waits for its release from now on.
        futex::wake(self.word(), u32::MAX >> 1)
    }

    /// Sleeps until its owner has died, and takes it for the calling thread, which has registered `list`: of those who
    /// wait one gets it, and the others go on waiting.
    pub(crate) fn take_from_the_dead(&self, list: &RobustList) {
        let word = self.word();
        loop {
            let value = word.load(Ordering::SeqCst);
            if value & OWNER_DIED != 0 {
                if self.take(list, value) {
                    return;
                }
                continue;
            }
            let waited = if value == 0 { 0 } else { value | WAITERS };
            if value == waited
                || word.compare_exchange(value, waited, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            {
                futex::wait(word, waited, None);
            }
        }
    }

    /// False if it is no longer `value`.
    fn take(&self, list: &RobustList, value: u32) -> bool {
        // SAFETY: within `memory`, behind the lock's word.
        let entry = unsafe { self.memory.get().cast::<u8>().offset(ENTRY_OFFSET).cast::<usize>() };
        // The kernel is told what is about to be taken, and looks at it as well if this thread dies meanwhile.
        // SAFETY: the list is the calling thread's own.
        unsafe { std::ptr::write_volatile(&raw mut (*list.head).pending, entry as usize) };
        // Somebody may wait already.
        let mine = thread_id().cast_unsigned() | WAITERS;
        let taken = self.word().compare_exchange(value, mine, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if taken {
            // SAFETY: the links are nobody else's: the last owner is dead. The entry before, if any, is one of the C
            // library's, which has a pointer before it as well.
            unsafe {
                let first = (*list.head).list;
                entry.write_volatile(first);
                entry.byte_sub(BACK).write_volatile(list.head as usize);
                if first != list.head as usize {
                    (first as *mut usize).byte_sub(BACK).write_volatile(entry as usize);
                }
                std::ptr::write_volatile(&raw mut (*list.head).list, entry as usize);
            }
            HEAD.store(list.head, Ordering::SeqCst);
        }
        // SAFETY: as above.
        unsafe { std::ptr::write_volatile(&raw mut (*list.head).pending, 0) };
        taken
    }

    /// What the kernel does when its owner dies, by that itself: the thread `owner` of this process, which stands still or is
    /// the caller.
    pub(crate) fn let_go(&self, owner: libc::pid_t) {
        let word = self.word();
        let value = word.load(Ordering::SeqCst);
        let head = HEAD.load(Ordering::SeqCst);
        if value & OWNER != owner.cast_unsigned() || value & OWNER_DIED != 0 || head.is_null() {
            return;
        }
        // SAFETY: within `memory`, behind the lock's word.
        let entry = unsafe { self.memory.get().cast::<u8>().offset(ENTRY_OFFSET).cast::<usize>() };
        // The kernel must not come across it when this process has died: by then it is in somebody else's list. Whoever dies
        // in between has it pending.
        // SAFETY: the links are those of `take`, and whose list it is does not run.
        unsafe {
            std::ptr::write_volatile(&raw mut (*head).pending, entry as usize);
            let (next, before) = (entry.read_volatile(), entry.byte_sub(BACK).read_volatile());
            (before as *mut usize).write_volatile(next);
            if next != head as usize {
                (next as *mut usize).byte_sub(BACK).write_volatile(before);
            }
        }
        if word.compare_exchange(value, value | OWNER_DIED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let _ = futex::wake(word, u32::MAX >> 1);
        }
        // SAFETY: as above.
        unsafe { std::ptr::write_volatile(&raw mut (*head).pending, 0) };
    }

    /// What the kernel does, for an owner that is known to be dead: nothing if it was done, or somebody else has it.
    pub(crate) fn declare_dead(&self, owner: libc::pid_t) -> io::Result<()> {
        let word = self.word();
        let value = word.load(Ordering::SeqCst);
        let is_his = value == 0 || value & OWNER == owner.cast_unsigned();
        if is_his
            && word.compare_exchange(value, value | OWNER_DIED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            return futex::wake(word, u32::MAX >> 1);
        }
        Ok(())
    }
}
