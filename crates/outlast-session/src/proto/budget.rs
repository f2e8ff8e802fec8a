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
//!   push out those that were in use. From 3/4 on those of them that hold more than 64 KiB go until 11/16 are in use,
//!   before anybody is refused for them.
//! * A session with a link is never given up, nor one that has been without for less than 5 s: its client may be about to
//!   come back. One that lost its link within 10 s of its opening and holds more than 64 KiB has less time the more it
//!   holds ([`Holder::back_within`]): so each second strangers can make the process hold so much, and not five times that. Not within
//!   10 s of a hand-over: there the clients of all sessions come back at once.
//! * A server's buffer grows beyond 256 KiB only as its client acknowledges ([`ring_bytes_max`]): to ask for much and to
//!   read nothing takes no memory from others.
//! * A buffer grows beyond 64 KiB only where that stays below 9/10: buffers double, and a few that do would take more than
//!   there is. It grows beyond 256 KiB only where that stays below 3/4, whoever it belongs to: a hundred networks with one
//!   session each, which reads nothing, leave room for newcomers.
//! * With descriptors it is the same ([`Descriptors::shed`]), once openings had to be refused for lack of them.
//! * With the number of sessions ([`Places::shed`]), too, but only those go that lost their last link within 10 s of their opening: who
//!   opens sessions from many addresses to abandon them keeps nobody out, and no session that was in use makes room for a newcomer.

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
/// One that is there and whose link was reset, as a rule within this.
const BACK_WITHIN_LEAST: Duration = Duration::from_millis(500);
/// So many blocks can have their guarantee at once when room is made down to 11/16.
const GUARANTEED_BLOCKS_MAX: u64 = 11;
/// Whoever has used a session for so long before its link was lost means to go on.
const SETTLED: Duration = Duration::from_secs(10);
/// For so long a process that has taken sessions over is busy with clients that come back.
pub const HANDED_OVER: Duration = Duration::from_secs(10);
/// After so long without a link bytes weigh double.
const STALE: Duration = Duration::from_secs(3600);

/// The largest buffer of a server's session whose client has acknowledged so much: four times that. In slow start a
/// link's window is about what was acknowledged, and the kernel's send queue twice that.
pub fn ring_bytes_max(acked_bytes: u64) -> usize {
    usize::try_from(acked_bytes.saturating_mul(4)).unwrap_or(usize::MAX).max(BUFFER_BYTES_SCARCE)
}

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

/// The sessions that there may be at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// All of them.
    pub most: usize,
}

impl Places {
    /// Which sessions that were abandoned soon after their opening have to go, as an opening was refused with so many there. `blocks`: how
    /// many sessions each block has, those with a link included.
    pub fn shed(&self, used: usize, blocks: &BTreeMap<Block, u64>, holders: &[Holder]) -> Vec<SessionId> {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let fleeting = holders.iter().filter(|holder| holder.is_fleeting());
        let fleeting: Vec<Holder> = fleeting.map(|holder| Holder { held_bytes: 1, ..*holder }).collect();
        Budget { bytes: count(self.most) }.shed(count(used), true, blocks, &fleeting)
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
    /// This process has taken sessions over within [`HANDED_OVER`]: all clients come back at once, and have more time.
    pub handed_over: bool,
    /// How long this process has had it: a hand-over takes some time.
    pub here_for: Duration,
}

impl Holder {
    /// It was abandoned soon after its opening, as strangers' sessions are.
    fn is_fleeting(&self) -> bool {
        self.lived_for < SETTLED
    }

    /// It holds more than every session may.
    fn has_much(&self) -> bool {
        self.held_bytes > BUFFER_BYTES_LEAST as u64
    }

    /// How long its client has for its next link, whatever there is need of.
    fn back_within(&self) -> Duration {
        if !self.is_fleeting() || !self.has_much() || self.handed_over {
            return BACK_WITHIN;
        }
        let parts = u32::try_from(self.held_bytes.div_ceil(BUFFER_BYTES_LEAST as u64)).unwrap_or(u32::MAX);
        (BACK_WITHIN / parts).max(BACK_WITHIN_LEAST)
    }

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
        if !self.is_scarce(used_bytes) {
            return gone;
        }
        let little_bytes = self.part(11, 16);
        let enough_bytes = match wanted {
            true => little_bytes,
            false if self.is_short(used_bytes) => self.part(7, 8),
            false => u64::MAX,
        };
        let kept_bytes = self.kept_bytes(blocks);
        let mut left_bytes = used_bytes;
        // What each block holds, as it weighs; and in the order in which they go, last first, those who can go.
        let mut weights = blocks.clone();
        let [mut fleeting, mut settled]: [BTreeMap<Block, Vec<&Holder>>; 2] = Default::default();
        let may_go = |holder: &&Holder| {
            holder.held_bytes > 0 && holder.detached_for.min(holder.here_for) >= holder.back_within()
        };
        for holder in holders.iter().filter(may_go) {
            let weight = weights.entry(holder.block).or_default();
            *weight = weight.saturating_add(holder.weight() - holder.held_bytes);
            let lines = if holder.is_fleeting() { &mut fleeting } else { &mut settled };
            lines.entry(holder.block).or_default().push(holder);
        }
        for line in fleeting.values_mut().chain(settled.values_mut()) {
            line.sort_by_key(|holder| {
                (holder.has_much(), holder.released, holder.detached_for, Reverse(holder.id))
            });
        }
        let anyone: fn(&mut &Holder) -> bool = |_| true;
        let with_much: fn(&mut &Holder) -> bool = |holder| holder.has_much();
        let rounds = [
            (false, with_much, kept_bytes, little_bytes),
            (false, anyone, kept_bytes, enough_bytes),
            (false, anyone, 0, enough_bytes),
            (true, anyone, kept_bytes, enough_bytes),
        ];
        for (are_settled, goes, kept_bytes, enough_bytes) in rounds {
            let lines = if are_settled { &mut settled } else { &mut fleeting };
            // Who goes next is of the block that holds most, if that is more than it keeps. There may be thousands of blocks.
            let weighed = lines.keys().filter_map(|block| Some((*weights.get(block)?, *block)));
            let mut order: BTreeSet<(u64, Block)> = weighed.collect();
            while left_bytes > enough_bytes
                && let Some((weight, block)) = order.pop_last()
                && weight > kept_bytes
            {
                let next = lines.get_mut(&block).and_then(|line| line.pop_if(goes));
                let Some(holder) = next else { continue };
                let left = weight.saturating_sub(holder.weight());
                weights.insert(block, left);
                order.insert((left, block));
                left_bytes = left_bytes.saturating_sub(holder.held_bytes);
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
mod tests;
