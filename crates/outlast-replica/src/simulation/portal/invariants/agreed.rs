//! Where answers wait for other servers, a client gets nothing that those have not said.

use super::super::node::Node;
use crate::ConnectionId;
use crate::simulation::invariants::Violation;
use crate::view::NodeId;
use std::collections::BTreeMap;
use std::format;
use std::vec::Vec;
extern crate std;

/// How far others have agreed, by node and connection; and the view of each node.
#[derive(Debug, Default)]
pub struct Agreed {
    positions: BTreeMap<(NodeId, ConnectionId), u64>,
    epochs: BTreeMap<NodeId, u64>,
}

impl Agreed {
    /// Something has happened at this node, and its clients have got answers on these connections. Of members that have died, or have closed the
    /// connection, nobody knows how far they were.
    pub fn check(
        &mut self,
        nodes: &BTreeMap<NodeId, Node>,
        node: NodeId,
        fed: &[ConnectionId],
    ) -> Result<(), Violation> {
        let Some(primary) = nodes.get(&node) else { return Ok(()) };
        let violation = |what| Err(Violation::new("agreed", what));
        // Those of the view before may have agreed a moment ago.
        let epoch = primary.replica.order().view().epoch;
        let is_same_view = self.epochs.insert(node, epoch) == Some(epoch);
        for connection in primary.replica.connections() {
            let Some((_, agreed)) = primary.replica.given(connection) else { continue };
            let before = self.positions.insert((node, connection), agreed).unwrap_or(0);
            let waits_for = primary
                .replica
                .waits_for(connection)
                .filter(|_| is_same_view && agreed > before && agreed < u64::MAX);
            let Some((others, missing_max)) = waits_for else { continue };
            let lacks = |other: &&NodeId| {
                let said = nodes.get(other).map(|other| other.replica.said(connection).unwrap_or(u64::MAX));
                said.is_some_and(|said| said < agreed)
            };
            let lacking: Vec<&NodeId> = others.iter().filter(lacks).collect();
            if lacking.len() > missing_max {
                return violation(format!(
                    "{lacking:?} of {others:?} have not said {agreed} bytes on {connection:?}"
                ));
            }
        }
        for connection in fed {
            let waits = primary.replica.waits_for(*connection).is_some_and(|(others, _)| !others.is_empty());
            let Some((written, agreed)) = primary.replica.given(*connection).filter(|_| waits) else {
                continue;
            };
            if written > agreed {
                return violation(format!(
                    "{connection:?} gets {written} bytes from {node:?}, and others have agreed to {agreed}"
                ));
            }
        }
        Ok(())
    }
}
