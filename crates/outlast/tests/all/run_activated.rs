//! Programs that get their listening sockets from a service manager (sd_listen_fds(3)), below `outlast run`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, eventually, folder};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

/// What systemd does for a `.socket` unit with two sockets: they are 3 and 4 of the process that it executes.
const MANAGER: &str = "
import os, socket, sys
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
with open(os.environ['ADDRESSES'] + '.new', 'w') as file:
    for one in sockets: print('127.0.0.1:%d' % one.getsockname()[1], file=file)
os.rename(os.environ['ADDRESSES'] + '.new', os.environ['ADDRESSES'])
aside = [os.dup2(one.fileno(), 100 + place) for place, one in enumerate(sockets)]
for place, one in enumerate(aside): os.dup2(one, 3 + place); os.close(one)
os.environ.update(LISTEN_FDS='2', LISTEN_FDNAMES='web:admin', LISTEN_PID=str(os.getpid()), LISTEN_PIDFDID='1')
os.execvp(sys.argv[1], sys.argv[1:])
";

/// Does as sd_listen_fds_with_names does, and tells each client its process, the socket's name and what it has sent.
const SERVER: &str = "
import os, select, socket, sys
environment = os.environ
if environment.get('LISTEN_PID') != str(os.getpid()) or 'LISTEN_PIDFDID' in environment: sys.exit(0)
names = environment['LISTEN_FDNAMES'].split(':')
served = {}
for place in range(int(environment['LISTEN_FDS'])):
    os.set_inheritable(3 + place, False)
    one = socket.socket(fileno=3 + place)
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    served[one] = names[place]
while True:
    for one in select.select(list(served), [], [])[0]:
        client, _ = one.accept()
        client.sendall(b'%d %s' % (os.getpid(), served[one].encode()))
        client.close()
";

/// By whom, and at which socket.
fn ask(address: SocketAddr) -> (u32, String) {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    client.write_all(b"?").ok();
    let mut said = String::new();
    client.read_to_string(&mut said).ok();
    let (pid, name) = said.split_once(' ').unwrap_or_else(|| panic!("{said:?} is no answer"));
    (pid.parse().unwrap(), name.to_owned())
}

#[test]
fn sockets_of_a_service_manager_are_each_programs_own() {
    for preload in ["auto", "never"] {
        let folder = folder();
        let file = folder.path().join("addresses");
        let mut command = Command::new("python3");
        command.args(["-c", MANAGER, env!("CARGO_BIN_EXE_outlast"), "run", "--preload", preload, "--"]);
        command.args(["python3", "-c", SERVER]);
        command.env("XDG_RUNTIME_DIR", folder.path()).env("ADDRESSES", &file).env("OUTLAST_LOG", "info");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut outlast = Outlast::from(command);
        let addresses: Vec<SocketAddr> = eventually("no sockets", || {
            let said = std::fs::read_to_string(&file).ok()?;
            Some(said.lines().map(|line| line.parse().unwrap()).collect())
        });
        let mut last = None;
        for _ in 0..3 {
            let (web, admin) = (ask(addresses[0]), ask(addresses[1]));
            assert_eq!((web.1.as_str(), admin.1.as_str()), ("web", "admin"));
            assert_eq!(web.0, admin.0);
            assert_ne!(last, Some(web.0));
            last = Some(web.0);
            // No client is refused after this: the sockets are there, as they are without a program.
            assert!(Command::new("kill").args(["-KILL", &web.0.to_string()]).status().unwrap().success());
            crate::common::restarts::ends(web.0);
        }
        // The next one runs: what is told to end is not one that was killed.
        ask(addresses[0]);
        outlast.signal("TERM");
        let code = outlast.ended().code();
        assert!([Some(143), Some(0)].contains(&code), "{code:?}: {}", outlast.said());
    }
}
