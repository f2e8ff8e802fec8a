//! No packet of the portal leaves a node that has not the lease.

use crate::simulation::invariants::Violation;
use crate::view::NodeId;
use std::format;
extern crate std;

pub fn packet(node: NodeId) -> Violation {
    Violation::new("fenced", format!("{node:?} has sent a packet without the lease"))
}
