//! The time of day that a server knows never goes back, and a copy of its data comes with it.

use crate::simulation::invariants::Violation;
use crate::view::NodeId;
use std::format;
extern crate std;

pub fn check(node: NodeId, before_ms: u64, at_ms: u64) -> Result<(), Violation> {
    if at_ms > before_ms {
        return Ok(());
    }
    Err(Violation::new("clock", format!("at {node:?} it is {at_ms} ms after it was {before_ms} ms")))
}

pub fn check_copy(node: NodeId, server_ms: u64, said_ms: u64) -> Result<(), Violation> {
    if said_ms == server_ms {
        return Ok(());
    }
    let what = format!("{node:?} hears that it is {said_ms} ms, with a copy of {server_ms} ms");
    Err(Violation::new("clock", what))
}
