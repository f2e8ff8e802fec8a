//! How a node comes into a group: it looks who is there, and founds the group or enters it.

use super::door::introduce;
use super::meeting::{Introduction, Meeting, Next, Waits};
use super::{Ended, Shared, server_report};
use crate::portal::clock;
use crate::portal::server_process::{is_same_run, is_up};
use crate::portal::sql_asker::check;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Between two introductions of a node that has no group.
const INTRODUCE: Duration = Duration::from_millis(100);
/// An answer to that which takes longer is not waited for.
pub(super) const INTRODUCE_TIMEOUT: Duration = Duration::from_millis(500);
/// A server that has just come up, or has many clients, is asked again for so long.
const ACCOUNT_WITHIN: Duration = Duration::from_secs(3);

impl Shared {
    /// Whether the server has the time of day from the page, if it is to, and if that can be known.
    async fn is_clock_read(&self) -> Option<bool> {
        let portal = self.portal.as_ref()?;
        let (page, server) = (portal.clock_page.clone()?, portal.server);
        let read = tokio::task::spawn_blocking(move || clock::is_read(&page, server)).await.ok()?;
        if read.is_none() {
            tracing::warn!(%server, "the server's processes cannot be looked at: it is not known whether it has the time from the order");
        }
        read
    }

    /// Whether the server takes connections. A witness has none, and waits for none.
    async fn is_server_up(&self) -> bool {
        let Some(server) = self.server() else { return true };
        tokio::task::spawn_blocking(move || is_up(server)).await.unwrap_or(false)
    }

    /// Whether the server still has what it had in memory as the node of before ended, as far as that can be known.
    pub(super) async fn is_same_server(&self) -> bool {
        let run = self.server_run.lock().clone();
        let Some((server, run)) = self.server().zip(run) else { return true };
        tokio::task::spawn_blocking(move || is_same_run(server, run)).await.unwrap_or(true)
    }

    /// The server has lost that.
    fn forget_run(&self) {
        *self.server_run.lock() = None;
        self.introduction.send_modify(|own| own.has_run_since = false);
    }

    /// Introduces this node to all others at once. What those say of themselves that answer.
    pub(super) async fn introduce_to_all(&self, own: &Introduction) -> Vec<(String, Introduction)> {
        let mut asked = JoinSet::new();
        for listed in self.group.nodes.iter().filter(|listed| listed.name != self.name).cloned() {
            let own = own.clone();
            asked.spawn(async move {
                let said = timeout(INTRODUCE_TIMEOUT, introduce(listed.address, &own)).await;
                said.ok().and_then(Result::ok).map(|said| (listed.name, said))
            });
        }
        asked.join_all().await.into_iter().flatten().collect()
    }

    /// Why the server does not say what it keeps of its accounts, without which no client could log in.
    async fn account_refused(&self) -> Option<String> {
        let portal = self.portal.as_ref()?;
        let (account, server) = (portal.account.clone()?, portal.server);
        let asks = move || check(server, &account);
        tokio::task::spawn_blocking(asks).await.ok()?.err().map(|error| error.to_string())
    }
}

/// Until this node is in a group: looks who is there, and founds or enters it.
pub(super) async fn meet(shared: Arc<Shared>, mut meeting: Meeting) {
    let begun = Instant::now();
    let now_ms = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut is_known = false;
    let mut has_asked = None;
    let mut is_refused = false;
    let mut rounds = tokio::time::interval(INTRODUCE);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        if shared.consensus.is_voter() {
            *shared.waits.lock() = None;
            return;
        }
        let is_up = shared.is_server_up().await;
        if !shared.is_same_server().await {
            if shared.is_source {
                return shared.end(Ended::ServerRestarted);
            }
            shared.forget_run();
            meeting.note_restart();
        }
        let mut is_ready = is_up;
        if is_up && !is_known {
            if shared.is_clock_read().await == Some(false) && !shared.begins_again {
                return shared.end(Ended::ClockIgnored);
            }
            match shared.account_refused().await {
                // It may have no room at present.
                Some(_) if begun.elapsed() < ACCOUNT_WITHIN => continue,
                Some(why) if !shared.begins_again => return shared.end(Ended::AccountRefused(why)),
                Some(why) => {
                    if !is_refused {
                        tracing::warn!(
                            why,
                            "the server does not say what it keeps of its accounts: this node waits for that"
                        );
                    }
                    (is_ready, is_refused) = (false, true);
                }
                None => {
                    is_known = true;
                    server_report::begin(&shared);
                }
            }
        }
        meeting.set_ready(is_ready);
        if meeting.gives_up_recovery(now_ms()) && !shared.consensus.is_voter() {
            return shared.end(Ended::RecoveryFailed);
        }
        shared.introduction.send_modify(|own| own.is_ready = is_ready);
        let own = meeting.introduction();
        for (name, said) in shared.introduce_to_all(&own).await {
            meeting.handle_introduction(&name, said, now_ms());
        }
        match meeting.next(now_ms()) {
            Next::Wait(waits) => *shared.waits.lock() = Some(waits),
            Next::Found(voters) => {
                if let Err(error) = shared.consensus.found(voters).await {
                    tracing::warn!(%error, "the group could not be founded");
                }
            }
            Next::Enter(_, recovered) if has_asked.is_some_and(|before| before != recovered) => {
                // The log of its consensus may have something of the group of before.
                return shared.end(Ended::Superseded);
            }
            Next::Enter(addresses, recovered) => {
                has_asked = Some(recovered);
                let names = addresses.keys().cloned().collect();
                *shared.waits.lock() = Some(Waits { in_group: names, ..Waits::default() });
                for address in addresses.values() {
                    if shared.consensus.enter(address, shared.member()).await {
                        break;
                    }
                }
            }
        }
    }
}
