//! A region as a whole: how it is made, found again, and entered.

use super::cell::Cell;
use super::error::{Result, StateError};
use super::heap;
use super::layout::{self, COMMITTED, LOCK, Layout, Options, PAGE_BYTES};
use super::lock;
use super::suspect::{Suspect, SuspectPart};
use super::transaction::{Transaction, View};
use super::words::Words;
use crate::policy::Inheritance;
use crate::sys::file_size::beyond_limit;
use crate::sys::region::{Mapping, lock_file, memory_file, seal, unlock_file};
use bytemuck::Pod;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What an [adoption](Region::adopt) has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Adopted {
    /// A transaction was under way, and was taken back.
    pub rolled_back: bool,
    /// What became of the part that belongs to no transaction.
    pub suspect: SuspectPart,
}

/// How full a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// By records, and by what the region adds to each.
    pub used_bytes: u64,
    /// What there is for them.
    pub heap_bytes: u64,
    /// How many there are; a map has one, and two for each entry.
    pub records: u64,
}

/// Memory that every generation has at the same address, and changes in transactions. All threads and processes that have
/// it share one lock, so share it by reference.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    layout: Layout,
    /// None: it has no descriptor, and only children inherit it.
    file: Option<OwnedFd>,
}

impl Region {
    /// A new region without a file. Made before [`register`](crate::register()), every generation has it.
    ///
    /// `name` is what /proc shows, and by which another binary that this process goes on as finds the region again: there,
    /// it is the one that was left.
    ///
    /// # Errors
    /// The options make no region; its address is taken; there is no memory.
    pub fn anonymous(name: &str, options: &Options<'_>) -> Result<Self> {
        let layout = Layout::new(options)?;
        if let Some(left) = crate::upgrade::left_memory(name) {
            return Self::from_fd(left, options);
        }
        match memory_file(name) {
            Ok(file) => {
                let file = File::from(file);
                beyond_limit(layout.size_bytes() as u64, || Ok(make(&file, &layout, options)))
                    .map_err(system("make the region so large"))??;
                seal(file.as_fd()).map_err(system("seal the region's memory"))?;
                Self::map(Some(file.into()), layout)
            }
            // No such call, or not for us.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES)) => {
                Self::unnamed(layout, options)
            }
            Err(error) => Err(system("make memory for the region")(error)),
        }
    }

    /// Memory that only children inherit.
    fn unnamed(layout: Layout, options: &Options<'_>) -> Result<Self> {
        UNNAMED.store(true, Ordering::Relaxed);
        let first_page = layout.first_page(options);
        let region = Self::map(None, layout)?;
        for (at, word) in first_page.as_chunks::<8>().0.iter().enumerate() {
            region.words().store(at, u64::from_ne_bytes(*word))?;
        }
        Ok(region)
    }

    /// The region in a file, which is made if there is none or it is empty: in `/dev/shm`, say, where it outlives all
    /// processes but not the machine. The file is this user's, or root's, and no symbolic link: who owns it can change all
    /// that is in it, and cut it off, of which every process that has it dies.
    ///
    /// # Errors
    /// As [`from_fd`](Self::from_fd) and [`anonymous`](Self::anonymous). It is a [link](StateError::SymbolicLink), or
    /// [another user's](StateError::ForeignFile).
    pub fn open(path: impl AsRef<Path>, options: &Options<'_>) -> Result<Self> {
        let mut open = File::options();
        open.read(true).write(true).create(true).truncate(false);
        // Where others can put files too, a link may lead to one of ours that is something else.
        open.mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = open.open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => StateError::SymbolicLink,
            _ => system("open the region's file")(error),
        })?;
        let owner = file.metadata().map_err(system("look at the region's file"))?.uid();
        let own = rustix::process::geteuid().as_raw();
        if owner != own && owner != 0 {
            return Err(StateError::ForeignFile { owner, own });
        }
        // Of several who come at once one makes it.
        lock_file(file.as_fd()).map_err(system("lock the region's file"))?;
        let length = length(&file)?;
        if length == 0 {
            make(&file, &Layout::new(options)?, options)?;
        } else if length == PAGE_BYTES {
            // Its maker has died between the two steps; or a part is all that is left.
            finish(&file, options)?;
        }
        let layout = existing(&file, options)?;
        unlock_file(file.as_fd()).map_err(system("unlock the region's file"))?;
        Self::map(Some(file.into()), layout)
    }

    /// The region behind a descriptor that another program has left, or sent.
    ///
    /// # Errors
    /// There is no region in it, or one that these options do not fit; its address is taken.
    pub fn from_fd(file: OwnedFd, options: &Options<'_>) -> Result<Self> {
        let file = File::from(file);
        let layout = existing(&file, options)?;
        Self::map(Some(file.into()), layout)
    }

    fn map(file: Option<OwnedFd>, layout: Layout) -> Result<Self> {
        let address = layout.address;
        let mapping = Mapping::new(file.as_ref().map(AsFd::as_fd), address, layout.size_bytes());
        let mapping = mapping.map_err(|error| match error.raw_os_error() {
            Some(libc::EEXIST) => StateError::AddressTaken { address },
            _ => system("map the region")(error),
        })?;
        // Looked up once in each process, and better now than in a child that was split off while another thread did.
        crate::sys::thread::this_thread();
        Ok(Self { mapping, layout, file })
    }

    /// Whether it has a descriptor, by which a program can have it that is no child of this one. Kernels and sandboxes
    /// without `memfd_create` leave memory that only children inherit.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.file.is_some()
    }

    /// For [`from_fd`](Self::from_fd) in another program. Closed when a program is executed, unless that is changed.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Where it begins, in every process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.layout.address
    }

    /// All of it.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.layout.size_bytes()
    }

    pub(crate) fn words(&self) -> Words<'_> {
        Words::new(self.mapping.words())
    }

    #[inline]
    fn enter_as_it_is(&self) -> Result<View<'_>> {
        let held = lock::lock(self.words().atomic(LOCK)?)?;
        Ok(View::new(self.words(), &self.layout, Some(held)))
    }

    #[inline]
    fn enter(&self) -> Result<View<'_>> {
        let view = self.enter_as_it_is()?;
        view.recover()?;
        Ok(view)
    }

    /// Changes the region: all that `work` does counts when it has returned `Ok`, and nothing of it if it has returned an
    /// error, has panicked, or the process has died. Other transactions wait meanwhile.
    ///
    /// `work` should not wait, and must not split the process by `fork`.
    ///
    /// # Errors
    /// Those of `work`; [`Nested`](StateError::Nested); the region is [damaged](StateError::Damaged).
    pub fn transaction<T, E: From<StateError>>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut transaction = self.begin()?;
        let value = work(&mut transaction)?;
        transaction.commit()?;
        Ok(value)
    }

    /// As [`transaction`](Self::transaction), for those who cannot put their work in a closure: what is done counts when it is
    /// [committed](Transaction::commit), and is taken back when it is dropped.
    ///
    /// # Errors
    /// As [`transaction`](Self::transaction).
    #[inline]
    pub fn begin(&self) -> Result<Transaction<'_>> {
        Transaction::begin(self.enter()?)
    }

    /// Looks at the region, which does not change meanwhile.
    ///
    /// # Errors
    /// As [`transaction`](Self::transaction).
    pub fn read<T, E: From<StateError>>(
        &self,
        work: impl FnOnce(&View<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        work(&self.enter()?)
    }

    /// The number of the last transaction that counts. They are counted from 1, without a gap.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.words().load(COMMITTED).unwrap_or(0)
    }

    /// The application's own data of fixed size, from which it finds everything else: zeroes at first.
    ///
    /// # Errors
    /// [`OutOfBounds`](StateError::OutOfBounds): the options have made the root smaller than that.
    pub fn root<T: Pod>(&self) -> Result<Cell<T>> {
        let root = &self.layout.root;
        super::cell::part(root.start * 8, root.len() * 8, 0, size_of::<T>()).map(Cell::new)
    }

    /// Memory that belongs to no transaction.
    #[must_use]
    pub fn suspect(&self) -> Suspect<'_> {
        Suspect::new(&self.mapping, &self.layout.suspect)
    }

    /// How much of the heap is used, in bytes, and how much there is.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn usage(&self) -> Result<Usage> {
        self.read(|view| {
            let (used, all) = view.heap_usage()?;
            let records = view.load(heap::RECORDS)?;
            Ok(Usage { used_bytes: used.saturating_mul(8), heap_bytes: all * 8, records })
        })
    }

    /// Looks at everything that the region knows of its content: all records, what is free between them, all maps and
    /// pools. Nothing is changed, but what an open transaction of somebody who has died has changed is taken back.
    ///
    /// # Errors
    /// What is [damaged](StateError::Damaged).
    pub fn check(&self) -> Result<()> {
        self.read(|view| view.check())
    }

    /// Takes back what a transaction of somebody who has died has changed, as everybody does who comes next. Whether there was
    /// one.
    ///
    /// That is enough for a region whose transactions are trusted, and takes no longer than the transaction did; whatever
    /// a wild store has damaged is found when it is met, or by a [`check`](Self::check) later on.
    ///
    /// # Errors
    /// The log is [damaged](StateError::Damaged): nothing was overwritten.
    pub fn recover(&self) -> Result<bool> {
        self.enter_as_it_is()?.recover()
    }

    /// Takes the region over from a generation that has died: an open transaction is taken back, everything is
    /// [checked](Self::check), and the [suspect](Self::suspect) part is kept if `inheritance` has it and `verify` finds
    /// nothing wrong. Otherwise it is zeroes. That takes time for each record: see [`recover`](Self::recover).
    ///
    /// `verify` may look at anything, and repair what it can in transactions.
    ///
    /// # Errors
    /// The region is [damaged](StateError::Damaged): nothing was overwritten. To go on without what was in it is for the
    /// application to decide: see [`clear`](Self::clear).
    pub fn adopt<E>(
        &self,
        inheritance: Inheritance,
        verify: impl FnOnce(&Self) -> std::result::Result<(), E>,
    ) -> Result<Adopted> {
        let view = self.enter_as_it_is()?;
        let rolled_back = view.recover()?;
        view.check()?;
        drop(view);
        let is_sound = inheritance == Inheritance::Everything && verify(self).is_ok();
        if !is_sound {
            self.suspect().discard();
        }
        let suspect = if is_sound { SuspectPart::Kept } else { SuspectPart::Discarded };
        Ok(Adopted { rolled_back, suspect })
    }

    /// Forgets everything, in one transaction, also what is damaged: the root is zeroes, the heap is empty, and so is the
    /// suspect part. Handles of records mean nothing any more.
    ///
    /// # Errors
    /// [`Nested`](StateError::Nested); [`TransactionTooLarge`](StateError::TransactionTooLarge): the log is smaller than
    /// the root.
    pub fn clear(&self) -> Result<()> {
        let view = self.enter_as_it_is()?;
        // If even that is damaged, it is forgotten with the rest.
        let _ = view.recover();
        Transaction::clear_all(view)?;
        self.suspect().discard();
        Ok(())
    }

    /// The value of a cell, as the last transaction has left it.
    ///
    /// # Errors
    /// As [`transaction`](Self::transaction).
    pub fn get<T: Pod>(&self, cell: Cell<T>) -> Result<T> {
        self.read(|view| view.get(cell))
    }
}

