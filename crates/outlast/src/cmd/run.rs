//! `outlast run`.

use crate::cli::{ProcessArgs, RunArgs};
use crate::exit::Code;
use crate::run;
use anyhow::Result;

/// Runs a program until it ends in order, is told to end, or crashes too often. Ends with its code.
pub fn run(args: &RunArgs, process: &ProcessArgs) -> Result<Code> {
    run::run(run::plan(args)?, process)
}
