//! Functions of the C library that wait until a time of day. The kernel knows that of the machine alone: so a time by the page's clock is said in that
//! of the machine's, as far from now. Else a program whose time is behind would not wait at all, again and again, and one whose time is ahead
//! would wait for too long.

use crate::hooks::{of_the_machine, time_of_day};
use crate::next::Next;
use libc::{c_int, clockid_t, pthread_cond_t, pthread_mutex_t, sem_t, timespec};

/// Times before this are no times of day, but of a clock that began with the machine: a condition variable may have either.
const SECONDS_MIN: i64 = 1_000_000_000;
const NS_IN_S: i128 = 1_000_000_000;

/// A deadline for the kernel, in the place of one by the clock of the page; none: it is right as it is.
fn for_the_machine(deadline: *const timespec) -> Option<timespec> {
    // SAFETY: the program's, to be read, or null.
    let deadline = unsafe { deadline.as_ref() }?;
    let (page_s, page_ns) = time_of_day()?;
    if deadline.tv_sec < SECONDS_MIN || !(0..1_000_000_000).contains(&deadline.tv_nsec) {
        return None;
    }
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for it.
    if unsafe { of_the_machine(libc::CLOCK_REALTIME, &raw mut now) } != 0 {
        return None;
    }
    let ns = |s: i64, ns: i64| i128::from(s) * NS_IN_S + i128::from(ns);
    let until = ns(deadline.tv_sec, deadline.tv_nsec) - ns(page_s, page_ns) + ns(now.tv_sec, now.tv_nsec);
    let until = until.max(0);
    Some(timespec {
        tv_sec: i64::try_from(until / NS_IN_S).ok()?,
        tv_nsec: i64::try_from(until % NS_IN_S).ok()?,
    })
}

/// That, or the program's own.
fn choose(instead: Option<&timespec>, deadline: *const timespec) -> *const timespec {
    instead.map_or(deadline, std::ptr::from_ref)
}

static COND_TIMEDWAIT: Next = Next::new(c"pthread_cond_timedwait");
static COND_CLOCKWAIT: Next = Next::new(c"pthread_cond_clockwait");
static MUTEX_TIMEDLOCK: Next = Next::new(c"pthread_mutex_timedlock");
static SEM_TIMEDWAIT: Next = Next::new(c"sem_timedwait");

/// Looks for them, before the program begins.
pub fn find() {
    for next in [&COND_TIMEDWAIT, &COND_CLOCKWAIT, &MUTEX_TIMEDLOCK, &SEM_TIMEDWAIT] {
        next.get();
    }
}

/// See the C library's. They may be unwound: threads are cancelled in them.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    deadline: *const timespec,
) -> c_int {
    type Function =
        unsafe extern "C-unwind" fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int;
    let Some(next) = COND_TIMEDWAIT.get() else { return libc::ENOSYS };
    let instead = for_the_machine(deadline);
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(next.as_ptr()) };
    // SAFETY: with what the program gave, or what is as good.
    unsafe { next(condition, mutex, choose(instead.as_ref(), deadline)) }
}

/// See the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cond_clockwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    deadline: *const timespec,
) -> c_int {
    type Function = unsafe extern "C-unwind" fn(
        *mut pthread_cond_t,
        *mut pthread_mutex_t,
        clockid_t,
        *const timespec,
    ) -> c_int;
    let Some(next) = COND_CLOCKWAIT.get() else { return libc::ENOSYS };
    let instead = if clock == libc::CLOCK_REALTIME { for_the_machine(deadline) } else { None };
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(next.as_ptr()) };
    // SAFETY: with what the program gave, or what is as good.
    unsafe { next(condition, mutex, clock, choose(instead.as_ref(), deadline)) }
}

/// See the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_timedlock(
    mutex: *mut pthread_mutex_t,
    deadline: *const timespec,
) -> c_int {
    type Function = unsafe extern "C-unwind" fn(*mut pthread_mutex_t, *const timespec) -> c_int;
    let Some(next) = MUTEX_TIMEDLOCK.get() else { return libc::ENOSYS };
    let instead = for_the_machine(deadline);
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(next.as_ptr()) };
    // SAFETY: with what the program gave, or what is as good.
    unsafe { next(mutex, choose(instead.as_ref(), deadline)) }
}

/// See the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sem_timedwait(semaphore: *mut sem_t, deadline: *const timespec) -> c_int {
    type Function = unsafe extern "C-unwind" fn(*mut sem_t, *const timespec) -> c_int;
    let Some(next) = SEM_TIMEDWAIT.get() else {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    };
    let instead = for_the_machine(deadline);
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(next.as_ptr()) };
    // SAFETY: with what the program gave, or what is as good.
    unsafe { next(semaphore, choose(instead.as_ref(), deadline)) }
}
