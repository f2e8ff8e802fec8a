//! Addresses that the program binds to, listens at, or looks for somebody at.

use crate::holder;
use crate::marks;
use crate::shut;
use crate::sys;
use crate::watches;
use outlast_restart::custody::address::Address;
use outlast_restart::custody::message::{ACCEPTS, AddressBytes, IN_USE, INHERITED, IPV6_ONLY, Message, Verb};
use outlast_restart::custody::table::Table;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A process that has no table asks at so many of its first connects: who looks whether anybody listens does so before it begins.
const FIRST_CONNECTS: u32 = 16;

/// Of the sockets that a service manager gives to a program (SD_LISTEN_FDS_START).
const ACTIVATED_FIRST: RawFd = 3;
/// More are not looked at.
const ACTIVATED_MAX: i32 = 1024;
/// How often it is said that the program listens, if that cannot be sent: the holder may have given up a connection.
const LISTEN_TRIES: u32 = 3;
/// Before a process that accepts clients says so once more.
const ACCEPTS_AGAIN_MS: u64 = 100;

/// What has come of it that an address was in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// It still is.
    Nothing,
    /// The program's socket is the one that had it.
    Adopted,
    /// Nobody has it any more: the program can bind.
    Address,
}

/// What the holder is asked for at this address, if it may have a socket there.
fn asked(descriptor: RawFd, address: &[u8]) -> Option<Message> {
    let parsed = Address::parse(address).filter(|address| !address.is_chosen_by_system())?;
    let table = holder::attach()?;
    if !table.may_have(&parsed) {
        return None;
    }
    let slot = if sys::ipv6_only(descriptor) { IPV6_ONLY } else { 0 };
    let cookie = sys::network_cookie(descriptor);
    Some(Message { slot, cookie, address: AddressBytes::new(address)?, ..Message::new(Verb::Bind) })
}

/// A UNIX socket's: what a path means is known to this process alone, as it may be relative, or below a root of its own.
fn folder(address: &[u8]) -> Option<OwnedFd> {
    Address::parse(address)?.path().and_then(|_| sys::folder(address))
}

/// The program binds. Whether its socket listens there by now: one that was left takes its place.
///
/// Not where others may bind to the same port (SO_REUSEPORT): some bind a socket so that never listens, and a listening one
/// in its place would take clients that nobody accepts. [`before_listen`] comes later.
pub fn on_bind(descriptor: RawFd, address: &[u8]) -> bool {
    let _errno = sys::Errno::keep();
    !marks::is_silent() && !sys::shares_port(descriptor) && adopt(descriptor, address)
}

/// The program is about to listen on a socket whose port others may have, too: one that was left takes its place.
pub fn before_listen(descriptor: RawFd) {
    let _errno = sys::Errno::keep();
    if !marks::is_silent()
        && holder::is_known()
        && sys::shares_port(descriptor)
        && !sys::does_listen(descriptor)
    {
        let name = sys::name(descriptor, false);
        adopt(descriptor, name.as_ref());
    }
}

fn adopt(descriptor: RawFd, address: &[u8]) -> bool {
    let ask = || answer_to(&asked(descriptor, address)?, descriptor, address, 0);
    sys::is_stream(descriptor) && ask() == Some(Freed::Adopted)
}

/// None: nobody has answered.
fn answer_to(question: &Message, descriptor: RawFd, address: &[u8], flags: u32) -> Option<Freed> {
    let question = Message { slot: question.slot | flags, ..question.clone() };
    let folder = folder(address);
    // Before: what is answered may take the last descriptor, and to look needs one.
    let watches = sys::epolls::of(descriptor);
    Some(match holder::ask(&question, folder.as_ref().map(AsFd::as_fd))? {
        (answer, Some(socket))
            if answer.verb == Verb::Yes && sys::replace_watched(descriptor, socket.as_fd(), &watches) =>
        {
            // Also if it is closed before it listens.
            watches::lend(descriptor);
            Freed::Adopted
        }
        (answer, None) if answer.verb == Verb::Yes => Freed::Address,
        _ => Freed::Nothing,
    })
}

