//! Asking the holder, and being told by it.

use crate::marks;
use crate::sys;
use outlast_restart::custody::message::{BYTES, Message, VERSION, Verb};
use outlast_restart::custody::table::Table;
use outlast_restart::custody::{ENVIRONMENT, MARK_ENVIRONMENT};
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A holder that does not answer for so long is not asked for a while: the program goes on without it.
const PATIENCE_MS: u32 = 2_000;
/// The same, once it has not answered.
const LATE_PATIENCE_MS: u32 = 50;
/// How long it is not asked then; each time twice as long.
const PAUSE_MIN_MS: u64 = 500;
const PAUSE_MAX_MS: u64 = 30_000;
/// A program that is refused its address ends, as a rule: so long it is asked for again and again where nobody answers.
const INSISTS_MS: u64 = 30_000;

/// Null: this process has none.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// There is no holder, or none that understands this library.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);
static ADDRESS: OnceLock<Option<Vec<u8>>> = OnceLock::new();
/// What the table's memory is called.
static MARK: OnceLock<Option<CString>> = OnceLock::new();
/// The socket to it, whose it is, and by what it is known that it still is that one.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static SOCKET_OF: AtomicI32 = AtomicI32::new(0);
static SOCKET_COOKIE: AtomicU64 = AtomicU64::new(0);
/// Whose it was when this process, or the one that it was forked by, was answered first. Process 0: it cannot be seen from
/// here. -1: not known.
static HOLDER: AtomicI32 = AtomicI32::new(-1);
static HOLDER_USER: AtomicU32 = AtomicU32::new(0);
/// Of this process, and whether that is another one than it has here.
static NUMBER: AtomicI32 = AtomicI32::new(0);
static IS_ELSEWHERE: AtomicBool = AtomicBool::new(false);
/// It has not answered in time: stopped, perhaps, or short of processor time. Until then it is not asked (0: it is), and how
/// long that is.
static ASKS_AT_MS: AtomicU64 = AtomicU64::new(0);
static PAUSE_MS: AtomicU64 = AtomicU64::new(0);
/// How often it could not be asked for something that may pass, since it answered last. So often it is tried.
static PASSING: AtomicU32 = AtomicU32::new(0);
const PASSING_MAX: u32 = 8;
/// One at a time asks: the thread that does. 0: none.
static ASKS: AtomicUsize = AtomicUsize::new(0);

/// One thread's turn to ask. No handler of a signal runs during it: one may jump away (`siglongjmp`), and the turn would be
/// that thread's for ever.
struct Turn {
    /// Put back when the turn has ended: see `drop`.
    _signals: sys::BlockedSignals,
}

impl Turn {
    /// Short: others wait for at most one answer. None for whoever has waited too long, and for the handler of a fault (SIGSEGV)
    /// in the thread that has it.
    fn take() -> Option<Self> {
        let (mut tries, thread) = (0u32, sys::thread());
        loop {
            // Only while it tries: whoever waits is not deaf to signals.
            let signals = sys::BlockedSignals::new();
            match ASKS.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Self { _signals: signals }),
                Err(has) if has == thread => return None,
                Err(_) => drop(signals),
            }
            while ASKS.load(Ordering::Relaxed) != 0 {
                tries += 1;
                match tries {
                    0..100 => std::hint::spin_loop(),
                    100..1000 => std::thread::yield_now(),
                    1000..3000 => std::thread::sleep(std::time::Duration::from_millis(1)),
                    _ => return None,
                }
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        ASKS.store(0, Ordering::Release);
    }
}

/// Of the holder's socket, as the kernel has it. None: nobody holds for this program.
fn address() -> Option<&'static [u8]> {
    let find = || {
        let name = std::env::var_os(ENVIRONMENT).filter(|name| !name.is_empty() && name.len() < 107)?;
        let family = libc::sa_family_t::try_from(libc::AF_UNIX).ok()?;
        Some([&family.to_ne_bytes()[..], &[0], name.as_bytes()].concat())
    };
    ADDRESS.get_or_init(find).as_deref()
}

