//! The descriptors that another binary is to have as well: which, and what becomes of them there.
//!
//! They are no longer closed when a program is executed, and are to be so again: in the new program, as in the old one if that
//! goes on. What generations have opened is left to the generations of the new program, as by a crash; the rest is the
//! program's own, to be [claimed](claim) by what it is.

use crate::sys::descriptors::{self, Identity, Known};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) number: RawFd,
    identity: Identity,
    /// Programs that are executed do not have it otherwise.
    is_private: bool,
    /// Opened before the server registered, and not by a generation.
    pub(crate) is_known: bool,
}

/// Those that nothing in this program stands for so far; none: nobody has asked.
static UNCLAIMED: Mutex<Option<Vec<Passed>>> = Mutex::new(None);

const IS_PRIVATE: u32 = 1;
const IS_KNOWN: u32 = 2;
/// In a list.
pub(crate) const WORDS: usize = 5;

impl Passed {
    /// Whether the number still means what it did.
    fn is_open(&self) -> bool {
        descriptors::identity_of(self.number) == Some(self.identity)
    }

    pub(crate) fn to_words(self) -> [u32; WORDS] {
        let flags = if self.is_private { IS_PRIVATE } else { 0 } | if self.is_known { IS_KNOWN } else { 0 };
        let [kind, low, high] = self.identity.to_words();
        [self.number.cast_unsigned(), flags, kind, low, high]
    }

    pub(crate) fn from_words([number, flags, kind, low, high]: [u32; WORDS]) -> Self {
        Self {
            number: number.cast_signed(),
            identity: Identity::from_words([kind, low, high]),
            is_private: flags & IS_PRIVATE != 0,
            is_known: flags & IS_KNOWN != 0,
        }
    }
}

/// What is to pass: all that generations have opened, as the next one finds that after a crash, too; and of what was there
/// before them sockets, memory, and what every program has that is executed.
pub(crate) fn find(known: &Known) -> io::Result<Vec<Passed>> {
    let passed = |(number, identity): (RawFd, Identity)| {
        let is_private = descriptors::is_private(number);
        let is_known = known.get(&number) == Some(&identity);
        let passes = !is_private
            || !is_known
            || identity.is_socket()
            || identity.is_file() && descriptors::memory_name(number).is_some();
        passes.then_some(Passed { number, identity, is_private, is_known })
    };
    Ok(descriptors::open_with_identities()?.into_iter().filter_map(passed).collect())
}

/// Before the program is executed.
pub(crate) fn let_pass(all: &[Passed]) {
    all.iter().for_each(|passed| descriptors::set_inherited(passed.number));
}

/// When one was, or could not be.
pub(crate) fn keep(all: &[Passed]) {
    let private = all.iter().filter(|passed| passed.is_private && passed.is_open());
    private.for_each(|passed| descriptors::set_private(passed.number));
}

/// What the generations of this program are to find. What is left of the rest can be claimed as before.
pub(crate) fn leave_to_generations(all: Vec<Passed>) -> BTreeSet<RawFd> {
    let mut unclaimed = UNCLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    opened_later(unclaimed.get_or_insert(all))
}

/// The first one that fits and that nobody has claimed: it is this program's own from now on, and nothing for others.
pub(crate) fn claim(
    left: impl FnOnce() -> Vec<Passed>,
    fits: impl FnMut(RawFd, Identity) -> bool,
) -> Option<OwnedFd> {
    let mut unclaimed = UNCLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    take(unclaimed.get_or_insert_with(left), fits)
}

fn opened_later(unclaimed: &mut Vec<Passed>) -> BTreeSet<RawFd> {
    let later = unclaimed.extract_if(.., |passed| !passed.is_known);
    later.filter(Passed::is_open).map(|passed| passed.number).collect()
}

fn take(unclaimed: &mut Vec<Passed>, mut fits: impl FnMut(RawFd, Identity) -> bool) -> Option<OwnedFd> {
    let fits = |passed: &Passed| passed.is_open() && fits(passed.number, passed.identity);
    let found = unclaimed.iter().position(fits)?;
    let number = unclaimed.remove(found).number;
    descriptors::set_private(number);
    descriptors::own(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn what_was_left_is_claimed_once_and_only_if_it_still_is_what_it_was() {
        let [listener, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let number = listener.into_raw_fd();
        let identity = descriptors::identity_of(number).unwrap();
        let passed = Passed { number, identity, is_private: true, is_known: false };
        assert_eq!(Passed::from_words(passed.to_words()), passed);
        let another = Passed { number: other.as_raw_fd(), ..passed };
        let_pass(&[passed, another]);
        assert!(![number, other.as_raw_fd()].into_iter().any(descriptors::is_private));
        keep(&[passed, another]);
        assert_eq!([number, other.as_raw_fd()].map(descriptors::is_private), [true, false]);
        let mut unclaimed = vec![another, passed];
        assert_eq!(opened_later(&mut unclaimed.clone()), [number].into());
        let claimed = take(&mut unclaimed, |_, identity| identity.is_socket()).unwrap();
        assert_eq!(claimed.as_raw_fd(), number);
        assert!(take(&mut unclaimed, |_, _| true).is_none());
        assert!(opened_later(&mut unclaimed).is_empty());
    }
}
