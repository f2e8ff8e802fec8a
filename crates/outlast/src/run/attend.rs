//! A thread that answers `outlast status` and `outlast upgrade` while the supervisor waits.

use super::state::State;
use crate::cli::ProcessArgs;
use crate::descriptors;
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

/// Begins to answer, unless there is to be no socket for it.
pub fn attend(state: Arc<State>, process: &ProcessArgs) -> Result<Option<Attendant>> {
    descriptors::require(DESCRIPTORS, "`outlast run`")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let inside = runtime.enter();
    let Some(socket) = crate::admin::socket(process, "status and upgrade will not work")? else {
        return Ok(None);
    };
    drop(inside);
    let (end, told) = oneshot::channel();
    let serve = move || {
        runtime.block_on(async {
            tokio::select! {
                () = socket.serve(state) => {}
                _ = told => {}
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
