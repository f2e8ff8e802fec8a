//! What a program says of itself, as programs do to systemd: a few lines in a datagram (sd_notify(3)).

use super::state::State;
use crate::exit::Failure;
use crate::sparingly::Sparingly;
use anyhow::Result;
use outlast_restart::credentials::{Peer, receive};
use outlast_restart::supervisor::Handle;
use outlast_session::relay::dial::plain;
use rustix::net::sockopt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest that is read; a status is a line.
pub(super) const MESSAGE_BYTES_MAX: usize = 4096;
/// Names that are tried for the folder.
const ATTEMPTS_MAX: u32 = 10_000;
/// How far up a process is looked for below this one.
const GENERATIONS_MAX: usize = 64;

/// What can be said that means something here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Ready,
    Status(String),
    Stopping,
    Alive,
    /// Stopping takes this long at most.
    StopsWithin(Duration),
}

/// A new folder for sockets, which is removed with this if nothing is left in it.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// One that others can go through, but not look into.
    pub(super) fn fresh() -> io::Result<Self> {
        // A program that has given its rights away, or clears its own folder up, finds a socket there.
        let temporary = Self::fresh_in(&std::env::temp_dir());
        // A service may write to nothing else (`ProtectSystem=`).
        let of_service = std::env::var_os("RUNTIME_DIRECTORY").filter(|_| temporary.is_err());
        let of_service = of_service.iter().flat_map(std::env::split_paths).find(|path| path.is_absolute());
        of_service.and_then(|folder| Self::fresh_in(&folder).ok()).map_or(temporary, Ok)
    }

    fn fresh_in(parent: &Path) -> io::Result<Self> {
        for attempt in 0..ATTEMPTS_MAX {
            let folder = parent.join(format!("outlast-notify-{}-{attempt}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o711).create(&folder) {
                // Of a process that was killed, or somebody's who wants to be in our way.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Self(folder)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).ok();
    }
}

/// Where a program says it: a socket for each start, so that nobody is taken for a successor. As long as this lives.
#[derive(Debug)]
pub struct Notify {
    // Removed before the folder is.
    ear: Option<Ear>,
    folder: Folder,
    handle: Handle,
    state: Arc<State>,
}

/// The socket of one start.
#[derive(Debug)]
struct Ear {
    path: PathBuf,
    socket: Arc<UnixDatagram>,
}

impl Notify {
    /// Makes the folder for the sockets.
    pub fn new(handle: Handle, state: Arc<State>) -> Result<Self> {
        let folder = Folder::fresh().map_err(|error| cannot_listen("--notify", &error))?;
        Ok(Self { folder, handle, state, ear: None })
    }

    /// Listens to what is started at this attempt, in a thread of its own, and to nobody else. Gives the socket's path.
    pub fn listen(&mut self, attempt: u32) -> Result<PathBuf> {
        self.ear = None;
        let path = self.folder.path().join(attempt.to_string());
        let listen = || {
            let socket = UnixDatagram::bind(&path)?;
            // A program may say it as another user than it was started by: who it is decides, not the file.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
            sockopt::set_socket_passcred(&socket, true)?;
            let ear = Arc::new(socket);
            let (socket, handle, state) = (Arc::clone(&ear), self.handle.clone(), Arc::clone(&self.state));
            let thread = std::thread::Builder::new().name("notify".into());
            thread.spawn(move || hear(&socket, attempt, &handle, &state))?;
            Ok(ear)
        };
        let socket = listen().map_err(|error| cannot_listen("--notify", &error))?;
        self.ear = Some(Ear { path: path.clone(), socket });
        Ok(path)
    }
}

pub(super) fn cannot_listen(what_for: &str, error: &io::Error) -> anyhow::Error {
    Failure::system(format!("cannot make a socket for {what_for}: {}", plain(error)))
}

impl Drop for Ear {
    fn drop(&mut self) {
        // Its thread reads nothing then, which is the end.
        self.socket.shutdown(std::net::Shutdown::Both).ok();
        std::fs::remove_file(&self.path).ok();
    }
}

static STRANGERS: Sparingly = Sparingly::new();

fn hear(socket: &UnixDatagram, attempt: u32, handle: &Handle, state: &State) {
    let mut message = [0; MESSAGE_BYTES_MAX];
    loop {
        let (length, sender) = match receive(socket.as_fd(), &mut message) {
            // An empty message means nothing to anybody; this is what comes when nobody listens any more.
            Ok((0, None)) => return,
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return tracing::error!("--notify does not work any more: {error}"),
        };
        if !sender.is_some_and(may_speak) {
            // Whoever can reach the socket can say as much as he likes.
            if let Some(skipped) = STRANGERS.due(Instant::now()) {
                tracing::warn!(
                    ?sender,
                    skipped,
                    "somebody else says how the program is: that is not believed"
                );
            }
            continue;
        }
        for said in understood(message.get(..length).unwrap_or_default()) {
            match said {
                Said::Ready => handle.ready(attempt),
                Said::Alive => handle.sign_of_life(attempt),
                Said::Status(text) => state.said(&text),
                Said::Stopping => tracing::info!("it says that it is stopping"),
                Said::StopsWithin(_) => {}
            }
        }
    }
}

/// A user who could end the program may speak for it, also if that process is gone; and so may any process below this one.
pub(super) fn may_speak(sender: Peer) -> bool {
    sender.uid == crate::admin_folder::own_uid()
        || sender.uid == 0
        || sender.pid.is_some_and(|pid| is_below(pid.cast_unsigned(), std::process::id()))
}

/// Whether a process is below another one. One that has ended is nowhere.
fn is_below(pid: u32, above: u32) -> bool {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let line = std::iter::successors(Some(pid), |&pid| parent(pid));
    line.skip(1).take(GENERATIONS_MAX).any(|pid| pid == above)
}

/// What of a message means something here.
pub(super) fn understood(message: &[u8]) -> Vec<Said> {
    let message = String::from_utf8_lossy(message);
    let lines = message.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        match (name, value) {
            ("READY", "1") => Some(Said::Ready),
            ("STOPPING", "1") => Some(Said::Stopping),
            ("WATCHDOG", "1") => Some(Said::Alive),
            ("EXTEND_TIMEOUT_USEC", time) => {
                Some(Said::StopsWithin(Duration::from_micros(time.parse().ok()?)))
            }
            ("STATUS", text) => Some(Said::Status(crate::exit::clean(text))),
            _ => None,
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_understood_line_by_line_and_garbage_is_nothing() {
        let said = understood(b"READY=1\nSTATUS=on 3 ports\x1b[2J\nMAINPID=5\nWATCHDOG=1\nSTOPPING=1");
        let status = Said::Status("on 3 ports [2J".into());
        assert_eq!(said, [Said::Ready, status, Said::Alive, Said::Stopping]);
        for garbage in
            [&b""[..], b"EXTEND_TIMEOUT_USEC=x", b"READY", b"=", b"READY=0", b"ready=1", b"\xff\xfe\n\n="]
        {
            assert_eq!(understood(garbage), []);
        }
    }

    #[test]
    fn who_is_below_whom_is_known() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_below(child.id(), std::process::id()));
        assert!(!is_below(std::process::id(), child.id()) && !is_below(1, std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_below(child.id(), std::process::id()));
    }
}
