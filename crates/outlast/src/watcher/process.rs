//! The process that watches a relay: it sleeps until that has died, and says what it would have said.

use super::words::{TRIED_FOR, Words};
use super::{Orders, sys, table};
use crate::exit::Code;
use anyhow::{Context, Result};
use clap::Args;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// `outlast watch-relay`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The process
    pub relay: u32,
}

/// Longest orders: names of servers and files.
const ORDERS_BYTES_MAX: u64 = 1 << 20;
/// A service manager that ends a dead relay's processes waits for them, and then for the restart.
const HURRY_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches the relay at the other end of standard input, whose sessions are in standard output.
pub fn run(args: &WatchArgs) -> Result<Code> {
    sys::close_all_but_standard();
    // What ends all processes of the relay's name (killall) leaves this one.
    rustix::thread::set_name(c"outlast-watch").ok();
    crate::keys::keep_memory_out_of_dumps("the right to give sessions up");
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
    let mut words = Words::new(&orders.servers, args.relay);
    table::read(&table)?.into_iter().for_each(|noted| words.take_up(noted, None));
    let hurried = async {
        signals.next().await;
        tokio::time::sleep(HURRY_TIMEOUT).await;
    };
    let why = tokio::select! {
        () = words.say() => "",
        () = hurried => "stopped",
        () = tokio::time::sleep(TRIED_FOR) => "no answer for an hour",
    };
    words.leave_unsaid(why);
    Ok(Code::Ok)
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
