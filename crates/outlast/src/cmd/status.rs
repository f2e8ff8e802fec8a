//! `outlast status`.

use crate::admin::{Request, ask_everybody};
use crate::cli::{ProcessArgs, StatusArgs};
use crate::exit::{Code, Failure, cannot_print, clean};
use crate::narrate::{grouped, seconds};
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Deserialize;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Digits of a session's name that are shown. The whole name may be a secret.
const NAME_DIGITS: usize = 10;
/// The field with the path of an instance's socket.
const SOCKET: &str = "admin_socket";

/// An instance's answer.
#[derive(Debug, Deserialize)]
struct InstanceView {
    pid: u32,
    serves: Vec<String>,
    draining: bool,
    up_ms: u64,
    /// Not told by earlier versions.
    memory: Option<MemoryView>,
    sessions: Vec<SessionView>,
    /// An earlier version has none.
    #[serde(default)]
    failures: Vec<FailureView>,
}

/// What is shown of a session that has not ended in order.
#[derive(Debug, Deserialize)]
struct FailureView {
    peer_addr: Option<String>,
    ago_ms: u64,
    why: String,
}

/// What all its sessions hold.
#[derive(Debug, Deserialize)]
struct MemoryView {
    budget_bytes: u64,
    used_bytes: u64,
    shed_sessions: u64,
}

/// The answer of a process that keeps what an instance has left.
#[derive(Debug, Deserialize)]
struct KeeperView {
    pid: u32,
    keeps_for: SocketAddr,
    left_ms: u64,
    sessions: Vec<KeptView>,
}

/// What is shown of a session that is kept.
#[derive(Debug, Deserialize)]
struct KeptView {
    id: String,
    peer: Option<IpAddr>,
    unacked_bytes: u64,
    unread_bytes: u64,
}

/// What is shown of a session.
#[derive(Debug, Deserialize)]
struct SessionView {
    id: String,
    role: String,
    state: String,
    mode: Option<String>,
    security: String,
    written_bytes: u64,
    read_bytes: u64,
    unacked_bytes: u64,
    outages: u64,
    pause_now_ms: Option<u64>,
    pause_longest_ms: u64,
    peer_addr: Option<String>,
    age_ms: u64,
}

