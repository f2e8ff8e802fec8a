//! Handlers of fatal signals, and threads that are made to stand still.

use super::process::{self, Pid};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A fatal signal.
pub(crate) struct Fault {
    code: i32,
    sender: Pid,
}

impl Fault {
    /// Whether the process has brought it upon itself: by what it did, or by `abort`.
    pub(crate) fn by_itself(&self, pid: Pid) -> bool {
        self.code > 0 || self.sender == pid
    }
}

/// Gives whether the process has to die of it, whatever it could do against that.
type Handler = fn(&Fault) -> bool;

static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// Threads that stand still, beside the one that has faulted.
static PARKED: AtomicU32 = AtomicU32::new(0);
/// Room for a part of the listing of /proc/self/task: for the one thread that has faulted. Not on its stack: that for signal
/// handlers may have 8 KiB, of which the kernel has taken a good part.
static LISTING: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];
/// Threads are told again to stand still after so many looks without all of them.
const LOOKS: u32 = 10;
const LOOK_PAUSE: Duration = Duration::from_micros(100);

/// By which threads are made to stand still: the last but one of the real-time signals, after that for upgrades.
fn park_signal() -> i32 {
    libc::SIGRTMAX() - 1
}

/// Has `handler` called, in the thread that faults and on the stack for that if there is one, before the process dies of
/// one of `signals`. Those that the program has a handler for are left to it: it may go on behind it. Not so the one of Rust's
/// standard library, which only has to tell of a stack that overflows: it is called afterwards.
pub(crate) fn catch(signals: &[i32], handler: Handler) -> io::Result<()> {
    HANDLER.store(handler as *mut (), Ordering::SeqCst);
    process::look_for_alone();
    give_stack()?;
    for &signal in signals {
        let before = action_of(signal)?;
        let mine = faulted as *const () as usize;
        if before.sa_sigaction == mine
            || (before.sa_sigaction != libc::SIG_DFL && !is_of_std(signal, &before)?)
        {
            continue;
        }
        if let Some(place) = PREVIOUS.get(usize::try_from(signal).unwrap_or(usize::MAX)) {
            place.store(Box::into_raw(Box::new(before)), Ordering::SeqCst);
        }
        set_action(signal, mine, libc::SA_SIGINFO | libc::SA_ONSTACK)?;
    }
    set_action(park_signal(), parked as *const () as usize, libc::SA_SIGINFO | libc::SA_RESTART)
}

/// Whether a handler is that of Rust's standard library, which has no name to know it by: one for two signals and for no
/// other, with these flags and an empty mask, in the same file as this code.
fn is_of_std(signal: i32, action: &libc::sigaction) -> io::Result<bool> {
    let other = match signal {
        libc::SIGSEGV => action_of(libc::SIGBUS)?,
        libc::SIGBUS => action_of(libc::SIGSEGV)?,
        _ => return Ok(false),
    };
    let mine = faulted as *const () as usize;
    // Of two that are taken over one after the other.
    let goes_with = other.sa_sigaction == action.sa_sigaction || other.sa_sigaction == mine;
    // SAFETY: reads a mask that the kernel has filled.
    let holds = |held: i32| unsafe { libc::sigismember(&raw const action.sa_mask, held) } == 1;
    let looks_so = action.sa_flags & !SA_RESTORER == libc::SA_SIGINFO | libc::SA_ONSTACK
        && !(1..=libc::SIGRTMAX()).any(holds);
    Ok(goes_with
        && looks_so
        && object_of(mine).is_some_and(|mine| object_of(action.sa_sigaction) == Some(mine)))
}

/// Set by the C library, and seen in what it gives back by some of them.
const SA_RESTORER: i32 = 0x0400_0000;

/// Where the file is loaded that a function is in.
fn object_of(function: usize) -> Option<usize> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: looks an address up, and fills a local; zeroes are a Dl_info.
    let known = unsafe { libc::dladdr(std::ptr::without_provenance(function), found.as_mut_ptr()) != 0 };
    // SAFETY: zeroed before.
    known.then(|| unsafe { found.assume_init() }.dli_fbase.addr())
}

/// What was done on a signal before, by its number.
static PREVIOUS: [AtomicPtr<libc::sigaction>; 32] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 32];

fn action_of(signal: i32) -> io::Result<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: fills a local.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before, and filled.
    Ok(unsafe { action.assume_init() })
}

