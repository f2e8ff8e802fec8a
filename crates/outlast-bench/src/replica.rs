//! Machines that replicate a server: hosts on one switch, each with the server and its node.

use crate::options::Options;
use crate::peers;
use crate::place;
use crate::wire::{Endpoint, Face, Kind};
use anyhow::{Context, Result, bail};
use outlast_lab::{Host, Lab, LabCommand, Process, Side, Switch};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// For a group to serve.
const PATIENCE: Duration = Duration::from_secs(20);
const PEER_PORT: u16 = 7400;
const PORTAL_PORT: u16 = 7000;
/// The portal of the first group has this last part of its address, the next one a smaller one.
const LAST_PORTAL: u8 = 250;

/// The place of an experiment with replicas.
pub struct Machines {
    lab: Lab,
    switch: Switch,
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
    _nodes: Vec<Process>,
    _servers: Vec<Echo>,
}

impl Machines {
    /// A client on a switch. All that is started runs on these cores, and keeps files in that folder.
    pub fn new(options: &Options, folder: &Path, cores: &[usize]) -> Result<Self> {
        let outlast = peers::outlast_program(options)?;
        let lab = Lab::new("replica")?;
        let switch = lab.switch("middle")?;
        let client = lab.host("client")?;
        lab.attach(&client, &switch)?;
        Ok(Self { lab, switch, client, outlast, folder: folder.to_owned(), cores: cores.to_vec(), groups: 0 })
    }

    fn host(&self, name: &str) -> Result<(Host, Ipv4Addr)> {
        let host = self.lab.host(name)?;
        let link = self.lab.attach(&host, &self.switch)?;
        let addresses = link.addresses(Side::Client).context("a host has no address")?;
        Ok((host, addresses.v4))
    }

    fn spawn(&self, command: &mut LabCommand) -> Result<Process> {
        let cores = self.cores.clone();
        // SAFETY: one system call on what is there already; nothing is allocated between fork and exec.
        unsafe { command.as_std_mut().pre_exec(move || place::pin(&cores)) };
        Ok(command.spawn()?)
    }

    fn echo(&self, host: &Host, address: IpAddr) -> Result<Echo> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let endpoint = Endpoint::new(Face::Blocking, Kind::Raw).to_string();
        let mut command = host.command(this);
        command.args(["serve", "--address", &address.to_string(), "--workers", "1", "--endpoint", &endpoint]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let process = self.spawn(&mut command)?;
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
        let (host, address) = self.host("alone")?;
        let echo = self.echo(&host, address.into())?;
        Ok(Alone { address: (address, echo.port).into(), _echo: echo })
    }

    /// So many machines with the server, and a witness where they are two.
    pub fn group(&mut self, count: usize) -> Result<Group> {
        let names = (0..count).map(|at| (format!("n{count}{at}"), false));
        let witness = (count == 2).then(|| (format!("w{count}"), true));
        let machines = names.chain(witness).map(|(name, is_witness)| {
            let (host, address) = self.host(&name)?;
            Ok((name, host, address, is_witness))
        });
        let machines = machines.collect::<Result<Vec<_>>>()?;
        let [a, b, c, _] = machines.first().context("a group has no machine")?.2.octets();
        let portal = SocketAddr::from(([a, b, c, LAST_PORTAL - self.groups], PORTAL_PORT));
        self.groups += 1;
        let folder = self.folder.join(format!("group-{count}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        // A busy machine is not to be taken for a dead one: nothing dies here.
        let mut list = format!("name = \"bench\"\nportal = \"{portal}\"\ndetect = \"5s\"\n");
        for (name, _, address, is_witness) in &machines {
            writeln!(
                list,
                "[[node]]\nname = \"{name}\"\naddress = \"{address}:{PEER_PORT}\"\nwitness = {is_witness}"
            )?;
        }
        let file = folder.join("group.toml");
        std::fs::write(&file, list).with_context(|| format!("cannot write {}", file.display()))?;
        let (mut nodes, mut servers) = (Vec::new(), Vec::new());
        for (name, host, _, is_witness) in &machines {
            let state = folder.join(name);
            std::fs::create_dir_all(&state).with_context(|| format!("cannot create {}", state.display()))?;
            let log = File::create(state.join("log")).context("cannot write a log")?;
            let mut command = host.command(&self.outlast);
            command.args(["replicate", "--node", name, "--admin-socket", "none", "--group"]);
            command.arg(&file).arg("--state-folder").arg(&state);
            if *is_witness {
                command.arg("--witness");
            } else {
                let echo = self.echo(host, Ipv4Addr::LOCALHOST.into())?;
                command.args(["--server", &format!("127.0.0.1:{}", echo.port)]);
                servers.push(echo);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            nodes.push(self.spawn(&mut command)?);
        }
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.client.enter(|| peers::echo_once(portal))? {
            if Instant::now() > deadline {
                let said =
                    std::fs::read_to_string(folder.join(&machines[0].0).join("log")).unwrap_or_default();
                return Err(error).with_context(|| format!("a group of {count} does not serve: {said}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Group { portal, _nodes: nodes, _servers: servers })
    }
}
