//! Long outages in the log of a client that nobody watches: what [`narrate`](crate::narrate) tells a terminal.

use crate::exit::clean;
use crate::narrate::{Narrator, seconds};
use outlast_session::{Config, OutageNews};
use std::time::Duration;

/// Shorter outages are repaired before anybody looks.
const TELL_AFTER: Duration = Duration::from_secs(10);

/// Warns of the long outages of all sessions with this configuration, for as long as the process runs.
pub fn warn_of(config: &Config, narrator: &Narrator) {
    let Some(outages) = config.outages.clone() else { return };
    if narrator.is_watched() || !tracing::enabled!(tracing::Level::WARN) {
        return;
    }
    tokio::spawn(async move {
        loop {
            let line = line(&outages.next(TELL_AFTER).await);
            tracing::warn!("{line}");
        }
    });
}

/// One line, however many sessions an outage has hit together.
fn line(news: &OutageNews) -> String {
    let (outages, lasting) = match news {
        OutageNews::Lasting(outages) => (outages, true),
        OutageNews::Over(outages) => (outages, false),
    };
    // The longest speaks for all.
    let Some(first) = outages.iter().max_by_key(|outage| outage.pause) else { return String::new() };
    let peer = first.peer.map(|peer| peer.to_string()).unwrap_or_default();
    let who = match outages.len() - 1 {
        0 => format!("session {} to {peer}", first.session),
        1 => format!("session {} to {peer} and one more", first.session),
        more => format!("session {} to {peer} and {more} more", first.session),
    };
    let pause = seconds(first.pause);
    if lasting {
        let reason = first.reason.strip_prefix(&format!("{peer}: ")).unwrap_or(&first.reason);
        format!("{who}: no link for {pause} ({}); retrying, nothing is lost", clean(reason))
    } else {
        format!("{who}: linked again after {pause}, nothing was lost")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_session::Outage;

    fn outage(session: &str, pause_ms: u64) -> Outage {
        Outage {
            session: session.repeat(32).parse().unwrap(),
            peer: Some("192.0.2.1:7000".parse().unwrap()),
            pause: Duration::from_millis(pause_ms),
            reason: "192.0.2.1:7000: Connection refused (os error 111)".into(),
        }
    }

    #[test]
    fn an_outage_is_one_line_with_its_reason() {
        assert_eq!(
            line(&OutageNews::Lasting(vec![outage("1", 10_000)])),
            "session 1111111111111111 to 192.0.2.1:7000: no link for 10.0 s (connection refused); retrying, nothing is lost"
        );
        assert_eq!(
            line(&OutageNews::Over(vec![outage("1", 75_000)])),
            "session 1111111111111111 to 192.0.2.1:7000: linked again after 1 min 15 s, nothing was lost"
        );
    }

    #[test]
    fn many_outages_together_are_one_line() {
        let three = ["1", "2", "3"].map(|session| outage(session, 20_000)).to_vec();
        assert!(line(&OutageNews::Lasting(three)).contains(" and 2 more: no link for 20.0 s"));
        let two = vec![outage("1", 10_000), outage("2", 12_000)];
        assert!(
            line(&OutageNews::Over(two))
                .starts_with("session 2222222222222222 to 192.0.2.1:7000 and one more:")
        );
    }
}
