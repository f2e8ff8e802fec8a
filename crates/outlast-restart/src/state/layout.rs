//! What is where in a region. All of it is words of 8 bytes, in the machine's order.
//!
//! | words | |
//! |---|---|
//! | 0 to 9 | what never changes: sizes, versions, and a checksum of that |
//! | [`LOCK`], [`COMMITTED`], [`LOG`] | what the transactions use |
//! | from [`CONTROL`] | what the heap knows of itself |
//! | from [`ROOT`] | the application's root, the heap, the undo log, the suspect part: whole pages each |

use super::error::{Result, StateError, damaged};
use super::words::Words;
use std::ops::Range;

pub(crate) const PAGE_BYTES: usize = 4096;
const PAGE: usize = PAGE_BYTES / 8;

/// "outlast" and a number, as text on machines with little end first.
const MAGIC: u64 = u64::from_le_bytes(*b"outlast\x01");
pub(crate) const FORMAT: u32 = 1;

/// In the order in which they are in the region.
const WORD_MAGIC: usize = 0;
const WORD_VERSIONS: usize = 1;
const WORD_NAME: usize = 2;
const WORD_ADDRESS: usize = 3;
const WORD_ROOT: usize = 4;
const WORD_HEAP: usize = 5;
const WORD_LOG: usize = 6;
const WORD_SUSPECT: usize = 7;
const WORD_CHECKSUM: usize = 8;

/// Who is in a transaction; see [`lock`](super::lock).
pub(crate) const LOCK: usize = 16;
/// The sequence number of the last transaction that counts.
pub(crate) const COMMITTED: usize = 17;
/// What of the undo log is used, and by which transaction; see [`transaction`](super::transaction).
pub(crate) const LOG: usize = 18;
/// The first word that transactions change.
pub(crate) const CONTROL: usize = 64;
pub(crate) const ROOT: usize = PAGE;

/// Where a region is if nobody says otherwise: far from where programs, libraries and stacks are put. 32 TiB where every
/// program can have that, which leaves their room to sanitizers; otherwise 128 GiB.
pub const DEFAULT_ADDRESS: usize =
    if cfg!(target_arch = "x86_64") { 0x2000_0000_0000 } else { 0x20_0000_0000 };

/// How a region is made. What exists already only has to fit.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// All of it, in bytes, rounded up to whole pages. Memory is only taken by what is used.
    pub size_bytes: usize,
    /// For the [root](super::Region::root).
    pub root_bytes: usize,
    /// What one transaction can undo: old bytes, and 8 for each change, also if one place changes twice. 0: an eighth of all, at most 16 MiB.
    pub log_bytes: usize,
    /// For what is no part of transactions; see [`Suspect`](super::Suspect).
    pub suspect_bytes: usize,
    /// The same in every generation, so that pointers stay what they are. None: [`DEFAULT_ADDRESS`], or where a
    /// region that exists was made.
    pub address: Option<usize>,
    /// What the application calls its data: nobody else's is taken for it.
    pub layout: &'a str,
    /// To be counted up when the meaning of the application's data changes.
    pub layout_version: u32,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            size_bytes: 1 << 20,
            root_bytes: PAGE_BYTES,
            log_bytes: 0,
            suspect_bytes: 0,
            address: None,
            layout: "",
            layout_version: 0,
        }
    }
}

/// The parts of a region, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) address: usize,
    pub(crate) root: Range<usize>,
    pub(crate) heap: Range<usize>,
    pub(crate) log: Range<usize>,
    pub(crate) suspect: Range<usize>,
}

impl Layout {
    /// That of a new region.
    pub(crate) fn new(options: &Options<'_>) -> Result<Self> {
        let pages = |bytes: usize| bytes.div_ceil(PAGE_BYTES);
        let all = pages(options.size_bytes);
        let log = match options.log_bytes {
            0 => (all / 8).clamp(1, (16 << 20) / PAGE_BYTES),
            bytes => pages(bytes),
        };
        let (root, suspect) = (pages(options.root_bytes), pages(options.suspect_bytes));
        // A page for what is at the beginning, and the least heap.
        let least = root.saturating_add(suspect).saturating_add(log).saturating_add(2);
        if all < least {
            let least = least.saturating_mul(PAGE_BYTES);
            return Err(StateError::TooSmall { what: "the size", value: options.size_bytes, least });
        }
        let heap = all - least + 1;
        let address = options.address.unwrap_or(DEFAULT_ADDRESS);
        if address == 0 || !address.is_multiple_of(65536) || address.checked_add(all * PAGE_BYTES).is_none() {
            return Err(StateError::Address { address });
        }
        Self::of_parts(address, [root, heap, log, suspect]).ok_or(StateError::TooSmall {
            what: "the size",
            value: options.size_bytes,
            least: usize::MAX,
        })
    }

