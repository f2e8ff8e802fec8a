//! `outlast run`.

use crate::cli::RunArgs;
use crate::exit::{Code, Failure};
use crate::narrate::seconds;
use anyhow::Result;
use outlast_restart::policy::Policy;
use outlast_restart::supervisor::{Event, Outcome, supervise};
use outlast_session::relay::dial::plain;
use std::io;
use std::process::Command;
use std::time::Duration;

/// Runs a program until it ends in order, is told to end, or crashes too often. Ends with its code.
pub fn run(args: &RunArgs) -> Result<Code> {
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(Failure::usage("no program is given"));
    };
    let name = program.to_string_lossy();
    let policy = Policy {
        intensity: args.intensity,
        intensity_window_ms: u64::try_from(args.window.as_millis()).unwrap_or(u64::MAX),
        ..Policy::default()
    };
    let outcome = supervise(Command::new(program).args(arguments), policy, |event| match event {
        Event::Started { pid, run } => tracing::info!(pid, run, "{name} is started"),
        Event::Crashed { death, pause: Duration::ZERO } => {
            tracing::warn!("{name} has {death}: it is started again");
        }
        Event::Crashed { death, pause } => {
            tracing::warn!("{name} has {death}: it is started again in {}", seconds(pause));
        }
        _ => {}
    });
    match outcome.map_err(|error| cannot(&name, error))? {
        Outcome::Finished => Ok(Code::Ok),
        Outcome::Stopped(death) => std::process::exit(death.exit_code()),
        Outcome::GaveUp(death) => {
            let (intensity, window) = (args.intensity, seconds(args.window));
            tracing::error!(
                "{name} has {death}, after {intensity} other crashes within {window}: it is not started again"
            );
            std::process::exit(death.exit_code())
        }
    }
}

fn cannot(name: &str, error: outlast_restart::Error) -> anyhow::Error {
    match error {
        outlast_restart::Error::System { what: "start the program", source } => match source.kind() {
            io::ErrorKind::NotFound => Failure::usage(format!("cannot run {name}: there is no such program")),
            _ => Failure::system(format!("cannot run {name}: {}", plain(&source))),
        },
        other => other.into(),
    }
}
