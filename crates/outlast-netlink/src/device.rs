//! Network devices, and their addresses (rtnetlink).

use crate::message::{Message, attributes, flags, u32_at};
use crate::socket::Socket;
use std::io;
use std::net::IpAddr;

const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
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

/// Gives a device an address at once, without asking whether others have it.
///
/// # Errors
/// This process may not (`CAP_NET_ADMIN`), or there is no such device.
pub fn add_address(socket: &mut Socket, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
    socket.request(of_address(NEW_ADDRESS, flags::CREATE | flags::REPLACE, index, address, prefix))
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
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
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
