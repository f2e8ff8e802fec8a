//! Links between hosts: a cable (veth pair) or a wire in user space (TUN pair), and what can be done to them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::host::Host;
use crate::netlink::route::Mac;
use crate::segment::Segment;
use crate::wire::{LaneStats, Wire, WireSpec};

/// How long the kernel may take to notice that a cable has been plugged in: it does so at most once a second.
const CARRIER_WAIT_MAX: Duration = Duration::from_secs(5);

/// One end of a link, by the part its host plays: the host named first when linking is the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The host named first.
    Client,
    /// The host named second.
    Server,
}

impl Side {
    /// The other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    /// The direction in which this side sends.
    #[must_use]
    pub fn sends(self) -> Direction {
        match self {
            Self::Client => Direction::ToServer,
            Self::Server => Direction::ToClient,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// A direction on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::ToServer, Self::ToClient];

    /// The side that sends in this direction.
    #[must_use]
    pub fn sender(self) -> Side {
        match self {
            Self::ToServer => Side::Client,
            Self::ToClient => Side::Server,
        }
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::ToServer => 0,
            Self::ToClient => 1,
        }
    }
}

/// The addresses of one end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address.
    pub v6: Ipv6Addr,
}

impl Addresses {
    pub(crate) const V4_PREFIX: u8 = 24;
    pub(crate) const V6_PREFIX: u8 = 64;

    /// Both addresses with the length of their network's prefix.
    pub(crate) fn with_prefixes(self) -> [(IpAddr, u8); 2] {
        [(self.v4.into(), Self::V4_PREFIX), (self.v6.into(), Self::V6_PREFIX)]
    }
}

/// One end of a link as it is being built.
pub(crate) struct End {
    pub(crate) host: Host,
    pub(crate) device: String,
    pub(crate) index: u32,
    /// `None` on wires, which carry packets without hardware addresses.
    pub(crate) mac: Option<Mac>,
    /// `None` for the port of a switch.
    pub(crate) addresses: Mutex<Option<Addresses>>,
}

impl End {
    pub(crate) fn addresses(&self) -> Option<Addresses> {
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct LinkInner {
    pub(crate) ends: [End; 2],
    pub(crate) segment: Arc<Segment>,
    pub(crate) wire: Option<Wire>,
}

impl LinkInner {
    pub(crate) fn end(&self, side: Side) -> &End {
        match side {
            Side::Client => &self.ends[0],
            Side::Server => &self.ends[1],
        }
    }
}

/// A link between two hosts, or between a host and a switch. Clones are handles to the same link.
#[derive(Clone)]
pub struct Link {
    pub(crate) inner: Arc<LinkInner>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |side| format!("{}:{}", self.end(side).host.name(), self.end(side).device);
        write!(f, "Link({} - {})", name(Side::Client), name(Side::Server))
    }
}

impl Link {
    pub(crate) fn end(&self, side: Side) -> &End {
        self.inner.end(side)
    }

    /// The host on `side` (a switch counts as a host that has no addresses).
    #[must_use]
    pub fn host(&self, side: Side) -> &Host {
        &self.end(side).host
    }

    /// The name of the network device on `side`, inside the host.
    #[must_use]
    pub fn device(&self, side: Side) -> &str {
        &self.end(side).device
    }

    /// The addresses of `side` on this link. The port of a switch has none.
    #[must_use]
    pub fn addresses(&self, side: Side) -> Option<Addresses> {
        self.end(side).addresses()
    }

    /// The side of this link on which `host` is.
    #[must_use]
    pub fn side_of(&self, host: &Host) -> Option<Side> {
        [Side::Client, Side::Server].into_iter().find(|side| self.host(*side) == host)
    }

    /// True for a user-space wire, false for a cable.
    #[must_use]
    pub fn is_wire(&self) -> bool {
        self.inner.wire.is_some()
    }

    /// Makes everything sent in `direction` vanish silently (or not any longer). Once this returns, nothing that
    /// was under way comes out any more.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_blocked(&self, direction: Direction, blocked: bool) -> Result<()> {
        if let Some(wire) = &self.inner.wire {
            wire.set_blocked(direction, blocked);
            return Ok(());
        }
        self.set_black_hole(direction.sender(), blocked)
    }

