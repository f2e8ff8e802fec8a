//! The table at the end.

use crate::count::Count;
use crate::report::{align, table};
use comfy_table::Table;
use indicatif::HumanCount;
use outlast_lab::replicas::Death;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A client that waits for so long has noticed.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What clients of a kind have seen. Several threads add to it.
#[derive(Debug, Default)]
pub struct Tally {
    pub count: Count,
    lost: AtomicU64,
    duplicated: AtomicU64,
    /// The client does not look at what it is answered.
    is_of_requests: bool,
}

impl Tally {
    /// Of a client that only knows whether it was answered.
    pub fn of_requests() -> Self {
        Self { is_of_requests: true, ..Self::default() }
    }

    /// As the table shows what only a client knows that looks at answers.
    fn shown(&self, number: u64) -> String {
        if self.is_of_requests { "-".to_owned() } else { HumanCount(number).to_string() }
    }

    /// A server that counts has said this, and should have said that.
    pub fn compare(&self, right: u64, said: u64) {
        self.lost.fetch_add(right.saturating_sub(said), Ordering::Relaxed);
        self.duplicated.fetch_add(said.saturating_sub(right), Ordering::Relaxed);
    }
}

/// What became of one group and its clients.
#[derive(Debug)]
pub struct Outcome {
    pub server: &'static str,
    /// By way.
    pub deaths: BTreeMap<&'static str, u64>,
    /// By kind of client.
    pub clients: Vec<(&'static str, Tally)>,
    /// How many replicas were compared at the end, and whether they had the same data.
    pub replicas: (usize, bool),
}

impl Outcome {
    pub fn new(server: &'static str, deaths: &[Death], clients: Vec<(&'static str, Tally)>) -> Self {
        let mut by_way = BTreeMap::new();
        for death in deaths {
            *by_way.entry(death.name()).or_default() += 1;
        }
        Self { server, deaths: by_way, clients, replicas: (0, false) }
    }

    /// Whether machines died, and nobody noticed.
    fn well(&self) -> bool {
        let unseen = |tally: &Tally| {
            let seen = tally.count.seen();
            let is_long = seen.longest_pause.is_some_and(|pause| pause > PAUSE_MAX);
            seen.requests > 0 && seen.failed == 0 && !is_long && lost(tally) == 0 && duplicated(tally) == 0
        };
        let (compared, equal) = self.replicas;
        !self.deaths.is_empty()
            && compared > 1
            && equal
            && self.clients.iter().all(|(_, tally)| unseen(tally))
    }
}

fn lost(tally: &Tally) -> u64 {
    tally.lost.load(Ordering::Relaxed)
}

fn duplicated(tally: &Tally) -> u64 {
    tally.duplicated.load(Ordering::Relaxed)
}

/// Whether nobody has noticed anything.
pub fn all_well(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(Outcome::well)
}

/// What clients saw, and what died meanwhile.
pub fn by_client(outcomes: &[Outcome]) -> Table {
    let mut table = table(&[
        "client of",
        "client",
        "kills",
        "longest pause",
        "requests",
        "failed",
        "lost",
        "duplicated",
        "replicas",
    ]);
    for outcome in outcomes {
        for (client, tally) in &outcome.clients {
            let seen = tally.count.seen();
            let pause = seen.longest_pause.map(|pause| format!("{:.0} ms", pause.as_secs_f64() * 1e3));
            let (compared, equal) = outcome.replicas;
            table.add_row([
                outcome.server.to_owned(),
                (*client).to_owned(),
                outcome.deaths.values().sum::<u64>().to_string(),
                pause.unwrap_or_else(|| "-".to_owned()),
                HumanCount(seen.requests).to_string(),
                HumanCount(seen.failed).to_string(),
                tally.shown(lost(tally)),
                tally.shown(duplicated(tally)),
                format!("{compared} {}", if equal { "equal" } else { "DIFFER" }),
            ]);
        }
    }
    align(&mut table);
    table
}

/// By what machines died.
pub fn by_way(outcomes: &[Outcome]) -> String {
    let mut ways = BTreeMap::new();
    for (way, times) in outcomes.iter().flat_map(|outcome| &outcome.deaths) {
        *ways.entry(*way).or_insert(0) += times;
    }
    let ways: Vec<String> = ways.iter().map(|(way, times)| format!("{times} {way}")).collect();
    format!("Machines died, or seemed to: {}.", ways.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(deaths: &[Death], replicas: (usize, bool), said: u64) -> Outcome {
        let tally = Tally::default();
        tally.count.answered();
        tally.compare(5, said);
        Outcome { replicas, ..Outcome::new("redis", deaths, vec![("counters", tally)]) }
    }

    #[test]
    fn it_is_well_where_machines_died_and_nothing_is_lost_or_twice_and_replicas_are_equal() {
        let deaths = [Death::PowerOff, Death::PowerOff];
        assert!(all_well(&[outcome(&deaths, (3, true), 5)]));
        for (deaths, replicas, said) in [
            (&[][..], (3, true), 5),
            (&deaths, (1, true), 5),
            (&deaths, (3, false), 5),
            (&deaths, (3, true), 4),
            (&deaths, (3, true), 6),
        ] {
            assert!(!all_well(&[outcome(deaths, replicas, said)]), "{deaths:?} {replicas:?} {said}");
        }
        assert!(by_way(&[outcome(&deaths, (3, true), 5)]).contains("2 power off"));
    }
}
