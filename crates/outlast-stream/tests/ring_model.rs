//! The ring against a model: a plain vector that keeps the whole stream, over random sequences of operations.

// Helpers of tests may unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]
use outlast_stream::{BUFFER_BYTES_MIN, BufferPool, BufferSource, RetainRing, SplitMix64};

/// The whole stream, and from where on it must still be held.
struct Model {
    stream: Vec<u8>,
    start: usize,
    base: u64,
}

impl Model {
    fn end(&self) -> u64 {
        self.base + self.stream.len() as u64
    }

    fn check<S: BufferSource>(&self, ring: &RetainRing<S>) {
        assert_eq!(ring.start_offset(), self.base + self.start as u64);
        assert_eq!(ring.end_offset(), self.end());
        assert_eq!(ring.retained_bytes(), self.stream.len() - self.start);
        let (older, newer) = ring.slices(ring.start_offset(), ring.end_offset());
        assert_eq!([older, newer].concat(), self.stream[self.start..]);
    }
}

fn some_bytes(random: &mut SplitMix64, bytes_max: usize) -> Vec<u8> {
    let bytes_max = if random.one_in(3) { 3 } else { bytes_max };
    let mut bytes = vec![0; usize::try_from(random.below(bytes_max as u64 + 1)).unwrap()];
    random.fill(&mut bytes);
    bytes
}

fn run<S: BufferSource>(seed: u64, source: S) {
    let mut random = SplitMix64::new(seed);
    let mut below = |bound: u64| usize::try_from(random.below(bound)).unwrap();
    let capacity = [1, 7, 64, 5000, 10_000, 70_000][below(6)];
    let base = [0, 1, u64::from(u32::MAX) - 100, 1 << 50][below(4)];
    let mut ring = RetainRing::with_source(base, capacity, source);
    let mut model = Model { stream: Vec::new(), start: 0, base };
    let overwriting = seed.is_multiple_of(3);
    for _ in 0..200 {
        match random.below(9) {
            0 | 1 => {
                let bytes = some_bytes(&mut random, capacity + capacity / 2);
                if overwriting {
                    ring.push_overwriting(&bytes);
                    model.stream.extend_from_slice(&bytes);
                    let kept_from = model.stream.len().saturating_sub(capacity);
                    model.start = model.start.max(kept_from);
                } else {
                    let room = capacity - (model.stream.len() - model.start);
                    assert_eq!(ring.free_bytes(), room);
                    let taken = ring.push(&bytes);
                    assert_eq!(taken, bytes.len().min(room));
                    model.stream.extend_from_slice(&bytes[..taken]);
                }
            }
            2..=4 => reserve(&mut random, &mut ring, &mut model),
            5 | 6 => {
                let held = ring.end_offset() - ring.start_offset();
                let offset = ring.start_offset() + random.below(held + 1);
                ring.trim_to(offset);
                model.start = usize::try_from(offset - model.base).unwrap();
            }
            7 => {
                let held = ring.end_offset() - ring.start_offset();
                let from = random.below(held + 1);
                let to = from + random.below(held - from + 1);
                let (older, newer) = ring.slices(ring.start_offset() + from, ring.start_offset() + to);
                let from = model.start + usize::try_from(from).unwrap();
                let to = model.start + usize::try_from(to).unwrap();
                assert_eq!([older, newer].concat(), model.stream[from..to]);
            }
            _ if random.one_in(3) => {
                ring.shrink();
                if ring.is_empty() {
                    assert_eq!(ring.buffer_bytes(), 0);
                }
            }
            _ if random.one_in(2) => {
                ring.trim_to(ring.end_offset());
                model.start = model.stream.len();
                let ahead = random.below(100);
                assert!(ring.advance_empty_to(ring.end_offset() + ahead));
                model.base += ahead;
            }
            _ => {
                let bytes = usize::try_from(random.below(capacity as u64 + 1)).unwrap();
                ring.make_room(bytes);
                model.start = model.start.max((model.stream.len() + bytes).saturating_sub(capacity));
            }
        }
        model.check(&ring);
        assert!(ring.retained_bytes() <= capacity);
        assert!(ring.buffer_bytes() <= (2 * capacity).next_power_of_two().max(BUFFER_BYTES_MIN));
    }
}

fn reserve<S: BufferSource>(random: &mut SplitMix64, ring: &mut RetainRing<S>, model: &mut Model) {
    let room = ring.free_bytes();
    let min = usize::try_from(random.below(room as u64 + 3)).unwrap();
    let max = min + usize::try_from(random.below(room as u64 + 3)).unwrap();
    let space = ring.reserve(min, max);
    if min.max(1) > room {
        assert!(space.is_empty());
    } else {
        assert!(space.len() >= min.max(1) && space.len() <= max.max(1));
    }
    let mut bytes = vec![0; space.len()];
    random.fill(&mut bytes);
    space.copy_from_slice(&bytes);
    if random.one_in(4) {
        // An acknowledgement arrives while the application is still writing in place.
        let offset = ring.start_offset() + random.below(ring.retained_bytes() as u64 + 1);
        ring.trim_to(offset);
        model.start = usize::try_from(offset - model.base).unwrap();
    }
    if random.one_in(3)
        && let Some(lent) = ring.lend()
    {
        meanwhile(random, ring, model);
        assert_eq!(lent.reserved(), bytes);
        ring.give_back(lent);
        model.check(ring);
    }
    let filled = usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap();
    assert_eq!(ring.commit(filled), filled);
    model.stream.extend_from_slice(&bytes[..filled]);
    assert_eq!(ring.commit(1), 0, "a reservation is committed once");
}

