//! Where links break: two hosts with a router between them, and all the ways the lab has to part them.

use super::PORT;
use outlast_lab::{
    Closed, Direction, Fault, Host, Lab, Link, Nat, Process, Role, Side, Target, Told, WireSpec,
};
use outlast_stream::SplitMix64;
use std::time::Duration;

/// What is between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// A router, and two links to it to roam between.
    Router,
    /// A router that hides the client behind its own address.
    Nat,
}

/// The hosts and what joins them.
pub struct Scene {
    _lab: Lab,
    pub client: Host,
    pub server: Host,
    pub middle: Host,
    first: Link,
    second: Link,
    /// Between the router and the server.
    pub far: Link,
    nat: Option<Nat>,
}

impl Scene {
    pub fn new(between: Between) -> Self {
        let lab = Lab::new("breakages").unwrap();
        let client = lab.host("client").unwrap();
        let middle = lab.router("middle").unwrap();
        let server = lab.host("server").unwrap();
        let spec =
            WireSpec { delay: Duration::from_micros(300), ..WireSpec::default() }.with_rate(40_000_000);
        let first = lab.wire(&client, &middle, spec).unwrap();
        let second = lab.wire(&client, &middle, spec).unwrap();
        let far = lab.connect(&server, &middle).unwrap();
        client.route_default(&first).unwrap();
        server.route_default(&far).unwrap();
        let nat = (between == Between::Nat).then(|| Nat::masquerade(&middle, &far).unwrap());
        Self { _lab: lab, client, server, middle, first, second, far, nat }
    }

    /// All that the faults need; the programs can be stopped.
    pub fn target(&self, client: &Process, server: &Process) -> Target {
        let target = Target::between(&self.client, &self.server, &self.first)
            .with_second_link(&self.second)
            .with_port(PORT)
            .with_process(Role::Client, client)
            .with_process(Role::Server, server);
        match &self.nat {
            Some(nat) => target.with_nat(nat),
            None => target,
        }
    }
}

/// One way to break, for how many milliseconds, and how often for each time that the slow ones come.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub name: &'static str,
    pub fault: Fault,
    lasts_ms: (u64, u64),
    often: usize,
}

const fn way(name: &'static str, fault: Fault, lasts_ms: (u64, u64), often: usize) -> Way {
    Way { name, fault, lasts_ms, often }
}

const ROUTER: [Way; 18] = [
    way("reset both", Fault::Reset(Told::Both), (0, 0), 3),
    way("reset client", Fault::Reset(Told::Only(Side::Client)), (0, 0), 3),
    way("reset server", Fault::Reset(Told::Only(Side::Server)), (0, 0), 3),
    way("address", Fault::AddressChange(Side::Client), (0, 0), 3),
    way("port reset", Fault::PortReset(PORT), (20, 200), 3),
    way("port closed", Fault::PortClosed(PORT, Closed::Refuse), (20, 200), 2),
    way("port silent", Fault::PortClosed(PORT, Closed::Ignore), (20, 200), 2),
    way("drop both", Fault::Drop(None), (50, 600), 1),
    way("drop up", Fault::Drop(Some(Direction::ToServer)), (50, 600), 1),
    way("drop down", Fault::Drop(Some(Direction::ToClient)), (50, 600), 1),
    // Longer than `detect_timeout`: what hears nothing for so long gives up.
    way("time-out", Fault::Drop(None), (900, 1300), 1),
    way("time-out up", Fault::Drop(Some(Direction::ToServer)), (900, 1300), 1),
    way("link down", Fault::LinkDown(Side::Client), (20, 500), 1),
    way("router down", Fault::LinkDown(Side::Server), (20, 500), 1),
    way("roam", Fault::Roam, (20, 400), 2),
    way("suspend", Fault::Suspend, (50, 1300), 1),
    way("stop client", Fault::Freeze(Role::Client), (20, 400), 1),
    way("stop server", Fault::Freeze(Role::Server), (20, 400), 1),
];

const NAT: [Way; 4] = [
    way("nat rebind", Fault::NatRebind, (0, 0), 3),
    way("nat forget", Fault::NatForget, (0, 0), 1),
    way("nat reset", Fault::Reset(Told::Both), (0, 0), 1),
    way("nat drop", Fault::Drop(None), (20, 300), 1),
];

impl Between {
    pub fn ways(self) -> &'static [Way] {
        match self {
            Between::Router => &ROUTER,
            Between::Nat => &NAT,
        }
    }
}

/// One breakage.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub after: Duration,
    pub way: Way,
    pub lasts: Duration,
}

/// `count` breakages at random instants: shuffled rounds, in each of which every way comes, so that none is left out.
pub fn plan(ways: &[Way], count: usize, random: &mut SplitMix64) -> Vec<Step> {
    let mut steps = Vec::with_capacity(count);
    while steps.len() < count && !ways.is_empty() {
        let mut round: Vec<Way> = ways.iter().flat_map(|way| std::iter::repeat_n(*way, way.often)).collect();
        for last in (1..round.len()).rev() {
            round.swap(last, random.below(last as u64 + 1) as usize);
        }
        round.truncate(count - steps.len());
        steps.extend(round.into_iter().map(|way| {
            let (least, most) = way.lasts_ms;
            Step {
                after: Duration::from_micros(random.below(60_000)),
                way,
                lasts: Duration::from_millis(least + random.below(most - least + 1)),
            }
        }));
    }
    steps
}
