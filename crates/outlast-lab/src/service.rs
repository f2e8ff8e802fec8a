//! A program that can be killed and started again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::command::Process;
use crate::error::{Error, Result};

type Start = Box<dyn Fn() -> Result<Process> + Send + Sync>;

struct Inner {
    start: Start,
    running: Mutex<Option<Process>>,
}

/// A program together with how to start it, for faults that kill it: a relay, or a server.
/// Clones are handles to the same program.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Service({:?})", self.id())
    }
}

impl Service {
    /// Starts a program by `start`, which is called again for every restart.
    ///
    /// # Errors
    /// What `start` says.
    pub fn start(start: impl Fn() -> Result<Process> + Send + Sync + 'static) -> Result<Self> {
        let running = Mutex::new(Some(start()?));
        Ok(Self { inner: Arc::new(Inner { start: Box::new(start), running }) })
    }

    fn running(&self) -> MutexGuard<'_, Option<Process>> {
        self.inner.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the process, if one is running.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.running().as_ref().map(Process::id)
    }

    /// Kills the program (SIGKILL, with its process group) and waits until it is gone.
    pub fn kill(&self) {
        if let Some(process) = self.running().take() {
            process.kill();
        }
    }

    /// Starts the program again, killing it before if it still runs.
    ///
    /// # Errors
    /// What `start` says.
    pub fn restart(&self) -> Result<()> {
        let mut running = self.running();
        if let Some(process) = running.take() {
            process.kill();
        }
        *running = Some((self.inner.start)()?);
        Ok(())
    }

    /// Does something with the running program.
    ///
    /// # Errors
    /// When none is running, and what `work` says.
    pub fn with<T>(&self, work: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        let running = self.running();
        let process = running.as_ref().ok_or_else(|| {
            Error::Invalid("the program is not running: start it again with Service::restart".to_owned())
        })?;
        work(process)
    }
}
