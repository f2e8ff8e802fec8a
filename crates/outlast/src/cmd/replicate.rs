//! `outlast replicate`.

use super::recover::{self, RecoverArgs};
use crate::admin::ask;
use crate::cli::ProcessArgs;
use crate::exit::{Code, Failure, cannot_print, clean};
use crate::narrate::Narrator;
use crate::{pages, replicate};
use anyhow::Result;
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use outlast_admin::replica::{Drains, Evicted, Explained, Joining, Joins, Node, Switched};
use outlast_admin::{Page, Request, Status};
use serde_json::Value;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two looks how far a node is.
const LOOK: Duration = Duration::from_millis(100);
/// A node that is not about to join for so many of them has forgotten that it was to.
const IDLE_LOOKS_MAX: u32 = 30;

/// `outlast replicate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct ReplicateArgs {
    #[command(subcommand)]
    pub command: Option<ReplicateCommand>,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// A node.
#[derive(Debug, Default, Args)]
pub struct NodeArgs {
    /// File that lists the nodes of the group (TOML), the same at each of them
    #[arg(long, value_name = "FILE")]
    pub group: Option<PathBuf>,
    /// Which of its nodes this is
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Address of this node's server [default: 127.0.0.1 with the port of the portal]
    #[arg(long, value_name = "ADDRESS")]
    pub server: Option<SocketAddr>,
    /// This node has no server, and only votes; the group file says so, too
    #[arg(long)]
    pub witness: bool,
    /// Network device that gets the address of the portal [default: the one with this node's own address]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Folder in which a node notes that it is in a group [default: /var/lib/outlast]
    #[arg(long, value_name = "FOLDER")]
    pub state_folder: Option<PathBuf>,
    /// Found the group anew though this node ran before: the servers of all nodes have the same data
    #[arg(long)]
    pub new_group: bool,
    /// Whenever the group goes on without this node, replace the data of its server by a copy of another one's, and take part again
    #[arg(long)]
    pub join: bool,
    /// Command that writes a copy of this server's data, its first byte when they are of one moment; `redis`: ready-made
    #[arg(long, value_name = "COMMAND")]
    pub snapshot: Option<String>,
    /// Command that reads such a copy, and gives it to this server in the place of its data; `redis`: ready-made
    #[arg(long, value_name = "COMMAND")]
    pub restore: Option<String>,
    /// Library that gives the server the time of the order [default: liboutlast_clock.so beside this program, or in ../lib/outlast]
    #[arg(long, value_name = "FILE")]
    pub clock_library: Option<PathBuf>,
    /// Account of this node's MariaDB or PostgreSQL server, as which the node asks for what it keeps of other accounts
    #[arg(long, value_name = "NAME", default_value = "outlast")]
    pub server_user: String,
    /// File with the password of that account; of a redis server: its password, which copies need
    #[arg(long, value_name = "FILE")]
    pub server_password_file: Option<PathBuf>,
    /// The server to start, and its arguments; it ends with this process
    #[arg(value_name = "PROGRAM", last = true)]
    pub program: Vec<OsString>,
}

