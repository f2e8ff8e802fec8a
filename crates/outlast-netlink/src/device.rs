//! Network devices, and their addresses (rtnetlink).

use crate::message::{Message, attributes, flags, u32_at};
use crate::socket::Socket;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// Of `struct ifaddrmsg`.
const ADDRESS_BYTES: usize = 8;
const ADDRESS_INDEX_AT: usize = 4;
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
/// Of `struct ifinfomsg`.
const LINK_BYTES: usize = 16;
const LINK_INDEX_AT: usize = 4;

/// A hardware address of Ethernet.
pub type Mac = [u8; 6];

/// A network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's number.
    pub index: u32,
    /// None: it has none, or another kind of them.
    pub mac: Option<Mac>,
}

/// The device of this name.
///
/// # Errors
/// There is none.
pub fn find(socket: &mut Socket, name: &str) -> io::Result<Device> {
    let mut message = Message::new(GET_LINK, 0, &[0; LINK_BYTES]);
    message.text(LINK_NAME, name);
    let replies = socket.ask(message)?;
    let body = &replies.first().ok_or(io::ErrorKind::NotFound)?.body;
    let mut all = attributes(body.get(LINK_BYTES..).unwrap_or_default());
    let mac = all.find(|(kind, _)| *kind == LINK_ADDRESS).and_then(|(_, value)| value.try_into().ok());
    Ok(Device { index: u32_at(body, LINK_INDEX_AT), mac })
}

/// The name of the device that has this address.
///
/// # Errors
/// There is none.
pub fn with_address(socket: &mut Socket, address: IpAddr) -> io::Result<String> {
    let replies = socket.dump(Message::new(GET_ADDRESS, 0, &[0; ADDRESS_BYTES]))?;
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let has_it = |body: &[u8]| {
        // Of a link between two the other end's address is there, too.
        let own = attributes(body.get(ADDRESS_BYTES..).unwrap_or_default());
        let own: Vec<_> = own.filter(|(kind, _)| [ADDRESS, LOCAL].contains(kind)).collect();
        let local = own.iter().find(|(kind, _)| *kind == LOCAL).or(own.first());
        local.is_some_and(|(_, value)| *value == octets)
    };
    let found = replies.iter().find(|reply| has_it(&reply.body)).ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut fixed = [0; LINK_BYTES];
    let index = u32_at(&found.body, ADDRESS_INDEX_AT);
    fixed[LINK_INDEX_AT..LINK_INDEX_AT + 4].copy_from_slice(&index.to_ne_bytes());
    let replies = socket.ask(Message::new(GET_LINK, 0, &fixed))?;
    let body = &replies.first().ok_or(io::ErrorKind::NotFound)?.body;
    let mut all = attributes(body.get(LINK_BYTES..).unwrap_or_default());
    let name = all.find(|(kind, _)| *kind == LINK_NAME).map(|(_, value)| value);
    let name = name.and_then(|name| name.strip_suffix(&[0])).ok_or(io::ErrorKind::InvalidData)?;
    String::from_utf8(name.to_vec()).map_err(io::Error::other)
}

/// Gives a device an address at once, without asking whether others have it.
///
/// # Errors
/// This process may not (`CAP_NET_ADMIN`), or there is no such device.
pub fn add_address(socket: &mut Socket, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
    socket.request(of_address(NEW_ADDRESS, flags::CREATE | flags::REPLACE, index, address, prefix))
}

/// The same for a time, which begins again whenever this is called: then the kernel takes it away by itself.
///
/// # Errors
/// As above.
pub fn lend_address(
    socket: &mut Socket,
    index: u32,
    address: IpAddr,
    prefix: u8,
    valid: Duration,
) -> io::Result<()> {
    const LIFETIMES: u16 = 6;
    let seconds = u32::try_from(valid.as_secs()).unwrap_or(u32::MAX).max(1);
    let mut message = of_address(NEW_ADDRESS, flags::CREATE | flags::REPLACE, index, address, prefix);
    // An address of IPv6 that is not preferred is used by nobody who does not ask for it (RFC 6724, section 5, rule 3). With IPv4 the routes say that.
    let preferred = if address.is_ipv6() { 0 } else { seconds };
    // The two others are the kernel's.
    let lifetimes = [preferred, seconds, 0, 0].map(u32::to_ne_bytes).concat();
    message.attribute(LIFETIMES, &lifetimes);
    socket.request(message)
}

/// Takes an address from a device.
///
/// # Errors
/// It has none such (`EADDRNOTAVAIL`), or this process may not.
pub fn remove_address(socket: &mut Socket, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
    socket.request(of_address(DELETE_ADDRESS, 0, index, address, prefix))
}

fn of_address(kind: u16, flags: u16, index: u32, address: IpAddr, prefix: u8) -> Message {
    const NO_DUPLICATE_DETECTION: u8 = 2;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    let (family, octets) = match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    };
    let mut fixed = [family, prefix, NO_DUPLICATE_DETECTION, 0, 0, 0, 0, 0];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut message = Message::new(kind, flags, &fixed);
    message.attribute(LOCAL, &octets).attribute(ADDRESS, &octets);
    message
}
