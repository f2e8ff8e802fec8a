//! A server that says something else is found, and no other one is taken for such.

use super::Watch;
use crate::simulation::invariants::Violation;
use crate::view::NodeId;
use std::collections::BTreeMap;
use std::format;
extern crate std;

/// A primary takes the server of this node for wrong.
pub fn check(watch: &Watch, node: NodeId) -> Result<(), Violation> {
    if watch.altered == Some(node) {
        return Ok(());
    }
    Err(Violation::new("differences", format!("the server of {node:?} was taken for wrong")))
}

/// At the end.
pub fn has_found(watch: &Watch, found: &BTreeMap<NodeId, NodeId>) -> Result<(), Violation> {
    match watch.altered.filter(|node| watch.has_differed(*node) && !found.contains_key(node)) {
        None => Ok(()),
        Some(node) => {
            let what = format!("nobody has found that the server of {node:?} says something else");
            Err(Violation::new("differences", what))
        }
    }
}
