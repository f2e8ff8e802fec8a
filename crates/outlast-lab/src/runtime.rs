//! A tokio runtime that lives in a host.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::error::{Context, Error, Result};
use crate::host::Host;

/// A tokio runtime every thread of which is in a host: tasks that it runs, and the future it blocks on, make their
/// sockets there. Dropping it does not wait for tasks that block.
#[derive(Debug)]
pub struct HostRuntime {
    host: Host,
    runtime: Option<Runtime>,
    failed: Arc<AtomicBool>,
}

impl Host {
    /// Makes a tokio runtime with `threads` worker threads in this host.
    ///
    /// # Errors
    /// When a thread cannot be started or cannot enter the host.
    pub fn runtime(&self, threads: usize) -> Result<HostRuntime> {
        let failed = Arc::new(AtomicBool::new(false));
        let (host, seen) = (self.clone(), Arc::clone(&failed));
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name(self.name())
            .enable_all()
            .on_thread_start(move || {
                if let Err(error) = host.netns().enter_for_good() {
                    tracing::error!(%error, ?host, "a thread of the runtime is not in the host");
                    seen.store(true, Ordering::SeqCst);
                }
            })
            .build()
            .context(|| format!("cannot start a runtime in host {}", self.name()))?;
        Ok(HostRuntime { host: self.clone(), runtime: Some(runtime), failed })
    }
}

impl HostRuntime {
    fn runtime(&self) -> Result<&Runtime> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(Error::Invalid(format!("a thread could not enter {:?}: see the log", self.host)));
        }
        self.runtime.as_ref().ok_or_else(|| Error::Invalid("the runtime has ended".to_owned()))
    }

    /// Runs `future` to its end, in the host.
    ///
    /// # Errors
    /// When a thread could not enter the host.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        let runtime = self.runtime()?;
        let inside = self.host.enter_guard()?;
        let output = runtime.block_on(future);
        drop(inside);
        Ok(output)
    }

    /// Runs `future` as a task, in the host.
    ///
    /// # Errors
    /// When a thread could not enter the host.
    pub fn spawn<F>(&self, future: F) -> Result<JoinHandle<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Ok(self.runtime()?.spawn(future))
    }

    /// A handle for spawning from elsewhere. `Handle::block_on` runs on the caller's thread, which is *not* in the
    /// host: use it to spawn only.
    ///
    /// # Errors
    /// When a thread could not enter the host.
    pub fn handle(&self) -> Result<Handle> {
        Ok(self.runtime()?.handle().clone())
    }
}

impl Drop for HostRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
