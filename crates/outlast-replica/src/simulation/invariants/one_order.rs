//! At each index every node delivers the same entry, without leaving one out. What a primary has delivered, clients may know: so
//! nothing of that is lost, whoever leads later.

use super::Violation;
use crate::view::NodeId;
use std::collections::BTreeMap;
use std::format;
extern crate std;

#[derive(Debug, Default)]
pub struct OneOrder {
    /// What was delivered first at each index, and by whom.
    order: BTreeMap<u64, (u64, NodeId)>,
    delivered: BTreeMap<NodeId, u64>,
}

impl OneOrder {
    pub fn joined(&mut self, node: NodeId, index: u64) {
        self.delivered.insert(node, index);
    }

    pub fn delivered(&mut self, node: NodeId, index: u64, entry: u64) -> Result<(), Violation> {
        let before = self.delivered.insert(node, index).unwrap_or(0);
        let (first, by) = *self.order.entry(index).or_insert((entry, node));
        let violation = |what| Err(Violation::new("one order", what));
        if index != before + 1 {
            return violation(format!("{node:?} delivers {index} after {before}"));
        }
        if first != entry {
            return violation(format!("{index} is {first} at {by:?} and {entry} at {node:?}"));
        }
        Ok(())
    }
}
