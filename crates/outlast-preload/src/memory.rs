//! The program's own memory, as it gives it to the C library to be read into or written from.

use libc::iovec;
use std::ffi::c_void;

/// One piece or several.
#[derive(Clone, Copy)]
pub enum Parts<'a> {
    /// One.
    One(&'a [u8]),
    /// Several, in this order.
    Several(&'a [iovec]),
}

impl<'a> Parts<'a> {
    /// `length` bytes, which the C library reads, or has filled.
    pub fn one(memory: *const c_void, length: usize) -> Self {
        Self::One(slice(memory.cast(), length))
    }

    /// A list of pieces.
    pub fn several(list: *const iovec, count: usize) -> Self {
        Self::Several(slice(list, count))
    }

    /// Those of a message.
    pub fn of_message(message: *const libc::msghdr) -> Self {
        // SAFETY: null, or one that the program has given to the C library.
        match unsafe { message.as_ref() } {
            Some(message) => Self::several(message.msg_iov, message.msg_iovlen),
            None => Self::One(&[]),
        }
    }

    /// The first `count` bytes.
    pub fn until(self, count: usize) -> impl Iterator<Item = &'a [u8]> + Clone {
        let (one, several) = match self {
            Self::One(bytes) => (bytes, &[][..]),
            Self::Several(list) => (&[][..], list),
        };
        let others = several.iter().map(|part| (part.iov_base.cast_const().cast::<u8>(), part.iov_len));
        let parts = std::iter::once((one.as_ptr(), one.len())).chain(others);
        let limited = parts.scan(count, |rest, (memory, length)| {
            let taken = length.min(*rest);
            *rest -= taken;
            Some(slice(memory, taken))
        });
        limited.filter(|part| !part.is_empty())
    }

    /// The first bytes of `count`.
    pub fn head(self, count: usize) -> &'a [u8] {
        self.until(count).next().unwrap_or_default()
    }
}

/// What the program has given to the C library.
fn slice<'a, T>(memory: *const T, length: usize) -> &'a [T] {
    if memory.is_null() || length == 0 {
        return &[];
    }
    // More than there can be: the kernel takes less, or says that it is not there.
    let length = length.min(isize::MAX.cast_unsigned() / size_of::<T>());
    // SAFETY: the C library accesses as much of it in the call that this is about.
    unsafe { std::slice::from_raw_parts(memory, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_after_the_other_and_end_where_they_should() {
        let texts = [&b"abc"[..], b"", b"defg", b"h"];
        let list = texts.map(|text| iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() });
        let parts = Parts::several(list.as_ptr(), list.len());
        assert_eq!(parts.head(8), &b"abc"[..]);
        for count in 0..=8 {
            assert_eq!(parts.until(count).collect::<Vec<_>>().concat(), b"abcdefgh"[..count]);
            assert!(parts.until(count).all(|part| !part.is_empty()));
            let one = Parts::one(b"abcdefgh".as_ptr().cast(), 8);
            assert_eq!(one.head(count), &b"abcdefgh"[..count]);
        }
        assert_eq!(Parts::of_message(std::ptr::null()).head(1), b"");
        // Some programs tell no length but the greatest.
        assert_eq!(Parts::one(b"abc".as_ptr().cast(), usize::MAX).head(2), b"ab");
    }
}
