//! `make demo`: unmodified curl, scp and ssh move real data while the links below them break in every way; servers crash many times a second
//! while clients use them; and machines die while clients of redis and MariaDB keep their connections.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a demonstration's product is what it prints")]

mod breaks;
mod compare;
mod content;
mod count;
mod machines;
mod narrate;
mod options;
mod plain;
mod program;
mod report;
mod restart;
mod run;
mod screen;
mod servers;
mod stage;
mod status;
mod transfers;
mod watch;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use options::{Options, Scene};
use screen::{Screen, mebibytes};
use stage::Stage;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transfers::{Means, Plan};

fn main() -> ExitCode {
    let interrupted = Arc::new(AtomicBool::new(false));
    let done = watch_for_interrupts(&interrupted).and_then(|()| demo(&Options::parse(), &interrupted));
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(_) if interrupted.load(Ordering::Relaxed) => {
            eprintln!("interrupted; everything is cleaned up");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("outlast-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// From now on a signal only sets the flag, so that everything is cleaned up on the way out.
fn watch_for_interrupts(interrupted: &Arc<AtomicBool>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .into_iter()
        .map(signal)
        .collect::<Result<Vec<_>, _>>()?;
    drop(entered);
    let flag = Arc::clone(interrupted);
    std::thread::spawn(move || {
        let [a, b, c] = signals.as_mut_slice() else { return };
        runtime.block_on(async {
            tokio::select! { _ = a.recv() => {}, _ = b.recv() => {}, _ = c.recv() => {} }
        });
        flag.store(true, Ordering::Relaxed);
        // Not dropped: a second signal must not cut the cleaning up short.
        runtime.block_on(std::future::pending::<()>());
    });
    Ok(())
}

fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    Ok(own.parent().context("this program is in no folder")?.join(name))
}

fn demo(options: &Options, interrupted: &AtomicBool) -> Result<bool> {
    let screen = Screen::new();
    let outlast = options.outlast.clone().map_or_else(|| beside("outlast"), Ok)?;
    ensure!(outlast.is_file(), "there is no {}: build it with `cargo build -p outlast`", outlast.display());
    let folder = options.folder.clone().map_or_else(|| beside("../demo"), Ok)?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    let mut well = true;
    if options.shows(Scene::Links) {
        well &= links(&outlast, &folder, options, &screen, interrupted)?;
    }
    if options.shows(Scene::Restart) {
        well &= restart::run(&outlast, &folder, options, &screen, interrupted)?;
    }
    if options.shows(Scene::Machines) {
        well &= machines::run(&outlast, &folder, options, &screen, interrupted)?;
    }
    Ok(well)
}

/// Transfers over links that break. Whether everything has arrived.
fn links(
    outlast: &Path,
    folder: &Path,
    options: &Options,
    screen: &Screen,
    interrupted: &AtomicBool,
) -> Result<bool> {
    let bytes = options.bytes();
    let stage = Stage::build(bytes, options.seed, options.loopback)?;
    screen.line(stage.picture());
    if let Some(why) = &stage.without_lab {
        screen.line(format!("  No network of its own: {why}."));
        screen.line(format!("  Left out, because they need one: {}.\n", left_out(&stage)));
    }
    // nginx gives out everything in it.
    let files = folder.join("files");
    std::fs::create_dir_all(&files)?;
    let archive = content::archive(&files, bytes)?;
    let sha256 = content::sha256(&archive)?;
    screen.event(format!("{} of this system's own files", mebibytes(bytes)));
    screen.line(format!("           SHA-256   {sha256}"));

    let run_folder = tempfile::Builder::new().prefix("run-").tempdir_in(folder)?;
    let _web = servers::web(&stage, run_folder.path(), &files)?;
    let (ssh, _sshd) = servers::Ssh::start(&stage, run_folder.path())?;
    let plans = match ssh.check(&stage) {
        Err(why) if stage.net.is_none() => {
            screen.line(format!("  Left out, because {why:#}: scp and ssh."));
            &Plan::ALL[..1]
        }
        checked => checked.map(|()| &Plan::ALL[..])?,
    };
    let means = Means { stage: &stage, ssh: &ssh, outlast, archive: &archive, folder: run_folder.path() };
    screen.line(format!("\n  The commands below run in {}", run_folder.path().display()));
    let plain = plain::run(&means, bytes, screen, interrupted)?;
    let mut outcomes = Vec::new();
    for &plan in plans {
        outcomes.push(run::run(plan, &means, options, &sha256, screen, interrupted)?);
    }
    let well = report::all_well(&outcomes);
    screen.line(format!("\n{}\n\n{}\n", report::by_kind(&outcomes), report::by_transfer(&outcomes, &plain)));
    screen.line(if well { "Nothing lost, nothing twice." } else { "DATA WAS DAMAGED." });
    Ok(well)
}

fn left_out(stage: &Stage) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    for one in breaks::of_the_network(stage.ports) {
        if !kinds.contains(&one.kind) {
            kinds.push(one.kind);
        }
    }
    kinds.join("; ")
}
