//! Servers that listen at one network interface alone (SO_BINDTODEVICE), whatever their address.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, PATIENCE, Server, children, eventually, folder, is_installed, kill};
use outlast_lab::Lab;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;

const PORT: u16 = 7000;
const PROGRAM: &str = r#"
import socket, sys, threading
address, device = sys.argv[1], sys.argv[2]
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
s.bind((address, 7000)); s.listen(100)
def serve(c):
    while c.recv(4096): c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

#[test]
fn idle_connections_are_kept_where_a_server_listens_at_one_interface_alone() {
    outlast_lab::require!("servers at one interface");
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let folder = folder("devices");
    let file = folder.join("program.py");
    std::fs::write(&file, PROGRAM).unwrap();
    let lab = Lab::new("devices").unwrap();
    let (near, far) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let link = lab.connect(&near, &far).unwrap();
    let device = link.device(link.side_of(&far).unwrap());

    for (listens, comes) in [
        ("0.0.0.0".parse::<IpAddr>().unwrap(), far.address()),
        (far.address(), far.address()),
        ("::".parse().unwrap(), far.address_v6()),
        ("::".parse().unwrap(), far.address()),
    ] {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(&file).arg(listens.to_string()).arg(device);
        let server = {
            let _guard = far.enter_guard().unwrap();
            Server::start(&command, true)
        };
        let connect = || {
            let stream = near.enter(|| TcpStream::connect(SocketAddr::new(comes, PORT))).unwrap().ok()?;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Some(Client(stream, true))
        };
        let mut idle: Vec<Client> = (0..5).map(|_| eventually("nobody listens", connect)).collect();
        assert!(idle.iter_mut().all(|client| client.get("/")));
        let ports: Vec<u16> = idle.iter().map(|client| client.0.local_addr().unwrap().port()).collect();
        eventually("they are not held", || crate::common::holds(server.pid(), PORT, &ports).then_some(()));
        let master = server.main();
        kill(master, libc::SIGKILL);
        let is_new = |pid: &u32| *pid != master;
        eventually("it is not started again", || children(server.pid()).into_iter().find(is_new));
        let kept = idle.iter_mut().map(|client| client.get("/")).filter(|is_kept| *is_kept).count();
        assert_eq!(kept, 5, "at {listens}, by {comes}: {:?}", server.said(""));
        server.stop();
    }
    std::fs::remove_dir_all(folder).unwrap();
}
