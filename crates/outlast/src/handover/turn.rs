//! One process at a time looks for what others have left at a port, and begins to listen there.
//!
//! Two that do so at once would both find the port free, and only one of them gets the sessions: the other would tell the
//! clients that there are none. The turn is a socket with an abstract name. It is there once in a network namespace,
//! whatever folders a process can write to, and ends with its process, whatever ends that.

use super::keeper::is_own;
use super::owner;
use crate::admin_folder::own_uid;
use crate::exit::Failure;
use anyhow::Result;
use outlast_restart::credentials::Peer;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The process that has the turn waits for one that stops and for those that keep sessions, for 30 s each; it has two
/// of the latter at the most, as a rule.
const TURN_WITHIN: Duration = Duration::from_secs(120);

/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(5);

/// A socket that has the name and refuses connections at so many looks, one after the other, is a stranger's: any local user can
/// bind the name, and processes of this user listen at once. About a second; looks are counted, as this process may stand still.
const REFUSALS_OF_A_STRANGER: u32 = 200;

/// The right to begin to listen at a port. Until it is dropped all others of this user wait.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held until it is dropped")] OwnedFd);

/// Who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// A process of this user, if that is known.
    Own(Option<i32>),
    /// Another user's process: that does not have our sessions.
    Foreign,
    /// It has the name and does not listen, or has just gone.
    Mute,
}

impl Turn {
    /// Waits for the turns at all these ports. Blocks.
    ///
    /// # Errors
    /// A process has one and does not get on.
    pub fn take_all(ports: impl IntoIterator<Item = u16>) -> Result<Vec<Self>> {
        // In order: two processes with several ports never wait for each other.
        let ports: std::collections::BTreeSet<u16> = ports.into_iter().filter(|port| *port != 0).collect();
        let taken: Result<Vec<Option<Self>>> = ports.into_iter().map(Self::take).collect();
        Ok(taken?.into_iter().flatten().collect())
    }

    fn take(port: u16) -> Result<Option<Self>> {
        Self::take_within(&name(port), TURN_WITHIN).map_err(|holder| {
            let holder = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            Failure::system(format!(
                "cannot listen on port {port}: {holder} is about to, and does not get on; end it, or wait for it"
            ))
        })
    }

    /// None where there are no such sockets, or another user has it, or seems to. The error: the holder, if that is in vain.
    fn take_within(name: &[u8], limit: Duration) -> Result<Option<Self>, Option<i32>> {
        let started = Instant::now();
        let (mut asked, mut refusals) = (false, 0);
        loop {
            match occupy(name) {
                Ok(socket) => return Ok(Some(Self(socket))),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => {
                    tracing::debug!("cannot tell other processes that this one begins to listen: {error}");
                    return Ok(None);
                }
            }
            let over = started.elapsed() >= limit;
            // Rarely: nobody accepts these connections. Those that are refused leave nothing behind.
            if over || !asked || refusals > 0 {
                asked = true;
                match holder(name) {
                    Holder::Foreign => return Ok(None),
                    Holder::Mute => {
                        refusals += 1;
                        if refusals >= REFUSALS_OF_A_STRANGER {
                            tracing::warn!(
                                "another program has bound the abstract UNIX socket @{} and does not listen; going on without it",
                                String::from_utf8_lossy(name)
                            );
                            return Ok(None);
                        }
                        if over {
                            return Err(None);
                        }
                    }
                    Holder::Own(pid) if over => return Err(pid),
                    Holder::Own(_) => refusals = 0,
                }
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Of this user: others have sessions of their own.
fn name(port: u16) -> Vec<u8> {
    format!("outlast/listen/{}/{port}", own_uid()).into_bytes()
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn occupy(name: &[u8]) -> std::io::Result<OwnedFd> {
    let socket = unix_socket()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    // To be asked who has it.
    listen(&socket, 16)?;
    Ok(socket)
}

fn holder(name: &[u8]) -> Holder {
    let ask = || {
        let socket = unix_socket()?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        let pid = Peer::of(&socket).ok().and_then(|peer| peer.pid);
        rustix::io::Result::Ok((is_own(&socket), pid))
    };
    match ask() {
        Ok((true, pid)) => Holder::Own(pid),
        Ok((false, _)) => Holder::Foreign,
        Err(rustix::io::Errno::CONNREFUSED) => Holder::Mute,
        // Its queue of connections is full: it was asked often, or wants to look like that.
        Err(_) => match owner::of_listener(name) {
            Some(user) if user != own_uid() && user != 0 => Holder::Foreign,
            _ => Holder::Own(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn one_at_a_time_has_the_turn() {
        let name = format!("outlast/test/{}", std::process::id()).into_bytes();
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
        let name = format!("outlast/test-held/{}", std::process::id()).into_bytes();
        let turn = Turn::take_within(&name, TURN_WITHIN).unwrap().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(Turn::take_within(&name, Duration::ZERO).unwrap_err(), Some(own));
        drop(turn);
        assert!(Turn::take_within(&name, Duration::ZERO).unwrap().is_some());
    }

    /// A socket that has the name, and that cannot be asked whose it is.
    fn bound(name: &[u8]) -> OwnedFd {
        let socket = unix_socket().unwrap();
        bind(&socket, &SocketAddrUnix::new_abstract_name(name).unwrap()).unwrap();
        socket
    }

    /// Any local user can bind the name. A process of ours that has bound it listens at once.
    #[test]
    fn a_name_whose_socket_never_listens_keeps_nobody_waiting() {
        let name = format!("outlast/test-squatted/{}", std::process::id()).into_bytes();
        let _squatter = bound(&name);
        assert!(Turn::take_within(&name, TURN_WITHIN).unwrap().is_none());
    }

    #[test]
    fn a_process_of_ours_that_listens_a_moment_later_has_the_turn() {
        let name = format!("outlast/test-late/{}", std::process::id()).into_bytes();
        let socket = bound(&name);
        let own = i32::try_from(std::process::id()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(LOOK * REFUSALS_OF_A_STRANGER / 4);
                listen(&socket, 16).unwrap();
            });
            assert_eq!(Turn::take_within(&name, 2 * LOOK * REFUSALS_OF_A_STRANGER).unwrap_err(), Some(own));
        });
    }

    /// One process listens at several addresses of one port: it has one turn for all of them.
    #[test]
    fn a_port_that_is_named_twice_is_one_turn() {
        let port = 1;
        assert_eq!(Turn::take_all([port, 0, port]).unwrap().len(), 1);
    }
}
