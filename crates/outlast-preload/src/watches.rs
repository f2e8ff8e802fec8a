//! By which epoll this process watches a descriptor. An epoll forgets an open file with its last descriptor (epoll(7)), and the
//! holder has one of its own for a while: a program that closes its own, and frees what belongs to it, must hear no more of it.

use crate::{marks, sys};
use libc::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// More than one epoll.
const SEVERAL: u32 = u32::MAX;

/// By descriptor. 0: no epoll. Otherwise, in the lower half, the epoll's number with 1 added, or [`SEVERAL`]; in the upper half
/// [which process](marks::generation) has said so: a child has its parent's epolls, and its parent goes on watching by them.
static WATCHES: [AtomicU64; marks::DESCRIPTORS] = [const { AtomicU64::new(0) }; marks::DESCRIPTORS];

/// By descriptor: not 0 where the holder may have one of its own, whatever has become of the mark since.
static LENT: [AtomicU8; marks::DESCRIPTORS] = [const { AtomicU8::new(0) }; marks::DESCRIPTORS];
/// Epolls that watch something which another one watches as well, with 1 added. 0: none.
static EPOLLS: [AtomicU32; EPOLLS_MAX] = [const { AtomicU32::new(0) }; EPOLLS_MAX];
const EPOLLS_MAX: usize = 64;
/// There are more.
static HAS_MORE: AtomicBool = AtomicBool::new(false);

/// Notes one of several.
fn note(epoll: u32) {
    for place in &EPOLLS {
        match place.compare_exchange(0, epoll, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) if other == epoll => return,
            Err(_) => {}
        }
    }
    HAS_MORE.store(true, Ordering::Relaxed);
}

/// The holder may have it as well from here on.
pub fn lend(descriptor: RawFd) {
    if let Some(lent) = lent(descriptor) {
        lent.store(1, Ordering::Relaxed);
    }
}

/// Whether the holder may have it.
pub fn is_lent(descriptor: RawFd) -> bool {
    lent(descriptor).is_some_and(|lent| lent.load(Ordering::Relaxed) != 0)
}

fn lent(descriptor: RawFd) -> Option<&'static AtomicU8> {
    LENT.get(usize::try_from(descriptor).ok()?)
}

fn watch(descriptor: RawFd) -> Option<&'static AtomicU64> {
    WATCHES.get(usize::try_from(descriptor).ok()?)
}

/// What a watch of this epoll is noted as.
fn noted(epoll: u32) -> u64 {
    u64::from(marks::generation()) << 32 | u64::from(epoll)
}

/// The epoll that this process has noted, if it has.
fn own(watch: u64) -> Option<u32> {
    let epoll = u32::try_from(watch & u64::from(u32::MAX)).ok()?;
    (watch != 0 && watch == noted(epoll)).then_some(epoll)
}

/// What is to be noted when this epoll is told to watch as well.
fn with(watch: u64, epoll: u32) -> u64 {
    match own(watch) {
        Some(before) if before != epoll => noted(SEVERAL),
        _ => noted(epoll),
    }
}

/// A new socket has this number.
pub fn begin(descriptor: RawFd) {
    if let Some(lent) = lent(descriptor).filter(|lent| lent.load(Ordering::Relaxed) != 0) {
        lent.store(0, Ordering::Relaxed);
    }
    if let Some(watch) = watch(descriptor).filter(|watch| watch.load(Ordering::Relaxed) != 0) {
        watch.store(0, Ordering::Relaxed);
    }
}

/// The program has changed what an epoll watches.
pub fn changed(epoll: RawFd, operation: c_int, descriptor: RawFd) {
    let (Some(watch), Ok(epoll)) = (watch(descriptor), u32::try_from(epoll)) else { return };
    let epoll = epoll.saturating_add(1);
    if operation == libc::EPOLL_CTL_ADD {
        let before =
            watch.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| Some(with(before, epoll)));
        if let Ok(Some(before)) = before.map(own)
            && before != epoll
        {
            [before, epoll].into_iter().filter(|epoll| *epoll != SEVERAL).for_each(note);
        }
    } else if operation == libc::EPOLL_CTL_DEL {
        let _ = watch.compare_exchange(noted(epoll), 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The program closes it, and the holder may have it still. Takes no memory: it may be called in the handler of a signal.
pub fn end(descriptor: RawFd) {
    let Some(watch) = watch(descriptor) else { return };
    let noted = watch.load(Ordering::Relaxed);
    let Some(epoll) = own(noted) else { return };
    watch.store(0, Ordering::Relaxed);
    match epoll {
        SEVERAL if HAS_MORE.load(Ordering::Relaxed) => sys::epolls::end_all(descriptor),
        SEVERAL => {
            // Some do not watch it, or are none any more, which changes nothing.
            let noted = EPOLLS.iter().map(|epoll| epoll.load(Ordering::Relaxed));
            noted
                .filter_map(|epoll| epoll.checked_sub(1))
                .for_each(|epoll| sys::epolls::end(epoll.cast_signed(), descriptor));
        }
        epoll => sys::epolls::end(epoll.saturating_sub(1).cast_signed(), descriptor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    fn add(epoll: RawFd, descriptor: RawFd) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 7 };
        // SAFETY: numbers, and a local value.
        let result = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw mut event) };
        assert_eq!(result, 0);
        changed(epoll, libc::EPOLL_CTL_ADD, descriptor);
    }

    #[test]
    fn no_epoll_watches_what_is_closed_and_a_childs_close_changes_nothing() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = socket.as_raw_fd();
        for count in 0..3 {
            // SAFETY: a number.
            let epolls: Vec<_> =
                (0..count).map(|_| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).collect();
            begin(number);
            for epoll in &epolls {
                add(*epoll, number);
            }
            // As noted by another process.
            let by_this = watch(number).unwrap().load(Ordering::Relaxed);
            watch(number).unwrap().store(by_this ^ 1 << 32, Ordering::Relaxed);
            end(number);
            assert_eq!(sys::epolls::of(number).len(), count);
            watch(number).unwrap().store(by_this, Ordering::Relaxed);
            end(number);
            assert_eq!(sys::epolls::of(number).len(), 0, "{count}");
            assert_eq!(watch(number).unwrap().load(Ordering::Relaxed), 0);
            for epoll in epolls {
                sys::close(epoll);
            }
        }
    }

    #[test]
    fn who_watches_no_more_is_not_asked() {
        let number = UdpSocket::bind("127.0.0.1:0").unwrap().as_raw_fd();
        let noted = || watch(number).unwrap().load(Ordering::Relaxed);
        begin(number);
        changed(5, libc::EPOLL_CTL_ADD, number);
        changed(5, libc::EPOLL_CTL_ADD, number);
        assert_eq!(own(noted()), Some(6));
        changed(4, libc::EPOLL_CTL_DEL, number);
        changed(5, libc::EPOLL_CTL_MOD, number);
        assert_eq!(own(noted()), Some(6));
        changed(5, libc::EPOLL_CTL_DEL, number);
        assert_eq!(noted(), 0);
        // Beyond what is noted.
        changed(5, libc::EPOLL_CTL_ADD, 1 << 20);
        end(1 << 20);
    }
}
