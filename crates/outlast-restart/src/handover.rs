//! What a server leaves to another binary: the connections that it held, with what was received and not dealt with, and
//! which of its descriptors are theirs.
//!
//! A list in memory of its own, that the new program is given as a descriptor (`OUTLAST_HANDOVER`). Both may be built
//! differently: so it says which layout it has, and who does not know that goes back. And it says which process it is for:
//! those that this one starts are none of its readers.

use crate::buffers::{self, Buffers};
use crate::control::Control;
use crate::passed::{self, Passed};
use crate::slots::{Notes, Slot, Slots};
use crate::sys::file_size::beyond_limit;
use crate::sys::shared::{set_bytes, to_bytes};
use crate::sys::{descriptors, process};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// The variable with the number of the list's descriptor.
pub(crate) const ENVIRONMENT: &str = "OUTLAST_HANDOVER";
const MAGIC: &[u8; 8] = b"outlasth";
/// Of the list, and of the slots in it.
const VERSION: u32 = 3;
/// More is not believed: no table of descriptors is larger.
const ENTRIES_MAX: u32 = 1 << 20;

/// What is left besides connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Of the last one that served.
    pub(crate) generation: u32,
    transactions: u64,
    transacting: u32,
    /// To be written to by who serves, and closed unwritten by who cannot.
    pub(crate) ready: RawFd,
}

/// Writes the list, for this process, which is about to be the other binary. Nobody serves now.
pub(crate) fn write(
    control: &Control,
    slots: &Slots,
    buffers: &'static Buffers,
    passed: &[Passed],
    ready: RawFd,
) -> io::Result<OwnedFd> {
    let list = File::from(crate::sys::memfd::create(c"outlast-handover", 0)?);
    // However large it becomes.
    beyond_limit(u64::MAX, || write_to(list, (control, slots, buffers), passed, ready))
}

