//! Seeded random transactions against a model, in memory of this process alone: with a crash before every store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use super::check::check_image;
use super::error::{Result, StateError};
use super::fuse::crash_after;
use super::fuzzing::Memory;
use super::layout::{COMMITTED, Layout, Options};
use super::map::Map;
use super::pool::{Pool, Slot};
use super::record::Record;
use super::transaction::{Transaction, View};
use super::{Cell, heap};
use bytemuck::{Pod, Zeroable};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Small and repeatable (Steele, Lea, Flood 2014).
#[derive(Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn size(&mut self, bound: u64) -> usize {
        usize::try_from(self.below(bound)).unwrap()
    }

    fn bytes(&mut self, bound: u64) -> Vec<u8> {
        let length = self.size(bound);
        (0..length).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }
}

fn options() -> Options<'static> {
    Options { size_bytes: 64 << 10, log_bytes: 40 << 10, layout: "model", ..Options::default() }
}

impl Memory {
    fn copy(&self) -> Self {
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed).into()).collect();
        Self { words, layout: self.layout.clone() }
    }

    fn recovered(&self) -> View<'_> {
        let view = self.view();
        view.recover().unwrap();
        view
    }

    fn committed(&self) -> u64 {
        self.words[COMMITTED].load(Ordering::Relaxed)
    }
}

const RECORDS: usize = 16;
/// So many that the region is full now and then.
const RECORD_BYTES: u64 = 2000;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Root {
    map: Map,
    pool: Record,
    total: u64,
    records: [Record; RECORDS],
}

fn root(memory: &Layout) -> Cell<Root> {
    Cell::new(memory.root.start * 8)
}

/// What the region should contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    records: Vec<Option<Vec<u8>>>,
    pool: BTreeMap<u64, [u64; 3]>,
    total: u64,
}

fn content(view: &View<'_>) -> Model {
    let root = view.get(root(view.layout)).unwrap();
    let pool = Pool::<[u64; 3]>::at(view, root.pool).unwrap();
    let slots = pool.slots(view).unwrap();
    Model {
        map: root.map.entries(view).unwrap().into_iter().collect(),
        records: root
            .records
            .iter()
            .map(|record| (!record.is_none()).then(|| view.bytes(*record).unwrap().to_vec()))
            .collect(),
        pool: slots
            .into_iter()
            .map(|slot| (slot.index(), view.get(pool.cell(view, slot).unwrap()).unwrap()))
            .collect(),
        total: root.total,
    }
}

fn begun() -> Memory {
    let memory = Memory::new(&options()).unwrap();
    let root = root(&memory.layout);
    memory
        .transaction(|tx| {
            let (map, pool) = (Map::create(tx)?, Pool::<[u64; 3]>::create(tx, 20)?);
            tx.set(root, Root { map, pool: pool.record(), total: 0, records: [Record::NONE; RECORDS] })
        })
        .unwrap();
    memory
}

/// A random step, in the region and in the model.
fn step(tx: &mut Transaction<'_>, model: &mut Model, random: &mut Random) -> Result<()> {
    let place = root(tx.layout);
    let mut root = tx.get(place)?;
    let pool = Pool::<[u64; 3]>::at(tx, root.pool)?;
    let key = format!("key {}", random.below(30)).into_bytes();
    let which = random.size(RECORDS as u64);
    let record = root.records[which];
    match random.below(9) {
        0 | 1 => {
            let value = random.bytes(200);
            let is_new = root.map.insert(tx, &key, &value)?;
            assert_eq!(is_new, model.map.insert(key, value).is_none());
        }
        2 => assert_eq!(root.map.remove(tx, &key)?, model.map.remove(&key).is_some()),
        3 => {
            let value = root.map.get(tx, &key)?;
            assert_eq!(value, model.map.get(&key).map(Vec::as_slice));
            assert_eq!(root.map.len(tx)?, model.map.len() as u64);
        }
        4 if record.is_none() => {
            let bytes = random.bytes(RECORD_BYTES);
            root.records[which] = tx.put(&bytes)?;
            model.records[which] = Some(bytes);
        }
        4 => {
            tx.free(record)?;
            root.records[which] = Record::NONE;
            model.records[which] = None;
        }
        5 if !record.is_none() => {
            let length = random.size(RECORD_BYTES);
            root.records[which] = tx.resize(record, length)?;
            model.records[which].as_mut().unwrap().resize(length, 0);
        }
        6 if !record.is_none() => {
            let old = model.records[which].as_mut().unwrap();
            let begin = random.size(old.len() as u64 + 1);
            let bytes = random.bytes((old.len() - begin) as u64 + 1);
            tx.write(record, begin, &bytes)?;
            old[begin..begin + bytes.len()].copy_from_slice(&bytes);
        }
        7 => {
            let value = [random.below(100), 0, random.below(100)];
            match pool.allocate(tx, value)? {
                Some(slot) => assert!(model.pool.insert(slot.index(), value).is_none()),
                None => assert_eq!(model.pool.len(), 20),
            }
        }
        8 => {
            let slot = random.below(22);
            match pool.free(tx, Slot::from_index(slot)) {
                Ok(()) => assert!(model.pool.remove(&slot).is_some()),
                Err(StateError::Missing { .. }) => assert!(!model.pool.contains_key(&slot)),
                Err(error) => return Err(error),
            }
        }
        _ => {}
    }
    root.total += 1;
    model.total += 1;
    tx.set(place, root)
}

