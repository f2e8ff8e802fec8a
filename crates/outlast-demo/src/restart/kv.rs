//! Clients of the key-value service: one that counts and keeps values and looks at all of them, and one whose requests crash
//! whoever deals with them.

use super::browser::{PATIENCE, REFUSED_PAUSE};
use crate::count::{Count, Going, Pauses, different};
use anyhow::{Context, Result, bail, ensure};
use outlast_lab::Random;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Between two requests that nobody survives.
const POISON_PAUSE: Duration = Duration::from_millis(50);
/// From less than a segment to longer than a crash takes.
const SIZES_BYTES: [u64; 4] = [10, 4000, 100_000, 1_000_000];
const NAMES: u64 = 4;
const PIECE_BYTES: usize = 64 << 10;

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The status of the answer, and its content. `heard` is called with every piece of it.
    fn ask(
        &mut self,
        method: &str,
        path: &str,
        content: &[u8],
        mut heard: impl FnMut(),
    ) -> Result<(u16, Vec<u8>)> {
        let length = content.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: demo\r\nContent-Length: {length}\r\n\r\n");
        let stream = self.0.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(content)?;
        let first = self.line()?;
        heard();
        let status = first.split(' ').nth(1).context("an answer without a status")?.parse()?;
        let mut length = 0;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            if let Some(told) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = told.trim().parse()?;
            }
        }
        let mut answer = Vec::new();
        let mut piece = vec![0; PIECE_BYTES];
        while answer.len() < length {
            let room = (length - answer.len()).min(PIECE_BYTES);
            let count = self.0.read(piece.get_mut(..room).unwrap_or_default())?;
            ensure!(count > 0, "the connection has ended");
            heard();
            answer.extend_from_slice(piece.get(..count).unwrap_or_default());
        }
        Ok((status, answer))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "the connection has ended");
        Ok(line.trim_end().to_owned())
    }
}

/// What a client has counted and put under names of its own.
#[derive(Default)]
struct Known {
    counters: BTreeMap<u64, u64>,
    values: BTreeMap<u64, Vec<u8>>,
}

impl Known {
    /// One request, and what is wrong with its answer. After an error nobody knows whether it was dealt with.
    fn step(
        &mut self,
        connection: &mut Connection,
        random: &mut Random,
        seed: u64,
        count: &Count,
        heard: impl FnMut(),
    ) -> Result<()> {
        let name = random.below(NAMES);
        let (counter, value) = (format!("/counter/{seed}-{name}"), format!("/kv/{seed}-{name}"));
        match (random.below(3), self.values.get(&name)) {
            (0, _) => {
                let right = self.counters.remove(&name).unwrap_or_default() + 1;
                let (status, told) = connection.ask("POST", &counter, &[], heard)?;
                ensure!(status == 200, "a counter has status {status}");
                let told: u64 = String::from_utf8(told)?.trim_end().parse()?;
                count.wrong(u64::from(told != right));
                self.counters.insert(name, told);
            }
            (1, Some(right)) => {
                let (status, told) = connection.ask("GET", &value, &[], heard)?;
                if status != 200 {
                    self.values.remove(&name);
                    bail!("a value has status {status}");
                }
                count.wrong(different(&told, right));
                ensure!(told.len() >= right.len(), "a value is too short");
            }
            _ => {
                let most = SIZES_BYTES.get(usize::try_from(random.below(4))?).copied().unwrap_or(1);
                let length = random.below(most);
                let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
                let content: Vec<u8> = words.flatten().take(usize::try_from(length)?).collect();
                self.values.remove(&name);
                let (status, _) = connection.ask("PUT", &value, &content, heard)?;
                ensure!(matches!(status, 201 | 204), "an upload has status {status}");
                self.values.insert(name, content);
            }
        }
        Ok(())
    }
}

/// Counts, uploads and downloads, and knows what each answer has to be.
pub fn keep(address: SocketAddr, seed: u64, count: &Count, going: &Going<'_>) {
    let (mut random, mut known) = (Random::new(seed), Known::default());
    let mut pauses = Pauses::of(count);
    let mut kept = None;
    while going.on() {
        let Some(mut connection) = kept.take().or_else(|| Connection::open(address).ok()) else {
            count.failed(1);
            std::thread::sleep(REFUSED_PAUSE);
            continue;
        };
        match known.step(&mut connection, &mut random, seed, count, || pauses.over()) {
            Ok(()) => {
                count.answered();
                kept = Some(connection);
            }
            Err(_) => count.failed(1),
        }
    }
}

/// Sends what nobody survives, in turn, from when this has `begun`. Counts how often each was refused; who gets another
/// answer has failed.
pub fn poison(
    address: SocketAddr,
    requests: &[(&str, &AtomicU64)],
    begun: &AtomicBool,
    count: &Count,
    going: &Going<'_>,
) {
    for (how, refused) in requests.iter().cycle() {
        std::thread::sleep(POISON_PAUSE);
        while going.on() && !begun.load(Ordering::Relaxed) {
            std::thread::sleep(POISON_PAUSE);
        }
        if !going.on() {
            return;
        }
        let path = format!("/crash?how={how}");
        let asked = Connection::open(address).and_then(|mut one| one.ask("GET", &path, &[], || {}));
        if matches!(asked, Ok((500, _))) {
            refused.fetch_add(1, Ordering::Relaxed);
            count.answered();
        } else {
            count.failed(1);
        }
    }
}
