//! What people and Prometheus are shown of an instance: a file for each capability.

mod kept;
pub mod program;
mod recovery;
mod replica;
mod sessions;

use crate::exit::clean;
use comfy_table::{Table, presets};
use outlast_admin::replica::{Explained, RecoveryPlan};
use outlast_admin::{Page, Status};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Digits of a session's name that are shown. The whole name may be a secret.
const NAME_DIGITS: usize = 10;

type Labels = Vec<(&'static str, String)>;

/// What `outlast status` prints.
pub fn text(instances: &[&Status]) -> String {
    if instances.is_empty() {
        return "no outlast instance of this user is running\n".into();
    }
    instances.iter().map(|status| one(status, &socket_line(status, instances))).collect()
}

fn one(status: &Status, socket: &str) -> String {
    let user = status.user.map_or_else(String::new, |user| format!("user {user}: "));
    user + &match &status.page {
        Page::Sessions(page) => sessions::text(status, page, socket),
        Page::Kept(page) => kept::text(status, page),
        Page::Program(page) => program::text(status, page, socket),
        Page::Replica(page) => replica::text(status, page, socket),
        Page::Other => {
            let version = clean(&status.version);
            let pid = status.pid;
            format!(
                "process {pid}, of version {version}, does what this version cannot show: see --json\n{socket}\n"
            )
        }
    }
}

/// What `outlast replicate why` prints.
pub fn events(explained: &Explained) -> String {
    replica::events(explained)
}

/// What `outlast replicate recover` shows before it does anything.
pub fn recovery(plan: &RecoveryPlan) -> String {
    recovery::text(plan)
}

/// A line for an instance whose process has the number of another one's: they are in several PID namespaces, such as containers.
fn socket_line(status: &Status, instances: &[&Status]) -> String {
    let is_it = |other: &&&Status| other.pid == status.pid;
    match &status.admin_socket {
        Some(socket) if instances.iter().filter(is_it).count() > 1 => {
            format!("  --admin-socket {}\n", clean(socket))
        }
        _ => String::new(),
    }
}

/// What is told to Prometheus, gathered for every scrape: nothing is counted twice, and nothing is kept.
pub fn registry(status: &Status) -> Registry {
    let mut registry = Registry::with_prefix("outlast");
    let build = Info::new([("version", status.version.clone())]);
    registry.register("build", "The program", build);
    match &status.page {
        Page::Sessions(page) => sessions::register(page, &mut registry),
        Page::Program(page) => program::register(page, &mut registry),
        Page::Replica(page) => replica::register(page, &mut registry),
        Page::Kept(_) | Page::Other => {}
    }
    registry
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Columns without lines between them.
fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}
