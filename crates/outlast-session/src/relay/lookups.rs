//! Looking names up for clients: a few at a time for each network, so that names whose servers do not answer keep nobody
//! else's client waiting. A lookup takes a thread until the resolver gives up, whoever waits for it.

use crate::proto::Block;
use crate::tokio::lookup::in_a_thread;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// So many at a time for the clients of one network.
const BLOCK_LOOKUPS_MAX: usize = 16;

/// And for all.
const LOOKUPS_MAX: usize = 384;

/// Of one process.
static LOOKUPS: Lookups =
    Lookups { all: Semaphore::const_new(LOOKUPS_MAX), blocks: Mutex::new(BTreeMap::new()) };

struct Lookups {
    all: Semaphore,
    /// Of networks whose clients wait for a lookup.
    blocks: Mutex<BTreeMap<Block, Arc<Semaphore>>>,
}

impl Lookups {
    /// The places of a client's network.
    fn places(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut blocks = self.blocks.lock();
        // A place that is taken, or waited for, keeps its network's.
        blocks.retain(|_, places| Arc::strong_count(places) > 1);
        let places = || Arc::new(Semaphore::new(BLOCK_LOOKUPS_MAX));
        Arc::clone(blocks.entry(Block::of(client)).or_insert_with(places))
    }
}

/// The addresses of a name, for a client.
///
/// # Errors
/// The name is unknown, or the resolver does not answer.
pub(super) async fn look_up(client: IpAddr, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let name = name.to_owned();
    let find = move || Ok((name.as_str(), port).to_socket_addrs()?.collect());
    hold_places(&LOOKUPS, client, find).await
}

/// Places are given back when `find` has returned, not when nobody waits for it any more.
async fn hold_places<T: Send + 'static>(
    lookups: &'static Lookups,
    client: IpAddr,
    find: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let closed = |_| io::Error::from(io::ErrorKind::Other);
    let own = lookups.places(client).acquire_owned().await.map_err(closed)?;
    let one = lookups.all.acquire().await.map_err(closed)?;
    in_a_thread(move || {
        let _places = (own, one);
        find()
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test]
    async fn a_network_that_waits_for_silent_resolvers_waits_alone() {
        static LOOKUPS: Lookups =
            Lookups { all: Semaphore::const_new(2 * BLOCK_LOOKUPS_MAX), blocks: Mutex::new(BTreeMap::new()) };
        let silent = IpAddr::from([192, 0, 2, 1]);
        let mut answers = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..3 * BLOCK_LOOKUPS_MAX {
            let (answer, answered) = mpsc::channel::<()>();
            answers.push(answer);
            let find = move || answered.recv().map_err(io::Error::other);
            waiting.push(tokio::spawn(hold_places(&LOOKUPS, silent, find)));
        }
        while LOOKUPS.all.available_permits() > BLOCK_LOOKUPS_MAX {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Nobody waits for these any more; their threads are still busy.
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        hold_places(&LOOKUPS, IpAddr::from([198, 51, 100, 1]), || Ok(())).await.unwrap();
        assert_eq!(LOOKUPS.all.available_permits(), BLOCK_LOOKUPS_MAX);
        drop(answers);
        while LOOKUPS.all.available_permits() < 2 * BLOCK_LOOKUPS_MAX {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        hold_places(&LOOKUPS, silent, || Ok(())).await.unwrap();
        assert_eq!(LOOKUPS.blocks.lock().len(), 1, "one network has just asked");
    }

    #[tokio::test]
    async fn names_are_looked_up() {
        let client = IpAddr::from([192, 0, 2, 1]);
        let found = look_up(client, "localhost", 7).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7), "{found:?}");
        assert!(look_up(client, "no such name", 7).await.is_err());
    }
}
