//! The page with the time of day, as the node writes it.
//!
//! It begins with a word of its own, so that another file is not taken for it, and then has the time in microseconds since 1970, and the same with
//! all bits turned: whoever finds that they do not fit has read while the node wrote, and reads again. 0: the time is that of the machine.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The variable with the number of the page's descriptor.
const VARIABLE: &CStr = c"OUTLAST_CLOCK";
/// How a page begins. The node (`outlast-replica`, `portal/clock.rs`) knows it as well.
const WORD: u64 = u64::from_ne_bytes(*b"outlast\x01");
/// More than that a node needs for no write.
const READS_MAX: u32 = 1 << 20;

/// As it is in memory.
#[repr(C)]
pub struct Page {
    word: AtomicU64,
    time_us: AtomicU64,
    turned: AtomicU64,
}

/// The last time that was whole.
static LAST: AtomicU64 = AtomicU64::new(0);
static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the page, before the program begins.
pub fn find() {
    // SAFETY: the loader has set the environment up, and there is one thread.
    let text = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if text.is_null() {
        return;
    }
    // SAFETY: a string of the environment, that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    let number = text.to_str().ok().and_then(|text| text.parse::<i32>().ok());
    if let Some(page) = number.and_then(map) {
        PAGE.store(page, Ordering::Release);
    }
}

/// The file of this descriptor, if it is such a page.
fn map(file: i32) -> Option<*mut Page> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for what it writes.
    if unsafe { libc::fstat(file, found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: it was written, as there was no error.
    let bytes = usize::try_from(unsafe { found.assume_init() }.st_size).ok()?;
    if bytes < size_of::<Page>() {
        return None;
    }
    // SAFETY: a new mapping, where nothing is. The file is as long, and nobody makes it shorter: it is sealed, or is none of a node.
    let memory = unsafe {
        libc::mmap(std::ptr::null_mut(), size_of::<Page>(), libc::PROT_READ, libc::MAP_SHARED, file, 0)
    };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let page = memory.cast::<Page>();
    // SAFETY: it was mapped, at the beginning of a page of the machine, and stays.
    let word = unsafe { &*page }.word.load(Ordering::Relaxed);
    (word == WORD).then_some(page)
}

/// The time of day in microseconds since 1970, if this process has that from a page.
pub fn time_us() -> Option<u64> {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: null, or a page that was mapped and stays.
    read(unsafe { page.as_ref() }?)
}

fn read(page: &Page) -> Option<u64> {
    for _ in 0..READS_MAX {
        let (time_us, turned) = (page.time_us.load(Ordering::Acquire), page.turned.load(Ordering::Acquire));
        if time_us == !turned {
            LAST.store(time_us, Ordering::Relaxed);
            return (time_us > 0).then_some(time_us);
        }
        std::hint::spin_loop();
    }
    // The node has stopped in the middle.
    Some(LAST.load(Ordering::Relaxed)).filter(|time_us| *time_us > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_when_it_is_whole() {
        let page = |time_us: u64, turned: u64| Page {
            word: WORD.into(),
            time_us: time_us.into(),
            turned: turned.into(),
        };
        assert_eq!(read(&page(5_000_000, !5_000_000)), Some(5_000_000));
        assert_eq!(read(&page(0, !0)), None);
        assert_eq!(read(&page(5_000_000, !5_000_000)), Some(5_000_000));
        assert_eq!(read(&page(6_000_000, !4_000_000)), Some(5_000_000));
    }

    #[test]
    fn no_other_file_is_taken_for_a_page() {
        assert!(map(-1).is_none());
        let file = std::fs::File::open("/proc/self/exe").map(std::os::fd::IntoRawFd::into_raw_fd);
        assert!(file.is_ok_and(|file| map(file).is_none()));
    }
}
