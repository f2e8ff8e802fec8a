//! One transfer, broken again and again.

use crate::breaks::Break;
use crate::content;
use crate::narrate;
use crate::options::Options;
use crate::report::{Outcome, Row};
use crate::screen::{Screen, mebibytes};
use crate::status::Ends;
use crate::transfers::{Means, Plan, Transfer};
use crate::watch::Watch;
use anyhow::{Context, Result, bail, ensure};
use outlast_lab::Random;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the ends are asked.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Longer than anything takes that goes well.
const PATIENCE: Duration = Duration::from_secs(90);
/// Breaks happen within this share of the transfer, so that all of it is over before the end.
const FIRST_PERCENT: u64 = 5;
const LAST_PERCENT: u64 = 85;

/// What a transfer works with while it runs.
struct Course<'a> {
    transfer: &'a Transfer,
    means: &'a Means<'a>,
    watch: &'a Watch,
    screen: &'a Screen,
    interrupted: &'a AtomicBool,
    /// The last answer of both ends. A session that has ended is not shown any more.
    ends: Ends,
}

/// Runs a transfer to its end.
pub fn run(
    plan: Plan,
    means: &Means<'_>,
    options: &Options,
    sha256: &str,
    screen: &Screen,
    interrupted: &AtomicBool,
) -> Result<Outcome> {
    let bytes = options.bytes();
    screen.line(format!("\n{}\n", plan.headline(means)));
    let screen = screen.with_bar(bytes);
    let began = Instant::now();
    let mut transfer = plan.begin(means)?;
    transfer.breaks.truncate(options.breaks.unwrap_or(usize::MAX));
    let narrating = transfer.tells.take().map(|stderr| narrate::follow(stderr, &screen));
    let watch = Watch::start(means.archive, &transfer.received, &screen)?;
    let mut course = Course {
        transfer: &transfer,
        means,
        watch: &watch,
        screen: &screen,
        interrupted,
        ends: Ends::default(),
    };
    let rows = course.all_breaks(bytes, options.seed);
    let rows = rows.and_then(|rows| course.until_the_end().map(|()| rows));
    let (mode, ends) = (course.ends.client.mode.clone(), course.ends);
    let damage = watch.finish();
    let took = began.elapsed();
    screen.finish();
    let (received, name) = (transfer.received.clone(), transfer.name);
    drop(transfer);
    if let Some(thread) = narrating {
        let _ = thread.join();
    }
    let (rows, damage) = (rows?, damage?);
    let received_sha256 = content::sha256(&received)?;
    screen.event(format!("{name}: {} in {:.2?}", mebibytes(received.metadata()?.len()), took));
    screen.line(format!("           sent      {sha256}\n           received  {received_sha256}"));
    std::fs::remove_file(&received)?;
    let equal = received_sha256 == sha256;
    Ok(Outcome {
        name,
        bytes,
        took,
        mode,
        outages: ends.outages(),
        resent: ends.resent_bytes(),
        rows,
        damage,
        equal,
    })
}

impl Course<'_> {
    /// Breaks everything in turn, at places that the seed decides.
    fn all_breaks(&mut self, bytes: u64, seed: u64) -> Result<Vec<Row>> {
        let breaks = &self.transfer.breaks;
        let mut random = Random::new(seed);
        let share = bytes / 100 * (LAST_PERCENT - FIRST_PERCENT) / (breaks.len() as u64).max(1);
        let mut rows = Vec::new();
        for (number, one) in breaks.iter().enumerate() {
            let place = bytes / 100 * FIRST_PERCENT + share * number as u64 + random.below(share / 2 + 1);
            self.wait_until("the transfer gets there", |course| course.watch.received() >= place)?;
            rows.push(self.one_break(one)?);
        }
        Ok(rows)
    }

    fn one_break(&mut self, one: &Break) -> Result<Row> {
        self.wait_until("both ends are on a link", |course| course.ends.connected())?;
        let before = (self.ends.clone(), self.watch.damage());
        self.watch.pause_longest();
        self.screen.event(format!("BREAK      {}", one.what));
        let broken = one.begin(self.means.stage.net.as_ref(), &self.transfer.programs)?;
        self.sleep(one.lasts)?;
        broken.heal()?;
        if one.heals() {
            self.screen.event("HEAL       it works again");
        }
        let at = self.watch.received();
        self.wait_until("the transfer goes on", |course| {
            course.ends.connected() && course.watch.received() > at || course.over()
        })?;
        // What the other end has sent again is told a little later.
        self.sleep(Duration::from_millis(150))?;
        self.ask();
        Ok(Row {
            kind: one.kind,
            outages: self.ends.outages() - before.0.outages(),
            pause: self.watch.pause_longest(),
            resent: self.ends.resent_bytes() - before.0.resent_bytes(),
            damage: self.watch.damage().since(before.1),
        })
    }

    fn until_the_end(&mut self) -> Result<()> {
        self.wait_until("the transfer ends", |course| course.over())?;
        let status = self.transfer.mover.ended()?.context("the transfer has not ended")?;
        ensure!(status.success(), "{}: the program that moves the data failed: {status}", self.transfer.name);
        Ok(())
    }

    fn over(&self) -> bool {
        matches!(self.transfer.mover.ended(), Ok(Some(_)) | Err(_))
    }

    fn ask(&mut self) {
        if let Ok(mut ends) = Ends::ask(&self.transfer.client_admin, &self.transfer.server_admin) {
            // Without a link there is none, and this may be the last answer.
            ends.client.mode = ends.client.mode.or(self.ends.client.mode.take());
            self.ends = ends;
        }
    }

    fn sleep(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
            std::thread::sleep(
                Duration::from_millis(10).min(until.saturating_duration_since(Instant::now())),
            );
        }
        Ok(())
    }

    /// Waits as long as the transfer makes progress, and `PATIENCE` without.
    fn wait_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        let mut deadline = Instant::now() + PATIENCE;
        let mut seen = self.watch.received();
        loop {
            self.ask();
            if done(self) {
                return Ok(());
            }
            let received = self.watch.received();
            if received > seen {
                (seen, deadline) = (received, Instant::now() + PATIENCE);
            }
            let (name, at) = (self.transfer.name, mebibytes(received));
            if let Some(status) = self.transfer.mover.ended()? {
                // It may have ended between the question and now.
                if done(self) {
                    return Ok(());
                }
                bail!("{name}: ended at {at} before {what} ({status})");
            }
            ensure!(Instant::now() < deadline, "{name}: stuck at {at}: waited {PATIENCE:?} until {what}");
            self.sleep(ASK_EVERY)?;
        }
    }
}
