//! The servers of all nodes say the same to each client. Their answers tell in which order they have worked for all clients.

use super::super::server::Answer;
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
    answers: &[Answer],
) -> Result<(), Violation> {
    for answer in answers {
        if let Some((at, new, other)) = extend(&mut stream.said, &mut position.said, &answer.said()) {
            let what = format!("{node:?}, {connection:?}: {new:?} at {at}, not {other:?}");
            return Err(Violation::new("same answers", what));
        }
    }
    Ok(())
}
