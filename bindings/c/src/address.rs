//! Addresses as C has them (`struct sockaddr_in` and `sockaddr_in6` in ip(7), ipv6(7)).

use crate::error::own;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Of as many bytes as its family has; more are ignored.
pub(crate) fn parse(address: &[u8]) -> io::Result<SocketAddr> {
    let family = u16::from_ne_bytes(field(address, 0)?);
    match i32::from(family) {
        libc::AF_INET => {
            let port = u16::from_be_bytes(field(address, 2)?);
            Ok((Ipv4Addr::from(field(address, 4)?), port).into())
        }
        libc::AF_INET6 => {
            let port = u16::from_be_bytes(field(address, 2)?);
            let flow = u32::from_be_bytes(field(address, 4)?);
            let scope = u32::from_ne_bytes(field(address, 24)?);
            Ok(SocketAddrV6::new(Ipv6Addr::from(field::<16>(address, 8)?), port, flow, scope).into())
        }
        _ => {
            let why = format!("address family {family}: only AF_INET and AF_INET6 can be listened at");
            Err(own(libc::EAFNOSUPPORT, why))
        }
    }
}

fn field<const LENGTH: usize>(address: &[u8], begin: usize) -> io::Result<[u8; LENGTH]> {
    let too_short =
        || own(libc::EINVAL, format!("an address of {} bytes is too short for its family", address.len()));
    address.get(begin..).and_then(|rest| rest.first_chunk()).copied().ok_or_else(too_short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn addresses_are_where_c_has_them() {
        let (four, six) =
            (offset_of!(libc::sockaddr_in, sin_addr), offset_of!(libc::sockaddr_in6, sin6_addr));
        assert_eq!((offset_of!(libc::sockaddr_in, sin_port), four), (2, 4));
        let [flow, scope] =
            [offset_of!(libc::sockaddr_in6, sin6_flowinfo), offset_of!(libc::sockaddr_in6, sin6_scope_id)];
        assert_eq!((offset_of!(libc::sockaddr_in6, sin6_port), flow, six, scope), (2, 4, 8, 24));
    }

    #[test]
    fn both_families_are_understood_and_no_other_one() {
        let mut bytes = [0; 28];
        bytes[..2].copy_from_slice(&u16::try_from(libc::AF_INET).unwrap().to_ne_bytes());
        bytes[2..8].copy_from_slice(&[31, 144, 127, 0, 0, 1]);
        assert_eq!(parse(&bytes[..16]).unwrap(), "127.0.0.1:8080".parse().unwrap());
        assert!(parse(&bytes[..7]).is_err());
        bytes[..2].copy_from_slice(&u16::try_from(libc::AF_INET6).unwrap().to_ne_bytes());
        bytes[4..].fill(0);
        bytes[23] = 1;
        assert_eq!(parse(&bytes).unwrap(), "[::1]:8080".parse().unwrap());
        bytes[24..].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!(parse(&bytes).unwrap(), "[::1%7]:8080".parse().unwrap());
        assert!(parse(&bytes[..27]).is_err());
        bytes[..2].copy_from_slice(&u16::try_from(libc::AF_UNIX).unwrap().to_ne_bytes());
        assert!(parse(&bytes).unwrap_err().to_string().contains("AF_INET6"));
        assert!(parse(&[]).is_err());
    }
}
