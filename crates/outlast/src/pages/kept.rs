//! The process that keeps the sessions of a listener that was stopped.

use super::{NAME_DIGITS, plain_table};
use crate::exit::clean;
use crate::narrate::{grouped, seconds};
use comfy_table::CellAlignment;
use outlast_admin::Status;
use outlast_admin::kept::Kept;
use std::time::Duration;

/// For people.
pub(super) fn text(status: &Status, page: &Kept) -> String {
    let Kept { keeps_for, left_ms, sessions } = page;
    let (count, them) = match sessions.len() {
        1 => ("1 session".to_owned(), "it"),
        count => (format!("{count} sessions"), "them"),
    };
    let left = seconds(Duration::from_millis(*left_ms));
    let mut table = plain_table(&["SESSION", "PEER", "UNACKED", "UNREAD"]);
    for session in sessions {
        table.add_row([
            session.id.chars().take(NAME_DIGITS).collect(),
            session.peer.as_deref().map_or_else(|| "-".into(), clean),
            grouped(session.unacked_bytes),
            grouped(session.unread_bytes),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "process {}, keeps {count} of a listener that was stopped, for another {left}\n  \
         start `outlast listen {}` again, with its other settings, to go on with {them}\n{table}\n\n",
        status.pid,
        clean(keeps_for)
    )
}
