//! The functions of the C library that this library stands before.

use crate::next::Next;
use crate::page;
use libc::{c_int, c_void, clockid_t, time_t, timespec, timeval, timezone};

const US_IN_S: u64 = 1_000_000;
const NS_IN_US: u64 = 1_000;
/// The base of `timespec_get` (C11, 7.27.2.5).
const TIME_UTC: c_int = 1;

/// The dynamic linker calls it before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    NEXT.get();
    crate::waits::find();
    page::find();
}

/// The C library's `clock_gettime`, which asks no kernel where the machine has a clock that can be read.
static NEXT: Next = Next::new(c"clock_gettime");

type ClockGettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

/// What the machine says.
///
/// # Safety
/// As the C library's.
pub unsafe fn of_the_machine(clock: clockid_t, time: *mut timespec) -> c_int {
    let Some(next) = NEXT.known() else {
        // SAFETY: with what the program gave.
        let asked = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
        return if asked == 0 { 0 } else { -1 };
    };
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, ClockGettime>(next.as_ptr()) };
    // SAFETY: with what the program gave.
    unsafe { next(clock, time) }
}

/// The time of day, in whole seconds and the rest in nanoseconds: that of the page, if there is one.
pub fn time_of_day() -> Option<(time_t, i64)> {
    let time_us = page::time_us()?;
    let (s, us) = (time_us / US_IN_S, time_us % US_IN_S);
    Some((time_t::try_from(s).ok()?, i64::try_from(us * NS_IN_US).ok()?))
}

/// See the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let is_time_of_day = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
    if is_time_of_day
        && !time.is_null()
        && let Some((tv_sec, tv_nsec)) = time_of_day()
    {
        // SAFETY: the program's, to be written.
        unsafe { time.write(timespec { tv_sec, tv_nsec }) };
        return 0;
    }
    // SAFETY: with what the program gave.
    unsafe { of_the_machine(clock, time) }
}

/// See the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut timeval, zone: *mut timezone) -> c_int {
    if !zone.is_null() {
        // As the C library has it.
        // SAFETY: the program's, to be written.
        unsafe { zone.cast::<[c_int; 2]>().write([0, 0]) };
    }
    if time.is_null() {
        return 0;
    }
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for it.
    let said = unsafe { clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    // SAFETY: the program's, to be written.
    unsafe { time.write(timeval { tv_sec: now.tv_sec, tv_usec: now.tv_nsec / 1_000 }) };
    said
}

/// See the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(place: *mut time_t) -> time_t {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // A coarse clock says the same as the C library's does: it never is ahead of another one.
    // SAFETY: there is room for it.
    if unsafe { clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) } != 0 {
        return -1;
    }
    if !place.is_null() {
        // SAFETY: the program's, to be written.
        unsafe { place.write(now.tv_sec) };
    }
    now.tv_sec
}

/// See the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timespec_get(time: *mut timespec, base: c_int) -> c_int {
    if base != TIME_UTC {
        return 0;
    }
    // SAFETY: with what the program gave.
    if unsafe { clock_gettime(libc::CLOCK_REALTIME, time) } == 0 { base } else { 0 }
}
