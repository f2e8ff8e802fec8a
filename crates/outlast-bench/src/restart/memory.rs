//! The memory of a service: of all its processes together, with what they share counted once.

use crate::process;
use std::fs;

/// What all processes of a service use together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident, each page once (`Pss`).
    pub resident_bytes: u64,
    /// Of that, what is not of files: it is used by nobody else.
    pub anonymous_bytes: u64,
}

/// Of the process `pid` and all below it.
pub fn of_service(pid: u32) -> Memory {
    let mut sum = Memory::default();
    for pid in process::family(pid) {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let bytes = |name: &str| process::field(&text, name).unwrap_or(0) * 1024;
        sum.resident_bytes += bytes("Pss:");
        sum.anonymous_bytes += bytes("Pss_Anon:") + bytes("Pss_Shmem:");
    }
    sum
}
