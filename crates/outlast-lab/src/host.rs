//! A host: a network namespace with a name, in which programs and threads can run.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::command::{LabCommand, Process};
use crate::error::{Context, Result};
use crate::lab::Shared;
use crate::link::{Link, Side};
use crate::netlink::diag::{self, Connection, Connections};
use crate::netlink::route::Routing;
use crate::netns::{Netns, NetnsGuard};
use crate::rest::Rest;
use outlast_netlink::{Protocol, Socket};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) destination: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) gateway: IpAddr,
    pub(crate) device: u32,
}

struct Inner {
    name: String,
    namespace: Netns,
    routing: Mutex<Routing>,
    diag: Mutex<Socket>,
    devices: AtomicU32,
    links: Mutex<Vec<(Link, Side)>>,
    routes: Mutex<Vec<Route>>,
    cubic: AtomicBool,
    lab: Arc<Shared>,
}

/// A host of a lab. Clones are handles to the same host.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({} = {})", self.inner.name, self.inner.namespace.name())
    }
}

impl PartialEq for Host {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Host {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    pub(crate) fn create(lab: Arc<Shared>, name: &str, namespace: &str) -> Result<Self> {
        let namespace = Netns::create(namespace)?;
        let inside = namespace.enter().context(|| format!("cannot enter host {name}"))?;
        let mut routing = Routing::open().context(|| "cannot open rtnetlink".to_owned())?;
        let diag = Socket::open(Protocol::SocketDiag).context(|| "cannot open sock_diag".to_owned())?;
        // No link-local addresses and nothing that goes with them: a quiet network has repeatable tests.
        if let Err(error) = std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1") {
            tracing::debug!(%error, "hosts keep their link-local addresses");
        }
        const LOOPBACK: u32 = 1;
        routing.set_up(LOOPBACK, true).context(|| "cannot switch the loopback device on".to_owned())?;
        drop(inside);
        Ok(Self {
            inner: Arc::new(Inner {
                name: name.to_owned(),
                namespace,
                routing: Mutex::new(routing),
                diag: Mutex::new(diag),
                devices: AtomicU32::new(0),
                links: Mutex::default(),
                routes: Mutex::default(),
                cubic: AtomicBool::new(false),
                lab,
            }),
        })
    }

    pub(crate) fn lab(&self) -> &Arc<Shared> {
        &self.inner.lab
    }

    pub(crate) fn netns(&self) -> &Netns {
        &self.inner.namespace
    }

