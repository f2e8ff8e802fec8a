//! `outlast run`: the program that is kept running.

use super::{gauge, plain_table};
use crate::exit::clean;
use crate::narrate::{grouped, seconds};
use comfy_table::CellAlignment;
use outlast_admin::Status;
use outlast_admin::program::{Crashes, Generation, Program, Start};
use outlast_admin::upgrade::UnderWay;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::borrow::Cow;
use std::time::{Duration, SystemTime};

/// Lines of the past that are shown. `--json` has all.
const PAST_MAX: usize = 10;

/// The program, how it is, and what has become of it before. `socket` is a line for where this instance is asked.
pub(super) fn text(status: &Status, view: &Program, socket: &str) -> String {
    let up = seconds(Duration::from_millis(status.up_ms));
    let state = match (view.main_pid, view.stopping, view.ready) {
        (0, ..) if view.awaited_pid != 0 => {
            format!(
                "process {} of an earlier one serves; this one is started when that has ended",
                view.awaited_pid
            )
        }
        (0, ..) => "is to be started again".to_owned(),
        (pid, true, _) => format!("process {pid}, is ending"),
        (pid, ..) if view.replacing => {
            format!("process {pid}, is ending; then it is started again; new clients wait")
        }
        (pid, _, true) => format!("process {pid}, ready"),
        (pid, ..) => format!("process {pid}, not ready yet"),
    };
    let mut text =
        format!("process {}, up {up}, keeps {} running: {state}\n{socket}", status.pid, clean(&view.runs));
    text.push_str(&format!("  {}\n", command(&view.program)));
    if let Some(program) = &view.serves_program {
        text.push_str(&format!("  since an upgrade, what serves is {}\n", clean(program)));
    }
    if let Some(upgrade) = &view.upgrade {
        text.push_str(&format!("  upgrade under way: {}\n", under_way(upgrade)));
    }
    if view.without_zygote {
        text.push_str(
            "  its first process (the zygote) was killed: it survives one more crash at the most, and `outlast upgrade` \
             needs --force\n",
        );
    }
    if let Some(said) = &view.said {
        text.push_str(&format!("  {}\n", clean(said)));
    }
    if view.generation > 0 {
        let (connections, bytes) = (grouped(view.connections.into()), grouped(view.held_bytes));
        let quarantined = view.quarantined.count;
        text.push_str(&format!(
            "  generation {} ({}), {connections} connections held with {bytes} bytes, {quarantined} requests quarantined\n",
            view.generation, view.backend
        ));
        text.push_str(&table("GENERATION", &view.generations));
    }
    if view.generation == 0 || view.starts.len() > 1 {
        text.push_str(&table("START", &view.starts));
    }
    if view.crashes.count > 0 {
        text.push_str(&crashes(&view.crashes));
    }
    text.push('\n');
    text
}

/// A time, as an instance has told it: others than ours may say anything, and after the year 9999 there is no such format.
pub(super) fn when(since_1970_ms: u64, format: fn(SystemTime) -> humantime::Rfc3339Timestamp) -> String {
    const YEAR_10000_MS: u64 = 253_402_300_800_000;
    if since_1970_ms >= YEAR_10000_MS {
        return "?".into();
    }
    format(SystemTime::UNIX_EPOCH + Duration::from_millis(since_1970_ms)).to_string()
}

