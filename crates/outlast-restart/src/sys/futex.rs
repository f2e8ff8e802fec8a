//! Sleeping until a word of shared memory changes (futex(2)).

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `value`, until it is woken or `timeout` is over. It may also return for no reason.
pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word outlives the call by its borrow, and `time` points to a local or to nothing. Processes share
    // the word: hence no FUTEX_PRIVATE_FLAG.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, time) };
}

/// Sleeps until `word` is `value`, which nobody has to tell, or `limit` is over.
pub(crate) fn wait_until(word: &AtomicU32, value: u32, limit: Duration) -> bool {
    const LOOK_PAUSE: Duration = Duration::from_micros(500);
    let looks = limit.as_micros() / LOOK_PAUSE.as_micros();
    for _ in 0..looks {
        let seen = word.load(std::sync::atomic::Ordering::SeqCst);
        if seen == value {
            return true;
        }
        wait(word, seen, Some(LOOK_PAUSE));
    }
    word.load(std::sync::atomic::Ordering::SeqCst) == value
}

/// Wakes up to `count` sleepers.
pub(crate) fn wake(word: &AtomicU32, count: u32) -> io::Result<()> {
    // SAFETY: as above; FUTEX_WAKE reads nothing but the address.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
    if woken < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
