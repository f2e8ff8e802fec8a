//! What a node does as views are decided: it tells its portal, and has others decided.

use super::group::Listed;
use super::remembered::MemberOf;
use super::{CHANGE_AGAIN, Ended, Error, LEAVE_TIMEOUT, LOOK, NOTE_AGAIN, Shared, end};
use crate::consensus::{Member, Why};
use crate::copy::Copying;
use crate::history::Recovered;
use crate::portal::machine::{Command, Facts};
use crate::view::{NodeId, View};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::time::timeout;

impl Shared {
    /// This node, for the others.
    pub(super) fn member(&self) -> Member {
        self.group.node(&self.name).map(Listed::member).unwrap_or_default()
    }

    pub(super) fn server(&self) -> Option<SocketAddr> {
        self.portal.as_ref().map(|portal| portal.server)
    }

    /// How the data of its server are copied.
    pub(super) fn copying(&self) -> Option<&Copying> {
        self.portal.as_ref()?.copying.as_ref()
    }

    pub(super) fn view(&self) -> Option<View> {
        self.consensus.decided().borrow().view.clone()
    }

    /// What people call this node.
    pub(super) fn name_of(&self, node: NodeId, members: &BTreeMap<NodeId, Member>) -> String {
        members
            .get(&node)
            .map_or_else(|| format!("an earlier run ({:x})", node.0), |member| member.name.clone())
    }

