//! What must hold for every content of a region: the body of the fuzz target `state` in `fuzz/`.
//!
//! The tests run the same function over the committed corpus and over random changes to it.

use super::cell::Cell;
use super::check::check_image;
use super::error::{Result, StateError};
use super::layout::{CONTROL, Layout, Options};
use super::map::Map;
use super::pool::{Pool, Slot};
use super::record::Record;
use super::transaction::{Transaction, View};
use super::words::Words;
use bytemuck::{Pod, Zeroable};
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A region without a mapping.
pub(crate) struct Memory {
    pub(crate) words: Vec<AtomicU64>,
    pub(crate) layout: Layout,
}

impl Memory {
    pub(crate) fn new(options: &Options<'_>) -> Result<Self> {
        let layout = Layout::new(options)?;
        let mut image = layout.first_page(options);
        image.resize(layout.size_bytes(), 0);
        Ok(Self { words: words(&image), layout })
    }

    fn of_image(image: &[u8], options: &Options<'_>) -> Result<Self> {
        let words = words(image);
        let layout = Layout::read(Words::new(&words), image.len(), options)?;
        Ok(Self { words, layout })
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    pub(crate) fn view(&self) -> View<'_> {
        View::new(Words::new(&self.words), &self.layout, None)
    }

    pub(crate) fn transaction<T>(&self, work: impl FnOnce(&mut Transaction<'_>) -> Result<T>) -> Result<T> {
        let view = self.view();
        view.recover()?;
        let mut tx = Transaction::begin(view)?;
        let value = work(&mut tx)?;
        tx.commit()?;
        Ok(value)
    }
}

fn words(image: &[u8]) -> Vec<AtomicU64> {
    image.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word).into()).collect()
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Root {
    map: Map,
    pool: Record,
    record: Record,
}

fn root(memory: &Memory) -> Cell<Root> {
    Cell::new(memory.layout.root.start * 8)
}

const OPTIONS: Options<'_> = Options {
    size_bytes: 28 << 10,
    log_bytes: 4 << 10,
    root_bytes: 0x1000,
    suspect_bytes: 0,
    address: None,
    layout: "fuzzing",
    layout_version: 1,
};

/// A region with something of everything in it, and the same in the middle of a transaction.
fn images() -> Result<[Vec<u8>; 2]> {
    let memory = Memory::new(&OPTIONS)?;
    let root = root(&memory);
    let map = memory.transaction(|tx| {
        let (map, pool) = (Map::seeded(tx, 1)?, Pool::<[u64; 2]>::create(tx, 5)?);
        let record = tx.put(b"a record")?;
        tx.set(root, Root { map, pool: pool.record(), record })?;
        for n in 0..3 {
            pool.allocate(tx, [n, n])?;
        }
        pool.free(tx, Slot::from_index(1))?;
        Ok(map)
    })?;
    for n in 0..20u8 {
        memory.transaction(|tx| map.insert(tx, &[b'k', n * 7 % 20], &vec![n; usize::from(n) * 17 % 90]))?;
    }
    for n in [3, 4, 9] {
        memory.transaction(|tx| map.remove(tx, &[b'k', n]))?;
    }
    let committed = memory.image();
    let mut open = Vec::new();
    let _ = memory.transaction(|tx| {
        map.insert(tx, b"under way", &[1; 40])?;
        map.remove(tx, b"k\x07")?;
        open = memory.image();
        Err::<(), _>(StateError::Nested)
    });
    Ok([committed, open])
}

/// Changes bytes of a region, three of the input for each, and then uses it: nothing panics, nothing goes on for ever, and
/// what was found consistent stays so. The first byte chooses whether a transaction is open.
#[allow(clippy::panic, reason = "that is how a finding is told")]
pub fn state(bytes: &[u8]) {
    static IMAGES: OnceLock<Option<[Vec<u8>; 2]>> = OnceLock::new();
    let Some(images) = IMAGES.get_or_init(|| images().ok()) else { panic!("no image to begin with") };
    let (selector, edits) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    let mut image = images[usize::from(selector & 1)].clone();
    // What is before has a checksum.
    let begin = CONTROL.min(16) * 8;
    for edit in edits.as_chunks::<3>().0 {
        let at = begin + usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        if let Some(byte) = image.get_mut(at) {
            *byte = edit[2];
        }
    }
    let checked = check_image(&image, &OPTIONS);
    if let Err(error) = &checked {
        assert!(!error.to_string().is_empty());
    }
    let Ok(memory) = Memory::of_image(&image, &OPTIONS) else { panic!("its header was not changed") };
    let _ = use_it(&memory);
    if checked.is_ok()
        && let Err(error) = memory.view().recover().and_then(|_| memory.view().check())
    {
        panic!("it was consistent before it was used: {error}");
    }
}

