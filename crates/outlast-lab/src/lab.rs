//! The lab: makes hosts and links, and takes everything away again.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use crate::available::{self, Unavailable};
use crate::command::ProcessInner;
use crate::error::{Context, Error, Result};
use crate::host::Host;
use crate::link::{End, Link, LinkInner, Side};
use crate::netlink::route::{Mac, VethEnd};
use crate::segment::Segment;
use crate::sweep::{self, Owner};
use crate::switch::Switch;
use crate::sys;
use crate::wire::{Wire, WireSpec};

/// Where the `/etc/hosts` of each host is kept while the lab lives.
const HOSTS_DIR: &str = "/run/outlast-lab";

static LABS: AtomicU32 = AtomicU32::new(0);
static SWEPT: Once = Once::new();

pub(crate) fn hosts_file_of(namespace: &str) -> PathBuf {
    Path::new(HOSTS_DIR).join(format!("{namespace}.hosts"))
}

/// What the parts of a lab have in common.
pub(crate) struct Shared {
    prefix: String,
    networks: AtomicU16,
    macs: AtomicU32,
    hosts: Mutex<Vec<Host>>,
    links: Mutex<Vec<Link>>,
    processes: Mutex<Vec<Weak<ProcessInner>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn register_process(&self, process: Weak<ProcessInner>) {
        let mut processes = lock(&self.processes);
        processes.retain(|p| p.strong_count() > 0);
        processes.push(process);
    }

    fn next_mac(&self) -> Mac {
        const LOCALLY_ADMINISTERED: u8 = 2;
        let [a, b, c, d] = self.macs.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        [LOCALLY_ADMINISTERED, 0x6f, a, b, c, d]
    }

    pub(crate) fn new_segment(&self) -> Result<Arc<Segment>> {
        let next = |n: u16| n.checked_add(1);
        match self.networks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(number) => Ok(Arc::new(Segment::new(number))),
            Err(_) => Err(Error::Invalid("a lab has room for 65534 networks".to_owned())),
        }
    }

    /// Lets every host know every other by name. Programs that are running see the change, too.
    pub(crate) fn write_hosts_files(&self) -> Result<()> {
        let hosts = lock(&self.hosts).clone();
        hosts.iter().try_for_each(|viewer| {
            let path = viewer.hosts_file();
            let written = write_in_place(&path, hosts_file(viewer, &hosts).as_bytes());
            written.context(|| format!("cannot write {}", path.display()))
        })
    }
}

/// Overwrites without a moment in which the file is empty: its inode is mounted in running programs.
fn write_in_place(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::options().write(true).create(true).truncate(false).open(path)?;
    file.write_all(content)?;
    file.set_len(content.len() as u64)
}

fn hosts_file(viewer: &Host, hosts: &[Host]) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n".to_owned();
    let near: Vec<_> = viewer.links().iter().map(|(link, _)| Arc::as_ptr(&link.inner.segment)).collect();
    for host in hosts {
        let links = host.links();
        let shared = links.iter().find(|(link, _)| near.contains(&Arc::as_ptr(&link.inner.segment)));
        let Some((link, side)) = shared.or(links.first()) else { continue };
        let Some(addresses) = link.addresses(*side) else { continue };
        let _ = writeln!(text, "{} {}\n{} {}6", addresses.v4, host.name(), addresses.v6, host.name());
    }
    text
}

/// A network of hosts inside this machine, isolated from it and from every other lab.
///
/// Everything disappears when the lab is dropped, also by a panic: programs that were started in it are killed,
/// wires stop, namespaces are removed. What a killed process leaves behind is removed by the next [`Lab::new`]
/// on the machine, or by [`Lab::sweep`].
pub struct Lab {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Lab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab").field("prefix", &self.shared.prefix).finish_non_exhaustive()
    }
}

impl Lab {
    /// Makes an empty lab. Its namespaces are called `outlast-<process>-<number>-<name>-<host>`.
    ///
    /// # Errors
    /// When this machine cannot run a lab (see [`Lab::available`]), or the name does not suit.
    pub fn new(name: &str) -> Result<Self> {
        check_name(name)?;
        Self::available()?;
        SWEPT.call_once(|| {
            if let Err(error) = sweep::sweep() {
                tracing::warn!(%error, "cannot remove what earlier labs left behind");
            }
        });
        std::fs::create_dir_all(HOSTS_DIR).context(|| format!("cannot create {HOSTS_DIR}"))?;
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let owner = Owner::this_process().context(|| "cannot read /proc/self/stat".to_owned())?;
        Ok(Self {
            shared: Arc::new(Shared {
                prefix: format!("{owner}-{number}-{name}"),
                networks: AtomicU16::new(1),
                macs: AtomicU32::new(1),
                hosts: Mutex::default(),
                links: Mutex::default(),
                processes: Mutex::default(),
            }),
        })
    }

    /// Whether this machine can run a lab; if not, precisely what is missing.
    ///
    /// # Errors
    /// What is missing.
    pub fn available() -> Result<(), Unavailable> {
        available::available()
    }

    /// Removes what labs of processes that have ended left behind: their namespaces and the programs in them.
    /// Returns the names of the namespaces it removed. Labs of living processes are not touched, provided that this
    /// process can see them: containers that share `/run/netns` must share their process numbers, too.
    ///
    /// # Errors
    /// When the names of namespaces cannot be read.
    pub fn sweep() -> Result<Vec<String>> {
        sweep::sweep()
    }