/// The address is in use. What becomes of it if that was by the holder alone: another process of the program may have listened
/// there just before, or at an address that overlaps this one.
pub fn on_bind_failed(descriptor: RawFd, address: &[u8]) -> Freed {
    let _errno = sys::Errno::keep();
    if marks::is_silent() || !sys::is_stream(descriptor) {
        return Freed::Nothing;
    }
    let Some(parsed) = Address::parse(address).filter(|address| !address.is_chosen_by_system()) else {
        return Freed::Nothing;
    };
    let (freed, has_waited) = holder::insist(|| {
        holder::attach()?.note_address(&parsed);
        answer_to(&asked(descriptor, address)?, descriptor, address, IN_USE)
    });
    match freed {
        // What was asked first may have been heard, and its answer not.
        Some(Freed::Nothing) if has_waited => Freed::Address,
        freed => freed.unwrap_or(Freed::Nothing),
    }
}

/// The program begins. What a service manager has given it (sd_listen_fds(3)) listens already, and many programs do not have it
/// listen once more.
pub fn begin() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    // A filter that the program was executed with may end it for a call that it does not make itself.
    if !holder::is_known() || number("LISTEN_PID") != Some(sys::pid()) || holder::may_be_forbidden() {
        return;
    }
    let count = number("LISTEN_FDS").unwrap_or(0).clamp(0, ACTIVATED_MAX);
    for descriptor in (ACTIVATED_FIRST..).take(usize::try_from(count).unwrap_or(0)) {
        if sys::does_listen(descriptor) {
            tell_listens(descriptor, INHERITED);
        }
    }
}

/// The program accepts a client, and the holder has not heard yet that it listens anywhere: it was started with that socket, in a
/// way of its own, or that could not be said. Not waited for: it is said again with a later client.
pub fn on_inherited(descriptor: RawFd) {
    static SAYS_AT_MS: AtomicU64 = AtomicU64::new(0);
    let now_ms = sys::now_ms();
    if !holder::is_known() || !sys::is_stream(descriptor) || now_ms < SAYS_AT_MS.load(Ordering::Relaxed) {
        return;
    }
    SAYS_AT_MS.store(now_ms + ACCEPTS_AGAIN_MS, Ordering::Relaxed);
    let name = sys::name(descriptor, false);
    let Some(address) = AddressBytes::new(name.as_ref()) else { return };
    holder::say(
        &Message { descriptor, address, slot: ACCEPTS, ..Message::new(Verb::Listen) },
        &[descriptor],
        false,
    );
}

/// The program listens.
pub fn on_listen(descriptor: RawFd) {
    tell_listens(descriptor, 0);
}

fn tell_listens(descriptor: RawFd, flags: u32) {
    let _errno = sys::Errno::keep();
    if marks::is_silent() {
        marks::listens_untold();
        return;
    }
    if !sys::is_stream(descriptor) {
        return;
    }
    let name = sys::name(descriptor, false);
    let name = name.as_ref();
    let Some((parsed, address)) = Address::parse(name).zip(AddressBytes::new(name)) else { return };
    let table = holder::attach();
    if !holder::is_known() {
        return;
    }
    if let Some(table) = table {
        // A process that closes it and binds to the same address at once has to ask, though the holder may not know of it yet.
        table.note_address(&parsed);
    }
    match parsed {
        Address::Internet { .. } => marks::listens(descriptor),
        Address::Unix { .. } => marks::listens_unix(descriptor),
    }
    // Not waited for: what is under way is read, also if this process crashes right now, or if the holder is late.
    let message = Message { descriptor, address, slot: flags, ..Message::new(Verb::Listen) };
    let folder = folder(name);
    let descriptors = [Some(descriptor), folder.as_ref().map(AsRawFd::as_raw_fd)];
    let count = descriptors.iter().flatten().count();
    let descriptors = descriptors.map(Option::unwrap_or_default);
    // Where it cannot be said at all, the first client is the next chance.
    (0..LISTEN_TRIES).any(|_| holder::say(&message, descriptors.get(..count).unwrap_or_default(), true));
}

