//! By which name a supervisor and the holder below it are found: one at a time has it, and it is free as soon as that one
//! has ended, however.

use crate::sys::custody as sys;
use crate::sys::process::{self, Pid};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Programs that may wait for an answer.
const BACKLOG: i32 = 4096;
/// Most bytes of a name in the kernel's space.
const BYTES_MAX: usize = 100;

/// Names that are tried. The first one is free, unless somebody guesses it.
const ATTEMPTS_MAX: usize = 4;

/// A name that this process has, for as long as it lives.
#[derive(Debug)]
pub struct Name {
    text: String,
    socket: OwnedFd,
}

/// Why a name cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Taken {
    /// Another supervisor has it.
    #[error("process {pid} has it")]
    By {
        /// Which.
        pid: u32,
    },
    /// The system does not let us.
    #[error(transparent)]
    System(#[from] io::Error),
}

fn new() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Who listens there, if that is a process of this user's.
fn owner(address: &SocketAddrUnix) -> Option<Pid> {
    let socket = new().ok()?;
    connect(&socket, address).ok()?;
    let (pid, user) = sys::peer_of(socket.as_fd())?;
    (user == rustix::process::geteuid().as_raw()).then_some(pid)
}

impl Name {
    /// Takes the name, for this user, and among the processes that can see each other.
    ///
    /// # Errors
    /// [`Taken`].
    pub fn take(name: &str) -> Result<Self, Taken> {
        let world = process::world();
        let user = rustix::process::geteuid().as_raw();
        let text = format!("outlast/run/{world}/{user}/{name}");
        if text.len() > BYTES_MAX {
            return Self::any();
        }
        let address = SocketAddrUnix::new_abstract_name(text.as_bytes()).map_err(io::Error::from)?;
        match Self::bind(text, &address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match owner(&address) {
                Some(pid) => Err(Taken::By { pid: pid.cast_unsigned() }),
                // Somebody else's: a name of our own does as well.
                None => Self::any(),
            },
            bound => Ok(bound?),
        }
    }

    /// A name that nobody else has.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn any() -> Result<Self, Taken> {
        for _ in 0..ATTEMPTS_MAX {
            // Containers that share a network have the same process numbers, and any local user can take a name that is known before:
            // the standard library draws these keys from the kernel.
            let token = RandomState::new().build_hasher().finish();
            let text = format!("outlast/run/{}/{token:016x}", process::pid());
            let address = SocketAddrUnix::new_abstract_name(text.as_bytes()).map_err(io::Error::from)?;
            match Self::bind(text, &address) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => return Ok(bound?),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EADDRINUSE).into())
    }

    fn bind(text: String, address: &SocketAddrUnix) -> io::Result<Self> {
        let socket = new()?;
        bind(&socket, address)?;
        listen(&socket, BACKLOG)?;
        Ok(Self { text, socket })
    }

    pub(super) fn into_parts(self) -> (String, OwnedFd) {
        (self.text, self.socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_owner_until_that_is_gone() {
        let name = format!("a name of {}", process::pid());
        let first = Name::take(&name).unwrap();
        assert!(matches!(Name::take(&name), Err(Taken::By { pid }) if pid == std::process::id()));
        drop((Name::any().unwrap(), Name::any().unwrap()));
        drop(first);
        Name::take(&name).unwrap();
    }

    /// Other containers of the same network, or another user.
    #[test]
    fn names_that_can_be_guessed_are_nobodys_obstacle() {
        let taken: Vec<Name> = (0..64)
            .map(|number| {
                let text = format!("outlast/run/{}/{number}", process::pid());
                let address = SocketAddrUnix::new_abstract_name(text.as_bytes()).unwrap();
                Name::bind(text, &address).unwrap()
            })
            .collect();
        let own = Name::any().unwrap();
        assert!(taken.iter().all(|name| name.text != own.text));
    }
}
