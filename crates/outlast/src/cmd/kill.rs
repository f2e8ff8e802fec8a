//! `outlast kill`.

use crate::admin::{Request, ask_all, ask_everybody};
use crate::cli::{KillArgs, ProcessArgs};
use crate::exit::{Code, Failure};
use anyhow::Result;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Ends the one session whose name begins as given, at every instance of this machine that has it.
pub async fn run(args: &KillArgs, process: &ProcessArgs) -> Result<Code> {
    let prefix = args.session.to_ascii_lowercase();
    if prefix.is_empty() || !prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let what = &args.session;
        return Err(Failure::usage(format!("{what:?} is no session: see the names in `outlast status`")));
    }
    let path = process.admin_socket.as_deref();
    // First only look: several instances may each have one that begins so.
    let instances = ask_everybody(path, &Request::Status {}).await?;
    let mut matching = BTreeSet::new();
    for (_, status) in &instances.answers {
        matching.extend(sessions(status).filter(|id| id.starts_with(&prefix)).map(str::to_owned));
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
    let has_it = |status: &Value| sessions(status).any(|id| id == session);
    let paths: Vec<PathBuf> =
        instances.answers.into_iter().filter(|(_, status)| has_it(status)).map(|(path, _)| path).collect();
    let mut killed = false;
    for path in paths {
        let request = Request::Kill { session: session.clone() };
        match ask_all(Some(&path), &request).await {
            Ok(_) => killed = true,
            // The other end of the session ends with it, as `connect --stdio` does, before it is asked itself.
            Err(_) if killed && ask_all(Some(&path), &Request::Status {}).await.is_err() => {}
            Err(error) => return Err(error),
        }
    }
    println!("killed {session}");
    Ok(Code::Ok)
}

fn sessions(status: &Value) -> impl Iterator<Item = &str> {
    let sessions = status.get("sessions").and_then(Value::as_array);
    sessions.into_iter().flatten().filter_map(|session| session.get("id").and_then(Value::as_str))
}
