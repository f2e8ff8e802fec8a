//! A node that has its group founded again: it asks all others how they are, and has them follow the plan.

use super::door::Own;
use super::door::ask_to_recover;
use super::events::Event;
use super::founding::INTRODUCE_TIMEOUT;
use super::meeting::Introduction;
use super::recovery::{Plan, Recovery, is_superseded, may_follow, plan};
use super::remembered::Remembered;
use super::{Ended, Error, Node, Shared};
use crate::consensus::First;
use crate::history::recoveries;
use crate::portal::machine::Command;
use crate::portal::server_process::{ServerRun, is_same_run};
use crate::view::{GROUP_EPOCHS, View};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// Nodes that have just lost their leader have another one by then, if they can.
const ELECT_WITHIN: Duration = Duration::from_secs(1);

/// Between two looks whether somebody leads the vote.
const LOOK: Duration = Duration::from_secs(1);
/// A server works off what it was given by then, and gets the rest. Others that follow the plan wait a little longer.
const GIVE_WITHIN: Duration = Duration::from_secs(20);
/// What the server has not answered by then it may never answer.
const SETTLE_WITHIN: Duration = Duration::from_secs(3);
const SETTLE_LOOK: Duration = Duration::from_millis(5);
/// Where somebody does, every so many of them a node looks whether there is another group.
const LOOKS_WHERE_LED: u32 = 5;

/// What a node begins with that goes on in a group that is founded again, or was: [`Node::recovering`].
#[derive(Clone, Debug)]
pub struct Recovering {
    /// The plan; none: the group is there.
    pub(super) recovery: Option<Recovery>,
    /// What has happened before.
    pub(super) earlier: Vec<Event>,
    /// What it has said of itself.
    pub(super) own: Introduction,
    /// One that is under way writes to the file, or to the server, still.
    pub(super) remembered: Arc<Mutex<Remembered>>,
    pub(super) joining: Arc<tokio::sync::Mutex<()>>,
    /// Of its server, as far as that is known.
    pub(super) server_run: Option<ServerRun>,
}

impl Recovering {
    /// The group goes on with the data of this node.
    pub(super) fn is_source(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.from == self.own.name)
    }

    pub(super) fn first(&self) -> Option<First> {
        self.recovery.as_ref().map(|recovery| First {
            epoch: recovery.epoch,
            from: recovery.from.clone(),
            recovered: recovery.recovered.clone(),
        })
    }
}

impl Node {
    /// What this node, which has [given up](Self::give_up), hands to the one that goes on in its place, by this plan; none: as a new one.
    #[must_use]
    pub fn recovering(&self, recovery: Option<Recovery>) -> Recovering {
        let shared = &self.shared;
        let (mut own, server_run) = (Own::of(shared).now(), shared.server_run.lock().clone());
        if let Some((server, run)) = shared.server().zip(server_run.clone()) {
            // While it was out nobody has looked.
            own.has_run_since &= is_same_run(server, run);
        }
        // A node that the group begins with again ends where that is another run.
        let is_source = recovery.as_ref().is_some_and(|recovery| recovery.from == shared.name);
        let server_run = server_run.filter(|_| own.has_run_since || is_source);
        Recovering {
            recovery,
            earlier: self.events(),
            own,
            remembered: shared.remembered.clone(),
            joining: shared.joining.clone(),
            server_run,
        }
    }

    /// How the group could be founded again by the nodes that answer, with the data of this one; none: of one that was a member of the last
    /// view. Nothing is done. It takes a second.
    ///
    /// # Errors
    /// The group works, or no node answers that has its data.
    pub async fn plan_recovery(&self, from: Option<&str>) -> Result<Plan, Error> {
        self.shared.plan_recovery(from).await
    }

