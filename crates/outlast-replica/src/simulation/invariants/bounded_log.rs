//! A node keeps no more than it may. An entry that has just come may be above that at a follower, whose primary has bounded it.

use super::Violation;
use crate::simulation::cluster::{Cluster, LOG_BYTES_MAX};
use std::format;
extern crate std;

#[derive(Debug)]
pub struct BoundedLog;

pub fn check(_: &BoundedLog, cluster: &Cluster) -> Result<(), Violation> {
    for (node, order) in cluster.living() {
        if order.log_bytes() > LOG_BYTES_MAX {
            let what = format!("{node:?} keeps {} bytes of {LOG_BYTES_MAX}", order.log_bytes());
            return Err(Violation::new("bounded log", what));
        }
    }
    Ok(())
}
