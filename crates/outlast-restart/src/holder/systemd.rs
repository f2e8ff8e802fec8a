//! systemd's store of descriptors as a [`Keeper`]: `FDSTORE=1` of sd_notify(3).
//!
//! The unit needs `FileDescriptorStoreMax=` and `Restart=`; what is kept comes back by `LISTEN_FDS`. The state of a
//! descriptor is memory with a descriptor of its own, kept as `NAME.state`, and takes one more place of the store; a
//! descriptor without any takes none.
//!
//! systemd says nothing about a message: that a descriptor does not fit is found out here by the number in `FDSTORE`, and
//! [`Systemd::settle`] waits until systemd has dealt with everything. It drops by itself what was reset or hung up.

use super::state_file::StateFile;
use super::{Error, Keeper, Kept, Refusal, activated, check, packet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Behind the name of a descriptor: the name of its state.
const STATE_SUFFIX: &str = ".state";

/// The connection to the service manager.
#[derive(Debug)]
pub struct Systemd {
    socket: OwnedFd,
    at: String,
    /// Descriptors that may be kept.
    capacity: usize,
    /// What is kept, and its state.
    kept: BTreeMap<String, Option<StateFile>>,
    /// From earlier processes, and not asked for yet.
    recovered: Vec<Kept>,
    /// Given at the start, and never kept by this service: sockets of socket units.
    listeners: Vec<super::Activated>,
}

impl Systemd {
    /// As the environment says. None: there is no service manager, or it keeps nothing for this service.
    ///
    /// Takes what was given to the process at its start: [`activated`] gives nothing after that.
    ///
    /// # Errors
    /// The environment names a socket that cannot be reached.
    pub fn from_environment() -> Result<Option<Self>, Error> {
        let (Some(path), Some(capacity)) = (std::env::var_os("NOTIFY_SOCKET"), std::env::var_os("FDSTORE"))
        else {
            return Ok(None);
        };
        let Some(capacity) = capacity.to_str().and_then(|number| number.parse().ok()).filter(|max| *max > 0)
        else {
            return Ok(None);
        };
        let at = path.to_string_lossy().into_owned();
        let socket = reach(&path).map_err(|source| Error::Away { at: at.clone(), source })?;
        let mut systemd = Self {
            socket,
            at,
            capacity,
            kept: BTreeMap::new(),
            recovered: Vec::new(),
            listeners: Vec::new(),
        };
        systemd.sort(activated());
        Ok(Some(systemd))
    }

    /// Sockets that were given to the process at its start by socket units, and were not kept by this service.
    pub fn take_listeners(&mut self) -> Vec<super::Activated> {
        std::mem::take(&mut self.listeners)
    }

    /// Waits until the service manager has dealt with everything it was told, or for `time`.
    ///
    /// # Errors
    /// It is not there, or does not do so in time.
    pub fn settle(&self, time: Duration) -> Result<(), Error> {
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let (ours, theirs) =
            pipe.map_err(|error| Error::System { what: "make a pipe", source: error.into() })?;
        self.tell("BARRIER=1", Some(theirs.as_fd()))?;
        drop(theirs);
        // It hangs up when the other end is closed in the service manager.
        let mut wanted = [PollFd::new(&ours, PollFlags::empty())];
        let time = Timespec::try_from(time).ok();
        match rustix::io::retry_on_intr(|| poll(&mut wanted, time.as_ref())) {
            Ok(0) => Err(self.away(io::ErrorKind::TimedOut.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(Error::System { what: "wait for the service manager", source: error.into() }),
        }
    }

    /// Tells what was kept by this service from what comes from elsewhere: it was kept under a name, and is no listener that
    /// nobody has kept. A listener that was kept has state, if only that it was kept.
    fn sort(&mut self, given: Vec<super::Activated>) {
        let mut states = BTreeMap::new();
        let mut others = Vec::new();
        for one in given {
            match one.name.strip_suffix(STATE_SUFFIX).map(str::to_owned) {
                Some(name) => match StateFile::open(one.descriptor) {
                    Some(state) => drop(states.insert(name, state)),
                    None => self.forget_quietly(&one.name),
                },
                None => others.push(one),
            }
        }
        for one in others {
            let state = states.remove(&one.name);
            if one.is_listener && state.is_none() {
                self.listeners.push(one);
                continue;
            }
            let (file, state) = state.map_or((None, Vec::new()), |(file, state)| (Some(file), state));
            self.kept.insert(one.name.clone(), file);
            self.recovered.push(Kept { name: one.name, descriptor: one.descriptor, state });
        }
        // Those of connections that were reset meanwhile.
        for name in states.into_keys() {
            self.forget_quietly(&format!("{name}{STATE_SUFFIX}"));
        }
    }

    fn forget_quietly(&self, name: &str) {
        let _ = self.forget(name);
    }

    fn store(&self, name: &str, descriptor: BorrowedFd<'_>) -> Result<(), Error> {
        self.tell(&format!("FDSTORE=1\nFDNAME={name}"), Some(descriptor))
    }

    fn forget(&self, name: &str) -> Result<(), Error> {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None)
    }

    fn tell(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        packet::send(self.socket.as_fd(), text.as_bytes(), descriptor, true).map_err(|error| self.away(error))
    }

    fn away(&self, source: io::Error) -> Error {
        Error::Away { at: self.at.clone(), source }
    }

    fn places(&self) -> usize {
        self.kept.len() + self.kept.values().flatten().count()
    }

    fn new_state(&self, name: &str, state: &[u8]) -> Result<StateFile, Error> {
        let file = StateFile::new(state)
            .map_err(|source| Error::System { what: "make memory for state", source })?;
        self.store(&format!("{name}{STATE_SUFFIX}"), file.as_fd())?;
        Ok(file)
    }

    fn room_for(&self, what: &str, more: usize) -> Result<(), Error> {
        if self.places() + more <= self.capacity {
            return Ok(());
        }
        let text = format!("it keeps {}: see FileDescriptorStoreMax= of the unit", self.capacity);
        Err(Error::Refused { what: what.to_owned(), refusal: Refusal::Descriptors, text })
    }
}

impl Keeper for Systemd {
    fn keep(&mut self, name: &str, descriptor: BorrowedFd<'_>, state: &[u8]) -> Result<(), Error> {
        check(name, state)?;
        if name.ends_with(STATE_SUFFIX) {
            return Err(Error::Name(name.to_owned()));
        }
        // A listener without state could not be told from one of a socket unit.
        let is_listener = rustix::net::sockopt::socket_acceptconn(descriptor).unwrap_or(false);
        let has_state = !state.is_empty() || is_listener;
        let before = self.kept.get(name).map(|state| 1 + usize::from(state.is_some()));
        let more = (1 + usize::from(has_state)).saturating_sub(before.unwrap_or(0));
        self.room_for(&format!("to keep {name}"), more)?;
        if before.is_some() {
            self.release(name)?;
        }
        // First the state: a descriptor is never there without it.
        let file = if has_state { Some(self.new_state(name, state)?) } else { None };
        self.store(name, descriptor)?;
        self.kept.insert(name.to_owned(), file);
        Ok(())
    }

    fn update(&mut self, name: &str, state: &[u8]) -> Result<(), Error> {
        check(name, state)?;
        let what = format!("to change {name}");
        match self.kept.get_mut(name) {
            None => {
                let text = Refusal::Unknown.text().to_owned();
                return Err(Error::Refused { what, refusal: Refusal::Unknown, text });
            }
            Some(Some(file)) => {
                return file.write(state).map_err(|source| Error::System { what: "write state", source });
            }
            Some(None) if state.is_empty() => return Ok(()),
            Some(None) => {}
        }
        self.room_for(&what, 1)?;
        let file = self.new_state(name, state)?;
        self.kept.insert(name.to_owned(), Some(file));
        Ok(())
    }

    fn release(&mut self, name: &str) -> Result<(), Error> {
        check(name, b"")?;
        if let Some(state) = self.kept.remove(name) {
            self.forget(name)?;
            if state.is_some() {
                self.forget(&format!("{name}{STATE_SUFFIX}"))?;
            }
        }
        Ok(())
    }

    /// The first time; nothing after that.
    fn recover(&mut self) -> Result<Vec<Kept>, Error> {
        Ok(std::mem::take(&mut self.recovered))
    }

    /// systemd keeps everything over its own restarts.
    fn tend(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// A path, or behind an `@` the name of a socket that is in no folder.
fn reach(path: &OsStr) -> io::Result<OwnedFd> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        [b'/', ..] => SocketAddrUnix::new(path)?,
        _ => return Err(io::Error::other("NOTIFY_SOCKET is neither a path nor a name")),
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &address)?;
    Ok(socket)
}
