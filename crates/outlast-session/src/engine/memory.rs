//! The process's memory for sessions: counted where buffers change hands, and kept within a budget.
//!
//! What is counted: rings, inboxes, backlogs, and what the kernel holds: in the pipes of spliced streams, in the
//! receive queues of frozen links, and between sessions without a link and their services. The latter is measured at every look, once TCP holds much on this machine. A
//! write never is counted; only a ring that is full asks whether it may grow.

mod shedding;
pub(super) mod trim;

use self::shedding::Shedding;
use super::pool::pool_bytes;
use super::server::Acceptor;
use super::{Engine, Role, Tx, millis};
use crate::proto::{
    BUFFER_BYTES_LEAST, Block, Budget, Descriptors, HANDED_OVER, Holder, KernelMemory, LinkMode, Places,
    ring_bytes_max,
};
use crate::sys::{self, OtherEnds, TcpMemory};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// So many sessions that go at once are named in the log, and the others counted: strangers may have opened them.
const NAMED_MAX: u32 = 8;
/// The budget is this, or a quarter of the memory if that is less.
const BUDGET_BYTES_MAX: u64 = 1 << 30;
/// A link with more than that to be sent has what it can take.
const PENDING_BYTES_MAX: u64 = 512 << 10;
/// Sessions are looked through so often at most; and a look pauses for so many times as long as it took.
const LOOK_PAUSE_MS: u64 = 20;
const LOOK_PAUSES: u64 = 4;

/// A service that is sending has filled what the kernel takes from it within this time, as a rule.
const FILLED_WITHIN_MS: u64 = 2_000;

/// 0: not asked yet.
static BUDGET_BYTES: AtomicU64 = AtomicU64::new(0);
/// Received bytes that are left in the kernel, in queues of links that are gone.
static FROZEN_BYTES: AtomicU64 = AtomicU64::new(0);
/// In pipes that hold what was spliced and may be needed again.
static PIPE_BYTES: AtomicU64 = AtomicU64::new(0);
/// Between sessions without a link and their services when last looked at.
static KERNEL_BYTES: AtomicU64 = AtomicU64::new(0);
/// The last look found that TCP holds much.
static MEASURED: AtomicBool = AtomicBool::new(false);
/// Until then a service may still be sending to a session that has just lost its link.
static LOST_UNTIL_MS: AtomicU64 = AtomicU64::new(0);
static SHED_SESSIONS: AtomicU64 = AtomicU64::new(0);
static SHED_BYTES: AtomicU64 = AtomicU64::new(0);
/// How many descriptors were in use when an opening was last refused for that; 0 if none was since the last look.
static DESCRIPTORS_USED: AtomicU64 = AtomicU64::new(0);
/// An opening was refused as a listener has as many sessions as it may.
static PLACES_WANTED: AtomicBool = AtomicBool::new(false);
/// Whose turn it is among listeners.
static TURN: AtomicUsize = AtomicUsize::new(0);
/// Before this there is no other look.
static LOOK_MS: AtomicU64 = AtomicU64::new(0);
/// It was said that there is not enough, and not yet that there is enough again.
static SAID_SCARCE: AtomicBool = AtomicBool::new(false);
/// When there was not enough last.
static SCARCE_MS: AtomicU64 = AtomicU64::new(0);
/// There is enough again when there was for so long: strangers who come and go must not fill the log.
const ENOUGH_AFTER_MS: u64 = 10_000;
static ACCEPTORS: Mutex<Vec<Weak<Acceptor>>> = Mutex::new(Vec::new());

/// What the sessions of this process hold in memory, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// How much they may hold.
    pub budget_bytes: u64,
    /// How much they hold.
    pub used_bytes: u64,
    /// Of that, what waits in the kernel between sessions without a link and their services, as last measured: services may
    /// have sent more before that was seen.
    pub kernel_bytes: u64,
    /// Sessions without a link that were given up to make room, since the start.
    pub shed_sessions: u64,
    /// What those held.
    pub shed_bytes: u64,
}