/// The program shuts a socket down. Whether it believes so: a listening one is the holder's as well, and would refuse clients
/// who wait for the program that takes this one's place. This process has one from there on that does not listen, and accepts
/// nobody.
///
/// Not where threads or other processes may wait for clients, who are to be told, and where the socket may be known to an epoll,
/// which would not know the other one: then they hear of a shutdown that is none (`shut`). Where that cannot be, the holder has the
/// socket listen again as soon as it hears of its end, and who waits in the queue is lost. A process that accepts clients itself,
/// and has children of which none ever did, has nobody to tell. Takes no memory: it may be called in the handler of a signal.
pub fn on_shutdown(descriptor: RawFd, how: libc::c_int) -> bool {
    let Some(table) = holder::table().filter(|table| table.is_replaced()) else { return false };
    if !matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) || marks::is_silent() || !marks::is_own() {
        return false;
    }
    let _errno = sys::Errno::keep();
    let is_alone = marks::listens_alone(descriptor) || marks::accepts_alone(descriptor, table);
    if !is_alone || !sys::does_listen(descriptor) || !sys::is_only_thread() || sys::epolls::has_any() {
        return shut::pretend(descriptor, table);
    }
    sys::new_of_tcp(descriptor).is_some_and(|other| sys::replace(descriptor, other.as_fd()))
}

/// The program has shut a socket down. Processes that wait for clients there are told so as long as it does not listen, and the
/// holder may have it listen again before they run: so it is shut down some more times.
pub fn after_shutdown(descriptor: RawFd, shut_down: impl Fn()) {
    const TIMES: u32 = 100;
    if !holder::table().is_some_and(Table::is_replaced)
        || marks::is_silent()
        || !marks::has_shared(descriptor)
    {
        return;
    }
    let _errno = sys::Errno::keep();
    for _ in 0..TIMES {
        sys::pause_us(200);
        if sys::does_listen(descriptor) {
            shut_down();
        }
    }
}

/// The program connects. Whether nobody is there but the holder: some look so whether another of them runs, or whether their port
/// is free, which may be the first that they do.
pub fn on_connect(descriptor: RawFd, address: &[u8]) -> bool {
    let is_internet = match family(address) {
        libc::AF_UNIX => false,
        libc::AF_INET | libc::AF_INET6 => true,
        _ => return false,
    };
    // As a rule that is all: workers may connect to another part of the program for every request.
    if !may_be_untaken() || marks::is_silent() {
        return false;
    }
    let _errno = sys::Errno::keep();
    if is_internet && !sys::is_stream(descriptor) {
        return false;
    }
    let Some(parsed) = Address::parse(address) else { return false };
    let may_be_held = holder::table().map_or_else(holder::is_known, |table| table.may_have(&parsed));
    let Some(bytes) = AddressBytes::new(address).filter(|_| may_be_held) else { return false };
    let cookie = sys::network_cookie(descriptor);
    let question = Message { cookie, address: bytes, ..Message::new(Verb::Probe) };
    let folder = folder(address);
    holder::ask(&question, folder.as_ref().map(AsFd::as_fd))
        .is_some_and(|(answer, _)| answer.verb == Verb::Yes)
}

fn family(address: &[u8]) -> libc::c_int {
    let family = address.get(..2).and_then(|family| family.try_into().ok());
    family.map_or(libc::AF_UNSPEC, |family| libc::c_int::from(u16::from_ne_bytes(family)))
}

/// Whether there may be listening sockets that the holder alone has.
fn may_be_untaken() -> bool {
    static CONNECTS: AtomicU32 = AtomicU32::new(0);
    match holder::table() {
        Some(table) => table.has_untaken(),
        None => {
            holder::is_known()
                && CONNECTS.load(Ordering::Relaxed) < FIRST_CONNECTS
                && CONNECTS.fetch_add(1, Ordering::Relaxed) < FIRST_CONNECTS
        }
    }
}
