//! `outlast listen`.

use crate::cli::{ListenArgs, ProcessArgs};
use crate::exit::Code;
use crate::narrate::Narrator;
use crate::plan;
use crate::service::{self, Plans};
use anyhow::Result;

/// Accepts sessions until a signal ends it.
pub fn run(args: &ListenArgs, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    let plans = Plans { listen: vec![plan::listen(args)?], connect: Vec::new() };
    super::connect::runtime()?.block_on(service::run(plans, process, narrator))
}
