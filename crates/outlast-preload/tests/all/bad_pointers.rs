//! Memory that is not there: the kernel says so to a program below a supervisor, as to any other.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Server, compiled, eventually, folder, is_installed};
use std::process::Command;

/// Writes what calls with bad pointers have said.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TELL(call) do { \
    pid_t child = fork(); \
    if (!child) { errno = 0; long result = (long)(call); int error = errno; \
        FILE *file = fopen(path, "a"); fprintf(file, "%s = %ld %d\n", #call, result, error); fclose(file); _exit(0); } \
    int how = 0; waitpid(child, &how, 0); \
    if (how) { FILE *file = fopen(path, "a"); fprintf(file, "%s died of %d\n", #call, how); fclose(file); } \
} while (0)

/* tcp(7): what came is thrown away, and the buffer is not touched. */
static long discard(char *nowhere) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    static char bytes[1000];
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, length) || listen(listener, 1)) return -2;
    getsockname(listener, (void *)&address, &length);
    if (connect(client, (void *)&address, length) || write(client, bytes, sizeof bytes) != sizeof bytes) return -3;
    int server = accept(listener, 0, 0);
    long count = recv(server, nowhere, sizeof bytes, MSG_TRUNC);
    return recv(server, 0, 1, MSG_TRUNC | MSG_DONTWAIT) < 0 ? count : -4;
}

/* accept(2): nobody looks at the length of no address. */
static long accept_nowhere(void *length) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, size) || listen(listener, 1)) return -2;
    getsockname(listener, (void *)&address, &size);
    return connect(client, (void *)&address, size) ? -3 : accept(listener, 0, length) > 0;
}

/* recvmsg(2), where a client has written something. */
static long receive_nowhere(void *message) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, size) || listen(listener, 1)) return -2;
    getsockname(listener, (void *)&address, &size);
    if (connect(client, (void *)&address, size) || write(client, "x", 1) != 1) return -3;
    return recvmsg(accept(listener, 0, 0), message, 0);
}

int main(int count, char **arguments) {
    extern char **environ;
    const char *path = arguments[1];
    char *far = (char *)-1, *near = (char *)8, *list[] = {"x", 0};
    char *end = (char *)mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
    mprotect(end, 4096, PROT_NONE);
    end[-1] = 'x';
    char **no_end = (char **)end - 1, *bad_text[] = {end, 0};
    *no_end = "A=1";
    int s = socket(AF_INET, SOCK_STREAM, 0);
    TELL(execve(far, list, environ));
    TELL(execve(end - 1, list, environ));
    TELL(execv(near, list));
    TELL(execve(0, list, environ));
    TELL(execve("/bin/true", list, (char **)far));
    TELL(execve("/bin/true", list, no_end));
    TELL(execve("/bin/true", list, bad_text));
    TELL(connect(s, (void *)far, 16));
    TELL(connect(s, (void *)(end - 8), 16));
    TELL(connect(-1, (void *)near, 16));
    TELL(bind(s, (void *)far, 16));
    TELL(bind(s, (void *)(end - 8), 16));
    TELL(write(s, list, -1) < 0);
    TELL(sendmsg(s, (void *)far, 0));
    TELL(sendmsg(-1, (void *)near, 0));
    TELL(discard(end - 1));
    TELL(accept_nowhere(near));
    TELL(receive_nowhere(near));
    TELL(receive_nowhere(far));
    rename(path, arguments[2]);
    return 0;
}
"#;

#[test]
fn the_kernel_says_that_memory_is_not_there() {
    if !is_installed("cc") {
        return;
    }
    let folder = folder("bad-pointers");
    let program = compiled("cc", &folder, "program", PROGRAM);
    let told = |supervised: bool| {
        let [part, whole] = ["part", "whole"].map(|name| folder.join(format!("{name}-{supervised}")));
        let mut command = Command::new(&program);
        command.arg(part).arg(&whole);
        let _server = Server::start(&command, supervised);
        eventually("it does not end", || std::fs::read_to_string(&whole).ok())
    };
    let bare = told(false);
    assert!(bare.contains("connect(-1, (void *)near, 16) = -1 9"), "{bare}");
    assert!(bare.contains("discard(end - 1) = 1000 "), "{bare}");
    assert_eq!(told(true), bare);
    std::fs::remove_dir_all(folder).unwrap();
}
