//! Machines that die under load, while unmodified clients keep their connections to unmodified servers.

mod mariadb;
mod redis;
mod report;

use crate::count::Going;
use crate::options::Options;
use crate::screen::{Screen, command_line};
use anyhow::{Context, Result, anyhow, ensure};
use outlast_lab::Lab;
use outlast_lab::replicas::{self, Death, Group, Machine, Place, Settings, Start};
use report::{Outcome, Tally};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often machines with redis die.
/// The last part of the portal's address.
const PORTAL_LAST: u8 = 250;
const DEATHS: usize = 12;
const DEATHS_QUICK: usize = 4;
const COUNTERS: usize = 4;
/// Clients work so long between two deaths, with all machines there.
const CALM: Duration = Duration::from_millis(700);
/// A machine is away so long: longer than it takes to go on without it.
const AWAY: Duration = Duration::from_millis(800);
/// The time for MariaDB, between its two deaths.
const SALES: Duration = Duration::from_secs(3);
const SALES_QUICK: Duration = Duration::from_millis(1_500);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What everything here works with.
struct Scene<'a> {
    outlast: &'a Path,
    folder: PathBuf,
    is_quick: bool,
    detect: String,
    screen: &'a Screen,
    interrupted: &'a AtomicBool,
}

/// Runs all of it. Whether nobody has noticed anything.
pub fn run(
    outlast: &Path,
    folder: &Path,
    options: &Options,
    screen: &Screen,
    interrupted: &AtomicBool,
) -> Result<bool> {
    screen.line("\nMachines that die under load\n");
    let unavailable = Lab::available().err().map(|why| why.to_string());
    if let Some(why) = unavailable.or_else(|| options.loopback.then(|| "--loopback was given".to_owned())) {
        screen.event(format!("left out, as each machine needs a network of its own: {why}"));
        return Ok(true);
    }
    let folder = tempfile::Builder::new().prefix("machines-").tempdir_in(folder)?;
    let scene = Scene {
        outlast,
        folder: folder.path().to_owned(),
        is_quick: options.quick,
        detect: options.detect.clone(),
        screen,
        interrupted,
    };
    let mut outcomes = Vec::new();
    if scene.has(&["redis-server", "redis-benchmark"]) {
        outcomes.push(scene.redis()?);
    }
    if scene.has(&["mariadbd", "mariadb", "mariadb-install-db"]) {
        outcomes.push(scene.mariadb()?);
    }
    if outcomes.is_empty() {
        return Ok(true);
    }
    let well = report::all_well(&outcomes);
    screen.line(format!("\n{}\n\n{}\n", report::by_client(&outcomes), report::by_way(&outcomes)));
    screen.line(if well {
        "Nobody noticed that a machine died: nothing lost, nothing twice, replicas equal."
    } else {
        "DEATHS WERE NOTICED."
    });
    Ok(well)
}

/// It is looked for and not started: some do what they are for whatever they are asked.
fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

