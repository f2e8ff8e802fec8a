//! `outlast --config FILE`, and `outlast config check FILE`.

use crate::cli::ProcessArgs;
use crate::config_file::{ConfigFile, Job, Made, SEVERAL_PROGRAMS};
use crate::exit::{Code, Failure};
use crate::narrate::Narrator;
use crate::plan::{self, ConnectPlan, FrontPlan, ListenPlan};
use crate::run::parts::Parts;
use crate::service::{self, Plans};
use anyhow::Result;
use clap::ArgMatches;
use clap::Subcommand;
use outlast_restart::Death;
use outlast_restart::supervisor::Ended;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// `outlast config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file and everything it names, without starting anything
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Keys that say where a program is looked for.
const WHERE_PROGRAMS_ARE: [&str; 2] = ["working-directory", "environment"];

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
    if process.metrics.is_some() && lines.len() > 1 && runs.len() == lines.len() {
        return Err(Failure::usage(SEVERAL_PROGRAMS));
    }
    match (runs.pop(), lines.len()) {
        (None, _) => super::connect::runtime()?.block_on(service::run(relays, process, narrator)),
        (Some(Made { plan, .. }), 1) => crate::run::run(plan, process),
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
    let parts = Parts::new(lines.len());
    let commands = lines.into_iter().enumerate().map(|(place, line)| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("outlast").args(line);
        crate::run::pipe_signal::keep(&mut command);
        if let Some(parts) = &parts {
            parts.hear(place, &mut command);
        }
        command
    });
    let deaths =
        outlast_restart::supervisor::together(commands, |Ended { place, death, stopping, .. }| {
            if let Some(parts) = &parts {
                parts.ended(place);
            }
            let what = shown.get(place).map_or("", String::as_str);
            match death {
                Death::Exited(0) => tracing::info!("outlast {what}: has ended"),
                death if stopping => tracing::info!("outlast {what}: has {death}, after it was stopped"),
                death => tracing::error!("outlast {what}: has {death}; the others go on"),
            }
        })?;
    // A failure ends this process.
    drop(parts);
    match deaths.iter().find(|death| **death != Death::Exited(0)) {
        None => Ok(Code::Ok),
        Some(death) => std::process::exit(death.exit_code()),
    }
}

/// Reads a file and everything that it names, and looks whether its programs could be run. Everything that is wrong is told.
pub fn check(path: &Path) -> Result<Code> {
    let (file, mut faults) = ConfigFile::load_all(path)?;
    faults.extend(file.process_or_all_faults(&ArgMatches::default()).err().into_iter().flatten());
    let (Everything { relays, runs }, wrong) = all_of(&file);
    // A section by a wrong name is one all the same.
    if faults.is_empty() || file.has_sections() {
        faults.extend(wrong);
    }
    for Made { place, plan, left_out } in &runs {
        // Where the program is may be said by a key that was left out.
        let unknown = left_out.iter().any(|key| WHERE_PROGRAMS_ARE.contains(&key.as_str()));
        for (key, error) in plan.check().into_iter().filter(|(key, _)| !unknown || *key != "program") {
            faults.push(error.context(file.place_of_run(*place, key)));
        }
    }
    sort_by_line(&mut faults, path);
    let Some(first) = faults.first() else {
        let run = if runs.is_empty() { String::new() } else { format!(", {} run", runs.len()) };
        let (listen, connect) = (relays.listen.len(), relays.connect.len());
        let told =
            writeln!(std::io::stdout(), "{}: ok, {listen} listen, {connect} connect{run}", path.display());
        told.map_err(|error| crate::exit::cannot_print(&error))?;
        return Ok(Code::Ok);
    };
    let code = crate::exit::code_of(first);
    for fault in &faults {
        eprintln!("outlast: {}", crate::exit::one_line(fault));
    }
    Ok(code)
}

/// In the order of the file. What is said of no line comes last.
fn sort_by_line(faults: &mut [anyhow::Error], path: &Path) {
    let name = format!("{}:", path.display());
    faults.sort_by_key(|fault| {
        let said = crate::exit::one_line(fault);
        let line = said.strip_prefix(&name).and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
        line.unwrap_or(usize::MAX)
    });
}

/// What a file asks for.
#[derive(Default)]
struct Everything {
    relays: Plans,
    runs: Vec<Made<crate::run::Plan>>,
}

fn everything(file: &ConfigFile) -> Result<Everything> {
    let (everything, faults) = all_of(file);
    faults.into_iter().next().map_or(Ok(everything), Err)
}

/// What a section asks for.
enum Planned {
    Listen(Box<ListenPlan>),
    Connect(Box<ConnectPlan>),
    Run(Box<crate::run::Plan>),
}

/// As much as can be planned, and everything that is wrong with the rest.
fn all_of(file: &ConfigFile) -> (Everything, Vec<anyhow::Error>) {
    let (mut plans, mut runs) = (Plans::default(), Vec::new());
    let (planned, mut faults) = file.plan_all(|job| {
        Ok(match job {
            Job::Listen(args) => Planned::Listen(Box::new(plan::listen(&args)?)),
            Job::Connect(args) => Planned::Connect(Box::new(plan::connect(&args)?)),
            Job::Run(args) => Planned::Run(Box::new(crate::run::plan(&args)?)),
        })
    });
    for Made { place, plan, left_out } in planned {
        match plan {
            Planned::Listen(plan) => plans.listen.push(*plan),
            Planned::Connect(plan) => plans.connect.push(*plan),
            Planned::Run(plan) => runs.push(Made { place, plan: *plan, left_out }),
        }
    }
    if plans.connect.iter().any(|plan| plan.fronts.contains(&FrontPlan::Stdio)) {
        faults.push(file.as_a_whole("stdio in a file needs `outlast --config FILE connect`"));
    }
    faults.extend(file.repeated_addresses());
    faults.extend(file.metrics_of_several_programs());
    // A name that is wrong was left out: then that of the program is not the one meant.
    let named = runs.iter().filter(|made| !made.left_out.iter().any(|key| key == "name"));
    let names: Vec<&str> = named.map(|made| made.plan.name()).collect();
    if let Some(name) = repeated(&names) {
        faults.push(file.as_a_whole(&format!(
            "two sections run something called {name:?}: give one of them another name (name = ...)"
        )));
    }
    (Everything { relays: plans, runs }, faults)
}

/// One that is there before, too.
fn repeated<T: PartialEq>(all: &[T]) -> Option<&T> {
    all.iter()
        .enumerate()
        .find(|(at, one)| all.iter().take(*at).any(|before| before == *one))
        .map(|(_, one)| one)
}