/// Looks where the holder is.
pub fn look_for() {
    address();
    MARK.get_or_init(|| CString::new(std::env::var_os(MARK_ENVIRONMENT)?.as_bytes()).ok());
}

/// Whether somebody holds for this program, who was not given up.
pub fn is_known() -> bool {
    address().is_some() && !GIVEN_UP.load(Ordering::Relaxed)
}

/// Whether this process was executed with more filters for system calls (seccomp) than the supervisor has.
pub fn may_be_forbidden() -> bool {
    let own = sys::relatives::filters(sys::pid());
    own.is_some_and(|own| {
        own > 0 && marked().and_then(sys::relatives::filters).is_none_or(|theirs| own > theirs)
    })
}

/// The table, if this process has it.
pub fn table() -> Option<&'static Table> {
    // SAFETY: null, or from a reference that is good for ever.
    unsafe { TABLE.load(Ordering::Relaxed).as_ref() }
}

/// The same; it is asked for if this process does not have it, once, unless there was no answer that counts.
pub fn attach() -> Option<&'static Table> {
    if let Some(table) = table() {
        return Some(table);
    }
    // A child made by `vfork` would give up for its parent, too.
    if !is_known() || !marks::is_own() {
        return None;
    }
    let table = introduce().and_then(|memory| Table::map(memory.as_fd()).ok());
    match table {
        Some(table) => {
            marks::attached();
            TABLE.store(std::ptr::from_ref(table).cast_mut(), Ordering::SeqCst);
        }
        // Who was only late, or could not be asked for now, is asked again.
        None => {
            if !is_late() && !is_passing() {
                GIVEN_UP.store(true, Ordering::Relaxed);
                show_whose();
            }
        }
    }
    table
}

/// Whether it was late when it was asked last.
fn is_late() -> bool {
    PAUSE_MS.load(Ordering::Relaxed) > 0
}

/// Whether it could not be asked for something that may pass.
fn is_passing() -> bool {
    (1..PASSING_MAX).contains(&PASSING.load(Ordering::Relaxed))
}

/// It could not: it is asked again after a pause.
fn note_passing() {
    if PASSING.fetch_add(1, Ordering::Relaxed) < PASSING_MAX {
        ASKS_AT_MS.store(sys::now_ms() + PAUSE_MIN_MS, Ordering::Relaxed);
    }
}

/// Whether it is not to be asked now.
fn pauses() -> bool {
    let at = ASKS_AT_MS.load(Ordering::Relaxed);
    at > 0 && sys::now_ms() < at
}

/// Whether it has answered in time.
fn note_answer(in_time: bool) {
    if in_time {
        if is_late() || PASSING.load(Ordering::Relaxed) > 0 {
            PASSING.store(0, Ordering::Relaxed);
            PAUSE_MS.store(0, Ordering::Relaxed);
            ASKS_AT_MS.store(0, Ordering::Relaxed);
        }
        return;
    }
    let pause = (PAUSE_MS.load(Ordering::Relaxed) * 2).clamp(PAUSE_MIN_MS, PAUSE_MAX_MS);
    PAUSE_MS.store(pause, Ordering::Relaxed);
    ASKS_AT_MS.store(sys::now_ms() + pause, Ordering::Relaxed);
}

/// Whether this process, or the system, lacks something at the moment, or was interrupted. What else fails does so for good.
fn may_pass(error: &io::Error) -> bool {
    const CODES: [i32; 6] =
        [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EINTR, libc::ETOOMANYREFS];
    error.raw_os_error().is_some_and(|code| CODES.contains(&code))
}

