//! Devices, addresses, neighbours, routes and the black hole, through rtnetlink.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use outlast_netlink::{Message, Protocol, Socket, attributes, device, flags, u32_at};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_METRICS: u16 = 8;
const RTA_CACHEINFO: u16 = 12;
const RTAX_CC_ALGO: u16 = 16;
const RT_TABLE_MAIN: u8 = 254;
const RT_TABLE_LOCAL: u8 = 255;

const IFF_UP: u32 = 1;

/// The state of a network device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceState {
    pub(crate) up: bool,
    pub(crate) running: bool,
}

pub(crate) use outlast_netlink::device::Mac;

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).unwrap_or_default()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

fn interface_info(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut info = [0; 16];
    info[4..8].copy_from_slice(&index.to_ne_bytes());
    info[8..12].copy_from_slice(&flags.to_ne_bytes());
    info[12..16].copy_from_slice(&change.to_ne_bytes());
    info
}

/// What one end of a new veth pair is to be.
pub(crate) struct VethEnd<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: Mac,
}

/// rtnetlink in one network namespace.
#[derive(Debug)]
pub(crate) struct Routing {
    socket: Socket,
}

impl Routing {
    /// Opens it in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// Creates a veth pair: `here`, and `there` in the namespace `peer`.
    pub(crate) fn add_veth(&mut self, here: &VethEnd, there: &VethEnd, peer: BorrowedFd) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, flags::CREATE | flags::EXCL, &interface_info(0, 0, 0));
        message.text(IFLA_IFNAME, here.name).attribute(IFLA_ADDRESS, &here.mac).nest(IFLA_LINKINFO, |m| {
            m.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |m| {
                m.nest(VETH_INFO_PEER, |m| {
                    let fd = u32::try_from(peer.as_raw_fd()).unwrap_or(u32::MAX);
                    m.raw(&interface_info(0, 0, 0));
                    m.text(IFLA_IFNAME, there.name)
                        .attribute(IFLA_ADDRESS, &there.mac)
                        .number(IFLA_NET_NS_FD, fd);
                });
            });
        });
        self.socket.request(message)
    }

    /// Creates a bridge.
    pub(crate) fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, flags::CREATE | flags::EXCL, &interface_info(0, 0, 0));
        message.text(IFLA_IFNAME, name).nest(IFLA_LINKINFO, |m| {
            m.text(IFLA_INFO_KIND, "bridge");
        });
        self.socket.request(message)
    }

    /// Makes the device `index` a port of the bridge `bridge`.
    pub(crate) fn set_master(&mut self, index: u32, bridge: u32) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0, &interface_info(index, 0, 0));
        message.number(IFLA_MASTER, bridge);
        self.socket.request(message)
    }

    /// Switches the device `index` on or off.
    pub(crate) fn set_up(&mut self, index: u32, up: bool) -> io::Result<()> {
        let on = if up { IFF_UP } else { 0 };
        self.socket.request(Message::new(RTM_NEWLINK, 0, &interface_info(index, on, IFF_UP)))
    }

    /// Sets the largest packet and the transmit queue of the device `index`.
    pub(crate) fn set_sizes(&mut self, index: u32, mtu: u32, queue_packets: u32) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, 0, &interface_info(index, 0, 0));
        message.number(IFLA_MTU, mtu).number(IFLA_TXQLEN, queue_packets);
        self.socket.request(message)
    }

    /// The number of the device `name`.
    pub(crate) fn device_index(&mut self, name: &str) -> io::Result<u32> {
        let mut message = Message::new(RTM_GETLINK, 0, &interface_info(0, 0, 0));
        message.text(IFLA_IFNAME, name);
        Ok(u32_at(&self.device(message)?, 4))
    }

    /// Whether the device `index` is switched on, and whether it can carry packets.
    pub(crate) fn device_state(&mut self, index: u32) -> io::Result<DeviceState> {
        const IFF_RUNNING: u32 = 0x40;
        let flags = u32_at(&self.device(Message::new(RTM_GETLINK, 0, &interface_info(index, 0, 0)))?, 8);
        Ok(DeviceState { up: flags & IFF_UP != 0, running: flags & IFF_RUNNING != 0 })
    }

    fn device(&mut self, question: Message) -> io::Result<Vec<u8>> {
        let answer = self.socket.ask(question)?.into_iter().next();
        answer.map(|reply| reply.body).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// Gives the device `index` an address, at once (no duplicate address detection).
    pub(crate) fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        device::add_address(&mut self.socket, index, address, prefix)
    }

    /// Takes an address from the device `index`.
    pub(crate) fn remove_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        device::remove_address(&mut self.socket, index, address, prefix)
    }

    /// Says once and for all which hardware address `address` has, so that no outage can turn into
    /// "host unreachable" for want of an answer.
    pub(crate) fn set_neighbour(&mut self, index: u32, address: IpAddr, mac: Mac) -> io::Result<()> {
        const NUD_PERMANENT: u16 = 0x80;
        const NDA_DST: u16 = 1;
        const NDA_LLADDR: u16 = 2;
        let mut fixed = [0; 12];
        fixed[0] = family(address);
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        fixed[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
        let mut message = Message::new(RTM_NEWNEIGH, flags::CREATE | flags::REPLACE, &fixed);
        message.attribute(NDA_DST, &octets(address)).attribute(NDA_LLADDR, &mac);
        self.socket.request(message)
    }

    /// Routes `destination/prefix` (prefix 0: everything) through `gateway` on the device `index`.
    pub(crate) fn set_route(
        &mut self,
        destination: IpAddr,
        prefix: u8,
        gateway: IpAddr,
        index: u32,
    ) -> io::Result<()> {
        self.route(RTM_NEWROUTE, flags::CREATE | flags::REPLACE, destination, prefix, gateway, index)
    }

    /// Removes what [`Self::set_route`] set.
    pub(crate) fn remove_route(
        &mut self,
        destination: IpAddr,
        prefix: u8,
        gateway: IpAddr,
        index: u32,
    ) -> io::Result<()> {
        self.route(RTM_DELROUTE, 0, destination, prefix, gateway, index)
    }

    fn route(
        &mut self,
        kind: u16,
        flags: u16,
        destination: IpAddr,
        prefix: u8,
        gateway: IpAddr,
        index: u32,
    ) -> io::Result<()> {
        const RTPROT_STATIC: u8 = 4;
        const RTN_UNICAST: u8 = 1;
        let fixed =
            [family(destination), prefix, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, 0, RTN_UNICAST, 0, 0, 0, 0];
        let mut message = Message::new(kind, flags, &fixed);
        if prefix > 0 {
            message.attribute(RTA_DST, &octets(destination));
        }
        message.attribute(RTA_GATEWAY, &octets(gateway)).number(RTA_OIF, index);
        self.socket.request(message)
    }

    /// Makes connections over every route there is, local ones included, use this congestion control.
    /// Routes that the kernel does not let us change are left alone.
    pub(crate) fn set_congestion_control(&mut self, algorithm: &str) -> io::Result<()> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut fixed = [0; 12];
            fixed[0] = u8::try_from(family).unwrap_or_default();
            for route in self.socket.dump(Message::new(RTM_GETROUTE, 0, &fixed))? {
                let Some(message) = with_congestion_control(route.kind, &route.body, algorithm) else {
                    continue;
                };
                if let Err(error) = self.socket.request(message) {
                    tracing::debug!(%error, family, "route keeps its congestion control");
                }
            }
        }
        Ok(())
    }

    /// Makes everything sent through the device `index` vanish, without a word to the sender.
    pub(crate) fn set_black_hole(&mut self, index: u32, on: bool) -> io::Result<()> {
        const TCA_KIND: u16 = 1;
        const ROOT: u32 = 0xffff_ffff;
        const HANDLE: u32 = 0x0bad_0000;
        let mut fixed = [0; 20];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        fixed[12..16].copy_from_slice(&ROOT.to_ne_bytes());
        if on {
            fixed[8..12].copy_from_slice(&HANDLE.to_ne_bytes());
            let mut message = Message::new(RTM_NEWQDISC, flags::CREATE | flags::REPLACE, &fixed);
            message.text(TCA_KIND, "blackhole");
            return self.socket.request(message);
        }
        match self.socket.request(Message::new(RTM_DELQDISC, 0, &fixed)) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Ok(()), // there was none
            other => other,
        }
    }
}

