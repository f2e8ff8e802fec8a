//! Looking names up for clients: a few at a time for each network, so that names whose servers do not answer keep nobody
//! else's client waiting. A lookup takes a thread until the resolver gives up, whoever waits for it.
//!
//! A network may have as many lookups under way as a part of those that are free (dynamic thresholds: Choudhury and Hahne 1998): where
//! many networks ask for names that nobody answers for, each has fewer, and some are left for those that ask for their first. Who waits
//! is next when its network has the fewest under way.

use crate::proto::Block;
use crate::tokio::lookup::in_a_thread;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use tokio::sync::oneshot;

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
    state: Mutex<State>,
}

struct State {
    under_way: usize,
    /// Those with clients that wait, or whose names are being looked up.
    networks: BTreeMap<Block, Network>,
    /// Networks with clients that wait: who has the fewest lookups under way is next, and of these who has waited for longest.
    next: BTreeSet<(usize, u64, Block)>,
    next_number: u64,
}

#[derive(Default)]
struct Network {
    under_way: usize,
    /// By when they came.
    waiting: BTreeMap<u64, oneshot::Sender<Lookup>>,
}

impl State {
    /// How many a network may have under way now.
    fn block_lookups_max(&self, most: usize) -> usize {
        match most.saturating_sub(self.under_way) {
            0 => 0,
            free => (free / FREE_PART).clamp(1, BLOCK_LOOKUPS_MAX),
        }
    }

    /// Changes what is known of a network, and where it stands among those that wait.
    fn change<T>(&mut self, block: Block, change: impl FnOnce(&mut Network) -> T) -> T {
        let network = self.networks.entry(block).or_default();
        let stands = |network: &Network| {
            network.waiting.first_key_value().map(|(number, _)| (network.under_way, *number, block))
        };
        let before = stands(network);
        let changed = change(network);
        let after = stands(network);
        if network.under_way == 0 && after.is_none() {
            self.networks.remove(&block);
        }
        if before != after {
            before.map(|before| self.next.remove(&before));
            after.map(|after| self.next.insert(after));
        }
        changed
    }

    fn begin(&mut self, block: Block) {
        self.under_way += 1;
        self.change(block, |network| network.under_way += 1);
    }

    /// The client that may have its name looked up next, if one may.
    fn take_next(&mut self, most: usize) -> Option<(Block, oneshot::Sender<Lookup>)> {
        let &(under_way, _, block) = self.next.first()?;
        if under_way >= self.block_lookups_max(most) {
            return None;
        }
        let (_, client) = self.change(block, |network| network.waiting.pop_first())?;
        self.begin(block);
        Some((block, client))
    }
}

impl Lookups {
    const fn new(most: usize) -> Self {
        let state = State { under_way: 0, networks: BTreeMap::new(), next: BTreeSet::new(), next_number: 0 };
        Self { most, state: Mutex::new(state) }
    }

    /// The place for one more lookup of a network, when there is one.
    async fn place(&'static self, block: Block) -> Lookup {
        loop {
            let mut waits = match self.enter(block) {
                Ok(lookup) => return lookup,
                Err(waits) => waits,
            };
            if let Ok(lookup) = (&mut waits.place).await {
                return lookup;
            }
        }
    }

    fn enter(&'static self, block: Block) -> Result<Lookup, Waits> {
        let mut state = self.state.lock();
        // Behind those of its network that wait.
        let is_first = state.networks.get(&block).is_none_or(|network| network.waiting.is_empty());
        let own = state.networks.get(&block).map_or(0, |network| network.under_way);
        if is_first && own < state.block_lookups_max(self.most) {
            state.begin(block);
            return Ok(Lookup { lookups: self, block });
        }
        let (client, place) = oneshot::channel();
        let number = state.next_number;
        state.next_number += 1;
        state.change(block, |network| network.waiting.insert(number, client));
        Err(Waits { lookups: self, block, number, place })
    }

    /// Gives the places that are free to those that wait.
    fn hand_on(&'static self) {
        loop {
            let Some((block, client)) = self.state.lock().take_next(self.most) else { return };
            // The error is the place.
            if let Err(lookup) = client.send(Lookup { lookups: self, block }) {
                // The client has just left.
                lookup.end();
            }
        }
    }
}

