//! Machines that replicate a server: hosts on one switch, each with the server and its node.

use crate::options::Options;
use crate::peers;
use crate::place;
use crate::wire::{Endpoint, Face, Kind};
use anyhow::{Context, Result, bail, ensure};
use outlast_lab::replicas::{self, Death, Place, SERVER_PORT, Settings, Start, mariadb};
use outlast_lab::{Host, LabCommand, Process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// For a group to serve.
const PATIENCE: Duration = Duration::from_secs(20);
const PORTAL_PORT: u16 = 7000;
/// The portal of the first group has this last part of its address, the next one a smaller one.
const LAST_PORTAL: u8 = 250;
/// A busy machine is not to be taken for a dead one where nothing dies.
const DETECT: &str = "5s";
/// A server that echoes has no data.
const COMES_BACK: [&str; 5] = ["--join", "--snapshot", "echo", "--restore", "cat > /dev/null"];

/// The place of an experiment with replicas.
pub struct Machines {
    /// Goes after the groups.
    place: Place,
    /// Where this process measures.
    pub client: Host,
    outlast: PathBuf,
    folder: PathBuf,
    cores: Vec<usize>,
    groups: u8,
}

/// A server that echoes, until this is dropped.
struct Echo {
    port: u16,
    _input: ChildStdin,
    _process: Process,
}

/// The server alone.
pub struct Alone {
    /// Where it listens.
    pub address: SocketAddr,
    _echo: Echo,
}

/// A group of nodes that serves.
pub struct Group {
    /// Where clients connect to.
    pub portal: SocketAddr,
    _group: replicas::Group,
    _servers: Vec<Echo>,
}

/// A database, alone or of a group, until this is dropped.
pub struct Database {
    /// Where clients connect to.
    pub address: SocketAddr,
    _group: Option<replicas::Group>,
    _process: Option<Process>,
}

/// A group whose machines die.
pub struct Mortal {
    group: replicas::Group,
    servers: Vec<Echo>,
    goes_on: AtomicBool,
}

/// The command runs on these cores.
fn pin(command: &mut LabCommand, cores: &[usize]) {
    let cores = cores.to_vec();
    // SAFETY: one system call on what is there already; nothing is allocated between fork and exec.
    unsafe { command.as_std_mut().pre_exec(move || place::pin(&cores)) };
}

impl Machines {
    /// A client on a switch. All that is started runs on these cores, and keeps files in that folder.
    pub fn new(options: &Options, folder: &Path, cores: &[usize]) -> Result<Self> {
        let outlast = peers::outlast_program(options)?;
        let place = Place::new("replica")?;
        let client = place.client.clone();
        Ok(Self { place, client, outlast, folder: folder.to_owned(), cores: cores.to_vec(), groups: 0 })
    }

    fn echo(&self, host: &Host, address: IpAddr, face: Face) -> Result<Echo> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let endpoint = Endpoint::new(face, Kind::Raw).to_string();
        let mut command = host.command(this);
        command.args(["serve", "--address", &address.to_string(), "--workers", "1", "--endpoint", &endpoint]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        pin(&mut command, &self.cores);
        let process = command.spawn()?;
        let (Some(input), Some(output)) = (process.take_stdin(), process.take_stdout()) else {
            bail!("a server has no pipes")
        };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("cannot hear a server")?;
        let ports: BTreeMap<String, u16> =
            serde_json::from_str(&line).context("a server is not understood")?;
        let port = *ports.get(&endpoint).context("a server does not listen")?;
        Ok(Echo { port, _input: input, _process: process })
    }

    /// The server on a machine of its own, without nodes.
    pub fn alone(&self) -> Result<Alone> {
        let (host, address) = self.place.host("alone")?;
        let echo = self.echo(&host, address.into(), Face::Blocking)?;
        Ok(Alone { address: (address, echo.port).into(), _echo: echo })
    }

    /// So many machines with the server, and a witness where they are two. Nothing dies.
    pub fn group(&mut self, count: u8) -> Result<Group> {
        let (group, servers) = self.build(count, DETECT, Face::Blocking, &[])?;
        Ok(Group { portal: group.portal, _group: group, _servers: servers })
    }

    /// So many machines that may die, and come back.
    pub fn mortal(&mut self, count: u8, detect: &str) -> Result<Mortal> {
        let (group, servers) = self.build(count, detect, Face::Tokio, &COMES_BACK)?;
        Ok(Mortal { group, servers, goes_on: AtomicBool::new(false) })
    }

    /// A MariaDB server alone, and a group of so many machines with one each, all with the same data.
    pub fn mariadb(&mut self, count: u8) -> Result<(Database, Database)> {
        let folder = self.folder.join("mariadb");
        let alone_folder = folder.join("alone");
        std::fs::create_dir_all(&alone_folder)
            .with_context(|| format!("cannot create {}", alone_folder.display()))?;
        let settings = Settings {
            outlast: &self.outlast,
            folder: &folder,
            name: "bench",
            prefix: "m",
            servers: count,
            witnesses: u8::from(count == 2),
            portal: (LAST_PORTAL - self.groups, SERVER_PORT),
            lines: "protocol = \"mysql\"\n",
            detect: DETECT,
        };
        let mut group = replicas::Group::build(&self.place, &settings)?;
        self.groups += 1;
        let folders = group.servers().map(|machine| machine.folder.as_path());
        mariadb::install(&folder, folders.chain([alone_folder.as_path()]))?;
        let (host, address) = self.place.host("alone")?;
        let words = mariadb::server_in(&alone_folder, "0.0.0.0");
        let mut command = host.command(&words[0]);
        let log = std::fs::File::create(alone_folder.join("log")).context("cannot write a log")?;
        // Nobody here knows the name of a client.
        command.args(&words[1..]).arg("--skip-name-resolve");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        pin(&mut command, &self.cores);
        let alone = command.spawn()?;
        let prepare = |command: &mut LabCommand| pin(command, &self.cores);
        let nodes: Vec<(String, String, Vec<String>)> = group
            .machines()
            .iter()
            .map(|machine| {
                let password = mariadb::password_file(machine).to_string_lossy().into_owned();
                (machine.name.clone(), password, mariadb::server(machine))
            })
            .collect();
        for (name, password, program) in &nodes {
            let flags = ["--server-password-file", password];
            group.start(name, &Start { flags: &flags, program, prepare: &prepare, ..Start::default() })?;
        }
        let goes_on = AtomicBool::new(false);
        group.wait_for_all(&[], &goes_on)?;
        group.primary(&[], &goes_on)?;
        let address = (address, SERVER_PORT).into();
        group.wait("the server alone takes connections", &goes_on, || {
            matches!(self.client.enter(|| std::net::TcpStream::connect(address).is_ok()), Ok(true))
        })?;
        let portal = group.portal;
        let alone = Database { address, _group: None, _process: Some(alone) };
        Ok((alone, Database { address: portal, _group: Some(group), _process: None }))
    }

    fn build(
        &mut self,
        count: u8,
        detect: &str,
        face: Face,
        flags: &[&str],
    ) -> Result<(replicas::Group, Vec<Echo>)> {
        let folder = self.folder.join(format!("group-{count}"));
        let settings = Settings {
            outlast: &self.outlast,
            folder: &folder,
            name: "bench",
            prefix: &format!("n{count}"),
            servers: count,
            witnesses: u8::from(count == 2),
            portal: (LAST_PORTAL - self.groups, PORTAL_PORT),
            lines: "",
            detect,
        };
        let mut group = replicas::Group::build(&self.place, &settings)?;
        self.groups += 1;
        let mut servers = Vec::new();
        for machine in group.servers() {
            servers.push(self.echo(&machine.host, Ipv4Addr::LOCALHOST.into(), face)?);
        }
        let prepare = |command: &mut LabCommand| pin(command, &self.cores);
        let ports = servers.iter().map(|echo| echo.port).chain([0; u8::MAX as usize]);
        let names: Vec<String> = group.machines().iter().map(|machine| machine.name.clone()).collect();
        for (name, server_port) in names.iter().zip(ports) {
            group.start(name, &Start { server_port, flags, prepare: &prepare, ..Start::default() })?;
        }
        let portal = group.portal;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.client.enter(|| peers::echo_once(portal))? {
            if Instant::now() > deadline {
                let said = group.last_words();
                return Err(error).with_context(|| format!("a group of {count} does not serve: {said}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok((group, servers))
    }
}

impl Mortal {
    /// Where clients connect to.
    pub fn portal(&self) -> SocketAddr {
        self.group.portal
    }

    /// Where they run.
    pub fn client(&self) -> &Host {
        &self.group.client
    }

    /// All machines are members.
    pub fn wait_for_all(&self) -> Result<()> {
        Ok(self.group.wait_for_all(&[], &self.goes_on)?)
    }

    /// Which machine serves clients.
    pub fn primary(&self) -> Result<String> {
        Ok(self.group.primary(&[], &self.goes_on)?)
    }

    /// Waits until another one than this serves clients.
    pub fn other_primary(&self, before: &str) -> Result<()> {
        self.group.primary(&[before], &self.goes_on)?;
        Ok(())
    }

    /// It dies.
    pub fn kill(&mut self, name: &str, death: Death) -> Result<()> {
        Ok(self.group.kill(name, death)?)
    }

    /// It comes back.
    pub fn heal(&mut self, name: &str, death: Death) -> Result<()> {
        if self.group.heal(name, death)? {
            let at = self.group.servers().position(|machine| machine.name == name);
            let echo = at.and_then(|at| self.servers.get(at)).context("there is no such server")?;
            self.group
                .start(name, &Start { server_port: echo.port, flags: &COMES_BACK, ..Start::default() })?;
        }
        Ok(self.group.wait_for_backup(name, &self.goes_on)?)
    }

    /// Another member becomes the primary.
    pub fn switch_over(&self) -> Result<()> {
        let machine = self.group.servers().find(|machine| machine.is_up()).context("nobody runs")?;
        let said = self.group.ask(machine, &["switchover"]);
        ensure!(said.contains("is the primary"), "there is no switchover: {said}");
        Ok(())
    }

    /// How long the last take-over of the present primary took.
    pub fn take_over(&self) -> Result<Duration> {
        let primary = self.primary()?;
        let machine = self.group.servers().find(|machine| machine.name == primary);
        let said = self.group.ask(machine.context("nobody serves")?, &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&said).context("a status is not understood")?;
        let time_us = status.get(0).and_then(|status| status.get("take_over_us")).and_then(|us| us.as_u64());
        Ok(Duration::from_micros(time_us.context("the primary does not say how long it took")?))
    }
}
