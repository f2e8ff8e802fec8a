//! The process that watches a relay: it sleeps until that has died, and says what it would have said.

use super::table;
use super::{Orders, Server, sys};
use crate::cli::WatchArgs;
use crate::exit::Code;
use crate::keys;
use anyhow::{Context, Result};
use outlast_session::tokio::say_last_word;
use outlast_session::{Config, LastWord, Security, Targets};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinSet};

/// Servers that are spoken to at a time: quick with thousands of sessions, and no crowd at a server's door.
const AT_ONCE: usize = 32;
/// Longest orders: names of servers and files.
const ORDERS_BYTES_MAX: u64 = 1 << 20;
/// A server that is there hears it in milliseconds, one that is being restarted within a second. Default 10 s for one try.
const REACHED_WITHIN: Duration = Duration::from_secs(10);
/// Between two tries: at first, and at the most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A network may be gone for minutes, a machine for as long as it takes to move it. After that `--keep` decides, so that
/// watchers of a relay that is killed again and again do not add up.
const TRIED_FOR: Duration = Duration::from_secs(3600);
/// A service manager that ends a dead relay's processes waits for them, and then for the restart.
const HURRY_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches the relay at the other end of standard input, whose sessions are in standard output.
pub fn run(args: &WatchArgs) -> Result<Code> {
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
    if !line.ends_with('\n') {
        // The relay has ended before it had anything to be watched.
        return Ok(Code::Ok);
    }
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
    let mut words = Words::of(sessions, &orders.servers);
    let why = tokio::select! {
        () = words.say(&reason) => "",
        () = hurried => "stopped",
        () = tokio::time::sleep(TRIED_FOR) => "no answer for an hour",
    };
    for (targets, count) in words.unsaid() {
        let (sessions, them) =
            if count == 1 { ("1 session".to_owned(), "it") } else { (format!("{count} sessions"), "them") };
        sys::warn(&format!(
            "{reason}; could not ask {targets} to end {sessions}: gave up ({why}); that server keeps {them} until its --keep \
             is over, or `outlast kill` there ends {them}"
        ));
    }
    Ok(Code::Ok)
}

/// What is still to be said, and to whom.
struct Words {
    servers: Vec<(Targets, Arc<Config>)>,
    /// By any number; with the place of the server.
    left: BTreeMap<usize, (LastWord, usize)>,
}

impl Words {
    fn of(sessions: Vec<(LastWord, u32)>, servers: &[Server]) -> Self {
        let mut reached = Vec::new();
        let mut places: Vec<Range<usize>> = Vec::new();
        for server in servers {
            let first = reached.len();
            match server.reached() {
                Ok((targets, config)) => {
                    reached.extend(targets.into_iter().map(|targets| (targets, Arc::clone(&config))));
                }
                Err(error) => sys::warn(&format!("cannot tell {} anything: {error:#}", server.targets)),
            }
            places.push(first..reached.len());
        }
        let mut left = BTreeMap::new();
        for (word, server) in sessions {
            let places = usize::try_from(server).ok().and_then(|number| places.get(number)).cloned();
            // Each may be the one that has the session: the others know nothing of it.
            for place in places.unwrap_or_default() {
                left.insert(left.len(), (word.clone(), place));
            }
        }
        Self { servers: reached, left }
    }

    /// Says everything, again and again where a server cannot be reached.
    async fn say(&mut self, reason: &str) {
        let mut pause = PAUSE_MIN;
        loop {
            self.say_once(reason).await;
            if self.left.is_empty() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn say_once(&mut self, reason: &str) {
        let mut silent = BTreeSet::new();
        let mut saying = JoinSet::new();
        let all: Vec<(usize, LastWord, usize)> =
            self.left.iter().map(|(key, (word, place))| (*key, word.clone(), *place)).collect();
        for (key, word, place) in all {
            while saying.len() >= AT_ONCE {
                self.said(saying.join_next().await, &mut silent);
            }
            // Nobody waits for a server that has just been found away, least of all those of another one.
            if silent.contains(&place) {
                continue;
            }
            let Some((targets, config)) = self.servers.get(place).cloned() else { continue };
            let reason = reason.to_owned();
            saying.spawn(async move {
                let told = say_last_word(word, &reason, &targets, &config);
                (key, place, tokio::time::timeout(REACHED_WITHIN, told).await.unwrap_or(false))
            });
        }
        while let Some(said) = saying.join_next().await {
            self.said(Some(said), &mut silent);
        }
    }

    fn said(&mut self, said: Option<Result<(usize, usize, bool), JoinError>>, silent: &mut BTreeSet<usize>) {
        match said {
            Some(Ok((key, _, true))) => drop(self.left.remove(&key)),
            Some(Ok((_, place, false))) => drop(silent.insert(place)),
            _ => {}
        }
    }

    /// Servers that have not heard of so many sessions.
    fn unsaid(&self) -> Vec<(&Targets, usize)> {
        let mut counts = BTreeMap::new();
        for (_, place) in self.left.values() {
            *counts.entry(*place).or_insert(0) += 1;
        }
        counts.into_iter().filter_map(|(place, count)| Some((&self.servers.get(place)?.0, count))).collect()
    }
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
