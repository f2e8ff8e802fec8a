//! Programs that are written for a test: in Python, or in C.

use std::path::{Path, PathBuf};
use std::process::Command;

pub const PYTHON: &str = "/usr/bin/python3";

/// For programs in C: a socket that listens at a port of loopback, or -1; and one request of a client that is answered.
const C: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int listening_at(const char *port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    return bind(listener, (void *)&at, sizeof at) || listen(listener, 50) ? -1 : listener;
}

static int serve(int client) {
    const char *answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
    char request[4096];
    return read(client, request, sizeof request) > 0 && write(client, answer, strlen(answer)) > 0;
}

static int serve_one_by_one(int listener) {
    for (;;) {
        int client = accept(listener, 0, 0);
        while (serve(client)) continue;
        close(client);
    }
}
"#;

/// A program of C, compiled by one of these.
pub fn compiled(compiler: &str, folder: &Path, name: &str, text: &str) -> PathBuf {
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text).unwrap();
    let is_done = Command::new(compiler).args(["-w", "-pthread", "-o"]).arg(&program).arg(&source).status();
    assert!(is_done.unwrap().success());
    program
}

/// The same, of text that makes use of [`C`].
pub fn compiled_server(folder: &Path, name: &str, text: &str) -> PathBuf {
    compiled("cc", folder, name, &[C, text].concat())
}

/// A file of the folder with this text.
pub fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    file
}

/// A program in Python that is told its folder, and ports.
pub fn python(folder: &Path, text: &str, ports: &[u16]) -> Command {
    let mut command = Command::new(PYTHON);
    command.arg(script(folder, "server.py", text)).arg(folder);
    command.args(ports.iter().map(u16::to_string));
    command
}

/// The same; the port is the first that it is told.
pub fn python_at(port: u16, folder: &Path, text: &str) -> Command {
    let mut command = Command::new(PYTHON);
    command.arg(script(folder, "program.py", text)).arg(port.to_string()).arg(folder);
    command
}
