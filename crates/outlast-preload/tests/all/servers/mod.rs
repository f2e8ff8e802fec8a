//! Real servers and frameworks, each below a supervisor as without one: a table.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, reason = "the table is what it is about")]

mod rows;

use crate::common::{Client, Server, children, eventually, family, folder, free_port, is_installed, kill};
pub use rows::nginx;
use rows::{ROWS, Row, Talk};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Idle connections while a process is killed.
const IDLE: usize = 20;

/// Which processes are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Master,
    Worker,
    All,
}

/// What has become of clients.
#[derive(Debug, Default)]
struct Seen {
    refused: AtomicU32,
    answered: AtomicU32,
}

fn ask(row: &Row, client: &mut Client) -> bool {
    match row.talk {
        Talk::Http => client.get("/"),
        Talk::Bytes { say, hear } => client.hears(say, hear),
    }
}

/// Until one client is answered.
fn await_serving(row: &Row, port: u16) {
    eventually(row.name, || {
        let mut client = Client::connect(port);
        ask(row, &mut client).then_some(())
    });
}

/// The processes, when no more come.
fn settled(row: &Row, server: &Server) -> Vec<String> {
    let mut last = Vec::new();
    eventually(row.name, || {
        std::thread::sleep(Duration::from_millis(400));
        let now = server.shape();
        (std::mem::replace(&mut last, now.clone()) == now).then_some(now)
    })
}

/// Its processes and its exit code.
fn plain(row: &Row, supervised: bool) -> (Vec<String>, i32) {
    let (port, folder) = (free_port(), folder(row.name));
    let server = Server::start(&(row.make)(&folder, port), supervised);
    await_serving(row, port);
    let told = (settled(row, &server), server.stop());
    let _ = std::fs::remove_dir_all(folder);
    told
}

/// Kills some of its processes while clients come: how many idle connections were kept.
fn crash(row: &Row, victim: Victim) -> usize {
    let (port, folder) = (free_port(), folder(row.name));
    let server = Server::start(&(row.make)(&folder, port), true);
    await_serving(row, port);
    settled(row, &server);
    let mut idle: Vec<Client> = (0..IDLE).map(|_| Client::connect(port)).collect();
    assert!(idle.iter_mut().all(|client| ask(row, client)), "{}: not answered", row.name);
    std::thread::sleep(Duration::from_millis(150));
    let (seen, over) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
    let comes = {
        let (seen, over) = (Arc::clone(&seen), Arc::clone(&over));
        move || {
            while !over.load(Ordering::SeqCst) {
                match Client::try_connect(port) {
                    Ok(mut client) => {
                        // One that a master has passed to a worker which died just then hangs without us, too.
                        client.1 = false;
                        client.0.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
                        let answered = u32::from(ask(row, &mut client));
                        seen.answered.fetch_add(answered, Ordering::SeqCst);
                    }
                    Err(error) => {
                        let refused = u32::from(error.kind() == std::io::ErrorKind::ConnectionRefused);
                        seen.refused.fetch_add(refused, Ordering::SeqCst);
                    }
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    };
    let kept = std::thread::scope(|scope| {
        scope.spawn(comes);
        std::thread::sleep(Duration::from_millis(50));
        let main = server.main();
        let victims = match victim {
            Victim::Master => vec![main],
            Victim::Worker => children(main).into_iter().take(1).collect(),
            Victim::All => [vec![main], family(main)].concat(),
        };
        victims.into_iter().for_each(|pid| kill(pid, libc::SIGKILL));
        let before = seen.answered.load(Ordering::SeqCst);
        eventually("nobody is answered any more", || {
            (seen.answered.load(Ordering::SeqCst) > before + 5).then_some(())
        });
        let kept = idle.iter_mut().filter_map(|client| ask(row, client).then_some(())).count();
        over.store(true, Ordering::SeqCst);
        kept
    });
    assert_eq!(seen.refused.load(Ordering::SeqCst), 0, "{} {victim:?}: refused", row.name);
    drop(server);
    let _ = std::fs::remove_dir_all(folder);
    kept
}

/// One line of the table.
fn check(row: &Row) {
    if !is_installed(row.program) {
        return;
    }
    let (alone, below) = (plain(row, false), plain(row, true));
    assert_eq!(alone, below, "{}: processes and exit code, without and with us", row.name);
    let victims =
        if row.has_workers { &[Victim::Master, Victim::Worker, Victim::All][..] } else { &[Victim::Master] };
    let kept: Vec<String> = victims
        .iter()
        .map(|&victim| {
            let kept = crash(row, victim);
            let expected = if row.keeps_idle { IDLE } else { kept };
            assert_eq!(kept, expected, "{} {victim:?}: idle connections", row.name);
            format!("{victim:?} {kept}/{IDLE}")
        })
        .collect();
    println!(
        "{:<16} {} processes, exit {:<3}, refused 0, idle kept: {}",
        row.name,
        below.0.len(),
        below.1,
        kept.join(", ")
    );
}

/// A third of them, another one each day; all with `OUTLAST_SERVERS=all`, or those that are named there.
#[test]
fn servers_are_as_without_us_and_nobody_is_refused_when_they_crash() {
    let wanted = std::env::var("OUTLAST_SERVERS").unwrap_or_default();
    let day = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / 86_400;
    for (number, row) in ROWS.iter().enumerate() {
        let today = number as u64 % 3 == day % 3;
        let named = wanted.split(',').any(|name| name == row.name);
        if named || wanted == "all" || (wanted.is_empty() && today) {
            check(row);
        }
    }
}

/// By an interpreter, with a program in a file.
fn script(interpreter: &str, folder: &std::path::Path, text: &str) -> Command {
    let file = folder.join("program");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(interpreter);
    command.arg(file);
    command
}