impl Scene<'_> {
    /// Whether these programs are installed.
    fn has(&self, programs: &[&str]) -> bool {
        let missing = programs.iter().find(|program| !is_installed(program));
        if let Some(program) = missing {
            self.screen.event(format!("{program} is not installed: what needs it is left out"));
        }
        missing.is_none()
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    fn sleep(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
            std::thread::sleep(LOOK_EVERY.min(until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    /// So many machines with a server, and so many that only vote.
    fn group(
        &self,
        place: &Place,
        folder: &Path,
        (name, port, lines): (&str, u16, &str),
        (servers, witnesses): (u8, u8),
    ) -> Result<Group> {
        let settings = Settings {
            outlast: self.outlast,
            folder,
            name,
            prefix: "",
            servers,
            witnesses,
            portal: (PORTAL_LAST, port),
            lines,
            detect: &self.detect,
        };
        Ok(Group::build(place, &settings)?)
    }

    fn start(
        &self,
        group: &mut Group,
        flags: impl Fn(&Machine) -> Vec<String>,
        server: impl Fn(&Machine) -> Vec<String>,
    ) -> Result<()> {
        let all: Vec<_> = group
            .machines()
            .iter()
            .map(|machine| (machine.name.clone(), flags(machine), server(machine)))
            .collect();
        let mut shown = "";
        for (name, flags, server) in &all {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let words = group.start(name, &Start { flags: &flags, program: server, ..Start::default() })?;
            // One for each kind: the others are the same, in their own folders.
            let kind = if words.iter().any(|word| word == "--") { "server" } else { "witness" };
            if shown != kind {
                self.screen.line(command_line(name, &words));
                shown = kind;
            } else {
                self.screen.line(format!("  {name:<8}the same, as node {name}"));
            }
        }
        for (name, _, _) in all.iter().take(group.servers().count()) {
            group.wait_for_member(name, self.interrupted)?;
        }
        self.screen.line("");
        Ok(())
    }

    /// Machines with redis die again and again, and come back with the data of the others.
    fn redis(&self) -> Result<Outcome> {
        let folder = self.folder("redis")?;
        let lines = "protocol = \"redis\"\nanswers = \"first\"\n";
        let place = Place::new("demo")?;
        let mut group = self.group(&place, &folder, ("demo", redis::PORT, lines), (3, 0))?;
        let join = vec!["--join".to_owned()];
        self.start(&mut group, |_| join.clone(), redis::server)?;
        let deaths: Vec<Death> =
            Death::ALL.into_iter().cycle().take(if self.is_quick { DEATHS_QUICK } else { DEATHS }).collect();
        // What redis-benchmark is answered it does not look at.
        let (counters, benchmark) = (Tally::default(), Tally::of_requests());
        let counts: [AtomicU64; COUNTERS] = Default::default();
        let (client, portal) = (group.client.clone(), group.portal);
        let stop = AtomicBool::new(false);
        let going = Going { stop: &stop, interrupted: self.interrupted };
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..)
                .zip(&counts)
                .map(|(number, count)| {
                    let (client, counters, going) = (&client, &counters, &going);
                    scope.spawn(move || redis::count_up(client, portal, number, (counters, count), going))
                })
                .collect();
            let load = scope.spawn(|| redis::benchmark(&client, portal, &benchmark, &going));
            let died =
                deaths.iter().try_for_each(|death| self.redis_dies(&mut group, *death, &counters, &counts));
            stop.store(true, Ordering::Relaxed);
            for client in clients.into_iter().chain([load]) {
                client.join().map_err(|_| anyhow!("a client has crashed"))??;
            }
            died
        })?;
        let mut outcome =
            Outcome::new("redis", &deaths, vec![("counters", counters), ("redis-benchmark", benchmark)]);
        let are_right = |machine: &Machine| {
            let is_right = |(number, count): (u64, &AtomicU64)| {
                let right = count.load(Ordering::Relaxed).to_string();
                redis::counter(machine, number).is_ok_and(|has| has == right)
            };
            (0..).zip(&counts).all(is_right)
        };
        let digests = || -> Vec<String> { group.servers().flat_map(redis::digest).collect() };
        // Backups may be a moment behind.
        let equal = group.wait("all servers have the same data", self.interrupted, || {
            let all = digests();
            all.len() == group.servers().count()
                && all.iter().all(|one| Some(one) == all.first())
                && group.servers().all(are_right)
        });
        let equal = self.unless_interrupted(equal)? && self.agreed(&group);
        outcome.replicas = (group.servers().count(), equal);
        Ok(outcome)
    }

    /// Whether no server has ever answered otherwise than the others: one that did would have got a copy of their data since then.
    fn agreed(&self, group: &Group) -> bool {
        let differed = group.differed();
        if let Some(line) = &differed {
            self.screen.event(line);
        }
        differed.is_none()
    }

    /// Whether it was so in the end.
    fn unless_interrupted(&self, waited: outlast_lab::Result<()>) -> Result<bool> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        if let Err(error) = &waited {
            self.screen.event(format!("{error}"));
        }
        Ok(waited.is_ok())
    }

    fn redis_dies(
        &self,
        group: &mut Group,
        death: Death,
        counters: &Tally,
        counts: &[AtomicU64],
    ) -> Result<()> {
        self.sleep(CALM)?;
        group.wait_for_all(&[], self.interrupted)?;
        let name = group.primary(&[], self.interrupted)?;
        self.screen.event(format!("KILL       machine {name}, the primary: {}", death.name()));
        group.kill(&name, death)?;
        let begun = Instant::now();
        let before: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        // An answer may have been under way to each of them.
        let has_gone_on = |(count, before): (&AtomicU64, &u64)| count.load(Ordering::Relaxed) > before + 1;
        group.wait("clients go on", self.interrupted, || {
            counts.iter().zip(&before).all(has_gone_on) || counters.count.seen().failed > 0
        })?;
        let took = begun.elapsed();
        let next = group.primary(&[&name], self.interrupted)?;
        self.screen
            .event(format!("GO ON      all clients, on the same connections, {took:.0?} later: by {next}"));
        self.sleep(AWAY)?;
        if group.heal(&name, death)? {
            let machine = group.servers().find(|machine| machine.name == name);
            let server = redis::server(machine.context("it has no server")?);
            group.start(&name, &Start { flags: &["--join"], program: &server, ..Start::default() })?;
        }
        group.wait_for_backup(&name, self.interrupted)?;
        self.screen.event(format!("BACK       machine {name} has all data again, and is a member"));
        Ok(())
    }

    /// A client of MariaDB is in the middle of a transaction whenever the primary dies.
    fn mariadb(&self) -> Result<Outcome> {
        let folder = self.folder("mariadb")?;
        let lines = "protocol = \"mysql\"\nanswers = \"first\"\n";
        let place = Place::new("shop")?;
        let mut group = self.group(&place, &folder, ("shop", mariadb::PORT, lines), (4, 1))?;
        replicas::mariadb::install(&folder, group.servers().map(|machine| machine.folder.as_path()))?;
        let password = |machine: &Machine| {
            let file = replicas::mariadb::password_file(machine).to_string_lossy().into_owned();
            vec!["--server-password-file".to_owned(), file]
        };
        self.start(&mut group, password, replicas::mariadb::server)?;
        let tally = Tally::default();
        let session = mariadb::Session::open(&group)?;
        let (stop, transaction) = (AtomicBool::new(false), AtomicU64::new(0));
        let going = Going { stop: &stop, interrupted: self.interrupted };
        let deaths = [Death::PowerOff, Death::CutOff];
        let mut gone: Vec<String> = Vec::new();
        let rows = std::thread::scope(|scope| {
            let client = scope.spawn(|| session.work(&tally, &transaction, &going));
            let died = deaths.into_iter().try_for_each(|death| {
                let name = self.mariadb_dies(&mut group, (death, &gone), &tally, &transaction)?;
                gone.push(name);
                Ok::<_, anyhow::Error>(())
            });
            let died = died.and_then(|()| self.sleep(CALM));
            stop.store(true, Ordering::Relaxed);
            let rows = client.join().map_err(|_| anyhow!("a client has crashed"))?;
            died.and(rows)
        })?;
        let mut outcome = Outcome::new("mariadb", &deaths, vec![("a transaction", tally)]);
        // Those that were cut off do not know yet that they are none.
        let left: Vec<_> = group.members().filter(|machine| !gone.contains(&machine.name)).collect();
        let right = format!("{rows} {rows} {rows}");
        let equal = group.wait("all servers have the same data", self.interrupted, || {
            let all: Vec<[String; 2]> = left.iter().flat_map(|machine| mariadb::data(machine)).collect();
            all.len() == left.len()
                && all.iter().all(|[counts, digest]| *counts == right && *digest == all[0][1])
        });
        let equal = self.unless_interrupted(equal)? && self.agreed(&group);
        outcome.replicas = (left.len(), equal);
        Ok(outcome)
    }

    /// The primary dies in the middle of a transaction. Which machine that was.
    fn mariadb_dies(
        &self,
        group: &mut Group,
        (death, gone): (Death, &[String]),
        tally: &Tally,
        transaction: &AtomicU64,
    ) -> Result<String> {
        self.sleep(if self.is_quick { SALES_QUICK } else { SALES })?;
        let mut gone: Vec<&str> = gone.iter().map(String::as_str).collect();
        group.wait_for_all(&gone, self.interrupted)?;
        let name = group.primary(&gone, self.interrupted)?;
        let has_failed = || tally.count.seen().failed > 0;
        // One that has just begun takes longer than it takes to kill a machine.
        let last = transaction.load(Ordering::Relaxed);
        group.wait("a transaction begins", self.interrupted, || {
            let now = transaction.load(Ordering::Relaxed);
            now != 0 && now != last || has_failed()
        })?;
        self.screen.event(format!("KILL       machine {name}, the primary: {}", death.name()));
        group.kill(&name, death)?;
        let (begun, before) = (Instant::now(), tally.count.seen().requests);
        let interrupted = transaction.load(Ordering::Relaxed);
        group.wait("the client goes on", self.interrupted, || {
            tally.count.seen().requests > before + 1 || has_failed()
        })?;
        let (took, now) = (begun.elapsed(), transaction.load(Ordering::Relaxed));
        gone.push(&name);
        let next = group.primary(&gone, self.interrupted)?;
        let at = if interrupted == 0 {
            "between two transactions".to_owned()
        } else if now == interrupted {
            format!("in transaction {now}, which goes on")
        } else {
            format!("behind transaction {interrupted}")
        };
        self.screen.event(format!("GO ON      the client, {at}, {took:.0?} later: by {next}"));
        Ok(name)
    }
}
