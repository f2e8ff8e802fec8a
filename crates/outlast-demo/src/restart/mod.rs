//! Servers that crash many times a second, under load: with Outlast, and as they are restarted everywhere else.

mod browser;
mod hits;
mod kv;
mod lines;
mod report;
mod server;
mod site;
mod tools;

use crate::beside;
use crate::count::{Count, Going};
use crate::options::Options;
use crate::screen::Screen;
use anyhow::{Context, Result, anyhow, ensure};
use hits::{Crashes, Way};
use outlast_lab::MemoryGroup;
use report::Outcome;
use server::{Server, Under};
use site::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// For each server.
const TIME: Duration = Duration::from_secs(15);
const TIME_QUICK: Duration = Duration::from_secs(4);
const BROWSERS: u64 = 3;
const COUNTERS: u64 = 4;
/// The service without Outlast.
const KV_PLAIN: &str = "outlast-kv-plain";
const KV_MEMORY_MIB: &str = "256";
/// One page: what a process has it keeps, and what it needs next is the end of it.
const NO_MEMORY_BYTES: u64 = 4096;
const HTTPD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/httpd");

/// Works until it is told to stop. An error: it could not even begin.
type Client<'a> = Box<dyn FnOnce(&Going<'_>) -> Result<()> + Send + 'a>;

/// An example that is a package of its own.
fn example_of(name: &str, how: &str) -> Result<PathBuf> {
    let program = beside(name)?;
    ensure!(program.is_file(), "there is no {}: build it with `{how}`", program.display());
    Ok(program)
}

/// What everything here works with.
struct Scene<'a> {
    outlast: &'a Path,
    folder: &'a Path,
    time: Duration,
    seed: u64,
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
    let folder = tempfile::Builder::new().prefix("restart-").tempdir_in(folder)?;
    let time = if options.quick { TIME_QUICK } else { TIME };
    let scene = Scene { outlast, folder: folder.path(), time, seed: options.seed, screen, interrupted };
    screen.line("\nServers that crash many times a second\n");
    scene.build_httpd()?;
    let files = site::build(&folder.path().join("site"), options.seed)?;
    let mut outcomes = vec![
        scene.httpd(Under::Outlast, "httpd-outlast", &files)?,
        scene.httpd(Under::PlainRestart, "httpd", &files)?,
        scene.kv(Under::Outlast, &example_of("outlast-kv", "cargo build -p outlast-kv")?)?,
    ];
    match example_of(KV_PLAIN, "make demo") {
        Ok(plain) => outcomes.push(scene.kv(Under::PlainRestart, &plain)?),
        Err(error) => screen.event(format!("kv under a plain restart is left out: {error}")),
    }
    outcomes.extend([scene.tally()?, scene.trouble()?]);
    let well = report::all_well(&outcomes);
    screen.line(format!("\n{}\n\n{}\n", report::by_server(&outcomes), report::by_client(&outcomes)));
    screen.line(if well { "Nobody noticed a crash under Outlast." } else { "CRASHES WERE NOTICED." });
    Ok(well)
}

