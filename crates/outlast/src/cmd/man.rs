//! `outlast man`.

use crate::cli;
use crate::exit::{Code, Failure, HELP};
use anyhow::Result;
use clap::Args;
use clap::builder::Resettable;
use clap_mangen::Man;
use outlast_session::relay::dial::plain;
use std::fmt::Write;
use std::io;
use std::path::Path;
use std::path::PathBuf;

/// `outlast man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Writes one page per command: outlast.1, outlast-listen.1 and so on.
pub fn run(args: &ManArgs) -> Result<Code> {
    let folder = &args.folder;
    let failed = |error: io::Error| {
        Failure::system(format!("cannot write manual pages to {}: {}", folder.display(), plain(&error)))
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    // The exit codes, which stand below the help, have a section of their own in a page.
    let mut command = cli::command().disable_help_subcommand(true).after_help(Resettable::Reset);
    command.build();
    write_with_subcommands(folder, &command, &exit_status()).map_err(failed)?;
    Ok(Code::Ok)
}

fn write_with_subcommands(folder: &Path, command: &clap::Command, exit_status: &str) -> io::Result<()> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    page.extend_from_slice(exit_status.as_bytes());
    std::fs::write(folder.join(man.get_filename()), page)?;
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_with_subcommands(folder, command, exit_status)?;
    }
    Ok(())
}

/// [`HELP`] as a section in roff.
fn exit_status() -> String {
    let mut section = ".SH \"EXIT STATUS\"\n".to_owned();
    for line in HELP.lines().skip(1) {
        let code = line.trim().split_once(' ').filter(|(code, _)| code.parse::<u8>().is_ok());
        let _ = match code {
            Some((code, meaning)) => write!(section, ".TP\n\\fB{code}\\fR\n{}\n", meaning.trim()),
            None => writeln!(section, ".PP\n{line}"),
        };
    }
    section
}
