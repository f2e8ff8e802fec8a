//! Which process the kernel kills when memory runs out.

use super::reserve;
use std::fs::OpenOptions;
use std::io::{self, Write};

/// What the kernel adds to a process's share of the memory, in thousandths of all of it (proc_pid_oom_score_adj(5)).
const FILE: &str = "/proc/self/oom_score_adj";
const ADJUSTMENT_MAX: i32 = 1000;
/// One per cent of the memory: more than a zygote and a generation that has just begun differ by.
const RAISED_BY: i32 = 10;

/// Has the kernel kill this process rather than the one that it was split off from, where both use as much memory. Raising
/// that takes no privilege.
pub(crate) fn prefer_me() -> io::Result<()> {
    let present = reserve::read(FILE)?.trim().parse::<i32>().map_err(io::Error::other)?;
    let raised = (present + RAISED_BY).min(ADJUSTMENT_MAX);
    reserve::with(|| OpenOptions::new().write(true).open(FILE)?.write_all(raised.to_string().as_bytes()))
}
