//! What a client's TCP was told has come, has come to the servers of all members that are left.

use super::super::client::Client;
use super::super::server::ABORT;
use super::Watch;
use crate::simulation::invariants::Violation;
use crate::view::NodeId;
use std::format;
extern crate std;

pub fn check(watch: &Watch, client: &Client, members: &[NodeId]) -> Result<(), Violation> {
    let sent = &client.written[..client.tcp.acked as usize];
    let has = |member: &NodeId| {
        let mut own = watch.positions.iter().filter(|((node, _), _)| node == member);
        own.any(|((_, connection), at)| watch.streams[connection].read[..at.read].starts_with(sent))
    };
    // A server that has ended a stream, or reset it, reads no more.
    let is_cut = sent.iter().any(|byte| *byte >= ABORT) || watch.has_quit && client.tcp.fin_received;
    if sent.is_empty() || is_cut || client.has_reset || members.iter().all(has) {
        return Ok(());
    }
    let what = format!("client {} was told that {sent:?} has come", client.number);
    Err(Violation::new("acknowledged", what))
}
