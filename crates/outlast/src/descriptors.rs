//! As many descriptors as the system allows, and a few that are there when all others are in use.

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
