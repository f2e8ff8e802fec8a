//! Everything unsafe of this crate: bpf(2), for which there is no small library, and memory that is shared with the kernel.

#![allow(unsafe_code)]

use super::program::Instruction;
use super::{ENTRY_BYTES, Entry};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::c_void;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null_mut};

/// Commands of bpf(2), and what is created or loaded with them (linux/bpf.h).
const CREATE_MAP: libc::c_int = 0;
const LOAD_PROGRAM: libc::c_int = 5;
const MAP_ARRAY: u32 = 2;
const MAP_CAN_BE_SHARED: u32 = 1 << 10;
const PROGRAM_SOCKET_FILTER: u32 = 1;

/// What CREATE_MAP reads.
#[repr(C)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

/// What LOAD_PROGRAM reads: a zero behind that stands for no more wishes.
#[repr(C)]
struct LoadProgram {
    kind: u32,
    instructions_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

fn bpf<T>(command: libc::c_int, wishes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads as many bytes as the call says of a structure of integers without gaps, and what its pointers point to lives until
    // this returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(wishes), size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for this call alone. It closes with exec (bpf(2)).
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Entries of so many bytes, numbered from 0, all zero.
pub(super) fn create_array(entry_bytes: usize, entries_max: u32) -> io::Result<OwnedFd> {
    let value_bytes = u32::try_from(entry_bytes).map_err(io::Error::other)?;
    let flags = MAP_CAN_BE_SHARED;
    let wishes = CreateMap { kind: MAP_ARRAY, key_bytes: 4, value_bytes, entries_max, flags };
    match bpf(CREATE_MAP, &wishes) {
        // Before Linux 5.11 it counts as locked memory, of which there is little by default.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let before = getrlimit(Resource::Memlock);
            setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
            let created = bpf(CREATE_MAP, &wishes);
            setrlimit(Resource::Memlock, before)?;
            created
        }
        created => created,
    }
}

/// Has the kernel verify and take a program that says of a packet whether it matches.
pub(super) fn load_socket_filter(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let wishes = LoadProgram {
        kind: PROGRAM_SOCKET_FILTER,
        instructions_count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
    };
    bpf(LOAD_PROGRAM, &wishes)
}

/// Memory that is shared with the kernel, until this is dropped.
#[derive(Debug)]
pub(super) struct Memory {
    at: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: it is an area of memory that no thread owns, and is read and written as atomic integers alone.
unsafe impl Send for Memory {}

impl Memory {
    /// All entries of an array.
    pub(super) fn map(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the place, so nothing else is there.
        let at =
            unsafe { mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, map, 0)? };
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, bytes })
    }

    /// The entry of that number.
    pub(super) fn entry(&self, number: usize) -> Option<&Entry> {
        let at = number.checked_mul(ENTRY_BYTES)?;
        (at + ENTRY_BYTES <= self.bytes).then(|| {
            // SAFETY: it is within the area, which lives as long as `self`, begins at a page, and has entries of this size one behind the
            // other. Any bits are such an entry, and all its parts are atomic, as the kernel reads them meanwhile.
            unsafe { self.at.byte_add(at).cast::<Entry>().as_ref() }
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the area is this value's alone, and nothing is borrowed of it any more.
        if let Err(error) = unsafe { munmap(self.at.as_ptr(), self.bytes) } {
            debug_assert!(false, "{error}");
        }
    }
}
