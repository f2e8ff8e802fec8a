//! `outlast --config FILE`, and `outlast config check FILE`.

use crate::cli::ProcessArgs;
use crate::config_file::{ConfigFile, Job};
use crate::exit::{Code, Failure};
use crate::narrate::Narrator;
use crate::plan::{self, FrontPlan};
use crate::service::{self, Plans};
use anyhow::Result;
use clap::ArgMatches;
use outlast_restart::Death;
use outlast_restart::supervisor::Ended;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Runs everything in a file. Signals, and who is waited for, are a process's own: where there is a program to run beside
/// something else, each has a process.
pub fn run(
    file: &ConfigFile,
    given: &ArgMatches,
    process: &ProcessArgs,
    narrator: &Narrator,
) -> Result<Code> {
    let Everything { relays, mut runs } = everything(file)?;
    let lines = file.command_lines(given);
    match (runs.pop(), lines.len()) {
        (None, _) => super::connect::runtime()?.block_on(service::run(relays, process, narrator)),
        (Some(plan), 1) => crate::run::run(plan, process),
        (Some(_), _) if process.admin_socket.as_deref().is_some_and(|path| path != Path::new("none")) => {
            Err(Failure::usage(
                "the sections of this file need an admin socket each: leave --admin-socket out, or say none",
            ))
        }
        (Some(_), _) => together(lines),
    }
}

/// Runs the relays in a file, and leaves the programs to others.
pub fn relays(file: &ConfigFile, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    super::connect::runtime()?.block_on(service::run(everything(file)?.relays, process, narrator))
}

/// Runs this program with several command lines until the last has ended.
fn together(lines: Vec<Vec<OsString>>) -> Result<Code> {
    let shown: Vec<String> =
        lines.iter().map(|line| line.join(OsStr::new(" ")).to_string_lossy().into_owned()).collect();
    let commands = lines.into_iter().map(|line| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("outlast").args(line);
        command
    });
    let deaths = outlast_restart::supervisor::together(
        commands.collect(),
        |Ended { place, death, stopping, .. }| {
            let what = shown.get(place).map_or("", String::as_str);
            match death {
                Death::Exited(0) => tracing::info!("outlast {what}: has ended"),
                death if stopping => tracing::info!("outlast {what}: has {death}, as it was told to end"),
                death => tracing::error!("outlast {what}: has {death}; the others go on"),
            }
        },
    )?;
    match deaths.iter().find(|death| **death != Death::Exited(0)) {
        None => Ok(Code::Ok),
        Some(death) => std::process::exit(death.exit_code()),
    }
}

/// Reads a file and everything that it names, and looks whether its programs could be run.
pub fn check(path: &Path) -> Result<Code> {
    let file = ConfigFile::load(path)?;
    file.process(&ArgMatches::default())?;
    let name = path.display().to_string();
    // Most errors name the file and the line themselves.
    let Everything { relays, runs } = everything(&file).map_err(|error| {
        if error.to_string().starts_with(&name) { error } else { error.context(name.clone()) }
    })?;
    for (number, plan) in runs.iter().enumerate() {
        plan.check().map_err(|(key, error)| error.context(file.place_of_run(number, key)))?;
    }
    let run = if runs.is_empty() { String::new() } else { format!(", {} run", runs.len()) };
    println!("{}: ok, {} listen, {} connect{run}", path.display(), relays.listen.len(), relays.connect.len());
    Ok(Code::Ok)
}

/// What a file asks for.
struct Everything {
    relays: Plans,
    runs: Vec<crate::run::Plan>,
}

fn everything(file: &ConfigFile) -> Result<Everything> {
    let mut plans = Plans::default();
    let mut runs = Vec::new();
    for job in file.jobs()? {
        match job {
            Job::Listen(args) => plans.listen.push(plan::listen(&args)?),
            Job::Connect(args) => plans.connect.push(plan::connect(&args)?),
            Job::Run(args) => runs.push(crate::run::plan(&args)?),
        }
    }
    if plans.connect.iter().any(|plan| plan.fronts.contains(&FrontPlan::Stdio)) {
        return Err(Failure::usage("stdio in a file needs `outlast --config FILE connect`"));
    }
    let addresses: Vec<SocketAddr> = plans
        .listen
        .iter()
        .map(|plan| plan.address)
        .chain(plans.connect.iter().flat_map(|plan| plan.fronts.iter().filter_map(FrontPlan::address)))
        .filter(|address| address.port() != 0)
        .collect();
    if let Some(address) = repeated(&addresses) {
        return Err(Failure::usage(format!("two sections listen on {address}: choose another port for one")));
    }
    let names: Vec<&str> = runs.iter().map(crate::run::Plan::name).collect();
    if let Some(name) = repeated(&names) {
        return Err(Failure::usage(format!(
            "two sections run something called {name:?}: give one of them another name (name = ...)"
        )));
    }
    Ok(Everything { relays: plans, runs })
}

/// One that is there before, too.
fn repeated<T: PartialEq>(all: &[T]) -> Option<&T> {
    all.iter()
        .enumerate()
        .find(|(at, one)| all.iter().take(*at).any(|before| before == *one))
        .map(|(_, one)| one)
}
