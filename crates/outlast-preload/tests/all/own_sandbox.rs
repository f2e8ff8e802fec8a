//! Programs that forbid themselves system calls, on pain of death: nothing that this library does may cost them their life.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, compiled_server, eventually, folder, free_port, is_installed, kill, wait_until_held,
};
use std::process::Command;

/// Serves one client after the other. From before its first client on it may read, write, accept and close, and nothing else.
const PROGRAM: &str = r#"
#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int count, char **arguments) {
    int listener = listening_at(arguments[1]);
    if (listener < 0) return 1;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_accept), ALLOW(SYS_close),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;
    int forbidden = strcmp(arguments[2], "prctl") ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
                                                  : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    if (forbidden) return 3;
    return serve_one_by_one(listener);
}
"#;

/// Serves one client with an answer, forbids itself a call, and has a child that closes what it has inherited. Then it serves
/// its next request.
const FORKS: &str = r#"
int main(int count, char **arguments) {
    int listener = listening_at(arguments[1]);
    if (listener < 0) return 1;
    int client = accept(listener, 0, 0);
    if (!serve(client)) return 2;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 3;
    pid_t child = fork();
    if (child == 0) {
        close(client);
        close(listener);
        _exit(0);
    }
    if (waitpid(child, 0, 0) != child) return 4;
    while (serve(client)) continue;
    for (;;) pause();
}
"#;

#[test]
fn what_a_child_closes_stays_its_parents_also_when_that_forbids_itself_calls() {
    if !is_installed("cc") {
        return;
    }
    let (folder, port) = (folder("sandbox-forks"), free_port());
    let mut command = Command::new(compiled_server(&folder, "forks", FORKS));
    command.arg(port.to_string());
    let server = Server::start(&command, true);
    let mut client = Client::connect(port);
    // The second answer comes behind the child's end.
    assert!(client.get("/") && client.get("/"));
    wait_until_held(&server, [&client]);
    let main = server.main();
    kill(main, libc::SIGKILL);
    eventually("it is not started again", || (server.main() != main).then_some(()));
    assert!(client.get("/"), "it is not kept");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_program_that_would_be_killed_for_any_other_call_serves() {
    if !is_installed("cc") {
        return;
    }
    let folder = folder("own-sandbox");
    let program = compiled_server(&folder, "sandbox", PROGRAM);
    for way in ["prctl", "seccomp"] {
        let port = free_port();
        let mut command = Command::new(&program);
        command.arg(port.to_string()).arg(way);
        let server = Server::start(&command, true);
        for crash in 0..3 {
            let mut client = Client::connect(port);
            assert!((0..3).all(|_| client.get("/")), "{way}, crash {crash}");
            let main = server.main();
            kill(main, libc::SIGKILL);
            eventually("it is not started again", || (server.main() != main).then_some(()));
            assert!(!client.get("/"), "{way}, crash {crash}");
        }
        let only_killed = server.said("Crashed").iter().all(|line| line.contains("Signal(9)"));
        assert!(only_killed, "{way}: {:?}", server.said("Crashed"));
        eventually("it is not said", || (server.said("Sandbox").len() == 1).then_some(()));
    }
    std::fs::remove_dir_all(folder).unwrap();
}
