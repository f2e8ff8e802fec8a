//! Groups of machines that replicate a server (`outlast replicate`): hosts on one switch, a server and a node on each, and how such a machine dies.

pub mod mariadb;

use crate::error::Context;
use crate::{Direction, Error, Host, Lab, LabCommand, Link, Process, Result, Side, Switch};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between nodes.
const PEER_PORT: u16 = 7400;
/// Of the server on each machine, at 127.0.0.1.
pub const SERVER_PORT: u16 = 6380;
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
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::PowerOff, Self::Stopped, Self::CutOff, Self::Killed];

    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PowerOff => "power off",
            Self::CutOff => "cut off",
            Self::Killed => "SIGKILL",
            Self::Stopped => "SIGSTOP",
        }
    }
}

/// A client on a switch, to which groups are attached. It goes last: all else is in it.
#[derive(Debug)]
pub struct Place {
    /// Where clients run.
    pub client: Host,
    switch: Switch,
    lab: Lab,
}

impl Place {
    /// In a lab of this name.
    ///
    /// # Errors
    /// This machine cannot run a lab.
    pub fn new(name: &str) -> Result<Self> {
        let lab = Lab::new(name)?;
        let switch = lab.switch("middle")?;
        let client = lab.host("client")?;
        lab.attach(&client, &switch)?;
        Ok(Self { client, switch, lab })
    }

    /// A machine on the switch, and its address.
    ///
    /// # Errors
    /// There is one of this name, or the kernel refuses.
    pub fn host(&self, name: &str) -> Result<(Host, Ipv4Addr)> {
        let (host, link) = self.attached(name)?;
        Ok((host, address_of(&link)?))
    }

    fn attached(&self, name: &str) -> Result<(Host, Link)> {
        let host = self.lab.host(name)?;
        let link = self.lab.attach(&host, &self.switch)?;
        Ok((host, link))
    }
}

fn address_of(link: &Link) -> Result<Ipv4Addr> {
    let addresses = link.addresses(Side::Client);
    addresses
        .map(|addresses| addresses.v4)
        .ok_or_else(|| Error::Invalid("a machine has no address".to_owned()))
}

/// How a group is to be.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The program `outlast`.
    pub outlast: &'a Path,
    /// Each machine gets a folder in it.
    pub folder: &'a Path,
    /// Of the group.
    pub name: &'a str,
    /// Names of machines begin with it: no two groups of a place have the same.
    pub prefix: &'a str,
    /// So many machines have a server: a, b …
    pub servers: u8,
    /// So many only vote: w, x …
    pub witnesses: u8,
    /// The last part of the portal's address, and its port.
    pub portal: (u8, u16),
    /// More of the group file.
    pub lines: &'a str,
    /// A machine that is silent for so long is taken for dead.
    pub detect: &'a str,
}

/// How a node is started.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// Of its server, at 127.0.0.1.
    pub server_port: u16,
    /// More flags, not for those that only vote.
    pub flags: &'a [&'a str],
    /// The server that it starts, and its arguments. Empty: it runs already.
    pub program: &'a [String],
    /// What is to be done before the node is started.
    pub prepare: &'a dyn Fn(&mut LabCommand),
}

impl Default for Start<'_> {
    fn default() -> Self {
        Self { server_port: SERVER_PORT, flags: &[], program: &[], prepare: &|_| {} }
    }
}

/// One machine.
#[derive(Debug)]
pub struct Machine {
    /// As in the group file.
    pub name: String,
    /// Where it runs.
    pub host: Host,
    /// Its own.
    pub folder: PathBuf,
    link: Link,
    is_witness: bool,
    node: Option<Process>,
}

/// All of them.
#[derive(Debug)]
pub struct Group {
    /// Where clients run.
    pub client: Host,
    /// Where they connect to.
    pub portal: SocketAddr,
    machines: Vec<Machine>,
    outlast: PathBuf,
    file: PathBuf,
}