/// The application has the buffer: the ring takes nothing and shows nothing, but forgets.
fn meanwhile<S: BufferSource>(random: &mut SplitMix64, ring: &mut RetainRing<S>, model: &mut Model) {
    assert!(ring.is_lent() && ring.lend().is_none());
    let held = ring.end_offset() - ring.start_offset();
    assert_eq!((ring.push(b"x"), ring.free_bytes(), ring.commit(1)), (0, 0, 0));
    assert_eq!(ring.slices(ring.start_offset(), ring.end_offset()).0.len(), 0);
    assert!(ring.reserve(1, 10).is_empty());
    ring.make_room(1);
    ring.shrink();
    assert_eq!(ring.end_offset() - ring.start_offset(), held);
    let offset = ring.start_offset() + random.below(held + 1);
    ring.trim_to(offset);
    model.start = usize::try_from(offset - model.base).unwrap();
}

#[test]
fn random_operations_agree_with_the_model() {
    let mut pool = BufferPool::new(1 << 20);
    let first = std::env::var("OUTLAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0u64);
    for seed in first..first + 3000 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut pool)));
        assert!(outcome.is_ok(), "repeat with OUTLAST_SEED={seed}");
        assert!(pool.kept_bytes() <= 1 << 20);
    }
}

#[test]
fn an_idle_ring_owns_no_memory() {
    let mut ring = RetainRing::new(0, 1 << 20);
    assert_eq!(ring.buffer_bytes(), 0);
    assert_eq!(ring.push(b"a"), 1);
    assert_eq!(ring.buffer_bytes(), BUFFER_BYTES_MIN);
    ring.trim_to(1);
    ring.shrink();
    assert_eq!(ring.buffer_bytes(), 0);
    assert_eq!(ring.end_offset(), 1);
}

#[test]
fn short_exchanges_stay_at_the_low_end_of_a_small_buffer() {
    let mut ring = RetainRing::new(0, 1 << 20);
    let mut place = None;
    for _ in 0..1000 {
        assert_eq!(ring.push(&[7; 100]), 100);
        let (older, newer) = ring.slices(ring.start_offset(), ring.end_offset());
        assert!(newer.is_empty());
        assert_eq!(*place.get_or_insert(older.as_ptr()), older.as_ptr());
        ring.trim_to(ring.end_offset());
    }
    assert_eq!(ring.buffer_bytes(), BUFFER_BYTES_MIN);
}

#[test]
fn the_buffer_grows_no_further_than_what_is_retained_needs() {
    let mut ring = RetainRing::new(0, 256 << 10);
    for _ in 0..1000 {
        assert_eq!(ring.push(&[1; 1500]), 1500);
        ring.trim_to(ring.end_offset().saturating_sub(3000));
    }
    assert!(ring.buffer_bytes() <= 8192, "{}", ring.buffer_bytes());
}

#[test]
fn a_write_larger_than_the_ring_leaves_its_last_bytes() {
    let mut ring = RetainRing::new(10, 8);
    ring.push_overwriting(b"abc");
    ring.push_overwriting(b"0123456789");
    assert_eq!((ring.start_offset(), ring.end_offset()), (15, 23));
    assert_eq!(ring.slices(15, 23).0, b"23456789");
}

#[test]
fn positions_that_are_not_held_give_nothing() {
    let mut ring = RetainRing::new(100, 64);
    assert_eq!(ring.push(b"hello"), 5);
    for (from, to) in [(99, 101), (100, 106), (104, 102), (0, u64::MAX), (u64::MAX, 0)] {
        assert_eq!(ring.slices(from, to), (&[][..], &[][..]), "{from}..{to}");
    }
    ring.trim_to(u64::MAX);
    assert_eq!(ring.start_offset(), 105);
    ring.trim_to(0);
    assert_eq!(ring.start_offset(), 105);
    assert!(!ring.advance_empty_to(104));
    assert_eq!(ring.push(b"x"), 1);
    assert!(!ring.advance_empty_to(200));
}

#[test]
fn buffers_return_to_the_pool_when_the_ring_goes() {
    let mut pool = BufferPool::new(1 << 20);
    {
        let mut ring = RetainRing::with_source(0, 1 << 20, &mut pool);
        assert_eq!(ring.push(&[0; 20_000]), 20_000);
    }
    assert_eq!(pool.kept_bytes(), 32_768);
}

#[test]
fn a_reservation_after_a_wrap_does_not_lose_the_capacity_promised() {
    let mut ring = RetainRing::new(0, 4096);
    assert_eq!(ring.push(&[1; 4000]), 4000);
    ring.trim_to(1000);
    assert!(ring.reserve(500, 500).len() == 500);
    assert_eq!(ring.commit(500), 500);
    assert_eq!(ring.free_bytes(), 596);
    assert_eq!(ring.push(&[2; 596]), 596);
    assert_eq!(ring.retained_bytes(), 4096);
}
