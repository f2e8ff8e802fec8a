//! The connections to serve: those that are left, then those that come.

use super::connection::{Connection, set_nonblocking};
use crate::generation::Shared;
use crate::patience::{self, Passing, passing};
use crate::sys::descriptors::{self, LocalName};
use crate::sys::reactor;
use crate::{Generation, inherited};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// Between two looks at whether a request is still dealt with alone.
const TRIAL_POLL: Duration = Duration::from_millis(1);

/// All connections of some listeners, [held](Generation::hold).
#[derive(Debug)]
pub struct Incoming {
    shared: &'static Shared,
    left: std::vec::IntoIter<OwnedFd>,
    /// Nobody waits for these yet.
    new_listeners: Vec<OwnedFd>,
    listeners: Vec<AsyncFd<OwnedFd>>,
    /// That is asked first: none is to starve the others.
    first: usize,
}

/// First the connections that earlier generations have left, then those that `listeners` accept, which are TCP or UNIX
/// sockets.
///
/// To be called before the runtime is built: whatever has been opened since the server registered counts as left. All of
/// that is closed which is no connection of these listeners, also what earlier runtimes have opened for themselves; see
/// [`inherited`](Generation::inherited) for what is to be kept.
///
/// # Errors
/// There is a runtime already; the descriptors cannot be listed; a listener cannot be made non-blocking.
pub fn incoming(
    generation: &mut Generation,
    listeners: impl IntoIterator<Item: Into<OwnedFd>>,
) -> io::Result<Incoming> {
    if tokio::runtime::Handle::try_current().is_ok() {
        let why = "what is left is to be found before the runtime is built, or it is taken for left as well";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let new_listeners: Vec<OwnedFd> = listeners.into_iter().map(Into::into).collect();
    let mut ports = BTreeSet::new();
    for listener in &new_listeners {
        set_nonblocking(listener.as_fd())?;
        if let LocalName::Port(port) = descriptors::local_name(listener.as_fd()) {
            ports.insert(port);
        }
    }
    let left = generation.inherited()?.connections.into_iter();
    let (left, others): (Vec<_>, Vec<_>) = left.partition(|connection| is_accepted(connection, &ports));
    let (shared, left) = (generation.shared, left.into_iter());
    inherited::discard(shared.slots, others);
    Ok(Incoming { shared, left, new_listeners, listeners: Vec::new(), first: 0 })
}

/// Whether a listener has: over TCP it has the same port then, and of UNIX sockets only those have a name.
fn is_accepted(connection: &OwnedFd, ports: &BTreeSet<u16>) -> bool {
    match descriptors::local_name(connection.as_fd()) {
        LocalName::Port(port) => ports.contains(&port),
        name => name == LocalName::Path,
    }
}

impl Incoming {
    /// The next one, within the runtime, which has I/O and time enabled. Where a request is suspected of having crashed two generations, those after it come when it is done,
    /// or after a second. Nothing is lost when the wait is cancelled.
    ///
    /// # Errors
    /// Those of `accept` and [`hold`](Generation::hold); what comes next may be well. Where `accept` finds no free descriptor,
    /// or no memory, this waits until there is.
    pub async fn next(&mut self) -> io::Result<Connection> {
        let until_ns = self.shared.trial_limit_ns();
        while self.shared.on_trial(until_ns).is_some() {
            tokio::time::sleep(TRIAL_POLL).await;
        }
        let socket = match self.left.next() {
            Some(socket) => socket,
            None => {
                self.begin_listening()?;
                self.accept().await?
            }
        };
        Connection::new(crate::Connection::new(self.shared, socket)?)
    }

    /// From here on the runtime tells of clients. Those listeners that it cannot wait for are tried again with the next call.
    fn begin_listening(&mut self) -> io::Result<()> {
        while let Some(listener) = self.new_listeners.pop() {
            match reactor::try_to_wait_for(listener) {
                Ok(listener) => self.listeners.push(listener),
                Err((listener, error)) => {
                    self.new_listeners.push(listener);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Waits where there is no room.
    async fn accept(&mut self) -> io::Result<OwnedFd> {
        loop {
            let error = match poll_fn(|context| self.poll_accept(context)).await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            match passing(&error) {
                None => return Err(error),
                Some(Passing::Gone) => {}
                Some(Passing::NoRoom) => {
                    patience::tell_no_room(&error);
                    tokio::time::sleep(patience::NO_ROOM_PAUSE).await;
                }
            }
        }
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        let count = self.listeners.len();
        for number in (0..count).map(|number| (self.first + number) % count) {
            let Some(listener) = self.listeners.get(number) else { continue };
            while let Poll::Ready(ready) = listener.poll_read_ready(context)? {
                let mut ready = ready;
                if let Ok(accepted) = ready.try_io(|listener| descriptors::accept(listener.get_ref().as_fd()))
                {
                    self.first = number + 1;
                    return Poll::Ready(accepted);
                }
            }
        }
        Poll::Pending
    }
}
