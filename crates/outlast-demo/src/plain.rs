//! The first transfer without Outlast, broken the same way: what becomes of a plain TCP connection.

use crate::program::{Running, Service};
use crate::screen::{Screen, mebibytes};
use crate::servers;
use crate::stage::wait_for_port;
use crate::transfers::Means;
use anyhow::{Result, bail, ensure};
use outlast_lab::{Fault, Told};
use std::io::Read;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// It breaks when this share has arrived.
const BREAK_PERCENT: u64 = 5;
/// Longer than curl takes to notice.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What became of it.
#[derive(Debug)]
pub struct Plain {
    pub received: u64,
    pub took: Duration,
    pub failed: bool,
}

/// Downloads, breaks the connection once, and tells what curl makes of it.
pub fn run(means: &Means<'_>, bytes: u64, screen: &Screen, interrupted: &AtomicBool) -> Result<Plain> {
    let stage = means.stage;
    let received = means.folder.join("plain.tar");
    let mut lines = Vec::new();
    // Without a network to break there is a relay to kill, as in the transfer that follows.
    let socat = if stage.net.is_none() {
        let (home, port, target) =
            (stage.home.clone(), stage.ports.socat, format!("127.0.0.1:{}", stage.ports.web));
        let words = servers::socat_words(&home, port, &target);
        lines.push(means.shown("home", "socat", &words));
        let socat = Service::start(move || servers::socat(&home, port, &target))?;
        wait_for_port(&stage.home, port)?;
        Some(socat)
    } else {
        None
    };
    let port = if socat.is_some() { stage.ports.socat } else { stage.ports.web };
    let words = means.curl_words(&format!("{}:{port}", stage.server.name()), &received)?;
    lines.push(means.shown("client", "curl", &words));
    screen.line(format!("\ncurl downloads without Outlast, over plain TCP\n{}\n", lines.join("\n")));

    let screen = screen.with_bar(bytes);
    let began = Instant::now();
    let curl = stage.client.start("curl", |command| {
        command.args(&words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    })?;
    let stderr = curl.take_stderr();
    let size = || received.metadata().map_or(0, |file| file.len());
    wait(&curl, &screen, &received, interrupted, |_| size() >= bytes / 100 * BREAK_PERCENT)?;
    match (&stage.net, &socat) {
        (Some(net), _) => {
            screen.event("BREAK      the connection is reset");
            Fault::Reset(Told::Both).inject(&net.far.clone().with_port(port))?.heal()?;
        }
        (None, Some(socat)) => {
            screen.event("BREAK      socat on the way is killed (SIGKILL)");
            socat.running().kill();
        }
        (None, None) => bail!("there is nothing to break"),
    }
    let status = wait(&curl, &screen, &received, interrupted, |ended| ended.is_some())?;
    let took = began.elapsed();
    screen.finish();
    let mut said = String::new();
    if let Some(mut stderr) = stderr {
        stderr.read_to_string(&mut said)?;
    }
    let failed = status.is_none_or(|status| !status.success());
    let plain = Plain { received: size(), took, failed };
    let end = if failed { "failed" } else { "ended well" };
    screen.event(format!(
        "curl without Outlast {end}, with {} of {}",
        mebibytes(plain.received),
        mebibytes(bytes)
    ));
    if !said.trim().is_empty() {
        screen.line(format!("           {}", said.trim()));
    }
    std::fs::remove_file(&received)?;
    Ok(plain)
}

/// Waits until something is so, or curl has ended.
fn wait(
    curl: &Running,
    screen: &Screen,
    received: &Path,
    interrupted: &AtomicBool,
    done: impl Fn(Option<ExitStatus>) -> bool,
) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = curl.ended()?;
        if ended.is_some() || done(ended) {
            return Ok(ended);
        }
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        ensure!(Instant::now() < deadline, "curl without Outlast is stuck");
        screen.progress(received.metadata().map_or(0, |file| file.len()));
        std::thread::sleep(LOOK_EVERY);
    }
}
