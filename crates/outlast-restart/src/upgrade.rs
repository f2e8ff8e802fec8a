//! Another binary for a server that serves: by the same road as a crash, with a new program at its end.
//!
//! The zygote ends who serves, leaves a [list](crate::handover) of what there is, and executes the new program: as the same
//! process, with the same descriptors. A copy of it waits until that has registered; if it does not in time, or the wish is
//! withdrawn, the copy goes on as the zygote of the old one. So clients wait while the new program begins, and notice nothing else.

use crate::board::{Board, UpgradeEnd, WhyNot};
use crate::handover;
use crate::sys::descriptors;
use std::ffi::{CString, OsStr};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two looks at whether the wish still holds.
const LOOK: Duration = Duration::from_millis(20);

/// The number of the wish that is to be carried out now, and the binary. What cannot be begun has failed.
pub(crate) fn wanted(board: &Board) -> Option<(u32, PathBuf)> {
    let wish = board.upgrade_wanted()?;
    let path = if wish.program.as_os_str().is_empty() { own() } else { Ok(wish.program) };
    let path = path.and_then(|path| crate::sys::process::can_execute(&path).map(|()| path));
    let begun = match (board.upgrade_is_over(wish.number), path) {
        (Some(why), _) => Err(why),
        (None, _) if crate::state::is_lost_by_upgrades() => {
            crate::zygote::say(
                "no upgrade: another binary would not have its state, as memfd_create is forbidden here, or missing",
            );
            Err(WhyNot::Unable)
        }
        (None, Ok(path)) => Ok((wish.number, path)),
        (None, Err(error)) => Err(cannot_run(&error)),
    };
    begun.map_err(|why| board.note_upgrade(wish.number, UpgradeEnd::untouched(why))).ok()
}

pub(crate) fn cannot_run(error: &io::Error) -> WhyNot {
    WhyNot::CannotRun { code: error.raw_os_error().unwrap_or(libc::EIO) }
}

/// The file that this program was started from, or what is there by now.
fn own() -> io::Result<PathBuf> {
    let path = std::fs::read_link("/proc/self/exe")?;
    let path = path.as_os_str().as_bytes();
    Ok(OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path)).into())
}

/// Executes the program in place of this one, with the arguments of this one. Returns why it cannot.
pub(crate) fn execute(path: &Path, list: RawFd) -> io::Error {
    let terminated = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
    let command_line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments: Vec<CString> = command_line
        .strip_suffix(b"\0")
        .unwrap_or_default()
        .split(|&byte| byte == 0)
        .map(terminated)
        .collect();
    let known = std::env::vars_os().filter(|(name, _)| name != handover::ENVIRONMENT);
    let known = known.map(|(name, value)| terminated(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
    let list = terminated(format!("{}={list}", handover::ENVIRONMENT).as_bytes());
    let environment: Vec<CString> = known.chain([list]).collect();
    crate::sys::process::execute(&terminated(path.as_os_str().as_bytes()), &arguments, &environment)
}

/// Until the new program registers, or why it is waited for no longer.
pub(crate) fn await_ready(reader: OwnedFd, board: &Board, wish: u32) -> Result<(), WhyNot> {
    while !descriptors::wait_readable(&reader, LOOK) {
        if let Some(why) = board.upgrade_is_over(wish) {
            return Err(why);
        }
    }
    match std::fs::File::from(reader).read(&mut [0]) {
        Ok(1) => Ok(()),
        _ => Err(WhyNot::Ended { death: None }),
    }
}

/// Memory of this name that was left by the binary before, if there was one.
pub(crate) fn left_memory(name: &str) -> Option<OwnedFd> {
    handover::claim(|number, identity| {
        identity.is_file() && descriptors::memory_name(number).is_some_and(|known| known == name)
    })
}

/// Whether a socket at `local` is one for `wanted`, where port 0 is any.
fn fits(wanted: SocketAddr, local: SocketAddr) -> bool {
    wanted.ip() == local.ip() && (wanted.port() == 0 || wanted.port() == local.port())
}

/// Listens at `address`, or takes the socket over that listens there, where this process goes on for another binary. What was
/// taken over is not there for a second call.
///
/// # Errors
/// As for `bind`.
pub fn listen(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let addresses: Vec<_> = address.to_socket_addrs()?.collect();
    let fitting = handover::claim(|number, identity| {
        let local = if identity.is_socket() { descriptors::listens_at(number) } else { None };
        local.is_some_and(|local| addresses.iter().any(|wanted| fits(*wanted, local)))
    });
    if let Some(left) = fitting {
        return Ok(left.into());
    }
    TcpListener::bind(addresses.as_slice())
}
