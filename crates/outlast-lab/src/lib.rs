//! A laboratory for connections: hosts in network namespaces, wires with delay and loss, and faults on demand.
#![warn(unreachable_pub)]
#![deny(unsafe_code)]

mod available;
mod command;
mod error;
mod fault;
mod firewall;
mod host;
mod inject;
mod lab;
mod link;
mod nat;
mod netlink;
mod netns;
mod plan;
#[cfg(feature = "tokio")]
mod runtime;
mod segment;
mod service;
mod sweep;
mod switch;
mod sys;
mod wire;

pub use available::{Skipped, Unavailable, skip_unless_available};
pub use command::{LabCommand, Process};
pub use error::{Error, Result};
pub use fault::{Closed, Fault, Role, Told};
pub use host::Host;
pub use inject::{Injected, Target};
pub use lab::Lab;
pub use link::{Addresses, Direction, Link, Side};
pub use nat::Nat;
pub use netlink::diag::{Connection, Connections};
pub use netns::NetnsGuard;
pub use plan::{Event, FaultPlan, Menu, Step, Stop};
#[cfg(feature = "tokio")]
pub use runtime::HostRuntime;
pub use service::Service;
pub use switch::Switch;
pub use wire::{LaneStats, Random, WireSpec};
