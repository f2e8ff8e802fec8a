//! Whoever keeps a server alive can die, too: the zygote, the supervisor, and all at once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::family::{children, eventually, send, send_to_group, serving_and_standing_by};
use crate::common::tracer::{Reached, Step, Tracer};
use crate::common::{PATIENCE, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn connect(server: &Server) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

fn ask(client: &mut BufReader<TcpStream>, words: &str) {
    client.get_mut().write_all(format!("{words}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_line(&mut answer).unwrap();
    let backwards: String = words.chars().rev().collect();
    assert_eq!(answer, format!("{}\n", backwards.repeat(words.len() % 20 + 1)));
}

fn is_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn who_succeeds_without_a_zygote_says_that_it_is_the_last_one() {
    let mut server = Server::start_heard("lines", &["127.0.0.1:0"]);
    let mut client = connect(&server);
    ask(&mut client, "all are there");
    let (serving, stands_by) = serving_and_standing_by(&server);
    send(server.pid(), libc::SIGKILL);
    eventually("the zygote ends", || server.has_ended());
    send(serving, libc::SIGKILL);
    ask(&mut client, "one is left");
    let says_so =
        |line: &String| line.contains("is the last one") && line.contains(&format!("process {stands_by} "));
    eventually("it says so", || server.complaints().iter().any(says_so));
    send(stands_by, libc::SIGKILL);
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
    eventually("nobody is left", || is_gone(stands_by));
}

/// In whatever order they die: who stands by serves.
#[test]
fn the_zygote_and_the_serving_generation_may_die_together() {
    for zygote_first in [true, false] {
        let server = Server::start_heard("lines", &["127.0.0.1:0"]);
        let mut client = connect(&server);
        ask(&mut client, "all are there");
        let (serving, _) = serving_and_standing_by(&server);
        let both = if zygote_first { [server.pid(), serving] } else { [serving, server.pid()] };
        for pid in both {
            send(pid, libc::SIGKILL);
        }
        ask(&mut client, "one is left");
        send_to_group(server.pid(), libc::SIGKILL);
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
    }
}

#[test]
fn nothing_is_left_when_all_die_at_once() {
    let server = Server::start_heard("lines", &["127.0.0.1:0"]);
    let mut client = connect(&server);
    ask(&mut client, "all are there");
    let (serving, stands_by) = serving_and_standing_by(&server);
    send_to_group(server.pid(), libc::SIGKILL);
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
    eventually("all are gone", || [serving, stands_by, server.pid()].into_iter().all(is_gone));
}

/// Whoever is told to end when nobody serves yet ends: at whichever system call of a take-over that comes.
#[test]
fn a_server_that_takes_over_can_be_told_to_end() {
    for stop in (1..).step_by(4) {
        let mut server = Server::start("lines", &["127.0.0.1:0"]);
        let mut client = connect(&server);
        ask(&mut client, "one serves");
        let (serving, stands_by) = serving_and_standing_by(&server);
        let mut tracer = Tracer::of(stands_by).unwrap();
        send(serving, libc::SIGKILL);
        let reached = tracer.run(Step::SystemCall, stop, || server.serving() != serving);
        if reached == Reached::Stop {
            send(server.pid(), libc::SIGTERM);
            // Until it was passed on.
            std::thread::sleep(Duration::from_millis(20));
        }
        tracer.release();
        if reached != Reached::Stop {
            return;
        }
        eventually(&format!("stop {stop}: it ends"), || server.has_ended());
    }
}

/// The process that serves, from `echo`, which may have to be asked again.
fn asked_for_serving(server: &Server) -> u32 {
    let mut serving = 0;
    eventually("one answers", || {
        let Ok(mut stream) = TcpStream::connect(server.address) else { return false };
        let (_, mut answer) = (stream.write_all(b"!generation\n"), String::new());
        let _ = BufReader::new(stream).read_line(&mut answer);
        let told = answer.trim_end().rsplit_once(' ').and_then(|(_, pid)| pid.parse().ok());
        told.inspect(|pid| serving = *pid).is_some()
    });
    serving
}

/// More crashes than the policy allows end it, and it says how the last one died, in whatever order the zygote hears of that
/// and of who gives up.
#[test]
fn who_gives_up_says_why_whoever_is_buried_first() {
    for watched in [true, false] {
        // Five crashes on each of three rungs.
        let mut server = Server::start_heard("echo", &["127.0.0.1:0"]);
        for _ in 0..15 {
            let serving = asked_for_serving(&server);
            send(serving, libc::SIGKILL);
            eventually("it dies", || is_gone(serving));
        }
        let serving = asked_for_serving(&server);
        // Whoever is watched is not to be buried before that ends.
        let tracer = watched.then(|| Tracer::of(serving).unwrap());
        if !watched {
            send(server.pid(), libc::SIGSTOP);
        }
        send(serving, libc::SIGKILL);
        std::thread::sleep(Duration::from_millis(50));
        tracer.into_iter().for_each(Tracer::kill);
        send(server.pid(), libc::SIGCONT);
        eventually("it gives up", || server.has_ended());
        eventually(&format!("it says why (watched: {watched})"), || {
            let why = "has been killed by SIGKILL, and is not restarted";
            server.complaints().iter().any(|line| line.contains(why))
        });
    }
}

/// Whoever stood by gives up while the zygote splits the next one off, which would find the same in the place of the dead: it
/// must not serve, and the zygote must not wait for it.
#[test]
fn nobody_serves_after_one_has_given_up() {
    let server = Server::start_heard("echo", &["127.0.0.1:0"]);
    for _ in 0..15 {
        let serving = asked_for_serving(&server);
        send(serving, libc::SIGKILL);
        eventually("it dies", || is_gone(serving));
    }
    let serving = asked_for_serving(&server);
    let mut tracer = Tracer::of(server.pid()).unwrap();
    let stands_by =
        children(server.pid()).into_iter().map(|child| child.pid).find(|pid| *pid != serving).unwrap();
    send(serving, libc::SIGKILL);
    eventually("both die", || is_gone(serving) && is_gone(stands_by));
    // Whoever it splits off is quicker than it is.
    let deadline = Instant::now() + PATIENCE;
    let reached = loop {
        match tracer.run(Step::SystemCall, 1, || Instant::now() > deadline) {
            Reached::Stop => std::thread::sleep(Duration::from_millis(5)),
            reached => break reached,
        }
    };
    assert_eq!(reached, Reached::End, "it gives up");
    let why = "has been killed by SIGKILL, and is not restarted";
    eventually("it says why", || server.complaints().iter().any(|line| line.contains(why)));
    TcpStream::connect(server.address).unwrap_err();
}