fn steps(memory: &Memory, model: &mut Model, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    let count = 1 + random.below(4);
    let mut next = model.clone();
    memory.transaction(|tx| {
        for _ in 0..count {
            step(tx, &mut next, &mut random)?;
        }
        Ok(())
    })?;
    *model = next;
    Ok(())
}

#[test]
fn random_transactions_agree_with_the_model() {
    let memory = begun();
    let mut model = content(&memory.recovered());
    let (mut failed, mut sequence) = (0, memory.committed());
    for seed in 0..20_000 {
        match steps(&memory, &mut model, seed) {
            Ok(()) => sequence += 1,
            // It is small enough for that.
            Err(StateError::OutOfSpace { .. } | StateError::TransactionTooLarge { .. }) => failed += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
        assert_eq!(memory.committed(), sequence);
        if seed % 8 == 0 {
            let view = memory.recovered();
            view.check().unwrap_or_else(|error| panic!("after seed {seed}: {error}"));
            assert_eq!(content(&view), model, "after seed {seed}");
        }
    }
    assert!(
        failed > 0 && failed < 10_000,
        "{failed} failed: the region is too small or too large for this test"
    );
    // Nothing has leaked: without all of it, the heap is as it was.
    let root = root(&memory.layout);
    memory
        .transaction(|tx| {
            let old = tx.get(root)?;
            for (key, _) in old.map.entries(tx)? {
                old.map.remove(tx, &key)?;
            }
            for record in old.records.iter().filter(|record| !record.is_none()) {
                tx.free(*record)?;
            }
            Ok(())
        })
        .unwrap();
    let view = memory.recovered();
    assert_eq!(view.load(heap::RECORDS).unwrap(), 2);
    let fresh = begun();
    assert_eq!(view.load(heap::FRONTIER).unwrap(), fresh.recovered().load(heap::FRONTIER).unwrap());
}

#[test]
fn a_crash_before_any_store_leaves_the_old_or_the_new() {
    let mut memory = begun();
    let mut model = content(&memory.recovered());
    let (mut crashes, mut random) = (0, Random(1));
    for seed in 0..250 {
        let (old, before) = (model.clone(), memory.committed());
        let after = memory.copy();
        if steps(&after, &mut model, seed).is_err() {
            continue;
        }
        for stores in 0.. {
            let crashed = memory.copy();
            let mut told = old.clone();
            let ended = crash_after(stores, || steps(&crashed, &mut told, seed).unwrap()).is_some();
            // Whoever recovers it may die of that as well.
            let _ = crash_after(random.below(20), || crashed.view().recover().unwrap());
            let view = crashed.recovered();
            view.check().unwrap_or_else(|error| panic!("seed {seed}, store {stores}: {error}"));
            let counts = crashed.committed() == before + 1;
            assert!(counts || crashed.committed() == before);
            assert_eq!(
                content(&view),
                if counts { &model } else { &old }.clone(),
                "seed {seed}, store {stores}"
            );
            if ended {
                assert!(counts);
                break;
            }
            crashes += 1;
        }
        memory = after;
    }
    assert!(crashes > 10_000, "{crashes} crashes only");
}

#[test]
fn a_part_that_fails_leaves_what_was_before_it() {
    let memory = begun();
    let root = root(&memory.layout);
    memory
        .transaction(|tx| {
            let mut kept = tx.get(root)?;
            kept.records[0] = tx.put(b"made before the part")?;
            tx.set(root, kept)?;
            let failed: Result<()> = tx.attempt(|tx| {
                tx.write(kept.records[0], 0, b"spoilt")?;
                tx.put(&[1; 300])?;
                kept.map.insert(tx, b"key", b"value")?;
                Err(StateError::Nested)
            });
            assert!(matches!(failed, Err(StateError::Nested)));
            Ok(())
        })
        .unwrap();
    let view = memory.recovered();
    view.check().unwrap();
    let found = content(&view);
    assert_eq!(found.records[0].as_deref(), Some(&b"made before the part"[..]));
    assert!(found.map.is_empty());
}

#[test]
fn garbled_images_are_refused_or_consistent() {
    let memory = begun();
    let mut model = content(&memory.recovered());
    for seed in 0..200 {
        let _ = steps(&memory, &mut model, seed);
    }
    // One with a transaction that is open.
    let open = memory.copy();
    let _ = crash_after(60, || steps(&open, &mut model.clone(), 1000));
    let mut random = Random(7);
    let mut refused = 0;
    for image in [memory.image(), open.image()] {
        check_image(&image, &options()).unwrap();
        for _ in 0..10_000 {
            let mut garbled = image.clone();
            for _ in 0..=random.below(4) {
                // Half of it where most is decided.
                let bound = if random.below(2) == 0 { 4096 } else { garbled.len() as u64 };
                let at = random.size(bound);
                match random.below(4) {
                    0 => garbled[at] ^= 1 << random.below(8),
                    1 => garbled[at] = u8::try_from(random.below(256)).unwrap(),
                    2 => {
                        let from = random.size(garbled.len() as u64) & !7;
                        let word: [u8; 8] = garbled[from..from + 8].try_into().unwrap();
                        garbled[at & !7..(at & !7) + 8].copy_from_slice(&word);
                    }
                    _ if random.below(50) == 0 => {
                        garbled.truncate(at);
                        break;
                    }
                    _ => {
                        let end = (at + 64).min(garbled.len());
                        garbled[at..end].fill(if random.below(2) == 0 { 0 } else { 0xff });
                    }
                }
            }
            refused += u64::from(check_image(&garbled, &options()).is_err());
        }
    }
    assert!(refused > 2_000, "{refused} refused only");
}
