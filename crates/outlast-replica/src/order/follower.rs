//! A member that does not lead, or a node that wants to become one.

use super::message::Message;
use super::{Order, Output, Weigh};
use crate::is_mutant;
use crate::log::Ordered;
use crate::view::NodeId;
use alloc::vec::Vec;

impl<E: Clone + Weigh> Order<E> {
    /// The primary may have begun before this node knew of the view, or the link is new.
    pub(super) fn say_hello(&mut self) {
        if is_mutant!(self, NoHello) {
            return;
        }
        let (epoch, last) = (self.view.epoch, self.confirmed);
        self.send(self.view.primary, Message::Hello { epoch, last });
    }

    fn is_from_primary(&self, from: NodeId, epoch: u64) -> bool {
        let is_present = epoch == self.view.epoch || is_mutant!(self, EntriesOfOtherViews);
        is_present && from == self.view.primary && from != self.me
    }

    /// The primary begins its view, or begins again on a new link.
    ///
    /// What is behind the last stable entry came from earlier primaries. It is not dropped now: some of it may be stable and not known
    /// to be, and this node may lead before it could have got that again. It is replaced, entry by entry, by what comes.
    pub(super) fn start(&mut self, from: NodeId, epoch: u64, stable: u64) {
        if !self.is_from_primary(from, epoch) {
            return;
        }
        if !self.started || is_mutant!(self, BeginsAgain) {
            // A member has all that is stable. Of others, only what they know to be stable is known to be right: they may
            // have slept through a view that has replaced the rest.
            let is_right = self.view.has(self.me) || is_mutant!(self, LearnerTrustsAll);
            let right = if is_right { self.stable.max(stable) } else { self.stable };
            self.confirmed =
                if is_mutant!(self, ConfirmsAll) { self.log.last() } else { right.min(self.log.last()) };
            if is_mutant!(self, TruncatesAtStart) {
                self.log.truncate(self.confirmed);
            }
            self.started = true;
        }
        self.learn_stable(stable);
        self.send(from, Message::Ack { epoch, index: self.confirmed });
    }

    pub(super) fn outdated(&mut self, from: NodeId, epoch: u64) {
        if self.is_from_primary(from, epoch) && !self.view.has(self.me) {
            self.outputs.push_back(Output::Outdated);
        }
    }

    pub(super) fn entries(
        &mut self,
        from: NodeId,
        epoch: u64,
        first: u64,
        entries: Vec<Ordered<E>>,
        stable: u64,
    ) {
        if !self.is_from_primary(from, epoch) {
            return;
        }
        if !self.started && !is_mutant!(self, EntriesBeforeStart) {
            // It has begun on a link, or in a view, that this node did not know.
            self.say_hello();
            return;
        }
        if first > self.confirmed + 1 && !is_mutant!(self, GapIsPassedOver) {
            self.send(from, Message::Missing { epoch, after: self.confirmed });
            return;
        }
        // What is confirmed comes again on a new link.
        let known = usize::try_from((self.confirmed + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let known = if is_mutant!(self, TakesTwice) { 0 } else { known };
        // A heartbeat has none: then the last acknowledgement may be lost. But not where something is stable by it.
        let is_acked = entries.is_empty() && stable <= self.stable || entries.len() > known;
        for ordered in entries.into_iter().skip(known) {
            self.take(ordered);
        }
        self.learn_stable(stable);
        if is_acked {
            let more = u64::from(is_mutant!(self, AcksMore));
            self.send(from, Message::Ack { epoch, index: self.confirmed + more });
        }
    }

    /// The next entry. Another one in its place came from an earlier primary, and goes with all behind it, which followed on that.
    fn take(&mut self, ordered: Ordered<E>) {
        let index = self.confirmed + 1;
        match self.log.get(index) {
            Some(present) if present.epoch == ordered.epoch || is_mutant!(self, KeepsOther) => {}
            _ => {
                self.log.truncate(index - 1);
                self.log.push(ordered);
            }
        }
        self.confirmed = index;
    }

    /// What is stable is delivered, and kept by the primary as long as others need it: not here.
    fn learn_stable(&mut self, stable: u64) {
        let known =
            if is_mutant!(self, DeliversUnstable) { self.confirmed } else { stable.min(self.confirmed) };
        self.stable = self.stable.max(known);
        self.deliver(self.stable);
        let to = if is_mutant!(self, FollowerForgetsAll) { self.log.last() } else { self.delivered };
        self.log.forget(to);
    }
}
