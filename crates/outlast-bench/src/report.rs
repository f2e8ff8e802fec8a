//! What is printed and written: the place, raw figures, ratios with their spread, claims, one line of JSON.

use crate::ground::Ground;
use crate::options::Options;
use crate::plot;
use crate::series::{Better, Metric, Outcome};
use crate::stats::Spread;
use crate::targets;
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// A number that can be held against a target.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// The name of the promise; without one in the table of targets it is for information.
    pub name: String,
    /// The variant.
    pub variant: String,
    /// The size of a write, number of clients, interface.
    pub size: String,
    /// What was measured.
    pub metric: String,
    /// `ratio to raw` or a unit.
    pub unit: String,
    /// The number, with its middle half and the number of repeats.
    #[serde(flatten)]
    pub value: Spread,
    /// The same ratio for raw TCP against itself.
    pub aa: Option<Spread>,
    /// The number promised.
    pub target: Option<f64>,
    /// `≤` or `≥`.
    pub bound: Option<&'static str>,
    /// Whether it was kept.
    pub met: Option<bool>,
    /// Whether the difference from 1 is larger than the middle half of A/A: otherwise there is no difference.
    pub beyond_noise: Option<bool>,
}

/// What an experiment found so far.
pub struct Report {
    experiment: &'static str,
    started: Instant,
    place: Vec<(&'static str, String)>,
    rows: Vec<Row>,
    bars: Vec<plot::Bar>,
    claims: Vec<Claim>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    experiment: &'static str,
    group: String,
    variant: String,
    metric: &'static str,
    unit: &'static str,
    repeat: usize,
    value: f64,
}

impl Report {
    /// Starts a report and prints what runs where.
    pub fn new(experiment: &'static str, options: &Options, ground: &Ground) -> Self {
        let place = ground.describe();
        println!("== {experiment}{}", if options.quick { " (quick)" } else { "" });
        for (name, value) in &place {
            println!("   {name}: {value}");
        }
        if cfg!(debug_assertions) && !options.smoke {
            println!("!! built with debug assertions: use a release build for numbers");
        }
        let mut report = Self {
            experiment,
            started: Instant::now(),
            place,
            rows: Vec::new(),
            bars: Vec::new(),
            claims: Vec::new(),
            warnings: Vec::new(),
        };
        for warning in &ground.warnings {
            report.warn(warning.clone());
        }
        report
    }

    /// The name of the experiment.
    pub fn experiment(&self) -> &'static str {
        self.experiment
    }

    /// Says loudly that something is not as it should be.
    pub fn warn(&mut self, warning: String) {
        println!("!! {warning}");
        self.warnings.push(warning);
    }

    /// Keeps and prints a series.
    pub fn add(&mut self, outcome: &Outcome) {
        if outcome.disturbed > 0 {
            let count = outcome.disturbed;
            self.warn(format!(
                "{}: other work took more than 10 % of a core in {count} repeats",
                outcome.group
            ));
        }
        println!("{}", table(outcome));
        for (lane, metric) in every(outcome) {
            let Metric { name, unit, .. } = outcome.metrics[metric];
            let values = outcome.values(lane, metric).iter().enumerate();
            for (repeat, value) in values.filter(|(_, value)| value.is_finite()) {
                self.rows.push(Row {
                    experiment: self.experiment,
                    group: outcome.group.clone(),
                    variant: outcome.lanes[lane].name.clone(),
                    metric: name,
                    unit,
                    repeat,
                    value: *value,
                });
            }
            if metric == 0
                && let Some(ratio) = outcome.ratio(lane, metric)
            {
                self.bars.push(plot::Bar {
                    group: outcome.group.clone(),
                    variant: outcome.lanes[lane].name.clone(),
                    ratio,
                    lower_is_better: outcome.metrics[metric].better == Better::Lower,
                });
            }
        }
    }

    /// Claims the ratio of a lane to the one it is compared with.
    pub fn claim_ratio(&mut self, name: &str, outcome: &Outcome, lane: usize, metric: usize) {
        let Some(base) = outcome.lanes[lane].against else { return };
        self.claim_ratio_to(name, outcome, base, lane, metric);
    }

    /// Claims the ratio of a lane to any other.
    pub fn claim_ratio_to(&mut self, name: &str, outcome: &Outcome, base: usize, lane: usize, metric: usize) {
        let Some(value) = outcome.ratio_to(base, lane, metric) else { return };
        let unit = format!("ratio to {}", outcome.lanes[base].name);
        self.push_ratio(name, outcome, lane, metric, value, unit);
    }

    /// Claims the ratio of a lane to both runs of the one it is compared with.
    pub fn claim_ratio_to_both(&mut self, name: &str, outcome: &Outcome, lane: usize, metric: usize) {
        let Some(base) = outcome.lanes[lane].against else { return };
        let Some(value) = outcome.ratio_to_both(lane, metric) else { return };
        let unit = format!("ratio to {}, mean of two", outcome.lanes[base].name);
        self.push_ratio(name, outcome, lane, metric, value, unit);
    }

    fn push_ratio(
        &mut self,
        name: &str,
        outcome: &Outcome,
        lane: usize,
        metric: usize,
        value: Spread,
        unit: String,
    ) {
        let aa = outcome.noise(lane, metric);
        let beyond = aa.map(|aa| (value.median - 1.0).abs() > aa.noise());
        self.push(name, outcome, lane, metric, value, aa, unit, beyond);
    }

