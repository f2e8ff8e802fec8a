//! A copy of this node's server for another one: the server comes to a rest, its data are copied, and all goes on. And the other side: a node that
//! begins with such a copy.

use super::machine::{LOOK, Machine};
use super::refresher::{Purpose, Refresher};
use crate::entry::ConnectionId;
use crate::protocol::Protocol;
use crate::replica::{Action, Replica, Snapshot};
use crate::view::{NodeId, View};
use crate::wire;
use outlast_netlink::queue::Verdict;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A server that has not answered all that it was given by then does not come to a rest: it is tried again later.
const REST_WITHIN: Duration = Duration::from_secs(3);
/// Connections whose state cannot be transferred to another server have so long to come into one that can. Then they are reset.
const TRANSFERABLE_WITHIN: Duration = Duration::from_secs(2);
/// Its server says by then whether it would forget what a copy lacks.
const PROBE_WITHIN: Duration = Duration::from_secs(5);
/// Clients wait for a copy so long at the most.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(10);
/// Then all that are not in such a state are reset, however long they have been there.
const RESET_WITHIN: Duration = Duration::from_secs(5);
/// Connections to the server of a node that joins are in their states by then.
const RESUME_WITHIN: Duration = Duration::from_secs(30);

/// The node that wants a copy hears by this that the server rests, or why it does not.
pub type Rests = oneshot::Sender<Result<(), Refusal>>;
/// And by this, when the data are those of this moment, what the other node has to know (PROTOCOL 12.8).
pub type Taken = oneshot::Sender<Result<Vec<u8>, String>>;

/// Why there is no copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For people.
    pub why: String,
    /// There may be one soon, and it costs clients nothing to try.
    pub again: bool,
}

/// What is done for a copy.
#[derive(Debug)]
pub(super) struct Copying {
    begun: Instant,
    /// Since then nothing has gone on.
    held_at: Instant,
    /// The server would forget what a copy lacks.
    is_probed: bool,
    /// It could rest: the servers of all nodes are to forget what a copy lacks, and it comes to a rest right behind that.
    refreshes: bool,
    /// Connections that are in the way, and since when.
    in_the_way: BTreeMap<ConnectionId, Instant>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// It is to come to a rest, or connections are in the way.
    Waits(Rests),
    /// It rests.
    Rests,
}

/// How far a node is that begins with a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Joins {
    /// It does not.
    #[default]
    No,
    /// Connections to its server are brought into their states.
    Resumes,
    /// It catches up with what has happened since.
    CatchesUp,
    /// It has to begin again, and why.
    Failed(String),
}

impl Machine {
    /// Another node wants a copy.
    pub(super) fn begin_copy(&mut self, node: NodeId, rests: Rests) {
        let refusal = match () {
            () if !self.replica.is_serving() => "this node serves no clients at present",
            () if self.copying.is_some() => "another node is getting a copy",
            // It has not done yet what an earlier copy needed.
            () if self.is_refreshing_server() => "its server is busy",
            () if self.replica.expect(node).is_none() => "that node is a member, or about to be one",
            () => {
                let now = Instant::now();
                self.copying = Some(Copying {
                    begun: now,
                    held_at: now,
                    is_probed: false,
                    refreshes: false,
                    in_the_way: BTreeMap::new(),
                    stage: Stage::Waits(rests),
                });
                if self.settings.protocol == Protocol::Redis {
                    self.ask_to_refresh(Purpose::Probe);
                }
                return self.go_on_with_copy();
            }
        };
        let again = !self.replica.is_serving() || self.copying.is_some() || self.is_refreshing_server();
        let _ = rests.send(Err(Refusal { why: refusal.to_owned(), again }));
    }

