//! Sessions that have been without a link for long: each is reported once, and those that have a link cost nothing.

use crate::engine::EventKind;
use crate::proto::SessionId;
use ::tokio::sync::Notify;
use ::tokio::time::{Instant, sleep_until};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The outages of all client sessions whose [`Config`](crate::Config) names it.
///
/// A session is in the table from the loss of its link to the next one, and at no other time. Whoever waits for
/// [`next`](Self::next) sleeps without a time-out while there is no outage.
#[derive(Clone, Debug, Default)]
pub struct Outages(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    /// Somebody has to look at the table sooner than was known.
    news: Notify,
}

#[derive(Debug, Default)]
struct Table {
    lost: BTreeMap<SessionId, Lost>,
    /// Those in `lost` that were not told of.
    untold: usize,
    /// Told of as lost, and resumed since.
    back: Vec<Outage>,
}

#[derive(Debug)]
struct Lost {
    since: Instant,
    peer: Option<SocketAddr>,
    reason: String,
    told: bool,
}

/// One session's outage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The session.
    pub session: SessionId,
    /// Where its link led.
    pub peer: Option<SocketAddr>,
    /// How long it has had no link that works, or had none: from the last that is known to have passed.
    pub pause: Duration,
    /// Why there was no link, when that was last tried.
    pub reason: String,
}

/// What [`Outages::next`] waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutageNews {
    /// These sessions have been without a link for long.
    Lasting(Vec<Outage>),
    /// These were, and have a link again.
    Over(Vec<Outage>),
}

impl Outages {
    /// Waits until sessions have been without a link for as long as `tell_after`, or those that were have one again. A
    /// session that ends in its outage is not told of: it has an error that says so.
    pub async fn next(&self, tell_after: Duration) -> OutageNews {
        loop {
            let news = self.0.news.notified();
            let due = match self.0.table.lock().look(tell_after) {
                Ok(found) => return found,
                Err(due) => due,
            };
            match due {
                None => news.await,
                Some(due) => ::tokio::select! {
                    () = news => {}
                    () = sleep_until(due) => {}
                },
            }
        }
    }

    /// Something happened to a client's session.
    /// `since`: when the last passed that is known to have.
    pub(crate) fn note(
        &self,
        session: SessionId,
        peer: Option<SocketAddr>,
        since: Option<std::time::Instant>,
        event: &EventKind,
    ) {
        let mut table = self.0.table.lock();
        let news = match event {
            EventKind::Lost { cause } => {
                let now = Instant::now();
                let noticed_after = since.map_or(Duration::ZERO, |since| since.elapsed());
                let since = now.checked_sub(noticed_after).unwrap_or(now);
                let lost = Lost { since, peer, reason: cause.clone(), told: false };
                let known = table.lost.insert(session, lost);
                table.untold += usize::from(known.is_none_or(|known| known.told));
                table.untold == 1
            }
            EventKind::Retry { error, .. } => {
                if let Some(lost) = table.lost.get_mut(&session) {
                    lost.reason.clone_from(error);
                }
                false
            }
            EventKind::Resumed { .. } => table.over(session, true),
            EventKind::Closed | EventKind::Failed(_) => table.over(session, false),
            _ => false,
        };
        drop(table);
        if news {
            self.0.news.notify_one();
        }
    }
}

impl Table {
    /// What there is to tell now, or when to look again.
    fn look(&mut self, tell_after: Duration) -> Result<OutageNews, Option<Instant>> {
        if !self.back.is_empty() {
            return Ok(OutageNews::Over(std::mem::take(&mut self.back)));
        }
        if self.untold == 0 {
            return Err(None);
        }
        let now = Instant::now();
        let mut due: Option<Instant> = None;
        let mut lasting = Vec::new();
        for (session, lost) in self.lost.iter_mut().filter(|(_, lost)| !lost.told) {
            let at = lost.since + tell_after;
            if at <= now {
                lost.told = true;
                lasting.push(lost.outage(*session));
            } else {
                due = Some(due.map_or(at, |due| due.min(at)));
            }
        }
        self.untold -= lasting.len();
        if lasting.is_empty() { Err(due) } else { Ok(OutageNews::Lasting(lasting)) }
    }

