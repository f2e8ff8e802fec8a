//! Whether this node's server lives. One that dies ends all its connections, as one does that ends them on purpose: but the former means none of
//! it, and the others go on with their servers.

use outlast_netlink::tcp::{self, Listening};
use outlast_netlink::{Protocol, Socket};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A server that is not on this machine has so long to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

/// Between two questions to such a server: for no reason, and at the least when a connection has ended.
const ASK_ELSEWHERE: Duration = Duration::from_secs(5);
const ASK_ELSEWHERE_MIN: Duration = Duration::from_millis(2);
/// A server that is late as many times in a row is lost.
const LATE_MAX: u32 = 2;

/// Why it is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// It has ended a connection.
    Now,
    /// For no reason.
    Rarely,
}

/// One run of a server: as long as it lasts, the server has what it had in memory.
#[derive(Clone, Debug, Default)]
pub struct ServerRun {
    /// What listens, and the processes that have it.
    inodes: Vec<u32>,
    owners: Vec<u32>,
    /// Nobody was found who has it, as it is in another PID namespace: looking for it takes long, and finds nobody.
    is_hidden: bool,
}

impl ServerRun {
    /// Whether anything is known of it: not where the server is elsewhere.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.inodes.is_empty()
    }
}

/// Whether the server at this address is that run of it still.
#[must_use]
pub fn is_same_run(server: SocketAddr, run: ServerRun) -> bool {
    // What cannot be listed is taken for healthy.
    !run.is_known() || ServerProcess::of(server, run).map_or(true, |mut process| process.lives(Ask::Rarely))
}

/// Looks for it.
#[derive(Debug)]
pub(super) struct ServerProcess {
    server: SocketAddr,
    sockets: Socket,
    run: ServerRun,
    /// For a server elsewhere: when it was last asked, and how often in a row it did not answer.
    asked_at: Option<Instant>,
    refused: u32,
}

impl ServerProcess {
    pub(super) fn new(server: SocketAddr) -> io::Result<Self> {
        Self::of(server, ServerRun::default())
    }

    /// Of one that is known.
    pub(super) fn of(server: SocketAddr, run: ServerRun) -> io::Result<Self> {
        let sockets = Socket::open(Protocol::SocketDiag)?;
        Ok(Self { server, sockets, run, asked_at: None, refused: 0 })
    }

    pub(super) fn run(&self) -> &ServerRun {
        &self.run
    }

    /// Whether it lives. Its connections may have ended a moment ago, and its listening socket be about to: a process that dies
    /// gives its memory back before any of its files is closed (Linux: `do_exit`), so that is looked at.
    pub(super) fn lives(&mut self, asks: Ask) -> bool {
        // A list that changes while it is made may lack something.
        self.seems_to_live(asks) || self.seems_to_live(asks)
    }

    fn seems_to_live(&mut self, asks: Ask) -> bool {
        // What cannot be listed is taken for healthy.
        let Ok(listening) = tcp::listening(&mut self.sockets) else { return true };
        let listening: Vec<Listening> = listening.into_iter().filter(|one| is_it(one, self.server)).collect();
        let inodes: Vec<u32> = listening.iter().map(|one| one.inode).collect();
        let is_known = self.run.is_known();
        let is_same = inodes.iter().any(|inode| self.run.inodes.contains(inode));
        let owner_lives = self.run.owners.iter().any(|owner| has_memory(*owner));
        if inodes.is_empty() {
            if !is_known {
                return self.lives_elsewhere(asks);
            }
            // It may be about to open its sockets again. One that stops to listen, and ends connections, is about to end.
            self.refused += 1;
            return owner_lives && asks == Ask::Rarely && self.refused < 2 * LATE_MAX;
        }
        if is_known {
            self.refused = 0;
        }
        if is_known && !is_same && !owner_lives {
            // It was started again: what it had in memory is gone. In another PID namespace its processes cannot be looked at.
            return false;
        }
        if is_same && (owner_lives || self.run.is_hidden) {
            self.run.inodes = inodes;
            return true;
        }
        // It may have gone into the background meanwhile.
        let owners = owners(&inodes);
        if is_same && !self.run.owners.is_empty() && owners.is_empty() {
            return false;
        }
        // In another PID namespace nobody can be found.
        let is_hidden = owners.is_empty();
        let lives = is_hidden || owners.iter().any(|owner| has_memory(*owner));
        self.run = ServerRun { inodes, owners, is_hidden };
        lives
    }

    /// A server that is not on this machine. Each question takes a connection.
    fn lives_elsewhere(&mut self, asks: Ask) -> bool {
        if self.server.ip().is_loopback() {
            return false;
        }
        let every = match asks {
            Ask::Now => ASK_ELSEWHERE_MIN,
            Ask::Rarely => ASK_ELSEWHERE,
        };
        if self.asked_at.is_none_or(|at| at.elapsed() > every) {
            self.refused = match TcpStream::connect_timeout(&self.server, CONNECT_TIMEOUT) {
                Ok(_) => 0,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => LATE_MAX,
                // It may only be late: where many connect at once, as they do when others have ended.
                Err(_) => self.refused + u32::from(asks == Ask::Rarely),
            };
            self.asked_at = Some(Instant::now());
        }
        self.refused < LATE_MAX
    }
}

fn is_it(listening: &Listening, server: SocketAddr) -> bool {
    let (ip, at) = (listening.address.ip(), server.ip());
    listening.address.port() == server.port()
        && (ip.is_unspecified() || ip.to_canonical() == at.to_canonical())
}

/// Whether a server that does not listen here takes connections: in another network namespace, such as a container's, or on another machine.
fn is_elsewhere(server: SocketAddr) -> bool {
    !server.ip().is_loopback() && TcpStream::connect_timeout(&server, CONNECT_TIMEOUT).is_ok()
}

/// Whether a server takes connections at this address, here or elsewhere.
#[must_use]
pub fn is_up(server: SocketAddr) -> bool {
    let here = Socket::open(Protocol::SocketDiag).and_then(|mut sockets| tcp::listening(&mut sockets));
    here.is_ok_and(|all| all.iter().any(|one| is_it(one, server))) || is_elsewhere(server)
}

/// The processes of a server that takes connections at this address, if they are in this PID namespace.
pub(super) fn owners_of(server: SocketAddr) -> Vec<u32> {
    let listening = Socket::open(Protocol::SocketDiag).and_then(|mut sockets| tcp::listening(&mut sockets));
    let its = listening.into_iter().flatten().filter(|one| is_it(one, server));
    let inodes: Vec<u32> = its.map(|one| one.inode).collect();
    if inodes.is_empty() { Vec::new() } else { owners(&inodes) }
}

/// The processes that have one of these sockets.
fn owners(inodes: &[u32]) -> Vec<u32> {
    let links: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let has_one = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| {
            let link = link.to_string_lossy();
            links.iter().any(|socket| *socket == *link)
        })
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(has_one).collect()
}

/// Whether a process is there, and does not die.
fn has_memory(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("\nVmSize:"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_server_lives_as_long_as_somebody_has_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut process = ServerProcess::new(address).unwrap();
        assert!(process.lives(Ask::Now));
        assert_eq!(process.run.owners, [std::process::id()]);
        assert!(process.lives(Ask::Now) && is_up(address));
        assert!(!has_memory(u32::MAX));
        let run = process.run().clone();
        assert!(is_same_run(address, run.clone()));
        drop(listener);
        assert!(!process.lives(Ask::Now) && !is_up(address));
        assert!(is_same_run(address, ServerRun::default()));
    }
}
