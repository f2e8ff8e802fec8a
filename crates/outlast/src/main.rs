//! The `outlast` program: reads the command line, runs the command, ends with the documented code.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program talks to its user on standard output and standard error"
)]

mod admin;
mod admin_folder;
mod carry;
mod cli;
mod cmd;
mod config_file;
mod descriptors;
mod exit;
mod files;
mod front;
mod handover;
mod instance;
mod keys;
mod logging;
mod manners;
mod metrics;
mod narrate;
mod outages;
mod pages;
mod plan;
mod registry;
mod replicate;
mod run;
mod self_loop;
mod server;
mod service;
mod signals;
mod sparingly;
mod standard_output;
mod stdio;
mod unix_socket;
mod usage;
mod watcher;

use anyhow::{Context, Result};
use clap::{ArgMatches, FromArgMatches};
use cli::{Cli, Command, ProcessArgs};
use cmd::config::ConfigCommand;
use config_file::{ConfigFile, Job};
use exit::{Code, Failure, one_line};
use narrate::Narrator;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let code = match start() {
        Ok(code) => code as u8,
        Err(error) => {
            // The terminal may be gone, which must not hide the code.
            let _ = writeln!(std::io::stderr(), "outlast: {}", exit::one_line(&error));
            exit::code_of(&error) as u8
        }
    };
    ExitCode::from(code)
}

fn start() -> Result<Code> {
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage::explain(&error),
    };
    cli::refuse_what_does_not(&matches)?;
    let Cli { process, command } = Cli::from_arg_matches(&matches)?;
    let (process, file) = match &process.config {
        Some(path) => {
            let file = ConfigFile::load(path)?;
            let process = match command {
                Some(Command::Run(_)) => file.process_of_run(&matches)?,
                _ => file.process(&matches)?,
            };
            (process, Some(file))
        }
        None => (process, None),
    };
    logging::start(&process)?;
    let narrator = Narrator::new(logging::somebody_watches(&process));
    match (command, &file) {
        (Some(command), _) => dispatch(command, &process, file.as_ref(), &matches, &narrator),
        (None, Some(file)) => cmd::config::run(file, &matches, &process, &narrator),
        (None, None) => Err(Failure::usage("nothing to do: give a command, or --config FILE; see --help")),
    }
}

fn dispatch(
    command: Command,
    process: &ProcessArgs,
    file: Option<&ConfigFile>,
    matches: &ArgMatches,
    narrator: &Narrator,
) -> Result<Code> {
    let command = match (command, file, matches.subcommand()) {
        (Command::Listen(_) | Command::Connect(_) | Command::Run(_), Some(file), Some((name, given))) => {
            match file.job_for(name, given)? {
                Job::Listen(args) => Command::Listen(args),
                Job::Connect(args) => Command::Connect(args),
                Job::Run(args) => Command::Run(args),
            }
        }
        (command, _, _) => command,
    };
    match command {
        Command::Listen(args) => cmd::listen::run(&args, process, narrator),
        Command::Connect(args) => cmd::connect::run(&args, process, narrator),
        Command::Status(args) => asking(cmd::status::run(&args, process)),
        Command::Kill(args) => asking(cmd::kill::run(&args, process)),
        Command::Config(ConfigCommand::Check { file }) => cmd::config::check(&file),
        Command::Lab(args) => lab(*args, process.quiet),
        Command::Man(args) => cmd::man::run(&args),
        Command::KeepDetached(args) => handover::keep(&args),
        Command::WatchRelay(args) => watcher::watch(&args),
        Command::Relays => match file {
            Some(file) => cmd::config::relays(file, process, narrator),
            None => Err(Failure::usage("the relays of which file? give --config")),
        },
        Command::KeepLog(args) => run::capture::keep(&args),
        Command::Run(args) => cmd::run::run(&args, process),
        Command::Replicate(args) => cmd::replicate::run(&args, process, narrator),
        Command::Upgrade(args) => asking(cmd::upgrade::run(&args, process)),
        Command::Hold(args) => cmd::hold::run(&args),
        Command::Completions(args) => cmd::completions::run(&args),
    }
}

/// Runs a command that only asks others.
fn asking(command: impl Future<Output = Result<Code>>) -> Result<Code> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(command)
}

/// The lab ends with the code of the program that ran in it.
fn lab(args: outlast_lab::cli::LabArgs, quiet: bool) -> Result<Code> {
    use outlast_lab::Error::{Invalid, Syntax, TargetLacks, Unavailable};
    let code = outlast_lab::cli::run(args, quiet).map_err(|error| match error.downcast_ref() {
        Some(Invalid(_) | Syntax { .. } | TargetLacks { .. }) => Failure::usage(one_line(&error)),
        Some(Unavailable(_)) => Failure::system(one_line(&error)),
        _ => error,
    })?;
    std::process::exit(code)
}