fn write_to(
    list: File,
    (control, slots, buffers): (&Control, &Slots, &'static Buffers),
    passed: &[Passed],
    ready: RawFd,
) -> io::Result<OwnedFd> {
    let mut list = BufWriter::new(list);
    list.write_all(MAGIC)?;
    let length = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    write_words(&mut list, &[VERSION, process::pid().cast_unsigned(), length(passed.len())])?;
    for passed in passed {
        write_words(&mut list, &passed.to_words())?;
    }
    let entries: Vec<(RawFd, &Slot)> = slots.in_use().collect();
    let slot_bytes = length(size_of::<Slot>());
    let (generation, transacting) = (&control.generation, &control.transacting);
    let [generation, transacting] = [generation, transacting].map(|word| word.load(Ordering::SeqCst));
    write_words(
        &mut list,
        &[slot_bytes, length(entries.len()), generation, transacting, ready.cast_unsigned()],
    )?;
    list.write_all(&control.transactions.load(Ordering::SeqCst).to_le_bytes())?;
    for (descriptor, slot) in entries {
        write_words(&mut list, &[descriptor.cast_unsigned()])?;
        list.write_all(&to_bytes::<Slot, { size_of::<Slot>() }>(slot))?;
        if let Some(notes) = slots.notes_of(descriptor) {
            list.write_all(&to_bytes::<Notes, { size_of::<Notes>() }>(notes))?;
        }
        let lent = slot.buffers().filter(|number| buffers.is_lent_to(*number, descriptor));
        let lent: BTreeSet<u32> = lent.collect();
        write_words(&mut list, &[length(lent.len())])?;
        for number in lent {
            write_words(&mut list, &[number])?;
            // SAFETY: nobody serves now, so that nobody changes what connections have.
            let bytes = unsafe { buffers.bytes(number, 0, buffers::length(number)) };
            list.write_all(bytes)?;
        }
    }
    let mut list = list.into_inner().map_err(io::IntoInnerError::into_error)?;
    list.rewind()?;
    Ok(list.into())
}

/// A list for this process.
struct List {
    number: RawFd,
    passed: Vec<Passed>,
    rest: BufReader<File>,
}

/// That which this process was left, if it was.
fn open() -> io::Result<Option<List>> {
    let Some(number) = std::env::var(ENVIRONMENT).ok().and_then(|number| number.parse::<RawFd>().ok()) else {
        return Ok(None);
    };
    // It may be somebody else's number, and is not touched before that is known.
    let Some(mut list) = descriptors::duplicate(number).map(File::from) else { return Ok(None) };
    let mut magic = [0; 8];
    if list.read_exact_at(&mut magic, 0).is_err() || &magic != MAGIC {
        return Ok(None);
    }
    list.seek(SeekFrom::Start(8))?;
    let mut list = BufReader::new(list);
    let [version] = words(&mut list)?;
    if version != VERSION {
        return Err(wrong("written by a version that this one does not know"));
    }
    let [pid, count] = words(&mut list)?;
    if pid != process::pid().cast_unsigned() {
        return Ok(None);
    }
    let passed = (0..bounded(count)?).map(|_| words(&mut list).map(Passed::from_words));
    let passed = passed.collect::<io::Result<_>>()?;
    Ok(Some(List { number, passed, rest: list }))
}

/// What was left and fits, for the first who asks: see [`passed::claim`].
pub(crate) fn claim(fits: impl FnMut(RawFd, descriptors::Identity) -> bool) -> Option<OwnedFd> {
    // Where it cannot be read, `read` says so.
    passed::claim(|| open().ok().flatten().map_or_else(Vec::new, |list| list.passed), fits)
}

/// Reads the list that this process was left, if it was, into memory that nobody uses yet. The numbers of the descriptors
/// that are for the generations, those of private pipes among them.
///
/// There is one thread, and nothing in the environment afterwards: it is not for others.
pub(crate) fn read(
    control: &Control,
    slots: &Slots,
    buffers: &'static Buffers,
) -> io::Result<Option<(Left, BTreeSet<RawFd>)>> {
    let opened = open()?;
    process::remove_variable(ENVIRONMENT);
    let Some(List { number, passed, rest: mut list }) = opened else { return Ok(None) };
    drop(descriptors::own(number));
    let [slot_bytes, count, generation, transacting, ready] = words(&mut list)?;
    if slot_bytes as usize != size_of::<Slot>() {
        return Err(wrong("written by a version that this one does not know"));
    }
    let count = bounded(count)?;
    let mut transactions = [0; 8];
    list.read_exact(&mut transactions)?;
    let transactions = u64::from_le_bytes(transactions);
    let left = Left { generation, transactions, transacting, ready: ready.cast_signed() };
    for _ in 0..count {
        let [descriptor] = words(&mut list)?;
        let descriptor = descriptor.cast_signed();
        let known = (slots.to_use(descriptor), slots.notes_of(descriptor));
        let (Some(slot), Some(notes)) = known else { return Err(wrong("a descriptor out of range")) };
        let mut bytes = [0; size_of::<Slot>()];
        list.read_exact(&mut bytes)?;
        set_bytes(slot, &bytes);
        let mut bytes = [0; size_of::<Notes>()];
        list.read_exact(&mut bytes)?;
        set_bytes(notes, &bytes);
        let [lent] = words(&mut list)?;
        for _ in 0..lent.min(4) {
            let [number] = words(&mut list)?;
            let length = buffers::length(number);
            buffers.note_lent(number, descriptor);
            // SAFETY: before it serves, this process has one thread, and nothing of it uses a buffer yet.
            let room = unsafe { buffers.room(number, 0, length) };
            if room.len() != length || length == 0 {
                return Err(wrong("a buffer out of range"));
            }
            list.read_exact(room)?;
        }
    }
    passed::keep(&passed);
    descriptors::set_private(left.ready);
    let theirs = passed::leave_to_generations(passed);
    control.generation.store(left.generation, Ordering::SeqCst);
    control.transactions.store(left.transactions, Ordering::SeqCst);
    control.transacting.store(left.transacting, Ordering::SeqCst);
    Ok(Some((left, theirs)))
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{ENVIRONMENT}: {why}"))
}

fn bounded(count: u32) -> io::Result<u32> {
    if count <= ENTRIES_MAX { Ok(count) } else { Err(wrong("too long")) }
}

fn words<const COUNT: usize>(list: &mut impl Read) -> io::Result<[u32; COUNT]> {
    let mut words = [0; COUNT];
    for word in &mut words {
        let mut bytes = [0; 4];
        list.read_exact(&mut bytes)?;
        *word = u32::from_le_bytes(bytes);
    }
    Ok(words)
}

fn write_words(list: &mut impl Write, words: &[u32]) -> io::Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    list.write_all(&bytes)
}
