//! `outlast run` with a server that was not changed: its clients keep their connections over its crashes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::restarts::ends;
use crate::common::{Outlast, PATIENCE, command, folder, output};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const CRASHES: usize = 10;

/// A client of redis: one connection, from the beginning to the end.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(port: u16) -> Self {
        let begin = Instant::now();
        loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return Self(BufReader::new(stream));
            }
            assert!(begin.elapsed() < PATIENCE, "nobody listens at port {port}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// The answer, or the content of it.
    fn ask(&mut self, question: &str) -> String {
        self.0.get_mut().write_all(format!("{question}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let Some(length) = line.strip_prefix('$') else { return line.trim_end().to_owned() };
        let mut content = vec![0; length.trim_end().parse::<usize>().unwrap() + 2];
        self.0.read_exact(&mut content).unwrap();
        String::from_utf8(content).unwrap().trim_end().to_owned()
    }

    fn server(&mut self) -> String {
        let info = self.ask("INFO server");
        info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim().to_owned()
    }
}

/// Until a process that has answered waits for the next request: before, one is in flight.
fn await_idle(pid: &str) {
    let begin = Instant::now();
    let sleeps = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap().contains("State:\tS");
    while !sleeps() {
        assert!(begin.elapsed() < PATIENCE, "process {pid} is busy");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_redis_that_is_killed_keeps_its_clients_and_what_they_have_said() {
    outlives(&[]);
}

/// It has threads when it first waits for clients, so that there is no snapshot of it.
#[test]
fn and_so_does_one_that_was_to_go_on_from_a_snapshot() {
    outlives(&["--snapshot"]);
}

fn outlives(more: &[&str]) {
    let folder = folder();
    let this = std::env::current_exe().unwrap();
    let library = this.parent().unwrap().join("liboutlast_preload.so");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let run = ["run", "--name", "store", "--intensity", "20", "--window", "20ms", "--preload", "always"];
    let preload = ["--preload-library", library.to_str().unwrap(), "--"];
    let port_text = port.to_string();
    let (data, redis) = (folder.path().to_str().unwrap(), "/usr/bin/redis-server");
    let program =
        [redis, "--port", &port_text, "--dir", data, "--appendonly", "yes", "--appendfsync", "always"];
    let mut command = command(folder.path(), &[&run[..], more, &preload, &program].concat());
    let mut outlast = Outlast::from({
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    });
    let mut client = Client::connect(port);
    let mut idle = Client::connect(port);
    assert_eq!(idle.ask("PING"), "+PONG");
    for number in 0..CRASHES {
        assert_eq!(client.ask(&format!("SET {number} value-{number}")), "+OK");
        let killed = client.server();
        await_idle(&killed);
        assert!(std::process::Command::new("kill").args(["-9", &killed]).status().unwrap().success());
        for known in 0..=number {
            assert_eq!(
                client.ask(&format!("GET {known}")),
                format!("value-{known}"),
                "after {number} crashes"
            );
        }
        assert_ne!(client.server(), killed);
    }
    assert_eq!(idle.ask("GET 0"), "value-0");
    let status = String::from_utf8(output(folder.path(), &["status", "--json"]).stdout).unwrap();
    assert!(status.contains("\"backend\": \"exec\"") && status.contains("\"generation\": 11"), "{status}");
    let deadline = Instant::now() + PATIENCE;
    // Both clients are counted, within a second or so.
    while !String::from_utf8(output(folder.path(), &["status"]).stdout)
        .unwrap()
        .contains("2 connections held")
    {
        assert!(Instant::now() < deadline, "the connections are not counted");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // Killed, it would leave the server behind.
    outlast.signal("TERM");
    assert!(outlast.ended().code().is_some());
}

fn signal(pid: &str, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), pid]).status().unwrap().success());
}

/// The number behind the last of these words.
fn behind<'a>(words: &str, line: &'a str) -> &'a str {
    line.rsplit_once(words)
        .unwrap_or_else(|| panic!("no {words:?} in {line}"))
        .1
        .split([' ', ')', ':'])
        .next()
        .unwrap()
}

/// Neither the supervisor nor the process that stays is there to end the workers, which have its port.
#[test]
fn workers_of_an_nginx_that_was_killed_are_named_by_the_next_one_and_end_when_told() {
    if !Path::new("/usr/sbin/nginx").exists() {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "there is no nginx");
        eprintln!("SKIPPED: there is no nginx");
        return;
    }
    let folder = folder();
    let library = std::env::current_exe().unwrap().with_file_name("liboutlast_preload.so");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (at, file) = (folder.path().display(), folder.path().join("nginx.conf"));
    let settings = format!(
        "daemon off; worker_processes 2; pid {at}/pid; error_log stderr; events {{ worker_connections 64; }}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:{port}; return 200 'served'; }} }}"
    );
    std::fs::write(&file, settings).unwrap();
    let preload = ["--preload", "always", "--preload-library", library.to_str().unwrap()];
    let run = [&["run", "--name", "orphaned nginx"], &preload[..]].concat();
    let nginx = ["--", "/usr/sbin/nginx", "-e", "stderr", "-c", file.to_str().unwrap()];
    let mut outlast = Outlast::start(folder.path(), &[&run[..], &nginx].concat());
    outlast.wait_for("is ready");
    let supervisor = outlast.pid();
    outlast.signal("KILL");
    outlast.ended();
    // The process that stays says so itself.
    let line = outlast.wait_for("the server goes on without it");
    assert!(line.contains(&format!("the supervisor (process {supervisor}) is gone")), "{line}");
    signal(behind("; kill ", &line), "KILL");
    ends(behind("; kill ", &line).parse().unwrap());
    let left = || {
        let next = output(folder.path(), &[&run[..], &["--", "/bin/true"]].concat());
        let said = String::from_utf8(next.stderr).unwrap();
        let lines = said.lines().filter(|line| line.contains("of an earlier orphaned nginx still runs"));
        lines.map(|line| behind(": kill ", line).to_owned()).collect::<Vec<_>>()
    };
    let workers = left();
    assert_eq!(workers.len(), 2, "{workers:?}");
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("served"), "they still serve: {answer}");
    for worker in &workers {
        signal(worker, "TERM");
        ends(worker.parse().unwrap());
    }
    assert_eq!(left(), [""; 0]);
    let mut next = Outlast::start(folder.path(), &[&run[..], &nginx].concat());
    next.wait_for("is ready");
    next.signal("TERM");
    next.ended();
}
