//! `outlast run` and `outlast connect` where files may not become large (RLIMIT_FSIZE): that limit counts for shared memory, too,
//! and a program that runs without us runs with us.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::{Outlast, command, eventually, folder};
use crate::run_preload::{Client, PROGRAM, await_idle, free_port, library};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const LIMIT_BYTES: u64 = 8192;
const CAP_SYS_RESOURCE: libc::c_ulong = 24;

/// Whether this process may raise hard limits.
fn has_capability() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() >> CAP_SYS_RESOURCE & 1 == 1
}

/// Limits what a command may write to files: `hard`, so that only CAP_SYS_RESOURCE can raise it, which it has if it
/// `may_raise` it.
fn limited(command: &mut Command, hard: bool, may_raise: bool) {
    let limit = libc::rlimit {
        rlim_cur: LIMIT_BYTES,
        rlim_max: if hard { LIMIT_BYTES } else { libc::RLIM_INFINITY },
    };
    let set = move || {
        // SAFETY: reads a local; the others are numbers.
        let done = unsafe {
            if !may_raise {
                libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
            }
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)
        };
        if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: system calls alone.
    unsafe { command.pre_exec(set) };
}

/// Says how it is limited, and serves.
fn program() -> String {
    format!("import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE), flush=True)\n{PROGRAM}")
}

/// Whether an idle client is kept over a crash, and what the log says.
fn crashed(hard: bool, may_raise: bool) -> (bool, String) {
    let (folder, port) = (folder(), free_port());
    let (library, port_text, program) = (library(), port.to_string(), program());
    let run = ["run", "--name", "web", "--preload", "always", "--preload-library", library.to_str().unwrap()];
    let arguments = [&run[..], &["--", "/usr/bin/python3", "-c", &program, &port_text]].concat();
    let mut command = command(folder.path(), &arguments);
    let printed = folder.path().join("printed");
    command.env("OUTLAST_LOG", "info").stderr(Stdio::piped());
    command.stdout(std::fs::File::create(&printed).unwrap());
    limited(&mut command, hard, may_raise);
    let mut outlast = Outlast::from(command);
    let mut client = Client::connect(port);
    let main = client.get();
    let is_held = may_raise || !hard;
    if is_held {
        await_idle(folder.path(), &main, 1);
    }
    // SAFETY: numbers: one process, which this test has started.
    unsafe { libc::kill(main.parse().unwrap(), libc::SIGKILL) };
    // The one that is killed may accept until its last thread has ended.
    eventually("nobody serves again", || Client::connect(port).try_get().ok().filter(|pid| *pid != main));
    let is_kept = client.try_get().is_ok();
    outlast.signal("TERM");
    outlast.ended();
    // The program's own limits are those that it has without us.
    let most = if hard { "8192" } else { "-1" };
    let printed = std::fs::read_to_string(printed).unwrap();
    assert!(printed.lines().all(|line| line == format!("(8192, {most})")), "{printed}");
    (is_kept, outlast.said())
}

#[test]
fn connections_are_kept_where_the_limit_of_the_size_of_files_can_be_raised_for_a_moment() {
    let (is_kept, said) = crashed(false, false);
    assert!(is_kept && !said.contains("ulimit"), "{said}");
    if !has_capability() {
        eprintln!("SKIPPED: CAP_SYS_RESOURCE is missing");
        return;
    }
    let (is_kept, said) = crashed(true, true);
    assert!(is_kept && !said.contains("ulimit"), "{said}");
}

#[test]
fn a_program_runs_where_the_limit_of_the_size_of_files_cannot_be_raised() {
    let (is_kept, said) = crashed(true, false);
    assert!(!is_kept, "{said}");
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("ulimit -f")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("web is started again"), "{said}");
}
