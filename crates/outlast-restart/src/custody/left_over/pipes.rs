//! Which processes read what others write into pipes, as a program does that writes a server's log.

use crate::sys::process::Pid;
use crate::sys::reserve;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A process may read from it: the permissions of its link say so (proc(5), `/proc/PID/fd`).
const READS: u32 = 0o400;
const WRITES: u32 = 0o200;

/// The pipes that a process has open, by their inodes.
fn pipes(pid: Pid, how: u32) -> BTreeSet<u64> {
    let folder = format!("/proc/{pid}/fd");
    let names = reserve::names(&folder).unwrap_or_default();
    let pipe = |name: &std::ffi::OsString| {
        let path = Path::new(&folder).join(name);
        let link = std::fs::read_link(&path).ok()?;
        let inode = link.to_str()?.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok()?;
        let mode = std::fs::symlink_metadata(&path).ok()?.permissions().mode();
        (mode & how != 0).then_some(inode)
    };
    names.iter().filter_map(pipe).collect()
}

/// Those of `all` that read what one of these writes.
pub(super) fn readers(all: &[Pid], writers: impl Iterator<Item = Pid>) -> Vec<Pid> {
    if all.is_empty() {
        return Vec::new();
    }
    let written: BTreeSet<u64> = writers.flat_map(|pid| pipes(pid, WRITES)).collect();
    all.iter().copied().filter(|pid| !pipes(*pid, READS).is_disjoint(&written)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process;
    use std::process::{Command, Stdio};

    #[test]
    fn who_reads_what_another_writes_is_found_and_who_writes_too_is_not() {
        let sleep = |input: Stdio, output: Stdio| {
            Command::new("sleep").arg("60").stdin(input).stdout(output).spawn().unwrap()
        };
        let mut reader = sleep(Stdio::piped(), Stdio::null());
        let input = reader.stdin.take().unwrap();
        let writer = sleep(Stdio::null(), input.into());
        let other = sleep(Stdio::piped(), Stdio::piped());
        let mut all = [reader, writer, other];
        let [reads, writes, does_not] = all.each_ref().map(|child| Pid::try_from(child.id()).unwrap());
        assert_eq!(readers(&[reads, writes, does_not], [writes].into_iter()), [reads]);
        assert!(readers(&[reads, writes, does_not], [reads].into_iter()).is_empty());
        assert_eq!(readers(&[does_not, reads], [process::pid()].into_iter()), [does_not]);
        for child in &mut all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