/// The last ones, and how many there were.
fn crashes(crashes: &Crashes) -> String {
    let mut table = plain_table(&["CRASH", "PROCESS", "AT", "HOW", "CONNECTIONS KEPT", "CLOSED"]);
    let first = crashes.count.saturating_sub(crashes.kept.len() as u64).saturating_add(1);
    let numbered = (0..).map(|further: u64| first.saturating_add(further)).zip(&crashes.kept);
    for (number, one) in numbered.skip(crashes.kept.len().saturating_sub(PAST_MAX)) {
        table.add_row([
            number.to_string(),
            one.pid.to_string(),
            when(one.at_ms, humantime::format_rfc3339_millis),
            one.how.as_deref().map_or_else(|| "unknown".into(), clean),
            grouped(one.kept.into()),
            grouped(one.closed.into()),
        ]);
    }
    for (number, column) in table.column_iter_mut().enumerate() {
        if ![2, 3].contains(&number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{table}\n")
}

/// As a shell would take it, on one line.
fn command(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.chars().any(char::is_control) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    // What a shell writes so is on one line, and harmless to a terminal.
    let escaped = word.chars().map(|c| match c {
        '\'' | '\\' => format!("\\{c}"),
        '\n' => "\\n".into(),
        '\t' => "\\t".into(),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("$'{}'", escaped.collect::<String>())
}

/// A line of the past: a start, or a generation.
struct Past<'a> {
    number: u32,
    pid: u32,
    began_ms: u64,
    ended_ms: Option<u64>,
    how: Option<&'a str>,
    generation: Option<&'a Generation>,
}

impl<'a> From<&'a Start> for Past<'a> {
    fn from(start: &'a Start) -> Self {
        let Start { number, pid, began_ms, ended_ms, ref how } = *start;
        Self { number, pid, began_ms, ended_ms, how: how.as_deref(), generation: None }
    }
}

impl<'a> From<&'a Generation> for Past<'a> {
    fn from(generation: &'a Generation) -> Self {
        let Generation { number, pid, began_ms, ended_ms, ref how, .. } = *generation;
        Self { number, pid, began_ms, ended_ms, how: how.as_deref(), generation: Some(generation) }
    }
}

/// The latest of them.
fn table<'a, T>(first: &str, past: &'a [T]) -> String
where
    Past<'a>: From<&'a T>,
{
    let past: Vec<Past<'_>> = past.iter().skip(past.len().saturating_sub(PAST_MAX)).map(Past::from).collect();
    let generations = past.iter().any(|one| one.generation.is_some());
    let roles = past.iter().any(|one| one.generation.is_some_and(|generation| !generation.role.is_empty()));
    let mut header = vec![first, "PROCESS", "BEGAN", "SERVED", "ENDED"];
    if roles {
        header.insert(1, "ROLE");
    }
    if generations {
        header.extend(["CAUSE", "PAUSE BEFORE"]);
    }
    let mut table = plain_table(&header);
    for one in &past {
        let served =
            one.ended_ms.map(|ended_ms| Duration::from_millis(ended_ms.saturating_sub(one.began_ms)));
        let dash = || "-".to_owned();
        let unknown = || one.ended_ms.map(|_| "unknown".into());
        let mut row = vec![
            one.number.to_string(),
            one.pid.to_string(),
            when(one.began_ms, humantime::format_rfc3339_seconds),
            served.map_or_else(dash, seconds),
            one.how.map(clean).or_else(unknown).unwrap_or_else(dash),
        ];
        if let Some(Generation { role, cause, pause_ns, .. }) = one.generation {
            if roles {
                row.insert(1, clean(role));
            }
            let pause = Duration::from_nanos(*pause_ns);
            row.push(cause.as_deref().map_or_else(dash, clean));
            row.push(if pause.is_zero() { dash() } else { format!("{pause:.1?}") });
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().take(if roles { 1 } else { 2 }) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

/// An upgrade: to which program, and since when.
pub fn under_way(upgrade: &UnderWay) -> String {
    let program = upgrade.program.as_deref().map_or_else(|| "what is at its path now".to_owned(), clean);
    let began = SystemTime::UNIX_EPOCH + Duration::from_millis(upgrade.began_ms);
    let since = SystemTime::now().duration_since(began).unwrap_or_default();
    let (began, limit) = (
        when(upgrade.began_ms, humantime::format_rfc3339_seconds),
        Duration::from_millis(upgrade.timeout_ms),
    );
    if upgrade.old_ends {
        return format!("to {program}, since {began}, as soon as the old one has ended");
    }
    format!("to {program}, since {began} ({} of {} at the most)", seconds(since), seconds(limit))
}

/// For Prometheus.
pub(super) fn register(page: &Program, registry: &mut Registry) {
    let labels = [(Cow::from("program"), Cow::from(page.runs.clone()))];
    let registry = registry.sub_registry_with_prefix("program").sub_registry_with_labels(labels.into_iter());
    for (name, help, value) in [
        (
            "up",
            "1 while the program runs, 0 while it is to be started again",
            u64::from(page.main_pid != 0 || page.awaited_pid != 0),
        ),
        ("ready", "1 while it is ready", u64::from(page.ready)),
        ("connections", "Connections that its next generation would have", page.connections.into()),
    ] {
        registry.register(name, help, gauge(value));
    }
    registry.register_with_unit("held", "Held for those connections", Unit::Bytes, gauge(page.held_bytes));
    let pause = page.generations.last().map_or(0, |generation| generation.pause_ns);
    let pause = ConstGauge::new(Duration::from_nanos(pause).as_secs_f64());
    let help = "Time without a generation that served, before the last one";
    registry.register_with_unit("pause_last", help, Unit::Seconds, pause);
    let crashes = &page.crashes;
    for (name, help, count) in [
        ("starts", "Starts by the supervisor", page.starts_count),
        ("generations", "Generations that have served", page.generation.into()),
        ("crashes", "Processes of the program that have crashed", crashes.count),
        ("connections_kept", "Connections of crashed processes that were kept", crashes.connections_kept),
        (
            "connections_closed",
            "Connections of crashed processes that were closed",
            crashes.connections_closed,
        ),
        (
            "requests_quarantined",
            "Requests that have crashed generations, and are given to no other",
            page.quarantined.count.into(),
        ),
    ] {
        registry.register(name, help, ConstCounter::new(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_cannot_be_are_shown_as_unknown() {
        assert_eq!(when(0, humantime::format_rfc3339_seconds), "1970-01-01T00:00:00Z");
        assert_eq!(when(253_402_300_799_999, humantime::format_rfc3339_millis), "9999-12-31T23:59:59.999Z");
        for beyond in [253_402_300_800_000, u64::MAX] {
            assert_eq!(when(beyond, humantime::format_rfc3339_millis), "?");
        }
        let many = Crashes { count: u64::MAX, ..Crashes::default() };
        assert!(crashes(&many).contains("CRASH"));
    }

    #[test]
    fn a_shell_takes_what_is_shown_for_what_was_given() {
        let words = [
            "a",
            "",
            "two  words",
            "it's",
            "$HOME;*",
            "back\\slash",
            "-c=1",
            "~",
            "#",
            "line\nand 'tab'\t\u{1b}",
            "ä",
        ];
        let words = words.map(str::to_owned);
        let shown = command(&words);
        assert!(!shown.contains(char::is_control), "{shown}");
        let script = format!("printf '%s\\0' {shown}");
        let taken = std::process::Command::new("bash")
            .args(["-c", &script])
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        let taken = String::from_utf8(taken.stdout).unwrap();
        assert_eq!(taken.trim_end_matches('\0').split('\0').collect::<Vec<_>>(), words);
    }
}
