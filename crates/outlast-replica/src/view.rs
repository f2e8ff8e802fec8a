//! Who takes part, and who leads.

use alloc::vec::Vec;

/// A group that is founded again goes on with a multiple of this as the number of its first view. Within one group there are fewer.
#[cfg(feature = "io")]
pub const GROUP_EPOCHS: u64 = 100_000;

/// A node: one run of the program on a machine. When it is started again it is another node, as it has lost what it knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// The nodes that take part for a time. Views are decided by consensus, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Counts up from 1, by one.
    pub epoch: u64,
    /// The node that orders entries.
    pub primary: NodeId,
    /// All nodes whose acknowledgement an entry needs, the primary among them.
    pub members: Vec<NodeId>,
}

impl View {
    /// Before consensus has decided about any: nobody is a member.
    #[must_use]
    pub fn none() -> Self {
        Self { epoch: 0, primary: NodeId(0), members: Vec::new() }
    }

    /// Whether the node is a member.
    #[must_use]
    pub fn has(&self, node: NodeId) -> bool {
        self.members.contains(&node)
    }

    /// At a node that knows this view: the node whose data it needs, if it is out. Only the primary knows whether it
    /// counts on that node ([`Order::expect`](crate::Order::expect)).
    #[must_use]
    pub fn source_for(&self, node: NodeId) -> Option<NodeId> {
        (!self.has(node) && self.has(self.primary)).then_some(self.primary)
    }

    /// Whether this view may follow `before`. Consensus has to refuse all others.
    ///
    /// The primary has to have every stable entry, so it was a member before. Whoever is new has got all stable entries from the
    /// primary that asked for the view, and that one goes on: another one would know nothing of the promise.
    #[must_use]
    pub fn follows(&self, before: &Self) -> bool {
        let is_new = |node: &NodeId| !before.has(*node);
        self.epoch == before.epoch + 1
            && self.has(self.primary)
            && before.has(self.primary)
            && (self.primary == before.primary || !self.members.iter().any(is_new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(epoch: u64, members: &[u64]) -> View {
        let members: Vec<NodeId> = members.iter().map(|node| NodeId(*node)).collect();
        View { epoch, primary: members[0], members }
    }

    #[test]
    fn a_view_is_led_by_one_who_was_there() {
        let before = view(4, &[1, 2, 3]);
        for (next, may) in [
            (view(5, &[1, 2, 3]), true),
            (view(5, &[2, 3]), true),
            (view(5, &[2]), true),
            (view(5, &[1, 2, 4]), true),
            (view(6, &[1, 2]), false),
            (view(4, &[1, 2]), false),
            (view(5, &[4, 1]), false),
            (view(5, &[2, 4]), false),
        ] {
            assert_eq!(next.follows(&before), may, "{next:?}");
        }
        let without = View { primary: NodeId(1), ..view(5, &[2, 3]) };
        assert!(!without.follows(&before));
    }
}
