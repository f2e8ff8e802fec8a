//! What is held, for whom, and how much of it at the most. No descriptor is looked at here: they are values of any type.

use super::Refusal;
use std::collections::BTreeMap;

/// A service of a user. Two users may each have one of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Service {
    /// The user, as the kernel says.
    pub uid: u32,
    /// What it calls itself.
    pub name: String,
}

/// How much is held at the most, for all services together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Descriptors.
    pub descriptors_max: usize,
    /// Bytes of names and states.
    pub bytes_max: usize,
    /// After a service has gone, what is held for it is held so long.
    pub keep_ms: u64,
}

/// Everything that is held.
#[derive(Debug)]
pub struct Store<D> {
    limits: Limits,
    services: BTreeMap<Service, Held<D>>,
    descriptors: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Held<D> {
    entries: BTreeMap<String, Entry<D>>,
    /// The service is not connected since then, in milliseconds of whatever clock the caller has.
    away_since_ms: Option<u64>,
}

#[derive(Debug)]
struct Entry<D> {
    descriptor: D,
    state: Vec<u8>,
}

impl<D> Store<D> {
    /// Nothing is held yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, services: BTreeMap::new(), descriptors: 0, bytes: 0 }
    }

    /// The service is there. How many descriptors are held for it.
    pub fn join(&mut self, service: &Service) -> usize {
        let held = self
            .services
            .entry(service.clone())
            .or_insert_with(|| Held { entries: BTreeMap::new(), away_since_ms: None });
        held.away_since_ms = None;
        held.entries.len()
    }

    /// The service has gone, at `now_ms`. How many descriptors are held on for it.
    pub fn leave(&mut self, service: &Service, now_ms: u64) -> usize {
        let Some(held) = self.services.get_mut(service) else { return 0 };
        held.away_since_ms = Some(now_ms);
        let count = held.entries.len();
        if count == 0 {
            self.services.remove(service);
        }
        count
    }

    /// Holds a descriptor for a service that is there, instead of the one of this name. How many are held for it now.
    ///
    /// # Errors
    /// A limit is reached: what was held before is held on, and this one dropped.
    pub fn keep(
        &mut self,
        service: &Service,
        name: &str,
        descriptor: D,
        state: &[u8],
    ) -> Result<usize, Refusal> {
        let Some(held) = self.services.get_mut(service) else { return Err(Refusal::Order) };
        let before = held.entries.get(name);
        let descriptors = self.descriptors + usize::from(before.is_none());
        let bytes_before = before.map_or(0, |entry| name.len() + entry.state.len());
        let bytes = self.bytes - bytes_before + name.len() + state.len();
        if descriptors > self.limits.descriptors_max {
            return Err(Refusal::Descriptors);
        }
        if bytes > self.limits.bytes_max {
            return Err(Refusal::Bytes);
        }
        (self.descriptors, self.bytes) = (descriptors, bytes);
        held.entries.insert(name.to_owned(), Entry { descriptor, state: state.to_vec() });
        Ok(held.entries.len())
    }

    /// Other state for a descriptor that is held.
    ///
    /// # Errors
    /// It is not, or there is no room: the state is as before.
    pub fn update(&mut self, service: &Service, name: &str, state: &[u8]) -> Result<usize, Refusal> {
        let held = self.services.get_mut(service).ok_or(Refusal::Order)?;
        let count = held.entries.len();
        let entry = held.entries.get_mut(name).ok_or(Refusal::Unknown)?;
        let bytes = self.bytes - entry.state.len() + state.len();
        if bytes > self.limits.bytes_max {
            return Err(Refusal::Bytes);
        }
        self.bytes = bytes;
        entry.state.clear();
        entry.state.extend(state);
        Ok(count)
    }

    /// Drops a descriptor, if it is held. How many are held for the service now.
    pub fn release(&mut self, service: &Service, name: &str) -> usize {
        let Some(held) = self.services.get_mut(service) else { return 0 };
        if let Some(entry) = held.entries.remove(name) {
            self.descriptors -= 1;
            self.bytes -= name.len() + entry.state.len();
        }
        held.entries.len()
    }

    /// What is held for a service, in the order of the names.
    pub fn names(&self, service: &Service) -> Vec<String> {
        self.services.get(service).map(|held| held.entries.keys().cloned().collect()).unwrap_or_default()
    }

    /// A descriptor and its state.
    #[must_use]
    pub fn get(&self, service: &Service, name: &str) -> Option<(&D, &[u8])> {
        let entry = self.services.get(service)?.entries.get(name)?;
        Some((&entry.descriptor, &entry.state))
    }

    /// Drops every descriptor that is not `wanted`. How many.
    pub fn retain(&mut self, mut wanted: impl FnMut(&D) -> bool) -> usize {
        let (descriptors, bytes) = (&mut self.descriptors, &mut self.bytes);
        let before = *descriptors;
        self.services.retain(|_, held| {
            held.entries.retain(|name, entry| {
                let stays = wanted(&entry.descriptor);
                if !stays {
                    *descriptors -= 1;
                    *bytes -= name.len() + entry.state.len();
                }
                stays
            });
            held.away_since_ms.is_none() || !held.entries.is_empty()
        });
        before - self.descriptors
    }

