//! What it costs a program that its sockets are held: its own calls, bare and below a supervisor, in turns, in one run.
//! `cargo run --release -p outlast-preload --example cost`, after `cargo build --release -p outlast-preload --examples`.
#![allow(clippy::print_stdout, reason = "what it says is its output")]
#![allow(clippy::cast_precision_loss, reason = "of times that are told with one digit")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Connections at a time.
const BATCH: usize = 200;
const BATCHES: usize = 10;
/// Runs of each kind.
const ROUNDS: usize = 9;
const BINDS: usize = 20;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const NAMES: [&str; 8] =
    ["first bind", "bind", "listen", "accept", "first read", "write", "later read", "close"];
const SERVE: &str = "serve";

fn main() -> Outcome<()> {
    if std::env::args().nth(1).as_deref() == Some(SERVE) {
        return serve();
    }
    let mut bare = Vec::new();
    let mut held = Vec::new();
    let mut again = Vec::new();
    for _ in 0..ROUNDS {
        bare.push(measure(false)?);
        held.push(measure(true)?);
        again.push(measure(false)?);
    }
    println!("{:<12} {:>9} {:>9} {:>7} {:>7}", "call", "bare", "held", "ratio", "A/A");
    for (number, name) in NAMES.iter().enumerate() {
        let [bare, held, again] = [&bare, &held, &again].map(|all| median(all, number));
        let (ratio, same) = (held / bare, again / bare);
        println!("{name:<12} {bare:>6.2} us {held:>6.2} us {ratio:>7.2} {same:>7.2}");
    }
    Ok(())
}

fn median(all: &[[f64; NAMES.len()]], number: usize) -> f64 {
    let mut values: Vec<f64> = all.iter().filter_map(|one| one.get(number)).copied().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Microseconds for each call.
fn measure(held: bool) -> Outcome<[f64; NAMES.len()]> {
    let this = std::env::current_exe()?;
    let folder = this.parent().ok_or("no folder")?;
    let mut command = Command::new(if held { folder.join("supervise") } else { this.clone() });
    if held {
        let target = folder.parent().ok_or("no folder")?;
        command.arg(&this).env("OUTLAST_PRELOAD_LIBRARY", target.join("liboutlast_preload.so"));
    }
    let mut child = command.arg(SERVE).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut tell = child.stdin.take().ok_or("no input")?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let mut next = |begin: &str| -> Outcome<String> {
        for line in &mut lines {
            if let Some(rest) = line?.strip_prefix(begin) {
                return Ok(rest.to_owned());
            }
        }
        Err(format!("it does not say {begin:?}").into())
    };
    let port: u16 = next("serves at ")?.parse()?;
    for _ in 0..BATCHES {
        let mut clients: Vec<TcpStream> =
            (0..BATCH).map(|_| TcpStream::connect(("127.0.0.1", port))).collect::<Result<_, _>>()?;
        for round in ["first", "later"] {
            clients.iter_mut().try_for_each(|client| client.write_all(REQUEST))?;
            writeln!(tell, "{round}")?;
            next("answered")?;
            clients.iter_mut().try_for_each(|client| client.read_exact(&mut [0; ANSWER.len()]))?;
        }
        writeln!(tell, "close")?;
        next("closed")?;
    }
    let told = next("took ")?;
    child.wait()?;
    let times: Vec<f64> = told.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    times.try_into().map_err(|_| "not as many times as calls".into())
}

/// The program whose calls are measured.
fn serve() -> Outcome<()> {
    let mut took = [0.0; NAMES.len()];
    let microseconds = |began: Instant, count: usize| began.elapsed().as_nanos() as f64 / 1e3 / count as f64;
    let mut listener = None;
    for number in 0..=BINDS {
        let port = outlast_lab::free_port()?;
        drop(listener.take());
        let (bind, listen, socket) = times_of_listening(port)?;
        if number == 0 {
            took[0] = bind;
        } else {
            took[1] += bind / BINDS as f64;
            took[2] += listen / BINDS as f64;
        }
        listener = Some(socket);
    }
    let listener = listener.ok_or("no listener")?;
    println!("serves at {}", listener.local_addr()?.port());
    let mut words = std::io::stdin().lines();
    let mut room = [0; 1024];
    for _ in 0..BATCHES {
        words.next().ok_or("nobody asks")??;
        let mut clients: Vec<TcpStream> = Vec::with_capacity(BATCH);
        let began = Instant::now();
        for _ in 0..BATCH {
            clients.push(listener.accept()?.0);
        }
        took[3] += microseconds(began, BATCH * BATCHES);
        for (number, is_last) in [(4, false), (6, true)] {
            let began = Instant::now();
            for client in &mut clients {
                let _ = client.read(&mut room)?;
            }
            took[number] += microseconds(began, BATCH * BATCHES);
            let began = Instant::now();
            for client in &mut clients {
                client.write_all(ANSWER)?;
            }
            took[5] += microseconds(began, 2 * BATCH * BATCHES);
            println!("answered");
            if !is_last {
                words.next().ok_or("nobody asks")??;
            }
        }
        words.next().ok_or("nobody asks")??;
        let began = Instant::now();
        drop(clients);
        took[7] += microseconds(began, BATCH * BATCHES);
        println!("closed");
    }
    println!("took {}", took.map(|time| time.to_string()).join(" "));
    Ok(())
}

/// Of `bind` and `listen`, in microseconds.
fn times_of_listening(port: u16) -> Outcome<(f64, f64, TcpListener)> {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let checked = |result: i32| {
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
    };
    let address = libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET)?,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let (place, length) = ((&raw const address).cast(), libc::socklen_t::try_from(size_of_val(&address))?);
    // SAFETY: a new socket, and an address of the length that is told.
    unsafe {
        let socket = OwnedFd::from_raw_fd(checked(libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
        ))?);
        let began = Instant::now();
        checked(libc::bind(socket.as_raw_fd(), place, length))?;
        let bind = began.elapsed();
        let began = Instant::now();
        checked(libc::listen(socket.as_raw_fd(), 1024))?;
        let listen = began.elapsed();
        let [bind, listen] = [bind, listen].map(|time| time.as_nanos() as f64 / 1e3);
        Ok((bind, listen, socket.into()))
    }
}
