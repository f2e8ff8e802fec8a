//! An echo server with a thread for each client, that dies in many ways and goes on: `!abort`, `!segv`, `!exit N` from a
//! client crash it, `!generation` asks how often it has.
//!
//! `cargo run --example echo -- 127.0.0.1:7 patient` and `nc 127.0.0.1 7`.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::policy::Policy;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = outlast_restart::listen(address)?;
    println!("listening on {}", listener.local_addr()?);
    let policy = match std::env::args().nth(2).as_deref() {
        // For an example that is there to be crashed.
        Some("patient") => Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() },
        _ => Policy::default(),
    };
    let mut generation = outlast_restart::register_with(policy)?;
    let number = generation.number();
    for connection in generation.inherited()?.connections {
        let client = TcpStream::from(connection);
        std::thread::spawn(move || serve(client, number));
    }
    for client in listener.incoming() {
        let client = client?;
        std::thread::spawn(move || serve(client, number));
    }
    Ok(())
}

fn serve(client: TcpStream, generation: u32) -> std::io::Result<()> {
    let (mut lines, mut client) = (BufReader::new(&client), &client);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        match line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "")) {
            ("!abort", _) => std::process::abort(),
            ("!segv", _) => {
                let nowhere = std::hint::black_box(std::ptr::null_mut::<u8>());
                // SAFETY: none. That is what it is for.
                unsafe { nowhere.write_volatile(1) };
            }
            ("!exit", code) => std::process::exit(code.parse().unwrap_or(0)),
            ("!generation", _) => writeln!(client, "{generation} {}", std::process::id())?,
            _ => client.write_all(line.as_bytes())?,
        }
        line.clear();
    }
    Ok(())
}
