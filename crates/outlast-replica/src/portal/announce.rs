//! The portal's address is at this machine from now on: all of its network is told.

use super::sys;
use etherparse::PacketBuilder;
use outlast_netlink::device::{self, Device, Mac};
use outlast_netlink::{Protocol, Socket as Netlink};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

/// Of Ethernet.
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const BROADCAST: Mac = [0xff; 6];
/// Of all nodes of a link, as Ethernet has it (RFC 2464, section 7).
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A device that may have the portal's address. What it needs is opened beforehand: opening a socket for packets, or closing it, can
/// take the kernel 20 ms.
#[derive(Debug)]
pub struct Portal {
    address: IpAddr,
    device: Device,
    mac: Mac,
    netlink: Netlink,
    packets: Socket,
}

/// Longer than a busy machine keeps a process waiting. Until it is over, the kernel of a process that has died answers ARP: what its successor
/// announces outweighs that.
pub const VALID: Duration = Duration::from_secs(5);

impl Portal {
    /// Of this device, in the calling thread's network namespace. Nothing is changed yet.
    ///
    /// # Errors
    /// There is no such device, or it has no address of Ethernet, or this process may not (`CAP_NET_ADMIN`, `CAP_NET_RAW`).
    pub fn open(address: IpAddr, device: &str) -> io::Result<Self> {
        let mut netlink = Netlink::open(Protocol::Route)?;
        let device = device::find(&mut netlink, device)?;
        let mac = device.mac.ok_or(io::ErrorKind::Unsupported)?;
        // Without a protocol it receives nothing.
        let packets = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        Ok(Self { address, device, mac, netlink, packets })
    }

    fn prefix(&self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Takes the address, for [`VALID`]: when this process dies it goes by itself, and nobody else on this machine has to know. To be
    /// said again and again.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&mut self) -> io::Result<()> {
        let prefix = self.prefix();
        device::lend_address(&mut self.netlink, self.device.index, self.address, prefix, VALID)
    }

    /// Gives it up, if this machine has it. Nobody is told: whoever has it from now on says so.
    ///
    /// # Errors
    /// The kernel's.
    pub fn give_up(&mut self) -> io::Result<()> {
        let prefix = self.prefix();
        match device::remove_address(&mut self.netlink, self.device.index, self.address, prefix) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(()),
            given_up => given_up,
        }
    }

    /// Tells the network that the address is here. Again after a while: what is sent once may be lost.
    ///
    /// # Errors
    /// It cannot be sent.
    pub fn announce(&self) -> io::Result<()> {
        match self.address {
            IpAddr::V4(address) => {
                // RFC 5227, section 3, and for those who only heed answers, an answer that nobody has asked for.
                for operation in [1, 2] {
                    self.send(ARP, BROADCAST, &arp(self.mac, address, operation))?;
                }
                Ok(())
            }
            IpAddr::V6(address) => self.send(IPV6, ALL_NODES_MAC, &advertisement(self.mac, address)?),
        }
    }

    fn send(&self, protocol: u16, to: Mac, packet: &[u8]) -> io::Result<()> {
        sys::send_at_device(self.packets.as_fd(), self.device.index, protocol, to, packet)
    }
}

/// RFC 826: the sender's address is asked for, or told.
fn arp(mac: Mac, address: Ipv4Addr, operation: u8) -> Vec<u8> {
    const OF_ETHERNET_AND_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
    let target = if operation == 1 { [0; 6] } else { mac };
    let ends = [&mac[..], &address.octets(), &target, &address.octets()];
    [&OF_ETHERNET_AND_IPV4[..], &[0, operation], &ends.concat()].concat()
}

/// RFC 4861, section 7.2.6: a neighbour advertisement that nobody has asked for, which overrides what is known.
fn advertisement(mac: Mac, address: Ipv6Addr) -> io::Result<Vec<u8>> {
    const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    const OVERRIDE: [u8; 4] = [0x20, 0, 0, 0];
    const TARGET_ADDRESS: [u8; 2] = [2, 1];
    let body = [&address.octets()[..], &TARGET_ADDRESS, &mac].concat();
    let icmp = PacketBuilder::ipv6(address.octets(), ALL_NODES.octets(), 255).icmpv6_raw(
        NEIGHBOUR_ADVERTISEMENT,
        0,
        OVERRIDE,
    );
    let mut packet = Vec::with_capacity(icmp.size(body.len()));
    icmp.write(&mut packet, &body).map_err(io::Error::other)?;
    Ok(packet)
}
