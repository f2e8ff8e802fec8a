//! Connections that nobody will ever accept: the program's next start listens at other addresses than the one before.

use super::{Connection, Connections};
use crate::custody::listeners::Listeners;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
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
        for number in self.loose.numbers().collect::<Vec<_>>() {
            if let Some(held) = self.all.get_mut(&number) {
                held.tries = 0;
            }
        }
    }

    /// Closes those that nobody serves, and that have come to an address at which the program, which serves by now, does not
    /// listen any more, or listens as somebody who may not have them: how many. Clients connect again then, and see what they
    /// would see without this one.
    pub(in crate::custody) fn close_strays(&mut self, listeners: &Listeners, now: Instant) -> u32 {
        if self.loose.is_empty() {
            self.strays = Strays::default();
            return 0;
        }
        let reached = listeners.reached();
        let is_served = |held: &Connection| {
            let address = held.address.as_ref()?;
            reached.iter().any(|listener| listener.serves(address, held.socket.as_fd())).then_some(())
        };
        let is_stray = |number: &u32| self.all.get(number).and_then(is_served).is_none();
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
