//! Whose socket has an abstract name, where connecting to it does not tell: sock_diag(7), which needs no privilege. /proc/net/unix
//! does not say it, and prints names as they are, with whatever lines somebody puts into them.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 24;
const ANSWER_BYTES: usize = HEADER_BYTES + 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
const ATTRIBUTE_TYPE: u16 = 0x3fff;
const STREAM: u8 = 1;
/// The state of sockets that listen.
const LISTENS: u32 = 10;

/// The user of the socket that listens at this abstract name. None if there is none, or the kernel does not tell: before 5.3, or
/// where such sockets are forbidden.
pub fn of_listener(name: &[u8]) -> Option<u32> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))
            .ok()?;
    send(&socket, &request(), SendFlags::empty()).ok()?;
    let mut answers = vec![0; 64 * 1024];
    loop {
        // The kernel answers at once. Where it does not, somebody else's socket is not worth a wait.
        let (count, _) = recv(&socket, &mut answers[..], RecvFlags::DONTWAIT).ok()?;
        let mut rest = answers.get(..count)?;
        while !rest.is_empty() {
            let length = usize::try_from(u32_at(rest, 0)?).ok()?;
            let message = rest.get(..length)?;
            // The last one, or an error.
            if u16_at(message, 4)? != SOCK_DIAG_BY_FAMILY {
                return None;
            }
            // A socket of another type can have the same name.
            let is_stream = message.get(HEADER_BYTES + 1).copied() == Some(STREAM);
            if let Some((found, user)) = listener(message.get(ANSWER_BYTES..)?)
                && is_stream
                && found.strip_prefix(&[0]) == Some(name)
            {
                return Some(user);
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// For the names and users of all UNIX sockets that listen.
fn request() -> Vec<u8> {
    let mut out = Vec::with_capacity(REQUEST_BYTES);
    out.extend_from_slice(&u32::try_from(REQUEST_BYTES).unwrap_or_default().to_ne_bytes());
    out.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    let family = u8::try_from(AddressFamily::UNIX.as_raw()).unwrap_or_default();
    out.extend_from_slice(&[family, 0, 0, 0]);
    out.extend_from_slice(&(1_u32 << LISTENS).to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(UDIAG_SHOW_NAME | UDIAG_SHOW_UID).to_ne_bytes());
    // No cookie.
    out.extend_from_slice(&[0xff; 8]);
    out
}

/// Name and user, from the attributes of one socket.
fn listener(mut attributes: &[u8]) -> Option<(&[u8], u32)> {
    let (mut name, mut user) = (None, None);
    while !attributes.is_empty() {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..length)?;
        match u16_at(attributes, 2)? & ATTRIBUTE_TYPE {
            UNIX_DIAG_NAME => name = Some(value),
            UNIX_DIAG_UID => user = u32_at(value, 0),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    name.zip(user)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SocketAddrUnix, bind, listen};

    #[test]
    fn the_user_of_a_socket_that_listens_is_known_and_of_no_other() {
        let name = format!("outlast/test-owner/{}", std::process::id()).into_bytes();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new_abstract_name(&name).unwrap()).unwrap();
        assert_eq!(of_listener(&name), None);
        listen(&socket, 0).unwrap();
        assert_eq!(of_listener(&name), Some(crate::admin_folder::own_uid()));
        assert_eq!(of_listener(&name[1..]), None);
        let other =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let of_other = [&name[..], b"/other"].concat();
        bind(&other, &SocketAddrUnix::new_abstract_name(&of_other).unwrap()).unwrap();
        listen(&other, 0).unwrap();
        assert_eq!(of_listener(&of_other), None);
        drop(socket);
        assert_eq!(of_listener(&name), None);
    }

    #[test]
    fn half_an_answer_is_none() {
        let mut attributes = vec![5, 0, 0, 0, b'x', 0, 0, 0, 8, 0, 7, 0, 1, 0, 0, 0];
        assert_eq!(listener(&attributes), Some((&b"x"[..], 1)));
        while attributes.pop().is_some() {
            assert_eq!(listener(&attributes), None);
        }
    }
}
