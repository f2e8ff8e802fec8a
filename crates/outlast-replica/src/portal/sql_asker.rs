//! What a node asks its MariaDB: what that keeps of an account, so that a client can log in there, and whether it is done with what it was given.
//! Each in a thread, and on a connection, of its own: the server may take its time.
//!
//! A server is done when each of its threads that was given something waits for another client: for a row, a table, or a lock that clients name.
//! A thread that has been let go, and has not run yet, still says that it waits. So what the threads say counts only if none of them has run
//! while they were asked, by what the kernel says of them, and none was about to.

use super::handle::{Command, Handle};
use super::machine::Machine;
use crate::entry::ConnectionId;
use crate::protocol::mysql::Login;
use crate::protocol::mysql::login::{Hash, PROOF_BYTES};
use crate::replica::{NO_CONNECTION, Threads};
use crate::sql::{Account, Client, Row};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A server that cannot be asked for accounts is asked again, and then the client is sent away: before it gives up the client by itself
/// (`connect_timeout`, 10 s).
const AGAIN: Duration = Duration::from_millis(100);
const WITHIN: Duration = Duration::from_secs(4);
/// Where the kernel says nothing of the server's threads, they are looked at twice.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The log says this often that it cannot be asked.
const REPORT_EVERY: Duration = Duration::from_secs(60);
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

/// One question.
#[derive(Debug)]
enum Question {
    /// What it keeps of the accounts of this name, for a client.
    Accounts(ConnectionId, Vec<u8>),
    /// Whether these threads are done, or wait; about this entry.
    Idle(u64, ConnectionId, Threads),
    /// What has this number of the server's is to end.
    Interrupt(u64),
}

/// What the server has said of its threads.
#[derive(Debug)]
pub struct Idle {
    /// These were no more.
    ended: Vec<u32>,
    /// Those that were given something wait.
    is_idle: bool,
    /// What they were given, by the server's numbers of threads and of that.
    queries: BTreeMap<u32, u64>,
}

/// The threads, and what waits for their answers.
#[derive(Debug)]
pub(super) struct SqlAsker {
    accounts: Sender<Question>,
    idle: Sender<Question>,
    logins: BTreeMap<ConnectionId, Box<Login>>,
    /// It is being asked about this entry.
    asked: Option<u64>,
    /// What waited when it last said so ([`Idle::queries`]).
    queries: BTreeMap<u32, u64>,
    /// When the log last said that it cannot be asked.
    reported_at: Option<Instant>,
}

impl SqlAsker {
    /// # Errors
    /// There is no room for a thread.
    pub(super) fn start(server: SocketAddr, account: &Account, handle: &Handle) -> io::Result<Self> {
        let start = |name: &str| {
            let (questions, receiver) = channel();
            let (account, handle) = (account.clone(), handle.clone());
            let asks = move || answer_all(server, &account, &receiver, &handle);
            std::thread::Builder::new().name(name.to_owned()).spawn(asks).map(|_| questions)
        };
        let (accounts, idle) = (start("accounts")?, start("idle")?);
        Ok(Self {
            accounts,
            idle,
            logins: BTreeMap::new(),
            asked: None,
            queries: BTreeMap::new(),
            reported_at: None,
        })
    }
}

fn answer_all(server: SocketAddr, account: &Account, questions: &Receiver<Question>, handle: &Handle) {
    let mut client = None;
    while let Ok(question) = questions.recv() {
        let begun = Instant::now();
        let mut is_new = client.is_none();
        loop {
            let answer = answer(server, account, &mut client, &question);
            if answer.is_err() {
                client = None;
            }
            match answer {
                Ok(None) => break,
                Ok(Some(command)) => break handle.tell(command),
                // The server may have ended a connection on which nothing was said for long.
                Err(_) if !is_new => is_new = true,
                // That thread is no more, most likely; else the server is asked again whether it waits.
                Err(_) if matches!(question, Question::Interrupt(_)) => break,
                Err(_) if begun.elapsed() < WITHIN => std::thread::sleep(AGAIN),
                Err(error) => {
                    tracing::debug!(%error, %server, "the server cannot be asked");
                    break handle.tell(match question {
                        Question::Interrupt(_) => break,
                        Question::Accounts(connection, _) => Command::Accounts(connection, None),
                        Question::Idle(index, connection, _) => Command::SqlIdle(index, connection, None),
                    });
                }
            }
        }
    }
}

fn answer(
    server: SocketAddr,
    account: &Account,
    client: &mut Option<Client>,
    question: &Question,
) -> io::Result<Option<Command>> {
    let asked = match client {
        Some(client) => client,
        None => client.insert(Client::connect(server, account)?),
    };
    match question {
        Question::Accounts(connection, user) => {
            Ok(Some(Command::Accounts(*connection, Some(kept(asked, user)?))))
        }
        Question::Idle(index, connection, threads) => {
            let (is_idle, queries) = is_idle(asked, threads)?;
            let answer = Idle { ended: threads.ended.clone(), is_idle, queries };
            Ok(Some(Command::SqlIdle(*index, *connection, Some(answer))))
        }
        Question::Interrupt(query) => asked.set(&format!("KILL QUERY ID {query}")).map(|()| None),
    }
}

