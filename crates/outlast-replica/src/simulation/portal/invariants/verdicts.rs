//! Each packet gets one verdict, and few wait for theirs.

use super::super::node::Node;
use crate::PacketId;
use crate::simulation::invariants::Violation;
use std::format;
extern crate std;

/// Packets of a few clients that wait at one node: more are forgotten ones.
const WAITING_MAX: usize = 3_000;

pub fn check(node: &Node) -> Result<(), Violation> {
    if node.waiting() <= WAITING_MAX {
        return Ok(());
    }
    Err(Violation::new("verdicts", format!("{:?} holds {} packets", node.me, node.waiting())))
}

/// A packet got a verdict that had one.
pub fn second(packet: PacketId) -> Violation {
    Violation::new("verdicts", format!("{packet:?} has two"))
}
