//! What a node says of its server when it starts: which commands have other results at each server, and what becomes of them.

use super::Shared;
use crate::copy::redis::Client;
use crate::portal::sql_asker::postgres;
use crate::protocol::Protocol;
use crate::replica::ServerClock;
use crate::sql::{self, Account};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// A server that loads its data is asked again how it is set: so often, and so many times.
const AGAIN: Duration = Duration::from_secs(1);
const TRIES: u32 = 600;
/// From here on InnoDB never gives up (MariaDB, innodb_lock_wait_timeout).
const NO_LOCK_TIMEOUT_S: u64 = 100_000_000;

/// Nodes find deadlocks long before.
const DEADLOCK_TIMEOUT_MS: u64 = 3_600_000;

/// Of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// How it is dealt with.
    pub handled: String,
    /// What will make its data other ones than those of the others.
    pub unsafe_setting: Option<String>,
}

/// Finds out what there is to say, which [`Status`](super::Status) has from then on.
pub(super) fn begin(shared: &Shared) {
    let Some(server) = shared.server().filter(|_| shared.group.protocol != Protocol::Raw) else { return };
    let password = shared.copying().and_then(|copying| copying.password.clone());
    let account = shared.portal.as_ref().and_then(|portal| portal.account.clone());
    let (clock, place) = (shared.group.clock, shared.server_report.clone());
    tokio::task::spawn_blocking(move || {
        let asks = || match &account {
            Some(account) if account.protocol == Protocol::Postgres => of_postgres(server, account, clock),
            Some(account) => of_mysql(server, account, clock),
            None => of_redis(server, password.as_deref(), clock),
        };
        let is_loading =
            |asked: &io::Result<_>| asked.as_ref().is_err_and(|error| error.to_string().contains("LOADING"));
        let mut asked = asks();
        for _ in 0..TRIES {
            if !is_loading(&asked) {
                break;
            }
            std::thread::sleep(AGAIN);
            asked = asks();
        }
        *place.lock() = Some(asked.unwrap_or_else(|error| ServerReport {
            handled: format!(
                "the server at {server} does not say how it is set ({error}); --server-password-file gives the node its password"
            ),
            unsafe_setting: None,
        }));
    });
}

/// Asks a Redis.
///
/// # Errors
/// It does not answer, or refuses.
fn of_redis(server: SocketAddr, password: Option<&str>, clock: ServerClock) -> io::Result<ServerReport> {
    let info = Client::connect(server, password)?.info()?;
    let version = info.field("redis_version").unwrap_or("of an unknown version");
    Ok(report(version, info.field("maxmemory"), info.field("maxmemory_policy"), clock))
}

/// Asks a MySQL or MariaDB.
fn of_mysql(server: SocketAddr, account: &Account, clock: ServerClock) -> io::Result<ServerReport> {
    let rows = sql::Client::connect(server, account)?.rows("SELECT VERSION(), @@innodb_lock_wait_timeout")?;
    let mut fields = rows.into_iter().flatten().flatten();
    let (version, timeout) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let time = match clock {
        ServerClock::Order => "NOW() and the like have the time by the order, alike at all servers",
        ServerClock::Machine => {
            "NOW() and the like have the time of each machine: what writes them leaves data that differ (clock = \"order\" mends that)"
        }
    };
    let handled = format!(
        "{version}: KILL, LOAD DATA, and statements that write what UUID(), RAND() and the like say are refused, as each server would do something \
         else; results are those of the primary's; {time}; what functions, triggers and SQL in strings do is not known before it differs"
    );
    let is_short = timeout.parse::<u64>().is_ok_and(|timeout_s| timeout_s < NO_LOCK_TIMEOUT_S);
    let unsafe_setting = is_short.then(|| {
        format!(
            "a statement that waits for a row ends after {timeout} s by each server's own clock: set innodb_lock_wait_timeout to {NO_LOCK_TIMEOUT_S}, \
             or data may differ after such a wait"
        )
    });
    Ok(ServerReport { handled, unsafe_setting })
}

