//! What the kernel holds for TCP connections: of one, of the service at its other end, of the whole machine; and whether
//! a connection may take more by itself.

use super::tcp::{get_option, set_option};
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// Of `struct inet_diag_req_v2` and `struct inet_diag_msg` (linux/inet_diag.h).
const HEADER_BYTES: usize = 16;
const ID_BYTES: usize = 48;
const REPLY_BYTES: usize = 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_SKMEMINFO: u16 = 7;

/// What `SO_MEMINFO` and `INET_DIAG_SKMEMINFO` tell (linux/sock_diag.h), as far as it is asked for here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MemInfo {
    received: u32,
    receive_max: u32,
    sent: u32,
    send_max: u32,
    /// For a moment the kernel may have charged more than it has reserved.
    reserved: i32,
    send_queue: u32,
}

impl MemInfo {
    fn held_bytes(self) -> u64 {
        (u64::from(self.received) + u64::from(self.send_queue)).saturating_add_signed(self.reserved.into())
    }
}

/// What the kernel holds for a connection in both directions. Since Linux 4.12.
pub(crate) fn held_bytes(fd: impl AsFd) -> io::Result<u64> {
    let (info, _) =
        get_option(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, MemInfo::default())?;
    Ok(info.held_bytes())
}

/// Whether the kernel may give a connection a larger receive buffer than it has: SO_BUF_LOCK, since Linux 5.14. Before,
/// it always may.
pub(crate) fn let_receive_buffer_grow(fd: impl AsFd, may: bool) -> io::Result<()> {
    const SO_BUF_LOCK: libc::c_int = 72;
    const SOCK_RCVBUF_LOCK: libc::c_int = 2;
    let lock = if may { 0 } else { SOCK_RCVBUF_LOCK };
    set_option(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_BUF_LOCK, lock)
}

/// A descriptor that somebody else owns, and keeps open as long as it is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent(RawFd);

impl Lent {
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Self {
        Self(fd.as_raw_fd())
    }
}

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the owner takes it back before it closes the descriptor: see `Engine::lend_service`.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// What TCP holds on the whole machine, and from where on its kernel slows connections down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpMemory {
    pub(crate) used_bytes: u64,
    pub(crate) pressure_bytes: u64,
}

impl TcpMemory {
    /// None where /proc does not tell.
    pub(crate) fn now() -> Option<Self> {
        static PRESSURE_PAGES: OnceLock<Option<u64>> = OnceLock::new();
        // Opened each time: a program that counts its descriptors finds as many as before.
        let text = std::fs::read_to_string("/proc/self/net/sockstat").ok()?;
        // Asked for when a descriptor was free for the other one: what is not found then is not there.
        let pressure_pages = (*PRESSURE_PAGES.get_or_init(pressure_pages))?;
        let used_pages = tcp_pages(&text)?;
        let page_bytes = page_bytes();
        Some(Self { used_bytes: used_pages * page_bytes, pressure_bytes: pressure_pages * page_bytes })
    }
}

fn page_bytes() -> u64 {
    // SAFETY: asks for a number, touches nothing.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// `TCP: inuse 4 orphan 0 tw 0 alloc 5 mem 12`: counted for the machine, in whatever network namespace it is read.
fn tcp_pages(sockstat: &str) -> Option<u64> {
    let line = sockstat.lines().find(|line| line.starts_with("TCP:"))?;
    line.split_whitespace().skip_while(|word| *word != "mem").nth(1)?.parse().ok()
}

/// The second number of `net.ipv4.tcp_mem`. In a container it cannot be seen: by default it is a sixteenth of the memory.
fn pressure_pages() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok();
    let told = text.and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
    told.or_else(|| {
        // SAFETY: asks for a number, touches nothing.
        u64::try_from(unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) }).ok().map(|pages| pages / 16)
    })
}

/// Asks the kernel about the other ends of connections that stay on this machine (sock_diag; needs no privilege).
#[derive(Debug)]
pub(crate) struct OtherEnds(Option<OwnedFd>);

