//! A group of machines that replicate a server: hosts of a lab on one switch.

use anyhow::{Context, Result, bail, ensure};
use outlast_lab::{Direction, Host, Lab, Link, Process, Side};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between nodes.
const PEER_PORT: u16 = 7400;
/// Of the server on each machine, at 127.0.0.1.
pub const SERVER_PORT: u16 = 6380;
/// The last part of the portal's address.
const PORTAL_LAST: u8 = 250;
/// Longer than anything takes that goes well.
pub const PATIENCE: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(20);
/// A process that is killed is gone.
const END_WITHIN: Duration = Duration::from_secs(2);
/// How `outlast replicate status` calls them.
const PRIMARY: &str = "primary, serves clients";
const BACKUP: &str = "backup";

/// How a machine dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Everything on it is gone at once, and nothing leaves any more.
    PowerOff,
    /// Nothing leaves it, and nothing comes. It goes on.
    CutOff,
    /// Its node is killed (SIGKILL).
    Killed,
    /// Its node stands still (SIGSTOP), and goes on later as if nothing had been.
    Stopped,
}

impl Death {
    pub const ALL: [Self; 4] = [Self::PowerOff, Self::Stopped, Self::CutOff, Self::Killed];

    /// For the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::PowerOff => "power off",
            Self::CutOff => "cut off",
            Self::Killed => "SIGKILL",
            Self::Stopped => "SIGSTOP",
        }
    }
}

/// One machine.
#[derive(Debug)]
pub struct Machine {
    pub name: String,
    pub host: Host,
    pub folder: PathBuf,
    link: Link,
    is_witness: bool,
    node: Option<Process>,
}

/// All of them, a client, and the switch between.
pub struct Group {
    pub client: Host,
    pub portal: SocketAddr,
    machines: Vec<Machine>,
    outlast: PathBuf,
    file: PathBuf,
    // Goes last: everything above is in it.
    _lab: Lab,
}