    /// Makes a host.
    ///
    /// # Errors
    /// When the name is taken or does not suit, or the kernel refuses.
    pub fn host(&self, name: &str) -> Result<Host> {
        check_name(name)?;
        if lock(&self.shared.hosts).iter().any(|host| host.name() == name) {
            return Err(Error::Invalid(format!("there is a host `{name}` already")));
        }
        let namespace = format!("{}-{name}", self.shared.prefix);
        let host = Host::create(Arc::clone(&self.shared), name, &namespace)?;
        lock(&self.shared.hosts).push(host.clone());
        self.shared.write_hosts_files()?;
        Ok(host)
    }

    /// Makes a host that forwards packets between its links. For a NAT see [`crate::Nat`].
    ///
    /// # Errors
    /// As [`Lab::host`].
    pub fn router(&self, name: &str) -> Result<Host> {
        let host = self.host(name)?;
        let forward = || -> std::io::Result<()> {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
        };
        host.enter(forward)?.context(|| format!("cannot make {name} forward packets"))?;
        Ok(host)
    }

    /// Makes a switch, to which any number of hosts can be attached with [`Lab::attach`].
    ///
    /// # Errors
    /// As [`Lab::host`].
    pub fn switch(&self, name: &str) -> Result<Switch> {
        Switch::create(self.host(name)?, self.shared.new_segment()?)
    }

    /// Links two hosts by a cable (a veth pair): as fast as the machine, without delay.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn connect(&self, client: &Host, server: &Host) -> Result<Link> {
        self.cable(client, server, self.shared.new_segment()?, true)
    }

    /// Links a host to a switch by a cable. The switch is the server side of the link.
    ///
    /// # Errors
    /// When the kernel refuses, or the switch has 254 hosts.
    pub fn attach(&self, host: &Host, switch: &Switch) -> Result<Link> {
        let link = self.cable(host, switch.host(), Arc::clone(switch.segment()), false)?;
        switch.plug(link.end(Side::Server).index)?;
        Ok(link)
    }

    fn cable(
        &self,
        client: &Host,
        server: &Host,
        segment: Arc<Segment>,
        server_has_address: bool,
    ) -> Result<Link> {
        let names = [client.next_device_name(), server.next_device_name()];
        let macs = [self.shared.next_mac(), self.shared.next_mac()];
        let here = VethEnd { name: &names[0], mac: macs[0] };
        let there = VethEnd { name: &names[1], mac: macs[1] };
        let made = client.routing().add_veth(&here, &there, server.netns().as_fd());
        made.context(|| format!("cannot connect {client:?} to {server:?}"))?;
        let [client_name, server_name] = names;
        let ends = [(client, client_name, macs[0], true), (server, server_name, macs[1], server_has_address)]
            .map(|(host, device, mac, has_address)| self.end(host, device, Some(mac), &segment, has_address));
        let [client, server] = ends;
        self.finish([client?, server?], segment, None)
    }

    /// Links two hosts by a wire in user space that delays, loses, reorders and limits as `spec` says.
    ///
    /// # Errors
    /// When the values make no sense, or the kernel refuses.
    pub fn wire(&self, client: &Host, server: &Host, spec: WireSpec) -> Result<Link> {
        spec.check()?;
        let segment = self.shared.new_segment()?;
        let open = |host: &Host| -> Result<_> {
            let device = host.next_device_name();
            let inside = host.enter_guard()?;
            let tun = sys::open_tun(&device).context(|| "cannot open a TUN device".to_owned())?;
            drop(inside);
            let end = self.end(host, device, None, &segment, true)?;
            let sized = host.routing().set_sizes(end.index, u32::from(spec.mtu_bytes), 4096);
            sized.context(|| format!("cannot set the mtu of {}", end.device))?;
            Ok((tun, end))
        };
        let ((client_tun, client), (server_tun, server)) = (open(client)?, open(server)?);
        let wire = Wire::start(client_tun, server_tun, spec)?;
        self.finish([client, server], segment, Some(wire))
    }

    fn end(
        &self,
        host: &Host,
        device: String,
        mac: Option<Mac>,
        segment: &Segment,
        addressed: bool,
    ) -> Result<End> {
        let index = host.routing().device_index(&device);
        let index = index.context(|| format!("cannot find device {device} of {host:?}"))?;
        let addresses = if addressed { Some(segment.next_addresses()?) } else { None };
        Ok(End { host: host.clone(), device, index, mac, addresses: Mutex::new(addresses) })
    }

    fn finish(&self, ends: [End; 2], segment: Arc<Segment>, wire: Option<Wire>) -> Result<Link> {
        let link = Link { inner: Arc::new(LinkInner { ends, segment, wire }) };
        lock(&self.shared.links).push(link.clone());
        for side in [Side::Client, Side::Server] {
            link.inner.segment.join(Arc::downgrade(&link.inner), side);
            link.host(side).add_link(&link, side);
            link.set_up(side, true)?;
        }
        self.shared.write_hosts_files()?;
        Ok(link)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for process in lock(&self.shared.processes).drain(..) {
            if let Some(process) = process.upgrade() {
                process.end();
            }
        }
        for link in lock(&self.shared.links).drain(..) {
            if let Some(wire) = &link.inner.wire {
                wire.stop();
            }
        }
        let hosts = std::mem::take(&mut *lock(&self.shared.hosts));
        let namespaces: HashSet<_> = hosts.iter().map(|host| host.namespace().to_owned()).collect();
        sweep::end_programs_in(&namespaces);
        for host in &hosts {
            host.forget_links();
            host.netns().unname();
            let _ = std::fs::remove_file(host.hosts_file());
        }
    }
}

fn check_name(name: &str) -> Result<()> {
    let suits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 40 || !name.chars().all(suits) {
        let why = format!("the name `{name}` does not suit: give 1 to 40 characters out of a-z, 0-9 and `-`");
        return Err(Error::Invalid(why));
    }
    Ok(())
}