impl OtherEnds {
    pub(crate) fn open() -> Self {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved; the descriptor is checked and owned right away.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
        // SAFETY: a fresh descriptor that nobody else owns.
        Self((fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// What the kernel holds for the other end of a connection. None if that is on another machine, in another network
    /// namespace, or the kernel does not tell.
    pub(crate) fn held_bytes(&self, fd: impl AsFd) -> Option<u64> {
        let socket = self.0.as_ref()?;
        let connection = socket2::SockRef::from(&fd);
        let own = connection.local_addr().ok()?.as_socket()?;
        let peer = connection.peer_addr().ok()?.as_socket()?;
        if own.ip() != peer.ip() && !peer.ip().to_canonical().is_loopback() {
            return None;
        }
        let request = request(peer, own);
        let mut reply = [0; 512];
        // SAFETY: both buffers are live for the lengths given; the kernel answers a request within `send`, so that `recv`
        // need not wait.
        let count = unsafe {
            let fd = socket.as_raw_fd();
            if libc::send(fd, request.as_ptr().cast(), request.len(), 0) < 0 {
                return None;
            }
            libc::recv(fd, reply.as_mut_ptr().cast(), reply.len(), libc::MSG_DONTWAIT)
        };
        parse(reply.get(..usize::try_from(count).ok()?)?).map(MemInfo::held_bytes)
    }
}

fn request(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let family = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let address = |ip: IpAddr| {
        let mut bytes = [0; 16];
        match ip {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        bytes
    };
    let length = u32::try_from(HEADER_BYTES + 8 + ID_BYTES).unwrap_or_default();
    let flags = u16::try_from(libc::NLM_F_REQUEST).unwrap_or_default();
    let mut out = Vec::with_capacity(HEADER_BYTES + 8 + ID_BYTES);
    out.extend_from_slice(&length.to_ne_bytes());
    out.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    let byte = |number: i32| u8::try_from(number).unwrap_or_default();
    out.extend_from_slice(&[byte(family), byte(libc::IPPROTO_TCP), 1 << (INET_DIAG_SKMEMINFO - 1), 0]);
    // In whatever state it is.
    out.extend_from_slice(&u32::MAX.to_ne_bytes());
    out.extend_from_slice(&from.port().to_be_bytes());
    out.extend_from_slice(&to.port().to_be_bytes());
    out.extend_from_slice(&address(from.ip()));
    out.extend_from_slice(&address(to.ip()));
    out.extend_from_slice(&[0; 4]);
    // No cookie.
    out.extend_from_slice(&[0xff; 8]);
    out
}

fn parse(reply: &[u8]) -> Option<MemInfo> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(reply.get(at..at + 2)?.try_into().ok()?));
    if u16_at(4)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut at = HEADER_BYTES + REPLY_BYTES;
    loop {
        let (length, kind) = (usize::from(u16_at(at)?), u16_at(at + 2)?);
        if kind == INET_DIAG_SKMEMINFO {
            let value = reply.get(at + 4..at + length)?;
            let word = |index: usize| {
                let bytes = value.get(index * size_of::<u32>()..)?.first_chunk()?;
                Some(u32::from_ne_bytes(*bytes))
            };
            return Some(MemInfo {
                received: word(0)?,
                receive_max: word(1)?,
                sent: word(2)?,
                send_max: word(3)?,
                reserved: word(4)?.cast_signed(),
                send_queue: word(5)?,
            });
        }
        at += length.next_multiple_of(4).max(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn tcp_s_pages_are_found() {
        let text = "sockets: used 108\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 77\nUDP: inuse 0 mem 3\n";
        assert_eq!(tcp_pages(text), Some(77));
        assert_eq!(tcp_pages("sockets: used 108\n"), None);
        let now = TcpMemory::now().unwrap();
        assert!(now.pressure_bytes > 0, "{now:?}");
    }

    /// Counted as a number without a sign it is 4 GiB, and every session without a link would be given up.
    #[test]
    fn what_is_charged_before_it_is_reserved_is_not_much() {
        let info = MemInfo { received: 8192, send_queue: 1024, reserved: -4352, ..MemInfo::default() };
        assert_eq!(info.held_bytes(), 4864);
        assert_eq!(MemInfo { reserved: -1, ..MemInfo::default() }.held_bytes(), 0);
        let mut answer = vec![0; HEADER_BYTES + REPLY_BYTES];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer.extend_from_slice(&[28, 0, 7, 0]);
        for word in [8192_u32, 0, 0, 0, (-4352_i32).cast_unsigned(), 1024] {
            answer.extend_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(parse(&answer).unwrap().held_bytes(), 4864);
    }

    /// The kernel tells of both ends what they hold; a buffer that may not grow does not.
    #[test]
    fn both_ends_are_known_and_a_locked_buffer_stays_as_it_is() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut writer = listener.accept().unwrap().0;
            let others = OtherEnds::open();
            let before = others.held_bytes(&reader).unwrap();
            let_receive_buffer_grow(&reader, false).unwrap();
            let (_, buffer_bytes) = crate::sys::buffer_bytes(&reader).unwrap();
            writer.set_nonblocking(true).unwrap();
            while writer.write(&[0; 64 << 10]).is_ok() {}
            assert_eq!(crate::sys::buffer_bytes(&reader).unwrap().1, buffer_bytes);
            assert!(held_bytes(&reader).unwrap() > 0);
            assert!(others.held_bytes(&reader).unwrap() > before.max(100_000));
            assert_eq!(others.held_bytes(&reader).unwrap(), held_bytes(&writer).unwrap());
        }
    }

    #[test]
    fn damaged_answers_are_none() {
        assert!(parse(&[]).is_none());
        let mut answer = vec![0; HEADER_BYTES + REPLY_BYTES];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert!(parse(&answer).is_none());
        answer.extend_from_slice(&[200, 0, 7, 0, 1]);
        assert!(parse(&answer).is_none());
        answer.truncate(HEADER_BYTES + REPLY_BYTES);
        answer.extend_from_slice(&[0; 64]);
        assert!(parse(&answer).is_none());
    }
}
