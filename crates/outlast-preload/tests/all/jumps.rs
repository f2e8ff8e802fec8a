//! A handler of a signal that jumps out of a call (siglongjmp) takes nothing with it that other threads wait for.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Server, compiled, eventually, folder, free_port, holds_listener, is_installed, kill};
use std::process::Command;

/// Jumps out of a bind, and later has another thread listen.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static sigjmp_buf place;
static char **names;

static void jump(int number) { siglongjmp(place, 1); }

static void wait_for(const char *file) { struct stat found; while (stat(file, &found)) usleep(10000); }

static void begin(const char *file) { fclose(fopen(file, "w")); }

static int listens(int port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    return bind(listener, (void *)&at, sizeof at) || listen(listener, 50);
}

static void *other(void *nothing) { listens(atoi(names[2])); return 0; }

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = jump};
    pthread_t thread;
    names = arguments;
    sigaction(SIGALRM, &action, 0);
    begin(arguments[3]);
    wait_for(arguments[4]);
    if (!sigsetjmp(place, 1)) {
        ualarm(300000, 0);
        listens(atoi(arguments[1]));
        for (;;) pause();
    }
    begin(arguments[5]);
    wait_for(arguments[6]);
    pthread_create(&thread, 0, other, 0);
    for (;;) pause();
}
"#;

#[test]
fn a_thread_is_heard_when_another_one_has_jumped_out_of_a_bind() {
    if !is_installed("cc") {
        return;
    }
    let folder = folder("jumps");
    let ports = [free_port(), free_port()];
    let files = ["began", "may-bind", "jumped", "may-listen"].map(|name| folder.join(name));
    let mut command = Command::new(compiled("cc", &folder, "program", PROGRAM));
    command.args(ports.map(|port| port.to_string())).args(&files);
    let server = Server::start(&command, true);
    let [began, may_bind, jumped, may_listen] = files;
    eventually("it does not begin", || began.exists().then_some(()));
    kill(server.pid(), libc::SIGSTOP);
    std::fs::write(may_bind, "").unwrap();
    eventually("it does not jump", || jumped.exists().then_some(()));
    kill(server.pid(), libc::SIGCONT);
    // The supervisor is not asked for half a second when it was late.
    std::thread::sleep(std::time::Duration::from_secs(2));
    std::fs::write(may_listen, "").unwrap();
    eventually("it is not heard", || holds_listener(server.pid(), ports[1]).then_some(()));
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}
