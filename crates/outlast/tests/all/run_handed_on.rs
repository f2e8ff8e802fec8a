//! The supervisor of a server is killed, and the next one of its name deals with what is left: whatever that is, there is one
//! server in the end, and it is looked after.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::ends;
use crate::common::{Outlast, eventually, folder};
use crate::run_preload::{Client, Comes, PROGRAM, free_port, library};
use std::net::TcpStream;
use std::path::Path;

/// Listens by system calls of its own, as Go does. It says which process it is.
const UNTOLD: &str = "
import ctypes, os, socket, struct, sys
call = ctypes.CDLL(None, use_errno=True).syscall
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
address = struct.pack('<H', 2) + struct.pack('>H', int(sys.argv[1])) + bytes([127, 0, 0, 1]) + bytes(8)
if call(49, s.fileno(), address, 16) or call(50, s.fileno(), 50):
    sys.exit('cannot listen: ' + os.strerror(ctypes.get_errno()))
while True:
    c, _ = s.accept()
    try:
        c.recv(999)
        body = str(os.getpid())
        c.sendall(f'HTTP/1.1 200 OK\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}'.encode())
    except OSError: pass
    c.close()
";

/// `program` of Python with these arguments, behind what it is to be started by.
fn start(folder: &Path, by: &[&str], program: &str, arguments: &[&str]) -> Outlast {
    let library = library();
    let run = ["run", "--name", "handed on", "--preload", "always", "--preload-library"];
    let program = [&["--"], by, &["/usr/bin/python3", "-c", program], arguments].concat();
    Outlast::start(folder, &[&run[..], &[library.to_str().unwrap()], &program].concat())
}

#[test]
fn a_server_whose_supervisor_was_killed_before_it_listened_is_taken_over() {
    let (folder, port) = (folder(), free_port());
    let go = folder.path().join("go");
    let program = format!(
        "import os, sys, time\nprint('begun', file=sys.stderr, flush=True)\n\
         while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n{PROGRAM}"
    );
    let arguments = [&port.to_string(), go.to_str().unwrap()];
    let mut first = start(folder.path(), &[], &program, &arguments);
    first.wait_for("begun");
    first.signal("KILL");
    first.ended();
    std::fs::write(&go, "").unwrap();
    let old = Client::connect(port).get();
    let comes = Comes::begin(port);
    let mut next = start(folder.path(), &[], &program, &arguments);
    let line = next.wait_for("of before still runs without its supervisor");
    assert!(line.contains(&old) && line.contains(": 1 of its listening sockets are taken over"), "{line}");
    ends(old.parse().unwrap());
    assert_ne!(Client::connect(port).get(), old);
    assert_eq!(comes.refused(), 0, "some were refused");
    next.signal("TERM");
    next.ended();
}

/// Nor has it an environment by which it could be known.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_server_that_does_not_tell_where_it_listens_is_ended_for_the_next_one() {
    let (folder, port) = (folder(), free_port());
    let (port_text, by) = (port.to_string(), ["/usr/bin/env", "-i"]);
    let mut first = start(folder.path(), &by, UNTOLD, &[&port_text]);
    let old = Client::connect(port).get();
    first.signal("KILL");
    first.ended();
    let mut next = start(folder.path(), &by, UNTOLD, &[&port_text]);
    let line = next.wait_for("of before still runs without its supervisor");
    assert!(line.contains(&format!("(process {old}")) && line.contains("it is told to end"), "{line}");
    assert!(line.contains("clients are refused until"), "{line}");
    ends(old.parse().unwrap());
    eventually("the next one does not serve", || TcpStream::connect(("127.0.0.1", port)).ok());
    assert_ne!(Client::connect(port).get(), old);
    next.signal("TERM");
    next.ended();
    assert!(!next.said().contains("cannot listen"), "{}", next.said());
}

/// Shutting a socket down ends it for all who have it, and so for the supervisor's copy.
#[test]
fn clients_wait_when_an_old_server_shuts_its_listening_socket_down_and_takes_its_time() {
    let end = "import os, signal, socket, threading, time\n\
        def end(*_):\n    L[0].shutdown(socket.SHUT_RDWR); time.sleep(1.5); os._exit(0)\n\
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end).start())\n\
        import socketserver\nL = []\nactivate = socketserver.TCPServer.server_activate\n\
        socketserver.TCPServer.server_activate = lambda s: (activate(s), L.append(s.socket))\n";
    let (folder, port, program) = (folder(), free_port(), format!("{end}{PROGRAM}"));
    let port_text = port.to_string();
    let mut first = start(folder.path(), &[], &program, &[&port_text]);
    let old = Client::connect(port).get();
    first.signal("KILL");
    first.ended();
    // Each that comes is refused until the next one is there, without us.
    let comes = Comes::begin(port);
    let mut next = start(folder.path(), &[], &program, &[&port_text]);
    next.wait_for(": 1 of its listening sockets are taken over");
    ends(old.parse().unwrap());
    let new = Client::connect(port).get();
    let refused = comes.refused();
    // One that comes in the moment in between may be.
    assert!(new != old && refused < 20, "{refused} were refused");
    next.signal("TERM");
    next.ended();
}