impl Group {
    /// The machines, in this place, and the group file. Nothing is started.
    ///
    /// # Errors
    /// A machine or a file cannot be made.
    pub fn build(place: &Place, settings: &Settings<'_>) -> Result<Self> {
        let Settings { outlast, folder, name, prefix, servers, witnesses, portal, lines, detect } = *settings;
        let letters = (b'a'..b'a' + servers).chain(b'w'..b'w' + witnesses);
        let machines = letters.map(|letter| {
            let name = format!("{prefix}{}", char::from(letter));
            let (host, link) = place.attached(&name)?;
            let folder = folder.join(&name);
            std::fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
            Ok(Machine { name, host, folder, link, is_witness: letter >= b'w', node: None })
        });
        let machines = machines.collect::<Result<Vec<_>>>()?;
        let first = machines.first().ok_or_else(|| Error::Invalid("a group has no machine".to_owned()))?;
        let [a, b, c, _] = address_of(&first.link)?.octets();
        let portal = SocketAddr::from(([a, b, c, portal.0], portal.1));
        let mut list = format!("name = \"{name}\"\nportal = \"{portal}\"\ndetect = \"{detect}\"\n{lines}");
        for machine in &machines {
            let (name, address, is_witness) = (&machine.name, address_of(&machine.link)?, machine.is_witness);
            let _ = writeln!(
                list,
                "[[node]]\nname = \"{name}\"\naddress = \"{address}:{PEER_PORT}\"\nwitness = {is_witness}"
            );
        }
        let file = folder.join(format!("{prefix}group.toml"));
        std::fs::write(&file, list).context(|| format!("cannot write {}", file.display()))?;
        let client = place.client.clone();
        Ok(Self { client, portal, machines, outlast: outlast.to_owned(), file })
    }

    /// All, those with a server first.
    #[must_use]
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Those with a server.
    pub fn servers(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(|machine| !machine.is_witness)
    }

    fn at(&self, name: &str) -> Result<usize> {
        self.machines
            .iter()
            .position(|machine| machine.name == name)
            .ok_or_else(|| Error::Invalid(format!("there is no machine {name}")))
    }

    /// Starts the node of a machine. The command line, as one would type it.
    ///
    /// # Errors
    /// There is no such machine, or the system refuses.
    pub fn start(&mut self, name: &str, start: &Start<'_>) -> Result<Vec<String>> {
        let at = self.at(name)?;
        let machine = &mut self.machines[at];
        let mut words = vec!["replicate".to_owned()];
        words.extend(["--group", &self.file.to_string_lossy(), "--node", name].map(str::to_owned));
        words.extend(["--state-folder".to_owned(), machine.folder.to_string_lossy().into_owned()]);
        if !machine.is_witness {
            words.extend(["--server".to_owned(), format!("127.0.0.1:{}", start.server_port)]);
            words.extend(start.flags.iter().map(|&flag| flag.to_owned()));
            if !start.program.is_empty() {
                words.push("--".to_owned());
                words.extend(start.program.iter().cloned());
            }
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(machine.log())
            .context(|| format!("cannot write {}", machine.log().display()))?;
        let errors = log.try_clone().context(|| "cannot write a log".to_owned())?;
        let mut command = machine.host.command(&self.outlast);
        command.args(&words).env("XDG_RUNTIME_DIR", &machine.folder);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        (start.prepare)(&mut command);
        machine.node = Some(command.spawn()?);
        words.insert(0, "outlast".to_owned());
        Ok(words)
    }

    /// What `outlast replicate` on a machine says to this. Nothing, where it cannot.
    #[must_use]
    pub fn ask(&self, machine: &Machine, arguments: &[&str]) -> String {
        let asked = Command::new(&self.outlast)
            .arg("replicate")
            .args(arguments)
            .env("XDG_RUNTIME_DIR", &machine.folder)
            .stderr(Stdio::null())
            .output();
        let said = asked.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// What `outlast replicate status` on a machine says that it is.
    fn role(&self, machine: &Machine) -> String {
        let said = self.ask(machine, &["status"]);
        said.lines().next().and_then(|line| line.rsplit(": ").next()).unwrap_or_default().to_owned()
    }

    /// Waits until a machine, none of these, serves clients: which.
    ///
    /// # Errors
    /// It takes too long, or is interrupted.
    pub fn primary(&self, gone: &[&str], interrupted: &AtomicBool) -> Result<String> {
        let mut found = None;
        self.wait("a machine serves clients", interrupted, || {
            let mut left = self.servers().filter(|machine| !gone.contains(&machine.name.as_str()));
            found = left.find(|machine| machine.is_up() && self.role(machine) == PRIMARY);
            found.is_some()
        })?;
        found.map(|machine| machine.name.clone()).ok_or_else(|| Error::Invalid("nobody serves".to_owned()))
    }

    /// Waits until a machine is a member.
    ///
    /// # Errors
    /// It takes too long, or is interrupted.
    pub fn wait_for_member(&self, name: &str, interrupted: &AtomicBool) -> Result<()> {
        let machine = &self.machines[self.at(name)?];
        self.wait(&format!("machine {name} is a member"), interrupted, || self.is_member(machine))
    }

    /// Waits until all machines with a server are members, but for these.
    ///
    /// # Errors
    /// It takes too long, or is interrupted.
    pub fn wait_for_all(&self, gone: &[&str], interrupted: &AtomicBool) -> Result<()> {
        self.wait("all machines are members", interrupted, || {
            let mut left = self.servers().filter(|machine| !gone.contains(&machine.name.as_str()));
            left.all(|machine| self.is_member(machine))
        })
    }

    /// Waits until a machine that was the primary is a member again: another one is the primary now.
    ///
    /// # Errors
    /// It takes too long, or is interrupted.
    pub fn wait_for_backup(&self, name: &str, interrupted: &AtomicBool) -> Result<()> {
        let machine = &self.machines[self.at(name)?];
        self.wait(&format!("machine {name} is a backup"), interrupted, || {
            machine.is_up() && self.role(machine) == BACKUP
        })
    }

    /// What a node has said of servers that answered differently, if one did.
    #[must_use]
    pub fn differed(&self) -> Option<String> {
        let logs = self.machines.iter().filter_map(|machine| std::fs::read_to_string(machine.log()).ok());
        logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>())
            .find(|line| line.contains("answered differently") || line.contains("answers otherwise"))
    }

    fn is_member(&self, machine: &Machine) -> bool {
        machine.is_up() && [PRIMARY, BACKUP].contains(&self.role(machine).as_str())
    }

    /// Machines whose servers have all that clients were answered.
    pub fn members(&self) -> impl Iterator<Item = &Machine> {
        self.servers().filter(|machine| self.is_member(machine))
    }

    /// Waits for something that comes.
    ///
    /// # Errors
    /// It takes too long, or is interrupted.
    pub fn wait(&self, what: &str, interrupted: &AtomicBool, mut is_so: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            if interrupted.load(Ordering::Relaxed) {
                return Err(Error::Invalid("interrupted".to_owned()));
            }
            if Instant::now() > deadline {
                return Err(Error::Invalid(format!(
                    "waited {PATIENCE:?} until {what}.{}",
                    self.last_words()
                )));
            }
            std::thread::sleep(ASK_EVERY);
        }
        Ok(())
    }

