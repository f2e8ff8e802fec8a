//! `outlast completions`.

use crate::cli::{self, CompletionsArgs};
use crate::exit::{Code, cannot_print};
use anyhow::Result;
use std::io::Write;

/// Prints the completions for a shell.
pub fn run(args: &CompletionsArgs) -> Result<Code> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::for_completions(), "outlast", &mut script);
    std::io::stdout().write_all(&script).map_err(|error| cannot_print(&error))?;
    Ok(Code::Ok)
}
