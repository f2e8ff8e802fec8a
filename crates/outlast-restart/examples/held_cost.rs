//! How long it takes from the end of a process to all its connections being back in the next one, by a holder.
//!
//!     held_cost [COUNT...]
#![allow(clippy::print_stdout, reason = "an example")]

use outlast_restart::holder::{Client, Keeper, Options, listen, serve};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};

const ROUNDS: usize = 11;
/// The size of what is kept with each.
const STATE: [u8; 64] = [7; 64];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["give", path, address, count] => give(path, address, count.parse()?),
        ["recover", path] => recover(path),
        ["users", count] => users(count.parse()?),
        counts => {
            let counts: Vec<usize> = counts.iter().map(|count| count.parse()).collect::<Result<_, _>>()?;
            let counts = if counts.is_empty() { vec![1, 100, 1000, 10_000] } else { counts };
            counts.into_iter().try_for_each(measure)
        }
    }
}

fn now_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

/// The service that will be killed.
fn give(path: &str, address: &str, count: usize) -> Outcome<()> {
    let mut client = Client::new(path, "cost")?;
    let mut given_us = 0;
    for n in 0..count {
        let connection = TcpStream::connect(address)?;
        let began_us = now_us();
        client.keep(&format!("connection {n}"), connection.as_fd(), &STATE)?;
        given_us += now_us() - began_us;
    }
    println!("{given_us}");
    std::thread::park();
    Ok(())
}

/// The other ends of the connections, in a process of their own: each may have so many files only.
fn users(count: usize) -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    let _users: Vec<_> = listener.incoming().take(count).collect();
    std::thread::park();
    Ok(())
}

/// The one that comes after it.
fn recover(path: &str) -> Outcome<()> {
    let began_us = now_us();
    let kept = Client::new(path, "cost")?.recover()?;
    println!("{began_us} {} {}", now_us(), kept.len());
    Ok(())
}

fn start(arguments: &[&str]) -> Outcome<(Child, BufReader<ChildStdout>)> {
    let this = std::env::current_exe()?;
    let mut child = Command::new(this).args(arguments).stdout(Stdio::piped()).spawn()?;
    let said = child.stdout.take().ok_or("no output")?;
    Ok((child, BufReader::new(said)))
}

fn line(said: &mut BufReader<ChildStdout>) -> Outcome<Vec<i64>> {
    let mut line = String::new();
    said.read_line(&mut line)?;
    Ok(line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

fn measure(count: usize) -> Outcome<()> {
    // The client has a duplicate of each, for the next holder.
    let needed = 2 * u64::try_from(count)? + 100;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let maximum = limit.maximum.map(|maximum| maximum.max(needed));
        if setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).is_err() {
            println!(
                "{count:>6} connections: skipped, as this user may not open {needed} files (ulimit -Hn)"
            );
            return Ok(());
        }
    }
    let folder = std::env::temp_dir().join(format!("held-cost-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("holder");
    let socket = listen(&path, false)?;
    let path = path.to_str().ok_or("an odd folder for temporary files")?;
    let (stop, stopper) = std::io::pipe()?;
    let holding = std::thread::spawn(move || serve(socket, &Options::default(), stop, |_| ()));
    let (mut users, mut said) = start(&["users", &count.to_string()])?;
    let address = format!("127.0.0.1:{}", line(&mut said)?.first().ok_or("no port")?);
    let (mut service, mut said) = start(&["give", path, &address, &count.to_string()])?;
    let given_us = line(&mut said)?.first().copied().ok_or("it has not given them")?;
    let (mut after_kill_us, mut within_us) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let killed_us = now_us();
        if round == 0 {
            service.kill()?;
        }
        // It is started before it is known that the last one is dead, as a supervisor would that is told by a descriptor.
        let (mut next, mut said) = start(&["recover", path])?;
        let [began_us, ended_us, recovered] = line(&mut said)?[..] else {
            return Err("it says nothing".into());
        };
        assert_eq!(usize::try_from(recovered)?, count);
        after_kill_us.push(ended_us - killed_us);
        within_us.push(ended_us - began_us);
        next.wait()?;
    }
    service.wait()?;
    users.kill()?;
    users.wait()?;
    drop(stopper);
    holding.join().map_err(|_| "the holder has failed")??;
    std::fs::remove_dir_all(&folder)?;
    after_kill_us.sort_unstable();
    within_us.sort_unstable();
    println!(
        "{count:>6} connections: back {} us after the end of the process (median of {ROUNDS}), of which {} us to get them; \
         {} us to give one",
        after_kill_us[ROUNDS / 2],
        within_us[ROUNDS / 2],
        given_us / i64::try_from(count.max(1))?
    );
    Ok(())
}
