//! Clients of the servers of lines: one that counts, and one whose requests crash whoever deals with them.

use super::browser::{PATIENCE, REFUSED_PAUSE};
use crate::count::{Count, Going, Pauses};
use outlast_lab::Random;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two requests that nobody survives.
const POISON_PAUSE: Duration = Duration::from_millis(50);
const LINES_AT_ONCE_MAX: u64 = 8;

fn connect(address: SocketAddr) -> Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// Says several lines at once, which have to be answered as `right` says, again and again.
fn ask(
    address: SocketAddr,
    seed: u64,
    count: &Count,
    going: &Going<'_>,
    mut question: impl FnMut(&mut Random) -> (String, String),
) {
    let mut random = Random::new(seed);
    let mut pauses = Pauses::of(count);
    let mut kept = None;
    while going.on() {
        let Some(mut stream) = kept.take().or_else(|| connect(address).ok()) else {
            count.failed(1);
            std::thread::sleep(REFUSED_PAUSE);
            continue;
        };
        let questions: Vec<_> =
            (0..=random.below(LINES_AT_ONCE_MAX)).map(|_| question(&mut random)).collect();
        let text: String = questions.iter().map(|(line, _)| format!("{line}\n")).collect();
        let mut well = stream.get_mut().write_all(text.as_bytes()).is_ok();
        for (_, right) in &questions {
            let mut answer = String::new();
            well = well && stream.read_line(&mut answer).is_ok() && answer.ends_with('\n');
            if well {
                pauses.over();
                count.answered();
                count.wrong(u64::from(answer.trim_end() != right));
            } else {
                count.failed(1);
            }
        }
        if well && random.below(20) > 0 {
            kept = Some(stream);
        }
    }
}

/// Adds to counters of its own, each of which is right after every request, or somebody was counted twice or not at all.
pub fn count_up(address: SocketAddr, seed: u64, count: &Count, going: &Going<'_>) {
    let mut right: BTreeMap<u64, u64> = BTreeMap::new();
    ask(address, seed, count, going, |random| {
        let name = random.below(4);
        let value = right.entry(name).or_default();
        *value += 1;
        (format!("add {seed}-{name}"), value.to_string())
    });
}

/// Lines that come back as they are.
pub fn echo(address: SocketAddr, seed: u64, count: &Count, going: &Going<'_>) {
    ask(address, seed, count, going, |random| {
        let line = random.next_u64().to_string();
        (line.clone(), line)
    });
}

/// Sends what nobody survives, in turn, until it is refused. Counts in `refused` how often each was; who gets another
/// answer has failed.
pub fn poison(address: SocketAddr, requests: &[(&str, &AtomicU64)], count: &Count, going: &Going<'_>) {
    for (request, refused) in requests.iter().cycle() {
        if !going.on() {
            return;
        }
        std::thread::sleep(POISON_PAUSE);
        let answer = connect(address).and_then(|mut stream| {
            stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
            let mut answer = String::new();
            stream.read_line(&mut answer)?;
            Ok(answer)
        });
        if answer.is_ok_and(|answer| answer == "refused\n") {
            refused.fetch_add(1, Ordering::Relaxed);
            count.answered();
        } else {
            count.failed(1);
        }
    }
}