/// Whether the server can be asked all of that.
///
/// # Errors
/// Why not.
pub(crate) fn check(server: SocketAddr, account: &Account) -> io::Result<()> {
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
fn kept(client: &mut Client, user: &[u8]) -> io::Result<Vec<Hash>> {
    let user: String = user.iter().map(|byte| format!("{byte:02X}")).collect();
    let query =
        format!("SELECT DISTINCT authentication_string FROM mysql.user WHERE BINARY User = BINARY X'{user}'");
    let of_row = |row: Row| row.into_iter().next().flatten().and_then(|text| hash(&text));
    Ok(client.rows(&query)?.into_iter().filter_map(of_row).collect())
}

/// A star, and the bytes in hexadecimal.
fn hash(text: &str) -> Option<Hash> {
    let digits =
        text.strip_prefix('*').filter(|digits| digits.len() == 2 * PROOF_BYTES && digits.is_ascii())?;
    let mut hash = Hash::default();
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
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
fn is_idle(client: &mut Client, threads: &Threads) -> io::Result<(bool, BTreeMap<u32, u64>)> {
    let not_idle = || (false, BTreeMap::new());
    if threads.wait.is_empty() && threads.ended.is_empty() {
        return Ok((true, BTreeMap::new()));
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

impl Machine {
    /// A client says who it is.
    pub(super) fn log_in(&mut self, connection: ConnectionId, login: Box<Login>) {
        let Some(asker) = &mut self.sql_asker else {
            return self.give_server(connection, &login.for_server(&[]));
        };
        let _ = asker.accounts.send(Question::Accounts(connection, login.user().to_vec()));
        asker.logins.insert(connection, login);
    }

    /// The server keeps these of the accounts of that name.
    pub(super) fn take_accounts(&mut self, connection: ConnectionId, kept: Option<Vec<Hash>>) {
        let Some(asker) = &mut self.sql_asker else { return };
        let Some(login) = asker.logins.remove(&connection) else { return };
        match kept {
            // Its client has gone meanwhile.
            Some(_) if !self.takes(connection) => {
                self.replica.handle_server_took(connection, login.length());
            }
            Some(kept) => self.give_server(connection, &login.for_server(&kept)),
            None => {
                let client = self.client_of(connection);
                tracing::error!(server = %self.server, client, "the server cannot be asked for its accounts");
                if self.replica.is_serving() {
                    // All nodes send the client away.
                    self.replica.handle_server_took(connection, login.length());
                    self.break_off(connection);
                } else if !self.known.is_excluded {
                    self.log_in(connection, login);
                }
            }
        }
    }

    /// What was under way was for the replica of before.
    pub(super) fn forget_sql(&mut self) {
        if let Some(asker) = &mut self.sql_asker {
            asker.logins.clear();
            asker.asked = None;
            asker.queries.clear();
        }
    }

    /// This thread of the server is to end what it works on, by an error.
    pub(super) fn interrupt_sql(&mut self, number: u32) {
        // By that number it cannot be what comes next on that connection. Where it is not known, the server is asked again.
        if let Some(asker) = &self.sql_asker
            && let Some(query) = asker.queries.get(&number)
        {
            let _ = asker.idle.send(Question::Interrupt(*query));
        }
    }

    /// The server is to say whether it has worked off what it was given, up to this entry.
    pub(super) fn ask_sql(&mut self, index: u64, connection: ConnectionId) {
        let threads = self.replica.threads(connection);
        // Before the server has greeted a client nobody knows by which thread.
        let is_greeted = connection == NO_CONNECTION || self.replica.has_server_number(connection);
        let is_given = connection == NO_CONNECTION
            || self.servers.get(&connection).is_some_and(|server| server.stream.waiting_bytes() == 0);
        if let Some(asker) =
            self.sql_asker.as_mut().filter(|asker| is_given && is_greeted && asker.asked != Some(index))
        {
            asker.asked = Some(index);
            let _ = asker.idle.send(Question::Idle(index, connection, threads));
        }
    }

    /// It has said so, or not.
    pub(super) fn take_sql_idle(&mut self, (index, connection): (u64, ConnectionId), answer: Option<Idle>) {
        let server = self.server;
        let Some(asker) = self.sql_asker.as_mut().filter(|asker| asker.asked == Some(index)) else { return };
        asker.asked = None;
        match answer {
            Some(Idle { ended, is_idle: true, queries }) => {
                asker.queries = queries;
                self.replica.forget_ended(&ended);
                self.handle_idle(index, connection);
            }
            Some(_) => self.replica.handle_server_busy(index, self.now_ms()),
            None if asker.reported_at.is_none_or(|at| at.elapsed() > REPORT_EVERY) => {
                asker.reported_at = Some(Instant::now());
                tracing::error!(%server, "the server cannot be asked whether it is done: clients wait until it can");
            }
            None => {}
        }
    }
}
