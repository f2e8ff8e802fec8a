//! The state of a server in C: a map in a region, and requests that change it exactly once.

use crate::error::{give, own};
use crate::{count, given, room, table};
use outlast_restart::Generation;
use outlast_restart::state::{Cell, Map, Options, Region, StateError, Transaction, bytemuck, field};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::sync::{Arc, OnceLock};

/// What is in the region: a program in Rust that has the same finds the same.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[bytemuck(crate = "bytemuck")]
#[repr(C)]
struct Root {
    /// By which the library knows which requests were dealt with.
    served: u64,
    map: Map,
}

/// Made before there are generations: all of them have it.
static REGION: OnceLock<Arc<Region>> = OnceLock::new();

/// `struct outlast_change`: a change of the state that is under way.
#[derive(Debug)]
pub struct Change<'a, 't> {
    transaction: &'a mut Transaction<'t>,
    map: Map,
    answer: Vec<u8>,
}

fn for_c(error: StateError) -> io::Error {
    match error {
        StateError::System { what, source } => {
            own(source.raw_os_error().unwrap_or(libc::EIO), format!("cannot {what}: {source}"))
        }
        StateError::OutOfSpace { .. }
        | StateError::TransactionTooLarge { .. }
        | StateError::NoRoomForAnswer { .. } => own(libc::ENOSPC, error.to_string()),
        StateError::AnswerTooLong { .. } => own(libc::EMSGSIZE, error.to_string()),
        StateError::NotAttached => {
            own(libc::ENODEV, "there is no state: call outlast_state_make before outlast_register".to_owned())
        }
        error => own(libc::EINVAL, error.to_string()),
    }
}

fn root(region: &Region) -> Result<(Cell<u64>, Cell<Map>), StateError> {
    let root = region.root::<Root>()?;
    Ok((field!(root, Root, served)?, field!(root, Root, map)?))
}

fn make(name: &CStr, size: usize) -> io::Result<()> {
    if crate::serving().is_some() {
        return Err(own(libc::EALREADY, "call outlast_state_make before outlast_register".to_owned()));
    }
    let already = || own(libc::EALREADY, "there is a state already".to_owned());
    if REGION.get().is_some() {
        return Err(already());
    }
    let size_bytes = if size == 0 { Options::default().size_bytes } else { size };
    let options = Options { layout: "outlast-c-map", size_bytes, ..Options::default() };
    let region = Region::anonymous(&name.to_string_lossy(), &options).map_err(for_c)?;
    REGION.set(Arc::new(region)).map_err(|_| already())
}

/// What every generation begins with.
pub(crate) fn attach(generation: &Generation) -> io::Result<()> {
    let Some(region) = REGION.get() else { return Ok(()) };
    let attached = || -> Result<(), StateError> {
        let (served, map) = root(region)?;
        generation.attach(Arc::clone(region), served)?;
        region.transaction(|tx| {
            if tx.get(map)?.is_none() {
                let new = Map::create(tx)?;
                tx.set(map, new)?;
            }
            Ok(())
        })
    };
    attached().map_err(for_c)
}

/// Why a change was not made.
enum Failure {
    State(StateError),
    System(io::Error),
    /// The program did not want it.
    Undone,
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// See `outlast.h`.
///
/// # Safety
/// `name` is a string that ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_state_make(name: *const c_char, size: usize) -> c_int {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    give(make(name, size).map(|()| 0))
}

/// See `outlast.h`.
///
/// # Safety
/// `change` may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_transact(
    fd: c_int,
    size: usize,
    change: unsafe extern "C" fn(*mut Change<'_, '_>, *mut c_void) -> c_int,
    argument: *mut c_void,
) -> c_int {
    let made = table::held(fd, |connection| {
        let result = connection.transact(size, |transaction| {
            let region = REGION.get().ok_or(StateError::NotAttached)?;
            let map = transaction.get(root(region)?.1)?;
            let mut under_way = Change { transaction, map, answer: Vec::new() };
            // SAFETY: as the caller promises; what it is given lives as long as the call.
            if table::changing(|| unsafe { change(&raw mut under_way, argument) }) != 0 {
                return Err(Failure::Undone);
            }
            Ok(under_way.answer)
        });
        match result {
            Ok(()) => Ok(0),
            Err(Failure::Undone) => Ok(1),
            Err(Failure::State(error)) => Err(for_c(error)),
            Err(Failure::System(error)) => Err(error),
        }
    });
    give(made)
}

/// See `outlast.h`.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_flush(fd: c_int) -> c_int {
    give(table::held(fd, |connection| connection.flush().map(|()| 0)))
}

/// See `outlast.h`.
///
/// # Safety
/// `change` is the one that is under way; `size` bytes can be read at `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_answer(change: *mut Change<'_, '_>, bytes: *const c_void, size: usize) {
    // SAFETY: as the caller promises.
    unsafe { (*change).answer.extend_from_slice(given(bytes, size)) };
}

/// See `outlast.h`.
///
/// # Safety
/// `change` is the one that is under way; there are `key_size` bytes at `key`, and room for `size` at `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_state_get(
    change: *mut Change<'_, '_>,
    key: *const c_void,
    key_size: usize,
    value: *mut c_void,
    size: usize,
) -> isize {
    // SAFETY: as the caller promises.
    let (change, key, room) = unsafe { (&*change, given(key, key_size), room(value, size)) };
    count(change.map.get(change.transaction, key).map_err(for_c).and_then(|value| {
        let value = value.ok_or_else(|| own(libc::ENOENT, "nothing has this key".to_owned()))?;
        for (to, from) in room.iter_mut().zip(value) {
            *to = *from;
        }
        Ok(value.len())
    }))
}

/// See `outlast.h`.
///
/// # Safety
/// `change` is the one that is under way; there are as many bytes at `key` and `value` as is said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_state_put(
    change: *mut Change<'_, '_>,
    key: *const c_void,
    key_size: usize,
    value: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let (change, key, value) = unsafe { (&mut *change, given(key, key_size), given(value, size)) };
    give(change.map.insert(change.transaction, key, value).map_err(for_c).map(|_| 0))
}

/// See `outlast.h`.
///
/// # Safety
/// `change` is the one that is under way; there are `key_size` bytes at `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_state_remove(
    change: *mut Change<'_, '_>,
    key: *const c_void,
    key_size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let (change, key) = unsafe { (&mut *change, given(key, key_size)) };
    give(change.map.remove(change.transaction, key).map_err(for_c).map(c_int::from))
}
