//! How much a process may hold for its sessions, and who makes room when that is nearly all in use.
//!
//! # Contract
//! The shell counts bytes where buffers are taken and given back, and asks: whether a new session may be opened
//! ([`Budget::admits`]), how large a session's buffer may grow ([`Budget::buffer_bytes_max`]), which sessions without
//! a link have to go ([`Budget::shed`]). Nothing is remembered here.
//!
//! # Policy
//! * Each [`Block`] of addresses is guaranteed 1/16 of the budget. Where more than eleven blocks hold something, each keeps
//!   11/16 of their average when room has to be made, if that is less: many that hold a little each are as much as one that
//!   holds all.
//! * Below 3/4: every session may have what it is set to.
//! * From 3/4 on blocks above their guarantee open no more sessions, and buffers of their sessions grow to 256 KiB
//!   at most. From 9/10 on this holds for all blocks, and buffers grow to 64 KiB at most.
//! * From 9/10 on sessions without a link are given up until 7/8 are in use; where openings had to be refused, from 3/4
//!   on until 11/16 are. Those of blocks above their guarantee, those of the block that holds most first; within it
//!   those that hold more than 64 KiB before those that do not, then those that no application holds any more, then
//!   those that have been without a link for longest. What such a session holds above 64 KiB counts double after an
//!   hour.
//! * Sessions that lost their last link within 10 s of their opening go before all others, in the same order, and if need be those
//!   of blocks below their guarantee as well: who opens sessions only to abandon them, from however many blocks, does not
//!   push out those that were in use.
//! * A session with a link is never given up, nor one that has been without for less than 5 s: its client may be about to
//!   come back.
//! * A buffer grows beyond 64 KiB only where that stays below 9/10: buffers double, and a few that do would take more than
//!   there is. It grows beyond 256 KiB only where that stays below 3/4, whoever it belongs to: a hundred networks with one
//!   session each, which reads nothing, leave room for newcomers.
//! * With descriptors it is the same ([`Descriptors::shed`]), once openings had to be refused for lack of them.

use super::registry::Block;
use super::wire::SessionId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

/// What any session may have, however little there is left: enough to keep a link busy.
pub const BUFFER_BYTES_LEAST: usize = 64 << 10;
/// What a session may have when there is not much left.
const BUFFER_BYTES_SCARCE: usize = 256 << 10;
/// A client that is there has made the next link within this time.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// So many blocks can have their guarantee at once when room is made down to 11/16.
const GUARANTEED_BLOCKS_MAX: u64 = 11;
/// Whoever has used a session for so long before its link was lost means to go on.
const SETTLED: Duration = Duration::from_secs(10);
/// After so long without a link bytes weigh double.
const STALE: Duration = Duration::from_secs(3600);

/// The bytes that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// All of them.
    pub bytes: u64,
}

/// The descriptors that there are.
///
/// A session needs one for its link, and its application as a rule one more, or several while much passes. So
/// openings end long before descriptors do: a session that is there must be able to get its next link, and one that
/// was welcomed what it was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// How many the process may have (`RLIMIT_NOFILE`).
    pub most: u64,
}

impl Descriptors {
    /// Whether one more session may be opened when so many are in use: up to three quarters.
    pub fn admits(&self, used: u64) -> bool {
        used < self.most / 4 * 3
    }

    /// How many sessions one [`Block`] may have when so many are in use: from half of them on, 1/16 of all, as each takes two.
    pub fn sessions_per_block_max(&self, used: u64) -> usize {
        if used < self.most / 2 {
            return usize::MAX;
        }
        usize::try_from(self.most / 16).unwrap_or(usize::MAX).max(16)
    }

    /// Which sessions without a link have to go, as openings were refused with so many in use: as [`Budget::shed`] chooses,
    /// where every session holds as much as any other. `blocks`: how many sessions each block has, those with a link included.
    pub fn shed(&self, used: u64, blocks: &BTreeMap<Block, u64>, holders: &[Holder]) -> Vec<SessionId> {
        let budget = Budget { bytes: self.most };
        let holders: Vec<Holder> = holders.iter().map(|holder| Holder { held_bytes: 1, ..*holder }).collect();
        if self.admits(used) { Vec::new() } else { budget.shed(used, true, blocks, &holders) }
    }

