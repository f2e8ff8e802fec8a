//! The ways to break a link, as the demo does them.

use crate::program::Service;
use crate::stage::{Net, Ports};
use anyhow::{Context, Result};
use outlast_lab::{Closed, Direction, Fault, Injected, Side, Told};
use std::sync::Arc;
use std::time::Duration;

/// With `--detect 1s` a silent link is given up after a second: this is silence enough.
const SILENCE: Duration = Duration::from_millis(2500);
/// For what is noticed at once.
const OUTAGE: Duration = Duration::from_millis(1500);

/// Whom a break hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Client,
    Server,
    Socat,
    Nginx,
}

/// One thing to do.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// To the client's own network.
    Near(Fault),
    /// To the way between home and the server.
    Far(Fault),
    /// SIGSTOP.
    Freeze(Who),
    /// SIGKILL, and a new start later.
    Kill(Who),
}

/// A way to break a link.
#[derive(Clone, Debug)]
pub struct Break {
    /// For the table.
    pub kind: &'static str,
    /// For the terminal, while it happens.
    pub what: &'static str,
    /// Done in this order, undone in the opposite one.
    pub acts: Vec<Act>,
    pub lasts: Duration,
}

fn one(kind: &'static str, what: &'static str, acts: impl Into<Vec<Act>>, lasts: Duration) -> Break {
    Break { kind, what, acts: acts.into(), lasts }
}

/// Those of a network.
pub fn of_the_network(ports: Ports) -> Vec<Break> {
    use Act::{Far, Near};
    let reset = Far(Fault::Reset(Told::Both));
    vec![
        one("reset, both sides told", "the connection is reset", [reset], OUTAGE),
        one(
            "link down",
            "the client's network device is switched off",
            [Near(Fault::LinkDown(Side::Client))],
            SILENCE,
        ),
        one("drop, both ways", "everything vanishes silently", [Far(Fault::Drop(None))], SILENCE),
        one(
            "address change",
            "the client gets another address",
            [Near(Fault::AddressChange(Side::Client))],
            OUTAGE,
        ),
        one("NAT rebinding", "the NAT restarts and forgets its ports", [Far(Fault::NatRebind)], OUTAGE),
        one(
            "reset, client told",
            "only the client hears of a reset",
            [Far(Fault::Reset(Told::Only(Side::Client)))],
            OUTAGE,
        ),
        one(
            "drop, one way",
            "what the client sends vanishes",
            [Far(Fault::Drop(Some(Direction::ToServer)))],
            SILENCE,
        ),
        one(
            "server port closed",
            "the connection is reset, and the server's port refuses new ones",
            [Far(Fault::PortClosed(ports.listen, Closed::Refuse)), reset],
            OUTAGE,
        ),
        one(
            "reset, server told",
            "only the server hears of a reset",
            [Far(Fault::Reset(Told::Only(Side::Server)))],
            OUTAGE,
        ),
        one("roaming", "the client moves to its other network", [Near(Fault::Roam)], SILENCE),
        one("NAT forgets", "the NAT drops what it does not remember", [Far(Fault::NatForget)], OUTAGE),
        one(
            "link down",
            "the server's network device is switched off",
            [Far(Fault::LinkDown(Side::Server))],
            SILENCE,
        ),
        one(
            "drop, one way",
            "what the server sends vanishes",
            [Far(Fault::Drop(Some(Direction::ToClient)))],
            SILENCE,
        ),
        one(
            "suspend",
            "the client's machine sleeps: its program stands still and its link is dead",
            [Act::Freeze(Who::Client), Far(Fault::Drop(None))],
            SILENCE,
        ),
    ]
}

/// Those of programs at either end.
pub fn of_the_ends() -> Vec<Break> {
    vec![
        one(
            "program stopped",
            "the server's outlast is stopped (SIGSTOP)",
            [Act::Freeze(Who::Server)],
            SILENCE,
        ),
        one(
            "program stopped",
            "the client's programs are stopped (SIGSTOP)",
            [Act::Freeze(Who::Client)],
            SILENCE,
        ),
    ]
}

/// Those of socat in between.
pub fn of_socat() -> Vec<Break> {
    vec![
        one("relay killed", "socat on the way is killed (SIGKILL)", [Act::Kill(Who::Socat)], OUTAGE),
        one(
            "relay stopped",
            "socat on the way is stopped (SIGSTOP): silence",
            [Act::Freeze(Who::Socat)],
            SILENCE,
        ),
    ]
}

/// Those of socat and nginx in between.
pub fn of_relays() -> Vec<Break> {
    let mut breaks = of_socat();
    let nginx = Act::Kill(Who::Nginx);
    breaks.insert(1, one("relay killed", "nginx on the way is killed (SIGKILL)", [nginx], OUTAGE));
    breaks.push(one("relay killed", "both relays are killed", [Act::Kill(Who::Socat), nginx], OUTAGE));
    breaks
}

/// The programs that can be hit.
pub type Programs = [(Who, Arc<Service>)];

fn program(programs: &Programs, who: Who) -> Result<Arc<Service>> {
    let found = programs.iter().find(|(name, _)| *name == who);
    found.map(|(_, service)| Arc::clone(service)).with_context(|| format!("no {who:?} in this transfer"))
}

/// What undoes an act.
enum Undo {
    Heal(Injected),
    Thaw(Arc<Service>),
    Restart(Arc<Service>),
}

/// Breaks that are in effect. Dropped, those of the network end; programs are ended with their handles.
pub struct Broken(Vec<Undo>);

impl Break {
    /// Does it.
    pub fn begin(&self, net: Option<&Net>, programs: &Programs) -> Result<Broken> {
        let net = || net.context("this break needs a lab");
        let mut broken = Broken(Vec::new());
        for act in &self.acts {
            let undo = match *act {
                Act::Near(fault) => Undo::Heal(fault.inject(&net()?.near)?),
                Act::Far(fault) => Undo::Heal(fault.inject(&net()?.far)?),
                Act::Freeze(who) => {
                    let program = program(programs, who)?;
                    program.running().freeze()?;
                    Undo::Thaw(program)
                }
                Act::Kill(who) => {
                    let program = program(programs, who)?;
                    program.running().kill();
                    Undo::Restart(program)
                }
            };
            broken.0.push(undo);
        }
        Ok(broken)
    }

    /// Whether there is something to undo.
    pub fn heals(&self) -> bool {
        self.acts.iter().any(|act| match act {
            Act::Near(fault) | Act::Far(fault) => !fault.is_instant(),
            Act::Freeze(_) | Act::Kill(_) => true,
        })
    }
}

impl Broken {
    /// Undoes everything.
    pub fn heal(mut self) -> Result<()> {
        while let Some(undo) = self.0.pop() {
            match undo {
                Undo::Heal(injected) => injected.heal()?,
                Undo::Thaw(service) => service.running().thaw()?,
                Undo::Restart(service) => service.restart()?,
            }
        }
        Ok(())
    }
}
