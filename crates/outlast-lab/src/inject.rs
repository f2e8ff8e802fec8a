//! Carrying faults out, and undoing them.

use std::collections::HashMap;

use crate::command::Process;
use crate::error::{Error, Result};
use crate::fault::{Closed, Fault, Role, Told};
use crate::firewall;
use crate::host::Host;
use crate::link::{Direction, Link, Side};
use crate::nat::Nat;
use crate::netlink::diag::Connections;
use crate::service::Service;

/// What faults hit: a link with the hosts at the two ends of the connections that run over it, and whatever else
/// the faults in use need. Clones are handles to the same parts.
#[derive(Debug, Clone)]
pub struct Target {
    link: Link,
    client: Host,
    server: Host,
    second_link: Option<Link>,
    nat: Option<Nat>,
    connections: Connections,
    programs: HashMap<Role, Program>,
}

#[derive(Debug, Clone)]
enum Program {
    Process(Process),
    Service(Service),
}

impl Target {
    /// The link, with its own two hosts as client and server.
    #[must_use]
    pub fn new(link: &Link) -> Self {
        Self::between(link.host(Side::Client), link.host(Side::Server), link)
    }

    /// A link on the way between two hosts that need not be its ends.
    #[must_use]
    pub fn between(client: &Host, server: &Host, link: &Link) -> Self {
        Self {
            link: link.clone(),
            client: client.clone(),
            server: server.clone(),
            second_link: None,
            nat: None,
            connections: Connections::outward(),
            programs: HashMap::new(),
        }
    }

    /// Resets only connections with this port at either end; without it, every connection that leaves the host.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.connections = Connections::on_port(port);
        self
    }

    /// The link that the client roams to.
    #[must_use]
    pub fn with_second_link(mut self, link: &Link) -> Self {
        self.second_link = Some(link.clone());
        self
    }

    /// The NAT that forgets.
    #[must_use]
    pub fn with_nat(mut self, nat: &Nat) -> Self {
        self.nat = Some(nat.clone());
        self
    }

    /// A program that can be frozen, and killed for good.
    #[must_use]
    pub fn with_process(mut self, role: Role, process: &Process) -> Self {
        self.programs.insert(role, Program::Process(process.clone()));
        self
    }

    /// A program that can be frozen, and killed and started again.
    #[must_use]
    pub fn with_service(mut self, role: Role, service: &Service) -> Self {
        self.programs.insert(role, Program::Service(service.clone()));
        self
    }

    /// The link that is broken.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    fn host(&self, side: Side) -> &Host {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    fn program(&self, role: Role, fault: Fault) -> Result<&Program> {
        self.programs.get(&role).ok_or_else(|| {
            lacks(fault, "a program", "name it with Target::with_process or Target::with_service")
        })
    }
}

fn lacks(fault: Fault, needs: &'static str, remedy: &'static str) -> Error {
    Error::TargetLacks { fault: fault.to_string(), needs, remedy }
}

type Undo = Box<dyn FnOnce() -> Result<()> + Send>;

/// A fault that is in effect. [`Injected::heal`] ends it; so does dropping it.
///
/// One fault at a time on one part: healing a fault frees what it broke, whoever else may have broken it, too.
#[must_use = "the fault ends when this is dropped"]
pub struct Injected {
    fault: Fault,
    undo: Vec<Undo>,
}

impl std::fmt::Debug for Injected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Injected({})", self.fault)
    }
}

impl Injected {
    /// Which fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// Ends the fault. Faults that are over as soon as they have happened have nothing to heal.
    ///
    /// # Errors
    /// When the kernel refuses, or a program cannot be started again.
    pub fn heal(mut self) -> Result<()> {
        self.undo_all()
    }

    fn undo_all(&mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(undo) = self.undo.pop() {
            result = result.and(undo());
        }
        result
    }

    fn then(&mut self, undo: impl FnOnce() -> Result<()> + Send + 'static) {
        self.undo.push(Box::new(undo));
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        if let Err(error) = self.undo_all() {
            tracing::warn!(%error, fault = %self.fault, "cannot heal");
        }
    }
}

impl Fault {
    /// Whether `target` has every part that the fault needs.
    ///
    /// # Errors
    /// What it lacks, and how to supply it.
    pub fn check(self, target: &Target) -> Result<()> {
        match self {
            Self::Roam => roaming(target).map(drop),
            Self::NatRebind | Self::NatForget => nat(target, self).map(drop),
            Self::Freeze(role) | Self::Kill(role) => target.program(role, self).map(drop),
            Self::Suspend => target.program(Role::Client, self).map(drop),
            Self::AddressChange(side) if target.link.addresses(side).is_none() => Err(lacks(
                self,
                "an address on that side",
                "the port of a switch has none: name the other side",
            )),
            _ => Ok(()),
        }
    }

