//! Programs that ask before they serve whether system calls can be forbidden, and children that share their memory (`vfork`) and
//! forbid themselves calls, or connect: the program is heard as if none of that had been.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Client, Server, compiled_server, eventually, folder, free_port, has_ended, is_installed, kill,
    wait_until_held,
};
use std::process::Command;

/// Does what it is told to before it serves one client after the other.
const PROGRAM: &str = r#"
static struct sockaddr_in at = {.sin_family = AF_INET};

static void forbid(void) {
    struct sock_filter filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int prepare(const char *what) {
    errno = 0;
    if (!strcmp(what, "prctl")) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0) == -1 && errno == EFAULT;
    if (!strcmp(what, "seccomp"))
        return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 0) == -1 && errno == EFAULT;
    if (!strcmp(what, "forbids")) return forbid(), 1;
    pid_t child = vfork();
    if (!child) {
        if (!strcmp(what, "child forbids")) forbid();
        else connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&at, sizeof at);
        execl("/bin/true", "true", (char *)0);
        _exit(1);
    }
    return waitpid(child, 0, 0) == child;
}

int main(int count, char **arguments) {
    at.sin_port = htons(atoi(arguments[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!prepare(arguments[2])) return 9;
    int listener = listening_at(arguments[1]);
    return listener < 0 ? 1 : serve_one_by_one(listener);
}
"#;

fn is_heard_after(what: &str) {
    if !is_installed("cc") {
        return;
    }
    let (folder, port) = (folder(&format!("shared-memory-{}", what.replace(' ', "-"))), free_port());
    let mut command = Command::new(compiled_server(&folder, "program", PROGRAM));
    command.arg(port.to_string()).arg(what);
    let server = Server::start(&command, true);
    let mut client = Client::connect(port);
    assert!(client.get("/"));
    wait_until_held(&server, [&client]);
    let main = server.main();
    kill(main, libc::SIGKILL);
    eventually("it does not end", || has_ended(main).then_some(()));
    // At once, before the next one listens.
    Client::try_connect(port).unwrap();
    assert!(client.get("/"), "it is not kept");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_program_that_asks_by_prctl_whether_calls_can_be_forbidden_is_held() {
    is_heard_after("prctl");
}

#[test]
fn a_program_that_asks_by_seccomp_whether_calls_can_be_forbidden_is_held() {
    is_heard_after("seccomp");
}

#[test]
fn a_child_of_vfork_that_forbids_itself_calls_silences_itself_alone() {
    is_heard_after("child forbids");
}

#[test]
fn sockets_that_listen_only_behind_a_filter_are_not_said_to_be_kept() {
    if !is_installed("cc") {
        return;
    }
    let (folder, port) = (folder("shared-memory-forbids"), free_port());
    let mut command = Command::new(compiled_server(&folder, "program", PROGRAM));
    command.arg(port.to_string()).arg("forbids");
    let server = Server::start(&command, true);
    assert!(Client::connect(port).get("/"));
    let line = eventually("it is not said that nothing is kept", || server.said("HoldsNothing").pop());
    assert!(line.contains("Forbids"), "another reason: {line}");
    assert_eq!(server.said("Sandbox"), Vec::<String>::new());
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_child_of_vfork_that_connects_is_not_taken_for_its_parent() {
    is_heard_after("child connects");
}
