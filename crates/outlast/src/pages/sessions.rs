//! `outlast listen` and `outlast connect`: what they serve, and their sessions.

use super::{Labels, NAME_DIGITS, gauge, plain_table};
use crate::exit::clean;
use crate::narrate::{grouped, seconds};
use comfy_table::{CellAlignment, Table};
use outlast_admin::Status;
use outlast_admin::sessions::{Failure, Memory, Session, Sessions};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

/// For people. `socket` is a line for where this instance is asked.
pub(super) fn text(status: &Status, page: &Sessions, socket: &str) -> String {
    let draining = if page.draining { ", draining" } else { "" };
    let up = seconds(Duration::from_millis(status.up_ms));
    let mut text = format!("process {}, up {up}{draining}\n{socket}", status.pid);
    for line in &page.serves {
        text.push_str(&format!("  {}\n", clean(line)));
    }
    if let Some(line) = page.memory.as_ref().and_then(memory) {
        text.push_str(&line);
    }
    if page.sessions.is_empty() {
        text.push_str("  no sessions\n");
    } else {
        text.push_str(&format!("{}\n", table(&page.sessions)));
    }
    for Failure { peer_addr, ago_ms, why, .. } in &page.failures {
        let ago = seconds(Duration::from_millis(*ago_ms));
        let peer = peer_addr.as_deref().unwrap_or("-");
        text.push_str(&format!("  ended {ago} ago, peer {}: {}\n", clean(peer), clean(why)));
    }
    text.push('\n');
    text
}

/// Worth a line when it is nearly all in use, or was.
fn memory(memory: &Memory) -> Option<String> {
    let Memory { budget_bytes, used_bytes, shed_sessions, .. } = memory;
    let is_told = *shed_sessions > 0 || *used_bytes >= budget_bytes / 4 * 3;
    is_told.then(|| {
        format!(
            "  memory of sessions: {} of {} bytes (--memory); sessions ended to free memory or descriptors: {}\n",
            grouped(*used_bytes),
            grouped(*budget_bytes),
            grouped(*shed_sessions)
        )
    })
}

fn table(sessions: &[Session]) -> Table {
    let mut table = plain_table(&[
        "SESSION", "ROLE", "PEER", "STATE", "MODE", "SECURITY", "AGE", "UNACKED", "OUTAGES", "PAUSE",
        "LONGEST", "SENT", "RECEIVED",
    ]);
    for session in sessions {
        let millis = |ms: u64| seconds(Duration::from_millis(ms));
        table.add_row([
            session.id.chars().take(NAME_DIGITS).collect(),
            session.role.clone(),
            session.peer_addr.clone().unwrap_or_else(|| "-".into()),
            session.state.clone(),
            session.mode.clone().unwrap_or_else(|| "-".into()),
            session.security.clone(),
            millis(session.age_ms),
            grouped(session.unacked_bytes),
            grouped(session.outages),
            session.pause_now_ms.map_or_else(|| "-".into(), millis),
            millis(session.pause_longest_ms),
            grouped(session.written_bytes),
            grouped(session.read_bytes),
        ]);
    }
    for column in table.column_iter_mut().skip(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// For Prometheus. Counters include live sessions, and never go back.
pub(super) fn register(page: &Sessions, registry: &mut Registry) {
    let live = Family::<Labels, Gauge>::default();
    for Session { role, state, mode, .. } in &page.sessions {
        let mode = mode.clone().unwrap_or_else(|| "none".to_owned());
        live.get_or_create(&vec![("role", role.clone()), ("state", state.clone()), ("mode", mode)]).inc();
    }
    registry.register("sessions", "Sessions now", live);
    let refusals = Family::<Labels, Counter>::default();
    for (reason, count) in &page.refusals {
        refusals.get_or_create(&vec![("reason", reason.clone())]).inc_by(*count);
    }
    registry.register("refusals", "Sessions refused, by reason", refusals);

    let memory = page.memory.clone().unwrap_or_default();
    let unacked = page.sessions.iter().map(|session| session.unacked_bytes).sum();
    for (name, help, bytes) in [
        ("unacked", "Accepted, not known to be delivered", unacked),
        ("memory", "Held by all sessions", memory.used_bytes),
        ("memory_budget", "What all sessions may hold", memory.budget_bytes),
    ] {
        registry.register_with_unit(name, help, Unit::Bytes, gauge(bytes));
    }
    let pause_ms = page.sessions.iter().filter_map(|session| session.pause_now_ms).max().unwrap_or(0);
    let pause = ConstGauge::new(Duration::from_millis(pause_ms).as_secs_f64());
    registry.register_with_unit("pause_now", "Longest outage that is not over yet", Unit::Seconds, pause);

    let totals = &page.totals;
    for (name, help, count) in [
        ("sessions_opened", "Sessions relayed since the start", totals.opened),
        ("sessions_completed", "Sessions that ended with everything delivered", totals.completed),
        ("sessions_failed", "Sessions that ended by an error", totals.failed),
        (
            "sessions_shed",
            "Sessions without a link that were ended to free memory or descriptors",
            memory.shed_sessions,
        ),
        ("outages", "Links lost and replaced, or not replaced in time", totals.outages),
    ] {
        registry.register(name, help, ConstCounter::new(count));
    }
    for (name, help, bytes) in [
        ("resent", "Bytes sent more than once", totals.resent_bytes),
        ("spliced", "Bytes passed on without being copied, both ways", totals.spliced_bytes),
        ("written", "Bytes taken from local programs", totals.written_bytes),
        ("read", "Bytes given to local programs", totals.read_bytes),
    ] {
        registry.register_with_unit(name, help, Unit::Bytes, ConstCounter::new(bytes));
    }
    let pauses = ConstCounter::new(Duration::from_millis(totals.pause_ms).as_secs_f64());
    registry.register_with_unit(
        "pause",
        "Time from the last byte that passed until the next link, all sessions together",
        Unit::Seconds,
        pauses,
    );
}
