//! `outlast man`.

use crate::cli::{self, ManArgs};
use crate::exit::{Code, Failure};
use anyhow::Result;
use outlast_session::relay::dial::plain;

/// Writes one page per command: outlast.1, outlast-listen.1 and so on.
pub fn run(args: &ManArgs) -> Result<Code> {
    let folder = &args.folder;
    let failed = |error: std::io::Error| {
        Failure::system(format!("cannot write manual pages to {}: {}", folder.display(), plain(&error)))
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(cli::command().disable_help_subcommand(true), folder).map_err(failed)?;
    Ok(Code::Ok)
}
