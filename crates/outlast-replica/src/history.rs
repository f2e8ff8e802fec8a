//! Through which recoveries a group has come: so it is known of old data whether they are an older state of its own, or another history, which
//! somebody may have to look at.

use crate::view::GROUP_EPOCHS;
use serde::{Deserialize, Serialize};

/// So many are remembered.
const RECOVERIES_MAX: usize = 100;

/// People had a group founded again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recovered {
    /// Its first view.
    pub epoch: u64,
    /// The last view of the group before of which the node was a member whose data it began with.
    pub data_epoch: u64,
}

/// When the group was founded again last, where a view has this number: later than 0, and than any time before.
pub(crate) fn recoveries(epoch: u64) -> u64 {
    epoch / GROUP_EPOCHS
}

/// The same with one recovery more.
pub(crate) fn with(before: &[Recovered], next: Recovered) -> Vec<Recovered> {
    let skip = (before.len() + 1).saturating_sub(RECOVERIES_MAX);
    before.iter().skip(skip).copied().chain([next]).collect()
}

/// Whether the data of a node that was a member of this view at last have something that those of a group do not have which has come through these
/// recoveries, the oldest first. A view that excludes the node with the data is decided, and about to be
/// noted by its members, before anybody serves without it: so what others have served then is in views of which it was no member.
pub(crate) fn is_other(last_epoch: u64, recovered: &[Recovered]) -> bool {
    match recovered.iter().find(|recovered| recovered.epoch > last_epoch) {
        Some(next) => last_epoch > next.data_epoch,
        // The group has no view yet that is so late, or is another one.
        None => recoveries(last_epoch) > recovered.last().map_or(0, |last| recoveries(last.epoch)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 10 * GROUP_EPOCHS;
    const K: u64 = 20 * GROUP_EPOCHS;

    #[test]
    fn what_a_group_began_with_is_its_own_history() {
        let recovered = [Recovered { epoch: G, data_epoch: 4 }, Recovered { epoch: K, data_epoch: G + 3 }];
        for own in [1, 4, G, G + 3, K, K + 70] {
            assert!(!is_other(own, &recovered), "{own}");
        }
        for other in [5, 99, G + 4, G - GROUP_EPOCHS, G + GROUP_EPOCHS, K - 1, K + GROUP_EPOCHS] {
            assert!(is_other(other, &recovered), "{other}");
        }
        assert!(!is_other(7, &[]));
        assert!(is_other(G, &[]));
    }

    #[test]
    fn the_last_hundred_recoveries_are_remembered() {
        let next = |before: &[Recovered], epoch| with(before, Recovered { epoch, data_epoch: 0 });
        let all = (1..=150).fold(Vec::new(), |before, epoch| next(&before, epoch));
        assert_eq!((all.len(), all[0].epoch, all[99].epoch), (100, 51, 150));
    }
}