    /// Looks whether the server rests.
    pub(super) fn go_on_with_copy(&mut self) {
        let now = Instant::now();
        let Some(Copying { mut begun, mut held_at, mut is_probed, mut refreshes, mut in_the_way, stage }) =
            self.copying.take()
        else {
            return;
        };
        let is_serving = self.replica.is_serving();
        let rests = match stage {
            Stage::Rests if !self.replica.is_holding() => return,
            Stage::Rests if held_at.elapsed() > HOLD_MAX => {
                tracing::warn!(
                    "a copy of the server's data took too long: clients do not wait for it any more"
                );
                return self.release_all();
            }
            Stage::Rests => {
                self.copying = Some(Copying { begun, held_at, is_probed, refreshes, in_the_way, stage });
                return;
            }
            Stage::Waits(rests) => rests,
        };
        if !is_probed && is_serving && begun.elapsed() <= PROBE_WITHIN {
            (begun, held_at) = if self.is_refreshing_server() { (begun, now) } else { (now, now) };
            is_probed = !self.is_refreshing_server();
            if !is_probed {
                let stage = Stage::Waits(rests);
                self.copying = Some(Copying { begun, held_at, is_probed, refreshes, in_the_way, stage });
                return;
            }
        }
        let refusal = match () {
            () if !is_serving => Some("it serves no clients any more"),
            () if rests.is_closed() => Some("nobody waits for it"),
            () if !is_probed => Some("its server does not answer"),
            () if held_at.elapsed() > REST_WITHIN => Some("its server is busy with what it was given"),
            () if begun.elapsed() > 2 * RESET_WITHIN => {
                Some("there are always connections whose state cannot be transferred to another server")
            }
            () => None,
        };
        if let Some(why) = refusal {
            self.forget_refresher();
            self.release_all();
            let _ = rests.send(Err(Refusal { why: why.to_owned(), again: !is_serving || !is_probed }));
            return;
        }
        // Another view, or another word about the lease, has ended that.
        refreshes &= self.replica.is_refreshing();
        if !self.replica.is_holding() && !refreshes {
            // Connections were in the way.
            self.replica.hold();
            held_at = now;
        }
        if self.replica.is_holding() && self.replica.is_settled() {
            let now_in_the_way = self.replica.not_transferable();
            if now_in_the_way.is_empty() && self.replica.is_refreshed() {
                self.copying =
                    Some(Copying { begun, held_at, is_probed, refreshes, in_the_way, stage: Stage::Rests });
                let _ = rests.send(Ok(()));
                return;
            }
            self.release_all();
            refreshes = now_in_the_way.is_empty() && self.replica.refresh_and_hold(self.now_ms());
            held_at = now;
            in_the_way.retain(|connection, _| now_in_the_way.contains(connection));
            let since = |connection| (connection, in_the_way.get(&connection).copied().unwrap_or(now));
            in_the_way = now_in_the_way.into_iter().map(since).collect();
            // Where many come and go, there may never be a moment without any.
            let all = begun.elapsed() > RESET_WITHIN;
            let late: Vec<ConnectionId> = in_the_way
                .iter()
                .filter(|(_, since)| all || since.elapsed() > TRANSFERABLE_WITHIN)
                .map(|(connection, _)| *connection)
                .collect();
            self.reset_connections(&late);
        }
        self.copying =
            Some(Copying { begun, held_at, is_probed, refreshes, in_the_way, stage: Stage::Waits(rests) });
    }

    fn reset_connections(&mut self, in_the_way: &[ConnectionId]) {
        let now_ms = self.now_ms();
        for connection in in_the_way {
            if self.replica.handle_abort(*connection, now_ms) {
                tracing::warn!(
                    client = self.client_of(*connection),
                    "the state of a connection cannot be transferred to another server: it is reset, so that a node can join"
                );
            }
        }
    }

    /// The client of this connection, if it is there still.
    pub(super) fn client_of(&self, connection: ConnectionId) -> String {
        self.restore(connection).map(|restore| restore.ends.client.to_string()).unwrap_or_default()
    }

    /// The data are those of this moment.
    pub(super) fn end_copy(&mut self, taken: Taken) {
        self.forget_refresher();
        let rests = self.copying.take().is_some_and(|copying| matches!(copying.stage, Stage::Rests));
        if !rests || !self.replica.is_holding() || !self.replica.is_serving() {
            self.release_all();
            let _ = taken.send(Err("it took too long, or another node leads now".to_owned()));
            return;
        }
        // What the server has said unasked belongs to the time before.
        self.read_servers();
        let is_whole = self.replica.is_settled() && self.replica.is_refreshed();
        if !is_whole || !self.replica.not_transferable().is_empty() {
            self.release_all();
            let _ = taken.send(Err("its server has gone on meanwhile".to_owned()));
            return;
        }
        let mut bytes = Vec::new();
        wire::snapshot::encode(&self.replica.snapshot(self.now_ms()), &mut bytes);
        self.release_all();
        let _ = taken.send(Ok(bytes));
    }

