//! Clients that others have written: curl, and wrk where it is installed. Neither is told to try again.

use super::site::{self, File};
use crate::count::{Count, Going, Seen, different};
use anyhow::{Context, Result, ensure};
use outlast_lab::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

const FILES_AT_ONCE_MAX: u64 = 6;
/// wrk has ended that long after it is told to, or is told once more.
const WRK_END_POLL: Duration = Duration::from_millis(50);

/// Starts curl again and again, each for several files over one connection.
pub fn curl(address: SocketAddr, files: &[File], seed: u64, count: &Count, going: &Going<'_>) -> Result<()> {
    let mut random = Random::new(seed);
    while going.on() {
        let page = site::page(files, &mut random, FILES_AT_ONCE_MAX);
        let mut command = Command::new("curl");
        // It tells of each file on standard error, and goes on with the next if one fails.
        command.args([
            "-s",
            "--max-time",
            "60",
            "-w",
            "%{stderr}%{exitcode} %{http_code} %{size_download}\n",
        ]);
        command.args(page.iter().map(|file| format!("http://{address}/{}", file.name)));
        let output = command.stdin(Stdio::null()).output().context("cannot start curl")?;
        let told = String::from_utf8_lossy(&output.stderr);
        let mut received = output.stdout.as_slice();
        ensure!(told.lines().count() == page.len(), "curl says something else: {told}");
        for (file, line) in page.iter().zip(told.lines()) {
            let mut words = line.split(' ');
            let well = words.next() == Some("0") && words.next() == Some("200");
            let length: usize = words.next_back().and_then(|word| word.parse().ok()).unwrap_or(0);
            let (this, rest) = received.split_at_checked(length).context("curl gives less than it says")?;
            received = rest;
            count.wrong(different(this, &file.bytes));
            if well && length == file.bytes.len() {
                count.answered();
            } else {
                count.failed(1);
            }
        }
    }
    Ok(())
}

/// Whether wrk is installed.
pub fn has_wrk() -> bool {
    let mut command = Command::new("wrk");
    command.arg("-v").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// As many requests as it can over 16 connections. Told to end, it tells what it saw.
pub fn wrk(address: SocketAddr, file: &File, going: &Going<'_>) -> Result<Seen> {
    let mut command = Command::new("wrk");
    command.args(["-t", "1", "-c", "16", "-d", "1h", "--timeout", "20s"]);
    command.arg(format!("http://{address}/{}", file.name));
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut wrk = started.context("cannot start wrk")?;
    while going.on() && wrk.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = Pid::from_raw(i32::try_from(wrk.id())?).context("wrk has no number")?;
    // In its first moments wrk ignores that.
    while wrk.try_wait()?.is_none() {
        kill_process(pid, Signal::INT)?;
        std::thread::sleep(WRK_END_POLL);
    }
    let output = wrk.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    read_wrk(&said).with_context(|| format!("wrk says something else: {said}"))
}

/// What wrk says at its end.
fn read_wrk(said: &str) -> Option<Seen> {
    let line = |begins: &str| said.lines().map(str::trim).find_map(|line| line.strip_prefix(begins));
    let whole = said.lines().find(|line| line.contains(" requests in "))?;
    let requests: u64 = whole.split_whitespace().next()?.parse().ok()?;
    let errors = line("Socket errors:").map_or(0, |errors| {
        errors.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok()).sum()
    });
    let refused: u64 = line("Non-2xx or 3xx responses:").map_or(Some(0), |n| n.trim().parse().ok())?;
    let longest = line("Latency ")?.split_whitespace().nth(2)?;
    Some(Seen {
        requests: requests + errors,
        failed: errors + refused,
        wrong_bytes: None,
        longest_pause: duration(longest),
    })
}

/// A time as wrk writes it: 12.34ms.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Running 2s test @ http://127.0.0.1:80/\n  1 threads and 16 connections\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency     1.20ms  350.00us  42.50ms   90.00%\n    Req/Sec    13.00k     1.00k   15.00k    70.00%\n  26000 requests in 2.00s, 3.00MB read\n";

    #[test]
    fn what_wrk_says_is_understood() {
        let seen = read_wrk(SAID).unwrap();
        assert_eq!((seen.requests, seen.failed), (26_000, 0));
        assert_eq!(seen.longest_pause, Some(Duration::from_micros(42_500)));
        let errors = format!(
            "{SAID}  Socket errors: connect 1, read 20, write 0, timeout 3\n  Non-2xx or 3xx responses: 5\n"
        );
        assert_eq!(read_wrk(&errors).unwrap().failed, 29);
        assert_eq!(read_wrk("unable to connect"), None);
    }
}
