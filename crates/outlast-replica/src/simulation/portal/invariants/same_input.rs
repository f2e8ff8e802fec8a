//! The servers of all nodes read the same of each client.

use super::{Position, Stream, extend};
use crate::ConnectionId;
use crate::simulation::invariants::Violation;
use crate::view::NodeId;
use std::format;
extern crate std;

pub fn check(
    stream: &mut Stream,
    position: &mut Position,
    node: NodeId,
    connection: ConnectionId,
    read: &[u8],
) -> Result<(), Violation> {
    let Some((at, new, other)) = extend(&mut stream.read, &mut position.read, read) else { return Ok(()) };
    let what = format!("{node:?}, {connection:?}: {new} at {at}, not {other}");
    Err(Violation::new("same input", what))
}