impl Scene<'_> {
    /// The example in C, with Outlast and without.
    fn build_httpd(&self) -> Result<()> {
        let library = beside("liboutlast.so")?;
        ensure!(
            library.is_file(),
            "there is no {}: build it with `cargo build -p outlast-c`",
            library.display()
        );
        let libraries = library.parent().context("the library is in no folder")?;
        let mut make = Command::new("make");
        make.args(["-s", "-C", HTTPD]).arg(format!("OUT={}", self.folder.display()));
        make.arg(format!("OUTLAST_LIB={}", libraries.display())).stdin(Stdio::null());
        let made = make.output().context("cannot start make")?;
        ensure!(made.status.success(), "make in examples/httpd: {}", String::from_utf8_lossy(&made.stderr));
        Ok(())
    }

    fn example(name: &str) -> Result<PathBuf> {
        let program = beside("examples")?.join(name);
        let how = format!("cargo build -p outlast-restart --example {name}");
        ensure!(program.is_file(), "there is no {}: build it with `{how}`", program.display());
        Ok(program)
    }

    fn start(&self, under: Under, program: &Path, arguments: &[&str]) -> Result<Server> {
        Server::start(self.outlast, self.folder, under, program, arguments)
    }

    /// Files: curl, browsers, and wrk if there is one.
    fn httpd(&self, under: Under, build: &str, files: &[File]) -> Result<Outcome> {
        // Goes last: the server may still have a process in it.
        let group = MemoryGroup::new(NO_MEMORY_BYTES).ok();
        if group.is_none() {
            self.screen
                .event("no group of processes can be made here (root, cgroups): want of memory is left out");
        }
        let site = self.folder.join("site");
        let program = self.folder.join(build);
        let server = self.start(under, &program, &["{}", &site.to_string_lossy()])?;
        let address = server.address;
        let (browsers, curls, wrk) = (Count::default(), Count::default(), OnceLock::new());
        let mut clients: Vec<Client<'_>> = Vec::new();
        for number in 0..BROWSERS {
            let (seed, browsers) = (self.seed + number, &browsers);
            clients.push(Box::new(move |going| {
                browser::browse(address, files, seed, browsers, going);
                Ok(())
            }));
        }
        clients.push(Box::new(|going| tools::curl(address, files, self.seed, &curls, going)));
        if let Some(small) = files.get(1).filter(|_| tools::has_wrk()) {
            clients.push(Box::new(|going| {
                let _ = wrk.set(tools::wrk(address, small, going)?);
                Ok(())
            }));
        } else {
            self.screen.event("wrk is not installed: left out");
        }
        let ways: Vec<Way<'_>> = Way::OF_C.into_iter().chain(group.as_ref().map(Way::NoMemory)).collect();
        let crashes = self.under_load(&server, build, &[&browsers, &curls], clients, |screen| {
            hits::hit(&server, &ways, self.seed, self.time, screen, self.interrupted)
        })?;
        let mut clients = vec![("browsers", browsers.seen()), ("curl", curls.seen())];
        clients.extend(wrk.into_inner().map(|seen| ("wrk", seen)));
        Ok(Outcome { server: "httpd", under, crashes, clients })
    }

    /// Counters, uploads and downloads: in the first half of the time it is killed, in the other one its clients crash it.
    fn kv(&self, under: Under, program: &Path) -> Result<Outcome> {
        let group = MemoryGroup::new(NO_MEMORY_BYTES).ok();
        if group.is_none() {
            self.screen
                .event("no group of processes can be made here (root, cgroups): want of memory is left out");
        }
        let server =
            self.start(under, program, &["--listen", "{}", "--crashes", "--memory-mib", KV_MEMORY_MIB])?;
        let address = server.address;
        let (keepers, culprits, begun) = (Count::default(), Count::default(), AtomicBool::new(false));
        let refused: [AtomicU64; 3] = Default::default();
        let [segv, abort, hang] = &refused;
        let requests = [("segv", segv), ("abort", abort), ("hang", hang)];
        // Nobody would end a hang.
        let requests = if under == Under::Outlast { &requests[..] } else { requests.get(..2).unwrap_or(&[]) };
        let mut clients: Vec<Client<'_>> = Vec::new();
        for number in 0..COUNTERS {
            let (seed, keepers) = (self.seed + number, &keepers);
            clients.push(Box::new(move |going| {
                kv::keep(address, seed, keepers, going);
                Ok(())
            }));
        }
        clients.push(Box::new(|going| {
            kv::poison(address, requests, &begun, &culprits, going);
            Ok(())
        }));
        let ways: Vec<Way<'_>> = Way::OF_RUST.into_iter().chain(group.as_ref().map(Way::NoMemory)).collect();
        let mut crashes = self.under_load(&server, "kv", &[&keepers], clients, |screen| {
            let half = self.time / 2;
            let killed = hits::hit(&server, &ways, self.seed, half, screen, self.interrupted)?;
            begun.store(true, Ordering::Relaxed);
            Ok(killed.and(hits::look_on(&server, half, screen, self.interrupted)?))
        })?;
        let mut clients = vec![("keepers", keepers.seen())];
        if under == Under::Outlast {
            for (request, refused) in requests {
                crashes.kinds.insert(format!("requests {request}"), refused.load(Ordering::Relaxed));
            }
            clients.push(("refused", culprits.seen()));
        }
        Ok(Outcome { server: "kv", under, crashes, clients })
    }

    /// Counters, which are never wrong by one.
    fn tally(&self) -> Result<Outcome> {
        let under = Under::Outlast;
        let server = self.start(under, &Self::example("tally")?, &["{}"])?;
        let address = server.address;
        let counters = Count::default();
        let clients = (0..COUNTERS).map(|number| -> Client<'_> {
            let (seed, counters) = (self.seed + number, &counters);
            Box::new(move |going| {
                lines::count_up(address, seed, counters, going);
                Ok(())
            })
        });
        let crashes = self.under_load(&server, "tally", &[&counters], clients.collect(), |screen| {
            hits::hit(&server, &Way::OF_RUST, self.seed, self.time, screen, self.interrupted)
        })?;
        Ok(Outcome { server: "tally", under, crashes, clients: vec![("counters", counters.seen())] })
    }

    /// Requests that crash whoever deals with them, and others that do not.
    fn trouble(&self) -> Result<Outcome> {
        let under = Under::Outlast;
        let server = self.start(under, &Self::example("trouble")?, &["{}"])?;
        let address = server.address;
        let (others, culprits) = (Count::default(), Count::default());
        let refused: [AtomicU64; 3] = Default::default();
        let [segv, abort, hang] = &refused;
        let requests = [("!segv", segv), ("!abort", abort), ("!hang", hang)];
        let mut clients: Vec<Client<'_>> = Vec::new();
        for number in 0..COUNTERS {
            let (seed, others) = (self.seed + number, &others);
            clients.push(Box::new(move |going| {
                lines::echo(address, seed, others, going);
                Ok(())
            }));
        }
        clients.push(Box::new(|going| {
            lines::poison(address, &requests, &culprits, going);
            Ok(())
        }));
        let mut crashes = self.under_load(&server, "trouble", &[&others], clients, |screen| {
            hits::look_on(&server, self.time, screen, self.interrupted)
        })?;
        for (request, refused) in &requests {
            let times = refused.load(Ordering::Relaxed);
            crashes.kinds.insert(format!("requests {request}"), times);
        }
        let clients = vec![("others", others.seen()), ("refused", culprits.seen())];
        Ok(Outcome { server: "trouble", under, crashes, clients })
    }

    /// Clients work from before the first crash until after the last one.
    fn under_load(
        &self,
        server: &Server,
        name: &str,
        counts: &[&Count],
        clients: Vec<Client<'_>>,
        crash: impl FnOnce(&Screen) -> Result<Crashes>,
    ) -> Result<Crashes> {
        let under = if server.under == Under::Outlast { "under Outlast" } else { "under a plain restart" };
        self.screen.line(format!("\n{name} {under}\n{}\n", server.command_line));
        let screen = self.screen.with_clock(self.time);
        let stop = AtomicBool::new(false);
        let going = Going { stop: &stop, interrupted: self.interrupted };
        let crashes = std::thread::scope(|scope| {
            let clients: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| client(&going))).collect();
            let crashes = crash(&screen);
            stop.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().map_err(|_| anyhow!("a client has crashed"))??;
            }
            crashes
        });
        screen.finish();
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        let crashes = crashes.with_context(|| format!("{name} {under}"))?;
        let (requests, failed) = counts
            .iter()
            .map(|count| count.seen())
            .fold((0, 0), |sum, seen| (sum.0 + seen.requests, sum.1 + seen.failed));
        self.screen.event(format!(
            "{name} {under}: {} crashes, {requests} requests, {failed} of them failed",
            crashes.number
        ));
        Ok(crashes)
    }
}
