//! A client as a browser is one: keeps its connection, asks for several files at once, and looks at every byte.

use super::site::{self, File};
use crate::count::{Count, Going, Pauses, different};
use anyhow::{Context, Result, bail, ensure};
use outlast_lab::Random;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Without a byte for so long, a request has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Who is refused a connection waits so long before the next attempt.
pub const REFUSED_PAUSE: Duration = Duration::from_millis(5);
const FILES_AT_ONCE_MAX: u64 = 8;
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Loads page after page. What fails is not asked for again.
pub fn browse(address: SocketAddr, files: &[File], seed: u64, count: &Count, going: &Going<'_>) {
    let mut random = Random::new(seed);
    let mut pauses = Pauses::of(count);
    let mut kept = None;
    while going.on() {
        let Some(mut connection) = kept.take().or_else(|| Connection::open(address)) else {
            count.failed(1);
            std::thread::sleep(REFUSED_PAUSE);
            continue;
        };
        let page = site::page(files, &mut random, FILES_AT_ONCE_MAX);
        let mut whole = 0;
        let loaded = connection.load(&page, &mut pauses, count, &mut whole);
        count.failed(page.len() as u64 - whole);
        // Now and then a new connection, as pages of other sites have.
        if loaded.is_ok() && random.below(10) > 0 {
            kept = Some(connection);
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// Received, and not looked at.
    input: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self { stream, input: Vec::new() })
    }

    /// Asks for all files, then hears the answers. `whole`: how many came in full.
    fn load(
        &mut self,
        page: &[&File],
        pauses: &mut Pauses<'_>,
        count: &Count,
        whole: &mut u64,
    ) -> Result<()> {
        let requests: String =
            page.iter().map(|file| format!("GET /{} HTTP/1.1\r\nHost: demo\r\n\r\n", file.name)).collect();
        self.stream.write_all(requests.as_bytes())?;
        for file in page {
            let length = self.head(pauses)?;
            ensure!(length == file.bytes.len(), "an answer of {length} bytes");
            self.body(&file.bytes, pauses, count)?;
            count.answered();
            *whole += 1;
        }
        Ok(())
    }

    /// The length of the body that follows a good head.
    fn head(&mut self, pauses: &mut Pauses<'_>) -> Result<usize> {
        let end = loop {
            if let Some(at) = self.input.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(self.input.len() < HEAD_BYTES_MAX, "a head without an end");
            self.receive(pauses)?;
        };
        let head: Vec<u8> = self.input.drain(..end).collect();
        let head = String::from_utf8(head).context("a head that is no text")?;
        let mut lines = head.lines();
        if lines.next() != Some("HTTP/1.1 200 OK") {
            bail!("another answer: {head}");
        }
        let length = lines.find_map(|line| line.strip_prefix("Content-Length: ")).context("no length")?;
        Ok(length.parse()?)
    }

    fn body(&mut self, right: &[u8], pauses: &mut Pauses<'_>, count: &Count) -> Result<()> {
        let mut right = right;
        loop {
            let here = self.input.len().min(right.len());
            let (now, later) = right.split_at(here);
            count.wrong(different(&self.input[..here], now));
            self.input.drain(..here);
            right = later;
            if right.is_empty() {
                return Ok(());
            }
            self.receive(pauses)?;
        }
    }

    fn receive(&mut self, pauses: &mut Pauses<'_>) -> Result<()> {
        let mut piece = [0; 64 << 10];
        let length = self.stream.read(&mut piece)?;
        ensure!(length > 0, "the connection has ended");
        pauses.over();
        self.input.extend_from_slice(&piece[..length]);
        Ok(())
    }
}