/// The request that sets `algorithm` on the route that a dump described; `None` for routes that have no sockets.
fn with_congestion_control(kind: u16, route: &[u8], algorithm: &str) -> Option<Message> {
    const RTN_UNICAST: u8 = 1;
    const RTN_LOCAL: u8 = 2;
    const ROUTE_LEN: usize = 12;
    let fixed = route.get(..ROUTE_LEN)?;
    let (table, route_kind, route_flags) = (fixed[4], fixed[7], u32_at(fixed, 8));
    let concerned =
        matches!(route_kind, RTN_UNICAST | RTN_LOCAL) && matches!(table, RT_TABLE_MAIN | RT_TABLE_LOCAL);
    if kind != RTM_NEWROUTE || !concerned {
        return None;
    }
    const STATE_FLAGS: u32 = 0x1f; // dead, pervasive, on-link, off-loaded, link down: only on-link may be asked for
    const ON_LINK: u32 = 4;
    let mut fixed = fixed.to_vec();
    fixed[8..12].copy_from_slice(&(route_flags & !(STATE_FLAGS & !ON_LINK)).to_ne_bytes());
    let mut message = Message::new(RTM_NEWROUTE, flags::REPLACE, &fixed);
    for (kind, value) in attributes(&route[ROUTE_LEN..]) {
        if !matches!(kind, RTA_METRICS | RTA_CACHEINFO) {
            message.attribute(kind, value);
        }
    }
    message.nest(RTA_METRICS, |m| {
        m.text(RTAX_CC_ALGO, algorithm);
    });
    Some(message)
}
