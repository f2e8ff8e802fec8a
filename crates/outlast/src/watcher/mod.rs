//! What becomes of the sessions of a `connect` that is killed, runs out of memory or panics: its server would keep them,
//! and what its services hold for them, for as long as it keeps any (`--keep`). A small process of its own outlives the
//! relay and says the last word for the sessions that it had.
//!
//! ```text
//! relay ── a socket, whose end is the relay's end ──> watcher ── PROTOCOL 3.11 ──> server
//!   └── a table: who may be given up, and at which server ──┘
//! ```
//!
//! The relay writes one record when a session opens, and wipes it when the session is over: nothing is done in between.
//! The records hold what it takes to give a session up, and with the securities psk and tls nothing that a session could be
//! resumed with (PROTOCOL 6.9). At an orderly end the table is empty, and the watcher has nothing to say. Only sessions whose servers could
//! not be reached when the relay ended them are left: the relay says their last words as long as it lives, the watcher then.
//!
//! It is a process of its own, with no descriptor of the relay's but the two, in a session of its own: what kills the
//! relay's group does not reach it. What kills all processes of a container or of a cgroup does, as does the end of the
//! machine: then `--keep` decides. While a server cannot be reached the watcher tries again, for an hour; what it gives up
//! is said in the relay's log, if that is a file or the journal, or else in the system's.

mod process;
mod sys;
mod table;
mod words;

pub use process::{WatchArgs, run as watch};
pub use table::{Slot, Table};

use crate::cli::values::with_usable_log_filter;
use crate::handover;
use crate::keys::{self, ClientTls};
use crate::narrate::Narrator;
use crate::plan::ConnectPlan;
use anyhow::{Context, Result};
use outlast_session::relay::dial::plain;
use outlast_session::tokio::Session;
use outlast_session::{Config, Security, Targets};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A watcher that ends before its relay is replaced so many times.
const STARTS_MAX: u32 = 4;
/// A watcher reads its orders within this time, if they are longer than its socket holds. Default 5 s.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Of our service manager, and not for the watcher.
const NOT_FOR_IT: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// What a watcher gets when it starts, as one line of JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Orders {
    /// By numbers in the table.
    servers: Vec<Server>,
}

/// Where sessions lead to, and how to get there.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Server {
    targets: String,
    tls: Option<TlsFiles>,
    bind_from: Option<IpAddr>,
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

/// What a client needs for TLS. The watcher reads these files only when it has something to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    pub authorities: Option<PathBuf>,
    pub name: Option<String>,
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// The same files, wherever the process that reads them is.
    pub fn of(files: &ClientTls<'_>) -> Self {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self {
            authorities: files.authorities.map(absolute),
            name: files.name.map(str::to_owned),
            certificate: files.certificate.map(|(certificate, key)| (absolute(certificate), absolute(key))),
        }
    }

    fn files(&self) -> ClientTls<'_> {
        let certificate = self.certificate.as_ref();
        ClientTls {
            authorities: self.authorities.as_deref(),
            name: self.name.as_deref(),
            certificate: certificate.map(|(certificate, key)| (certificate.as_path(), key.as_path())),
        }
    }
}

/// The relay's side: the table, and the process that reads it when the relay has died.
#[derive(Debug)]
pub struct Watcher {
    table: Arc<Table>,
    orders: Orders,
    /// Its process, and the socket whose end is this one's. None until it is begun, or when it has ended.
    running: Option<Result<(Child, UnixStream)>>,
    /// Sessions that this process has ended, and whose servers do not know.
    given_up: UnboundedReceiver<Slot>,
}

/// A plan's part of the table.
#[derive(Debug)]
pub struct Watch {
    table: Arc<Table>,
    /// The number of the first of these.
    first: u32,
    targets: Vec<Targets>,
    given_up: UnboundedSender<Slot>,
}

impl Watch {
    /// The session has ended, and its server does not know: it is told as soon as it can be reached, if only by the watcher.
    pub fn give_up(&self, mut slot: Slot) {
        slot.give_up();
        // Where nobody takes it any more, its record stays.
        self.given_up.send(slot).ok();
    }

    /// The session is given up if this process dies before what this returns is dropped.
    pub fn note(&self, session: &Session, targets: &Targets) -> Option<Slot> {
        let place = self.targets.iter().position(|known| known == targets)?;
        let number = self.first + u32::try_from(place).ok()?;
        self.table.enter(&session.last_word()?, number)
    }
}

