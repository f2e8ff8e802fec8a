//! What `outlast status` shows of a program that is kept running.

use super::status::plain_table;
use super::upgrade::UnderWay;
use crate::exit::clean;
use crate::narrate::{grouped, seconds};
use anyhow::Result;
use comfy_table::CellAlignment;
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// Lines of the past that are shown. `--json` has all.
const PAST_MAX: usize = 10;

/// The answer of an instance that runs a program.
#[derive(Debug, Deserialize)]
struct RunView {
    pid: u32,
    runs: String,
    program: Vec<String>,
    up_ms: u64,
    main_pid: u32,
    ready: bool,
    stopping: bool,
    /// It was told to end, and is started again then. No instance of an earlier version says so.
    #[serde(default)]
    replacing: bool,
    said: Option<String>,
    backend: String,
    /// The process that starts its generations was killed. No instance of an earlier version says so.
    #[serde(default)]
    without_zygote: bool,
    starts: Vec<PastView>,
    generation: u32,
    generations: Vec<PastView>,
    connections: u32,
    held_bytes: u64,
    quarantined: QuarantinedView,
    /// No instance of an earlier version says so.
    #[serde(default)]
    crashes: CrashesView,
    /// Since an upgrade, another one than on the command line.
    serves_program: Option<String>,
    upgrade: Option<UnderWay>,
}

/// A start, or a generation.
#[derive(Debug, Deserialize)]
struct PastView {
    number: u32,
    /// Of a generation of one process of several.
    #[serde(default)]
    role: String,
    pid: u32,
    began_ms: u64,
    ended_ms: Option<u64>,
    how: Option<String>,
    cause: Option<String>,
    pause_ns: Option<u64>,
}

/// Ends of processes of an unmodified program, each with its own time.
#[derive(Debug, Default, Deserialize)]
struct CrashesView {
    count: u64,
    kept: Vec<CrashView>,
}

#[derive(Debug, Deserialize)]
struct CrashView {
    pid: u32,
    at_ms: u64,
    how: Option<String>,
    kept: u32,
    closed: u32,
}

#[derive(Debug, Deserialize)]
struct QuarantinedView {
    count: u32,
}

/// The program, how it is, and what has become of it before. `socket` is a line for where this instance is asked.
pub fn page(instance: &Value, socket: &str) -> Result<String> {
    let view = RunView::deserialize(instance)?;
    let up = seconds(Duration::from_millis(view.up_ms));
    let state = match (view.main_pid, view.stopping, view.ready) {
        (0, ..) => "is to be started again".to_owned(),
        (pid, true, _) => format!("process {pid}, is ending"),
        (pid, ..) if view.replacing => {
            format!("process {pid}, is ending; then it is started again; new clients wait")
        }
        (pid, _, true) => format!("process {pid}, ready"),
        (pid, ..) => format!("process {pid}, not ready yet"),
    };
    let mut text =
        format!("process {}, up {up}, keeps {} running: {state}\n{socket}", view.pid, clean(&view.runs));
    text.push_str(&format!("  {}\n", command(&view.program)));
    if let Some(program) = &view.serves_program {
        text.push_str(&format!("  since an upgrade, what serves is {}\n", clean(program)));
    }
    if let Some(upgrade) = &view.upgrade {
        text.push_str(&format!("  upgrade under way: {}\n", upgrade.told()));
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
    Ok(text)
}

/// The last ones, and how many there were.
fn crashes(crashes: &CrashesView) -> String {
    let mut table = plain_table(&["CRASH", "PROCESS", "AT", "HOW", "CONNECTIONS KEPT", "CLOSED"]);
    let first = crashes.count.saturating_sub(crashes.kept.len() as u64) + 1;
    let numbered = (first..).zip(&crashes.kept);
    for (number, one) in numbered.skip(crashes.kept.len().saturating_sub(PAST_MAX)) {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(one.at_ms);
        table.add_row([
            number.to_string(),
            one.pid.to_string(),
            humantime::format_rfc3339_millis(at).to_string(),
            one.how.clone().unwrap_or_else(|| "unknown".into()),
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

fn table(first: &str, past: &[PastView]) -> String {
    let generations = past.iter().any(|one| one.pause_ns.is_some());
    let roles = past.iter().any(|one| !one.role.is_empty());
    let mut header = vec![first, "PROCESS", "BEGAN", "SERVED", "ENDED"];
    if roles {
        header.insert(1, "ROLE");
    }
    if generations {
        header.extend(["CAUSE", "PAUSE BEFORE"]);
    }
    let mut table = plain_table(&header);
    for one in past.iter().skip(past.len().saturating_sub(PAST_MAX)) {
        let began = SystemTime::UNIX_EPOCH + Duration::from_millis(one.began_ms);
        let served =
            one.ended_ms.map(|ended_ms| Duration::from_millis(ended_ms.saturating_sub(one.began_ms)));
        let dash = || "-".to_owned();
        let mut row = vec![
            one.number.to_string(),
            one.pid.to_string(),
            humantime::format_rfc3339_seconds(began).to_string(),
            served.map_or_else(dash, seconds),
            one.how.clone().or_else(|| one.ended_ms.map(|_| "unknown".into())).unwrap_or_else(dash),
        ];
        if roles {
            row.insert(1, clean(&one.role));
        }
        if generations {
            let pause = one.pause_ns.filter(|pause_ns| *pause_ns > 0).map(Duration::from_nanos);
            row.push(one.cause.clone().unwrap_or_else(dash));
            row.push(pause.map_or_else(dash, |pause| format!("{pause:.1?}")));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut().take(if roles { 1 } else { 2 }) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

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
