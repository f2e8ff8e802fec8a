//! `outlast replicate recover`.

use super::replicate::print;
use crate::admin::ask;
use crate::exit::{Code, Failure, clean};
use crate::pages;
use anyhow::Result;
use clap::Args;
use indicatif::ProgressBar;
use outlast_admin::replica::{Recovers, RecoveryPlan};
use outlast_admin::{Page, Request, Status};
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// A group that does not begin within this time has lost a node once more.
const BEGIN_WITHIN: Duration = Duration::from_secs(40);
/// Between two looks whether it has begun.
const LOOK: Duration = Duration::from_millis(100);

/// `outlast replicate recover`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RecoverArgs {
    /// The node whose data the group goes on with [default: one that was a member of the last view]
    #[arg(value_name = "NODE")]
    from: Option<String>,
    /// Do it without a question
    #[arg(long)]
    yes: bool,
}

const EXAMPLES: &str = "\
Where more than half of the nodes of a group are dead for good, or all were down at the same time, the others wait:
nobody can know whether those that are missing go on without them. A person can: make sure that they are off.
Then run this on a machine of any node that runs. It asks all nodes how they are, shows what
would be done and what is lost, asks whether to go on, and has the group founded again by the nodes that answer.

Servers go on to run. One of them has the data; the others get a copy of them: by themselves with --join, else by
`outlast replicate join`. A node that is started later comes in as usual.

Examples:
  outlast replicate recover          # shows the plan, and asks
  outlast replicate recover b        # with the data of b
  outlast replicate recover --yes    # for scripts: without a question

Exit codes: 0 the group serves again; 2 nothing was done, as nobody said yes; 7 it cannot be done, and why.";

/// Shows the plan, asks, and has it done.
pub async fn run(socket: &Path, args: &RecoverArgs) -> Result<Code> {
    let from = args.from.clone();
    let plan: RecoveryPlan = ask::one(socket, &Request::Recover { from: from.clone(), plan: None }).await?;
    print(&pages::recovery(&plan))?;
    if !args.yes && !is_wanted()? {
        return Err(Failure::usage(if std::io::stdin().is_terminal() {
            "nothing was done"
        } else {
            "nothing was done: nobody can be asked here, so say --yes if that is meant"
        }));
    }
    let Recovers { recovers: asked } =
        ask::one(socket, &Request::Recover { from, plan: Some(plan.plan) }).await?;
    let progress = ProgressBar::new_spinner();
    let begun = Instant::now();
    let takes_part = plan.nodes.iter().any(|node| node.takes_part && node.name == asked);
    let serves = !takes_part
        || loop {
            tokio::time::sleep(LOOK).await;
            progress.tick();
            // It starts again meanwhile.
            let status = ask::anything(socket, &Request::Status {}).await.map(Status::read);
            if let Ok(Ok(Status { page: Page::Replica(page), .. })) = status
                && page.epoch >= plan.epoch
            {
                break true;
            }
            if begun.elapsed() > BEGIN_WITHIN {
                break false;
            }
        };
    progress.finish_and_clear();
    if !serves {
        return Err(Failure::system(format!(
            "the group {} has not begun: a node of the plan does not answer any more. Look at `outlast replicate status`, and try again",
            clean(&plan.group)
        )));
    }
    print(&format!("the group {} goes on with the data of {}\n", clean(&plan.group), clean(&plan.from)))?;
    Ok(Code::Ok)
}

fn is_wanted() -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    print("Do that? [y/N] ")?;
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(["y", "yes"].contains(&line.trim().to_lowercase().as_str()))
}
