//! A key-value service over HTTP/1.1 that nobody sees crash; [`service`] says what it does. As the package
//! `outlast-kv-plain` it is the same service without Outlast.

mod crash;
mod http;
#[cfg(feature = "outlast")]
mod outlast;
#[cfg(not(feature = "outlast"))]
mod plain;
mod service;

use clap::Parser;
#[cfg(feature = "outlast")]
use outlast::run;
#[cfg(feature = "outlast")]
use outlast_restart::listen;
#[cfg(not(feature = "outlast"))]
use plain::listen;
#[cfg(not(feature = "outlast"))]
use plain::run;
use std::net::SocketAddr;

/// A key-value service over HTTP/1.1.
#[derive(Parser)]
#[command(version)]
pub struct Arguments {
    /// Where to listen; may be said more than once.
    #[arg(long, default_values = ["127.0.0.1:8080", "[::1]:8080"], value_name = "ADDRESS")]
    listen: Vec<SocketAddr>,
    /// For the values, in MiB. Taken as it is used.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    memory_mib: usize,
    /// Crashes that are allowed within --restarts-window-ms before less is taken over.
    #[arg(long, default_value_t = 5, value_name = "N")]
    restarts: usize,
    /// The window of --restarts, in ms.
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    restarts_window_ms: u64,
    /// Work on one request without a pause that takes longer than this, in ms, is a hang; 0: never.
    #[arg(long, default_value_t = 2000, value_name = "MS")]
    hang_timeout_ms: u64,
    /// Processes that serve, up to 64. From 2 on, below a master that counts what they do and answers GET /status. Not
    /// without Outlast, which is what they share the values by.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
    /// Lets clients crash it, by GET /crash?how=segv.
    #[arg(long)]
    crashes: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let mut listeners = Vec::new();
    for address in &arguments.listen {
        let listener = listen(*address).map_err(|error| format!("cannot listen on {address}: {error}"))?;
        // Accepted connections have it from here. Answers are written one by one, and none waits for an acknowledgement.
        socket2::SockRef::from(&listener).set_tcp_nodelay(true)?;
        say(&format!("listening on {}", listener.local_addr()?));
        listeners.push(listener);
    }
    run(&arguments, listeners)
}

/// On the standard output, which need not be there.
fn say(line: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{line}\n").as_bytes());
}

/// On the standard error.
fn complain(line: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
}
