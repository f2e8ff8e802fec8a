//! A small HTTP/1.1 file server that nobody sees crash: keep-alive, pipelining, GET and HEAD. The paper's first case
//! (Chang et al. 2006, 4.1), with a thread for each client.
//!
//! `cargo run --example files -- 127.0.0.1:8080 FOLDER`, and kill its processes while `curl` downloads.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::Connection;
use outlast_restart::policy::Policy;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

const CHUNK_BYTES: usize = 64 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let folder: Arc<Path> = PathBuf::from(arguments.next().unwrap_or_else(|| ".".to_owned())).into();
    let listener = outlast_restart::listen(address)?;
    println!("listening on {}", listener.local_addr()?);
    // For an example that is there to be crashed.
    let policy = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let mut generation = outlast_restart::register_with(policy)?;
    println!("generation {} {}", generation.number(), std::process::id());
    for client in generation.incoming(&listener)? {
        let (client, folder) = (client?, Arc::clone(&folder));
        std::thread::spawn(move || serve(client, &folder));
    }
    Ok(())
}

fn serve(mut client: Connection, folder: &Path) -> io::Result<()> {
    loop {
        while let Some(length) = head_length(client.input()) {
            let head = String::from_utf8_lossy(&client.input()[..length]).into_owned();
            let goes_on = answer(&mut client, &head, folder)?;
            if !goes_on {
                // The client hears that before the request is done: nobody knows afterwards that this was its last one.
                client.shutdown_write()?;
            }
            // From here on nobody answers it again.
            client.done(length);
            if !goes_on {
                return Ok(());
            }
        }
        if client.receive()? == 0 {
            return Ok(());
        }
    }
}

/// Up to and with the empty line.
fn head_length(input: &[u8]) -> Option<usize> {
    input.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// Whether the connection goes on. The same request has the same answer in every generation, as long as the file is the
/// same: no time of day is told, for one.
fn answer(client: &mut Connection, head: &str, folder: &Path) -> io::Result<bool> {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let closes = lines.any(|line| line.eq_ignore_ascii_case("connection: close"));
    if !matches!(method, "GET" | "HEAD") {
        client
            .write_all(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(!closes);
    }
    let Some(mut file) = open(folder, target) else {
        client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(!closes);
    };
    let length = file.metadata()?.len();
    client.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
    if method == "GET" {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                count => client.write_all(&chunk[..count])?,
            }
        }
    }
    Ok(!closes)
}

/// A regular file below the folder, and nothing else.
fn open(folder: &Path, target: &str) -> Option<File> {
    let path = Path::new(target.split('?').next()?.strip_prefix('/')?);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let file = plain.then(|| File::open(folder.join(path)).ok()).flatten()?;
    file.metadata().ok()?.is_file().then_some(file)
}
