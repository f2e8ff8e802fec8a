//! Real servers and frameworks, each below `outlast run` as without it: a table.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is what it is about")]

mod check;
mod row;
mod rows;
mod running;
mod talk;

use crate::common::is_installed;
use check::{IDLE, Line, Victim, check};
use row::{Kept, Row};
pub use rows::{haproxy_master, nginx};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;

/// Rows that are looked at side by side: they wait more than they compute.
const SIDE_BY_SIDE: usize = 3;

/// Whether it is among those of this run: a third, which the seed chooses, and with `OUTLAST_SERVERS` all, or those that
/// are named there.
fn is_wanted(number: usize, row: &Row) -> bool {
    let wanted = std::env::var("OUTLAST_SERVERS").unwrap_or_default();
    let seed: usize = std::env::var("OUTLAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    match wanted.as_str() {
        "" => number % 3 == seed % 3,
        "all" => true,
        names => names.split(',').any(|name| name == row.name),
    }
}

/// Whether its program is there. What only the long runs need is skipped, which is said.
fn is_there(row: &Row) -> bool {
    if !row.is_optional {
        return is_installed(row.program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(row.program).exists());
    if !found {
        eprintln!(
            "SKIPPED: {}: {} is not installed; tools/deps.sh --soak installs it",
            row.name, row.program
        );
    }
    found
}

/// What a panic has said.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// As it stands in the table.
fn show(row: &Row, line: &Line) -> String {
    let each = |of: &dyn Fn(Victim) -> Option<String>| {
        let all = [Victim::Master, Victim::Worker, Victim::All];
        all.map(|victim| of(victim).unwrap_or_else(|| "-".to_owned())).join(" ")
    };
    let crash = |victim| line.crashes.iter().find(|(killed, ..)| *killed == victim);
    let refused = each(&|victim| Some(crash(victim)?.1.to_string()));
    let kept = each(&|victim| Some(crash(victim)?.2.to_string()));
    let note = match row.kept {
        Kept::All => String::new(),
        Kept::None(why) | Kept::NoneIdle(why) => why.to_owned(),
    };
    let kept = if matches!(row.kept, Kept::NoneIdle(_)) { String::from("-") } else { kept };
    let mut ratios: Vec<f64> = line.load.iter().map(|(alone, below)| (below / alone - 1.0) * 100.0).collect();
    ratios.sort_by(f64::total_cmp);
    let load = ratios.get(ratios.len() / 2).map(|median| format!("{median:+.1} %")).unwrap_or_default();
    let rate = |of: &dyn Fn(&(f64, f64)) -> f64| {
        let mut rates: Vec<f64> = line.load.iter().map(of).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).map(|median| format!("{median:.0}")).unwrap_or_default()
    };
    let (alone, below) = (rate(&|pair| pair.0), rate(&|pair| pair.1));
    let (processes, exit) = (line.processes, line.exit);
    format!(
        "{:<16} {processes:>5} {exit:>5}  {refused:<10} {kept:<10} {alone:>7} {below:>7} {load:>7}  {note}",
        row.name
    )
}

const HEAD: &str = "                  processes, exit code      refused    idle kept  requests in a second
server             as without us     M W A     of 20:M W A   alone    here    diff  why not";

/// A third of them in each run; all with `OUTLAST_SERVERS=all`. `OUTLAST_SERVERS_LOAD` pairs of measurements are made of
/// the requests that each answers in a second.
#[test]
fn servers_are_as_without_us_and_nobody_is_refused_when_they_crash() {
    let load = std::env::var("OUTLAST_SERVERS_LOAD").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
    let wanted = rows::all().into_iter().enumerate().filter(|(number, row)| is_wanted(*number, row));
    let wanted: Vec<(usize, Row)> = wanted.filter(|(_, row)| is_there(row)).collect();
    let (waiting, lines) = (Mutex::new(wanted.iter()), Mutex::new(BTreeMap::new()));
    // Measured alone, or not at all.
    let workers = if load > 0 { 1 } else { SIDE_BY_SIDE };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some((number, row)) = waiting.lock().unwrap().next() else { return };
                    let line = catch_unwind(AssertUnwindSafe(|| check(row, load)));
                    let line = line.map(|line| show(row, &line)).map_err(|panic| words(&*panic));
                    lines.lock().unwrap().insert(*number, (row.name, line));
                }
            });
        }
    });
    let (lines, mut failed) = (lines.into_inner().unwrap(), Vec::new());
    let mut table = format!("{HEAD}\n");
    for (name, line) in lines.into_values() {
        match line {
            Ok(line) => table.push_str(&(line + "\n")),
            Err(why) => {
                table.push_str(&format!("{name:<16} FAILED: {}\n", why.lines().next().unwrap_or_default()));
                failed.push(format!("{name}: {why}"));
            }
        }
    }
    println!("{table}");
    std::fs::write(target().join("servers.txt"), &table).unwrap();
    assert!(failed.is_empty(), "{} of {} servers:\n{}", failed.len(), wanted.len(), failed.join("\n"));
    assert!(!wanted.is_empty() || load == 0, "there is none of that name, idle connections {IDLE}");
}

/// Where all that is built is.
fn target() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(3).unwrap().to_owned()
}
