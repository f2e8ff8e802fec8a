//! `outlast --config FILE`, and `outlast config check FILE`.

use crate::cli::ProcessArgs;
use crate::config_file::{ConfigFile, Job};
use crate::exit::{Code, Failure};
use crate::narrate::Narrator;
use crate::plan::{self, FrontPlan};
use crate::service::{self, Plans};
use anyhow::Result;
use clap::ArgMatches;
use std::net::SocketAddr;
use std::path::Path;

/// Runs everything in a file.
pub fn run(file: &ConfigFile, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    let plans = plans(file)?;
    super::connect::runtime()?.block_on(service::run(plans, process, narrator))
}

/// Reads a file and everything that it names.
pub fn check(path: &Path) -> Result<Code> {
    let file = ConfigFile::load(path)?;
    file.process(&ArgMatches::default())?;
    let name = path.display().to_string();
    // Most errors name the file and the line themselves.
    let plans = plans(&file).map_err(|error| {
        if error.to_string().starts_with(&name) { error } else { error.context(name.clone()) }
    })?;
    println!("{}: ok, {} listen, {} connect", path.display(), plans.listen.len(), plans.connect.len());
    Ok(Code::Ok)
}

fn plans(file: &ConfigFile) -> Result<Plans> {
    let mut plans = Plans::default();
    for job in file.jobs()? {
        match job {
            Job::Listen(args) => plans.listen.push(plan::listen(&args)?),
            Job::Connect(args) => plans.connect.push(plan::connect(&args)?),
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
    let repeated =
        addresses.iter().enumerate().find(|(at, address)| addresses.iter().take(*at).any(|a| a == *address));
    if let Some((_, address)) = repeated {
        return Err(Failure::usage(format!("two sections listen on {address}: choose another port for one")));
    }
    Ok(plans)
}
