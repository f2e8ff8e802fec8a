//! Looking names up, which blocks until the resolver gives up: in threads of their own. Those of the runtime hold up its end until then,
//! and tokio panics where it cannot start one.

use ::tokio::sync::{Semaphore, oneshot};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// So many at a time of names that this process was given, such as a server's.
const LOOKUPS_MAX: usize = 128;

static LOOKUPS: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

/// The addresses of a name that this process was given, with its port.
///
/// # Errors
/// The name is unknown, the resolver does not answer, or there is no thread to ask it with.
pub(crate) async fn look_up(name: impl ToSocketAddrs + Send + 'static) -> io::Result<Vec<SocketAddr>> {
    let place = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    in_a_thread(move || {
        let _place = place;
        Ok(name.to_socket_addrs()?.collect())
    })
    .await
}

/// What `find` returns. It runs to its end, whoever waits for it.
///
/// # Errors
/// Its own, or the thread cannot be started.
pub(crate) async fn in_a_thread<T: Send + 'static>(
    find: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, found) = oneshot::channel();
    let work = move || drop(sender.send(find()));
    std::thread::Builder::new().name("outlast-lookup".into()).spawn(work)?;
    found.await.unwrap_or_else(|_| Err(io::Error::other("the lookup has failed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[::tokio::test]
    async fn names_are_looked_up_and_errors_are_told() {
        let found = look_up("localhost:7").await.unwrap();
        assert!(found.iter().any(|address| address.ip().is_loopback() && address.port() == 7), "{found:?}");
        assert!(look_up("no such name:7").await.is_err());
        assert_eq!(LOOKUPS.available_permits(), LOOKUPS_MAX);
        assert!(in_a_thread::<()>(|| panic!("on purpose")).await.is_err());
    }
}