    /// The parts' sizes in pages, one behind the other.
    fn of_parts(address: usize, pages: [usize; 4]) -> Option<Self> {
        let mut begin = ROOT;
        let mut next = |pages: usize| {
            let part = begin..begin.checked_add(pages.checked_mul(PAGE)?)?;
            begin = part.end;
            // In bytes, too.
            part.end.checked_mul(8)?;
            Some(part)
        };
        let [root, heap, log, suspect] = pages;
        Some(Self { address, root: next(root)?, heap: next(heap)?, log: next(log)?, suspect: next(suspect)? })
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.suspect.end * 8
    }

    /// The first page of a new region; all others are zeroes.
    pub(crate) fn first_page(&self, options: &Options<'_>) -> Vec<u8> {
        let mut words = [0; PAGE];
        let pages = |part: &Range<usize>| (part.len() / PAGE) as u64;
        words[WORD_MAGIC] = MAGIC;
        words[WORD_VERSIONS] = u64::from(FORMAT) | u64::from(options.layout_version) << 32;
        words[WORD_NAME] = hash(options.layout.bytes());
        words[WORD_ADDRESS] = self.address as u64;
        words[WORD_ROOT] = pages(&self.root);
        words[WORD_HEAP] = pages(&self.heap);
        words[WORD_LOG] = pages(&self.log);
        words[WORD_SUSPECT] = pages(&self.suspect);
        words[WORD_CHECKSUM] = checksum(&words[..WORD_CHECKSUM]);
        words[super::heap::FRONTIER] = self.heap.start as u64;
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// That of a region which exists, if it is one of these options. `first_page` is the beginning of it, `size_bytes`
    /// what there is of all.
    pub(crate) fn read(first_page: Words<'_>, size_bytes: usize, options: &Options<'_>) -> Result<Self> {
        let word = |at| first_page.load(at).map_err(|_| StateError::NotARegion);
        if word(WORD_MAGIC)? != MAGIC {
            return Err(StateError::NotARegion);
        }
        let halves = word(WORD_VERSIONS)?;
        let found = lower(halves);
        if found != FORMAT {
            return Err(StateError::OtherFormat { found, expected: FORMAT });
        }
        let mut fixed = [0; WORD_CHECKSUM];
        for (at, slot) in fixed.iter_mut().enumerate() {
            *slot = word(at)?;
        }
        if word(WORD_CHECKSUM)? != checksum(&fixed) {
            return Err(damaged("the checksum of the header is wrong", WORD_CHECKSUM));
        }
        if fixed[WORD_NAME] != hash(options.layout.bytes()) {
            return Err(StateError::OtherLayout { expected: options.layout.to_owned() });
        }
        let found = lower(halves >> 32);
        if found != options.layout_version {
            return Err(StateError::OtherLayoutVersion { found, expected: options.layout_version });
        }
        let pages = [WORD_ROOT, WORD_HEAP, WORD_LOG, WORD_SUSPECT].map(|at| usize::try_from(fixed[at]).ok());
        let layout = match (usize::try_from(fixed[WORD_ADDRESS]), pages) {
            (Ok(address), [Some(root), Some(heap @ 1..), Some(log @ 1..), Some(suspect)]) => {
                Self::of_parts(address, [root, heap, log, suspect])
            }
            _ => None,
        };
        let layout = layout.ok_or_else(|| damaged("the sizes in the header are impossible", WORD_ROOT))?;
        if size_bytes < layout.size_bytes() {
            return Err(StateError::Truncated { found: size_bytes, expected: layout.size_bytes() });
        }
        if layout.size_bytes() < options.size_bytes {
            return Err(StateError::Smaller { found: layout.size_bytes(), expected: options.size_bytes });
        }
        if options.address.is_some_and(|address| address != layout.address) {
            return Err(StateError::OtherAddress { found: layout.address });
        }
        Ok(layout)
    }
}

fn lower(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn checksum(words: &[u64]) -> u64 {
    hash(words.iter().flat_map(|word| word.to_ne_bytes()))
}
