//! What a node says of its server when it starts: which commands have other results at each server, and what becomes of them.

use crate::ServerClock;
use crate::copy::redis::Client;
use std::io;
use std::net::SocketAddr;

/// Of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// How it is dealt with.
    pub(crate) handled: String,
    /// What will make its data other ones than those of the others.
    pub(crate) unsafe_setting: Option<String>,
}

/// Asks a Redis.
///
/// # Errors
/// It does not answer, or refuses.
pub(crate) fn of_redis(server: SocketAddr, password: Option<&str>, clock: ServerClock) -> io::Result<Report> {
    let info = Client::connect(server, password)?.info()?;
    let version = info.field("redis_version").unwrap_or("of an unknown version");
    Ok(report(version, info.field("maxmemory"), info.field("maxmemory_policy"), clock))
}

fn report(version: &str, maxmemory: Option<&str>, policy: Option<&str>, clock: ServerClock) -> Report {
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
    Report { handled, unsafe_setting }
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
