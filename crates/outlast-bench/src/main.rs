//! Experiments that back the numbers in the specification: sessions, raw TCP and peers side by side.
//!
//! Every experiment runs its variants in turns within each repeat, always with raw TCP twice (A/A), on pinned
//! cores and a network of its own, and ends with one line of JSON that has the claimed ratios. What it takes to
//! measure honestly, and why, is said at [`series`], [`ground`] and [`quiet`].

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's product is what it prints")]

mod experiments;
mod ground;
mod launch;
mod loads;
mod options;
mod peers;
mod place;
mod plot;
mod process;
mod quiet;
mod replica;
mod report;
mod restart;
mod series;
mod serve;
mod stats;
mod targets;
mod wire;

use clap::Parser;
use options::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Hold(arguments) => serve::hold::run(&arguments),
        Command::SpliceRelay(arguments) => peers::splice::run(&arguments),
        Command::RestartServe(arguments) => restart::serve::run(&arguments),
        Command::RestartSupervise(arguments) => restart::supervise::run(&arguments),
        Command::Experiment(experiment) => experiments::run(experiment, &cli.options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outlast-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