impl Watcher {
    /// Has the sessions of these plans noted. None, which is said once, where that cannot work.
    pub fn of(plans: &mut [ConnectPlan], narrator: &Narrator) -> Option<Self> {
        if plans.is_empty() {
            return None;
        }
        if std::process::id() == 1 {
            // All other processes of a container end with its first one.
            narrator.warn(&format!(
                "as process 1 of its container, this one ends all others with itself: {WITHOUT}"
            ));
            return None;
        }
        let table = match Table::new() {
            Ok(table) => Arc::new(table),
            Err(error) => {
                narrator.warn(&format!("cannot note which sessions there are: {}; {WITHOUT}", plain(&error)));
                return None;
            }
        };
        let mut orders = Orders::default();
        let (sender, given_up) = unbounded_channel();
        for plan in plans {
            let first = u32::try_from(orders.servers.len()).unwrap_or(u32::MAX);
            let targets: Vec<Targets> = plan.routes.targets().cloned().collect();
            orders.servers.extend(targets.iter().map(|targets| Server {
                targets: targets.to_string(),
                tls: plan.tls_files.clone(),
                bind_from: plan.config.local_address.map(|address| address.ip()),
            }));
            let (table, given_up) = (Arc::clone(&table), sender.clone());
            plan.watch = Some(Watch { table, first, targets, given_up });
        }
        Some(Self { table, orders, running: None, given_up })
    }

    /// The table, for the end of the relay.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    /// Starts its process. Sessions that open before that are not given up if this one dies meanwhile.
    pub fn begin(&mut self) {
        self.running = Some(self.start());
    }

    /// Keeps a watcher running for as long as this is polled, and says the last words of sessions that this process ends itself.
    pub async fn keep_running(mut self, narrator: Narrator) {
        let (_, none) = unbounded_channel();
        let given_up = std::mem::replace(&mut self.given_up, none);
        let servers = self.orders.servers.clone();
        tokio::join!(self.keep_one(narrator), words::say_given_up(&servers, given_up));
    }

    /// What goes wrong is said once.
    async fn keep_one(&mut self, narrator: Narrator) {
        for start in 1..=STARTS_MAX {
            let (mut child, stream) = match self.running.take().unwrap_or_else(|| self.start()) {
                Ok(started) => started,
                Err(error) => {
                    narrator.warn(&format!(
                        "cannot start the process that watches this one: {error:#}; {WITHOUT}"
                    ));
                    break;
                }
            };
            let pid = child.id();
            if let Err(error) = attend(&stream).await {
                // No descriptor is left for that, perhaps. It lives, and does its work at the end of this process.
                tracing::warn!(
                    "whether process {pid}, which watches this one, ends is not seen: {}",
                    plain(&error)
                );
                let () = std::future::pending().await;
            }
            let reaped = tokio::task::spawn_blocking(move || child.wait()).await;
            // Its end, at the latest with this process, is what the watcher waits for: as long as there is one, it has to stay open.
            drop(stream);
            let how = match reaped {
                Ok(Ok(status)) => status.to_string(),
                _ => "unknown".into(),
            };
            let what = format!("process {pid}, which watches this one, has ended ({how})");
            match start {
                STARTS_MAX => narrator.warn(&format!("{what}, as others before; {WITHOUT}")),
                1 => narrator.warn(&format!("{what}: starting another")),
                _ => tracing::info!("{what}: starting another"),
            }
        }
        std::future::pending().await
    }

    /// Starts one, and tells it all that it has to know: from then on this process may die.
    fn start(&self) -> Result<(Child, UnixStream)> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(handover::program());
        command
            .arg0("outlast")
            .args(["watch-relay", &std::process::id().to_string()])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(self.table.share()?))
            .stderr(sys::lasting_stderr())
            .current_dir("/");
        for name in NOT_FOR_IT {
            command.env_remove(name);
        }
        with_usable_log_filter(&mut command);
        sys::stand_apart(&mut command, [libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
        let child = command.spawn().context("cannot start a process")?;
        let mut line = serde_json::to_vec(&self.orders)?;
        line.push(b'\n');
        // The socket's buffer holds the orders of thousands of servers: it waits for the process only beyond that.
        ours.set_write_timeout(Some(READ_WITHIN))?;
        ours.write_all(&line).context("it takes no orders")?;
        Ok((child, ours))
    }
}

/// Waits for the end of the process at the other end, which says nothing. An error: it cannot be waited for.
async fn attend(stream: &UnixStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    let mut stream = tokio::net::UnixStream::from_std(stream.try_clone()?)?;
    // One that has read nothing of what it was told resets it.
    while stream.read(&mut [0]).await.is_ok_and(|count| count > 0) {}
    Ok(())
}

/// What it means to have no watcher.
const WITHOUT: &str = "if this process is killed, its servers keep its sessions for their --keep";