/// Says that this process is there. Gives the table's memory.
fn introduce() -> Option<OwnedFd> {
    let hello = Message { slot: VERSION, ..Message::new(Verb::Attach) };
    let (answer, memory) = ask(&hello, None)?;
    if answer.verb == Verb::Yes && memory.is_none() {
        // There was no room for it.
        note_passing();
    }
    let memory = memory.filter(|_| answer.verb == Verb::Yes)?;
    if let Some((pid, user)) = sys::peer(SOCKET.load(Ordering::Relaxed)) {
        HOLDER_USER.store(user, Ordering::Relaxed);
        HOLDER.store(pid, Ordering::Relaxed);
    }
    let (known, own) = (answer.descriptor, sys::pid());
    NUMBER.store(if known > 0 { known } else { own }, Ordering::Relaxed);
    IS_ELSEWHERE.store(known > 0 && known != own, Ordering::Relaxed);
    Some(memory)
}

/// By which number the holder knows this process: in a PID namespace of its own it has another one there. 0: not known.
pub fn number() -> sys::Pid {
    NUMBER.load(Ordering::Relaxed)
}

/// It is not known from here on.
pub fn forget_number() {
    NUMBER.store(-1, Ordering::Relaxed);
}

/// The same; it is asked for where it is not known.
pub fn ask_number() -> sys::Pid {
    if number() == 0 {
        introduce();
    }
    number()
}

/// Nobody holds for this process any more. The next holder finds it, and those that it forks, by memory of this name, as it
/// finds those that have a table: what it is that listens here would ask that one.
fn show_whose() {
    static SHOWN: AtomicBool = AtomicBool::new(false);
    if let Some(mark) = MARK.get().and_then(Option::as_ref)
        && !SHOWN.swap(true, Ordering::Relaxed)
    {
        sys::map_called(mark);
    }
}

/// The socket: of this process, and not closed by the program, which may have put something else under its number.
fn socket() -> Option<RawFd> {
    let (known, pid) = (SOCKET.load(Ordering::Relaxed), sys::pid());
    let cookie = SOCKET_COOKIE.load(Ordering::Relaxed);
    if known >= 0 && cookie != 0 && sys::cookie(known) == cookie {
        if SOCKET_OF.load(Ordering::Relaxed) == pid {
            return Some(known);
        }
        // The parent's: whoever says something is known by it.
        sys::close(known);
    }
    let patience_ms = if is_late() { LATE_PATIENCE_MS } else { PATIENCE_MS };
    let socket = match sys::connect(address()?, patience_ms) {
        Ok(socket) => socket,
        Err(error) => {
            match error.kind() {
                ErrorKind::WouldBlock => note_answer(false),
                _ if may_pass(&error) => note_passing(),
                _ => note_answer(true),
            }
            return None;
        }
    };
    if !is_holder(socket) {
        note_answer(true);
        sys::close(socket);
        return None;
    }
    SOCKET_COOKIE.store(sys::cookie(socket), Ordering::Relaxed);
    SOCKET_OF.store(pid, Ordering::Relaxed);
    SOCKET.store(socket, Ordering::Relaxed);
    Some(socket)
}

/// Whether it is the supervisor who listens there. When that was killed any user of this machine may take its name, whom the
/// program's sockets are not for.
fn is_holder(socket: RawFd) -> bool {
    let Some((pid, user)) = sys::peer(socket) else { return false };
    let first = Some(HOLDER.load(Ordering::Relaxed)).filter(|first| *first >= 0);
    let is_it = match (first, marked()) {
        (Some(first), _) => pid == first,
        // From a PID namespace of its own it cannot be seen.
        (None, Some(marked)) => pid == 0 || pid == marked,
        (None, None) => true,
    };
    let is_users = match first {
        Some(_) => user == HOLDER_USER.load(Ordering::Relaxed),
        None => user == 0 || sys::users().contains(&user),
    };
    // There it may have another number, or that of all who have none. Asked only then.
    is_it && (is_users || sys::is_in_user_namespace())
}

