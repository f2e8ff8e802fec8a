//! Redis on every machine; counters that look at each answer, and redis-benchmark, whose connections never break.

use super::report::Tally;
use crate::count::{Going, Pauses};
use anyhow::{Context, Result};
use outlast_lab::Host;
use outlast_lab::replicas::{Machine, PATIENCE, SERVER_PORT};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Of the portal.
pub const PORT: u16 = 6379;
/// What redis-benchmark does in one run: short ones, so that many end, and most deaths come in the middle of one.
const BENCHMARK: [&str; 9] = ["-c", "20", "-n", "1000", "-r", "10000", "-q", "-t", "set,get,incr,lpush"];
const BENCHMARK_REQUESTS: u64 = 4_000;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two requests of a counter.
const BREAK: Duration = Duration::from_micros(500);

/// What runs on a machine.
pub fn server(machine: &Machine) -> Vec<String> {
    let (port, folder) = (SERVER_PORT.to_string(), machine.folder.to_string_lossy());
    let words = ["redis-server", "--port", &port, "--save", "", "--dir", &folder];
    // For the comparison at the end.
    words.into_iter().chain(["--enable-debug-command", "local"]).map(str::to_owned).collect()
}

/// Counts up in a key of its own, on one connection, and looks at each answer. `reached` says how far it is.
pub fn count_up(
    host: &Host,
    portal: SocketAddr,
    number: u64,
    (tally, reached): (&Tally, &AtomicU64),
    going: &Going<'_>,
) -> Result<()> {
    let _guard = host.enter_guard()?;
    let stream = TcpStream::connect_timeout(&portal, PATIENCE).context("a counter cannot connect")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut pauses = Pauses::of(&tally.count);
    let (mut at, mut line) = (0_u64, String::new());
    while going.on() {
        let request = format!("incr demo:counter:{number}\r\n");
        line.clear();
        let said = stream.get_mut().write_all(request.as_bytes()).and_then(|()| stream.read_line(&mut line));
        let answer =
            said.ok().and_then(|_| line.strip_prefix(':')).and_then(|text| text.trim_end().parse().ok());
        let Some(answer) = answer else {
            // The connection is broken: there is no other one.
            tally.count.failed(1);
            return Ok(());
        };
        pauses.over();
        tally.count.answered();
        tally.compare(at + 1, answer);
        at = answer;
        reached.store(at, Ordering::Relaxed);
        std::thread::sleep(BREAK);
    }
    Ok(())
}

/// Runs redis-benchmark again and again.
pub fn benchmark(host: &Host, portal: SocketAddr, tally: &Tally, going: &Going<'_>) -> Result<()> {
    let (address, port) = (portal.ip().to_string(), portal.port().to_string());
    while going.on() {
        let mut command = host.command("redis-benchmark");
        command.args(["-h", &address, "-p", &port]).args(BENCHMARK);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut stopped_at = None;
        // The last one has time to end: a connection that stands still would not let it.
        let ended = loop {
            if let Some(status) = process.try_wait()? {
                break Some(status);
            }
            if !going.on() && stopped_at.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                break None;
            }
            if going.interrupted.load(Ordering::Relaxed) {
                process.kill();
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        };
        match ended {
            Some(status) => {
                // It ends well, too, where the server has refused something.
                let mut errors = String::new();
                if let Some(mut stderr) = process.take_stderr() {
                    stderr.read_to_string(&mut errors)?;
                }
                if status.success() && errors.trim().is_empty() {
                    tally.count.answered_all(BENCHMARK_REQUESTS);
                } else {
                    tally.count.failed(1);
                }
            }
            None => {
                process.kill();
                tally.count.failed(1);
            }
        }
    }
    Ok(())
}

/// What the server of a machine has: a digest of all of it.
pub fn digest(machine: &Machine) -> Result<String> {
    machine.host.enter(|| ask(&["DEBUG", "DIGEST"]))?
}

/// What the server of a machine has in a counter.
pub fn counter(machine: &Machine, number: u64) -> Result<String> {
    machine.host.enter(|| ask(&["GET", &format!("demo:counter:{number}")]))?
}

/// Asks the server of this host, past the portal.
fn ask(words: &[&str]) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", SERVER_PORT))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{}\r\n", words.join(" ")).as_bytes())?;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    if line.starts_with('$') {
        line.clear();
        lines.read_line(&mut line)?;
    }
    Ok(line.trim_end().trim_start_matches('+').to_owned())
}