impl Memory {
    /// How it is now.
    pub fn now() -> Self {
        Self {
            budget_bytes: budget().bytes,
            used_bytes: used_bytes(),
            kernel_bytes: KERNEL_BYTES.load(Ordering::Relaxed),
            shed_sessions: SHED_SESSIONS.load(Ordering::Relaxed),
            shed_bytes: SHED_BYTES.load(Ordering::Relaxed),
        }
    }

    /// Sets the budget of this process. By default it is a quarter of the memory or 1 GiB, whichever is less.
    ///
    /// When it is nearly in use, listeners take no new sessions from networks that hold much, buffers stay small, and
    /// sessions without a link are given up. A session with a link never is.
    pub fn set_budget(bytes: u64) {
        BUDGET_BYTES.store(bytes.max(1), Ordering::Relaxed);
    }

    /// Has the C library's allocator return to the system what sessions have given back, when that is much and most of what they had. For
    /// programs whose memory is mostly that of sessions: the allocator looks at all of it (malloc_trim(3)), and whoever asks it for memory
    /// waits meanwhile, for some ten milliseconds where 100 MB are free.
    pub fn return_when_free() {
        trim::want();
    }
}

fn budget() -> Budget {
    let bytes = match BUDGET_BYTES.load(Ordering::Relaxed) {
        0 => {
            // What cannot be read now, for want of a descriptor say, is read the next time.
            let Some(all) = sys::memory_bytes() else { return Budget { bytes: BUDGET_BYTES_MAX } };
            let bytes = (all / 4).min(BUDGET_BYTES_MAX);
            BUDGET_BYTES.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    };
    Budget { bytes }
}

fn used_bytes() -> u64 {
    pool_bytes()
        + FROZEN_BYTES.load(Ordering::Relaxed)
        + PIPE_BYTES.load(Ordering::Relaxed)
        + KERNEL_BYTES.load(Ordering::Relaxed)
}

/// Whether rings must stay small, and openings are looked at closely.
pub(crate) fn is_scarce() -> bool {
    budget().is_scarce(used_bytes())
}

/// Whether looks must go on though nothing happens: what services send to sessions without a link is not told.
pub(super) fn needs_looks() -> bool {
    let just_lost = sys::coarse_now_ms() < LOST_UNTIL_MS.load(Ordering::Relaxed);
    just_lost || is_scarce() || SAID_SCARCE.load(Ordering::Relaxed) || MEASURED.load(Ordering::Relaxed)
}

/// Bytes that a spliced stream holds in its pipes.
#[derive(Debug, Default)]
pub(super) struct PipeBytes(u64);

impl PipeBytes {
    /// So many they are now.
    pub(super) fn set(&mut self, bytes: u64) {
        // Also where that wraps, the sum is right.
        PIPE_BYTES.fetch_add(bytes.wrapping_sub(self.0), Ordering::Relaxed);
        self.0 = bytes;
    }
}

impl Drop for PipeBytes {
    fn drop(&mut self) {
        PIPE_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Bytes that a frozen link's queue holds, for as long as it does.
#[derive(Debug)]
pub(crate) struct FrozenBytes(u64);

impl FrozenBytes {
    pub(super) fn new(bytes: u64) -> Self {
        FROZEN_BYTES.fetch_add(bytes, Ordering::Relaxed);
        Self(bytes)
    }
}

impl Drop for FrozenBytes {
    fn drop(&mut self) {
        FROZEN_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What each block held when last looked at, and whether an opening had to be refused for lack of memory since.
#[derive(Debug, Default)]
pub(super) struct Shares {
    held_bytes: Mutex<BTreeMap<Block, u64>>,
    memory_wanted: AtomicBool,
    /// An opening had to be refused as there were as many sessions as there may be.
    places_wanted: AtomicBool,
    kernel: Mutex<KernelShares>,
    shedding: Mutex<Shedding>,
    /// Its part of [`KERNEL_BYTES`].
    kernel_bytes: AtomicU64,
    /// Until then sessions of another process count as taken over just now.
    handed_over_until_ms: AtomicU64,
}

impl Shares {
    /// A session was taken over from another process.
    pub(super) fn note_adoption(&self) {
        let until_ms = sys::coarse_now_ms() + millis(HANDED_OVER);
        self.handed_over_until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    fn has_just_adopted(&self) -> bool {
        sys::coarse_now_ms() < self.handed_over_until_ms.load(Ordering::Relaxed)
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        // Other listeners of this process go on.
        KERNEL_BYTES.fetch_sub(self.kernel_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The same of the kernel's memory.
#[derive(Debug, Default)]
struct KernelShares {
    memory: KernelMemory,
    held_bytes: BTreeMap<Block, u64>,
    wanted: bool,
}

impl KernelShares {
    fn admits(&mut self, block: Block) -> bool {
        let held_bytes = self.held_bytes.get(&block).copied().unwrap_or_default();
        let admitted = self.memory.budget().admits(self.memory.own_bytes, held_bytes);
        self.wanted |= !admitted;
        admitted
    }
}

impl Engine {
    /// A ring that has no room for `bytes` more may have it if there is memory.
    pub(super) fn want_room(&self, tx: &mut Tx, bytes: usize) {
        let bytes = bytes.max(1);
        let capacity = tx.sender.retain_bytes_max();
        if tx.sender.room_bytes() >= bytes || tx.sender.is_lent() {
            return;
        }
        // Nobody may come back for it: a server takes no more than was under way.
        if tx.link.is_none() && self.role == Role::Server {
            return;
        }
        let most = self.room_bytes_max(tx, capacity).min(self.earned_bytes(tx, capacity));
        if capacity >= most {
            return;
        }
        let (budget, used_bytes) = (budget(), used_bytes());
        let above_share = self.above_share.load(Ordering::Relaxed);
        let wanted = tx.sender.retained_bytes().saturating_add(bytes).max(capacity.saturating_mul(2));
        let buffer_bytes = tx.sender.buffer_bytes();
        let granted = budget.buffer_bytes_granted(used_bytes, above_share, buffer_bytes, wanted.min(most));
        if granted > capacity {
            tx.sender.set_retain_bytes_max(granted);
        }
    }

    /// What a server's client that takes what it asked for may have retained for it.
    fn earned_bytes(&self, tx: &mut Tx, capacity: usize) -> usize {
        // A window is as large as the two kernels' buffers, whatever there is.
        let is_window = tx.link.as_ref().is_some_and(|link| link.mode() == LinkMode::Window);
        if self.role == Role::Client || is_window {
            return usize::MAX;
        }
        if capacity >= ring_bytes_max(tx.sender.acked_offset()) && tx.hold.is_none() {
            self.learn_acked(tx);
        }
        ring_bytes_max(tx.sender.acked_offset())
    }

    /// The most that may be retained: as it is set, or as much as the kernel lets the link's send queue be.
    fn room_bytes_max(&self, tx: &Tx, capacity: usize) -> usize {
        let set = self.config.retain_bytes_max;
        // More room is of no use to a link that does not take what is there.
        if capacity < set || !self.config.retain_follows_path || tx.sender.pending_bytes() > PENDING_BYTES_MAX
        {
            return set;
        }
        let Some(link) = tx.link.as_ref().filter(|link| link.mode() != LinkMode::Window) else { return set };
        let queue_bytes = sys::buffer_bytes(&**link).map_or(0, |(send, _)| send);
        // What the peer's application has not read is retained, too, where that acknowledges.
        let queues = if link.mode().is_acked_by_peer() { 2 } else { 1 };
        let bytes = queue_bytes.saturating_mul(queues).saturating_add(BUFFER_BYTES_LEAST as u64);
        usize::try_from(bytes).map_or(set, |bytes| bytes.max(set))
    }

    /// From now on at most so many bytes are retained, or as many as are.
    pub(super) fn limit_room(tx: &mut Tx, bytes: usize) {
        let on_the_way = tx.hold.as_ref().map_or(0, |hold| hold.way_bytes());
        let least = tx.sender.retained_bytes().saturating_add(on_the_way);
        let limit = bytes.max(least);
        if limit < tx.sender.retain_bytes_max() {
            tx.sender.set_retain_bytes_max(limit);
        }
    }

    /// As many bytes of input may be taken in for an application that does not read, while its writer waits.
    ///
    /// PROTOCOL 4.9: what the writer waits for may be behind all that the peer retains, which is the peer's setting and
    /// follows its path. So only the budget bounds it, a quarter of which at the most: no peer makes memory scarce with one
    /// session.
    pub(super) fn backlog_bytes_max(&self) -> u64 {
        let budget = budget();
        let allowed = budget.buffer_bytes_max(used_bytes(), self.above_share.load(Ordering::Relaxed)) as u64;
        allowed.min((budget.bytes / 4).max(self.config.retain_bytes_max as u64))
    }

    /// If it holds as much input as it may for an application that does not read: where that would read on, and how much it holds. A
    /// reader at work holds nothing.
    pub(super) fn overfull_at(&self) -> Option<(u64, u64)> {
        let rx = self.rx.try_lock()?;
        (rx.backlog_bytes >= self.backlog_bytes_max()).then(|| (rx.consumed_offset(), rx.backlog_bytes))
    }

    /// What the session holds, as far as is known without waiting for a reader or a writer.
    fn held_bytes(&self) -> u64 {
        let sending = self.tx.try_lock().map_or(0, |tx| {
            let in_pipes = tx.hold.as_ref().map_or(0, |hold| hold.charge.0);
            tx.sender.buffer_bytes() as u64 + in_pipes
        });
        sending + self.rx.try_lock().map_or(0, |rx| rx.held_bytes())
    }
}

impl Acceptor {
    /// Has the memory of its sessions looked after.
    pub(super) fn join_budget(&self) {
        let mut acceptors = ACCEPTORS.lock();
        acceptors.retain(|acceptor| acceptor.strong_count() > 0);
        acceptors.push(self.this.clone());
    }

    /// Whether there is memory for one more session from this block.
    pub(super) fn has_memory_for(&self, block: Block) -> bool {
        let used_bytes = used_bytes();
        let held_bytes = self.shares.held_bytes.lock().get(&block).copied().unwrap_or_default();
        let admitted = budget().admits(used_bytes, held_bytes);
        if !admitted {
            self.shares.memory_wanted.store(true, Ordering::Relaxed);
        }
        admitted && self.shares.kernel.lock().admits(block)
    }

    /// An opening is refused as there are as many sessions as there may be: those that were abandoned at once make room for the next one.
    pub(super) fn want_places(&self) {
        self.shares.places_wanted.store(true, Ordering::Relaxed);
        PLACES_WANTED.store(true, Ordering::Relaxed);
        look();
    }

    /// Looks at every session: what each block holds, who has to keep small, who has to go.
    ///
    /// `descriptors_used`: so many were in use when an opening was refused for that, 0 if none was. Where TCP's memory is
    /// given what the kernel holds for sessions without a link is measured.
    /// Of several listeners one gives sessions up at a time, `has_turn`: each would for all.
    fn look_at_sessions(&self, descriptors_used: u64, tcp: Option<(TcpMemory, &OtherEnds)>, has_turn: bool) {
        let [mut blocks, mut counts, mut in_kernel]: [BTreeMap<Block, u64>; 3] = Default::default();
        let mut holders = Vec::new();
        let mut kernel_holders = Vec::new();
        let engines = self.engines();
        let handed_over = self.shares.has_just_adopted();
        let mut named = Vec::with_capacity(engines.len());
        for engine in &engines {
            let (ip, lost_at, adopted_at, released) = {
                // Its link is just changing: another time, then.
                let Some(ctl) = engine.ctl.try_lock() else { continue };
                (ctl.last_ip(), ctl.lost_at.filter(|_| ctl.link.is_none()), ctl.adopted_at, ctl.released)
            };
            let Some(block) = ip.map(Block::of) else { continue };
            let kernel_bytes = match tcp {
                Some((_, others)) if lost_at.is_some() => engine.service_bytes(others),
                _ => 0,
            };
            let held_bytes = engine.held_bytes() + kernel_bytes;
            *blocks.entry(block).or_default() += held_bytes;
            *counts.entry(block).or_default() += 1;
            if let Some(lost_at) = lost_at {
                let detached_for = lost_at.elapsed();
                let lived_for = lost_at.saturating_duration_since(engine.opened_at);
                let here_for = adopted_at.map_or(Duration::MAX, |at| at.elapsed());
                let id = engine.id;
                let holder = Holder {
                    id,
                    block,
                    held_bytes,
                    released,
                    detached_for,
                    lived_for,
                    handed_over,
                    here_for,
                };
                holders.push(holder);
                kernel_holders.push(Holder { held_bytes: kernel_bytes, ..holder });
                *in_kernel.entry(block).or_default() += kernel_bytes;
            }
            named.push((engine, block));
        }
        let own_bytes: u64 = in_kernel.values().sum();
        let before = self.shares.kernel_bytes.swap(own_bytes, Ordering::Relaxed);
        KERNEL_BYTES.fetch_add(own_bytes.wrapping_sub(before), Ordering::Relaxed);
        let budget = budget();
        let used_bytes = used_bytes();
        for (engine, block) in named {
            let above_share = blocks.get(&block).is_some_and(|bytes| *bytes > budget.guaranteed_bytes());
            engine.above_share.store(above_share, Ordering::Relaxed);
            let most = budget.buffer_bytes_max(used_bytes, above_share);
            // A writer may have it in hand for as long as it likes: another time, then.
            let Some(mut tx) = engine.tx.try_lock() else { continue };
            // A window is as large as the two kernels' buffers, whatever there is.
            if tx.link.as_ref().is_none_or(|link| link.mode() != LinkMode::Window) {
                Engine::limit_room(&mut tx, most);
            }
        }
        // What is refused meanwhile is refused again if that does not help.
        let may_shed = has_turn && !self.is_shedding();
        if may_shed {
            let wanted = self.shares.memory_wanted.swap(false, Ordering::Relaxed);
            self.shed(&budget.shed(used_bytes, wanted, &blocks, &holders), &holders, "memory (--memory)");
        }
        if may_shed && descriptors_used > 0 {
            let files = Descriptors { most: sys::descriptors_max() };
            let gone = files.shed(descriptors_used, &counts, &holders);
            self.shed(&gone, &holders, "file descriptors (ulimit -n)");
        }
        // Places are a listener's own.
        if !self.is_shedding() && self.shares.places_wanted.swap(false, Ordering::Relaxed) {
            let gone = Places { most: self.config.sessions_max }.shed(engines.len(), &counts, &holders);
            self.shed(&gone, &holders, "sessions (--max-sessions)");
        }
        *self.shares.held_bytes.lock() = blocks;
        let mut kernel = self.shares.kernel.lock();
        let wanted = may_shed && std::mem::take(&mut kernel.wanted);
        kernel.memory = tcp.map_or_else(KernelMemory::default, |(tcp, _)| KernelMemory {
            pressure_bytes: tcp.pressure_bytes,
            machine_bytes: tcp.used_bytes,
            own_bytes,
        });
        let kernel_budget = kernel.memory.budget();
        let gone = if may_shed {
            kernel_budget.shed(own_bytes, wanted, &in_kernel, &kernel_holders)
        } else {
            Vec::new()
        };
        kernel.held_bytes = in_kernel;
        drop(kernel);
        self.shed(&gone, &kernel_holders, "the kernel's memory for TCP (net.ipv4.tcp_mem)");
    }
}

/// An opening is refused as so many descriptors are in use: sessions without a link make room for the next one.
pub(super) fn want_descriptors(used: u64) {
    DESCRIPTORS_USED.store(used, Ordering::Relaxed);
}

/// A session has lost its link: looks, now and when its service has sent what it can.
pub(super) fn look_after_loss() {
    LOST_UNTIL_MS.fetch_max(sys::coarse_now_ms() + FILLED_WITHIN_MS, Ordering::Relaxed);
    look();
}

/// Says that there is not enough, and when there is again.
fn say_scarce(scarce: bool, now_ms: u64) {
    if scarce {
        SCARCE_MS.fetch_max(now_ms, Ordering::Relaxed);
    }
    let said = SAID_SCARCE.load(Ordering::Relaxed);
    let is_over = !scarce && now_ms >= SCARCE_MS.load(Ordering::Relaxed) + ENOUGH_AFTER_MS;
    // Whoever changes it says it.
    let says = if said { is_over } else { scarce } && SAID_SCARCE.swap(!said, Ordering::Relaxed) == said;
    if !says {
        return;
    }
    let Memory { budget_bytes, used_bytes, .. } = Memory::now();
    if scarce {
        tracing::warn!(
            used_bytes,
            budget_bytes,
            "sessions hold three quarters of the memory that they may (--memory): networks that hold much open no more \
             for now, buffers stay small"
        );
    } else {
        tracing::info!(used_bytes, budget_bytes, "there is memory for sessions again");
    }
}

/// Keeps the budget. Called often; does next to nothing while there is enough.
pub(super) fn look() {
    let scarce = is_scarce();
    let now_ms = sys::coarse_now_ms();
    say_scarce(scarce, now_ms);
    let look_ms = LOOK_MS.load(Ordering::Relaxed);
    let next_ms = now_ms + LOOK_PAUSE_MS;
    if now_ms < look_ms
        || LOOK_MS.compare_exchange(look_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    let tcp = TcpMemory::now().filter(|tcp| {
        let kernel =
            KernelMemory { pressure_bytes: tcp.pressure_bytes, machine_bytes: tcp.used_bytes, own_bytes: 0 };
        kernel.is_worth_a_look(budget())
    });
    let measured = MEASURED.swap(tcp.is_some(), Ordering::Relaxed);
    let wanted =
        PLACES_WANTED.swap(false, Ordering::Relaxed) || DESCRIPTORS_USED.load(Ordering::Relaxed) != 0;
    if !scarce && tcp.is_none() && !measured && !wanted {
        return;
    }
    let started = Instant::now();
    let others = tcp.map(|tcp| (tcp, OtherEnds::open()));
    let acceptors: Vec<Arc<Acceptor>> = ACCEPTORS.lock().iter().filter_map(Weak::upgrade).collect();
    let descriptors_used = DESCRIPTORS_USED.swap(0, Ordering::Relaxed);
    let is_shedding = acceptors.iter().any(|acceptor| acceptor.is_shedding());
    let turn = TURN.fetch_add(1, Ordering::Relaxed) % acceptors.len().max(1);
    for (number, acceptor) in acceptors.iter().enumerate() {
        let tcp = others.as_ref().map(|(tcp, others)| (*tcp, others));
        acceptor.look_at_sessions(descriptors_used, tcp, number == turn && !is_shedding);
    }
    LOOK_MS.fetch_max(now_ms + LOOK_PAUSES * millis(started.elapsed()), Ordering::Relaxed);
}

/// A session starts with this, and a server's without a link may fill it.
pub(super) const ROOM_BYTES_FIRST: usize = BUFFER_BYTES_LEAST;
