//! Servers that close what they have before they exit with an error, as Python does at an exception that nobody catches.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Server, eventually, folder, free_port, kill, python_at, wait_until_held};
use std::io::Read;
use std::time::{Duration, Instant};

/// At SIGUSR1 it closes its listening socket and its connections, and exits with 3; at SIGUSR2 it closes them and goes on.
const SERVER: &str = r#"
import select, signal, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(50)
told = []
for number in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(number, lambda number, _: told.append(number))
clients = []
while True:
    for one in select.select([s] + clients, [], [], 0.02)[0]:
        if one is s: clients.append(s.accept()[0])
        elif one.recv(1000): one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        else: clients.remove(one); one.close()
    if told:
        s.close()
        for one in clients: one.close()
        if told[0] == signal.SIGUSR1: sys.exit(3)
        while True: signal.pause()
"#;

fn with_idle_clients(name: &str) -> (Server, Vec<Client>, u16, std::path::PathBuf) {
    let (folder, port) = (folder(name), free_port());
    let server = Server::start(&python_at(port, &folder, SERVER), true);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(port)).collect();
    assert!(clients.iter_mut().all(|client| client.get("/")));
    wait_until_held(&server, &clients);
    (server, clients, port, folder)
}

#[test]
fn what_was_closed_just_before_an_exit_with_an_error_is_kept() {
    let (server, mut clients, _, folder) = with_idle_clients("closing-exits");
    for _ in 0..3 {
        let main = server.main();
        kill(main, libc::SIGUSR1);
        eventually("it goes on", || server.main_now().filter(|now| *now != main && *now != 0));
        assert!(clients.iter_mut().all(|client| client.get("/")), "{:?}", server.said(""));
        wait_until_held(&server, &clients);
    }
    let said = server.said("PartEnded");
    assert!(said.len() == 3 && said.iter().all(|line| line.contains("kept: 6, closed: 0")), "{said:?}");
    server.stop();
    std::fs::remove_dir_all(folder).ok();
}

#[test]
fn a_server_that_closes_everything_and_goes_on_is_believed_in_a_moment() {
    let (server, mut clients, port, folder) = with_idle_clients("closing-drain");
    kill(server.main(), libc::SIGUSR2);
    let began = Instant::now();
    for client in &mut clients {
        assert!(matches!(client.0.read(&mut [0]), Ok(0)));
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    eventually("it listens", || Client::try_connect(port).is_err().then_some(()));
    server.stop();
    std::fs::remove_dir_all(folder).ok();
}
