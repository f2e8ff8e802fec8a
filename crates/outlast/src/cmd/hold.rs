//! `outlast hold`.

use crate::cli::values::{byte_count, duration, positive};
use crate::descriptors::raise_limit;
use crate::exit::{Code, Failure};
use crate::narrate::seconds;
use crate::signals::{Request, Signals};
use anyhow::{Context, Result};
use clap::Args;
use outlast_restart::holder::{self, Event, Limits, Options};
use outlast_session::relay::dial::plain;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

/// `outlast hold`.
#[derive(Debug, Args)]
#[command(after_help = HOLD_EXAMPLES)]
pub struct HoldArgs {
    /// UNIX socket to create, where services connect
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Close the descriptors of a service that has not come back for this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration, allow_hyphen_values = true)]
    pub keep: Duration,
    /// Most descriptors, of all services together [default: 65536, or as many as this process may open]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub descriptors: Option<usize>,
    /// Most bytes of names and state, of all services together
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = byte_count)]
    pub memory: usize,
    /// Most services that are connected at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 256, value_parser = positive)]
    pub clients: usize,
    /// Also accept services of this user, besides root and the user of this process; may be repeated
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<u32>,
}

const HOLD_EXAMPLES: &str = "\
Examples:
  outlast hold /run/user/1000/holder --keep 1m
  OUTLAST_HOLDER=/run/user/1000/holder outlast run -- python3 server.py

A service stores each connection here under a name, with up to 4 KiB of state (a client in Python is
one page: bindings/python/outlast_hold.py). When the service crashes, its connections stay open here,
and its next process gets all of them back.

  - A service releases each connection that is over. This process holds a duplicate descriptor, so
    the client sees no end of file until both copies are closed; shutdown() ends the connection at once.
  - Connections that were reset, or ended by both sides, are dropped. A connection that only the
    client has ended is kept: the client may be waiting for its answer.
  - A second process of the same service takes everything over, and the first one is notified.
  - When this process dies, services carry on and hand everything to the next one at this path.
    Connections are closed only when both are gone.";

/// What the holder needs besides: its clients have one each.
const OTHER_DESCRIPTORS: usize = 32;

/// Holds descriptors until it is stopped.
pub fn run(args: &HoldArgs) -> Result<Code> {
    raise_limit();
    let options = options(args)?;
    let for_everybody = !options.allowed_uids.is_empty();
    let listener =
        holder::listen(&args.path, for_everybody).map_err(|error| cannot_listen(&args.path, &error))?;
    let place = Place::new(&args.path);
    let (stop, stopper) = io::pipe().context("cannot make a pipe")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    // Ours before anybody is told that this runs.
    let mut signals = { runtime.block_on(async { Signals::new() })? };
    tracing::info!("holding descriptors at {}", args.path.display());
    let (lives, ended) = tokio::sync::oneshot::channel::<()>();
    let holding = std::thread::spawn(move || {
        let _lives = lives;
        let keep = options.limits.keep_ms;
        holder::serve(listener, &options, stop, |event| narrate(event, keep))
    });
    // A signal, of which each asks for the same; or nothing is held any more.
    let request = runtime.block_on(async {
        tokio::select! {
            request = signals.next() => Some(request),
            _ = ended => None,
        }
    });
    drop(stopper);
    drop(place);
    match holding.join() {
        Ok(ended) => ended.context("cannot go on holding")?,
        Err(_) => return Err(Failure::new(Code::Internal, "the holder has failed").into()),
    }
    match request {
        Some(Request::Now(code)) => Ok(code),
        Some(Request::Drain) => Ok(Code::Ok),
        None => Err(Failure::new(Code::Internal, "the holder has ended").into()),
    }
}

fn options(args: &HoldArgs) -> Result<Options> {
    let open_max = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    let room = open_max.unwrap_or(usize::MAX).saturating_sub(args.clients + OTHER_DESCRIPTORS);
    let default = Options::default();
    let descriptors_max = match args.descriptors {
        Some(wanted) if wanted > room => {
            return Err(Failure::usage(format!(
                "--descriptors {wanted} does not fit: this process may open {room} besides its clients (ulimit -n)"
            )));
        }
        Some(wanted) => wanted,
        None => default.limits.descriptors_max.min(room),
    };
    let keep_ms = u64::try_from(args.keep.as_millis()).unwrap_or(u64::MAX);
    Ok(Options {
        limits: Limits { descriptors_max, bytes_max: args.memory, keep_ms },
        clients_max: args.clients,
        allowed_uids: args.allow_uid.clone(),
        ..default
    })
}

fn narrate(event: Event, keep_ms: u64) {
    match event {
        Event::Joined { service, pid, held } => {
            tracing::info!(pid, uid = service.uid, held, "{} has come", service.name);
        }
        Event::Left { service, held: 0 } => tracing::info!(uid = service.uid, "{} has gone", service.name),
        Event::Left { service, held } => {
            let keep = seconds(std::time::Duration::from_millis(keep_ms));
            tracing::warn!(
                uid = service.uid,
                held,
                "{} has gone: what it has left is kept for {keep}",
                service.name
            );
        }
        Event::Expired { service, closed } => {
            tracing::warn!(
                uid = service.uid,
                closed,
                "{} has not come back: what it had left is closed",
                service.name
            );
        }
        Event::Refused { pid, text, .. } => tracing::warn!(pid, "refused: {text}"),
        _ => {}
    }
}

fn cannot_listen(path: &Path, error: &io::Error) -> anyhow::Error {
    let at = path.display();
    match error.kind() {
        io::ErrorKind::AddrInUse => Failure::system(format!(
            "cannot hold at {at}: something is there already, perhaps a holder that runs; give another path"
        )),
        io::ErrorKind::InvalidFilename => {
            Failure::usage(format!("cannot hold at {at}: the path of a socket has at most 107 bytes"))
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Failure::usage(format!("cannot hold at {at}: there is no such folder"))
        }
        _ => Failure::system(format!("cannot hold at {at}: {}", plain(error))),
    }
}

/// The socket's file, as long as it is ours: another holder may have replaced it when it was removed.
struct Place {
    path: PathBuf,
    inode: Option<u64>,
}

impl Place {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), inode: inode(path) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.inode.is_some() && inode(&self.path) == self.inode {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    Some(std::fs::symlink_metadata(path).ok()?.ino())
}
