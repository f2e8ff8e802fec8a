//! The table at the end.

use crate::compare::Damage;
use crate::plain::Plain;
use crate::screen::{COLUMNS, mebibytes};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::HumanCount;
use std::time::Duration;

/// What one break did.
#[derive(Clone, Debug)]
pub struct Row {
    pub kind: &'static str,
    pub outages: u64,
    pub pause: Duration,
    pub resent: u64,
    pub damage: Damage,
}

/// What became of one transfer.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: &'static str,
    pub bytes: u64,
    pub took: Duration,
    pub mode: Option<String>,
    pub outages: u64,
    pub resent: u64,
    pub rows: Vec<Row>,
    pub damage: Damage,
    pub equal: bool,
}

/// Whether everything arrived as it was sent.
pub fn all_well(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|one| one.equal && one.damage.is_none())
}

/// By way to break a link.
pub fn by_kind(outcomes: &[Outcome]) -> Table {
    let mut table =
        table(&["what broke", "times", "outages", "longest pause", "bytes resent", "lost", "duplicated"]);
    let rows: Vec<&Row> = outcomes.iter().flat_map(|outcome| &outcome.rows).collect();
    let mut kinds: Vec<&str> = Vec::new();
    for row in &rows {
        if !kinds.contains(&row.kind) {
            kinds.push(row.kind);
        }
    }
    for kind in kinds {
        let of_kind: Vec<&Row> = rows.iter().copied().filter(|row| row.kind == kind).collect();
        table.add_row(cells(kind, &of_kind));
    }
    table.add_row(cells("all", &rows));
    align(&mut table);
    table
}

fn cells(kind: &str, rows: &[&Row]) -> Vec<String> {
    let damage = rows.iter().fold(Damage::default(), |sum, row| sum.and(row.damage));
    vec![
        kind.to_owned(),
        rows.len().to_string(),
        HumanCount(rows.iter().map(|row| row.outages).sum()).to_string(),
        seconds(rows.iter().map(|row| row.pause).max().unwrap_or_default()),
        HumanCount(rows.iter().map(|row| row.resent).sum()).to_string(),
        // Bytes that are others than were sent have been lost, too.
        HumanCount(damage.lost + damage.changed).to_string(),
        HumanCount(damage.duplicated).to_string(),
    ]
}

/// By transfer. Without Outlast nothing is compared: it has failed, or it was lucky.
pub fn by_transfer(outcomes: &[Outcome], plain: &Plain) -> Table {
    let headers =
        ["transfer", "moved", "time", "acks", "outages", "bytes resent", "lost", "duplicated", "SHA-256"];
    let mut table = table(&headers);
    let ended = if plain.failed { "FAILED" } else { "ended" };
    table.add_row([
        "curl, plain",
        &mebibytes(plain.received),
        &seconds(plain.took),
        "-",
        "-",
        "-",
        "-",
        "-",
        ended,
    ]);
    for outcome in outcomes {
        table.add_row([
            outcome.name.to_owned(),
            mebibytes(outcome.bytes),
            seconds(outcome.took),
            outcome.mode.clone().unwrap_or_else(|| "-".to_owned()),
            HumanCount(outcome.outages).to_string(),
            HumanCount(outcome.resent).to_string(),
            HumanCount(outcome.damage.lost + outcome.damage.changed).to_string(),
            HumanCount(outcome.damage.duplicated).to_string(),
            (if outcome.equal { "equal" } else { "DIFFERENT" }).to_owned(),
        ]);
    }
    align(&mut table);
    table
}

/// A column of times has one unit.
fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// An empty table.
pub fn table(headers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(headers.to_vec());
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(COLUMNS).unwrap_or(u16::MAX));
    table
}

/// All but the first column are numbers.
pub fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(damage: Damage, equal: bool) -> Outcome {
        let row = Row { kind: "drop", outages: 2, pause: Duration::from_secs(3), resent: 4_000, damage };
        let rows = vec![row.clone(), row];
        let took = Duration::from_secs(9);
        Outcome {
            name: "curl",
            bytes: 1 << 20,
            took,
            mode: None,
            outages: 4,
            resent: 8_000,
            rows,
            damage,
            equal,
        }
    }

    #[test]
    fn one_kind_is_one_row_with_sums() {
        let text = by_kind(&[outcome(Damage::default(), true)]).to_string();
        let row = text.lines().find(|line| line.contains("drop")).unwrap();
        let words: Vec<&str> = row.split_whitespace().filter(|word| *word != "│").collect();
        assert_eq!(words, ["drop", "2", "4", "3.00", "s", "8,000", "0", "0"]);
    }

    #[test]
    fn anything_wrong_is_not_well() {
        assert!(all_well(&[outcome(Damage::default(), true)]));
        assert!(!all_well(&[outcome(Damage::default(), false)]));
        assert!(!all_well(&[outcome(Damage { lost: 1, ..Damage::default() }, true)]));
    }
}
