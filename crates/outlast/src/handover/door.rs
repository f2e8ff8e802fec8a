//! Between two listeners at one address while both are there: the old one, which is stopping, has a socket at
//! which the next one asks it to hand over. The connection is not used for anything else: its end is the end of the old
//! process, and until then the address is not to be bound, even if it can be.

use super::keeper::is_own;
use super::places::{self, Kind};
use crate::admin_folder;
use anyhow::{Context, Result};
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixListener;

/// A hand-over takes a fraction of a second, unless somebody has to be waited for.
const HAND_OVER_MAX: Duration = Duration::from_secs(30);

/// The socket of a listener that is stopping. Removed when dropped.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    listener: UnixListener,
}

impl Door {
    /// Makes the socket. Needs a tokio runtime.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let (path, listener) = admin_folder::bind_new(places::socket_name(Kind::Stopping, address))?;
        Ok(Self { path, listener: UnixListener::from_std(listener)? })
    }

    /// Completes when the next listener asks. Keep what this returns as long as the process lives.
    pub async fn next(&self) -> tokio::net::UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((asker, _)) if is_own(&asker) => return asker,
                Ok(_) => {}
                // Out of descriptors: the asker waits.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        admin_folder::remove(&self.path);
    }
}

/// Asks listeners that are stopping, and whose clients may come to a listener at `address`, to hand their
/// sessions over, and waits until they have gone. Whether there was one.
///
/// # Errors
/// One does not go.
pub fn ask_to_hand_over(address: SocketAddr, only_v6: bool) -> Result<bool> {
    let mut asked = Vec::new();
    for (served, path) in places::all(Kind::Stopping) {
        if !places::covers(address, only_v6, served) && !places::covers(served, false, address) {
            continue;
        }
        match UnixStream::connect(&path) {
            Ok(stream) => asked.push((served, stream)),
            // Its process was killed.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => admin_folder::remove_left(&path),
            // It has just gone.
            Err(_) => {}
        }
    }
    for (served, stream) in &asked {
        let process = super::called(super::pid(stream));
        tracing::info!("{process}, which listens on {served}, is stopping: waiting until it has handed over");
        stream.set_read_timeout(Some(HAND_OVER_MAX))?;
        // Nothing comes but the end, in order or not.
        let mut end = stream;
        match end.read(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(error).with_context(|| {
                    format!("{process}, which listens on {served}, does not hand its sessions over")
                });
            }
            _ => {}
        }
    }
    Ok(!asked.is_empty())
}
