//! The tables at the end.

use super::hits::Crashes;
use super::server::Under;
use crate::count::Seen;
use crate::report::{align, table};
use comfy_table::Table;
use indicatif::HumanCount;
use std::time::Duration;

/// What became of one server and its clients.
#[derive(Debug)]
pub struct Outcome {
    pub server: &'static str,
    pub under: Under,
    pub crashes: Crashes,
    /// By kind of client.
    pub clients: Vec<(&'static str, Seen)>,
}

impl Outcome {
    /// Whether clients were answered as if nothing had happened, and something has.
    fn well(&self) -> bool {
        let unseen = |seen: &Seen| {
            seen.requests > 0 && seen.failed == 0 && seen.wrong_bytes.is_none_or(|wrong| wrong == 0)
        };
        self.crashes.number > 0 && self.clients.iter().all(|(_, seen)| unseen(seen))
    }

    fn name(&self) -> String {
        let under = match self.under {
            Under::Outlast => "Outlast",
            Under::PlainRestart => "plain restart",
        };
        format!("{}, {under}", self.server)
    }
}

/// Whether nobody has noticed anything, where Outlast was.
pub fn all_well(outcomes: &[Outcome]) -> bool {
    outcomes.iter().filter(|one| one.under == Under::Outlast).all(Outcome::well)
}

/// What happened to the servers.
pub fn by_server(outcomes: &[Outcome]) -> Table {
    let mut table = table(&["server", "crashes", "a second", "by", "pause, median", "99 %"]);
    for outcome in outcomes {
        let crashes = &outcome.crashes;
        let kinds: Vec<String> =
            crashes.kinds.iter().map(|(kind, times)| format!("{times} {kind}")).collect();
        #[allow(clippy::cast_precision_loss, reason = "crashes are few")]
        let rate = crashes.number as f64 / crashes.took.as_secs_f64().max(f64::MIN_POSITIVE);
        table.add_row([
            outcome.name(),
            HumanCount(crashes.number).to_string(),
            format!("{rate:.1}"),
            kinds.join(", "),
            millis(share(&crashes.pauses, 50)),
            millis(share(&crashes.pauses, 99)),
        ]);
    }
    align(&mut table);
    table
}

/// What clients saw.
pub fn by_client(outcomes: &[Outcome]) -> Table {
    let mut table = table(&["client of", "client", "requests", "failed", "wrong bytes", "longest pause"]);
    for outcome in outcomes {
        for (client, seen) in &outcome.clients {
            table.add_row([
                outcome.name(),
                (*client).to_owned(),
                HumanCount(seen.requests).to_string(),
                HumanCount(seen.failed).to_string(),
                seen.wrong_bytes.map_or_else(|| "-".to_owned(), |wrong| HumanCount(wrong).to_string()),
                millis(seen.longest_pause),
            ]);
        }
    }
    align(&mut table);
    table
}

/// So much of a sorted list is not longer.
fn share(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied()
}

fn millis(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.2} ms", time.as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(under: Under, crashes: u64, failed: u64, wrong: u64) -> Outcome {
        let seen = Seen { requests: 9, failed, wrong_bytes: Some(wrong), longest_pause: None };
        let crashes = Crashes { number: crashes, ..Crashes::default() };
        Outcome { server: "httpd", under, crashes, clients: vec![("curl", seen)] }
    }

    #[test]
    fn failures_count_only_where_there_should_be_none() {
        assert!(all_well(&[outcome(Under::Outlast, 1, 0, 0), outcome(Under::PlainRestart, 1, 5, 5)]));
        assert!(!all_well(&[outcome(Under::Outlast, 1, 1, 0)]));
        assert!(!all_well(&[outcome(Under::Outlast, 1, 0, 1)]));
        assert!(!all_well(&[outcome(Under::Outlast, 0, 0, 0)]), "nothing happened");
    }

    #[test]
    fn shares_of_few() {
        let times: Vec<Duration> = (1..=10).map(Duration::from_millis).collect();
        assert_eq!(share(&times, 50), Some(Duration::from_millis(6)));
        assert_eq!(share(&times, 99), Some(Duration::from_millis(10)));
        assert_eq!(share(&[], 50), None);
    }
}