    /// Claims the value of a lane itself.
    pub fn claim_value(&mut self, name: &str, outcome: &Outcome, lane: usize, metric: usize) {
        let Some(value) = outcome.spread(lane, metric) else { return };
        let (aa, unit) = (outcome.noise(lane, metric), outcome.metrics[metric].unit.to_owned());
        self.push(name, outcome, lane, metric, value, aa, unit, None);
    }

    #[allow(clippy::too_many_arguments, reason = "a claim has this many parts; both callers are above")]
    fn push(
        &mut self,
        name: &str,
        outcome: &Outcome,
        lane: usize,
        metric: usize,
        value: Spread,
        aa: Option<Spread>,
        unit: String,
        beyond_noise: Option<bool>,
    ) {
        let target = targets::find(name);
        self.claims.push(Claim {
            name: name.to_owned(),
            variant: outcome.lanes[lane].name.clone(),
            size: outcome.group.clone(),
            metric: outcome.metrics[metric].name.to_owned(),
            unit,
            value,
            aa,
            target: target.map(|target| target.bound.limit()),
            bound: target.map(|target| target.bound.sign()),
            met: target.map(|target| target.bound.met(value.median)),
            beyond_noise,
        });
    }

    /// Prints the claims, writes CSV and SVG, and gives the object of the last line.
    pub fn finish(self, out: &Path) -> Result<serde_json::Value> {
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        let file = |kind: &str| out.join(format!("{}.{kind}", self.experiment));
        write_csv(&file("csv"), &self.rows)?;
        if !self.bars.is_empty() {
            plot::draw(&file("svg"), &self.title(), &self.bars)?;
        }
        println!("{}", claims_table(&self.claims));
        println!("   raw figures: {}, plot: {}", file("csv").display(), file("svg").display());
        println!("   took {:.1} s", self.started.elapsed().as_secs_f64());
        let place: serde_json::Map<_, _> =
            self.place.iter().map(|(name, value)| (name.replace(' ', "_"), value.as_str().into())).collect();
        Ok(serde_json::json!({
            "experiment": self.experiment,
            "place": place,
            "warnings": self.warnings,
            "claims": self.claims,
            "seconds": (self.started.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        }))
    }

    fn title(&self) -> String {
        let find = |key| self.place.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value);
        format!("{}: {}, {}", self.experiment, find("path"), find("congestion control"))
    }
}

fn every(outcome: &Outcome) -> impl Iterator<Item = (usize, usize)> + use<> {
    let metrics = outcome.metrics.len();
    (0..outcome.lanes.len()).flat_map(move |lane| (0..metrics).map(move |metric| (lane, metric)))
}

fn write_csv(path: &Path, rows: &[Row]) -> Result<()> {
    let mut writer =
        csv::Writer::from_path(path).with_context(|| format!("cannot write {}", path.display()))?;
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    writer.flush().with_context(|| format!("cannot write {}", path.display()))
}

/// Three significant digits or so, whatever the size.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        size if size >= 0.01 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

fn with_spread(spread: &Spread) -> String {
    format!("{} [{} – {}]", short(spread.median), short(spread.p25), short(spread.p75))
}

fn new_table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}

fn align_right(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn table(outcome: &Outcome) -> Table {
    let repeats = outcome.spread(0, 0).map_or(0, |spread| spread.repeats);
    let mut header = vec![format!("{} ({repeats} repeats)", outcome.group)];
    for metric in &outcome.metrics {
        header.push(format!("{} {}", metric.name, metric.unit));
        header.push("ratio".to_owned());
    }
    let mut table = new_table(header);
    for (index, lane) in outcome.lanes.iter().enumerate() {
        let mut row = vec![lane.name.clone()];
        for metric in 0..outcome.metrics.len() {
            row.push(outcome.spread(index, metric).as_ref().map_or_else(String::new, with_spread));
            let one = if lane.against.is_none() { "1" } else { "" };
            row.push(outcome.ratio(index, metric).as_ref().map_or_else(|| one.to_owned(), with_spread));
        }
        table.add_row(row);
    }
    align_right(&mut table, 1);
    table
}

fn claims_table(claims: &[Claim]) -> Table {
    let header = [
        "claim",
        "variant",
        "size",
        "metric",
        "unit",
        "median [p25 – p75]",
        "A/A",
        "target",
        "met",
        "before",
    ];
    let mut table = new_table(header.map(str::to_owned).to_vec());
    for claim in claims {
        let target =
            claim.target.map(|limit| format!("{} {}", claim.bound.unwrap_or_default(), short(limit)));
        let met = claim.met.map(|met| if met { "yes" } else { "NO" });
        let before = targets::find(&claim.name).map_or("", |target| target.before);
        table.add_row([
            claim.name.as_str(),
            &claim.variant,
            &claim.size,
            &claim.metric,
            &claim.unit,
            &with_spread(&claim.value),
            &claim.aa.as_ref().map_or_else(String::new, with_spread),
            &target.unwrap_or_default(),
            met.unwrap_or_default(),
            before,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_at_every_size() {
        let shown: Vec<String> = [12345.6, 123.45, 12.345, 1.2345, 0.0, 0.000_123].map(short).to_vec();
        assert_eq!(shown, ["12346", "123.5", "12.35", "1.234", "0.000", "1.2e-4"]);
    }
}
