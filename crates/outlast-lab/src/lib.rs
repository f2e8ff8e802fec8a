//! A laboratory for connections: hosts in network namespaces, wires with delay and loss, and faults on demand.
//!
//! Programs that must survive broken links are tested by breaking links, of real TCP connections in real kernels.
//! A [`Lab`] makes hosts ([`Lab::host`]) that run on this machine but see only each other, joins them by cables
//! ([`Lab::connect`]), switches ([`Lab::switch`]) or wires with delay, loss and a rate ([`Lab::wire`]), and
//! breaks them by any [`Fault`]. When it is dropped, nothing is left of it.
//!
//! ```
//! use std::io::{ErrorKind, Read, Write};
//! use std::net::{TcpListener, TcpStream};
//! use std::time::Duration;
//! use outlast_lab::{Fault, Lab, Target, WireSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! outlast_lab::require!("the first example"); // skips, loudly, where there is no lab
//! let lab = Lab::new("example")?;
//! let (client, server) = (lab.host("client")?, lab.host("server")?);
//! let link = lab.wire(&client, &server, WireSpec::delay_ms(5))?;
//!
//! // Sockets belong to the host in which they are made, and can be used from everywhere.
//! let address = server.socket_addr(7000);
//! let listener = server.enter(|| TcpListener::bind(address))??;
//! let mut near = client.enter(|| TcpStream::connect(address))??;
//! let (mut far, _) = listener.accept()?;
//!
//! // For a while, nothing gets through; nobody is told.
//! let outage = Fault::Drop(None).inject(&Target::new(&link))?;
//! near.write_all(b"hello")?;
//! far.set_read_timeout(Some(Duration::from_millis(50)))?;
//! assert_eq!(far.read(&mut [0; 5]).unwrap_err().kind(), ErrorKind::WouldBlock);
//!
//! // TCP itself survives that, once it is over. It does not survive this:
//! outage.heal()?;
//! far.set_read_timeout(Some(Duration::from_secs(5)))?;
//! far.read_exact(&mut [0; 5])?;
//! "reset both".parse::<Fault>()?.inject(&Target::new(&link))?.heal()?;
//! assert_eq!(near.read(&mut [0; 5]).unwrap_err().kind(), ErrorKind::ConnectionReset);
//! # Ok(()) }
//! ```
//!
//! # Running things in a host
//!
//! | | |
//! |---|---|
//! | [`Host::command`] | a program, which finds all hosts by name in its `/etc/hosts`; killed with the lab |
//! | [`Host::enter`] | a closure on a fresh thread; the sockets that it returns stay in the host |
//! | [`Host::enter_guard`] | this thread, until the guard is dropped |
//! | [`Host::runtime`] | a tokio runtime, every thread of which is in the host (feature `tokio`, on by default) |
//! | [`Service`] | a program that can be killed and started again |
//!
//! # Breaking things
//!
//! [`Fault::inject`] returns once the fault is in full effect, and gives a guard; healing or dropping the guard
//! ends it. Most faults take microseconds, as they are flags or single requests to the kernel; those of ports go
//! through the program `iptables-legacy` and take milliseconds. [`FaultPlan::random`] draws thousands from a seed and
//! prints them, so that a failure can be repeated. One fault at a time on one part: faults do not add up.
//!
//! What is emulated, and how truly:
//! * A *silent drop* loses what is under way, too, like a cut cable. On a cable (veth) it is a queueing discipline
//!   that drops everything, on a wire a flag. Hosts know each other's hardware addresses for good, so that a long
//!   drop never turns into "host unreachable".
//! * A *reset* is made by the kernel of a host (`SOCK_DESTROY`): its own program reads `ECONNABORTED` where a
//!   reset from the network would give `ECONNRESET`. For a reset that only the client gets, from the network, use
//!   `port reset`.
//! * A *suspended machine* is a stopped program and a dead link: the clocks and the kernel's timers go on. Linux
//!   cannot stop or move `CLOCK_MONOTONIC` for a running process (a time namespace takes only new ones).
//! * A *NAT* is the kernel's own. Rebinding and forgetting flush its table; with random ports a new mapping
//!   differs from the old one but for one chance in forty thousand.
//!
//! # How to measure
//!
//! Kernels whose default congestion control is BBR are slow on cables: measure bulk transfers with
//! [`Host::use_cubic`] on both ends. A wire takes two trips through user space for each packet and suits
//! delays of a millisecond and more; for the speed of the machine itself use a cable.
//!
//! # What it needs
//!
//! Root (CAP_NET_ADMIN and CAP_SYS_ADMIN), `/dev/net/tun`, `iptables-legacy` and `ip6tables-legacy`;
//! [`Lab::available`] says what is missing. No kernel modules for traffic shaping, and no other programs: hosts and
//! links are made through netlink. `ip netns list` shows the hosts of living labs; `ip netns exec` enters them.
//!
//! # What is left behind
//!
//! Nothing, if the lab is dropped, also by a panic. A process that is killed takes its programs and wires along but
//! leaves the names of its namespaces, which carry its number and the time of its start: the next
//! [`Lab::new`] on the machine removes them, as does [`Lab::sweep`] or `outlast lab sweep`. Labs of living processes
//! are never touched.
#![warn(unreachable_pub)]
#![deny(unsafe_code)]

mod available;
#[cfg(feature = "cli")]
pub mod cli;
mod command;
mod error;
mod fault;
mod firewall;
mod host;
mod inject;
mod lab;
mod link;
mod memory;
mod nat;
mod netlink;
mod netns;
mod plan;
mod port;
pub mod process;
pub mod replicas;
mod rest;
#[cfg(feature = "tokio")]
mod runtime;
mod schedule;
mod segment;
mod service;
mod sweep;
mod switch;
mod sys;
mod wire;

#[doc(hidden)]
pub use available::test_name;
pub use available::{Skipped, Unavailable, skip_unless_available};
pub use command::{LabCommand, Process};
pub use error::{Error, Result};
pub use fault::{Closed, Fault, Role, Told};
pub use host::Host;
pub use inject::{Injected, Target};
pub use lab::Lab;
pub use link::{Addresses, Direction, Link, Side};
pub use memory::MemoryGroup;
pub use nat::Nat;
pub use netlink::diag::{Connection, Connections};
pub use netns::NetnsGuard;
pub use plan::{Event, FaultPlan, Menu, Step, Stop};
pub use port::free_port;
#[cfg(feature = "tokio")]
pub use runtime::HostRuntime;
pub use schedule::{Phase, Schedule};
pub use service::Service;
pub use switch::Switch;
pub use wire::{LaneStats, Random, WireSpec};
