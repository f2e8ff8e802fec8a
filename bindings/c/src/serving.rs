//! The generation that this process is, and what it was left.

use crate::error::own;
use crate::{plain, table};
use outlast_restart::policy::Policy;
use outlast_restart::{Error, Generation, Heartbeat, Inherited};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// Set in each generation, which begins with the memory of the process that registered.
static SERVING: OnceLock<Serving> = OnceLock::new();

pub(crate) struct Serving {
    generation: RwLock<Generation>,
    number: i32,
    heartbeat: Heartbeat,
    left: Mutex<Left>,
}

/// What clients are told whose request is refused.
static REFUSAL: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// What nobody has taken yet of what earlier generations had open.
#[derive(Default)]
struct Left {
    connections: VecDeque<OwnedFd>,
    listeners: VecDeque<OwnedFd>,
    others: Vec<OwnedFd>,
}

pub(crate) fn register(policy: Policy) -> io::Result<i32> {
    plain::ignore_broken_pipes();
    let mut generation = outlast_restart::register_with(policy).map_err(for_c)?;
    generation.refuse_with(&lock(&REFUSAL));
    // First: a request that crashes everybody may depend on what was committed. It opens nothing.
    crate::state::attach(&generation)?;
    // Now, as C does not say which descriptors it opens: those of this generation are not left by an earlier one.
    let left = Mutex::new(generation.inherited()?.into());
    let number = i32::try_from(generation.number()).unwrap_or(i32::MAX);
    let heartbeat = generation.heartbeat();
    let generation = RwLock::new(generation);
    let _ = SERVING.set(Serving { generation, number, heartbeat, left });
    Ok(number)
}

fn for_c(error: Error) -> io::Error {
    match error {
        Error::System { what, source } => {
            own(source.raw_os_error().unwrap_or(libc::EIO), format!("cannot {what}: {source}"))
        }
        Error::Registered => own(libc::EALREADY, error.to_string()),
        error => own(libc::EINVAL, error.to_string()),
    }
}

/// Before [`register`], as who is refused is so at once.
pub(crate) fn refuse_with(refusal: &[u8]) -> io::Result<()> {
    if SERVING.get().is_some() {
        let why = "call outlast_refuse_with before outlast_register".to_owned();
        return Err(own(libc::EALREADY, why));
    }
    *lock(&REFUSAL) = refusal.to_vec();
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// None before [`register`].
pub(crate) fn serving() -> Option<&'static Serving> {
    SERVING.get()
}

/// Likewise an error.
pub(crate) fn registered() -> io::Result<&'static Serving> {
    serving().ok_or_else(|| own(libc::ENOTCONN, "call outlast_register first".to_owned()))
}

impl Serving {
    pub(crate) fn number(&self) -> i32 {
        self.number
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.heartbeat
    }

    pub(crate) fn predecessor(&self) -> Option<String> {
        let generation = self.generation.read().unwrap_or_else(PoisonError::into_inner);
        generation.predecessor().map(|death| death.to_string())
    }

    /// The next connection, held. After the last one, what nobody has taken is closed.
    pub(crate) fn next_connection(&self) -> Option<RawFd> {
        loop {
            let Some(connection) = lock(&self.left).connections.pop_front() else {
                *lock(&self.left) = Left::default();
                return None;
            };
            self.generation.read().unwrap_or_else(PoisonError::into_inner).await_trial();
            // One that cannot be held cannot be served: it is closed.
            if let Ok(fd) = self.hold(connection) {
                return Some(fd);
            }
        }
    }

    pub(crate) fn next_listener(&self) -> Option<RawFd> {
        lock(&self.left).listeners.pop_front().map(IntoRawFd::into_raw_fd)
    }

    /// Of the others, the one with this number.
    pub(crate) fn keep(&self, fd: RawFd) -> io::Result<RawFd> {
        let others = &mut lock(&self.left).others;
        let place = others.iter().position(|other| other.as_raw_fd() == fd);
        let nobodys = || own(libc::EBADF, format!("descriptor {fd}: no earlier generation has left it"));
        Ok(others.swap_remove(place.ok_or_else(nobodys)?).into_raw_fd())
    }

    /// From here on the connection is the table's. Its number.
    pub(crate) fn hold(&self, socket: OwnedFd) -> io::Result<RawFd> {
        let fd = socket.as_raw_fd();
        let too_large = || own(libc::EMFILE, format!("descriptor {fd}: such numbers cannot be held"));
        let mut place = table::place(fd)?.ok_or_else(too_large)?;
        if place.is_some() {
            // It is the same one, or was closed without the table's knowledge: nothing to be closed here.
            let _ = socket.into_raw_fd();
            let why =
                format!("descriptor {fd} is held already: was it closed with close, not outlast_close?");
            return Err(own(libc::EBUSY, why));
        }
        let generation = self.generation.read().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Box::new(generation.hold(socket)?));
        Ok(fd)
    }
}

impl From<Inherited> for Left {
    fn from(inherited: Inherited) -> Self {
        Self {
            connections: inherited.connections.into(),
            listeners: inherited.listeners.into(),
            others: inherited.others,
        }
    }
}