/// Whether this process has made a region that no other program could have.
static UNNAMED: AtomicBool = AtomicBool::new(false);

/// Whether there is state that another binary would not have.
pub(crate) fn is_lost_by_upgrades() -> bool {
    UNNAMED.load(Ordering::Relaxed)
}

/// Differs from call to call.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> StateError {
    move |source| StateError::System { what, source }
}

fn length(file: &File) -> Result<usize> {
    let length = file.metadata().map_err(system("ask for the size of the region's file"))?.len();
    Ok(usize::try_from(length).unwrap_or(usize::MAX))
}

/// First the page that says what the rest is, then the rest.
fn make(file: &File, layout: &Layout, options: &Options<'_>) -> Result<()> {
    file.write_all_at(&layout.first_page(options), 0).map_err(system("write the region's first page"))?;
    file.set_len(layout.size_bytes() as u64).map_err(system("make the region so large"))
}

/// Gives a new region its size, if its maker has not.
fn finish(file: &File, options: &Options<'_>) -> Result<()> {
    let layout = layout_of(file, usize::MAX, options)?;
    let is_new = layout.first_page(options) == first_page(file)?;
    if is_new {
        file.set_len(layout.size_bytes() as u64).map_err(system("make the region so large"))?;
    }
    Ok(())
}

fn existing(file: &File, options: &Options<'_>) -> Result<Layout> {
    layout_of(file, length(file)?, options)
}

fn layout_of(file: &File, size_bytes: usize, options: &Options<'_>) -> Result<Layout> {
    let page = first_page(file)?;
    let words = page.as_chunks::<8>().0;
    let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word).into()).collect();
    Layout::read(Words::new(&words), size_bytes, options)
}

/// As much of it as there is.
fn first_page(file: &File) -> Result<Vec<u8>> {
    let mut page = vec![0; length(file)?.min(PAGE_BYTES)];
    file.read_exact_at(&mut page, 0).map(|()| page).map_err(system("read the region's first page"))
}

const _: () = assert!(layout::ROOT * 8 == PAGE_BYTES);
