//! As many descriptors as the system allows, and a few that are there when all others are in use.

use crate::exit::Failure;
use anyhow::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;

/// What starting a process to keep sessions takes, several times over. A listener more takes one more.
const SPARE: usize = 16;

/// Every stream takes two descriptors or more. The soft limit is low for the sake of programs that use `select`, which
/// this one does not.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
}

/// How many local programs may be carried at a time. Each takes a descriptor, and one for its link, which has to be there when
/// a server comes back for all of them. A few are for the process itself, and an eighth for what moves much at a time. Where there are
/// listeners, they take what they need up to three quarters.
pub fn programs_max(has_listeners: bool) -> usize {
    const OWN: u64 = 48;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(OWN);
    let sixteenths = if has_listeners { 3 } else { 7 };
    usize::try_from(limit / 16 * sixteenths).unwrap_or(usize::MAX).max(1)
}

/// That this process can open so many files more. Some libraries panic where that fails.
///
/// # Errors
/// It cannot: what to do.
pub fn require(count: usize, what: &str) -> Result<()> {
    let opened: Vec<File> = (0..count).map_while(|_| File::open("/dev/null").ok()).collect();
    if opened.len() == count {
        return Ok(());
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or_default();
    Err(Failure::system(format!(
        "{what} cannot open as many files as it needs ({} more): the limit is {limit}, raise it (ulimit -n, in a unit \
         LimitNOFILE)",
        count - opened.len()
    )))
}

/// Descriptors that nothing else can take until this is dropped.
#[derive(Debug)]
pub struct Spare {
    _held: Vec<File>,
}

impl Spare {
    /// Takes those there are now.
    pub fn take() -> Self {
        Self { _held: (0..SPARE).map_while(|_| File::open("/dev/null").ok()).collect() }
    }
}
