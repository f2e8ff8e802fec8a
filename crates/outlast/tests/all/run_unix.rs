//! A server at a UNIX socket that removes its file when it is told to end, and takes a while to do so.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::ends;
use crate::common::{Outlast, eventually, folder, output};
use crate::run_preload::library;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Tells each client its number.
const PROGRAM: &str = "
import os, signal, socket, sys, time
path = sys.argv[1]
def end(*_):
    os.unlink(path); time.sleep(3); os._exit(0)
signal.signal(signal.SIGTERM, end)
s = socket.socket(socket.AF_UNIX)
try: os.unlink(path)
except FileNotFoundError: pass
s.bind(path); s.listen(50)
while True:
    c, _ = s.accept()
    try: c.sendall(str(os.getpid()).encode())
    except OSError: pass
    c.close()
";

/// Clients that come all the time, until this is told to end.
struct Comes {
    ends: Arc<AtomicBool>,
    longest: std::thread::JoinHandle<Duration>,
}

impl Comes {
    fn begin(path: &Path) -> Self {
        let (path, ends) = (path.to_owned(), Arc::new(AtomicBool::new(false)));
        let over = ends.clone();
        let longest = std::thread::spawn(move || {
            let (mut longest, mut refused_since) = (Duration::ZERO, None);
            while !over.load(Ordering::Relaxed) {
                match UnixStream::connect(&path) {
                    Ok(_) => refused_since = None,
                    Err(_) => {
                        let since = *refused_since.get_or_insert_with(Instant::now);
                        longest = longest.max(since.elapsed());
                    }
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            longest
        });
        Self { ends, longest }
    }

    /// For how long all in a row were refused at most.
    fn longest(self) -> Duration {
        self.ends.store(true, Ordering::Relaxed);
        self.longest.join().unwrap()
    }
}

fn start(runtime: &Path, path: &Path) -> Outlast {
    let library = library();
    let preload = ["--preload", "always", "--preload-library", library.to_str().unwrap()];
    let program = ["--", "/usr/bin/python3", "-c", PROGRAM, path.to_str().unwrap()];
    Outlast::start(runtime, &[&["run", "--name", "unix"], &preload[..], &program].concat())
}

fn asked(path: &Path) -> Option<u32> {
    let mut answer = String::new();
    UnixStream::connect(path).ok()?.read_to_string(&mut answer).ok()?;
    answer.parse().ok()
}

#[test]
fn the_file_that_an_old_server_removes_is_there_for_the_next_one() {
    let folder = folder();
    let path = folder.path().join("server.sock");
    let mut first = start(folder.path(), &path);
    let old = eventually("nobody serves", || asked(&path));
    let comes = Comes::begin(&path);
    let done = output(folder.path(), &["upgrade", "unix"]);
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert!(done.status.success(), "{said}");
    ends(old);
    let next = eventually("nobody serves", || asked(&path).filter(|pid| *pid != old));
    let longest = comes.longest();
    assert!(longest < Duration::from_secs(1), "at an upgrade: {longest:?}");
    // The same when it is left by a supervisor that was killed.
    first.signal("KILL");
    first.ended();
    let comes = Comes::begin(&path);
    let mut second = start(folder.path(), &path);
    second.wait_for("1 of its listening sockets are taken over");
    ends(next);
    eventually("the next one does not serve", || asked(&path).filter(|pid| *pid != next));
    let longest = comes.longest();
    assert!(longest < Duration::from_secs(1), "after a supervisor: {longest:?}");
    second.signal("TERM");
    second.ended();
    assert!(!path.exists());
}
