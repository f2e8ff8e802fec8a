//! CPython's own tests of ftplib and asyncore, through relays whose links break all the time. FTP's ABOR and asyncore's
//! handle_expt need urgent data (MSG_OOB), which used to vanish.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, folder};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Every TCP connection goes through the SOCKS5 proxy of its family. A socket that must not block is connected at once.
/// No test is left out. Those of UNIX sockets go past the proxy.
const SCRIPT: &str = r#"
import errno, socket, sys, unittest
times, part, parts, *fronts = map(int, sys.argv[1:])
hosts = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
plain, fronts, connects = socket.socket.connect, dict(zip(hosts, fronts)), 0

def connect(self, address):
    global connects
    if self.type != socket.SOCK_STREAM or self.family not in fronts:
        return plain(self, address)
    connects += 1
    timeout = self.gettimeout()
    self.settimeout(None)
    plain(self, (hosts[self.family], fronts[self.family]))
    ip, port = socket.getaddrinfo(*address[:2], self.family)[0][4][:2]
    where = socket.inet_pton(self.family, ip) + port.to_bytes(2, "big")
    self.sendall(b"\5\1\0\5\1\0" + (b"\1" if self.family == socket.AF_INET else b"\4") + where)
    answer = self.recv(6, socket.MSG_WAITALL)
    self.recv(6 if answer[-1:] == b"\1" else 18, socket.MSG_WAITALL)
    self.settimeout(timeout)
    if answer[:4] != b"\5\0\5\0":
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"the proxy said {answer}")

def connect_ex(self, address):
    try:
        return connect(self, address) or 0
    except OSError as error:
        return error.errno
def each(suite):
    return sum(map(each, suite), []) if isinstance(suite, unittest.TestSuite) else [suite]
socket.socket.connect, socket.socket.connect_ex = connect, connect_ex
suites = unittest.defaultTestLoader.loadTestsFromNames(["test.test_ftplib", "test.test_asyncore"])
tests = each(suites)[part::parts]
if times > 1:
    urgent = (".TestFTPClass.test_abort", ".test_handle_expt")  # With TLS ftplib's ABOR is not urgent.
    tests = [test for test in tests if test.id().endswith(urgent)] * times
result = unittest.TextTestRunner(failfast=True).run(unittest.TestSuite(tests))
sys.exit(f"{connects} connections" if not result.wasSuccessful() or connects < len(tests) / 4 else 0)
"#;

/// Carries connections to `server`. Each breaks in place of a piece that it should carry, after some
/// others; every third in place of FTP's ABOR, too.
fn breaking(server: SocketAddr) -> SocketAddr {
    let middle = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = middle.local_addr().unwrap();
    std::thread::spawn(move || {
        for (near, number) in middle.incoming().flatten().zip(0..) {
            let Ok(far) = TcpStream::connect(server) else { return };
            let link = Arc::new(([near, far], AtomicIsize::new(3 + number * number % 7)));
            for from in [0, 1] {
                let link = Arc::clone(&link);
                std::thread::spawn(move || {
                    let (streams, pieces) = &*link;
                    let (mut from, mut to, mut room) = (&streams[from], &streams[1 - from], [0; 1 << 16]);
                    while let Ok(count @ 1..) = from.read(&mut room)
                        && pieces.fetch_sub(1, Ordering::Relaxed) > 0
                        && !(number % 3 == 0 && room[..count].ends_with(b"ABOR\r\n"))
                        && to.write_all(&room[..count]).is_ok()
                    {}
                    streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                });
            }
        }
    });
    address
}

/// Runs every `parts`th test of the suites, or those of urgent data so many times. What the client and the server said.
fn run(way: fn(SocketAddr) -> SocketAddr, times: usize, part: usize, parts: usize) -> [String; 2] {
    let folder = folder();
    let listen = ["listen", "127.0.0.1:0", "--to-any", "--allow-to", "127.0.0.0/8", "--allow-to", "::1"];
    let mut server = Outlast::start(folder.path(), &listen);
    let via = way(server.address()).to_string();
    // Without IPv6 the suites leave its tests out.
    let fronts = ["127.0.0.1:0", "[::1]:0"].into_iter().filter(|front| TcpListener::bind(front).is_ok());
    let start = |front| Outlast::start(folder.path(), &["connect", "--socks5", front, "--via", &via]);
    let mut clients: Vec<_> = fronts.map(start).collect();
    // It kills its whole process group: a suite that hangs fails.
    let mut suites = Command::new("timeout");
    suites.args(["--signal=KILL", "60", "/usr/bin/python3", "-W", "ignore", "-c", SCRIPT]);
    suites.args([times, part, parts].map(|number| number.to_string()));
    suites.args(clients.iter_mut().map(|client| client.address().port().to_string()));
    let ran = suites.current_dir(&folder).output().unwrap();
    let said = clients.iter_mut().map(Outlast::said_so_far).collect();
    assert!(ran.status.success(), "{}\n{said}", String::from_utf8_lossy(&ran.stderr));
    [said, server.said_so_far()]
}

#[test]
fn ftplib_and_asyncore_pass_while_links_break() {
    // Side by side: they wait most of the time.
    let parts = [0, 1, 2, 3].map(|part| std::thread::spawn(move || run(breaking, 1, part, 4)));
    let resumed = parts.map(|part| part.join().unwrap()[0].matches("resumed").count());
    assert!(resumed.iter().all(|count| *count > 20), "resumed only so often: {resumed:?}");
}

#[test]
fn urgent_data_of_ftplib_and_asyncore_arrive_whenever_links_break() {
    let calm = std::thread::spawn(|| run(|server| server, 2, 0, 1));
    let broken = [(); 3].map(|()| std::thread::spawn(|| run(breaking, 25, 0, 1)));
    let broken = broken.map(|run| run.join().unwrap());
    // Sent again were the whole command ABOR by the program, or the byte of asyncore's test by the service.
    let cut = [(0, "resent_bytes=6 "), (1, "resent_bytes=1 ")]
        .map(|(end, words)| broken.iter().map(|said| said[end].matches(words).count()).sum::<usize>());
    assert!(cut.iter().all(|count| *count > 0), "urgent data were cut only so often: {cut:?}");
    assert!(calm.join().unwrap()[0].contains("mode=kernel"));
}
