//! What a node asks its database: what that keeps of an account, so that a client can log in there, and whether it is done with what it was given.
//! Each in a thread, and on a connection, of its own: the server may take its time.

mod mysql;
pub(crate) mod postgres;

use super::handle::{Command, Handle};
use super::machine::Machine;
use crate::entry::ConnectionId;
use crate::protocol::Protocol;
use crate::protocol::database::Login;
use crate::replica::{NO_CONNECTION, Threads};
use crate::sql::{self, Account};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A server that cannot be asked for accounts is asked again, and then the client is sent away: before it gives up the client by itself
/// (`connect_timeout`, 10 s).
const AGAIN: Duration = Duration::from_millis(100);
const WITHIN: Duration = Duration::from_secs(4);
/// The log says this often that it cannot be asked.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// What connections were given, by the server's numbers of both, where it has some of the latter.
type Queries = BTreeMap<u32, u64>;

/// One question.
#[derive(Debug)]
enum Question {
    /// What it keeps of the accounts of this name, for a client.
    Accounts(ConnectionId, Vec<u8>),
    /// Whether these threads are done, or wait; about this entry.
    Idle(u64, ConnectionId, Threads),
    /// The thread of this number is to end what it works on, which has that number, if any.
    Interrupt(u32, Option<u64>),
}

/// What the server has said of its threads.
#[derive(Debug)]
pub struct Idle {
    /// These were no more.
    ended: Vec<u32>,
    /// Those that were given something wait.
    is_idle: bool,
    queries: Queries,
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
    queries: Queries,
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
            queries: Queries::new(),
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
                Err(_) if matches!(question, Question::Interrupt(..)) => break,
                Err(_) if begun.elapsed() < WITHIN => std::thread::sleep(AGAIN),
                Err(error) => {
                    tracing::debug!(%error, %server, "the server cannot be asked");
                    break handle.tell(match question {
                        Question::Interrupt(..) => break,
                        Question::Accounts(connection, _) => Command::Accounts(connection, None),
                        Question::Idle(index, connection, _) => Command::SqlIdle(index, connection, None),
                    });
                }
            }
        }
    }
}

/// A connection to it.
enum Client {
    Mysql(sql::Client),
    Postgres(Box<::postgres::Client>),
}

impl Client {
    fn connect(server: SocketAddr, account: &Account) -> io::Result<Self> {
        Ok(match account.protocol {
            Protocol::Postgres => Self::Postgres(Box::new(postgres::connect(server, account)?)),
            _ => Self::Mysql(sql::Client::connect(server, account)?),
        })
    }

    fn kept(&mut self, user: &[u8]) -> io::Result<Vec<String>> {
        match self {
            Self::Mysql(client) => mysql::kept(client, user),
            Self::Postgres(client) => postgres::kept(client, user),
        }
    }

    fn is_idle(&mut self, threads: &Threads) -> io::Result<(bool, Queries)> {
        match self {
            Self::Mysql(client) => mysql::is_idle(client, threads),
            Self::Postgres(client) => postgres::is_idle(client, threads),
        }
    }

    fn interrupt(&mut self, number: u32, query: Option<u64>) -> io::Result<()> {
        match (self, query) {
            (Self::Mysql(client), Some(query)) => mysql::interrupt(client, query),
            // By the number of a thread it might be what comes next. Where it is not known, the server is asked again.
            (Self::Mysql(_), None) => Ok(()),
            (Self::Postgres(client), _) => postgres::interrupt(client, number),
        }
    }
}

/// Whether a server can be asked all of that.
///
/// # Errors
/// Why not.
pub(crate) fn check(server: SocketAddr, account: &Account) -> io::Result<()> {
    match account.protocol {
        Protocol::Postgres => postgres::check(server, account),
        _ => mysql::check(server, account),
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
            Ok(Some(Command::Accounts(*connection, Some(asked.kept(user)?))))
        }
        Question::Idle(index, connection, threads) => {
            let (is_idle, queries) = asked.is_idle(threads)?;
            let answer = Idle { ended: threads.ended.clone(), is_idle, queries };
            Ok(Some(Command::SqlIdle(*index, *connection, Some(answer))))
        }
        Question::Interrupt(number, query) => asked.interrupt(*number, *query).map(|()| None),
    }
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
    pub(super) fn take_accounts(&mut self, connection: ConnectionId, kept: Option<Vec<String>>) {
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
        if let Some(asker) = &self.sql_asker {
            let query = asker.queries.get(&number).copied();
            let _ = asker.idle.send(Question::Interrupt(number, query));
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
