//! Last words for sessions: said to their servers until they have been heard. By the watcher, when its relay has died; by the
//! relay itself, for sessions that it has given up while their servers could not be reached.

use super::table::{Noted, Slot};
use super::{Server, sys};
use outlast_session::tokio::say_last_word;
use outlast_session::{Config, LastWord, Targets};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinError, JoinSet};

/// Servers that are spoken to at a time: quick with thousands of sessions, and no crowd at a server's door.
const AT_ONCE: usize = 32;
/// A server that is there hears it in milliseconds, one that is being restarted within a second. Default 10 s for one try.
const REACHED_WITHIN: Duration = Duration::from_secs(10);
/// Between two tries: at first, and at the most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A network may be gone for minutes, a machine for as long as it takes to move it. After that `--keep` decides, so that
/// watchers of a relay that is killed again and again do not add up. Default 1 h.
pub const TRIED_FOR: Duration = Duration::from_secs(3600);

/// What is still to be said, and to whom.
pub struct Words {
    relay: u32,
    /// Every address for itself.
    servers: Vec<(Targets, Arc<Config>)>,
    /// Of each server in the table: which of those.
    places: Vec<Range<usize>>,
    /// By any number.
    left: BTreeMap<u64, Word>,
    next: u64,
}

/// One session at one address that may have it.
struct Word {
    word: LastWord,
    place: usize,
    given_up: bool,
    since: Instant,
    /// Of the relay itself: the record, until every address has heard it.
    slot: Option<Arc<Slot>>,
}

impl Words {
    /// Nothing yet. `relay` is the process whose sessions these are.
    pub fn new(servers: &[Server], relay: u32) -> Self {
        let mut reached = Vec::new();
        let mut places = Vec::new();
        for server in servers {
            let first = reached.len();
            match server.reached() {
                Ok((targets, config)) => {
                    reached.extend(targets.into_iter().map(|targets| (targets, Arc::clone(&config))));
                }
                Err(error) => sys::warn(&format!("cannot tell {} anything: {error:#}", server.targets)),
            }
            places.push(first..reached.len());
        }
        Self { relay, servers: reached, places, left: BTreeMap::new(), next: 0 }
    }

    /// One more. Each address may be the one that has the session: the others know nothing of it.
    pub fn take_up(&mut self, noted: Noted, slot: Option<Slot>) {
        let slot = slot.map(Arc::new);
        let places = usize::try_from(noted.server).ok().and_then(|number| self.places.get(number)).cloned();
        for place in places.unwrap_or_default() {
            let Noted { word, given_up, .. } = noted.clone();
            let word = Word { word, place, given_up, since: Instant::now(), slot: slot.clone() };
            self.left.insert(self.next, word);
            self.next += 1;
        }
    }

    fn take_slot(&mut self, slot: Slot) {
        match slot.noted() {
            Some(noted) => self.take_up(noted, Some(slot)),
            None => slot.said(),
        }
    }

    /// Says everything, again and again where a server cannot be reached.
    pub async fn say(&mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            self.say_once().await;
            if self.left.is_empty() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn say_once(&mut self) {
        let mut silent = BTreeSet::new();
        let mut saying = JoinSet::new();
        let all: Vec<u64> = self.left.keys().copied().collect();
        for key in all {
            while saying.len() >= AT_ONCE {
                self.said(saying.join_next().await, &mut silent);
            }
            let Some(Word { word, place, given_up, .. }) = self.left.get(&key) else { continue };
            // Nobody waits for a server that has just been found away, least of all those of another one.
            if silent.contains(place) {
                continue;
            }
            let Some((targets, config)) = self.servers.get(*place).cloned() else { continue };
            let (word, place, reason) = (word.clone(), *place, self.reason(*given_up));
            saying.spawn(async move {
                let told = say_last_word(word, &reason, &targets, &config);
                (key, place, tokio::time::timeout(REACHED_WITHIN, told).await.unwrap_or(false))
            });
        }
        while let Some(said) = saying.join_next().await {
            self.said(Some(said), &mut silent);
        }
    }

    fn said(&mut self, said: Option<Result<(u64, usize, bool), JoinError>>, silent: &mut BTreeSet<usize>) {
        match said {
            Some(Ok((key, _, true))) => self.forget(key),
            Some(Ok((_, place, false))) => drop(silent.insert(place)),
            _ => {}
        }
    }

    fn forget(&mut self, key: u64) {
        let slot = self.left.remove(&key).and_then(|word| word.slot).and_then(Arc::into_inner);
        slot.into_iter().for_each(Slot::said);
    }

    fn reason(&self, given_up: bool) -> String {
        let relay = self.relay;
        if given_up {
            format!(
                "the relay at the client (process {relay}) ended it while this server could not be reached"
            )
        } else {
            format!("the relay at the client (process {relay}) was killed, or has crashed")
        }
    }

    /// What was not heard, for people. `why` it is not said any more.
    pub fn leave_unsaid(&mut self, why: &str) {
        self.leave_unsaid_since(Instant::now(), why);
    }

    /// The same, of those that were to be said so early.
    fn leave_unsaid_since(&mut self, since: Instant, why: &str) {
        let old = self.left.iter().filter(|(_, word)| word.since <= since);
        let old: Vec<(u64, (usize, bool))> =
            old.map(|(key, word)| (*key, (word.place, word.given_up))).collect();
        let mut counts = BTreeMap::new();
        for (key, of) in old {
            *counts.entry(of).or_insert(0) += 1;
            self.forget(key);
        }
        for ((place, given_up), count) in counts {
            let Some((targets, _)) = self.servers.get(place) else { continue };
            let (sessions, them) = if count == 1 {
                ("1 session".to_owned(), "it")
            } else {
                (format!("{count} sessions"), "them")
            };
            let what = if given_up {
                format!("process {} could not reach {targets} when it ended {sessions}", self.relay)
            } else {
                format!("{}; could not ask {targets} to end {sessions}", self.reason(false))
            };
            sys::warn(&format!(
                "{what}: gave up ({why}); that server keeps {them} until its --keep is over, or `outlast kill` there ends {them}"
            ));
        }
    }
}

/// Says the last words of sessions that this process has given up itself, as they come.
pub async fn say_given_up(servers: &[Server], mut given_up: UnboundedReceiver<Slot>) {
    while let Some(slot) = given_up.recv().await {
        let mut words = Words::new(servers, std::process::id());
        words.take_slot(slot);
        let mut pause = PAUSE_MIN;
        while !words.left.is_empty() {
            while let Ok(slot) = given_up.try_recv() {
                words.take_slot(slot);
            }
            words.say_once().await;
            if let Some(since) = Instant::now().checked_sub(TRIED_FOR) {
                words.leave_unsaid_since(since, "no answer for an hour");
            }
            if !words.left.is_empty() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}
