//! `outlast completions`.

use crate::cli;
use crate::exit::{Code, cannot_print};
use anyhow::Result;
use clap::Args;
use std::io::Write;

/// `outlast completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Prints the completions for a shell.
pub fn run(args: &CompletionsArgs) -> Result<Code> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::for_completions(), "outlast", &mut script);
    std::io::stdout().write_all(&script).map_err(|error| cannot_print(&error))?;
    Ok(Code::Ok)
}