    /// How many connections that have not proved who they are there may be: 15 %.
    pub fn places(&self, wanted: usize) -> usize {
        let share = usize::try_from(self.most / 20 * 3).unwrap_or(usize::MAX);
        wanted.min(share).max(16)
    }
}

/// What a session without a link holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Which session.
    pub id: SessionId,
    /// Where its client was last.
    pub block: Block,
    /// How much it holds.
    pub held_bytes: u64,
    /// The application has let go of it.
    pub released: bool,
    /// How long it has been without a link.
    pub detached_for: Duration,
    /// How long after its opening it lost that.
    pub lived_for: Duration,
}

impl Holder {
    fn weight(&self) -> u64 {
        let least = BUFFER_BYTES_LEAST as u64;
        let above = self.held_bytes.saturating_sub(least);
        if self.detached_for >= STALE { self.held_bytes.saturating_add(above) } else { self.held_bytes }
    }
}

impl Budget {
    /// What is guaranteed to each block.
    pub fn guaranteed_bytes(&self) -> u64 {
        self.bytes / 16
    }

    /// From here on not everybody gets everything.
    pub fn is_scarce(&self, used_bytes: u64) -> bool {
        used_bytes >= self.part(3, 4)
    }

    /// From here on sessions without a link are given up.
    pub fn is_short(&self, used_bytes: u64) -> bool {
        used_bytes >= self.part(9, 10)
    }

    /// Whether one more session may be opened from a block that holds so much.
    pub fn admits(&self, used_bytes: u64, block_bytes: u64) -> bool {
        !self.is_short(used_bytes) && (!self.is_scarce(used_bytes) || block_bytes <= self.guaranteed_bytes())
    }

    /// The largest buffer of a session. `above_share`: its block holds more than it is guaranteed.
    pub fn buffer_bytes_max(&self, used_bytes: u64, above_share: bool) -> usize {
        if self.is_short(used_bytes) {
            BUFFER_BYTES_LEAST
        } else if self.is_scarce(used_bytes) && above_share {
            BUFFER_BYTES_SCARCE
        } else {
            usize::MAX
        }
    }

    /// How much of `wanted_bytes` a session's buffer, which has `buffer_bytes` now, may have. Buffers have sizes that double: a
    /// little more room may take twice the memory.
    pub fn buffer_bytes_granted(
        &self,
        used_bytes: u64,
        above_share: bool,
        buffer_bytes: usize,
        wanted_bytes: usize,
    ) -> usize {
        let allowed = wanted_bytes.min(self.buffer_bytes_max(used_bytes, above_share));
        let after = |granted: usize| {
            let more_bytes = granted.next_power_of_two().saturating_sub(buffer_bytes) as u64;
            used_bytes.saturating_add(more_bytes)
        };
        if !self.is_scarce(after(allowed)) {
            return allowed;
        }
        let some = allowed.min(buffer_bytes.max(BUFFER_BYTES_SCARCE));
        if self.is_short(after(some)) { allowed.min(buffer_bytes.max(BUFFER_BYTES_LEAST)) } else { some }
    }