    /// Makes everything that `side` sends vanish before it reaches the link. Unlike [`Self::set_blocked`] this
    /// spares what is under way on a wire, and it is exact: what was sent before is sent, what is sent now is not.
    pub(crate) fn set_black_hole(&self, side: Side, on: bool) -> Result<()> {
        let end = self.end(side);
        let done = end.host.routing().set_black_hole(end.index, on);
        done.context(|| format!("cannot {} {}", if on { "block" } else { "free" }, end.device))
    }

    /// Switches the network device of `side` off or on. Switching it on restores what the kernel forgets about
    /// a device that is off: IPv6 addresses, neighbours and routes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_up(&self, side: Side, up: bool) -> Result<()> {
        let end = self.end(side);
        let done = end.host.routing().set_up(end.index, up);
        done.context(|| format!("cannot switch {} {}", end.device, if up { "on" } else { "off" }))?;
        if !up {
            return Ok(());
        }
        self.wait_for_carrier()?;
        self.configure(side)
    }

    /// The kernel notices a while after both ends are on that a cable carries packets, and loses them until then.
    fn wait_for_carrier(&self) -> Result<()> {
        let deadline = Instant::now() + CARRIER_WAIT_MAX;
        loop {
            let states = [Side::Client, Side::Server].map(|side| {
                let end = self.end(side);
                end.host
                    .routing()
                    .device_state(end.index)
                    .context(|| format!("cannot ask about {}", end.device))
            });
            let [client, server] = states;
            let (client, server) = (client?, server?);
            if !(client.up && server.up) || (client.running && server.running) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Invalid(format!("{self:?} is on at both ends but carries nothing")));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Gives `side` new addresses on the same network and takes the old ones away, as when a telephone moves
    /// from one cell to the next: connections from the old addresses are cut off without a word.
    ///
    /// # Errors
    /// When the end has no addresses, or the kernel refuses.
    pub fn change_address(&self, side: Side) -> Result<Addresses> {
        let end = self.end(side);
        let old = end.addresses().ok_or_else(|| {
            Error::Invalid(format!("{} is the port of a switch: it has no address to change", end.device))
        })?;
        let new = self.inner.segment.next_addresses()?;
        *end.addresses.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        self.configure(side)?;
        let removed = old
            .with_prefixes()
            .into_iter()
            .try_for_each(|(address, prefix)| end.host.routing().remove_address(end.index, address, prefix));
        removed.context(|| format!("cannot take the old addresses from {}", end.device))?;
        // The first address of a network owns its routes: they went with it.
        self.configure(side)?;
        self.inner.segment.introduce()?;
        end.host.lab().write_hosts_files()?;
        Ok(new)
    }

    /// Changes what a wire does to packets from now on, in both directions.
    ///
    /// # Errors
    /// When this is not a wire, or the values make no sense.
    pub fn set_spec(&self, spec: WireSpec) -> Result<()> {
        Direction::BOTH.into_iter().try_for_each(|direction| self.set_spec_one_way(direction, spec))
    }

    /// Changes what a wire does to packets from now on, in one direction.
    ///
    /// # Errors
    /// When this is not a wire, or the values make no sense.
    pub fn set_spec_one_way(&self, direction: Direction, spec: WireSpec) -> Result<()> {
        spec.check()?;
        let wire = self.inner.wire.as_ref().ok_or_else(|| {
            Error::Invalid("a cable has no delay, loss or rate: make the link with Lab::wire".to_owned())
        })?;
        wire.set_spec(direction, spec);
        Ok(())
    }

    /// What has become of the packets in `direction`; `None` for a cable, which does not count.
    #[must_use]
    pub fn stats(&self, direction: Direction) -> Option<LaneStats> {
        self.inner.wire.as_ref().map(|wire| wire.stats(direction))
    }

    /// Gives the kernel everything that belongs to one end of the link: addresses, neighbours, routes.
    pub(crate) fn configure(&self, side: Side) -> Result<()> {
        let end = self.end(side);
        let Some(addresses) = end.addresses() else { return Ok(()) };
        for (address, prefix) in addresses.with_prefixes() {
            let done = end.host.routing().add_address(end.index, address, prefix);
            done.context(|| format!("cannot give {address} to {}", end.device))?;
        }
        self.inner.segment.introduce()?;
        end.host.restore_routes()
    }
}
