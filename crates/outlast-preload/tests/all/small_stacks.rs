//! A program that is executed on a small stack runs as without a supervisor, also one that this library is left out of.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Server, compiled, eventually, folder, is_installed};
use std::process::Command;

/// Executes a program in a child that shares its memory and has 8 KiB of stack, and then in the handler of a signal that has as much.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 8192 };
static char **list;

static int execute(void *nothing) {
    execv(list[0], list);
    _exit(1);
}

static void handle(int number) { execute(0); }

int main(int count, char **arguments) {
    char *memory = (char *)mmap(0, BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
    mprotect(memory - 4096, 4096, PROT_NONE);
    char *first[] = {arguments[1], arguments[2], 0}, *second[] = {arguments[1], arguments[3], 0};
    list = first;
    // More often than there is room for at a time.
    for (int number = 0; number < 40; number++) {
        int how = 0;
        if (waitpid(clone(execute, memory + BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, 0), &how, 0) < 0 || how) return 1;
    }
    list = second;
    stack_t stack = {.ss_sp = memory, .ss_size = BYTES};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, 0) || sigaction(SIGUSR1, &action, 0)) return 2;
    raise(SIGUSR1);
    return 3;
}
"#;

const EXECUTED: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    FILE *file = fopen(arguments[1], "a");
    fputs(getenv("LD_PRELOAD") ? "with" : "without", file);
    return fclose(file);
}
"#;

#[test]
fn programs_are_executed_on_stacks_of_8_kib() {
    if !is_installed("cc") || !is_installed("musl-gcc") {
        return;
    }
    let folder = folder("small-stacks");
    let program = compiled("cc", &folder, "program", PROGRAM);
    for (compiler, is_loaded) in [("cc", "with"), ("musl-gcc", "without")] {
        let executed = compiled(compiler, &folder, compiler, EXECUTED);
        let [first, second] = ["first", "second"].map(|name| folder.join(format!("{compiler}-{name}")));
        let mut command = Command::new(&program);
        command.arg(executed).arg(&first).arg(&second);
        let _server = Server::start(&command, true);
        let read = |path| std::fs::read_to_string(path).ok().filter(|text| !text.is_empty());
        assert_eq!(eventually("the handler executes nothing", || read(&second)), is_loaded);
        assert_eq!(read(&first), Some(is_loaded.repeat(40)));
    }
    std::fs::remove_dir_all(folder).unwrap();
}
