//! A NAT: a router that gives everything it forwards its own address, and can forget for whom.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Context, Error, Result};
use crate::firewall;
use crate::host::Host;
use crate::link::Link;
use crate::netlink::conntrack;
use outlast_netlink::{Protocol, Socket};

/// Network address translation on a router. Clones are handles to the same translation.
///
/// ```no_run
/// # fn main() -> Result<(), outlast_lab::Error> {
/// use outlast_lab::{Lab, Nat, WireSpec};
/// let lab = Lab::new("nat")?;
/// let (client, home, server) = (lab.host("client")?, lab.router("home")?, lab.host("server")?);
/// let inside = lab.connect(&client, &home)?;
/// let outside = lab.wire(&home, &server, WireSpec::delay_ms(10))?;
/// client.route_default(&inside)?;
/// let nat = Nat::masquerade(&home, &outside)?;
/// // ... connect from the client to the server, then:
/// nat.rebind()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Nat {
    router: Host,
    tracking: Arc<Mutex<Socket>>,
}

impl std::fmt::Debug for Nat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nat({})", self.router.name())
    }
}

impl Nat {
    /// Makes `router` (from [`crate::Lab::router`]) hide everything that it sends over the link `outside` behind
    /// its own address there. Ports are chosen at random, so that a new mapping is a different mapping.
    ///
    /// # Errors
    /// When the router is not on the link, or the kernel refuses.
    pub fn masquerade(router: &Host, outside: &Link) -> Result<Self> {
        let side = outside.side_of(router).ok_or_else(|| {
            Error::Invalid(format!("{router:?} cannot hide addresses on {outside:?}: it is not on that link"))
        })?;
        let device = outside.device(side);
        for protocol in ["tcp", "udp"] {
            let ports = ["--to-ports", "20000-59999", "--random-fully"];
            let hide = [&["-o", device, "-p", protocol, "-j", "MASQUERADE"], &ports[..]].concat();
            firewall::change(router, "nat", "-A", "POSTROUTING", &hide)?;
        }
        firewall::change(router, "nat", "-A", "POSTROUTING", &["-o", device, "-j", "MASQUERADE"])?;
        let unknown = ["-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP"];
        firewall::change(router, "filter", "-A", "FORWARD", &unknown)?;
        firewall::change(router, "filter", "-A", "INPUT", &unknown)?;
        let inside = router.enter_guard()?;
        let tracking = Socket::open(Protocol::Netfilter).context(|| "cannot open ctnetlink".to_owned())?;
        drop(inside);
        Ok(Self { router: router.clone(), tracking: Arc::new(Mutex::new(tracking)) })
    }

    /// Forgets every mapping and makes new ones for what comes by, as a NAT does that has restarted: packets of a
    /// connection reach the server from another port, and the server answers them with a reset.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rebind(&self) -> Result<()> {
        self.adopt_strangers(true)?;
        self.flush()
    }

    /// Forgets every mapping and ignores packets of connections whose beginning it has not seen, as a NAT does
    /// whose entry has timed out: existing connections hear nothing any more, new ones work.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget(&self) -> Result<()> {
        self.adopt_strangers(false)?;
        self.flush()
    }

    fn flush(&self) -> Result<()> {
        let flushed = conntrack::flush(&mut self.tracking.lock().unwrap_or_else(PoisonError::into_inner));
        flushed.context(|| format!("cannot make {} forget its mappings", self.router.name()))
    }

    /// Whether a packet from the middle of an unknown connection gets a mapping.
    fn adopt_strangers(&self, adopt: bool) -> Result<()> {
        let value = if adopt { "1" } else { "0" };
        let inside = self.router.enter_guard()?;
        let written = std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", value);
        drop(inside);
        written.context(|| "cannot set nf_conntrack_tcp_loose".to_owned())
    }
}
