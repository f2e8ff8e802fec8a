//! Programs that everybody has, unmodified, keep their clients over crashes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, eventually, folder, free_port, is_installed, kill, name, nginx, python, settle, workers,
};
use std::process::Command;

#[test]
fn pythons_http_server() {
    let port = free_port();
    let server = Server::start(python("http11.py", &["threads", &port.to_string()]));
    let mut clients: Vec<Client> = (0..5).map(|_| Client::of(port)).collect();
    for crash in 0..30 {
        for client in &mut clients {
            assert_eq!(client.get("/").parse(), Ok(server.serving()), "crash {crash}");
        }
        settle();
        server.crash(libc::SIGKILL);
    }
    assert_eq!(clients[0].get("/").parse(), Ok(server.serving()));
}

#[test]
fn pythons_http_server_with_one_thread() {
    let port = free_port();
    let server = Server::start(python("http11.py", &["one", &port.to_string()]));
    // It serves one connection after the other.
    let mut client = Client::of(port);
    for crash in 0..30 {
        assert_eq!(client.get("/").parse(), Ok(server.serving()), "crash {crash}");
        settle();
        server.crash(libc::SIGABRT);
    }
}

#[test]
fn redis() {
    if !is_installed("redis-server") {
        return;
    }
    let (port, folder) = (free_port(), folder("redis"));
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command
        .args(["--appendonly", "yes", "--appendfsync", "always", "--logfile", "log", "--dir"])
        .arg(&folder);
    let server = Server::start(command);
    let (mut client, mut fresh) = (Client::of(port), Client::of(port));
    for crash in 0..30 {
        client.say(&format!("SET key{crash} value{crash}\r\n"));
        assert_eq!(client.hear().as_deref(), Some("+OK"));
        settle();
        server.crash(if crash % 2 == 0 { libc::SIGKILL } else { libc::SIGABRT });
        for key in [0, crash / 2, crash] {
            client.say(&format!("GET key{key}\r\n"));
            let value = format!("value{key}");
            assert_eq!(client.hear(), Some(format!("${}", value.len())), "crash {crash}");
            assert_eq!(client.hear(), Some(value));
        }
    }
    // Nothing was ever asked on this one.
    fresh.say("PING\r\n");
    assert_eq!(fresh.hear().as_deref(), Some("+PONG"));
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn workers_of_nginx() {
    if !is_installed("nginx") {
        return;
    }
    let (port, folder) = (free_port(), folder("workers"));
    let server = Server::start(nginx(&folder, port, 2));
    let mut clients: Vec<Client> = (0..10).map(|_| Client::of(port)).collect();
    for crash in 0..30 {
        for client in &mut clients {
            assert_eq!(client.get("/file"), "from a file", "crash {crash}");
        }
        let before =
            eventually("no workers", || Some(workers(server.serving())).filter(|all| all.len() == 2));
        kill(before[crash % 2], libc::SIGKILL);
        eventually("no other worker", || {
            let now = workers(server.serving());
            (now.len() == 2 && now != before).then_some(())
        });
    }
    assert_eq!(server.board.generation(), 1);
    let held = |count| eventually("another count", || (server.board.held().0 == count).then_some(()));
    held(10);
    clients.truncate(4);
    held(4);
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Somebody who asks all the time: how often he was answered, and how often the connection ended instead. There is
/// nothing else, such as silence, or the answer to something else.
fn asks(port: u16, seconds: u64) -> (u32, u32) {
    let (mut answered, mut ended) = (0, 0);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    let mut client = Client::of(port);
    while std::time::Instant::now() < deadline {
        match client.try_get("/file") {
            Some(body) => {
                assert_eq!(body, "from a file");
                answered += 1;
            }
            None => {
                ended += 1;
                client = Client::of(port);
            }
        }
    }
    (answered, ended)
}

#[test]
fn nginx_under_load() {
    if !is_installed("nginx") {
        return;
    }
    let (port, folder) = (free_port(), folder("load"));
    let server = Server::start(nginx(&folder, port, 2));
    drop(Client::of(port));
    let clients: Vec<_> = (0..4).map(|_| std::thread::spawn(move || asks(port, 3))).collect();
    let mut crashes = 0usize;
    while clients.iter().any(|client| !client.is_finished()) {
        std::thread::sleep(std::time::Duration::from_millis(37));
        for worker in workers(server.serving()).into_iter().skip(crashes % 2).take(1) {
            kill(worker, libc::SIGKILL);
            crashes += 1;
        }
    }
    let told: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert!(crashes > 10 && told.iter().all(|(answered, _)| *answered > 10), "{crashes} crashes: {told:?}");
    println!("{crashes} crashes: answers and ends: {told:?}");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn master_of_nginx() {
    if !is_installed("nginx") {
        return;
    }
    let (port, folder) = (free_port(), folder("master"));
    let server = Server::start(nginx(&folder, port, 2));
    let mut old = Client::of(port);
    let worker = old.get("/pid");
    for crash in 0..5 {
        settle();
        server.crash(libc::SIGKILL);
        // The old worker goes on with it, and leaves newcomers to the new ones.
        assert_eq!(old.get("/pid"), worker, "crash {crash}");
        eventually("newcomers come to the old worker", || {
            let mut newcomer = Client::of(port);
            (newcomer.get("/pid") != worker).then_some(())
        });
    }
    drop(old);
    let worker = worker.parse().unwrap();
    eventually("the old worker does not end", || (!name(worker).contains("outlast")).then_some(()));
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn haproxy_with_its_threads() {
    if !is_installed("haproxy") {
        return;
    }
    let (port, folder) = (free_port(), folder("haproxy"));
    let config = format!(
        "global\n  nbthread 2\n\
         defaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n\
         frontend all\n  bind 127.0.0.1:{port}\n  http-request return status 200 content-type text/plain string hello\n"
    );
    std::fs::write(folder.join("config"), config).unwrap();
    let mut command = Command::new("/usr/sbin/haproxy");
    command.arg("-db").arg("-f").arg(folder.join("config"));
    let server = Server::start(command);
    let mut clients: Vec<Client> = (0..10).map(|_| Client::of(port)).collect();
    for crash in 0..20 {
        for client in &mut clients {
            assert_eq!(client.get("/"), "hello", "crash {crash}");
        }
        settle();
        server.crash(libc::SIGKILL);
    }
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}