    /// The session's outage is over. True if that is worth telling.
    fn over(&mut self, session: SessionId, resumed: bool) -> bool {
        let Some(lost) = self.lost.remove(&session) else { return false };
        if !lost.told {
            self.untold -= 1;
            return false;
        }
        if resumed {
            self.back.push(lost.outage(session));
        }
        resumed
    }
}

impl Lost {
    fn outage(&self, session: SessionId) -> Outage {
        Outage { session, peer: self.peer, pause: self.since.elapsed(), reason: self.reason.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::proto::LinkMode;

    const LONG: Duration = Duration::from_secs(10);

    fn id(number: u8) -> SessionId {
        SessionId::from_bytes([number; 16])
    }

    fn lost(outages: &Outages, number: u8) {
        outages.note(id(number), None, None, &EventKind::Lost { cause: "reset".into() });
    }

    fn resumed(outages: &Outages, number: u8) {
        let peer = "192.0.2.1:1".parse().unwrap();
        let (mode, pause) = (LinkMode::Kernel, Duration::ZERO);
        let event = EventKind::Resumed { epoch: 2, mode, pause, resent_bytes: 0, peer };
        outages.note(id(number), None, None, &event);
    }

    fn names(outages: &[Outage]) -> Vec<SessionId> {
        outages.iter().map(|outage| outage.session).collect()
    }

    /// Whether nothing is told for a day.
    async fn is_silent(outages: &Outages) -> bool {
        ::tokio::time::timeout(Duration::from_secs(24 * 3600), outages.next(LONG)).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_outage_is_told_once_with_the_latest_reason_and_so_is_its_end() {
        let outages = Outages::default();
        let began = Instant::now();
        lost(&outages, 1);
        let retry = EventKind::Retry { attempt: 1, error: "no route".into(), next: LONG };
        outages.note(id(1), None, None, &retry);
        let told = outages.next(LONG).await;
        assert_eq!(began.elapsed().as_secs(), LONG.as_secs());
        let OutageNews::Lasting(lasting) = told else { panic!("{told:?}") };
        assert_eq!((names(&lasting), lasting[0].reason.as_str()), (vec![id(1)], "no route"));
        assert!(is_silent(&outages).await);
        resumed(&outages, 1);
        let told = outages.next(LONG).await;
        let OutageNews::Over(over) = told else { panic!("{told:?}") };
        assert_eq!(names(&over), [id(1)]);
        assert!(over[0].pause > Duration::from_secs(24 * 3600));
        assert!(is_silent(&outages).await);
    }

    #[tokio::test(start_paused = true)]
    async fn short_outages_and_sessions_that_end_are_not_told() {
        let outages = Outages::default();
        lost(&outages, 1);
        lost(&outages, 2);
        resumed(&outages, 1);
        outages.note(id(2), None, None, &EventKind::Closed);
        assert!(is_silent(&outages).await);
        lost(&outages, 3);
        assert!(matches!(outages.next(LONG).await, OutageNews::Lasting(_)));
        outages.note(id(3), None, None, &EventKind::Failed(Error::killed(id(3))));
        assert!(is_silent(&outages).await);
        assert!(outages.0.table.lock().lost.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleeper_hears_of_outages_that_begin_later_and_tells_them_together() {
        let outages = Outages::default();
        let waiting = ::tokio::spawn({
            let outages = outages.clone();
            async move { (outages.next(LONG).await, outages.next(LONG).await) }
        });
        ::tokio::time::sleep(LONG).await;
        lost(&outages, 1);
        lost(&outages, 2);
        ::tokio::time::sleep(LONG / 2).await;
        lost(&outages, 3);
        let (first, second) = waiting.await.unwrap();
        let OutageNews::Lasting(first) = first else { panic!("{first:?}") };
        let OutageNews::Lasting(second) = second else { panic!("{second:?}") };
        assert_eq!((names(&first), names(&second)), (vec![id(1), id(2)], vec![id(3)]));
    }
}
