//! The server of [`lines`](../lines.rs) on tokio: each line is answered by itself backwards, as often as its length says.
//!
//! `cargo run --features tokio --example async_lines -- 127.0.0.1:7` (or `unix:PATH`) and `nc 127.0.0.1 7`.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::policy::Policy;
use outlast_restart::tokio::{Connection, incoming};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener: OwnedFd = match address.strip_prefix("unix:") {
        Some(path) => UnixListener::bind(path)?.into(),
        None => outlast_restart::listen(&address)?.into(),
    };
    match TcpListener::from(listener.try_clone()?).local_addr() {
        Ok(address) => println!("listening on {address}"),
        Err(_) => println!("listening on 0.0.0.0:0"),
    }
    // For an example that is there to be crashed.
    let policy = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let mut generation = outlast_restart::register_with(policy)?;
    println!("generation {} {}", generation.number(), std::process::id());
    // Before there is a runtime: what that opens is not left by anybody.
    let mut clients = incoming(&mut generation, [listener])?;
    tokio::runtime::Runtime::new()?.block_on(async {
        loop {
            let client = clients.next().await?;
            tokio::spawn(client.attributed(serve));
        }
    })
}

async fn serve(mut client: Connection) -> io::Result<()> {
    let (mut unanswered, mut piece) = (Vec::new(), [0; 5000]);
    loop {
        let count = client.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        unanswered.extend_from_slice(&piece[..count]);
        while let Some(length) = unanswered.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = unanswered[..length].iter().rev().copied().collect();
            for _ in 0..=length % 20 {
                client.write_all(&line).await?;
            }
            client.write_all(b"\n").await?;
            // From here on nobody deals with it again.
            client.done(length + 1);
            unanswered.drain(..=length);
        }
    }
}
