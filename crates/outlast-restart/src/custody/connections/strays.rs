//! Connections that nobody will ever accept: the program's next start listens at other addresses than the one before.

use super::Connections;
use crate::custody::address::Address;
use crate::custody::listeners::Listeners;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So long after its listening socket was given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// By their numbers, and since when they are known to be some.
#[derive(Debug, Default)]
pub(super) struct Strays(BTreeMap<u32, Instant>);

impl Connections {
    /// The program is started again, and has as much time to listen as before.
    pub(in crate::custody) fn begin(&mut self) {
        self.strays = Strays::default();
    }

    /// Closes those that nobody serves, and that have come to an address at which the program, which serves by now, does not
    /// listen any more: how many. Clients connect anew then, and see what they would see without this one.
    pub(in crate::custody) fn close_strays(&mut self, listeners: &Listeners, now: Instant) -> u32 {
        if self.loose.is_empty() {
            self.strays = Strays::default();
            return 0;
        }
        let served: Vec<&Address> = listeners.served().collect();
        let is_served = |address: &Address| served.iter().any(|listener| address.came_to(listener));
        let is_stray = |number: &u32| {
            let address = self.all.get(number).and_then(|held| held.address.as_ref());
            !address.is_some_and(is_served)
        };
        let before = std::mem::take(&mut self.strays.0);
        let strays = self.loose.numbers().filter(is_stray);
        let strays = strays.map(|number| (number, before.get(&number).copied().unwrap_or(now)));
        let is_over = |(_, since): &(u32, Instant)| now.duration_since(*since) >= PATIENCE;
        let (over, strays): (Vec<_>, Vec<_>) = strays.partition(is_over);
        over.iter().for_each(|(number, _)| self.drop(*number));
        // Another connection may have the number of one that is dropped.
        self.strays = Strays(strays.into_iter().collect());
        u32::try_from(over.len()).unwrap_or(u32::MAX)
    }
}