    /// Drops everything of services that are gone for too long: these, and how many descriptors each had.
    pub fn expire(&mut self, now_ms: u64) -> Vec<(Service, usize)> {
        let mut expired = Vec::new();
        let keep_ms = self.limits.keep_ms;
        let over =
            |held: &Held<D>| held.away_since_ms.is_some_and(|since| now_ms >= since.saturating_add(keep_ms));
        while let Some(service) =
            self.services.iter().find(|(_, held)| over(held)).map(|(service, _)| service.clone())
        {
            let names = self.names(&service);
            for name in &names {
                self.release(&service, name);
            }
            self.services.remove(&service);
            expired.push((service, names.len()));
        }
        expired
    }

    /// When the next service is gone for too long.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        let times = self.services.values().filter_map(|held| held.away_since_ms);
        times.min().map(|since| since.saturating_add(self.limits.keep_ms))
    }

    /// Descriptors held for everybody.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.descriptors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn service(name: &str) -> Service {
        Service { uid: 1, name: name.to_owned() }
    }

    const LIMITS: Limits = Limits { descriptors_max: 3, bytes_max: 20, keep_ms: 100 };

    #[test]
    fn what_a_service_leaves_waits_for_the_next_one_of_this_user() {
        let mut store = Store::new(LIMITS);
        let echo = service("echo");
        assert_eq!(store.join(&echo), 0);
        assert_eq!(store.keep(&echo, "a", 10, b"first"), Ok(1));
        assert_eq!(store.keep(&echo, "a", 11, b"then"), Ok(1));
        assert_eq!(store.update(&echo, "a", b"now"), Ok(1));
        assert_eq!(store.leave(&echo, 5), 1);
        assert_eq!(store.expire(104), []);
        assert_eq!(store.join(&Service { uid: 2, ..echo.clone() }), 0);
        assert_eq!(store.join(&echo), 1);
        assert_eq!(
            (store.names(&echo), store.get(&echo, "a")),
            (vec!["a".to_owned()], Some((&11, &b"now"[..])))
        );
        assert_eq!((store.expire(u64::MAX), store.next_expiry_ms()), (vec![], None));
        store.leave(&echo, 200);
        assert_eq!(store.next_expiry_ms(), Some(300));
        assert_eq!(store.expire(300), [(echo, 1)]);
        assert_eq!((store.descriptors(), store.bytes), (0, 0));
    }

    #[test]
    fn limits_hold_and_what_is_refused_changes_nothing() {
        let mut store = Store::new(LIMITS);
        let (a, b) = (service("a"), service("b"));
        assert_eq!(store.keep(&a, "x", 0, b""), Err(Refusal::Order));
        store.join(&a);
        store.join(&b);
        assert_eq!(store.keep(&a, "x", 1, &[0; 9]), Ok(1));
        assert_eq!(store.keep(&b, "x", 2, &[0; 9]), Ok(1));
        assert_eq!(store.keep(&b, "y", 3, b""), Err(Refusal::Bytes));
        assert_eq!(store.update(&b, "x", &[0; 10]), Err(Refusal::Bytes));
        assert_eq!(store.update(&b, "y", b""), Err(Refusal::Unknown));
        assert_eq!(store.keep(&b, "x", 4, b""), Ok(1));
        assert_eq!(store.keep(&b, "y", 5, b""), Ok(2));
        assert_eq!(store.keep(&b, "z", 6, b""), Err(Refusal::Descriptors));
        assert_eq!((store.release(&b, "z"), store.release(&b, "y")), (2, 1));
        assert_eq!(store.get(&a, "x"), Some((&1, &[0; 9][..])));
        assert_eq!(store.retain(|descriptor| *descriptor != 4), 1);
        assert_eq!((store.names(&b), store.descriptors(), store.bytes), (vec![], 1, 10));
    }

    /// Whatever is done in whatever order: the counts are those of what is there, and nothing that was dropped lives on.
    #[test]
    fn the_counts_are_right_after_any_history() {
        let mut random = crate::random::Random(7);
        let mut below = |bound| random.size(bound);
        for _ in 0..200 {
            let limits = Limits { descriptors_max: 1 + below(9), bytes_max: below(60), keep_ms: 20 };
            let mut store = Store::new(limits);
            let witness = Rc::new(());
            for now_ms in 0..300 {
                let of = service(["a", "b", "c"][below(3)]);
                let name = ["one", "two", "three", "four"][below(4)];
                match below(8) {
                    0 => drop(store.join(&of)),
                    1 => drop(store.leave(&of, now_ms)),
                    2 => drop(store.release(&of, name)),
                    3 => drop(store.update(&of, name, &vec![0; below(20)])),
                    4 => drop(store.expire(now_ms)),
                    5 => drop(store.retain(|_| below(9) > 0)),
                    _ => drop(store.keep(&of, name, Rc::clone(&witness), &vec![0; below(20)])),
                }
                let entries = || store.services.values().flat_map(|held| &held.entries);
                assert_eq!(store.descriptors, entries().count());
                assert_eq!(store.bytes, entries().map(|(name, entry)| name.len() + entry.state.len()).sum());
                assert_eq!(Rc::strong_count(&witness), store.descriptors + 1);
                assert!(store.descriptors <= limits.descriptors_max && store.bytes <= limits.bytes_max);
            }
        }
    }
}