    /// Breaks `target`. The fault is in full effect when this returns, and lasts until it is healed or dropped.
    /// When it cannot be carried out entirely, what was done is undone.
    ///
    /// # Errors
    /// When the target lacks what the fault needs, or the kernel refuses.
    pub fn inject(self, target: &Target) -> Result<Injected> {
        let mut injected = Injected { fault: self, undo: Vec::new() };
        match self {
            Self::LinkDown(side) => switch_off(&mut injected, &target.link, side)?,
            Self::Drop(Some(direction)) => block(&mut injected, &target.link, direction)?,
            Self::Drop(None) => block_both(&mut injected, &target.link)?,
            Self::Reset(told) => reset(target, told)?,
            Self::AddressChange(side) => target.link.change_address(side).map(drop)?,
            Self::Roam => roam(&mut injected, target)?,
            Self::NatRebind => nat(target, self)?.rebind()?,
            Self::NatForget => nat(target, self)?.forget()?,
            Self::PortClosed(port, how) => {
                let answer: &[&str] = match how {
                    Closed::Refuse => &["-j", "REJECT", "--reject-with", "tcp-reset"],
                    Closed::Ignore => &["-j", "DROP"],
                };
                let port = port.to_string();
                guard_port(
                    &mut injected,
                    &target.server,
                    &[&["-p", "tcp", "--syn", "--dport", &port], answer].concat(),
                )?;
            }
            Self::PortReset(port) => {
                let port = port.to_string();
                let rule = ["-p", "tcp", "--dport", &port, "-j", "REJECT", "--reject-with", "tcp-reset"];
                guard_port(&mut injected, &target.server, &rule)?;
            }
            Self::Freeze(role) => freeze(&mut injected, target.program(role, self)?)?,
            Self::Suspend => {
                freeze(&mut injected, target.program(Role::Client, self)?)?;
                block_both(&mut injected, &target.link)?;
            }
            Self::Kill(role) => kill(&mut injected, target.program(role, self)?)?,
        }
        tracing::debug!(fault = %self, "injected");
        Ok(injected)
    }
}

fn switch_off(injected: &mut Injected, link: &Link, side: Side) -> Result<()> {
    let on = link.clone();
    injected.then(move || on.set_up(side, true));
    link.set_up(side, false)
}

fn block(injected: &mut Injected, link: &Link, direction: Direction) -> Result<()> {
    let free = link.clone();
    injected.then(move || free.set_blocked(direction, false));
    link.set_blocked(direction, true)
}

fn block_both(injected: &mut Injected, link: &Link) -> Result<()> {
    Direction::BOTH.into_iter().try_for_each(|direction| block(injected, link, direction))
}

fn reset(target: &Target, told: Told) -> Result<()> {
    let Told::Only(side) = told else {
        return target.server.abort_connections(target.connections).map(drop);
    };
    // The resets that this host's kernel sends go into a black hole, so that the other side hears nothing.
    let host = target.host(side);
    let links = host.links();
    let swallow = |on| links.iter().try_for_each(|(link, side)| link.set_black_hole(*side, on));
    let done = swallow(true).and_then(|()| host.abort_connections(target.connections));
    swallow(false)?;
    done.map(drop)
}

/// The client's side of its first link, and its second link.
fn roaming(target: &Target) -> Result<(Side, Link)> {
    let second = target.second_link.clone().ok_or_else(|| {
        lacks(Fault::Roam, "a second link of the client", "name it with Target::with_second_link")
    })?;
    let side = target.link.side_of(&target.client).ok_or_else(|| {
        lacks(Fault::Roam, "a link that the client is on", "give Target::between the client's own link")
    })?;
    Ok((side, second))
}

fn roam(injected: &mut Injected, target: &Target) -> Result<()> {
    let (side, second) = roaming(target)?;
    let (client, first) = (target.client.clone(), target.link.clone());
    client.route_default(&second)?;
    injected.then(move || {
        first.set_up(side, true)?;
        client.route_default(&first)
    });
    target.link.set_up(side, false)
}

fn nat(target: &Target, fault: Fault) -> Result<&Nat> {
    target.nat.as_ref().ok_or_else(|| lacks(fault, "a NAT", "name it with Target::with_nat"))
}

fn guard_port(injected: &mut Injected, server: &Host, rule: &[&str]) -> Result<()> {
    firewall::change(server, "filter", "-I", "INPUT", rule)?;
    let (server, rule) = (server.clone(), rule.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    injected.then(move || {
        let rule: Vec<_> = rule.iter().map(String::as_str).collect();
        firewall::change(&server, "filter", "-D", "INPUT", &rule)
    });
    Ok(())
}

fn freeze(injected: &mut Injected, program: &Program) -> Result<()> {
    match program {
        Program::Process(process) => {
            process.freeze()?;
            let process = process.clone();
            injected.then(move || process.thaw());
        }
        Program::Service(service) => {
            service.with(Process::freeze)?;
            let service = service.clone();
            injected.then(move || service.with(Process::thaw));
        }
    }
    Ok(())
}

fn kill(injected: &mut Injected, program: &Program) -> Result<()> {
    match program {
        Program::Process(process) => process.kill(),
        Program::Service(service) => {
            service.kill();
            let service = service.clone();
            injected.then(move || service.restart());
        }
    }
    Ok(())
}
