//! The process that watches a relay: it sleeps until that has died, and says what it would have said.

use super::table;
use super::{Orders, Server, sys};
use crate::cli::WatchArgs;
use crate::exit::Code;
use crate::keys;
use anyhow::{Context, Result};
use outlast_session::tokio::say_last_word;
use outlast_session::{Config, LastWord, Security, Targets};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

/// Servers that are spoken to at a time: quick with thousands of sessions, and no crowd at a server's door.
const AT_ONCE: usize = 32;
/// Longest orders: names of servers and files.
const ORDERS_BYTES_MAX: u64 = 1 << 20;
/// A server that is there hears it in milliseconds, one that is being restarted within a second. Default 10 s.
const REACHED_WITHIN: Duration = Duration::from_secs(10);
/// A service manager that ends a dead relay's processes waits for them, and then for the restart.
const HURRY_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches the relay at the other end of standard input, whose sessions are in standard output.
pub fn run(args: &WatchArgs) -> Result<Code> {
    // What ends the relay's group, or its terminal, does not end this.
    rustix::process::setsid().ok();
    sys::close_all_but_standard();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(watch(args))
}

async fn watch(args: &WatchArgs) -> Result<Code> {
    let mut signals = Signals::new()?;
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let table = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    stream.set_nonblocking(true)?;
    let mut stream = BufReader::new(tokio::net::UnixStream::from_std(stream)?);
    let mut line = String::new();
    (&mut stream).take(ORDERS_BYTES_MAX).read_line(&mut line).await?;
    let orders: Orders = serde_json::from_str(&line).context("no orders")?;
    let mut nothing = [0];
    loop {
        tokio::select! {
            read = stream.read(&mut nothing) => match read {
                Ok(count) if count > 0 => {}
                _ => break,
            },
            // A service manager tells all processes to end: this one ends with the relay.
            () = signals.next() => {}
        }
    }
    let sessions = table::read(&table)?;
    let reason = format!("the relay at the client (process {}) was killed, or has crashed", args.relay);
    let hurried = async {
        signals.next().await;
        tokio::time::sleep(HURRY_TIMEOUT).await;
    };
    tokio::select! {
        () = give_up(sessions, &orders.servers, &reason) => {}
        () = hurried => {}
        () = tokio::time::sleep(REACHED_WITHIN) => {}
    }
    Ok(Code::Ok)
}

/// Says it to all servers, or as many as can be reached.
async fn give_up(sessions: Vec<(LastWord, u32)>, servers: &[Server], reason: &str) {
    let servers: Vec<Option<(Vec<Targets>, Arc<Config>)>> =
        servers.iter().map(|server| server.reached().ok()).collect();
    let mut saying = JoinSet::new();
    for (word, server) in sessions {
        let server = usize::try_from(server).ok().and_then(|number| servers.get(number));
        let Some(Some((targets, config))) = server else { continue };
        // Each may be the one that has the session: the others know nothing of it.
        for targets in targets {
            while saying.len() >= AT_ONCE {
                saying.join_next().await;
            }
            let (word, targets) = (word.clone(), targets.clone());
            let (config, reason) = (Arc::clone(config), reason.to_owned());
            saying.spawn(async move { say_last_word(word, &reason, &targets, &config).await });
        }
    }
    while saying.join_next().await.is_some() {}
}

impl Server {
    /// Every address for itself, and the settings for them.
    fn reached(&self) -> Result<(Vec<Targets>, Arc<Config>)> {
        let targets: Targets = self.targets.parse()?;
        let targets = targets.iter().map(str::parse).collect::<Result<_, _>>()?;
        let security = match &self.tls {
            Some(files) => Security::Tls(keys::client_tls(&files.files())?),
            None => Security::Open,
        };
        let local_address = self.bind_from.map(|ip| SocketAddr::new(ip, 0));
        Ok((targets, Arc::new(Config { security, local_address, ..Config::default() })))
    }
}

/// The signals that tell a process to end.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [terminate, interrupt, hang_up] = kinds.map(signal);
        Ok(Self([terminate?, interrupt?, hang_up?]))
    }

    async fn next(&mut self) {
        let [terminate, interrupt, hang_up] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}
