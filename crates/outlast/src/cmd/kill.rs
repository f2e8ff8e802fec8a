//! `outlast kill`.

use crate::admin::ask;
use crate::cli::ProcessArgs;
use crate::exit::{Code, Failure};
use anyhow::Result;
use clap::Args;
use outlast_admin::exchange::Matching;
use outlast_admin::{Page, Request, Status};
use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::PathBuf;

/// `outlast kill`.
#[derive(Debug, Args)]
pub struct KillArgs {
    /// Session name, or a unique prefix of it
    #[arg(value_name = "SESSION")]
    pub session: String,
}

/// Ends the one session whose name begins as given, at every instance of this machine that has it.
pub async fn run(args: &KillArgs, process: &ProcessArgs) -> Result<Code> {
    let prefix = args.session.to_ascii_lowercase();
    if prefix.is_empty() || !prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let what = &args.session;
        return Err(Failure::usage(format!("{what:?} is no session: see the names in `outlast status`")));
    }
    let path = process.admin_socket.as_deref();
    // First only look: several instances may each have one that begins so.
    let instances = ask::everybody(path).await?;
    let mut matching = BTreeSet::new();
    for instance in &instances.instances {
        matching.extend(sessions(&instance.status).filter(|id| id.starts_with(&prefix)).map(str::to_owned));
    }
    let mut matching = matching.into_iter();
    let Some(session) = matching.next() else {
        instances.complete()?;
        return Err(Failure::usage(format!("no session begins with {prefix:?}: see `outlast status`")));
    };
    let others = matching.count();
    if others > 0 {
        return Err(Failure::usage(format!(
            "{} sessions begin with {prefix:?}: give more of the name",
            others + 1
        )));
    }
    let has_it = |instance: &ask::Instance| sessions(&instance.status).any(|id| id == session);
    let having = instances.instances.into_iter().filter(has_it);
    let paths: Vec<PathBuf> = having.map(|instance| instance.path).collect();
    let mut killed = false;
    for path in paths {
        let request = Request::Kill { session: session.clone() };
        match ask::one::<Matching>(&path, &request).await {
            // It may have ended in between.
            Ok(answer) => killed |= answer.matching.contains(&session),
            // The other end of the session ends with it, as `connect --stdio` does, before it is asked itself.
            Err(_) if killed && ask::all(Some(&path)).await.is_err() => {}
            Err(error) => return Err(error),
        }
    }
    if !killed {
        return Err(Failure::usage(format!("session {session} has ended already: nothing was killed")));
    }
    let _ = writeln!(io::stdout(), "killed {session}");
    Ok(Code::Ok)
}

fn sessions(status: &Status) -> Box<dyn Iterator<Item = &str> + '_> {
    match &status.page {
        Page::Sessions(page) => Box::new(page.sessions.iter().map(|session| session.id.as_str())),
        Page::Kept(page) => Box::new(page.sessions.iter().map(|session| session.id.as_str())),
        Page::Program(_) | Page::Replica(_) | Page::Other => Box::new(std::iter::empty()),
    }
}