    /// The server has not said whether it has forgotten what a copy lacks, or would.
    fn is_refreshing_server(&self) -> bool {
        self.refresher.as_ref().is_some_and(Refresher::is_asked)
    }

    /// There is no copy, and clients do not wait for one.
    pub(super) fn refuse_copy(&mut self, why: &str) {
        self.release_all();
        if let Some(Copying { stage: Stage::Waits(rests), .. }) = self.copying.take() {
            let _ = rests.send(Err(Refusal { why: why.to_owned(), again: false }));
        }
    }

    fn release_all(&mut self) {
        let now_ms = self.now_ms();
        self.replica.release(now_ms);
    }

    /// When it is looked at again.
    pub(super) fn copies_at(&self) -> Option<Instant> {
        let joins = self.known.joins == Joins::Resumes;
        (self.copying.is_some() || joins).then(|| Instant::now() + LOOK)
    }

    /// Forgets all that this node knew of the group: its server is about to get other data.
    pub(super) fn reset(&mut self) {
        let mut packets = self.replica.waiting_packets();
        while let Some(action) = self.replica.poll_action() {
            if let Action::Verdict { packet, .. } | Action::Forward { packet, .. } = action {
                packets.push(packet);
            }
        }
        self.verdicts.extend(packets.into_iter().map(|packet| (packet.0, Verdict::Drop)));
        self.handing_over.forget_all();
        self.fence();
        self.give_up_address();
        for (_, server) in std::mem::take(&mut self.servers) {
            self.forget_token(server.token);
        }
        self.dirty_servers.clear();
        (self.asker, self.refresher) = (None, None);
        self.forget_sql();
        self.closing_servers.clear();
        self.replica = self.settings.replica();
        // What is under way on them was for the replica of before.
        self.peers.unlink_all();
        self.known.linked.clear();
        (self.known.is_excluded, self.known.is_server_hanging, self.known.joins) = (false, false, Joins::No);
        self.known.lacks_data = true;
    }

    /// The server has the data of this snapshot.
    pub(super) fn join(&mut self, snapshot: &Snapshot, at: Instant, view: View) -> io::Result<()> {
        self.reset();
        // It may have taken long to give the server the data.
        let made_ms =
            self.now_ms().saturating_sub(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
        let newest = self.newest_view.take().filter(|newest| newest.epoch > view.epoch);
        let view = newest.unwrap_or(view);
        // Under the same number it was another one, which others may have waited for.
        if view.has(self.settings.me) {
            self.known.joins_tried += 1;
            self.join_fails("it is a member of the view");
            return Ok(());
        }
        let settings = &self.settings;
        let how = (settings.delivery, settings.protocol);
        let protocol = settings.protocol;
        self.replica = Replica::join(settings.me, snapshot, view, settings.limits, how, made_ms)
            .timed(settings.clock)
            .answering(settings.answers);
        self.set_clock(snapshot.clock_ms)?;
        self.look_at_clock();
        self.resumes_since = Instant::now();
        self.known.joins = Joins::Resumes;
        self.known.joins_tried += 1;
        self.known.lacks_data = false;
        self.begin_with_server()?;
        if protocol == Protocol::Redis {
            self.ask_to_refresh(Purpose::Join);
        }
        self.act()?;
        self.look_at_resumed();
        Ok(())
    }

    /// Whether all connections to the server are in their states.
    pub(super) fn look_at_resumed(&mut self) {
        if self.known.joins != Joins::Resumes {
            return;
        }
        if self.servers.values().all(|server| server.resumes.is_none()) && !self.is_refreshing_server() {
            self.known.joins = Joins::CatchesUp;
            let now_ms = self.now_ms();
            self.replica.handle_resumed(now_ms);
            for node in self.known.linked.clone() {
                self.replica.handle_linked(node, now_ms);
            }
        } else if self.resumes_since.elapsed() > RESUME_WITHIN {
            self.join_fails(
                "the server does not answer what brings connections into the states that others have",
            );
        }
    }

    pub(super) fn join_fails(&mut self, why: &str) {
        self.reset();
        self.known.joins = Joins::Failed(why.to_owned());
    }
}
