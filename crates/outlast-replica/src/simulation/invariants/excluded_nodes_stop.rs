//! A member that knows of a view without it neither leads nor takes part.

use super::Violation;
use crate::simulation::cluster::Cluster;
use std::format;
extern crate std;

pub fn check(cluster: &Cluster) -> Result<(), Violation> {
    for (node, order) in cluster.living() {
        if cluster.was_member(node) && !order.view().has(node) && !cluster.is_excluded(node) {
            return Err(Violation::new("excluded nodes stop", format!("{node:?} goes on")));
        }
    }
    Ok(())
}