    /// Who has to go, in this order. `wanted`: openings were refused for lack of memory. `blocks`: what all sessions of a block hold, those with a link included.
    pub fn shed(
        &self,
        used_bytes: u64,
        wanted: bool,
        blocks: &BTreeMap<Block, u64>,
        holders: &[Holder],
    ) -> Vec<SessionId> {
        let mut gone = Vec::new();
        let enough_bytes = match wanted {
            true if self.is_scarce(used_bytes) => self.part(11, 16),
            _ if self.is_short(used_bytes) => self.part(7, 8),
            _ => return gone,
        };
        let kept_bytes = self.kept_bytes(blocks);
        let mut excess_bytes = used_bytes.saturating_sub(enough_bytes);
        // What each block holds, as it weighs; and in the order in which they go, last first, those who can go.
        let mut weights = blocks.clone();
        let [mut fleeting, mut settled]: [BTreeMap<Block, Vec<&Holder>>; 2] = Default::default();
        let may_go = |holder: &&Holder| holder.held_bytes > 0 && holder.detached_for >= BACK_WITHIN;
        for holder in holders.iter().filter(may_go) {
            let weight = weights.entry(holder.block).or_default();
            *weight = weight.saturating_add(holder.weight() - holder.held_bytes);
            let lines = if holder.lived_for < SETTLED { &mut fleeting } else { &mut settled };
            lines.entry(holder.block).or_default().push(holder);
        }
        for line in fleeting.values_mut().chain(settled.values_mut()) {
            line.sort_by_key(|holder| {
                let much = holder.held_bytes > BUFFER_BYTES_LEAST as u64;
                (much, holder.released, holder.detached_for, Reverse(holder.id))
            });
        }
        for (are_settled, kept_bytes) in [(false, kept_bytes), (false, 0), (true, kept_bytes)] {
            let lines = if are_settled { &mut settled } else { &mut fleeting };
            // Who goes next is of the block that holds most, if that is more than it keeps. There may be thousands of blocks.
            let weighed = lines.keys().filter_map(|block| Some((*weights.get(block)?, *block)));
            let mut order: BTreeSet<(u64, Block)> = weighed.collect();
            while excess_bytes > 0
                && let Some((weight, block)) = order.pop_last()
                && weight > kept_bytes
            {
                let Some(holder) = lines.get_mut(&block).and_then(Vec::pop) else { continue };
                let left = weight.saturating_sub(holder.weight());
                weights.insert(block, left);
                order.insert((left, block));
                excess_bytes = excess_bytes.saturating_sub(holder.held_bytes);
                gone.push(holder.id);
            }
        }
        gone
    }

    /// What a block keeps when room has to be made: its guarantee, unless there are too many for that. Then it is a part of
    /// what they hold on average.
    fn kept_bytes(&self, blocks: &BTreeMap<Block, u64>) -> u64 {
        let count = u64::try_from(blocks.values().filter(|bytes| **bytes > 0).count()).unwrap_or(u64::MAX);
        if count <= GUARANTEED_BLOCKS_MAX {
            return self.guaranteed_bytes();
        }
        let all_bytes = blocks.values().fold(0u64, |all, bytes| all.saturating_add(*bytes));
        self.guaranteed_bytes().min(all_bytes.saturating_mul(11) / 16 / count)
    }

