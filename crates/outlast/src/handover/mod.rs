//! From one `outlast listen` to the next at the same address: sessions that are still open when a process stops are taken
//! out of it with the connections of their programs, kept by a small process of their own, and gone on with by the next.
//! Their clients see an outage.
//!
//! ```text
//! old process ── parcels ──> keeper ── parcels ──> new process
//!      SIGTERM, drained         waits        listens at the same address
//! ```

mod keeper;
mod parcel;

pub use keeper::run as keep;
pub use parcel::Parcel;

use crate::admin_folder;
use anyhow::{Context, Result, ensure};
use keeper::{KEPT, READY, TAKEN};
use outlast_session::relay::DetachedRelay;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time that sessions wait for the next process. Default 5 min: for a restart it takes seconds, for an upgrade minutes.
pub const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(300);
/// A keeper says within this time that it is there, and that it has everything.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(30);

/// A keeper that is being filled.
#[derive(Debug)]
pub struct Keeper {
    stream: UnixStream,
    kept: usize,
    /// Its process.
    pub pid: u32,
    /// Where the next process has to listen.
    pub address: SocketAddr,
}

/// The socket of a keeper, in the folder of the admin sockets: one for each address, and network namespace, as addresses
/// mean something only there.
fn socket_name(address: SocketAddr) -> String {
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let number: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("{address}-{number}.kept")
}

impl Keeper {
    /// Starts one.
    ///
    /// # Errors
    /// There is one for this address already, or it cannot be started, or would end with this process.
    pub fn start(address: SocketAddr, time: Duration) -> Result<Self> {
        // All other processes of a container end with its first one.
        ensure!(std::process::id() != 1, "as the first process here, this one ends all others with itself");
        let folder = admin_folder::made()?;
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_read_timeout(Some(KEEPER_TIMEOUT))?;
        stream.set_write_timeout(Some(KEEPER_TIMEOUT))?;
        let child = Command::new(program())
            .args(["keep-detached", "--time", &format!("{}ms", time.as_millis()), "--socket"])
            .arg(folder.join(socket_name(address)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start a process to keep them")?;
        let mut keeper = Self { stream, kept: 0, pid: child.id(), address };
        keeper.expect(READY)?;
        Ok(keeper)
    }

    fn expect(&mut self, word: u8) -> Result<()> {
        let mut said = [0];
        self.stream.read_exact(&mut said).context("the process that keeps them has failed")?;
        ensure!(said == [word], "the process that keeps them has failed");
        Ok(())
    }

    /// Gives it one more.
    pub fn add(&mut self, relay: DetachedRelay) -> Result<()> {
        let DetachedRelay { session, local, rest } = relay;
        let parcel = Parcel { session: session.encode(), local: local.into_fd()?, rest };
        parcel.send(&self.stream)?;
        self.kept += 1;
        Ok(())
    }

    /// That was all. How many it keeps.
    pub fn finish(mut self) -> Result<usize> {
        parcel::send_end(&self.stream)?;
        self.expect(KEPT)?;
        Ok(self.kept)
    }
}

/// This program, by its name if that still leads to it.
fn program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// What an earlier process has left at this address.
#[derive(Debug, Default)]
pub struct Legacy {
    pub parcels: Vec<Parcel>,
    keeper: Option<UnixStream>,
}

impl Legacy {
    /// Asks the keeper of `address`. What goes wrong is logged: the keeper, if there is one, goes on keeping.
    pub fn ask(address: SocketAddr) -> Self {
        let path = admin_folder::found().map(|folder| folder.join(socket_name(address)));
        let Some(keeper) = path.and_then(|path| UnixStream::connect(path).ok()) else {
            return Self::default();
        };
        match receive_all(&keeper) {
            Ok(parcels) => Self { parcels, keeper: Some(keeper) },
            Err(error) => {
                tracing::error!("cannot take over the sessions of {address}: {error:#}");
                Self::default()
            }
        }
    }

    /// The process that keeps them.
    pub fn keeper_pid(&self) -> Option<i32> {
        let credentials = rustix::net::sockopt::socket_peercred(self.keeper.as_ref()?).ok()?;
        Some(credentials.pid.as_raw_nonzero().get())
    }

    /// This process goes on with them: the keeper can go.
    pub fn taken(self) {
        if let Some(mut keeper) = self.keeper {
            keeper.write_all(&[TAKEN]).ok();
        }
    }
}

fn receive_all(keeper: &UnixStream) -> Result<Vec<Parcel>> {
    keeper.set_read_timeout(Some(KEEPER_TIMEOUT))?;
    let mut parcels = Vec::new();
    while let Some(parcel) = Parcel::receive(keeper)? {
        parcels.push(parcel);
    }
    Ok(parcels)
}