    /// Has the nodes that answer follow the plan of this [number](Recovery::id). [`Self::ended`] says so at each of them.
    ///
    /// # Errors
    /// Something is different by now, or a node does not follow: those that do wait for it, for a minute at the most.
    pub async fn recover(&self, from: Option<&str>, id: u64) -> Result<Plan, Error> {
        let plan = self.shared.plan_recovery(from).await?;
        if plan.recovery.id != id {
            return Err(Error::Group(
                "the nodes are not as they were a moment ago: look at the plan again".to_owned(),
            ));
        }
        // None gives up what it has where another one would not follow.
        let heard = self.shared.look_at_all().await;
        for name in plan.recovery.nodes.keys() {
            let own =
                heard.get(name).ok_or_else(|| Error::Group(format!("{name} does not answer any more")))?;
            may_follow(own, &plan.recovery).map_err(Error::Group)?;
        }
        // This one goes last: it has to hear what the others say.
        let is_other = |node: &&super::group::Listed| node.name != self.shared.name;
        let nodes =
            self.shared.group.nodes.iter().filter(|node| plan.recovery.nodes.contains_key(&node.name));
        let (others, own): (Vec<_>, Vec<_>) = nodes.partition(is_other);
        for node in others.into_iter().chain(own) {
            let asked = timeout(INTRODUCE_TIMEOUT, ask_to_recover(node.address, &plan.recovery)).await;
            let why = match asked {
                Ok(Ok(Ok(()))) => continue,
                Ok(Ok(Err(why))) => why,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            };
            return Err(Error::Group(format!("{} does not follow: {why}", node.name)));
        }
        Ok(plan)
    }
}

impl Shared {
    async fn plan_recovery(&self, from: Option<&str>) -> Result<Plan, Error> {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now_min = since.as_secs() / 60;
        let first = self.look_at_all().await;
        plan(&self.group, &first, from, now_min).map_err(Error::Group)?;
        // Nodes may be about to elect somebody.
        tokio::time::sleep(ELECT_WITHIN).await;
        plan(&self.group, &self.look_at_all().await, from, now_min).map_err(Error::Group)
    }

    /// Looks whether the group was founded again without this node: soon where nobody leads the vote, and now and then where somebody does.
    pub(super) async fn look_for_recovery(&self) {
        let mut looks_where_led = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            looks_where_led += 1;
            let is_led = self.consensus.heard_leader().is_some();
            if !self.consensus.is_voter() || is_led && looks_where_led < LOOKS_WHERE_LED {
                continue;
            }
            looks_where_led = 0;
            let heard = self.look_at_all().await;
            let voters = self.consensus.voters().into_iter().map(|voter| voter.0).collect();
            let is_superseded = |own| is_superseded(&self.group, own, &heard, &voters);
            if heard.get(&self.name).is_some_and(is_superseded) {
                return self.end(Ended::Superseded);
            }
        }
    }

    /// Whether the server has data that the group does not have: they are not replaced before people have looked at them.
    pub(super) fn has_other_history(&self) -> bool {
        Own::of(self).now().has_other_history()
    }

    /// What has come here may have been acknowledged to clients, though this node has not heard that it is stable: its server gets all of it, as it would
    /// if this node had become the primary. It serves nobody by that: there is no lease for a view that was not decided.
    pub(super) async fn give_all_to_server(&self) {
        let (Some(machine), Some(view)) = (&self.machine, self.view()) else { return };
        if !view.has(self.me) || !self.takes_part.load(Ordering::Acquire) || machine.facts().is_excluded {
            return;
        }
        // Where another one has the data its server gets theirs.
        if matches!(&*self.ended.borrow(), Some(Ended::Recovers(recovery)) if recovery.from != self.name) {
            return;
        }
        // No view has this number: it is the last one of this group that there could be.
        let epoch = (recoveries(view.epoch) + 1) * GROUP_EPOCHS - 1;
        let alone = View { epoch, primary: self.me, members: vec![self.me] };
        machine.tell(Command::View(alone.clone()));
        let given = async {
            loop {
                let facts = machine.facts();
                if facts.view.as_ref() == Some(&alone) && facts.delivered == facts.last && facts.is_given {
                    return;
                }
                tokio::time::sleep(SETTLE_LOOK).await;
            }
        };
        if timeout(GIVE_WITHIN, given).await.is_err() {
            let facts = machine.facts();
            let (last, delivered) = (facts.last, facts.delivered);
            tracing::error!(
                last,
                delivered,
                "the server works still on what came before, so it was not given all that clients may have been answered by others: that is lost"
            );
        }
        let settled = async {
            while !machine.facts().is_settled {
                tokio::time::sleep(SETTLE_LOOK).await;
            }
        };
        if timeout(SETTLE_WITHIN, settled).await.is_err() {
            tracing::warn!(
                "the server has not answered all that it was given: what it does with it is not waited for"
            );
        }
    }

    /// What all nodes say of themselves that answer.
    async fn look_at_all(&self) -> BTreeMap<String, Introduction> {
        let own = Own::of(self).now();
        let mut heard = BTreeMap::from_iter(self.introduce_to_all(&own).await);
        heard.insert(self.name.clone(), own);
        heard
    }
}
