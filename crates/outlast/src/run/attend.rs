//! A thread that answers `outlast status`, `outlast upgrade` and Prometheus while the supervisor waits.

use super::state::State;
use crate::cli::ProcessArgs;
use crate::descriptors;
use crate::metrics;
use anyhow::Result;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Answers until dropped.
#[derive(Debug)]
pub struct Attendant {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What answering takes, and starting the program: some of that is by libraries that panic where there are none.
const DESCRIPTORS: usize = 8;

/// Begins to answer, unless there is to be no socket for it, and no metrics.
pub fn attend(state: Arc<State>, process: &ProcessArgs) -> Result<Option<Attendant>> {
    descriptors::require(DESCRIPTORS, "`outlast run`")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let metrics = process.metrics.map(|address| runtime.block_on(metrics::bind(address))).transpose()?;
    let inside = runtime.enter();
    let socket = crate::admin::socket(process, "status and upgrade will not work")?;
    drop(inside);
    if socket.is_none() && metrics.is_none() {
        return Ok(None);
    }
    let (end, told) = oneshot::channel();
    let serve = move || {
        runtime.block_on(async {
            if let Some(listener) = metrics {
                if let Ok(address) = listener.local_addr() {
                    tracing::info!("metrics at http://{address}/metrics");
                }
                tokio::spawn(metrics::serve(listener, Arc::clone(&state)));
            }
            match socket {
                Some(socket) => tokio::select! {
                    () = socket.serve(state) => {}
                    _ = told => {}
                },
                None => drop(told.await),
            }
        });
    };
    let thread = std::thread::Builder::new().name("admin".into()).spawn(serve)?;
    Ok(Some(Attendant { end: Some(end), thread: Some(thread) }))
}

impl Drop for Attendant {
    fn drop(&mut self) {
        // The socket's file goes with it.
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
