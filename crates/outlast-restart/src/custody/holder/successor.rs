//! In the holder: who goes on when the program's main process has ended in order.

use super::Holder;
use crate::sys::family;
use crate::sys::process::{self, Pid};
use std::path::PathBuf;

/// Who that is, as far as listening sockets tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Successor {
    /// Another process than the main one had listened, and has died: what is left is not the server.
    Nobody,
    /// It runs the same program and listens there, though it has not loaded the library: nginx empties the environment of
    /// the binary that is to succeed it.
    Process(Pid),
    /// They do not tell.
    Unknown,
}

impl Holder {
    pub(super) fn successor(&self, ended: Pid) -> Successor {
        let processes = family::below_this();
        let used = self.listeners.used_by(&processes);
        if self.listeners.has_died_with(ended, &used) {
            return Successor::Nobody;
        }
        let is_it = |pid: &Pid| {
            self.program.is_some()
                && program_of(*pid) == self.program
                && !self.listeners.used_by(&family::and_below(*pid)).is_empty()
        };
        family::children(process::pid())
            .into_iter()
            .find(is_it)
            .map_or(Successor::Unknown, Successor::Process)
    }
}

/// The file that it has executed.
pub(super) fn program_of(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}
