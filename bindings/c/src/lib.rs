//! The functions of `include/outlast.h`, which says what they do. Here is only what C's arguments are in Rust.

mod address;
mod error;
mod plain;
mod serving;
mod state;
mod table;

use error::{ForC, give, own, set_errno};
use outlast_restart::policy::Policy;
use serving::{registered, serving};
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::slice;

/// `struct outlast_policy`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPolicy {
    transient_after_ms: u64,
    intensity: u64,
    intensity_window_ms: u64,
    hang_timeout_ms: u64,
    reserved: [u64; 4],
}

impl CPolicy {
    fn policy(self) -> io::Result<Policy> {
        if self.reserved != [0; 4] {
            let why = "what is reserved in a policy must be 0: the library is older than the header";
            return Err(own(libc::EINVAL, why.to_owned()));
        }
        let default = Policy::default();
        let or = |value, default| if value == 0 { default } else { value };
        Ok(Policy {
            transient_after_ms: or(self.transient_after_ms, default.transient_after_ms),
            intensity: usize::try_from(or(self.intensity, default.intensity as u64)).unwrap_or(usize::MAX),
            intensity_window_ms: or(self.intensity_window_ms, default.intensity_window_ms),
            hang_timeout_ms: or(self.hang_timeout_ms, default.hang_timeout_ms),
        })
    }
}

/// Bytes of the caller's. C may give NULL where there are none.
///
/// # Safety
/// `size` bytes can be read at `bytes`, and stay the same meanwhile.
unsafe fn given<'a>(bytes: *const c_void, size: usize) -> &'a [u8] {
    if bytes.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: as the caller promises; longer ones than that cannot be in memory.
    unsafe { slice::from_raw_parts(bytes.cast(), size.min(isize::MAX.unsigned_abs())) }
}

/// Room of the caller's.
///
/// # Safety
/// `size` bytes can be written at `bytes`, and nobody else uses them meanwhile.
unsafe fn room<'a>(bytes: *mut c_void, size: usize) -> &'a mut [u8] {
    if bytes.is_null() || size == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises. C need not have initialised them; here they are only written.
    unsafe { slice::from_raw_parts_mut(bytes.cast(), size.min(isize::MAX.unsigned_abs())) }
}

/// A count of bytes of a buffer fits, as buffers are shorter than the half of memory.
fn count(result: io::Result<usize>) -> isize {
    give(result.map(|count| isize::try_from(count).unwrap_or(isize::MAX)))
}

/// See `outlast.h`.
///
/// # Safety
/// `length` bytes can be read at `address`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_listen(
    address: *const libc::sockaddr,
    length: libc::socklen_t,
    backlog: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let address = unsafe { given(address.cast(), usize::try_from(length).unwrap_or(usize::MAX)) };
    give(address::parse(address).and_then(|address| {
        let listener = outlast_restart::listen(address)?;
        plain::listen(&listener, backlog)?;
        Ok(listener.into_raw_fd())
    }))
}

/// See `outlast.h`.
///
/// # Safety
/// `policy` is NULL or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_register(policy: *const CPolicy) -> c_int {
    // SAFETY: as the caller promises.
    let policy = unsafe { policy.as_ref() }.map_or_else(|| Ok(Policy::default()), |policy| policy.policy());
    give(policy.and_then(serving::register))
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_generation() -> c_int {
    serving().map_or(0, serving::Serving::number)
}

/// See `outlast.h`.
///
/// # Safety
/// `text` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_predecessor(text: *mut c_char, size: usize) -> usize {
    let death = serving().and_then(serving::Serving::predecessor).unwrap_or_default();
    // SAFETY: as the caller promises.
    let room = unsafe { room(text.cast(), size) };
    if let Some((last, _)) = room.split_last_mut().map(|(last, rest)| (rest.len(), last)) {
        let length = last.min(death.len());
        for (to, from) in room.iter_mut().zip(death.as_bytes().iter().take(length).chain(&[0])) {
            *to = *from;
        }
    }
    death.len()
}