/// One that is under way.
struct Lookup {
    lookups: &'static Lookups,
    block: Block,
}

impl Lookup {
    /// Without a place for another one.
    fn end(self) {
        self.count_out();
        std::mem::forget(self);
    }

    fn count_out(&self) {
        let mut state = self.lookups.state.lock();
        state.under_way -= 1;
        state.change(self.block, |network| network.under_way -= 1);
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        self.count_out();
        self.lookups.hand_on();
    }
}

/// A client whose name is to be looked up.
struct Waits {
    lookups: &'static Lookups,
    block: Block,
    number: u64,
    place: oneshot::Receiver<Lookup>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        // A place that it was given meanwhile is given back with `place`.
        let waiting =
            self.lookups.state.lock().change(self.block, |network| network.waiting.remove(&self.number));
        drop(waiting);
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
        while lookups.state.lock().under_way != count {
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
        assert_eq!(LOOKUPS.state.lock().under_way, BLOCK_LOOKUPS_MAX);
        drop(waiting);
        until_under_way(&LOOKUPS, 0).await;
        hold_places(&LOOKUPS, client, || Ok(())).await.unwrap();
        assert!(LOOKUPS.state.lock().networks.is_empty());
    }

    #[tokio::test]
    async fn many_networks_that_wait_for_silent_resolvers_leave_some_for_others() {
        static LOOKUPS: Lookups = Lookups::new(LOOKUPS_MAX);
        let networks = (0..60).map(|network| IpAddr::from([192, 0, network, 1]));
        let waiting: Vec<_> = networks.flat_map(|client| silent(&LOOKUPS, client, 40)).collect();
        // All have begun that may.
        let (mut before, mut count) = (0, 1);
        while count != before {
            tokio::time::sleep(Duration::from_millis(100)).await;
            (before, count) = (count, LOOKUPS.state.lock().under_way);
        }
        assert!(count > LOOKUPS_MAX / 2 && count < LOOKUPS_MAX, "{count} of {LOOKUPS_MAX}");
        hold_places(&LOOKUPS, IpAddr::from([198, 51, 100, 1]), || Ok(())).await.unwrap();
        drop(waiting);
        until_under_way(&LOOKUPS, 0).await;
    }

    /// A network with many clients that wait, and one whose first client comes after all those.
    #[tokio::test]
    async fn the_network_with_the_fewest_under_way_is_next_and_each_waits_once() {
        static LOOKUPS: Lookups = Lookups::new(2);
        let [greedy, modest] = [1, 2].map(|network| IpAddr::from([192, 0, network, 1]));
        let mut waiting = silent(&LOOKUPS, greedy, 1);
        waiting.extend(silent(&LOOKUPS, IpAddr::from([192, 0, 3, 1]), 1));
        until_under_way(&LOOKUPS, 2).await;
        waiting.extend(silent(&LOOKUPS, greedy, 20));
        tokio::time::sleep(Duration::from_millis(20)).await;
        waiting.extend(silent(&LOOKUPS, modest, 1));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(LOOKUPS.state.lock().next.len(), 2);
        // Clients that leave are forgotten.
        for (_, lookup) in waiting.drain(2..12) {
            lookup.abort();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(LOOKUPS.state.lock().networks[&Block::of(greedy)].waiting.len(), 10);
        // The third network's answer comes: its place is the modest one's.
        let (answer, lookup) = waiting.remove(1);
        answer.send(()).unwrap();
        lookup.await.unwrap().unwrap();
        until_under_way(&LOOKUPS, 2).await;
        assert_eq!(LOOKUPS.state.lock().networks[&Block::of(modest)].under_way, 1);
        waiting.into_iter().for_each(drop);
        until_under_way(&LOOKUPS, 0).await;
        let state = LOOKUPS.state.lock();
        assert!(state.networks.is_empty() && state.next.is_empty());
    }

    #[tokio::test]
    async fn names_are_looked_up() {
        let client = IpAddr::from([192, 0, 2, 1]);
        let found = look_up(client, "localhost", 7).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7), "{found:?}");
        assert!(look_up(client, "no such name", 7).await.is_err());
    }
}