    fn part(&self, of: u64, parts: u64) -> u64 {
        self.bytes / parts * of
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const MIB: u64 = 1 << 20;

    fn block(number: u8) -> Block {
        Block::of(Ipv4Addr::new(10, 0, number, 1).into())
    }

    fn holder(number: u8, of: u8, held_bytes: u64, detached_s: u64) -> Holder {
        let detached_for = Duration::from_secs(detached_s);
        let id = SessionId::from_bytes([number; 16]);
        Holder { id, block: block(of), held_bytes, released: false, detached_for, lived_for: SETTLED }
    }

    fn numbers(budget: Budget, used_bytes: u64, live: &[(u8, u64)], holders: &[Holder]) -> Vec<u8> {
        let mut blocks: BTreeMap<Block, u64> = live.iter().map(|(of, bytes)| (block(*of), *bytes)).collect();
        for holder in holders {
            *blocks.entry(holder.block).or_default() += holder.held_bytes;
        }
        budget.shed(used_bytes, false, &blocks, holders).iter().map(|id| id.as_bytes()[0]).collect()
    }

    #[test]
    fn nobody_goes_while_there_is_enough() {
        let budget = Budget { bytes: 160 * MIB };
        assert!(
            budget.admits(119 * MIB, 119 * MIB) && budget.buffer_bytes_max(119 * MIB, true) == usize::MAX
        );
        assert!(!budget.admits(120 * MIB, 11 * MIB) && budget.admits(120 * MIB, 10 * MIB));
        assert_eq!(budget.buffer_bytes_max(120 * MIB, true), 256 << 10);
        assert_eq!(budget.buffer_bytes_max(120 * MIB, false), usize::MAX);
        assert!(!budget.admits(144 * MIB, 0));
        assert_eq!(budget.buffer_bytes_max(144 * MIB, false), 64 << 10);
        assert!(numbers(budget, 143 * MIB, &[], &[holder(1, 1, 100 * MIB, 9)]).is_empty());
    }

    #[test]
    fn large_buffers_leave_room_for_small_ones() {
        const KIB: usize = 1 << 10;
        let budget = Budget { bytes: 160 * MIB };
        let granted = |used_bytes, buffer_bytes, wanted_bytes| {
            budget.buffer_bytes_granted(used_bytes, false, buffer_bytes, wanted_bytes)
        };
        assert_eq!(granted(0, 0, 9000 * KIB), 9000 * KIB);
        // 16 MiB would be taken, less what it has.
        assert_eq!(granted(103 * MIB, 0, 9000 * KIB), 9000 * KIB);
        assert_eq!(granted(104 * MIB, 0, 9000 * KIB), 256 * KIB);
        assert_eq!(granted(111 * MIB, 8192 * KIB, 9000 * KIB), 9000 * KIB);
        assert_eq!(granted(112 * MIB, 8192 * KIB, 9000 * KIB), 8192 * KIB);
        // And below nine tenths a little for everybody.
        assert_eq!(granted(143 * MIB, 64 * KIB, 9000 * KIB), 256 * KIB);
        assert_eq!(granted(144 * MIB - 1, 64 * KIB, 9000 * KIB), 64 * KIB);
        assert_eq!(granted(150 * MIB, 0, 9000 * KIB), 64 * KIB);
        assert_eq!(granted(150 * MIB, 0, KIB), KIB);
    }

    /// As long as each of them is chosen by a look at all blocks this takes minutes, and everybody waits.
    #[test]
    fn one_session_of_each_of_many_blocks_goes() {
        let budget = Budget { bytes: 10_000 * MIB };
        let holder = |number: u32| Holder {
            id: SessionId::from_bytes(u128::from(number).to_be_bytes()),
            block: Block::of(Ipv4Addr::from(0x0a00_0001 + (number << 8)).into()),
            held_bytes: MIB,
            released: false,
            detached_for: Duration::from_secs(60),
            lived_for: Duration::ZERO,
        };
        let holders: Vec<Holder> = (0..40_000).map(holder).collect();
        let blocks: BTreeMap<Block, u64> = holders.iter().map(|holder| (holder.block, MIB)).collect();
        let mut gone = budget.shed(40_000 * MIB, false, &blocks, &holders);
        gone.sort_unstable();
        gone.dedup();
        assert_eq!((blocks.len(), gone.len()), (40_000, 31_250));
    }

    /// The block that holds most gives first, and stops at its guarantee; live sessions count and stay.
    #[test]
    fn who_holds_most_goes_first_and_the_guarantee_holds() {
        let budget = Budget { bytes: 160 * MIB };
        let mut holders = alloc::vec![holder(1, 1, 9 * MIB, 100), holder(2, 1, MIB, 900)];
        // A block within its guarantee loses nothing, however short it gets.
        assert!(numbers(budget, 160 * MIB, &[], &holders).is_empty());
        // With what its live sessions hold it is above: the longest without a link first.
        assert_eq!(numbers(budget, 160 * MIB, &[(1, 11 * MIB)], &holders), [2, 1]);
        // Another block holds more: it gives until it holds less, and only as much as is needed.
        holders.extend((10..40).map(|number| holder(number, 2, 4 * MIB, u64::from(number))));
        assert_eq!(numbers(budget, 145 * MIB, &[(1, 11 * MIB)], &holders), [39, 38]);
        // One that no application holds goes first in its block.
        holders[5].released = true;
        assert_eq!(numbers(budget, 145 * MIB, &[(1, 11 * MIB)], &holders), [13, 39]);
    }

    /// Where somebody was refused room is made sooner; who holds next to nothing goes last.
    #[test]
    fn who_is_refused_makes_those_go_that_hold_much() {
        let budget = Budget { bytes: 160 * MIB };
        let holders = [holder(1, 1, 60 << 10, 9_000), holder(2, 1, 15 * MIB, 5), holder(3, 1, 15 * MIB, 9)];
        let blocks = BTreeMap::from([(block(1), 125 * MIB)]);
        let gone = |used_bytes, wanted| -> Vec<u8> {
            let gone = budget.shed(used_bytes, wanted, &blocks, &holders);
            gone.iter().map(|id| id.as_bytes()[0]).collect()
        };
        assert!(gone(119 * MIB, true).is_empty() && gone(125 * MIB, false).is_empty());
        assert_eq!(gone(125 * MIB, true), [3]);
        assert_eq!(gone(135 * MIB, true), [3, 2]);
        assert_eq!(gone(145 * MIB, true), [3, 2, 1]);
    }

    /// None of them holds more than a sixteenth, and together they hold all.
    #[test]
    fn many_blocks_that_hold_a_little_make_room_too() {
        let budget = Budget { bytes: 160 * MIB };
        // A block that holds less than its part keeps it, though its session has been away for longest.
        let mut holders = alloc::vec![holder(255, 255, MIB, 9_000)];
        holders.extend((0..36).map(|number| holder(number, number, 4 * MIB, 5 + u64::from(number))));
        let mut blocks: BTreeMap<Block, u64> = BTreeMap::new();
        for holder in &holders {
            *blocks.entry(holder.block).or_default() += holder.held_bytes;
        }
        let gone = budget.shed(145 * MIB, true, &blocks, &holders);
        // From 145 MiB to 110.
        assert_eq!(gone.len(), 9);
        assert!(!gone.contains(&SessionId::from_bytes([255; 16])));
        assert_eq!(budget.shed(145 * MIB, false, &blocks, &holders).len(), 2);
        // A client that has just lost its link is about to come back.
        holders.iter_mut().for_each(|holder| holder.detached_for = Duration::from_millis(4999));
        assert!(budget.shed(145 * MIB, true, &blocks, &holders).is_empty());
    }

    /// A crowd from many blocks opens sessions and abandons them: it cannot push out somebody who holds more than any of them.
    #[test]
    fn who_was_in_use_goes_after_all_that_never_were() {
        let budget = Budget { bytes: 160 * MIB };
        let in_use = holder(255, 255, 20 * MIB, 9_000);
        let crowd = |each_bytes| {
            let abandoned = move |number: u8| Holder {
                lived_for: Duration::from_millis(9_999),
                ..holder(number, number, each_bytes, 5)
            };
            (0..36).map(abandoned).chain([in_use]).collect::<Vec<Holder>>()
        };
        let gone = numbers(budget, 145 * MIB, &[], &crowd(4 * MIB));
        assert!(gone.len() == 2 && !gone.contains(&255), "{gone:?}");
        let gone = numbers(budget, 159 * MIB, &[], &crowd(MIB / 4));
        assert_eq!((gone.len(), gone.last()), (37, Some(&255)), "{gone:?}");
        // One that has just lost its link may come back, and its block has its guarantee.
        let mut young = crowd(MIB);
        young[36] = Holder { detached_for: Duration::from_secs(4), ..in_use };
        assert!(!numbers(budget, 159 * MIB, &[], &young).contains(&255));
    }

    #[test]
    fn sessions_without_a_link_make_room_in_descriptors() {
        let files = Descriptors { most: 160 };
        let holders: Vec<Holder> =
            (0..100).map(|number| holder(number, number % 50, 0, 5 + u64::from(number))).collect();
        let blocks: BTreeMap<Block, u64> = (0..50).map(|number| (block(number), 2)).collect();
        assert!(files.shed(119, &blocks, &holders).is_empty());
        let gone = files.shed(120, &blocks, &holders);
        assert_eq!(gone.len(), 10);
        // Of ten blocks one each, the one that has been away for longer.
        assert!(gone.iter().all(|id| id.as_bytes()[0] >= 50));
        // Live sessions of a block count, and stay.
        assert!(files.shed(159, &BTreeMap::from([(block(1), 110)]), &[]).is_empty());
    }

    #[test]
    fn openings_end_before_descriptors_do() {
        let files = Descriptors { most: 20_000 };
        assert!(files.admits(14_999) && !files.admits(15_000));
        assert_eq!(files.sessions_per_block_max(9_999), usize::MAX);
        assert_eq!(files.sessions_per_block_max(10_000), 1_250);
        assert_eq!((files.places(1024), files.places(10_000)), (1024, 3_000));
        let few = Descriptors { most: 256 };
        assert_eq!((few.sessions_per_block_max(200), few.places(1024)), (16, 36));
        assert_eq!(Descriptors { most: u64::MAX }.places(1024), 1024);
    }

    #[test]
    fn bytes_weigh_double_after_an_hour() {
        let budget = Budget { bytes: 160 * MIB };
        let fresh = holder(1, 1, 40 * MIB, 3599);
        let stale = holder(2, 2, 30 * MIB, 3600);
        assert_eq!(numbers(budget, 150 * MIB, &[], &[fresh, stale]), [2]);
        let little = holder(3, 3, 60 << 10, 36_000);
        assert_eq!(little.weight(), 60 << 10);
    }
}