    /// What the nodes have said last.
    #[must_use]
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
    ///
    /// # Errors
    /// It does not run, or the kernel refuses.
    pub fn kill(&mut self, name: &str, death: Death) -> Result<()> {
        let at = self.at(name)?;
        let machine = &mut self.machines[at];
        match death {
            Death::PowerOff => {
                machine.block(true)?;
                let _ = machine.power_off();
            }
            Death::CutOff => machine.block(true)?,
            Death::Killed => machine.node.take().ok_or_else(does_not_run)?.kill(),
            Death::Stopped => machine.node.as_ref().ok_or_else(does_not_run)?.freeze()?,
        }
        Ok(())
    }

    /// What was done to it is undone. Whether its node has to be started again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn heal(&mut self, name: &str, death: Death) -> Result<bool> {
        let at = self.at(name)?;
        let machine = &mut self.machines[at];
        match death {
            Death::PowerOff | Death::CutOff => machine.block(false)?,
            Death::Killed => {}
            Death::Stopped => machine.node.as_ref().ok_or_else(does_not_run)?.thaw()?,
        }
        // A node may have ended meanwhile, as its server was taken from it.
        Ok(!machine.is_up())
    }
}

fn does_not_run() -> Error {
    Error::Invalid("the node does not run".to_owned())
}

impl Drop for Group {
    fn drop(&mut self) {
        let servers: Vec<i32> = self.machines.iter_mut().flat_map(Machine::power_off).collect();
        // One that is dead, and that nobody has asked for, has no command line.
        let line = |server: &i32| std::fs::read(format!("/proc/{server}/cmdline"));
        let lives = |server: &i32| line(server).is_ok_and(|line| !line.is_empty());
        let deadline = Instant::now() + END_WITHIN;
        while servers.iter().any(lives) && Instant::now() < deadline {
            std::thread::sleep(ASK_EVERY);
        }
    }
}

impl Machine {
    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Whether its node runs.
    #[must_use]
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
    fn power_off(&mut self) -> Vec<i32> {
        let Some(node) = self.node.take() else { return Vec::new() };
        let children = format!("/proc/{0}/task/{0}/children", node.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let servers = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        let servers: Vec<i32> = servers.filter(|pid| *pid > 0).collect();
        for server in &servers {
            // It may have ended.
            let _: io::Result<()> = crate::sys::kill(*server, libc::SIGKILL);
        }
        node.kill();
        servers
    }
}