/// Each step in a transaction of its own, of which some fail.
fn use_it(memory: &Memory) -> Result<()> {
    let root = memory.view().recover().and_then(|_| memory.view().get(root(memory)))?;
    let map = root.map;
    let _ = memory.view().bytes(root.record).map(<[u8]>::len);
    let _ = map.visit(&memory.view(), b"", |_, _| ControlFlow::Continue(()));
    for key in [&b"k\x05"[..], b"k\x0d", b"new"] {
        let _ = map.get(&memory.view(), key).map(|value| value.map(<[u8]>::len));
        let _ = memory.transaction(|tx| map.insert(tx, key, &[9; 33]));
        let _ = memory.transaction(|tx| map.remove(tx, key));
    }
    let _ = memory.transaction(|tx| {
        let pool = Pool::<[u64; 2]>::at(tx, root.pool)?;
        pool.free(tx, Slot::from_index(2))?;
        pool.allocate(tx, [1, 2])
    });
    for length in [0, 100, 3000] {
        let _ = memory.transaction(|tx| {
            let record = tx.allocate(length)?;
            let record = tx.resize(record, length * 2)?;
            let other = tx.put(b"other")?;
            tx.free(record)?;
            tx.free(other)
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::Random;
    use super::*;
    use crate::state::{heap, layout};
    use std::path::PathBuf;

    fn corpus() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/state")
    }

    fn seeds() -> Vec<(String, Vec<u8>)> {
        let edit = |word: usize, byte: usize, value: u8| {
            let [low, high] = u16::try_from((word - 16) * 8 + byte).unwrap().to_le_bytes();
            [low, high, value]
        };
        let words = [
            ("committed", layout::COMMITTED),
            ("log", layout::LOG),
            ("frontier", heap::FRONTIER),
            ("used", heap::USED),
            ("lists_in_use", heap::LISTS_IN_USE),
            ("list", heap::LISTS + 9),
            ("root", layout::ROOT),
            ("first_block", layout::ROOT + 512),
            ("map", layout::ROOT + 512 + 3),
            ("log_entry", layout::ROOT + 512 * 5 + 1),
        ];
        let mut seeds = vec![("settled".to_owned(), vec![0]), ("open".to_owned(), vec![1])];
        for (name, word) in words {
            seeds.push((format!("settled_{name}"), [&[0][..], &edit(word, 0, 0xff)].concat()));
            seeds
                .push((format!("open_{name}"), [&[1][..], &edit(word, 1, 1), &edit(word, 4, 0x80)].concat()));
        }
        seeds
    }

    /// With `OUTLAST_WRITE_CORPUS` set, writes the seeds; without, checks that they are there.
    #[test]
    fn the_corpus_has_all_seeds() {
        for (name, bytes) in seeds() {
            let path = corpus().join(name);
            if std::env::var_os("OUTLAST_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(corpus()).unwrap();
                std::fs::write(&path, &bytes).unwrap();
            }
            let committed = std::fs::read(&path).unwrap_or_default();
            assert!(committed == bytes, "{} is stale: run with OUTLAST_WRITE_CORPUS=1", path.display());
        }
    }

    #[test]
    fn the_images_are_consistent_and_one_is_under_way() {
        let [settled, open] = images().unwrap();
        check_image(&settled, &OPTIONS).unwrap();
        check_image(&open, &OPTIONS).unwrap();
        let recovered = Memory::of_image(&open, &OPTIONS).unwrap();
        assert!(recovered.view().recover().unwrap());
        let entries = |memory: &Memory| {
            let view = memory.view();
            view.get(root(memory)).unwrap().map.entries(&view).unwrap()
        };
        assert_eq!(entries(&recovered), entries(&Memory::of_image(&settled, &OPTIONS).unwrap()));
        assert_eq!(entries(&recovered).len(), 17);
    }

    #[test]
    fn the_corpus_and_random_changes_to_it_pass() {
        let mut inputs: Vec<PathBuf> =
            std::fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path()).collect();
        inputs.sort();
        assert!(inputs.len() >= seeds().len());
        let inputs: Vec<_> = inputs.iter().map(|path| std::fs::read(path).unwrap()).collect();
        inputs.iter().for_each(|bytes| state(bytes));
        let seed = std::env::var("OUTLAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        let mut random = Random(seed);
        let mut below = |bound: u64| usize::try_from(random.below(bound)).unwrap();
        for _ in 0..20_000 {
            let mut bytes = inputs[below(inputs.len() as u64)].clone();
            for _ in 0..=below(5) {
                // Small numbers and offsets within the region are met more often than by chance.
                let at = if below(2) == 0 { below(28 << 10) } else { below(1 << 13) };
                let value = [0, 1, 2, 0x20, 0xff, below(256)][below(6)];
                bytes.extend(u16::try_from(at).unwrap().to_le_bytes());
                bytes.push(u8::try_from(value).unwrap());
            }
            let outcome = std::panic::catch_unwind(|| state(&bytes));
            assert!(outcome.is_ok(), "OUTLAST_SEED={seed} fails for {bytes:02x?}");
        }
    }
}