    pub(crate) fn routing(&self) -> MutexGuard<'_, Routing> {
        lock(&self.inner.routing)
    }

    pub(crate) fn next_device_name(&self) -> String {
        format!("eth{}", self.inner.devices.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn add_link(&self, link: &Link, side: Side) {
        lock(&self.inner.links).push((link.clone(), side));
    }

    pub(crate) fn links(&self) -> Vec<(Link, Side)> {
        lock(&self.inner.links).clone()
    }

    /// Forgets the links, which hold on to their hosts in turn.
    pub(crate) fn forget_links(&self) {
        lock(&self.inner.links).clear();
    }

    /// The file that programs of this host see as `/etc/hosts`.
    pub(crate) fn hosts_file(&self) -> PathBuf {
        crate::lab::hosts_file_of(self.namespace())
    }

    /// The name that was given to it, which is also its name in the `/etc/hosts` of every program in the lab.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The name of its network namespace, for `ip netns exec`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.inner.namespace.name()
    }

    /// Its IPv4 address on its first link; before it has one, the loopback address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        let first = self.links().first().and_then(|(link, side)| link.addresses(*side));
        first.map_or(Ipv4Addr::LOCALHOST, |a| a.v4).into()
    }

    /// Its IPv6 address on its first link; before it has one, the loopback address.
    #[must_use]
    pub fn address_v6(&self) -> IpAddr {
        let first = self.links().first().and_then(|(link, side)| link.addresses(*side));
        first.map_or(Ipv6Addr::LOCALHOST, |a| a.v6).into()
    }

    /// [`Self::address`] with a port.
    #[must_use]
    pub fn socket_addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(), port)
    }

    /// [`Self::address_v6`] with a port.
    #[must_use]
    pub fn socket_addr_v6(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address_v6(), port)
    }

    /// A program to be run in this host. It sees the host's network, and the names of all hosts in `/etc/hosts`:
    /// `name` for IPv4, `name6` for IPv6.
    pub fn command(&self, program: impl AsRef<OsStr>) -> LabCommand {
        LabCommand::new(self.clone(), program.as_ref())
    }

    /// Starts `command`; the guard kills it, with everything in its process group, when dropped.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(&self, command: &mut LabCommand) -> Result<Process> {
        command.spawn()
    }

    /// Runs `work` on a fresh thread inside this host and returns what it returns. Sockets that it makes stay in
    /// the host, wherever they are used afterwards. A panic in `work` continues in the caller.
    ///
    /// # Errors
    /// When the thread cannot be started or cannot enter the host.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let inside = || -> std::io::Result<T> {
            self.netns().enter_for_good()?;
            Ok(work())
        };
        let result = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name(self.name().to_owned());
            Ok(thread.spawn_scoped(scope, inside)?.join())
        });
        match result.context(|| format!("cannot start a thread in host {}", self.name()))? {
            Ok(done) => done.context(|| format!("cannot enter host {}", self.name())),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Moves this thread into the host until the guard is dropped.
    ///
    /// # Errors
    /// When the thread cannot enter the host.
    pub fn enter_guard(&self) -> Result<NetnsGuard> {
        self.netns().enter().context(|| format!("cannot enter host {}", self.name()))
    }

    /// Makes connections over every route of this host use the congestion control `cubic`, now and after links
    /// come and go: see "How to measure" in the documentation for when this matters. The other end of a connection
    /// chooses for itself.
    ///
    /// # Errors
    /// When the routes cannot be read.
    pub fn use_cubic(&self) -> Result<()> {
        self.inner.cubic.store(true, Ordering::Relaxed);
        self.apply_congestion_control()
    }

    fn apply_congestion_control(&self) -> Result<()> {
        if !self.inner.cubic.load(Ordering::Relaxed) {
            return Ok(());
        }
        let done = self.routing().set_congestion_control("cubic");
        done.context(|| format!("cannot set the congestion control of host {}", self.name()))
    }

    /// Sends everything that has no better route over `link`, to whoever is at its other end.
    ///
    /// # Errors
    /// When this host is not on the link, or the kernel refuses.
    pub fn route_default(&self, link: &Link) -> Result<()> {
        let everything = [(Ipv4Addr::UNSPECIFIED.into(), 0), (Ipv6Addr::UNSPECIFIED.into(), 0)];
        self.add_routes(everything, link)
    }

    /// Sends what is for the network of the link `target` over `via`, to whoever is at its other end.
    ///
    /// # Errors
    /// When this host is not on `via`, or the kernel refuses.
    pub fn route_to(&self, target: &Link, via: &Link) -> Result<()> {
        self.add_routes(target.inner.segment.networks(), via)
    }

    fn add_routes(&self, destinations: [(IpAddr, u8); 2], via: &Link) -> Result<()> {
        let not_there =
            || crate::Error::Invalid(format!("{self:?} cannot route over {via:?}: it is not on that link"));
        let side = via.side_of(self).ok_or_else(not_there)?;
        let gateways = via.addresses(side.other()).ok_or_else(not_there)?;
        let device = via.end(side).index;
        let mut routes = lock(&self.inner.routes);
        for ((destination, prefix), gateway) in
            destinations.into_iter().zip([gateways.v4.into(), gateways.v6.into()])
        {
            let replaced = |r: &Route| r.destination == destination && r.prefix == prefix;
            for old in routes.extract_if(.., |r| replaced(r)) {
                // Routes of IPv6 add up instead of replacing each other.
                let _ = self.routing().remove_route(old.destination, old.prefix, old.gateway, old.device);
            }
            routes.push(Route { destination, prefix, gateway, device });
        }
        drop(routes);
        self.restore_routes()
    }

    /// Tells the kernel the routes again that it forgot when a device was off or lost its address.
    pub(crate) fn restore_routes(&self) -> Result<()> {
        for route in lock(&self.inner.routes).iter() {
            let done = self.routing().set_route(route.destination, route.prefix, route.gateway, route.device);
            match done {
                // Its device is off: the route comes back with it.
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::ENETDOWN | libc::ENETUNREACH | libc::EHOSTUNREACH)
                    ) => {}
                other => other.context(|| format!("cannot route over {}", route.gateway))?,
            }
        }
        self.apply_congestion_control()
    }

    /// The TCP connections that the kernel of this host holds, listeners not included.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn connections(&self, which: Connections) -> Result<Vec<Connection>> {
        let found = diag::list(&mut lock(&self.inner.diag), which);
        found.context(|| format!("cannot list the connections of host {}", self.name()))
    }

    /// The addresses on which programs of this host accept TCP connections.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn listeners(&self) -> Result<Vec<SocketAddr>> {
        let found = diag::listeners(&mut lock(&self.inner.diag));
        found.context(|| format!("cannot list the listeners of host {}", self.name()))
    }

    /// Waits until a program of this host accepts TCP connections on `port` (`None`: on any), or `wait` has passed.
    /// True when there is one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait_for_listener(&self, port: Option<u16>, wait: Duration) -> Result<bool> {
        let deadline = Instant::now() + wait;
        loop {
            if self.listeners()?.iter().any(|address| port.is_none_or(|port| address.port() == port)) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until every program of this host waits for somebody and has nothing to do before that, or `wait` has
    /// passed: who has just been started is ready then, if it ever will be. True when that is so. Programs that wait for
    /// a time to pass are at rest, too.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait_until_at_rest(&self, wait: Duration) -> Result<bool> {
        let deadline = Instant::now() + wait;
        let namespace = self.netns().inode();
        let namespace =
            namespace.context(|| format!("cannot look at the programs of host {}", self.name()))?;
        let mut last = None;
        loop {
            let now = Rest::look(namespace);
            if now.is_some() && now == last {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            last = now;
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Aborts TCP connections in the kernel of this host and says how many. Programs of this host get
    /// `ECONNABORTED`; the peers are sent a reset and get `ECONNRESET`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn abort_connections(&self, which: Connections) -> Result<usize> {
        let destroyed = diag::destroy(&mut lock(&self.inner.diag), which);
        destroyed.context(|| format!("cannot abort the connections of host {}", self.name()))
    }
}
