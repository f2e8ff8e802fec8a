//! A server of lines with requests that no generation survives: `!segv`, `!abort`, `!panic`, `!hang` and `!memory` crash
//! it, every time. After three crashes such a client is refused, and the others have noticed nothing. `!copy` leaves the
//! client's socket open by another number, too; `!accept` accepts a client and leaves it at that; `!close` closes the standard
//! input, whose number (`!number`) is another client's then; `!child` has another one of these servers begin and end; `!bye`
//! closes the connection.
//! With a second argument it keeps to the default policy, as a service should.
//!
//! `cargo run --example trouble -- 127.0.0.1:7` and `nc 127.0.0.1 7`.
#![allow(clippy::print_stdout, reason = "a program")]

use outlast_restart::policy::Policy;
use outlast_restart::{Connection, Heartbeat};
use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = Arc::new(outlast_restart::listen(address)?);
    println!("listening on {}", listener.local_addr()?);
    // For an example that is there to be crashed.
    let patient = Policy { intensity: 20, intensity_window_ms: 20, ..Policy::default() };
    let policy = if std::env::args().len() > 2 { Policy::default() } else { patient };
    let policy = Policy { hang_timeout_ms: 200, ..policy };
    let mut generation = outlast_restart::register_with(policy)?;
    println!("generation {} {}", generation.number(), std::process::id());
    generation.refuse_with(b"refused\n");
    let (heartbeat, board) = (generation.heartbeat(), generation.board());
    for client in generation.incoming(&*listener)? {
        let (client, listener) = (client?, Arc::clone(&listener));
        std::thread::spawn(move || serve(client, heartbeat, &listener, || board.quarantined().0));
    }
    Ok(())
}

fn serve(
    mut client: Connection,
    heartbeat: Heartbeat,
    listener: &TcpListener,
    refused: impl Fn() -> u32,
) -> io::Result<()> {
    loop {
        heartbeat.busy();
        while let Some(length) = client.input().iter().position(|&byte| byte == b'\n') {
            let line = client.input()[..length].to_vec();
            match line.as_slice() {
                b"!segv" => {
                    let nowhere = std::hint::black_box(std::ptr::null_mut::<u8>());
                    // SAFETY: none. That is what it is for.
                    unsafe { nowhere.write_volatile(1) };
                }
                b"!abort" => std::process::abort(),
                #[allow(clippy::panic, reason = "that is what it is for")]
                b"!panic" => panic!("as it was asked to"),
                #[allow(clippy::empty_loop, reason = "that is what it is for")]
                b"!hang" => loop {
                    std::hint::spin_loop();
                },
                b"!memory" => {
                    let mut taken = Vec::new();
                    loop {
                        taken.push(vec![1u8; 1 << 20]);
                        std::hint::black_box(&taken);
                    }
                }
                b"!copy" => {
                    // Left open, as if it had crashed in the middle of looking at the socket.
                    let copy = client.socket().try_clone_to_owned()?.into_raw_fd();
                    let is_lower = copy < client.socket().as_raw_fd();
                    client.write_all(if is_lower { b"lower\n" } else { b"higher\n" })?;
                }
                b"!accept" => {
                    heartbeat.idle();
                    // As if it had crashed before it could hold it.
                    let (accepted, address) = listener.accept()?;
                    let _ = accepted.into_raw_fd();
                    client.write_all(format!("{address}\n").as_bytes())?;
                }
                b"!close" => {
                    // SAFETY: nobody reads from it any more.
                    drop(unsafe { OwnedFd::from_raw_fd(0) });
                    client.write_all(b"closed\n")?;
                }
                b"!number" => {
                    let number = client.socket().as_raw_fd();
                    client.write_all(format!("{number}\n").as_bytes())?;
                }
                b"!child" => {
                    heartbeat.idle();
                    client.write_all(format!("{}\n", begin_another()?).as_bytes())?;
                }
                b"!bye" => return Ok(()),
                b"!refused" => client.write_all(format!("{}\n", refused()).as_bytes())?,
                _ => client.write_all(&[&line[..], b"\n"].concat())?,
            }
            client.done(length + 1);
        }
        heartbeat.idle();
        if client.receive()? == 0 {
            return Ok(());
        }
    }
}

/// The last that it says before it serves.
fn begin_another() -> io::Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg("127.0.0.1:0").stdout(Stdio::piped()).spawn()?;
    let said = child.stdout.take().map(|said| BufReader::new(said).lines().take(2));
    let said = said.into_iter().flatten().last().transpose()?.unwrap_or_default();
    Command::new("kill").arg(child.id().to_string()).status()?;
    child.wait()?;
    Ok(said.split(' ').take(2).collect::<Vec<_>>().join(" "))
}