fn set_action(signal: i32, handler: usize, flags: i32) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeroes are a sigaction; the mask is filled before it is used. Handlers are functions of this module, and only do
    // what a signal handler may.
    let result = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(signal, action, std::ptr::null_mut())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A stack for the handler of the calling thread: its own may be what has run out. Rust's threads have one already.
///
/// A mapping of its own, of which only what is used takes memory: in every generation there is one.
fn give_stack() -> io::Result<()> {
    const GUARD_BYTES: usize = 4 << 10;
    const STACK_BYTES: usize = 64 << 10;
    let mut stack = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: fills a local, zeroes are a stack_t; then gives memory of its own that is never taken back.
    let result = unsafe {
        libc::sigaltstack(std::ptr::null(), stack.as_mut_ptr());
        let stack = stack.assume_init_mut();
        if stack.ss_flags & libc::SS_DISABLE == 0 {
            rehearse(stack);
            return Ok(());
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let memory = libc::mmap(std::ptr::null_mut(), GUARD_BYTES + STACK_BYTES, rights, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::mprotect(memory, GUARD_BYTES, libc::PROT_NONE);
        stack.ss_sp = memory.byte_add(GUARD_BYTES);
        stack.ss_size = STACK_BYTES;
        stack.ss_flags = 0;
        rehearse(stack);
        libc::sigaltstack(stack, std::ptr::null_mut())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The end where it begins to be used is there when it is.
fn rehearse(stack: &libc::stack_t) {
    let used = stack.ss_size.min(8 << 10);
    super::pages::populate(stack.ss_sp.addr() + stack.ss_size - used, used);
}

/// The handler of fatal signals.
extern "C" fn faulted(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a siginfo_t of a signal that was sent, or of a fault, where the sender's field is another
    // integer.
    let fault = unsafe { Fault { code: (*info).si_code, sender: (*info).si_pid() } };
    let handler = HANDLER.load(Ordering::SeqCst);
    let dies = !handler.is_null() && {
        // SAFETY: only ever a Handler is stored there.
        let handler = unsafe { std::mem::transmute::<*mut (), Handler>(handler) };
        handler(&fault)
    };
    let previous = PREVIOUS.get(usize::try_from(signal).unwrap_or(usize::MAX));
    let previous = previous.map_or(std::ptr::null_mut(), |place| place.load(Ordering::SeqCst));
    // SAFETY: what stood there before, and is never freed; zeroes are the default.
    let default = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    // SAFETY: as above.
    let previous = unsafe { previous.as_ref() }.unwrap_or(&default);
    if dies {
        // Others stand still, perhaps with a lock that it needs; another generation serves already.
        let limit = Limit::arm();
        call(previous, signal, info, context);
        limit.disarm();
    }
    let next = if dies { &default } else { previous };
    // SAFETY: a whole sigaction.
    unsafe { libc::sigaction(signal, next, std::ptr::null_mut()) };
    if dies || fault.code <= 0 {
        // It may not come again by itself, as most faults do when their instruction is repeated. It is held back until this
        // handler returns; who looks at a dump finds what there was the first time.
        // SAFETY: numbers, and what the kernel has given.
        unsafe {
            let (pid, thread) = (process::pid(), process::thread_id());
            if libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, signal, info) < 0
                && libc::syscall(libc::SYS_tgkill, pid, thread, signal) < 0
            {
                // A sandbox forbids both. It must not live: the next generation waits for its end.
                libc::kill(pid, libc::SIGKILL);
            }
        };
    }
}

/// How long a handler may take for what it has to tell.
const TELL_LIMIT_S: libc::time_t = 5;

/// The process is killed when that is over. Not while it is dumped.
struct Limit(Option<libc::c_int>);

impl Limit {
    fn arm() -> Self {
        let mut timer: libc::c_int = 0;
        let mut event = MaybeUninit::<libc::sigevent>::zeroed();
        let mut time = MaybeUninit::<libc::itimerspec>::zeroed();
        // SAFETY: zeroes are both of them, which are read, and the timer's number is written. By system calls, as a C library
        // allocates for its timers.
        let armed = unsafe {
            event.assume_init_mut().sigev_notify = libc::SIGEV_SIGNAL;
            event.assume_init_mut().sigev_signo = libc::SIGKILL;
            time.assume_init_mut().it_value.tv_sec = TELL_LIMIT_S;
            libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, event.as_ptr(), &raw mut timer) == 0
                && libc::syscall(libc::SYS_timer_settime, timer, 0, time.as_ptr(), 0) == 0
        };
        Self(armed.then_some(timer))
    }

    fn disarm(self) {
        if let Some(timer) = self.0 {
            // SAFETY: a number.
            unsafe { libc::syscall(libc::SYS_timer_delete, timer) };
        }
    }
}

/// What would have been called without us.
fn call(action: &libc::sigaction, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Plain = extern "C" fn(i32);
    type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    let handler = std::ptr::with_exposed_provenance::<()>(action.sa_sigaction);
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) {
        return;
    }
    // SAFETY: which of the two it is was said when it was installed.
    unsafe {
        if action.sa_flags & libc::SA_SIGINFO == 0 {
            std::mem::transmute::<*const (), Plain>(handler)(signal);
        } else {
            std::mem::transmute::<*const (), Full>(handler)(signal, info, context);
        }
    }
}

/// The handler that never returns.
extern "C" fn parked(_signal: i32, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    PARKED.fetch_add(1, Ordering::SeqCst);
    let _ = super::futex::wake(&PARKED, 1);
    park()
}

/// Stands still until the process dies.
pub(crate) fn park() -> ! {
    loop {
        // SAFETY: waits for a signal; all that can be are held back in a handler.
        unsafe { libc::pause() };
    }
}

/// Makes all other threads of this process stand still: outside of system calls, whatever those have done. False if some
/// would not within `limit`.
///
/// To be called from a signal handler: no allocation.
pub(crate) fn park_others(limit: Duration) -> bool {
    if process::is_alone_for_sure() || process::is_alone() {
        return true;
    }
    let (pid, own) = (process::pid(), process::thread_id());
    let deadline_ns = super::clock::monotonic_ns() + u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    while super::clock::monotonic_ns() < deadline_ns {
        // Those that stand still start no others and do not end: if as many did before they were listed, that is all.
        let parked = PARKED.load(Ordering::SeqCst);
        let mut others = 0;
        let listed = each_thread(|thread| {
            if thread != own {
                others += 1;
                // SAFETY: numbers. A thread that has ended meanwhile is an error that changes nothing.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, park_signal()) };
            }
        });
        if !listed {
            return false;
        }
        if parked >= others {
            return true;
        }
        for _ in 0..LOOKS {
            let parked = PARKED.load(Ordering::SeqCst);
            if parked >= others {
                break;
            }
            super::futex::wait(&PARKED, parked, Some(LOOK_PAUSE));
        }
    }
    false
}

/// Calls `with` for the id of each thread of this process.
///
/// Only who has several threads pays for its stack. False if they cannot be listed.
#[inline(never)]
fn each_thread(mut with: impl FnMut(Pid)) -> bool {
    let path = c"/proc/self/task".as_ptr();
    // SAFETY: a constant path; the descriptor is closed below.
    let folder = unsafe { libc::open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if folder < 0 {
        return false;
    }
    let room = size_of_val(&LISTING);
    let listed = loop {
        // SAFETY: fills at most the buffer, which is aligned as directory entries are.
        let length =
            unsafe { libc::syscall(libc::SYS_getdents64, folder, LISTING.as_ptr().cast_mut(), room) };
        let Ok(length) = usize::try_from(length) else { break false };
        if length == 0 {
            break true;
        }
        // SAFETY: as long as the buffer at the most, of which bytes are a view; nobody else writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(LISTING.as_ptr().cast::<u8>(), length.min(room)) };
        entries(bytes, &mut with);
    };
    // SAFETY: opened above.
    unsafe { libc::close(folder) };
    listed
}

/// The numbers among the names of directory entries (getdents64(2): inode and offset of 8 bytes each, length of 2, type of
/// 1, name up to a zero).
fn entries(mut bytes: &[u8], with: &mut impl FnMut(Pid)) {
    while let Some(&[low, high]) = bytes.get(16..18) {
        let length = usize::from(u16::from_ne_bytes([low, high])).max(19);
        let name = bytes.get(19..length.min(bytes.len())).unwrap_or_default();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        if !name.is_empty() && name.iter().all(u8::is_ascii_digit) {
            let number = name
                .iter()
                .fold(0, |number: Pid, digit| number.wrapping_mul(10).wrapping_add(Pid::from(digit - b'0')));
            with(number);
        }
        bytes = bytes.get(length..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_a_process_are_found_without_allocation() {
        let mut found = Vec::new();
        assert!(each_thread(|thread| found.push(thread)));
        assert!(found.contains(&process::pid()) && found.contains(&process::thread_id()), "{found:?}");
    }
}
