//! A service that systemd keeps the descriptors of. systemd is played by this test, as sd_notify(3) and sd_listen_fds(3)
//! say: a socket for messages, and a service that is executed with descriptors from 3 on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{BufRead, BufReader, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// What `FileDescriptorStoreMax=` would be.
const STORE_MAX: usize = 6;

/// Name and descriptor, in the order in which they came.
type Stored = Arc<Mutex<Vec<(String, OwnedFd)>>>;

struct Manager {
    folder: tempfile::TempDir,
    stored: Stored,
    /// Of a socket unit.
    listener: TcpListener,
}

/// Killed when dropped.
struct Service {
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Manager {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let stored = Stored::default();
        let heard = Arc::clone(&stored);
        // Ends with the process.
        std::thread::spawn(move || {
            while let Ok((text, descriptors)) = receive(&socket) {
                obey(&heard, &text, descriptors);
            }
        });
        Self { folder, stored, listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    /// Executes the service with its socket and everything that is stored.
    fn execute(&self) -> Service {
        self.execute_with(|command| {
            command
                .env("NOTIFY_SOCKET", self.folder.path().join("notify"))
                .env("FDSTORE", STORE_MAX.to_string());
        })
    }

    fn execute_with(&self, set_up: impl Fn(&mut Command)) -> Service {
        let stored = self.stored.lock().unwrap();
        let mut names = vec!["web.socket"];
        names.extend(stored.iter().map(|(name, _)| name.as_str()));
        let mut given = vec![self.listener.as_raw_fd()];
        given.extend(stored.iter().map(|(_, descriptor)| descriptor.as_raw_fd()));
        // The process has to be named before it is there: a shell knows its number, and becomes the service.
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_PID=$$ exec \"$0\""]).arg(crate::common::example("held"));
        command.env("LISTEN_FDS", given.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        set_up(&mut command);
        command.stdout(Stdio::piped());
        // Out of the way of the numbers that they are to have.
        let high: Vec<OwnedFd> = given
            .iter()
            // SAFETY: owned by this test, and open during the call.
            .map(|number| unsafe { std::os::fd::BorrowedFd::borrow_raw(*number) })
            .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, 300).unwrap())
            .collect();
        let numbers: Vec<i32> = high.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: between fork and exec only system calls are made, without memory of their own.
        unsafe {
            command.pre_exec(move || {
                for (number, to) in numbers.iter().zip(3..) {
                    if libc::dup2(*number, to) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Service { child, said }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.stored.lock().unwrap().iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    fn until_stored(&self, count: usize) {
        let deadline = std::time::Instant::now() + crate::common::PATIENCE;
        while self.stored.lock().unwrap().len() != count {
            assert!(std::time::Instant::now() < deadline, "{:?} are stored, not {count}", self.names());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn receive(socket: &UnixDatagram) -> rustix::io::Result<(String, Vec<OwnedFd>)> {
    let mut bytes = [0; 4096];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let length = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let descriptors = control
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => rights.collect(),
            _ => Vec::new(),
        })
        .collect();
    Ok((String::from_utf8(bytes[..length].to_vec()).unwrap(), descriptors))
}

fn obey(stored: &Stored, text: &str, descriptors: Vec<OwnedFd>) {
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let name = field("FDNAME").unwrap_or("stored");
    assert!(
        name.len() <= 255 && name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b':'),
        "{name:?}"
    );
    let mut stored = stored.lock().unwrap();
    if field("FDSTORE") == Some("1") {
        for descriptor in descriptors {
            // What is too much is closed, and nobody is told.
            if stored.len() < STORE_MAX {
                stored.push((name.to_owned(), descriptor));
            }
        }
    } else if field("FDSTOREREMOVE") == Some("1") {
        stored.retain(|(other, _)| other != name);
    } else if field("BARRIER") == Some("1") {
        assert_eq!((text.trim(), descriptors.len()), ("BARRIER=1", 1), "a barrier comes alone");
    }
}

impl Service {
    /// The number behind a text that it says.
    fn number(&mut self, text: &str) -> usize {
        let line = self.said.next().unwrap().unwrap();
        assert!(line.contains(text), "{line}");
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn serves(&mut self) {
        let line = self.said.next().unwrap().unwrap();
        assert!(line.starts_with("listening on "), "{line}");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct User(BufReader<TcpStream>);

impl User {
    fn new(manager: &Manager) -> Self {
        let connection = TcpStream::connect(manager.listener.local_addr().unwrap()).unwrap();
        connection.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        Self(BufReader::new(connection))
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.0.get_mut(), "{line}").unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

#[test]
fn connections_and_their_state_come_back_from_the_store_of_systemd() {
    let manager = Manager::start();
    let mut service = manager.execute();
    assert_eq!(service.number("recovers"), 0);
    service.serves();
    let (mut one, mut two) = (User::new(&manager), User::new(&manager));
    assert_eq!((one.ask("a"), one.ask("b"), two.ask("c")), ("1 a".into(), "2 b".into(), "1 c".into()));
    // Each with its state.
    manager.until_stored(4);
    for round in 0..5 {
        drop(service);
        service = manager.execute();
        assert_eq!(service.number("recovers"), 2);
        service.serves();
        assert_eq!(one.ask("x"), format!("{} x", round + 3));
        assert_eq!(two.ask("y"), format!("{} y", round + 2));
        assert_eq!(manager.names().len(), 4);
    }
    // Who goes is forgotten, and is told so; who comes has room again.
    drop(two);
    manager.until_stored(2);
    let mut three = User::new(&manager);
    assert_eq!(three.ask("z"), "1 z");
    // A third fits, a fourth does not: it is served, and not kept.
    let (mut four, mut five) = (User::new(&manager), User::new(&manager));
    assert_eq!((four.ask("z"), five.ask("z")), ("1 z".into(), "1 z".into()));
    manager.until_stored(6);
    drop(service);
    let mut service = manager.execute();
    assert_eq!(service.number("recovers"), 3);
    service.serves();
    assert_eq!((one.ask("x"), four.ask("z")), ("8 x".into(), "2 z".into()));
}

#[test]
fn the_state_of_a_connection_that_systemd_has_dropped_is_dropped_too() {
    let manager = Manager::start();
    let mut service = manager.execute();
    assert_eq!(service.number("recovers"), 0);
    service.serves();
    let mut user = User::new(&manager);
    assert_eq!(user.ask("a"), "1 a");
    manager.until_stored(2);
    drop(service);
    manager.stored.lock().unwrap().retain(|(name, _)| name.ends_with(".state"));
    let mut service = manager.execute();
    assert_eq!(service.number("recovers"), 0);
    manager.until_stored(0);
}

/// Where systemd keeps nothing, it may still have made the socket; the connections are kept by a holder then.
#[test]
fn a_socket_unit_and_a_holder_go_together() {
    let (manager, holder) = (Manager::start(), crate::common::holder::Holder::start());
    let execute = || {
        manager.execute_with(|command| {
            command.env("OUTLAST_HOLDER", &holder.path).env_remove("NOTIFY_SOCKET").env_remove("FDSTORE");
        })
    };
    let mut service = execute();
    assert_eq!(service.number("recovers"), 0);
    service.serves();
    let mut user = User::new(&manager);
    assert_eq!(user.ask("a"), "1 a");
    drop(service);
    let mut service = execute();
    assert_eq!(service.number("recovers"), 1);
    service.serves();
    assert_eq!((user.ask("b"), User::new(&manager).ask("c")), ("2 b".into(), "1 c".into()));
}
