//! Requests that crash whoever deals with them: whoever sends them is refused, and nobody else notices.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test")]

use crate::common::{PATIENCE, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OTHERS: usize = 999;

fn connect(server: &Server) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

fn ask(stream: &mut BufReader<TcpStream>, question: &str) -> String {
    let mut answer = String::new();
    stream.get_mut().write_all(format!("{question}\n").as_bytes()).unwrap();
    stream.read_line(&mut answer).unwrap();
    answer.trim_end().to_owned()
}

/// One sends what nobody survives; the others ask and are answered all the time, or just stay.
fn poison(server: &Server, request: &str, others: usize) {
    let mut idle: Vec<_> = (0..others - 4).map(|_| connect(server)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let stop = &stop;
            scope.spawn(move || {
                let mut stream = connect(server);
                for count in 0.. {
                    let words = format!("client {number}, question {count}");
                    assert_eq!(ask(&mut stream, &words), words);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
        }
        let mut poison = connect(server);
        assert_eq!(ask(&mut poison, "still well"), "still well");
        let before: u32 = ask(&mut poison, "!refused").parse().unwrap();
        poison.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut told = String::new();
        poison.read_to_string(&mut told).unwrap();
        assert_eq!(told, "refused\n", "{request}");
        assert_eq!(ask(&mut connect(server), "!refused"), (before + 1).to_string());
        stop.store(true, Ordering::Relaxed);
    });
    for (number, stream) in idle.iter_mut().enumerate() {
        let words = format!("idle {number}");
        assert_eq!(ask(stream, &words), words);
    }
}

#[test]
fn who_crashes_everybody_is_refused_and_the_others_notice_nothing() {
    let server = Server::start("trouble", &["127.0.0.1:0"]);
    poison(&server, "!segv", OTHERS);
    poison(&server, "!abort", 20);
    poison(&server, "!panic", 20);
}

/// Fifteen crashes, which are more than would cost everybody their connections if each counted.
#[test]
fn several_who_crash_everybody_are_refused_and_the_others_keep_their_connections() {
    let server = Server::start("trouble", &["127.0.0.1:0", "default"]);
    let mut others: Vec<_> = (0..20).map(|_| connect(&server)).collect();
    for (number, request) in ["!segv", "!abort", "!hang", "!segv", "!abort"].into_iter().enumerate() {
        poison(&server, request, 10);
        for other in &mut others {
            let words = format!("after {number}");
            assert_eq!(ask(other, &words), words);
        }
    }
}

#[test]
fn who_hangs_everybody_is_refused_too() {
    poison(&Server::start("trouble", &["127.0.0.1:0"]), "!hang", 20);
}

#[test]
fn who_takes_all_memory_is_refused_too() {
    let Ok(group) = outlast_lab::MemoryGroup::new(256 << 20) else {
        let why = "no group of processes with a limit of memory can be made here (root, cgroups)";
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{why}");
        eprintln!("SKIPPED: who_takes_all_memory_is_refused_too: {why}");
        return;
    };
    // While the memory of a killed generation is not free yet, the kernel may kill another process that needs some. If that is
    // the zygote, all ends (SPECIFICATION 5.8): nothing can be asked of that server.
    for _ in 0..3 {
        let mut server = Server::start_in(&group, "trouble", &["127.0.0.1:0"]);
        let outcome = std::panic::catch_unwind(|| poison(&server, "!memory", 20));
        match outcome {
            Ok(()) => return,
            Err(_) if server.was_killed() => println!("the kernel has killed the zygote"),
            Err(failed) => std::panic::resume_unwind(failed),
        }
    }
    panic!("the kernel kills the zygote each time");
}

#[test]
fn a_copy_of_a_socket_is_not_taken_for_the_connection() {
    let server = Server::start("trouble", &["127.0.0.1:0"]);
    let (mut first, mut second) = (connect(&server), connect(&server));
    assert_eq!((ask(&mut first, "first"), ask(&mut second, "second")), ("first".into(), "second".into()));
    let begin = std::time::Instant::now();
    loop {
        // Its number is free then, and lower than that of who came later.
        first.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
        let answer = ask(&mut second, "!copy");
        if answer == "lower" {
            break;
        }
        assert_eq!(answer, "higher");
        assert!(begin.elapsed() < crate::common::PATIENCE, "no lower number becomes free");
        std::thread::sleep(Duration::from_millis(10));
        // Both are new: of the one that was asked there is a copy, and it would never end.
        (first, second) = (connect(&server), connect(&server));
        assert_eq!((ask(&mut first, "later"), ask(&mut second, "last")), ("later".into(), "last".into()));
    }
    second.get_mut().write_all(b"what was read ").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let serving = server.take_serving(|| false).unwrap();
    crate::common::signal(serving, "KILL");
    assert_eq!(ask(&mut second, "is not lost"), "what was read is not lost");
}

#[test]
fn a_client_may_have_the_number_of_what_was_open_before_there_were_generations() {
    let server = Server::start("trouble", &["127.0.0.1:0"]);
    assert_eq!(ask(&mut connect(&server), "!close"), "closed");
    // Whoever is waited for already has another one.
    let mut clients = [(); 2].map(|()| connect(&server));
    let numbers = clients.each_mut().map(|client| ask(client, "!number"));
    assert!(numbers.contains(&"0".to_owned()), "{numbers:?}");
    for client in &mut clients {
        client.get_mut().write_all(b"what was read ").unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    crate::common::signal(server.take_serving(|| false).unwrap(), "KILL");
    for client in &mut clients {
        assert_eq!(ask(client, "is not lost"), "what was read is not lost");
    }
}
