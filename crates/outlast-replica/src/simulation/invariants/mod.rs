//! What has to hold in every schedule.

mod bounded_log;
mod delivered_once;
mod excluded_nodes_stop;
mod one_order;
pub mod progress;
pub mod same_logs;

use super::cluster::Cluster;
use crate::view::NodeId;
use bounded_log::BoundedLog;
use core::fmt;
use delivered_once::DeliveredOnce;
use one_order::OneOrder;
extern crate std;
use std::string::String;

/// Something does not hold.
#[derive(Debug)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

impl Violation {
    pub fn new(invariant: &'static str, what: String) -> Self {
        Self { invariant, what }
    }
}

/// What is looked at as it happens.
#[derive(Debug, Default)]
pub struct Watch {
    one_order: OneOrder,
    delivered_once: DeliveredOnce,
}

impl Watch {
    /// A node joins with the state after this index.
    pub fn joined(&mut self, node: NodeId, index: u64) {
        self.one_order.joined(node, index);
    }

    /// A node delivers.
    pub fn delivered(&mut self, node: NodeId, index: u64, entry: u64) -> Result<(), Violation> {
        self.one_order.delivered(node, index, entry)?;
        self.delivered_once.delivered(index, entry)
    }

    /// After every step.
    pub fn check(&self, cluster: &Cluster) -> Result<(), Violation> {
        bounded_log::check(&BoundedLog, cluster)?;
        excluded_nodes_stop::check(cluster)
    }
}
