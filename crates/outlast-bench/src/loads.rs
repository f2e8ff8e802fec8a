//! Clients by the hundred: each sends requests, with work for the server, as fast as answers come or at a pace.

use crate::stats::Latencies;
use crate::wire::asynchronous::Stream;
use crate::wire::{REQUEST_BYTES, wants};
use anyhow::{Context, Result};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What a server does for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing.
    None,
    /// Waits, as for a disk or another server.
    Sleep(Duration),
    /// Computes.
    Spin(Duration),
}

impl Work {
    const NONE: u8 = 0;
    const SLEEP: u8 = 1;
    const SPIN: u8 = 2;

    /// The request for it.
    pub fn request(self) -> [u8; REQUEST_BYTES] {
        let (code, time) = match self {
            Work::None => (Self::NONE, Duration::ZERO),
            Work::Sleep(time) => (Self::SLEEP, time),
            Work::Spin(time) => (Self::SPIN, time),
        };
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX).to_le_bytes();
        let mut request = [0; REQUEST_BYTES];
        request[0] = wants::WORK;
        request[1] = code;
        request[2..6].copy_from_slice(&micros);
        request
    }

    /// What a request asks for.
    pub fn of_request(request: &[u8; REQUEST_BYTES]) -> Self {
        let micros = u32::from_le_bytes([request[2], request[3], request[4], request[5]]);
        let time = Duration::from_micros(u64::from(micros));
        match request[1] {
            Self::SLEEP => Work::Sleep(time),
            Self::SPIN => Work::Spin(time),
            _ => Work::None,
        }
    }

    /// Does it.
    pub async fn perform(self) {
        match self {
            Work::None => {}
            Work::Sleep(time) => tokio::time::sleep(time).await,
            Work::Spin(time) => {
                let end = std::time::Instant::now() + time;
                while std::time::Instant::now() < end {
                    std::hint::spin_loop();
                }
            }
        }
    }
}

/// When a client sends its next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As soon as it has the answer: shows what the server can do.
    Closed,
    /// Once in this time, all clients evenly spread: shows what a request takes when the server is not at its limit.
    Every(Duration),
}

/// What a group of clients saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Times from request to answer.
    pub latencies: Latencies,
    time: Duration,
}

impl Seen {
    /// Answers per second.
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.time.as_secs_f64()
    }

    /// Adds what was seen at another time.
    pub fn append(&mut self, other: &Seen) {
        self.latencies.append(&other.latencies);
        self.time += other.time;
    }
}

/// Lets every stream make requests for some time. The streams come back.
pub async fn run(streams: &mut Vec<Stream>, work: Work, pace: Pace, window: Duration) -> Result<Seen> {
    let (count, request) = (u32::try_from(streams.len()).context("too many clients")?.max(1), work.request());
    let start = Instant::now() + Duration::from_millis(1);
    let mut clients = JoinSet::new();
    for (number, mut stream) in (0..count).zip(streams.drain(..)) {
        clients.spawn(async move {
            let (every, offset) = match pace {
                Pace::Closed => (Duration::ZERO, Duration::ZERO),
                Pace::Every(every) => (every, every * number / count),
            };
            let mut latencies = Latencies::default();
            let mut next = start + offset;
            while next < start + window {
                if pace != Pace::Closed {
                    tokio::time::sleep_until(next).await;
                }
                let before = Instant::now();
                stream.request(&request).await?;
                let after = Instant::now();
                latencies.push(after - before);
                next = if pace == Pace::Closed { after } else { next + every };
            }
            std::io::Result::Ok((stream, latencies))
        });
    }
    let mut seen = Seen::default();
    while let Some(client) = clients.join_next().await {
        let (stream, latencies) = client??;
        seen.latencies.append(&latencies);
        streams.push(stream);
    }
    seen.time = start.elapsed();
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_read_as_it_is_asked_for() {
        for work in [Work::None, Work::Sleep(Duration::from_millis(2)), Work::Spin(Duration::from_micros(1))]
        {
            assert_eq!(Work::of_request(&work.request()), work);
        }
    }
}