/// What a node can be asked.
#[derive(Debug, Subcommand)]
pub enum ReplicateCommand {
    /// Show the nodes of this machine: view, primary, members, positions
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make another member the primary; its clients keep their connections
    Switchover {
        /// Which one [default: any]
        #[arg(value_name = "NODE")]
        to: Option<String>,
    },
    /// Bring the node of this machine, which is out of the group, back: its server gets the data of another one
    Join,
    /// Take a member out of the group; the others go on without it
    Evict {
        /// Which one
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Have a group that cannot go on by itself founded again, by the nodes that answer
    Recover(RecoverArgs),
    /// Explain every view, take-over and pause that the node of this machine has seen
    Why {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Have the node of this machine leave the group and end, as SIGTERM does
    Drain,
}

const EXAMPLES: &str = "\
Examples:
  outlast replicate --group db.toml --node a --server 127.0.0.1:6380 -- redis-server --port 6380
  outlast replicate --group db.toml --node w
  outlast replicate switchover b
  outlast replicate join
  outlast replicate recover
  outlast replicate why

The group file, the same on all machines (witness: a node without a server, which only votes):
  name = \"db\"
  portal = \"10.0.0.250:6379\"    # where clients connect to; no machine has this address
  protocol = \"redis\"            # or mysql, postgres; or raw, the default: clients wait for each answer
  clock = \"order\"               # or machine, the default: each server has the time of its machine
  [[node]]
  name = \"a\"
  address = \"10.0.0.1:7400\"
  [[node]]
  name = \"b\"
  address = \"10.0.0.2:7400\"
  [[node]]
  name = \"w\"
  address = \"10.0.0.3:7400\"
  witness = true

Every byte that a client sends goes to the servers of all members before the client's TCP hears that it
has come, and in the same order. When the machine of the primary dies, another one takes the portal's
address and the same TCP connections. The servers have to begin with the same data, and to give the
same answers to the same input: docs/replica.md says which do. The answers are compared.

The group begins when all nodes of the list run and their servers take connections. A member that is
silent for the detection time (detect = \"100ms\" in the group file) is taken out. It keeps its vote,
and comes back with `join`, or by itself with --join: a copy of the primary's data replaces all that
its server has. For redis that is ready-made; for others, --snapshot and --restore say how.
More than half of all nodes have to run: with three, one may die; with five, two. Where more are dead for
good, or all were down, `recover` has the group founded again by those that answer. It shows first what is lost.

Nodes trust each other: only they may reach each other's addresses. A node needs root, or
CAP_NET_ADMIN and CAP_NET_RAW, and the kernel's nf_tables and nfnetlink_queue. A witness needs no rights.

Exit codes: 0 after SIGTERM or drain; 130 after Ctrl-C; 2 usage, or the group file; 7 the system refused,
or the server of this node has ended: the others go on without it. A second signal ends it at once.";

/// Runs a node, or asks one.
pub fn run(args: &ReplicateArgs, process: &ProcessArgs, narrator: &Narrator) -> Result<Code> {
    match &args.command {
        None => replicate::run(&args.node, process, narrator),
        Some(command) => crate::asking(ask(command, process)),
    }
}

async fn ask(command: &ReplicateCommand, process: &ProcessArgs) -> Result<Code> {
    let answers = ask::everybody(process.admin_socket.as_deref()).await?;
    let is_node = |instance: &&ask::Instance| matches!(instance.status.page, Page::Replica(_));
    let nodes: Vec<&ask::Instance> = answers.instances.iter().filter(is_node).collect();
    if let ReplicateCommand::Status { json } = command {
        let text = if *json {
            let answers: Vec<&Value> = nodes.iter().map(|instance| &instance.answer).collect();
            serde_json::to_string_pretty(&answers)? + "\n"
        } else if nodes.is_empty() {
            answers.complete()?;
            "no node of a group of replicas runs on this machine\n".to_owned()
        } else {
            pages::text(&nodes.iter().map(|instance| &instance.status).collect::<Vec<&Status>>())
        };
        print(&text)?;
        return answers.complete().map(|()| Code::Ok);
    }
    let socket = match nodes.as_slice() {
        [one] => &one.path,
        [] => {
            answers.complete()?;
            return Err(Failure::usage("no node of a group of replicas runs on this machine"));
        }
        several => {
            let all: Vec<String> =
                several.iter().map(|one| format!("--admin-socket {}", one.path.display())).collect();
            return Err(Failure::usage(format!("several nodes run here; add one of {}", all.join(", "))));
        }
    };
    let said = match command {
        ReplicateCommand::Switchover { to } => {
            let request = Request::Switchover { to: to.clone() };
            let Switched { primary } = ask::one(socket, &request).await?;
            format!("{} is the primary\n", clean(&primary))
        }
        ReplicateCommand::Join => return join(socket).await,
        ReplicateCommand::Recover(args) => return recover::run(socket, args).await,
        ReplicateCommand::Why { json } => {
            let explained: Explained = ask::one(socket, &Request::Why {}).await?;
            if *json { serde_json::to_string_pretty(&explained)? + "\n" } else { pages::events(&explained) }
        }
        ReplicateCommand::Evict { node } => {
            let Evicted { evicted } = ask::one(socket, &Request::Evict { node: node.clone() }).await?;
            format!("{} is out of the group\n", clean(&evicted))
        }
        ReplicateCommand::Drain | ReplicateCommand::Status { .. } => {
            let Drains { drains } = ask::one(socket, &Request::Drain {}).await?;
            format!("{} leaves the group\n", clean(&drains))
        }
    };
    print(&said)?;
    Ok(Code::Ok)
}

/// Has the node join, and waits until it is a member.
async fn join(socket: &Path) -> Result<Code> {
    let Joins { joins } = ask::one(socket, &Request::Join {}).await?;
    let progress = ProgressBar::new_spinner();
    let mut idle_looks = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let status = Status::read(ask::anything(socket, &Request::Status {}).await?);
        let Ok(Status { page: Page::Replica(page), .. }) = status else {
            return Err(Failure::system(format!("node {} has ended", clean(&joins))));
        };
        let is_own = |node: &&Node| node.name == page.node;
        let is_member = page.nodes.iter().find(is_own).is_some_and(|node| node.member);
        idle_looks = if page.joining.is_none() && !is_member { idle_looks + 1 } else { 0 };
        if page.waits.is_some() || idle_looks > IDLE_LOOKS_MAX {
            return Err(Failure::system(format!("node {} has begun again meanwhile", clean(&joins))));
        }
        match page.joining {
            None if is_member => break,
            Some(Joining { failed: Some(why), .. }) => {
                progress.finish_and_clear();
                return Err(Failure::system(format!("node {} cannot join: {}", clean(&joins), clean(&why))));
            }
            None => {}
            Some(joining) => progress.set_message(stage(&joining)),
        }
        progress.tick();
    }
    progress.finish_and_clear();
    print(&format!("{} is a member of the group\n", clean(&joins)))?;
    Ok(Code::Ok)
}

fn stage(joining: &Joining) -> String {
    match &joining.from {
        Some(from) => {
            format!("{} of the data of {}", indicatif::HumanBytes(joining.copied_bytes), clean(from))
        }
        None if joining.catching_up => "catches up with what has happened since".to_owned(),
        None => "asks for a copy".to_owned(),
    }
}

pub(super) fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(cannot_print(&error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::command;

    /// The guide's, and those of the help.
    #[test]
    fn examples_are_understood() {
        let guide = include_str!("../../../../docs/replica.md");
        let lines = guide.lines().chain(super::EXAMPLES.lines()).map(str::trim);
        let lines: Vec<&str> = lines.filter(|line| line.starts_with("outlast replicate ")).collect();
        assert!(lines.len() > 8, "{lines:?}");
        for line in lines {
            let (line, _) = line.split_once(" # ").unwrap_or((line, ""));
            if let Err(error) = command().try_get_matches_from(line.split_whitespace()) {
                panic!("{line}: {error}");
            }
        }
    }
}
