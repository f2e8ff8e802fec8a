//! A server of lines that nobody sees crash: each line is answered by itself backwards, as often as its length says. Kill
//! its processes as you like while clients talk to it.
//!
//! `cargo run --example lines -- 127.0.0.1:7` (or `unix:PATH`) and `nc 127.0.0.1 7`.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::Connection;
use outlast_restart::policy::Policy;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

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
    for client in generation.incoming(&listener)? {
        let client = client?;
        std::thread::spawn(move || serve(client));
    }
    Ok(())
}

fn serve(mut client: Connection) -> io::Result<()> {
    loop {
        while let Some(length) = client.input().iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = client.input()[..length].iter().rev().copied().collect();
            for _ in 0..=length % 20 {
                client.write_all(&line)?;
            }
            client.write_all(b"\n")?;
            // From here on nobody deals with it again.
            client.done(length + 1);
        }
        if client.receive()? == 0 {
            return Ok(());
        }
    }
}
