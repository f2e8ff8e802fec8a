//! Where the log goes: standard error, and nothing below a warning unless asked for. But where nobody watches, as in a
//! service's journal, it has the few lines that say what the process does, such as where it listens.

use crate::cli::{LogFormat, ProcessArgs};
use crate::exit::Failure;
use anyhow::Result;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The target of lines that the log has by default.
pub const NOTICE: &str = "outlast::notice";

/// Starts logging. Called once.
pub fn start(process: &ProcessArgs) -> Result<()> {
    // An empty variable in the environment asks for nothing.
    let given = process.log.as_deref().filter(|text| !text.trim().is_empty());
    let filter = match (given, process.quiet) {
        (Some(text), _) => text,
        (None, true) => "error",
        (None, false) if somebody_watches(process) => "warn",
        (None, false) => "warn,outlast::notice=info",
    };
    // What rustls warns of also comes back as an error, with the name of the peer.
    // What openraft warns of is what it is there for: nodes that cannot be reached.
    let quiet = ["rustls", "openraft"].into_iter().filter(|name| !filter.contains(name));
    let directives = quiet.fold(filter.to_owned(), |filter, name| {
        let level = if name == "openraft" { "off" } else { "error" };
        format!("{filter},{name}={level}")
    });
    let filter = EnvFilter::try_new(directives)
        .map_err(|_| Failure::usage(format!("--log {filter:?} is no filter; try info or debug")))?;
    // Nobody may read it any more; to say so there would be a panic.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let started = match process.log_format.unwrap_or(LogFormat::Text) {
        LogFormat::Json => builder.json().try_init(),
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}

/// Whether somebody is watching: standard error is a terminal, and nobody wants quiet.
pub fn somebody_watches(process: &ProcessArgs) -> bool {
    !process.quiet && std::io::stderr().is_terminal()
}
