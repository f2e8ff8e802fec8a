//! Where an experiment takes place: hosts, path, congestion control, cores.
//!
//! With the lab, the two ends live in network namespaces of their own, so that the congestion control can be
//! chosen by route. Without it, everything runs on this machine's loopback device as it is, and says so.

use crate::options::{Congestion, Options, PathKind, Placement, Scheduling};
use crate::{place, quiet};
use anyhow::{Context, Result};
use outlast_lab::{Host, Lab, NetnsGuard};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// This process measures there.
    Client,
    /// Helpers serve there.
    Server,
}

/// On which cores the ends run.
#[derive(Clone, Debug)]
pub struct Cores {
    /// This process.
    pub client: Vec<usize>,
    /// The helpers at the server's end.
    pub server: Vec<usize>,
}

struct Stage {
    client: Host,
    server: Host,
    _lab: Lab,
}

/// The place of one experiment. It goes, with everything in it, when dropped.
pub struct Ground {
    // Declared first, dropped first: the thread leaves the host before the host goes.
    inside: Option<NetnsGuard>,
    stage: Option<Stage>,
    scratch: PathBuf,
    home: Vec<usize>,
    /// The path that is really used.
    pub path: PathKind,
    /// The cores.
    pub cores: Cores,
    /// What a connection says that its congestion control is.
    pub congestion: String,
    /// Whether a woken thread preempts nobody.
    pub batch: bool,
    /// What is not as it was asked for.
    pub warnings: Vec<String>,
}

impl Ground {
    /// Prepares hosts, links and cores, and moves this thread to the client's place.
    pub fn new(options: &Options, path: PathKind, placement: Placement) -> Result<Self> {
        let mut warnings = Vec::new();
        let home = place::allowed();
        let cores = choose_cores(&home, placement, &mut warnings);
        let stage = match Lab::available() {
            Ok(()) => Some(set_stage(options, path)?),
            Err(why) => {
                warnings
                    .push(format!("no lab ({why}): this machine's own loopback, with whatever it is set to"));
                None
            }
        };
        let path = if stage.is_some() { path } else { PathKind::Lo };
        let mut ground = Self {
            inside: None,
            stage,
            scratch: make_scratch()?,
            home,
            path,
            cores,
            congestion: String::new(),
            batch: options.sched == Scheduling::Batch,
            warnings,
        };
        // Threads keep the cores of the thread that made them, and the lab has one that starts programs.
        place::pin(&ground.cores.client).context("cannot stay on one core")?;
        if ground.batch {
            place::run_in_batches().context("cannot run in batches")?;
        }
        if let Some(stage) = &ground.stage {
            ground.inside = Some(stage.client.enter_guard()?);
        }
        ground.congestion = ground.observe_congestion()?;
        if ground.congestion != options.cc.name() {
            let asked = options.cc.name();
            let note =
                format!("congestion control is {}, not {asked}: bulk is not comparable", ground.congestion);
            ground.warnings.push(note);
        }
        Ok(ground)
    }

    /// The host at an end; `None` without a lab.
    pub fn host(&self, end: End) -> Option<&Host> {
        let stage = self.stage.as_ref()?;
        Some(match (end, self.path) {
            (End::Client, _) | (End::Server, PathKind::Lo) => &stage.client,
            (End::Server, PathKind::Veth) => &stage.server,
        })
    }

    /// Where servers listen.
    pub fn server_address(&self) -> IpAddr {
        match (self.path, &self.stage) {
            (PathKind::Veth, Some(stage)) => stage.server.address(),
            _ => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// The cores of an end.
    pub fn cores_of(&self, end: End) -> &[usize] {
        match end {
            End::Client => &self.cores.client,
            End::Server => &self.cores.server,
        }
    }

    /// All cores that this process may use.
    pub fn home(&self) -> &[usize] {
        &self.home
    }

    /// A folder for keys and configurations that goes with the ground.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// What ran where, for the head of a report.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let place = if self.stage.is_some() { "own network namespaces" } else { "this machine's network" };
        let cores =
            format!("client {:?}, server {:?} of {:?}", self.cores.client, self.cores.server, self.home);
        vec![
            ("path", format!("{} ({place})", self.path.name())),
            ("cores", format!("{cores}, {}", processor())),
            ("kernel", read_line("/proc/sys/kernel/osrelease")),
            ("scheduling", if self.batch { "batch" } else { "normal" }.to_owned()),
            ("congestion control", self.congestion.clone()),
            ("load average", quiet::load_average()),
        ]
    }

    fn observe_congestion(&self) -> Result<String> {
        let address = self.server_address();
        let bind = || TcpListener::bind((address, 0));
        let listener = match self.host(End::Server) {
            Some(host) => host.enter(bind)?,
            None => bind(),
        };
        let listener = listener.context("cannot listen at the server's end")?;
        let stream =
            TcpStream::connect(listener.local_addr()?).context("the two ends do not reach each other")?;
        let name = socket2::SockRef::from(&stream).tcp_congestion().context("cannot read TCP_CONGESTION")?;
        Ok(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.inside = None;
        let _ = place::pin(&self.home);
        let _ = place::run_as_usual();
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn set_stage(options: &Options, path: PathKind) -> Result<Stage> {
    let lab = Lab::new("bench")?;
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    if path == PathKind::Veth {
        lab.connect(&client, &server)?;
    }
    for host in [&client, &server] {
        if options.cc == Congestion::Cubic {
            host.use_cubic()?;
        }
        // Tens of thousands of short connections a second from one address.
        host.enter(|| {
            let _ = fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1");
            let _ = fs::write("/proc/sys/net/ipv4/ip_local_port_range", "2048 65000");
            let _ = fs::write("/proc/sys/net/core/somaxconn", "16384");
        })?;
    }
    Ok(Stage { client, server, _lab: lab })
}

fn choose_cores(home: &[usize], placement: Placement, warnings: &mut Vec<String>) -> Cores {
    let first = home.first().copied().unwrap_or(0);
    let other = match (placement, home.get(1)) {
        (Placement::Same, _) => first,
        (Placement::Cross, Some(second)) => *second,
        (Placement::Cross, None) => {
            warnings.push("there is one core only: both ends share it".to_owned());
            first
        }
    };
    Cores { client: vec![first], server: vec![other] }
}

const SCRATCH: &str = "outlast-bench-scratch";

/// Removes what runs have left behind that were killed.
fn sweep_scratch() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(SCRATCH)?.split('-').nth(1)?.parse().ok());
        if owner.is_some_and(|owner: u32| !Path::new(&format!("/proc/{owner}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn make_scratch() -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    sweep_scratch();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("{SCRATCH}-{}-{number}", std::process::id()));
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    name.map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_shared_loudly() {
        let mut warnings = Vec::new();
        assert_eq!(choose_cores(&[3], Placement::Cross, &mut warnings).server, vec![3]);
        assert_eq!(warnings.len(), 1);
        let cores = choose_cores(&[3, 5], Placement::Cross, &mut warnings);
        assert_eq!((cores.client, cores.server), (vec![3], vec![5]));
        assert_eq!(warnings.len(), 1);
    }
}
