//! A program that listens at more addresses than its supervisor keeps.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Server, eventually, folder, is_installed, python};
use outlast_lab::Lab;

/// The last that is kept is shut down, which frees its port, and closed: the next socket that listens there is another one.
const PROGRAM: &str = r#"
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))
def listening(at):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(at); s.listen(10); return s
kept = [listening((f"127.0.{n >> 8}.{n & 255}", 9000)) for n in range(1, 1024)]
last = listening(("127.0.0.1", 0)); name = last.getsockname()
time.sleep(0.3)
last.shutdown(socket.SHUT_RDWR); last.close()
other = listening(("127.0.0.1", 0)); said = "another port"
if other.getsockname() == name:
    try: socket.create_connection(name, 5, ("127.0.0.2", 50000)); said = "reached"
    except OSError as error: said = str(error)
with open(f"{sys.argv[1]}/said", "w") as file: file.write(said)
time.sleep(600)
"#;

#[test]
fn a_socket_at_the_port_of_one_that_was_shut_down_is_reached() {
    outlast_lab::require!("a network with one free port");
    if !is_installed("/usr/bin/python3") {
        return;
    }
    let lab = Lab::new("listeners").unwrap();
    let host = lab.host("server").unwrap();
    let folder = folder("many-listeners");
    let server = {
        let _guard = host.enter_guard().unwrap();
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000").unwrap();
        Server::start(&python(&folder, PROGRAM, &[]), true)
    };
    let said = || std::fs::read_to_string(folder.join("said")).ok().filter(|said| !said.is_empty());
    assert_eq!(eventually("it has not connected", said), "reached");
    server.stop();
    std::fs::remove_dir_all(folder).unwrap();
}