/// Shows all instances, once or until interrupted.
pub async fn run(args: &StatusArgs, process: &ProcessArgs) -> Result<Code> {
    loop {
        let answers = ask_everybody(process.admin_socket.as_deref(), &Request::Status {}).await?;
        let which = args.which.as_deref();
        let all = answers.answers.iter();
        let instances: Vec<Value> = all
            .filter(|(_, status)| which.is_none_or(|which| is_meant(status, which)))
            .map(|(socket, status)| with_socket(status.clone(), socket))
            .collect();
        if let (Some(which), []) = (which, instances.as_slice()) {
            answers.complete()?;
            return Err(Failure::usage(format!(
                "no outlast instance of this user is called {which:?}, or has or runs that process: see `outlast status`"
            )));
        }
        let text = match instances.as_slice() {
            instances if args.json => serde_json::to_string_pretty(instances)? + "\n",
            // The error says it all.
            [] if !answers.silent.is_empty() => String::new(),
            instances => page(instances)?,
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
        let complete = answers.complete();
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
fn is_meant(instance: &Value, which: &str) -> bool {
    let text = |name| instance.get(name).and_then(Value::as_str);
    let serving = instance.get("generations").and_then(Value::as_array).and_then(|all| all.last());
    let pids = [instance.get("pid"), instance.get("main_pid"), serving.and_then(|last| last.get("pid"))];
    let pid = which.parse::<u64>().ok().filter(|pid| *pid > 0);
    text("runs") == Some(which)
        || pid.is_some() && pids.into_iter().flatten().any(|number| number.as_u64() == pid)
}

/// An answer, and the socket that it came from: some have nothing else that tells them apart.
fn with_socket(mut answer: Value, socket: &Path) -> Value {
    if let Value::Object(fields) = &mut answer {
        fields.insert(SOCKET.into(), socket.to_string_lossy().into());
    }
    answer
}

/// A line for an instance whose process has the number of another one's: they are in several PID namespaces, such as containers.
fn socket_line(instance: &Value, instances: &[Value]) -> Option<String> {
    let pid = instance.get("pid")?.as_u64()?;
    let is_it = |other: &&Value| other.get("pid").and_then(Value::as_u64) == Some(pid);
    let socket = instance.get(SOCKET)?.as_str()?;
    (instances.iter().filter(is_it).count() > 1).then(|| format!("  --admin-socket {}\n", clean(socket)))
}

fn page(instances: &[Value]) -> Result<String> {
    if instances.is_empty() {
        return Ok("no outlast instance of this user is running\n".into());
    }
    let mut text = String::new();
    for instance in instances {
        if let Some(user) = instance.get("user").and_then(Value::as_u64) {
            text.push_str(&format!("user {user}: "));
        }
        if instance.get("keeps_for").is_some() {
            text.push_str(&kept(&KeeperView::deserialize(instance)?));
            continue;
        }
        let socket = socket_line(instance, instances).unwrap_or_default();
        if instance.get("runs").is_some() {
            text.push_str(&super::status_run::page(instance, &socket)?);
            continue;
        }
        let view = InstanceView::deserialize(instance)?;
        let draining = if view.draining { ", draining" } else { "" };
        let up = seconds(Duration::from_millis(view.up_ms));
        text.push_str(&format!("process {}, up {up}{draining}\n{socket}", view.pid));
        for line in &view.serves {
            text.push_str(&format!("  {}\n", clean(line)));
        }
        if let Some(line) = view.memory.as_ref().and_then(MemoryView::line) {
            text.push_str(&line);
        }
        if view.sessions.is_empty() {
            text.push_str("  no sessions\n");
        } else {
            text.push_str(&format!("{}\n", table(&view.sessions)));
        }
        for FailureView { peer_addr, ago_ms, why } in &view.failures {
            let ago = seconds(Duration::from_millis(*ago_ms));
            let peer = peer_addr.as_deref().unwrap_or("-");
            text.push_str(&format!("  ended {ago} ago, peer {peer}: {}\n", clean(why)));
        }
        text.push('\n');
    }
    Ok(text)
}

impl MemoryView {
    /// Worth a line when it is nearly all in use, or was.
    fn line(&self) -> Option<String> {
        let Self { budget_bytes, used_bytes, shed_sessions } = self;
        let told = *shed_sessions > 0 || *used_bytes >= budget_bytes / 4 * 3;
        told.then(|| {
            format!(
                "  memory of sessions: {} of {} bytes (--memory); sessions ended to free memory or descriptors: {}\n",
                grouped(*used_bytes),
                grouped(*budget_bytes),
                grouped(*shed_sessions)
            )
        })
    }
}

fn kept(view: &KeeperView) -> String {
    let KeeperView { pid, keeps_for, left_ms, sessions } = view;
    let (count, them) = match sessions.len() {
        1 => ("1 session".to_owned(), "it"),
        count => (format!("{count} sessions"), "them"),
    };
    let left = seconds(Duration::from_millis(*left_ms));
    let mut table = plain_table(&["SESSION", "PEER", "UNACKED", "UNREAD"]);
    for session in sessions {
        table.add_row([
            session.id.chars().take(NAME_DIGITS).collect(),
            session.peer.map_or_else(|| "-".into(), |peer| peer.to_string()),
            grouped(session.unacked_bytes),
            grouped(session.unread_bytes),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "process {pid}, keeps {count} of a listener that was stopped, for another {left}\n  \
         start `outlast listen {keeps_for}` again, with its other settings, to go on with {them}\n{table}\n\n"
    )
}

/// Columns without lines between them.
pub fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

fn table(sessions: &[SessionView]) -> Table {
    let mut table = plain_table(&[
        "SESSION", "ROLE", "PEER", "STATE", "MODE", "SECURITY", "AGE", "UNACKED", "OUTAGES", "PAUSE",
        "LONGEST", "SENT", "RECEIVED",
    ]);
    for session in sessions {
        let millis = |ms: u64| seconds(Duration::from_millis(ms));
        table.add_row([
            session.id.chars().take(NAME_DIGITS).collect(),
            session.role.clone(),
            session.peer_addr.clone().unwrap_or_else(|| "-".into()),
            session.state.clone(),
            session.mode.clone().unwrap_or_else(|| "-".into()),
            session.security.clone(),
            millis(session.age_ms),
            grouped(session.unacked_bytes),
            grouped(session.outages),
            session.pause_now_ms.map_or_else(|| "-".into(), millis),
            millis(session.pause_longest_ms),
            grouped(session.written_bytes),
            grouped(session.read_bytes),
        ]);
    }
    for column in table.column_iter_mut().skip(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
