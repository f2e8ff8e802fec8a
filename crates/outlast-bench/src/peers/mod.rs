//! Relay pairs: one relay beside the client, one beside the server, a cable between them.

mod daemons;
pub mod splice;
mod ssh;

use crate::ground::{End, Ground};
use crate::launch::{Launch, Program};
use crate::options::Options;
use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The pair that the session relay is held against.
pub const SPLICE: &str = "splice";
/// The session relay.
pub const OUTLAST: &str = "outlast";

/// How long a relay may take to be ready.
const READY_WAIT_MAX: Duration = Duration::from_secs(5);

/// Two relays that run.
pub struct Relay {
    /// Its name in tables.
    pub name: &'static str,
    /// Where clients connect.
    pub address: SocketAddr,
    programs: Vec<Program>,
    _garbage: Option<Garbage>,
}

impl Relay {
    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.programs.iter().map(Program::pid).collect()
    }
}

/// A folder that is removed if it is still empty.
struct Garbage(PathBuf);

impl Drop for Garbage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Everything a pair needs to know.
pub(crate) struct Plan<'a> {
    ground: &'a Ground,
    options: &'a Options,
    /// Where the first relay listens.
    near: SocketAddr,
    /// Where the second relay listens.
    far: SocketAddr,
    /// The server behind it.
    server: SocketAddr,
    /// For configurations, a folder for each end.
    folder: PathBuf,
}

type Starter = fn(&Plan) -> Result<Relay>;

const STARTERS: [(&str, Starter); 6] = [
    (SPLICE, splice::pair),
    (OUTLAST, outlast),
    ("haproxy", daemons::haproxy),
    ("nginx", daemons::nginx),
    ("socat", daemons::socat),
    ("ssh", ssh::tunnel),
];

/// Starts every pair that this machine has, and says why it has not the others.
pub fn start_all(ground: &Ground, options: &Options, server: SocketAddr) -> (Vec<Relay>, Vec<String>) {
    let (mut running, mut skipped) = (Vec::new(), Vec::new());
    for (number, (name, start)) in STARTERS.iter().enumerate() {
        let started = plan(ground, options, server, number).and_then(|plan| start(&plan)).and_then(ready);
        match started {
            Ok(relay) => running.push(relay),
            Err(why) => skipped.push(format!("{name}: {why:#}")),
        }
    }
    (running, skipped)
}

fn plan<'a>(ground: &'a Ground, options: &'a Options, server: SocketAddr, number: usize) -> Result<Plan<'a>> {
    let folder = ground.scratch().join(format!("relay-{number}"));
    for end in ["near", "far"] {
        std::fs::create_dir_all(folder.join(end))
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let near = free_address(ground, End::Client, Ipv4Addr::LOCALHOST.into())?;
    let far = free_address(ground, End::Server, ground.server_address())?;
    Ok(Plan { ground, options, near, far, server, folder })
}

/// An address that nobody listens on, and whose port the kernel gives to no client meanwhile.
pub fn free_address(ground: &Ground, end: End, ip: IpAddr) -> Result<SocketAddr> {
    let port = match ground.host(end) {
        Some(host) => host.enter(outlast_lab::free_port)??,
        None => outlast_lab::free_port()?,
    };
    Ok((ip, port).into())
}

/// Waits until a byte comes back through the relays.
fn ready(mut relay: Relay) -> Result<Relay> {
    let deadline = Instant::now() + READY_WAIT_MAX;
    loop {
        match echo_once(relay.address) {
            Ok(()) => return Ok(relay),
            Err(_) if relay.programs.iter_mut().any(Program::has_ended) => bail!("it ended at once"),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context("nothing comes through");
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Whether a byte comes back.
pub fn echo_once(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(&[crate::wire::wants::ECHO])?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    if byte == [crate::wire::wants::ECHO] { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

/// A program by its name, where programs of the system are.
pub fn find_program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("no {name} here"))
}

impl Plan<'_> {
    /// A relay that runs as a program at each end.
    fn pair(&self, name: &'static str, near: Launch, far: Launch) -> Result<Relay> {
        let far = far.start()?;
        let near = near.start()?;
        Ok(Relay { name, address: self.near, programs: vec![near, far], _garbage: None })
    }

    fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// Where `outlast` is.
pub fn outlast_program(options: &Options) -> Result<PathBuf> {
    let program = match &options.outlast {
        Some(program) => program.clone(),
        None => {
            let this = std::env::current_exe().context("cannot find this program")?;
            this.parent().unwrap_or(Path::new(".")).join("outlast")
        }
    };
    ensure!(program.is_file(), "no {}: build it, or give --outlast PROGRAM", program.display());
    Ok(program)
}

/// The session relay, with the settings that it has by itself.
fn outlast(plan: &Plan) -> Result<Relay> {
    let program = outlast_program(plan.options)?;
    let (near, far, server) = (plan.near.to_string(), plan.far.to_string(), plan.server.to_string());
    let common = ["--admin-socket", "none", "--quiet"];
    let near = Launch::new(plan.ground, End::Client, &program)
        .arguments(["connect", &near, "--via", &far])
        .arguments(common);
    let far = Launch::new(plan.ground, End::Server, &program)
        .arguments(["listen", &far, "--to", &server])
        .arguments(common);
    plan.pair(OUTLAST, near, far)
}
