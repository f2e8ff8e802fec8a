//! Whose request a thread deals with while it polls a task.

use crate::Heartbeat;
use crate::threads::Threads;
use std::future::{Future, poll_fn};
use std::os::fd::RawFd;
use std::pin::pin;

/// One poll.
struct Poll(&'static Threads);

impl Poll {
    fn begin(threads: &'static Threads, descriptor: Option<RawFd>) -> Self {
        threads.busy();
        match descriptor {
            Some(descriptor) => threads.deals_with(descriptor),
            None => threads.is_through(),
        }
        Self(threads)
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.0.is_through();
        self.0.idle();
    }
}

/// `work`, which is watched for hangs: for tasks that belong to no connection.
pub fn watched<F: Future>(heartbeat: Heartbeat, work: F) -> impl Future<Output = F::Output> {
    attributed(heartbeat.threads(), None, work)
}

/// `work`, for a request of this descriptor.
pub(super) async fn attributed<F: Future>(
    threads: &'static Threads,
    descriptor: Option<RawFd>,
    work: F,
) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        let _poll = Poll::begin(threads, descriptor);
        work.as_mut().poll(context)
    })
    .await
}