/// Asks a PostgreSQL.
fn of_postgres(server: SocketAddr, account: &Account, clock: ServerClock) -> io::Result<ServerReport> {
    let mut client = postgres::connect(server, account)?;
    let mut setting = |name: &str| {
        let query = format!("SELECT setting FROM pg_settings WHERE name = '{name}'");
        postgres::first_values(&mut client, &query)
            .map(|values| values.into_iter().next().unwrap_or_default())
    };
    let version = setting("server_version")?;
    let time = match clock {
        ServerClock::Order => "now() and the like have the time by the order, alike at all servers",
        ServerClock::Machine => {
            "now() and the like have the time of each machine: what writes them leaves data that differ (clock = \"order\" mends that)"
        }
    };
    let handled = format!(
        "PostgreSQL {version}: LISTEN, COPY with files, passwords in clear, and statements that write what random(), gen_random_uuid(), ctid, txid_current() and \
         the like say are refused, as each server would do something else; results are those of the primary's; {time}; what functions, triggers, rules \
         and SQL in strings do is not known before it differs"
    );
    let unsafe_setting = if setting("ssl")? == "on" {
        Some("the server offers TLS, and its clients cannot be understood then: set ssl to off, or they cannot log in".to_owned())
    } else {
        let timeout = setting("deadlock_timeout")?;
        let is_short = timeout.parse::<u64>().is_ok_and(|timeout_ms| timeout_ms < DEADLOCK_TIMEOUT_MS);
        is_short.then(|| {
            format!(
                "each server looks for deadlocks after {timeout} ms by its own clock: set deadlock_timeout to 1d, and leave them to the nodes, or data may \
                 differ after one"
            )
        })
    };
    Ok(ServerReport { handled, unsafe_setting })
}

fn report(version: &str, maxmemory: Option<&str>, policy: Option<&str>, clock: ServerClock) -> ServerReport {
    let time = match clock {
        ServerClock::Order => {
            "keys expire, and XADD * and scripts have the time, by the order, alike at all servers"
        }
        ServerClock::Machine => {
            "keys expire, and XADD * and scripts have the time, by the clock of each machine: data may differ (clock = \"order\" mends that)"
        }
    };
    let handled = format!(
        "redis {version}: SPOP is refused, as each server would take another member; replies that depend on chance, or on the server (RANDOMKEY, \
         SRANDMEMBER, SCAN, INFO, CLIENT ...), are those of the primary's; {time}; what scripts write is not known before it differs"
    );
    let has_limit = maxmemory.is_some_and(|bytes| bytes != "0");
    let policy = policy.filter(|policy| has_limit && *policy != "noeviction");
    let unsafe_setting = policy.map(|policy| {
        format!(
            "redis makes room by maxmemory-policy {policy}, and each server takes other keys: set it to noeviction, or answers will differ"
        )
    });
    ServerReport { handled, unsafe_setting }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_may_take_keys_out_by_itself_is_told_of() {
        let unsafe_setting =
            |maxmemory, policy| report("7.0.15", maxmemory, policy, ServerClock::Order).unsafe_setting;
        assert_eq!(unsafe_setting(Some("0"), Some("allkeys-lru")), None);
        assert_eq!(unsafe_setting(Some("1000"), Some("noeviction")), None);
        assert_eq!(unsafe_setting(None, None), None);
        let said = unsafe_setting(Some("1000"), Some("volatile-ttl"));
        assert!(said.is_some_and(|said| said.contains("maxmemory-policy volatile-ttl")));
        let handled = |clock| report("7.0.15", None, None, clock).handled;
        assert!(handled(ServerClock::Order).contains("by the order"));
        assert!(handled(ServerClock::Machine).contains("clock = \"order\" mends that"));
    }
}