    /// Tells the portal who takes part, and looks whether it goes on.
    pub(super) async fn follow(&self) {
        let mut decided = self.consensus.decided();
        let (mut others, mut view) = (BTreeMap::new(), None);
        let mut was_member = false;
        let mut noted_at = Instant::now();
        let mut changing: Option<tokio::task::JoinHandle<()>> = None;
        let mut looks = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                changed = decided.changed() => if changed.is_err() { return },
                _ = looks.tick() => {}
            }
            if !self.consensus.is_running() {
                return self.end(Ended::Consensus);
            }
            let members = self.consensus.members();
            let (newest, why, recovered) = {
                let decided = decided.borrow_and_update();
                (decided.view.clone(), decided.why, decided.recovered.clone())
            };
            if let Some(newest) = newest.filter(|newest| Some(newest) != view.as_ref()) {
                self.log(&newest, &members);
                self.events
                    .lock()
                    .note_view(view.as_ref(), &newest, why, |node| self.name_of(node, &members));
                let is_member = newest.has(self.me) && self.machine.is_some();
                if is_member {
                    // Not where it has nothing any more of what the group begins with.
                    if !was_member && self.is_source && !self.is_same_server().await {
                        return self.end(Ended::ServerRestarted);
                    }
                    let noting = self.note(&newest, &recovered);
                    // Before it does anything as a member: a later run would else begin with old data as if they were the group's.
                    if !was_member
                        && let Err(error) = noting.await
                        && !self.begins_again
                    {
                        return self.end(Ended::Memory(error.to_string()));
                    }
                    was_member = true;
                    self.takes_part.store(true, Ordering::Release);
                    self.introduction.send_modify(|own| {
                        (own.last_epoch, own.has_data) = (Some(newest.epoch), true);
                        (own.was_primary, own.has_run_since) = (newest.primary == self.me, true);
                        own.recovered.clone_from(&recovered);
                    });
                }
                if self.takes_part.load(Ordering::Acquire)
                    && let Some(machine) = &self.machine
                {
                    machine.tell(Command::View(newest.clone()));
                }
                view = Some(newest);
            }
            let is_member = was_member && view.as_ref().is_some_and(|view| view.has(self.me));
            if is_member && self.unnoted.load(Ordering::Relaxed) && noted_at.elapsed() > NOTE_AGAIN {
                noted_at = Instant::now();
                // It goes on by itself.
                drop(view.as_ref().map(|view| self.note(view, &recovered)));
            }
            let leader = self.consensus.leader().map(|leader| self.name_of(leader, &members));
            let epoch = view.as_ref().map_or(0, |view| view.epoch);
            self.events.lock().note_leader(leader, epoch);
            let Some(machine) = &self.machine else { continue };
            let addresses: BTreeMap<NodeId, SocketAddr> = members
                .iter()
                .filter(|(node, member)| **node != self.me && !member.is_witness)
                .filter_map(|(node, member)| Some((*node, member.address.parse().ok()?)))
                .collect();
            if addresses != others {
                machine.tell(Command::Others(addresses.clone()));
                others = addresses;
            }
            let facts = machine.facts();
            let epoch = view.as_ref().map_or(0, |view| view.epoch);
            self.events.lock().note_facts(&self.name, epoch, &facts, |node| self.name_of(node, &members));
            let is_changing = changing.as_ref().is_some_and(|task| !task.is_finished());
            if let Some((next, why)) =
                view.as_ref().filter(|_| !is_changing).and_then(|view| self.next(view, &facts))
            {
                let consensus = self.consensus.clone();
                changing = Some(tokio::spawn(async move {
                    if let Err(error) = consensus.propose(&next, why).await {
                        tracing::debug!(%error, "the view is not decided yet");
                        tokio::time::sleep(CHANGE_AGAIN).await;
                    }
                }));
            }
            if facts.is_server_lost {
                return self.end(Ended::ServerLost);
            }
            if facts.is_server_hanging {
                return self.end(Ended::ServerHangs);
            }
        }
    }

    /// The view that this node wants, if it wants another one.
    fn next(&self, view: &View, facts: &Facts) -> Option<(View, Why)> {
        if facts.lacks_data && view.has(self.me) {
            return without(view, self.me).map(|next| (next, Why::LacksData));
        }
        if view.primary != self.me || facts.view.as_ref() != Some(view) {
            return None;
        }
        let differs = |(node, _): &(&NodeId, &NodeId)| view.has(**node);
        if let Some((node, successor)) = facts.differing.iter().find(differs) {
            let next = without(view, *node)?;
            let primary = if *node == self.me { *successor } else { next.primary };
            return Some((View { primary, ..next }, Why::Differs));
        }
        if let Some(next) = self.without_lagging(view, facts) {
            return Some((next, Why::Lags));
        }
        let epoch = view.epoch + 1;
        let is_new = |node: &&NodeId| !view.has(**node);
        if facts.lagging.iter().any(|node| !view.has(*node)) {
            // It was to become a member, and is silent: with the next view nobody waits for it.
            return Some((View { epoch, ..view.clone() }, Why::GaveUpJoining));
        }
        let node = facts.promoted.iter().find(is_new)?;
        let members = [view.members.as_slice(), &[*node]].concat();
        Some((View { epoch, primary: self.me, members }, Why::Joins))
    }

    /// At the primary: the view without a member that has acknowledged nothing for a while, though it answers the consensus.
    pub(super) fn without_lagging(&self, view: &View, facts: &Facts) -> Option<View> {
        let lags = |node: &&NodeId| **node != self.me && facts.lagging.contains(node);
        let late = view.members.iter().find(lags).filter(|_| view.primary == self.me)?;
        tracing::warn!(
            node = self.name_of(*late, &self.consensus.members()),
            "a node keeps the others waiting, and is taken out"
        );
        without(view, *late)
    }

    pub(super) fn end(&self, how: Ended) {
        end(&self.ended, how);
    }

    /// On disk, which may take long: votes and the lease do not wait for it. What is noted later is only worth knowing: nobody has to wait for
    /// it, either.
    pub(super) fn note(
        &self,
        view: &View,
        recovered: &[Recovered],
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let (group, name, remembered) = (self.group.name.clone(), self.name.clone(), self.remembered.clone());
        let unnoted = self.unnoted.clone();
        let epoch = view.epoch;
        let member = MemberOf { epoch, was_primary: view.primary == self.me, recovered: recovered.to_vec() };
        let noting = tokio::task::spawn_blocking(move || {
            let mut remembered = remembered.lock();
            let noted = remembered.note(&group, &name, member);
            if let Err(error) = &noted {
                tracing::warn!(%error, epoch, "cannot note that this node is a member of the view (--state-folder): after a restart of this node its data would be taken for older ones than they are, and `--join` would replace them in a group that was founded again");
            }
            unnoted.store(noted.is_err(), Ordering::Relaxed);
            noted
        });
        async { noting.await.map_err(io::Error::other)? }
    }

    pub(super) fn log(&self, view: &View, members: &BTreeMap<NodeId, Member>) {
        let names: Vec<String> = view.members.iter().map(|node| self.name_of(*node, members)).collect();
        let primary = self.name_of(view.primary, members);
        tracing::info!(epoch = view.epoch, primary, members = names.join(", "), "a view is decided");
    }

    pub(super) async fn evict(&self, name: &str) -> Result<(), Error> {
        let members = self.consensus.members();
        let view = self.view().ok_or_else(|| Error::Group("there is no view yet".to_owned()))?;
        let node = view.members.iter().find(|node| self.name_of(**node, &members) == name).copied();
        let node = node.ok_or_else(|| Error::Group(format!("{name} is no member of the view")))?;
        let next = without(&view, node).ok_or_else(|| Error::Group(format!("{name} is the last member")))?;
        Ok(self.consensus.propose(&next, Why::Evicted).await?)
    }

    /// The others go on without this node, and wait for nothing.
    pub(super) async fn leave(&self, is_server_lost: bool) {
        let why = match &*self.ended.borrow() {
            _ if is_server_lost => Why::ServerLost,
            Some(Ended::ServerLost) => Why::ServerLost,
            Some(Ended::ServerHangs) => Why::ServerHangs,
            _ => Why::Leaves,
        };
        let left = async {
            while let Some(next) =
                self.view().filter(|view| view.has(self.me)).and_then(|view| without(&view, self.me))
            {
                if let Err(error) = self.consensus.propose(&next, why).await {
                    tracing::debug!(%error, "the others do not go on without this node yet");
                    tokio::time::sleep(LOOK).await;
                }
            }
        };
        let is_last = self.view().is_some_and(|view| view.members == [self.me]);
        if is_last && self.group.nodes.len() > 1 {
            tracing::warn!(
                "this is the last node that has all data of the group: nobody serves clients any more"
            );
        }
        let left = async {
            self.hand_over_before_leaving(why).await;
            left.await;
        };
        if self.machine.is_some() && timeout(LEAVE_TIMEOUT, left).await.is_err() {
            tracing::warn!("the others do not know that this node ends: they will take it for dead");
        }
    }
}

/// The view that has all but this member; none where it is the last one.
fn without(view: &View, node: NodeId) -> Option<View> {
    let members: Vec<NodeId> = view.members.iter().copied().filter(|member| *member != node).collect();
    let primary = if view.primary == node { *members.first()? } else { view.primary };
    Some(View { epoch: view.epoch + 1, primary, members })
}
