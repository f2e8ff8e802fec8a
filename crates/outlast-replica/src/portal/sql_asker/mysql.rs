//! What a MariaDB is asked.
//!
//! It is done when each of its threads that was given something waits for another client: for a row, a table, or a lock that clients name.
//! A thread that has been let go, and has not run yet, still says that it waits. So what the threads say counts only if none of them has run
//! while they were asked, by what the kernel says of them, and none was about to.

use super::Queries;
use crate::replica::Threads;
use crate::sql::{Account, Client, Row};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Where the kernel says nothing of the server's threads, they are looked at twice.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Of a thread that is given nothing at present.
const RESTS: [&str; 3] = ["Sleep", "Connect", "Daemon"];
/// So many wait for a row.
const ROW_WAITS: &str = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'";
/// To end what a thread of another user works on.
const RIGHT_TO_INTERRUPT: &str = "SELECT 1 FROM information_schema.USER_PRIVILEGES \
     WHERE PRIVILEGE_TYPE IN ('CONNECTION ADMIN', 'SUPER') AND REPLACE(GRANTEE, '\\'', '') = CURRENT_USER()";
/// What threads are in when they wait for other clients, beside rows.
const WAITS: [&str; 9] = [
    "Waiting for table metadata lock",
    "Waiting for schema metadata lock",
    "Waiting for stored function metadata lock",
    "Waiting for stored procedure metadata lock",
    "Waiting for trigger metadata lock",
    "Waiting for table level lock",
    "Waiting for global read lock",
    "Waiting for backup lock",
    "User lock",
];

/// Whether the server can be asked all of that.
///
/// # Errors
/// Why not.
pub(super) fn check(server: SocketAddr, account: &Account) -> io::Result<()> {
    let mut client = Client::connect(server, account)?;
    kept(&mut client, b"")?;
    looked_at(&mut client, &[0])?;
    // It takes the right to see the threads of others.
    client.rows("SHOW ENGINE INNODB STATUS")?;
    client.rows(ROW_WAITS)?;
    let may = client.rows(RIGHT_TO_INTERRUPT)?;
    if may.is_empty() {
        return Err(io::Error::other("it lacks the right CONNECTION ADMIN"));
    }
    Ok(())
}

/// What the server keeps of the passwords of accounts of this name.
pub(super) fn kept(client: &mut Client, user: &[u8]) -> io::Result<Vec<String>> {
    let user: String = user.iter().map(|byte| format!("{byte:02X}")).collect();
    let query =
        format!("SELECT DISTINCT authentication_string FROM mysql.user WHERE BINARY User = BINARY X'{user}'");
    Ok(client.rows(&query)?.into_iter().filter_map(|row: Row| row.into_iter().next().flatten()).collect())
}

/// A thread of the server.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    number: u32,
    /// It was given something.
    has_work: bool,
    /// It says that it waits for something other than a row.
    waits: bool,
    /// What the kernel calls it.
    id: Option<u32>,
    /// The server's number of what it was given.
    query: u64,
}

/// Those of these numbers.
fn looked_at(client: &mut Client, numbers: &[u32]) -> io::Result<Vec<Thread>> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<String> = numbers.iter().map(u32::to_string).collect();
    let query = format!(
        "SELECT ID, COMMAND, STATE, TID, QUERY_ID FROM information_schema.PROCESSLIST WHERE ID IN ({})",
        list.join(", ")
    );
    let of_row = |row: &Row| {
        let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        Thread {
            number: text(0).parse().unwrap_or(0),
            has_work: !RESTS.contains(&text(1)),
            waits: WAITS.contains(&text(2)),
            id: text(3).parse().ok(),
            query: text(4).parse().unwrap_or(0),
        }
    };
    Ok(client.rows(&query)?.iter().map(of_row).collect())
}

/// How often a thread has run: none, if it is about to, or if the kernel says nothing of it.
fn runs(thread: &Thread) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", thread.id?)).ok()?;
    let line = |name: &str| status.lines().find(|line| line.starts_with(name));
    line("State:").filter(|state| state.contains("S (sleeping)"))?;
    Some(format!("{:?} {:?}", line("voluntary_ctxt_switches"), line("nonvoluntary_ctxt_switches")))
}

/// Whether the kernel here calls a thread of a server so: one in another PID namespace says numbers of its own.
fn is_of_server(id: u32) -> bool {
    let status = |id: u32| std::fs::read_to_string(format!("/proc/{id}/status")).ok();
    let process = || {
        let status = status(id)?;
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        line.trim().parse::<u32>().ok()
    };
    let Some(process) = process() else { return false };
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let is_here = status(process).is_some_and(|status| {
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
    });
    is_here && (name.contains("maria") || name.contains("mysql"))
}

/// Whether these are done, or wait; and for each that waits what it was given.
pub(super) fn is_idle(client: &mut Client, threads: &Threads) -> io::Result<(bool, Queries)> {
    let not_idle = || (false, Queries::new());
    if threads.wait.is_empty() && threads.ended.is_empty() {
        return Ok((true, Queries::new()));
    }
    let numbers = [threads.wait.as_slice(), &threads.ended].concat();
    let first = looked_at(client, &numbers)?;
    let is_gone = !first.iter().any(|thread| threads.ended.contains(&thread.number));
    let first: Vec<Thread> =
        first.into_iter().filter(|thread| threads.wait.contains(&thread.number)).collect();
    let count = first.iter().filter(|thread| thread.has_work).count();
    // What one was given may not have come to it yet, or its answer is under way.
    if !is_gone || count < threads.wait.len() {
        return Ok(not_idle());
    }
    let ran: Vec<Option<String>> = first.iter().map(runs).collect();
    let is_known = first.iter().all(|thread| thread.id.is_some_and(is_of_server));
    if is_known && ran.contains(&None) {
        return Ok(not_idle());
    }
    if !is_known {
        std::thread::sleep(LOOK_AGAIN);
    }
    let row_waits = client.rows(ROW_WAITS)?;
    let row_waits = row_waits.first().and_then(|row| row.get(1)?.as_deref()?.parse::<usize>().ok());
    let second = looked_at(client, &threads.wait)?;
    let works = second.iter().filter(|thread| !thread.waits).count();
    let stands = first == second && (!is_known || ran == second.iter().map(runs).collect::<Vec<_>>());
    let queries = second.iter().map(|thread| (thread.number, thread.query)).collect();
    Ok((stands && works <= row_waits.unwrap_or(0), queries))
}

/// What has this number of the server's is to end.
pub(super) fn interrupt(client: &mut Client, query: u64) -> io::Result<()> {
    client.set(&format!("KILL QUERY ID {query}"))
}
