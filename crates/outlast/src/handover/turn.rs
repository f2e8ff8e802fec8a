//! One listener at a time looks for what others have left at a port, and begins to listen there.
//!
//! Two that do so at once would both find the port free, and only one of them gets the sessions: the other would tell the
//! clients that there are none. The turn is a lock on a file, which ends with its process, whatever ends that.

use super::places;
use crate::admin_folder;
use crate::exit::Failure;
use anyhow::Result;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Whoever has the turn waits for a process that stops and one that keeps sessions, each for 30 s at the most.
const TURN_WITHIN: Duration = Duration::from_secs(60);

/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(5);

/// The right to begin to listen at a port. Until it is dropped all others wait.
#[derive(Debug)]
pub struct Turn {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Turn {
    /// Waits for it. None where there is no place for it: then nothing can have been left there either.
    ///
    /// # Errors
    /// Somebody has it and does not get on.
    pub fn take(port: u16) -> Result<Option<Self>> {
        Self::take_within(&places::turn_name(port), TURN_WITHIN).map_err(|holder| {
            let holder = holder.trim();
            Failure::system(format!(
                "cannot listen on port {port}: process {holder} is about to, and does not get on; end it, or wait for it"
            ))
        })
    }

    /// What the holder says of itself, if that is in vain.
    fn take_within(name: &str, limit: Duration) -> Result<Option<Self>, String> {
        let started = Instant::now();
        loop {
            let Ok((path, file)) = admin_folder::open_file(name) else { return Ok(None) };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The one before removes it: another file may be there by now.
                Ok(()) if is_at(&file, &path) => {
                    (&file).write_all(format!("{}\n", std::process::id()).as_bytes()).ok();
                    return Ok(Some(Self { path, _file: file }));
                }
                Ok(()) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    if started.elapsed() >= limit {
                        return Err(std::fs::read_to_string(&path).unwrap_or_default());
                    }
                    std::thread::sleep(LOOK);
                }
                Err(error) => {
                    tracing::debug!("cannot lock {}: {error}", path.display());
                    return Ok(None);
                }
            }
        }
    }
}

/// Whether this file has that name.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Before the lock is gone: nobody else's file is removed.
        admin_folder::remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn one_at_a_time_has_the_turn() {
        let name = format!("test-{}.turn", std::process::id());
        let (taken, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let turn = Turn::take_within(&name, TURN_WITHIN).unwrap().unwrap();
                        assert!(!taken.swap(true, Ordering::SeqCst), "two have it");
                        turns.fetch_add(1, Ordering::SeqCst);
                        taken.store(false, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(turns.into_inner(), 200);
    }

    #[test]
    fn who_waits_in_vain_hears_who_has_it() {
        let name = format!("test-{}-held.turn", std::process::id());
        let turn = Turn::take_within(&name, TURN_WITHIN).unwrap().unwrap();
        let holder = Turn::take_within(&name, Duration::ZERO).unwrap_err();
        assert_eq!(holder.trim(), std::process::id().to_string());
        let path = turn.path.clone();
        drop(turn);
        assert!(!path.exists());
        assert!(Turn::take_within(&name, Duration::ZERO).unwrap().is_some());
    }
}
