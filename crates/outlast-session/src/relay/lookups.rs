//! Looking names up for clients: a few at a time for each network, so that names whose servers do not answer keep nobody
//! else's client waiting. A lookup takes a thread until the resolver gives up, whoever waits for it.
//!
//! A network may have as many lookups under way as a part of those that are free (dynamic thresholds: Choudhury and Hahne 1998): where
//! many networks ask for names that nobody answers for, each has fewer, and some are left for those that ask for their first.

use crate::proto::Block;
use crate::tokio::lookup::in_a_thread;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use tokio::sync::Notify;

/// For all at a time.
const LOOKUPS_MAX: usize = 384;
/// And for the clients of one network.
const BLOCK_LOOKUPS_MAX: usize = 16;
/// Of those that are free a network may have this part.
const FREE_PART: usize = 16;

/// Of one process.
static LOOKUPS: Lookups = Lookups::new(LOOKUPS_MAX);

struct Lookups {
    most: usize,
    under_way: Mutex<UnderWay>,
    ended: Notify,
}

struct UnderWay {
    count: usize,
    /// Of networks that have some.
    blocks: BTreeMap<Block, usize>,
}

impl Lookups {
    const fn new(most: usize) -> Self {
        let under_way = UnderWay { count: 0, blocks: BTreeMap::new() };
        Self { most, under_way: Mutex::new(under_way), ended: Notify::const_new() }
    }

    /// The place for one more lookup of a network, when there is one.
    async fn place(&'static self, block: Block) -> Lookup {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // What ends from here on is heard of.
            ended.as_mut().enable();
            if self.begins(block) {
                return Lookup { lookups: self, block };
            }
            ended.await;
        }
    }

    fn begins(&self, block: Block) -> bool {
        let mut under_way = self.under_way.lock();
        let free = self.most.saturating_sub(under_way.count);
        let most = (free / FREE_PART).clamp(1, BLOCK_LOOKUPS_MAX);
        let own = under_way.blocks.get(&block).copied().unwrap_or(0);
        if free == 0 || own >= most {
            return false;
        }
        under_way.count += 1;
        under_way.blocks.insert(block, own + 1);
        true
    }
}

/// One that is under way.
struct Lookup {
    lookups: &'static Lookups,
    block: Block,
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let mut under_way = self.lookups.under_way.lock();
        under_way.count -= 1;
        if let Some(own) = under_way.blocks.get_mut(&self.block) {
            *own -= 1;
            if *own == 0 {
                under_way.blocks.remove(&self.block);
            }
        }
        drop(under_way);
        self.lookups.ended.notify_waiters();
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

/// The place is given back when `find` has returned, not when nobody waits for it any more.
async fn hold_places<T: Send + 'static>(
    lookups: &'static Lookups,
    client: IpAddr,
    find: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let place = lookups.place(Block::of(client)).await;
    in_a_thread(move || {
        let _place = place;
        find()
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::task::JoinHandle;

    /// So many lookups of a network's clients whose answers come when the sender is dropped.
    fn silent(
        lookups: &'static Lookups,
        client: IpAddr,
        count: usize,
    ) -> Vec<(mpsc::Sender<()>, JoinHandle<io::Result<()>>)> {
        let one = |_| {
            let (answer, answered) = mpsc::channel::<()>();
            let find = move || answered.recv().map_err(io::Error::other);
            (answer, tokio::spawn(hold_places(lookups, client, find)))
        };
        (0..count).map(one).collect()
    }

    async fn until_under_way(lookups: &Lookups, count: usize) {
        while lookups.under_way.lock().count != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_network_that_waits_for_silent_resolvers_waits_alone() {
        static LOOKUPS: Lookups = Lookups::new(LOOKUPS_MAX);
        let client = IpAddr::from([192, 0, 2, 1]);
        let waiting = silent(&LOOKUPS, client, 3 * BLOCK_LOOKUPS_MAX);
        until_under_way(&LOOKUPS, BLOCK_LOOKUPS_MAX).await;
        // Nobody waits for these any more; their threads are still busy.
        waiting.iter().for_each(|(_, lookup)| lookup.abort());
        hold_places(&LOOKUPS, IpAddr::from([198, 51, 100, 1]), || Ok(())).await.unwrap();
        assert_eq!(LOOKUPS.under_way.lock().count, BLOCK_LOOKUPS_MAX);
        drop(waiting);
        until_under_way(&LOOKUPS, 0).await;
        hold_places(&LOOKUPS, client, || Ok(())).await.unwrap();
        assert!(LOOKUPS.under_way.lock().blocks.is_empty());
    }

    #[tokio::test]
    async fn many_networks_that_wait_for_silent_resolvers_leave_some_for_others() {
        static LOOKUPS: Lookups = Lookups::new(LOOKUPS_MAX);
        let networks = (0..60).map(|network| IpAddr::from([192, 0, network, 1]));
        let waiting: Vec<_> = networks.flat_map(|client| silent(&LOOKUPS, client, 40)).collect();
        // All have begun that may.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let count = LOOKUPS.under_way.lock().count;
        assert!(count > LOOKUPS_MAX / 2 && count <= LOOKUPS_MAX - FREE_PART, "{count} of {LOOKUPS_MAX}");
        hold_places(&LOOKUPS, IpAddr::from([198, 51, 100, 1]), || Ok(())).await.unwrap();
        drop(waiting);
        until_under_way(&LOOKUPS, 0).await;
    }

    #[tokio::test]
    async fn names_are_looked_up() {
        let client = IpAddr::from([192, 0, 2, 1]);
        let found = look_up(client, "localhost", 7).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7), "{found:?}");
        assert!(look_up(client, "no such name", 7).await.is_err());
    }
}
