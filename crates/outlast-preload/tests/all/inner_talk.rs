//! What processes of a program say to each other is no client's connection that is lost in a crash.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{PYTHON, Server, eventually, folder, is_installed, python};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A child of it, and a child of that, speak to it by a UNIX socket, as the workers of Apache do with the daemon of mod_wsgi.
const SERVER: &str = r#"
import os, socket, sys
folder = sys.argv[1]
inner = socket.socket(socket.AF_UNIX); inner.bind(folder + "/inner"); inner.listen(9)
def talk(name):
    s = socket.socket(socket.AF_UNIX); s.connect(folder + "/inner")
    s.sendall(b"hello"); s.recv(9)
    open(folder + "/" + name, "w").close()
    s.recv(9)
if not os.fork():
    inner.close()
    if os.fork(): talk("child")
    else: talk("grandchild")
    os._exit(0)
kept = []
while True:
    c = inner.accept()[0]; c.recv(9); c.sendall(b"hello"); kept.append(c)
"#;

#[test]
fn connections_between_processes_of_the_program_are_not_called_lost() {
    if !is_installed(PYTHON) {
        return;
    }
    let folder = folder("inner-talk");
    let server = Server::start(&python(&folder, SERVER, &[]), true);
    for name in ["child", "grandchild"] {
        eventually("they do not talk", || folder.join(name).exists().then_some(()));
    }
    // More than it takes to be said.
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(server.said("NotKept"), Vec::<String>::new());
    let mut client = UnixStream::connect(folder.join("inner")).unwrap();
    client.write_all(b"hello").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    eventually("a client's is", || (server.said("NotKept").len() == 1).then_some(()));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
}