impl Group {
    /// So many machines with a server (a, b …), and so many that only vote (w, x …). `lines` are more of the group file; a machine that is silent
    /// for `detect` is taken for dead.
    pub fn build(
        (outlast, folder): (&Path, &Path),
        name: &str,
        (servers, witnesses): (u8, u8),
        (port, lines): (u16, &str),
        detect: &str,
    ) -> Result<Self> {
        let lab = Lab::new(name)?;
        let switch = lab.switch("middle")?;
        let client = lab.host("client")?;
        lab.attach(&client, &switch)?;
        let letters = (b'a'..b'a' + servers).chain(b'w'..b'w' + witnesses);
        let machines = letters.map(|letter| {
            let name = char::from(letter).to_string();
            let host = lab.host(&name)?;
            let link = lab.attach(&host, &switch)?;
            let folder = folder.join(&name);
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            Ok(Machine { name, host, folder, link, is_witness: letter >= b'w', node: None })
        });
        let machines = machines.collect::<Result<Vec<_>>>()?;
        let first = machines.first().context("a group has no machine")?;
        let [a, b, c, _] = first.address()?.octets();
        let portal = SocketAddr::from(([a, b, c, PORTAL_LAST], port));
        let mut list = format!("name = \"{name}\"\nportal = \"{portal}\"\ndetect = \"{detect}\"\n{lines}");
        for machine in &machines {
            let (name, address, is_witness) = (&machine.name, machine.address()?, machine.is_witness);
            writeln!(list, "[[node]]\nname = \"{name}\"\naddress = \"{address}:{PEER_PORT}\"")?;
            if is_witness {
                list.push_str("witness = true\n");
            }
        }
        let file = folder.join("group.toml");
        std::fs::write(&file, list).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { client, portal, machines, outlast: outlast.to_owned(), file, _lab: lab })
    }

    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Those with a server.
    pub fn servers(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(|machine| !machine.is_witness)
    }

    fn at(&self, name: &str) -> Result<usize> {
        self.machines.iter().position(|machine| machine.name == name).context("there is no such machine")
    }

    /// Starts the node of a machine, with its server. The command line, as one would type it.
    pub fn start(&mut self, name: &str, flags: &[&str], program: &[String]) -> Result<Vec<String>> {
        let at = self.at(name)?;
        let machine = &mut self.machines[at];
        let mut words = vec!["replicate".to_owned()];
        words.extend(["--group", &self.file.to_string_lossy(), "--node", name].map(str::to_owned));
        words.extend(["--state-folder".to_owned(), machine.folder.to_string_lossy().into_owned()]);
        if !machine.is_witness {
            words.extend(["--server".to_owned(), format!("127.0.0.1:{SERVER_PORT}")]);
            words.extend(flags.iter().map(|&flag| flag.to_owned()));
            words.push("--".to_owned());
            words.extend(program.iter().cloned());
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(machine.log())
            .with_context(|| format!("cannot write {}", machine.log().display()))?;
        let mut command = machine.host.command(&self.outlast);
        command.args(&words).env("XDG_RUNTIME_DIR", &machine.folder);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        machine.node = Some(command.spawn()?);
        words.insert(0, "outlast".to_owned());
        Ok(words)
    }

    /// What `outlast replicate status` on a machine says that it is.
    fn role(&self, machine: &Machine) -> String {
        let status = Command::new(&self.outlast)
            .args(["replicate", "status"])
            .env("XDG_RUNTIME_DIR", &machine.folder)
            .stderr(Stdio::null())
            .output();
        let said = status.map(|output| output.stdout).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        said.lines().next().and_then(|line| line.rsplit(": ").next()).unwrap_or_default().to_owned()
    }

    /// Waits until a machine, none of these, serves clients: which.
    pub fn primary(&self, gone: &[&str], interrupted: &AtomicBool) -> Result<String> {
        let mut found = None;
        self.wait("a machine serves clients", interrupted, || {
            let mut left = self.servers().filter(|machine| !gone.contains(&machine.name.as_str()));
            found = left.find(|machine| machine.is_up() && self.role(machine) == PRIMARY);
            found.is_some()
        })?;
        Ok(found.context("nobody serves")?.name.clone())
    }

    /// Waits until a machine is a member.
    pub fn wait_for_member(&self, name: &str, interrupted: &AtomicBool) -> Result<()> {
        let machine = &self.machines[self.at(name)?];
        self.wait(&format!("machine {name} is a member"), interrupted, || self.is_member(machine))
    }

    /// Waits until all machines with a server are members, but for these.
    pub fn wait_for_all(&self, gone: &[&str], interrupted: &AtomicBool) -> Result<()> {
        self.wait("all machines are members", interrupted, || {
            let mut left = self.servers().filter(|machine| !gone.contains(&machine.name.as_str()));
            left.all(|machine| self.is_member(machine))
        })
    }

    /// Waits until a machine that was the primary is a member again: another one is the primary now.
    pub fn wait_for_backup(&self, name: &str, interrupted: &AtomicBool) -> Result<()> {
        let machine = &self.machines[self.at(name)?];
        self.wait(&format!("machine {name} is a backup"), interrupted, || {
            machine.is_up() && self.role(machine) == BACKUP
        })
    }

    /// What a node has said of servers that answered differently, if one did.
    pub fn differed(&self) -> Option<String> {
        let logs = self.machines.iter().filter_map(|machine| std::fs::read_to_string(machine.log()).ok());
        logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>())
            .find(|line| line.contains("answered differently") || line.contains("answers otherwise"))
    }

    fn is_member(&self, machine: &Machine) -> bool {
        machine.is_up() && [PRIMARY, BACKUP].contains(&self.role(machine).as_str())
    }

    /// Machines whose servers have all that clients were told.
    pub fn members(&self) -> impl Iterator<Item = &Machine> {
        self.servers().filter(|machine| self.is_member(machine))
    }

    /// Waits for something that comes.
    pub fn wait(&self, what: &str, interrupted: &AtomicBool, mut is_so: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
            if Instant::now() > deadline {
                bail!("waited {PATIENCE:?} until {what}.{}", self.last_words());
            }
            std::thread::sleep(ASK_EVERY);
        }
        Ok(())
    }

    /// What the nodes have said last.
    pub fn last_words(&self) -> String {
        const LINES: usize = 5;
        let mut all = String::new();
        for machine in &self.machines {
            let log = std::fs::read_to_string(machine.log()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(LINES).collect();
            for line in lines.iter().rev() {
                let _ = write!(all, "\n  {}: {line}", machine.name);
            }
        }
        all
    }

    /// It dies.
    pub fn kill(&mut self, name: &str, death: Death) -> Result<()> {
        let at = self.at(name)?;
        let machine = &mut self.machines[at];
        match death {
            Death::PowerOff => {
                machine.block(true)?;
                let _ = machine.power_off();
            }
            Death::CutOff => machine.block(true)?,
            Death::Killed => machine.node.take().context("it does not run")?.kill(),
            Death::Stopped => machine.node.as_ref().context("it does not run")?.freeze()?,
        }
        Ok(())
    }

    /// What was done to it is undone. Whether its node has to be started again.
    pub fn heal(&mut self, name: &str, death: Death) -> Result<bool> {
        let at = self.at(name)?;
        let machine = &mut self.machines[at];
        match death {
            Death::PowerOff | Death::CutOff => machine.block(false)?,
            Death::Killed => {}
            Death::Stopped => machine.node.as_ref().context("it does not run")?.thaw()?,
        }
        // A node may have ended meanwhile, as its server was taken from it.
        Ok(!machine.is_up())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let servers: Vec<Pid> = self.machines.iter_mut().flat_map(Machine::power_off).collect();
        // One that is dead, and that nobody has asked for, has no command line.
        let line = |server: &Pid| std::fs::read(format!("/proc/{}/cmdline", server.as_raw_nonzero()));
        let lives = |server: &Pid| line(server).is_ok_and(|line| !line.is_empty());
        let deadline = Instant::now() + END_WITHIN;
        while servers.iter().any(lives) && Instant::now() < deadline {
            std::thread::sleep(ASK_EVERY);
        }
    }
}

impl Machine {
    fn address(&self) -> Result<std::net::Ipv4Addr> {
        Ok(self.link.addresses(Side::Client).context("a machine has no address")?.v4)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub fn is_up(&self) -> bool {
        self.node.as_ref().is_some_and(|node| matches!(node.try_wait(), Ok(None)))
    }

    fn block(&self, blocked: bool) -> Result<()> {
        for direction in Direction::BOTH {
            self.link.set_blocked(direction, blocked)?;
        }
        Ok(())
    }

    /// As if the power went: nobody has a chance to say anything. Processes of the server that may take a moment to end.
    fn power_off(&mut self) -> Vec<Pid> {
        let Some(node) = self.node.take() else { return Vec::new() };
        let children = format!("/proc/{0}/task/{0}/children", node.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let servers =
            children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw);
        let servers: Vec<Pid> = servers.collect();
        for server in &servers {
            // It may have ended.
            let _ = kill_process(*server, Signal::KILL);
        }
        node.kill();
        servers
    }
}
