//! When all is whole again every client gets all.

use super::super::client::Client;
use crate::simulation::invariants::Violation;
use std::format;
extern crate std;

pub fn check(client: &Client) -> Result<(), Violation> {
    if client.is_over() {
        return Ok(());
    }
    let what = format!("client {} has not got all: {client:?}", client.number);
    Err(Violation::new("progress", what))
}
