//! When all is whole again, everything that the last primary has taken is delivered by every member.

use super::Violation;
use crate::simulation::cluster::Cluster;
use std::format;
extern crate std;

pub fn check(cluster: &Cluster) -> Result<(), Violation> {
    let Some(primary) = cluster.primary() else { return Ok(()) };
    let last = primary.last();
    for (node, order) in cluster.living() {
        if primary.view().has(node) && order.delivered() != last {
            let what =
                format!("{node:?} has delivered {} of {last} in {:?}", order.delivered(), order.view());
            return Err(Violation::new("progress", what));
        }
    }
    Ok(())
}
