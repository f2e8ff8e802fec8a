//! `outlast status`.

use crate::admin::ask;
use crate::cli::ProcessArgs;
use crate::exit::{Code, Failure, cannot_print};
use crate::pages;
use anyhow::Result;
use clap::Args;
use outlast_admin::{Page, Status};
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// `outlast status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show only this instance: the name of the program it runs, or the PID of the instance or of that program [default: all]
    #[arg(value_name = "NAME|PID")]
    pub which: Option<String>,
    /// Print JSON: a list of instances, and of keeper processes that hold the sessions of a stopped listener
    #[arg(long)]
    pub json: bool,
    /// Refresh every second until interrupted
    #[arg(long)]
    pub watch: bool,
}

/// Shows all instances, once or until interrupted.
pub async fn run(args: &StatusArgs, process: &ProcessArgs) -> Result<Code> {
    loop {
        let answers = ask::everybody(process.admin_socket.as_deref()).await?;
        let which = args.which.as_deref();
        let all = answers.instances.iter();
        let instances: Vec<&ask::Instance> =
            all.filter(|instance| which.is_none_or(|which| is_meant(&instance.status, which))).collect();
        if let (Some(which), []) = (which, instances.as_slice()) {
            answers.complete()?;
            return Err(Failure::usage(format!(
                "no outlast instance of this user is called {which:?}, or has or runs that process: see `outlast status`"
            )));
        }
        let text = match instances.as_slice() {
            instances if args.json => {
                let answers: Vec<&Value> = instances.iter().map(|instance| &instance.answer).collect();
                serde_json::to_string_pretty(&answers)? + "\n"
            }
            // The error says it all.
            [] if !answers.silent.is_empty() => String::new(),
            instances => {
                let all: Vec<&Status> = instances.iter().map(|instance| &instance.status).collect();
                pages::text(&all)
            }
        };
        let mut out = std::io::stdout().lock();
        if args.watch && out.is_terminal() {
            // Clears the screen and goes to its first line.
            out.write_all(b"\x1b[2J\x1b[H")?;
        }
        if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // `outlast status | head` has seen enough.
            return if error.kind() == std::io::ErrorKind::BrokenPipe {
                Ok(Code::Ok)
            } else {
                Err(cannot_print(&error))
            };
        }
        drop(out);
        // Who asks for one that has answered is told of no others.
        let complete = which.map_or_else(|| answers.complete(), |_| Ok(()));
        if !args.watch {
            return complete.map(|()| Code::Ok);
        }
        if let Err(error) = complete {
            eprintln!("{error}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Whether an instance is called so, or is this process or runs it.
fn is_meant(instance: &Status, which: &str) -> bool {
    let is_pid = |pid: u32| pid > 0 && which.parse() == Ok(pid);
    let runs_it = match &instance.page {
        Page::Program(page) => page.runs == which || page.pids().any(is_pid),
        Page::Replica(page) => page.group == which || page.node == which,
        _ => false,
    };
    runs_it || is_pid(instance.pid)
}
