//! When all is whole again, no member takes anything for confirmed that the primary does not have.

use super::Violation;
use crate::simulation::cluster::Cluster;
use std::format;
extern crate std;

pub fn check(cluster: &Cluster) -> Result<(), Violation> {
    let Some(primary) = cluster.primary() else { return Ok(()) };
    for (node, order) in cluster.living() {
        if primary.view().has(node) && order.confirmed() > primary.last() {
            let what =
                format!("{node:?} has confirmed {}, the primary has {}", order.confirmed(), primary.last());
            return Err(Violation::new("same logs", what));
        }
    }
    Ok(())
}
