//! What a PostgreSQL is asked.
//!
//! It is done when each connection that was given something waits for a lock of another client. One statement asks for that, and the server looks at all its
//! locks at one moment; one that has been let go has its lock from then on, before it runs.

use super::Queries;
use crate::replica::Threads;
use crate::sql::Account;
use postgres::{Client, Config, NoTls, SimpleQueryMessage};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The account reads what is about all databases in this one.
const DATABASE: &str = "postgres";
/// A server that keeps the node waiting for longer hangs.
const OPTIONS: &str = "-c statement_timeout=10s -c lock_timeout=10s -c client_min_messages=error";
const KEPT: &str = "SELECT rolpassword FROM pg_authid WHERE rolname = $1::text AND rolpassword IS NOT NULL";
/// May end what any client has asked, and has a place where clients have taken all others.
const RIGHT_TO_INTERRUPT: &str = "SELECT rolsuper::text FROM pg_roles WHERE rolname = current_user";

/// # Errors
/// The server cannot be reached, or does not let this account in.
pub(crate) fn connect(server: SocketAddr, account: &Account) -> io::Result<Client> {
    let mut config = Config::new();
    config.host(&server.ip().to_string()).port(server.port()).user(&account.user).dbname(DATABASE);
    config.connect_timeout(CONNECT_TIMEOUT).application_name("outlast").options(OPTIONS);
    if let Some(password) = &account.password {
        config.password(password);
    }
    config.connect(NoTls).map_err(plain)
}

/// As the server says it.
pub(super) fn plain(error: postgres::Error) -> io::Error {
    match error.as_db_error() {
        Some(said) => io::Error::new(io::ErrorKind::PermissionDenied, said.message().to_owned()),
        None => io::Error::other(error),
    }
}

/// The first value of each row.
pub(crate) fn first_values(client: &mut Client, query: &str) -> io::Result<Vec<String>> {
    let of_row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    Ok(client.simple_query(query).map_err(plain)?.iter().filter_map(of_row).collect())
}

/// Whether the server can be asked all of that.
///
/// # Errors
/// Why not.
pub(super) fn check(server: SocketAddr, account: &Account) -> io::Result<()> {
    let mut client = connect(server, account)?;
    kept(&mut client, b"")?;
    is_idle(&mut client, &Threads { wait: vec![0], ended: vec![0] })?;
    if first_values(&mut client, RIGHT_TO_INTERRUPT)?.first().is_none_or(|may| may != "true") {
        return Err(io::Error::other("it is no superuser"));
    }
    Ok(())
}

/// What the server keeps of the password of the account of this name.
pub(super) fn kept(client: &mut Client, user: &[u8]) -> io::Result<Vec<String>> {
    let user = String::from_utf8_lossy(user).into_owned();
    let rows = client.query(KEPT, &[&user]).map_err(plain)?;
    Ok(rows.iter().filter_map(|row| row.try_get(0).ok()).collect())
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Whether these are done, or wait for other clients.
pub(super) fn is_idle(client: &mut Client, threads: &Threads) -> io::Result<(bool, Queries)> {
    let (given, ended) = (list(&threads.wait), list(&threads.ended));
    // One that waits for the server itself, a vacuum say, is not done. Transactions that were prepared have the number 0. A page that a cursor keeps is no
    // lock.
    let query = format!(
        "SELECT (SELECT count(*) FROM unnest('{{{given}}}'::int[]) AS given(pid) WHERE pg_blocking_pids(pid) = '{{}}' \
         AND NOT EXISTS (SELECT FROM pg_stat_activity AS own WHERE own.pid = given.pid AND own.wait_event_type = 'BufferPin') \
         OR EXISTS (SELECT FROM unnest(pg_blocking_pids(pid)) AS by(pid) JOIN pg_stat_activity AS other ON other.pid = by.pid \
         WHERE other.backend_type <> 'client backend')) \
         + (SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ('{{{ended}}}'::int[]) AND backend_type = 'client backend')"
    );
    let busy = first_values(client, &query)?;
    let is_idle = busy.first().is_some_and(|busy| busy == "0");
    if !is_idle && !threads.wait.is_empty() {
        // It makes room for others by itself only when it looks for deadlocks, and that it is not to do.
        let query = format!(
            "SELECT pg_cancel_backend(other.pid) FROM unnest('{{{given}}}'::int[]) AS given(pid), unnest(pg_blocking_pids(given.pid)) AS by(pid) \
             JOIN pg_stat_activity AS other ON other.pid = by.pid WHERE other.backend_type = 'autovacuum worker'"
        );
        first_values(client, &query)?;
    }
    Ok((is_idle, Queries::new()))
}

/// The connection of this number is to end what it works on, if it waits.
pub(super) fn interrupt(client: &mut Client, number: u32) -> io::Result<()> {
    let query = format!(
        "SELECT pg_cancel_backend({number}) WHERE EXISTS (SELECT FROM pg_locks WHERE pid = {number} AND NOT granted) \
         OR EXISTS (SELECT FROM pg_stat_activity WHERE pid = {number} AND wait_event_type = 'BufferPin')"
    );
    first_values(client, &query).map(drop)
}