/// A descriptor, or -1 with errno 0 where there is none.
fn next(next: io::Result<Option<RawFd>>) -> c_int {
    give(next.map(|fd| {
        fd.unwrap_or_else(|| {
            set_errno(0);
            c_int::FAILED
        })
    }))
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_next() -> c_int {
    next(table::refuse_in_change().and_then(|()| registered()).map(serving::Serving::next_connection))
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_next_listener() -> c_int {
    next(registered().map(serving::Serving::next_listener))
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_keep(fd: c_int) -> c_int {
    give(registered().and_then(|serving| serving.keep(fd)))
}

/// See `outlast.h`.
///
/// # Safety
/// `size` bytes can be read at `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_refuse_with(bytes: *const c_void, size: usize) -> c_int {
    // SAFETY: as the caller promises.
    let bytes = unsafe { given(bytes, size) };
    give(serving::refuse_with(bytes).map(|()| 0))
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_busy() {
    if let Some(serving) = serving() {
        serving.heartbeat().busy();
    }
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_idle() {
    if let Some(serving) = serving() {
        serving.heartbeat().idle();
    }
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_error() -> *const c_char {
    error::text()
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_hold(fd: c_int) -> c_int {
    if let Err(error) = table::refuse_in_change() {
        return give(Err(error));
    }
    if !plain::is_open(fd) {
        return give(Err(io::Error::from_raw_os_error(libc::EBADF)));
    }
    // SAFETY: it is open, and its caller gives it away, to be closed by `outlast_close`.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    give(registered().and_then(|serving| serving.hold(socket)).map(|_| 0))
}

/// See `outlast.h`.
///
/// # Safety
/// `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_read(fd: c_int, buffer: *mut c_void, size: usize) -> isize {
    if buffer.is_null() && size > 0 {
        return count(Err(io::Error::from_raw_os_error(libc::EFAULT)));
    }
    // SAFETY: as the caller promises.
    let buffer = unsafe { room(buffer, size) };
    let read = table::with(fd, |connection| connection.read(buffer));
    count(read.and_then(|read| read.unwrap_or_else(|| plain::read(fd, buffer))))
}

/// See `outlast.h`.
///
/// # Safety
/// `size` bytes can be read at `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_write(fd: c_int, bytes: *const c_void, size: usize) -> isize {
    if bytes.is_null() && size > 0 {
        return count(Err(io::Error::from_raw_os_error(libc::EFAULT)));
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { given(bytes, size) };
    let written = table::with(fd, |connection| connection.write(bytes));
    count(written.and_then(|written| written.unwrap_or_else(|| plain::write(fd, bytes))))
}

/// See `outlast.h`.
///
/// # Safety
/// `offset` is NULL or points to one that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_sendfile(
    fd: c_int,
    file: c_int,
    offset: *mut libc::off_t,
    size: usize,
) -> isize {
    // SAFETY: as the caller promises.
    let offset = unsafe { offset.as_mut() };
    count(send_file(fd, file, offset, size))
}

fn send_file(fd: RawFd, file: RawFd, offset: Option<&mut libc::off_t>, size: usize) -> io::Result<usize> {
    let offset = offset.ok_or_else(|| own(libc::EINVAL, "outlast_sendfile needs an offset".to_owned()))?;
    if file < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: a number that the caller has not closed while the call lasts; if it is not open, the kernel says so.
    let from = unsafe { BorrowedFd::borrow_raw(file) };
    let begin = u64::try_from(*offset)
        .map_err(|_| own(libc::EINVAL, format!("offset {offset} is before the file's beginning")))?;
    let sent = table::with(fd, |connection| connection.write_file(from, begin, size))?;
    let Some(sent) = sent else { return plain::send_file(fd, file, offset, size) };
    let sent = sent?;
    *offset += libc::off_t::try_from(sent).unwrap_or(0);
    Ok(sent)
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_done(fd: c_int, size: usize) -> c_int {
    give(table::held(fd, |connection| {
        connection.done(size);
        Ok(0)
    }))
}

/// See `outlast.h`.
///
/// # Safety
/// `size` bytes can be read at `note`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_set_note(fd: c_int, note: *const c_void, size: usize) -> c_int {
    // SAFETY: as the caller promises.
    let note = unsafe { given(note, size) };
    give(table::held(fd, |connection| connection.set_note(note).map(|()| 0)))
}

/// See `outlast.h`.
///
/// # Safety
/// `note` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_get_note(fd: c_int, note: *mut c_void, size: usize) -> isize {
    // SAFETY: as the caller promises.
    let room = unsafe { room(note, size) };
    count(table::held(fd, |connection| {
        let note = connection.note();
        for (to, from) in room.iter_mut().zip(note) {
            *to = *from;
        }
        Ok(note.len())
    }))
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_shutdown(fd: c_int, how: c_int) -> c_int {
    let ended = match how {
        libc::SHUT_WR => table::with(fd, |connection| connection.shutdown_write()),
        // What is left of answers is sent before, as in SHUT_WR.
        libc::SHUT_RDWR => table::with(fd, |connection| connection.flush()).map(|flushed| match flushed {
            Some(Err(error)) => Some(Err(error)),
            _ => None,
        }),
        _ => table::refuse_in_change().map(|()| None),
    };
    give(ended.and_then(|ended| ended.unwrap_or_else(|| plain::shut_down(fd, how))).map(|()| 0))
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_close(fd: c_int) -> c_int {
    // Under its lock until the number is free: the next one with it comes behind.
    give(table::place(fd).and_then(|place| {
        let was_held = place.is_some_and(|mut place| place.take().is_some());
        if was_held { Ok(0) } else { plain::close(fd).map(|()| 0) }
    }))
}
