//! Memory that the program names in a call, and that may not be there: then the kernel says so (EFAULT), and nobody dies of it.

use libc::{c_char, c_void};
use std::cell::Cell;
use std::ffi::CStr;

/// As small as any system has it.
const PAGE_BYTES: usize = 4096;
/// What the kernel reads at a time, here.
const WORD_BYTES: usize = 8;
/// No page begins here.
const NONE: usize = usize::MAX;

/// Knows the page that was found last: texts of one list are beside each other.
pub struct Given {
    page: Cell<usize>,
}

impl Given {
    /// Nothing is known yet.
    pub const fn new() -> Self {
        Self { page: Cell::new(NONE) }
    }

    /// Whether so many bytes can be read there.
    pub fn has(&self, memory: *const c_void, bytes: usize) -> bool {
        let Some(last) = memory.addr().checked_add(bytes.saturating_sub(1)) else { return false };
        let (first, last) = (memory.addr() / PAGE_BYTES, last / PAGE_BYTES);
        !memory.is_null() && (first..=last).all(|page| self.has_page(memory.with_addr(page * PAGE_BYTES)))
    }

    fn has_page(&self, page: *const c_void) -> bool {
        if self.page.get() == page.addr() {
            return true;
        }
        if page.is_null() {
            // No program has memory there, and the kernel takes null for no mask.
            return false;
        }
        const NO_WAY: libc::c_int = -1;
        let nothing = std::ptr::null_mut::<u64>();
        // SAFETY: the kernel reads the mask, or cannot. It changes nothing, as there is no such way to.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_WAY, page, nothing, WORD_BYTES) };
        let is_there = super::errno() != libc::EFAULT;
        if is_there {
            self.page.set(page.addr());
        }
        is_there
    }

    /// A text that ends, of at most so many bytes with its zero.
    pub fn text<'a>(&self, text: *const c_char, bytes_max: usize) -> Option<&'a CStr> {
        let mut length = 0;
        loop {
            let place = text.wrapping_add(length);
            let rest = (PAGE_BYTES - place.addr() % PAGE_BYTES).min(bytes_max.checked_sub(length)?);
            if rest == 0 || !self.has(place.cast(), rest) {
                return None;
            }
            // SAFETY: so many bytes are there. Their owner leaves them as they are during the call that this is about.
            let part = unsafe { std::slice::from_raw_parts(place.cast::<u8>(), rest) };
            if part.contains(&0) {
                // SAFETY: it ends within what can be read.
                return Some(unsafe { CStr::from_ptr(text) });
            }
            length += rest;
        }
    }

    /// One of a list of texts, which ends with null. None: it is not there.
    pub fn pointer(&self, list: super::execute::Texts, place: usize) -> Option<*const c_char> {
        let place = list.wrapping_add(place);
        // SAFETY: it can be read.
        self.has(place.cast(), size_of_val(&place)).then(|| unsafe { place.read_unaligned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_read() {
        // SAFETY: a new mapping, of which the test alone knows.
        let memory = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let memory = libc::mmap(std::ptr::null_mut(), 2 * PAGE_BYTES, rights, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            libc::munmap(memory.wrapping_byte_add(PAGE_BYTES), PAGE_BYTES);
            memory.cast::<c_char>()
        };
        let end = memory.wrapping_add(PAGE_BYTES);
        let text = |behind: usize, max| Given::new().text(end.wrapping_sub(behind), max).map(CStr::to_bytes);
        assert_eq!((text(4, 100), text(0, 100)), (Some(&b""[..]), None));
        // SAFETY: within what is mapped.
        unsafe { std::ptr::copy_nonoverlapping(c"abc".as_ptr(), end.wrapping_sub(4), 4) };
        assert_eq!((text(4, 100), text(4, 4), text(4, 3)), (Some(&b"abc"[..]), Some(&b"abc"[..]), None));
        // It does not end.
        // SAFETY: as above.
        unsafe { end.wrapping_sub(1).write(1) };
        assert_eq!(text(4, 100), None);
        let has = |behind, bytes| Given::new().has(end.wrapping_sub(behind).cast(), bytes);
        assert!(has(16, 16) && !has(16, 17) && !has(0, 1));
        assert!(
            !Given::new().has(std::ptr::null(), 1) && !Given::new().has(std::ptr::without_provenance(8), 16)
        );
        assert!(!Given::new().has(std::ptr::without_provenance(usize::MAX), 16));
        assert!(Given::new().pointer(end.wrapping_sub(8).cast(), 0).is_some());
        assert!(Given::new().pointer(end.wrapping_sub(8).cast(), 1).is_none());
    }
}
