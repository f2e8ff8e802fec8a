//! A client gets exactly what a server has said to it, and no end or reset that no server has made.

use super::super::client::Client;
use super::super::server::ABORT;
use super::{Stream, Watch};
use crate::simulation::invariants::Violation;
use std::format;
extern crate std;

pub fn check(watch: &Watch, client: &Client) -> Result<(), Violation> {
    if watch.misleads {
        return Ok(());
    }
    let violation = |what| Err(Violation::new("clients", format!("client {}: {what}", client.number)));
    // Whose is whose cannot be told but by what was sent: the first bytes are the client's number.
    let mut own = watch.streams.values().filter(|stream| client.written.starts_with(&stream.read));
    if !client.got.is_empty() && !own.clone().any(|stream| stream.begins_with(&client.got).is_some()) {
        return violation(format!("nobody has said {:?} to {:?}", client.got, client.written));
    }
    let has_all = |stream: &Stream| stream.ended && stream.begins_with(&client.got) == Some(true);
    let has_ended = client.tcp.fin_received && client.tcp.inbox.is_empty();
    if has_ended && !watch.leads && !own.any(has_all) {
        return violation(format!("an end after {:?}", client.got));
    }
    if client.is_reset() && !client.written.contains(&ABORT) {
        return violation(format!("a reset after {} bytes", client.got.len()));
    }
    Ok(())
}
