//! Processes that end when they have read a part of a request: the next one would begin in the middle of it, and take what a
//! client has sent as the body of one request for another request.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, PATIENCE, Server, compiled_server, eventually, folder, free_port, has_ended, is_installed, kill,
    wait_until_held, wait_until_held_unix, wait_until_read,
};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// Its first process reads the second request of its only client as it is told, which takes no more than a part of it. Those that
/// follow answer whatever they read.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/uio.h>
#include <sys/un.h>

static int listening(const char *at) {
    if (*at != '/') return listening_at(at);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(address.sun_path, at);
    unlink(at);
    return bind(listener, (void *)&address, sizeof address) || listen(listener, 50) ? -1 : listener;
}

static long part(int client, const char *how) {
    static char bytes[64], room[64];
    struct iovec list = {bytes, 10};
    if (!strcmp(how, "waitall")) return recv(client, bytes, sizeof bytes, MSG_WAITALL);
    if (!strcmp(how, "fcntl")) return recv(fcntl(client, F_DUPFD_CLOEXEC, 0), bytes, 10, 0);
    if (!strcmp(how, "preadv2")) return preadv2(client, &list, 1, -1, 0);
    if (!strcmp(how, "syscall")) return syscall(SYS_recvfrom, client, bytes, 10, 0, 0, 0);
    if (!strcmp(how, "fdopen")) {
        FILE *file = fdopen(client, "r");
        setvbuf(file, room, _IOFBF, 10);
        return fread(bytes, 1, 5, file);
    }
    /* "nothing": it waits, as servers do. */
    return serve(client);
}

int main(int count, char **arguments) {
    int listener = listening(arguments[1]), is_first = access(arguments[3], F_OK) != 0;
    if (listener < 0) return 1;
    fclose(fopen(arguments[3], "w"));
    if (!is_first) return serve_one_by_one(listener);
    int client = accept(listener, 0, 0);
    serve(client);
    struct pollfd second = {.fd = client, .events = POLLIN};
    if (strcmp(arguments[2], "nothing")) poll(&second, 1, -1);
    part(client, arguments[2]);
    fclose(fopen(arguments[4], "w"));
    for (;;) pause();
}
"#;

const REQUEST: &[u8] = b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n";

/// What came until an answer's end, or the connection's.
fn answer(client: &mut File) -> String {
    let (mut bytes, mut room) = (Vec::new(), [0; 1000]);
    while !bytes.ends_with(b"hello\n") {
        match client.read(&mut room) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer, and no end"),
            _ => break,
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// Whether a UNIX socket's peer has read all that was sent.
fn is_taken(client: &File) -> bool {
    let mut bytes = 0;
    // SAFETY: fills one integer.
    assert_eq!(unsafe { libc::ioctl(client.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) }, 0);
    bytes == 0
}

/// At a UNIX socket with this path, or at a port.
fn connect(port: u16, path: Option<&Path>) -> Option<(File, Option<Client>)> {
    if let Some(path) = path {
        let client = UnixStream::connect(path).ok()?;
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        return Some((File::from(OwnedFd::from(client)), None));
    }
    let client = Client::try_connect(port).ok()?;
    Some((File::from(OwnedFd::from(client.0.try_clone().unwrap())), Some(client)))
}

/// A connection whose process ends when it has read a part of the second request: whether the next process answers that.
fn is_answered(how: &str, is_unix: bool) -> bool {
    let kind = if is_unix { "unix" } else { "tcp" };
    let folder = folder(&format!("half-read-{how}-{kind}"));
    let (port, path) = (free_port(), folder.join("s"));
    let at = if is_unix { path.to_str().unwrap().to_owned() } else { port.to_string() };
    let mut command = Command::new(compiled_server(&folder, "program", PROGRAM));
    command.arg(at).arg(how).arg(folder.join("begun")).arg(folder.join("read"));
    let server = Server::start(&command, true);
    let (mut client, of_internet) =
        eventually("nobody listens", || connect(port, is_unix.then_some(path.as_path())));
    client.write_all(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(answer(&mut client).contains("200 OK"));
    match &of_internet {
        Some(client) => wait_until_held(&server, [client]),
        None => wait_until_held_unix(&server),
    }
    let main = server.main();
    if how != "nothing" {
        client.write_all(REQUEST).unwrap();
        match &of_internet {
            _ if how != "waitall" => {
                eventually("nothing is read", || folder.join("read").exists().then_some(()));
            }
            Some(client) => wait_until_read(client),
            None => eventually("nothing is read", || is_taken(&client).then_some(())),
        }
    }
    kill(main, libc::SIGKILL);
    // It reads what comes until then.
    eventually("it does not end", || has_ended(main).then_some(()));
    // To a process that begins in the middle it is a request of its own. The connection may be closed by now.
    let _ = client.write_all(REQUEST);
    let is_answered = answer(&mut client).contains("200 OK");
    drop((client, of_internet));
    let (mut other, _) = eventually("nobody listens", || connect(port, is_unix.then_some(path.as_path())));
    other.write_all(REQUEST).unwrap();
    assert!(answer(&mut other).contains("200 OK"));
    assert_eq!(server.stop(), 128 + libc::SIGTERM);
    std::fs::remove_dir_all(folder).unwrap();
    is_answered
}

#[test]
fn a_connection_of_which_a_part_of_a_request_was_read_is_not_kept() {
    if !is_installed("cc") {
        return;
    }
    for how in ["waitall", "fcntl", "preadv2", "syscall", "fdopen"] {
        assert!(!is_answered(how, false), "{how}");
    }
}

#[test]
fn nor_is_one_of_a_unix_socket_where_that_can_be_seen() {
    if !is_installed("cc") {
        return;
    }
    for how in ["waitall", "fcntl"] {
        assert!(!is_answered(how, true), "{how}");
    }
}

#[test]
fn one_whose_process_waits_for_the_next_request_is_kept() {
    if !is_installed("cc") {
        return;
    }
    assert!(is_answered("nothing", false) && is_answered("nothing", true));
}
