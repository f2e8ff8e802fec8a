//! Whose server is wrong, when those of members have said different things: the primary decides, for all answers that its own server has given
//! in this view.

use super::comparing::AnswerPolicy;
use super::{Action, Replica, Role};
use crate::entry::ConnectionId;
use crate::is_mutant;
use crate::order::message::Difference;
use crate::view::NodeId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// A member that has not compared for so long has no say in who is wrong. One whose server hangs is out by itself, later.
const JUDGE_WITHIN_MS: u64 = 5_000;
/// Shown on both sides of the first byte that differs.
const AROUND_BYTES: usize = 24;
/// Older ones are not told again.
const JUDGED_MAX: usize = 1_000;

/// The same, as people are to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// To which client, if that is known still.
    pub client: Option<SocketAddr>,
    /// The command that was answered, if that is known.
    pub command: Option<String>,
    /// Position of the first byte that differs, in the answers of the server that is taken for wrong; or of the answer in which one does.
    pub offset: u64,
    /// What that server has said there.
    pub wrong: Vec<u8>,
    /// What the other one has said, if it is here still.
    pub right: Option<Vec<u8>>,
}

/// Who has said something else, at one place in the order.
#[derive(Debug)]
struct Found {
    since_ms: u64,
    by: BTreeMap<NodeId, Difference>,
}

/// What the primary knows of it.
#[derive(Debug, Default)]
pub(super) struct Judging {
    /// How far the others have compared.
    pub(super) others: BTreeMap<NodeId, u64>,
    /// What is to be judged, by the entries that say what the primary's server has said.
    found: BTreeMap<u64, Found>,
    /// What was judged. It may be told again.
    judged: BTreeSet<u64>,
    /// Nodes that are to be out.
    condemned: BTreeSet<NodeId>,
    /// Where clients wait for other servers: this node has led since this entry, and these members have joined at those.
    led_from: u64,
    joined: BTreeMap<NodeId, u64>,
}

impl Judging {
    /// There is another view, in which the same primary goes on, or not; that has these entries from before, and these new members.
    pub(super) fn begin(&mut self, goes_on: bool, inherited: u64, new: Vec<NodeId>) {
        let (led_from, mut joined) = if goes_on {
            (self.led_from, core::mem::take(&mut self.joined))
        } else {
            (inherited, BTreeMap::new())
        };
        joined.extend(new.into_iter().map(|node| (node, inherited)));
        *self = Self { led_from, joined, ..Self::default() };
    }

    /// Whether the server of that node was to answer what is in this entry.
    fn was_there(&self, node: NodeId, index: u64) -> bool {
        self.joined.get(&node).is_none_or(|joined| *joined < index)
    }

    /// Whether this node is to be out.
    pub(super) fn condemns(&self, node: NodeId) -> bool {
        self.condemned.contains(&node)
    }

    /// The server of that node has given the same answers up to this entry.
    pub(super) fn equal_up_to(&self, node: NodeId) -> u64 {
        if self.condemns(node) {
            return 0;
        }
        let differs = self.found.iter().find(|(_, found)| found.by.contains_key(&node));
        let compared = self.others.get(&node).copied().unwrap_or(0);
        differs.map_or(compared, |(index, _)| compared.min(index.saturating_sub(1)))
    }

    /// When who is wrong is decided at the latest. Where clients wait for other servers, all of them are waited for.
    pub(super) fn ends_ms(&self, policy: AnswerPolicy) -> Option<u64> {
        let (_, found) = self.found.first_key_value().filter(|_| !policy.waits())?;
        Some(found.since_ms + JUDGE_WITHIN_MS)
    }
}

impl Replica {
    /// The server of a member has said something else. What is about another primary, or an earlier view, is passed over: data that differ are
    /// found again at the next answer, and a member that has joined since then cannot say what its server would have said. Where clients wait, an
    /// answer of an earlier view may not have gone out: then it is judged by those that were there.
    pub(super) fn accuse(&mut self, node: NodeId, difference: Difference, now_ms: u64) {
        let from = if self.comparing.policy.waits() { self.judging.led_from } else { self.order.inherited() };
        let is_old = difference.index <= from && !is_mutant!(self, JudgesOthers);
        let is_out = self.judging.condemned.contains(&self.order.me());
        if is_old || is_out || self.judging.judged.contains(&difference.index) {
            return;
        }
        let found = self.judging.found.entry(difference.index);
        let found = found.or_insert(Found { since_ms: now_ms, by: BTreeMap::new() });
        found.by.insert(node, difference);
    }