/// The supervisor, as it has told when it started the program.
fn marked() -> Option<sys::Pid> {
    MARK.get()?.as_ref()?.to_str().ok()?.split(':').nth(1)?.parse().ok()
}

/// Whether an accepted connection comes from a process of the program itself, as those of its parts to each other do.
pub fn is_within(connection: RawFd) -> bool {
    marked().is_some_and(|supervisor| sys::relatives::comes_from_below(connection, supervisor))
}

/// Not to be used any more: what comes late would be taken for the answer to something else.
fn abandon(socket: RawFd) {
    SOCKET.store(-1, Ordering::Relaxed);
    sys::close(socket);
}

/// Asks, and waits for the answer. In a child made by `vfork`, whose memory is its parent's: nothing.
pub fn ask(message: &Message, with: Option<BorrowedFd<'_>>) -> Option<(Message, Option<OwnedFd>)> {
    if !marks::is_own() || pauses() {
        return None;
    }
    let _turn = Turn::take()?;
    // It may have been late meanwhile.
    let socket = if pauses() { None } else { socket() }?;
    let mut bytes = [0; BYTES];
    let with = with.map(|with| with.as_raw_fd());
    let asked = sys::send(socket, &message.encode(), with.as_slice(), true);
    let answered = asked.and_then(|()| sys::receive(socket, &mut bytes, PATIENCE_MS));
    match &answered {
        Ok((length, _)) if *length > 0 => note_answer(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => note_answer(false),
        // It was ended without a word: by one that had no room for it, is gone, or does not know this process.
        _ => note_passing(),
    }
    match answered {
        Ok((length, descriptor)) => match bytes.get(..length).and_then(Message::decode) {
            Some(answer) => Some((answer, descriptor)),
            None => {
                abandon(socket);
                None
            }
        },
        Err(_) => {
            abandon(socket);
            None
        }
    }
}

/// Asks by `ask` until there is an answer, also of a holder that is stopped, or short of processor time. None: it has not
/// answered for long, or is gone. Signals are handled between two tries. The second: it had to wait.
pub fn insist<T>(ask: impl Fn() -> Option<T>) -> (Option<T>, bool) {
    let (until_ms, mut has_waited) = (sys::now_ms() + INSISTS_MS, false);
    loop {
        // Whatever was found out before.
        ASKS_AT_MS.store(0, Ordering::Relaxed);
        let answer = ask();
        let may_answer = is_late() && is_known() && marks::is_own() && sys::now_ms() < until_ms;
        if answer.is_some() || !may_answer {
            return (answer, has_waited);
        }
        has_waited = true;
        sys::pause_us(20_000);
    }
}

/// Says something that is not answered. With `waits` it is not lost where there is no room for it now. Whether it was said.
pub fn say(message: &Message, descriptors: &[RawFd], waits: bool) -> bool {
    if !marks::is_own() {
        return false;
    }
    let Some(_turn) = Turn::take() else { return false };
    let Some(socket) = socket() else { return false };
    let sent = sys::send(socket, &message.encode(), descriptors, waits);
    if sent.as_ref().is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
        abandon(socket);
    }
    sent.is_ok()
}

/// In a child of the program.
pub fn forked() {
    // Whichever thread of the parent has asked is not here.
    ASKS.store(0, Ordering::Relaxed);
    GIVEN_UP.store(false, Ordering::Relaxed);
    PASSING.store(0, Ordering::Relaxed);
    // The first process of a namespace has this number there, and another one above.
    let is_first = sys::pid() == 1;
    if is_first && HOLDER.load(Ordering::Relaxed) > 0 {
        HOLDER.store(0, Ordering::Relaxed);
    }
    let is_elsewhere = IS_ELSEWHERE.load(Ordering::Relaxed) || is_first;
    NUMBER.store(if is_elsewhere { 0 } else { sys::pid() }, Ordering::Relaxed);
}
