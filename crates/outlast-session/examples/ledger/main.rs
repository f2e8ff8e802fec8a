//! A service for thousands of sessions, whose code knows nothing of broken links.
//!
//! ```sh
//! cargo run --example ledger -- serve 127.0.0.1:7000
//! cargo run --example ledger -- pay 127.0.0.1:7000 alice 10000   # and now: ss -K dport = 7000
//! ```
//!
//! Three parts that know as little of each other as they can (the patterns of Ivaki, Araujo and Barros, "Session-based
//! fault-tolerant design patterns", ICPADS 2014):
//!
//! | part | file | knows |
//! |---|---|---|
//! | service | `service.rs` | bytes: it would serve a `TcpStream` as well |
//! | acceptor, connector | `server.rs`, `client.rs` | sessions: how they begin |
//! | failure handling | `outlast_session` | links: how they end |
//!
//! The threads are those of tokio's multi-threaded runtime, which are leader and followers: one waits for events, hands
//! the next wait to another, and serves what has come. Their number is fixed; there is none for a session.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program prints")]

mod client;
mod server;
mod service;

use outlast_session::tokio::{Listener, Session};
use std::process::ExitCode;
use std::sync::Arc;

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match *words {
        ["serve", address] => serve(address).await,
        ["pay", server, account, times] => pay(server, account, times).await,
        _ => Err("usage: ledger serve ADDRESS | ledger pay SERVER ACCOUNT TIMES".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ledger: {error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn serve(address: &str) -> Outcome {
    let listener = Listener::bind(address).await?;
    println!("listening on {}", listener.local_addr());
    tokio::spawn(server::narrate(listener.events()));
    Ok(server::run(&listener, &Arc::default()).await?)
}

async fn pay(server: &str, account: &str, times: &str) -> Outcome {
    let times = times.parse()?;
    let mut session = Session::connect(server).await?;
    let balance = client::pay_often(&mut session, client::number_of(account), 1, times).await?;
    session.finish().await?;
    println!("{account} has {balance}, after {} outages", session.info().outages);
    Ok(())
}