    /// Who is wrong, of all that is known enough.
    pub(super) fn judge_differences(&mut self, now_ms: u64) {
        let me = self.order.me();
        while let Some((index, since_ms)) =
            self.judging.found.first_key_value().map(|(index, found)| (*index, found.since_ms))
            && self.role == Role::Serving
            && !self.judging.condemned.contains(&me)
        {
            let is_in = |node: &&NodeId| {
                !self.judging.condemned.contains(node) && self.judging.was_there(**node, index)
            };
            let members: Vec<NodeId> = self.order.view().members.iter().filter(is_in).copied().collect();
            let by = |node: &NodeId| {
                self.judging.found.get(&index).and_then(|found| found.by.get(node)).map(|it| it.digest)
            };
            let compared = |node: &NodeId| self.judging.others.get(node).copied().unwrap_or(0);
            // The primary has said it itself.
            let is_known = |node: &NodeId| *node == me || by(node).is_some() || compared(node) >= index;
            let is_late = now_ms >= since_ms + JUDGE_WITHIN_MS && !self.comparing.policy.waits();
            if !members.iter().all(is_known) && !is_late {
                return;
            }
            let mut groups: BTreeMap<Option<u64>, Vec<NodeId>> = BTreeMap::new();
            for node in members.into_iter().filter(is_known) {
                groups.entry(by(&node)).or_default().push(node);
            }
            let rank = |nodes: &Vec<NodeId>| (nodes.len(), nodes.contains(&me));
            let right = groups.values().max_by_key(|nodes| rank(nodes)).cloned().unwrap_or_default();
            let wrong = groups.into_values().filter(|nodes| *nodes != right).flatten();
            let Some(found) = self.judging.found.remove(&index) else { return };
            self.judging.judged.insert(index);
            if self.judging.judged.len() > JUDGED_MAX {
                self.judging.judged.pop_first();
            }
            for node in wrong.collect::<Vec<_>>() {
                let shown = self.show(node, &right, &found);
                if self.comparing.policy != AnswerPolicy::Reported {
                    self.judging.condemned.insert(node);
                }
                if self.judging.condemned.contains(&me) {
                    // Another one leads soon, and knows better.
                    self.judging.found.clear();
                }
                let successor = right.first().copied().unwrap_or(me);
                self.actions.push_back(Action::AnswersDiffer { node, successor, shown });
            }
        }
    }

    /// What differs, of one that is wrong and of those that are right.
    fn show(&self, node: NodeId, right: &[NodeId], found: &Found) -> Shown {
        let any = found.by.values().next();
        let connection = any.map_or(ConnectionId(0), |it| it.connection);
        let command = any.map(|it| it.command).filter(|command| command[0] != 0);
        let command = command.map(|command| {
            let name: Vec<u8> = command.into_iter().take_while(|byte| byte.is_ascii_graphic()).collect();
            String::from_utf8_lossy(&name).into_owned()
        });
        let index = any.map_or(0, |it| it.index);
        let here =
            self.connections.get(&connection).map(|state| (state.handshake.ends.client, &state.answers));
        let leaving =
            self.comparing.leaving.get(&connection).map(|leaving| (leaving.client, &leaving.answers));
        let known = here.or(leaving);
        let of_entry = || known.and_then(|(_, answers)| answers.shown(index));
        let of = |node: &NodeId| found.by.get(node).map(|it| (it.offset, it.bytes.clone())).or_else(of_entry);
        let wrong = of(&node);
        let right = right.iter().find_map(of);
        let (offset, wrong) = wrong.unwrap_or_default();
        let at = right
            .as_ref()
            .map_or(0, |(_, right)| wrong.iter().zip(right).take_while(|(one, other)| one == other).count());
        let around = |bytes: &[u8]| {
            let end = (at + AROUND_BYTES).min(bytes.len());
            bytes.get(at.min(end)..end).unwrap_or_default().to_vec()
        };
        Shown {
            client: known.map(|(client, _)| client),
            command,
            offset: offset + at as u64,
            wrong: around(&wrong),
            right: right.map(|(_, bytes)| around(&bytes)),
        }
    }
}
