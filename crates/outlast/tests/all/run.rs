//! Programs that know nothing of it are kept running.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, folder, output};
use std::time::{Duration, Instant};

/// Crashes so often, and then ends in order.
fn crashing(folder: &std::path::Path, times: usize) -> String {
    let count = folder.join("count").display().to_string();
    format!("echo x >> {count}; [ $(wc -l < {count}) -gt {times} ] || kill -SEGV $$; exit 0")
}

#[test]
fn a_program_that_crashes_is_started_again_and_its_end_is_ours() {
    let folder = folder();
    let ran = output(folder.path(), &["run", "--", "sh", "-c", &crashing(folder.path(), 3)]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert_eq!(said.matches("sh has been killed by SIGSEGV: it is started again").count(), 3, "{said}");
}

#[test]
fn one_that_crashes_too_often_is_given_up_loudly() {
    let folder = folder();
    let ran = output(folder.path(), &["run", "--intensity", "2", "--", "sh", "-c", "exit 7"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(7), "{said}");
    assert!(said.contains("exited with code 7, after 2 other crashes within 30"), "{said}");
}

#[test]
fn signals_are_passed_on_and_nothing_is_started_again_then() {
    let folder = folder();
    for (script, signal, code) in [
        ("trap 'exit 0' TERM; echo ready >&2; while :; do sleep 0.01; done", "TERM", 0),
        ("echo ready >&2; while :; do sleep 0.01; done", "TERM", 143),
        ("trap 'echo hup >&2' HUP; echo ready >&2; while :; do sleep 0.01; done", "HUP", 143),
    ] {
        let mut outlast = Outlast::start(folder.path(), &["run", "--", "sh", "-c", script]);
        outlast.wait_for("ready");
        outlast.signal(signal);
        if signal == "HUP" {
            outlast.wait_for("hup");
            outlast.signal("TERM");
        }
        assert_eq!(outlast.ended().code(), Some(code), "{script}");
        assert_eq!(outlast.said().matches("is started").count(), 1, "{script}");
    }
}

/// As a JVM does at SIGQUIT, and a program with a handler for Ctrl-C.
#[test]
fn a_program_that_goes_on_after_an_interrupt_is_kept_running() {
    let folder = folder();
    let script = "trap 'echo heard INT >&2' INT; trap 'echo heard QUIT >&2' QUIT; echo ready $$ >&2; \
                  while :; do sleep 0.01; done";
    let run = ["run", "--stop-timeout", "300ms", "--", "sh", "-c", script];
    let mut outlast = Outlast::start(folder.path(), &run);
    for (start, signal) in ["INT", "QUIT"].into_iter().enumerate() {
        let pid = crate::common::eventually("not started", || {
            let said = outlast.said_so_far();
            let ready: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("ready ")).collect();
            ready.get(start).map(|pid| (*pid).to_owned())
        });
        outlast.signal(signal);
        outlast.wait_for(&format!("heard {signal}"));
        // Longer than what is told to end has.
        std::thread::sleep(Duration::from_millis(600));
        assert!(!outlast.said_so_far().contains("not ended in time"), "{}", outlast.said_so_far());
        assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    }
    crate::common::eventually("not started again", || {
        (outlast.said_so_far().lines().filter(|line| line.starts_with("ready ")).count() == 3).then_some(())
    });
    outlast.signal("TERM");
    assert_eq!(outlast.ended().code(), Some(143));
    // Who ends for it has ended.
    for (script, signal, code) in [
        ("trap 'exit 3' INT; echo ready >&2; while :; do sleep 0.01; done", "INT", 3),
        ("echo ready >&2; while :; do sleep 0.01; done", "INT", 130),
        ("ulimit -c 0; echo ready >&2; while :; do sleep 0.01; done", "QUIT", 131),
        ("trap 'sleep 0.1; exit 0' QUIT; echo ready >&2; while :; do sleep 0.01; done", "QUIT", 0),
    ] {
        let mut outlast = Outlast::start(folder.path(), &["run", "--", "sh", "-c", script]);
        outlast.wait_for("ready");
        outlast.signal(signal);
        assert_eq!(outlast.ended().code(), Some(code), "{script}");
        let said = outlast.said();
        assert!(!said.contains("again") && said.matches("is started").count() == 1, "{script}: {said}");
    }
    // Who crashes behind it, as behind a report of its threads, has not.
    let script = "trap 'exit 3' QUIT; echo ready >&2; while :; do sleep 0.01; done";
    let mut outlast = Outlast::start(folder.path(), &["run", "--", "sh", "-c", script]);
    outlast.wait_for("ready");
    outlast.signal("QUIT");
    outlast.wait_for("it is started again");
    outlast.wait_for("ready");
    outlast.signal("TERM");
    assert_eq!(outlast.ended().code(), Some(143));
}

/// As the first process of a container has to.
#[test]
fn children_of_others_are_buried() {
    let folder = folder();
    let script = "for i in 1 2 3 4 5; do (sleep 0.05 & exec true); done; echo ready >&2; exec sleep 60";
    let arguments = ["run", "--", "sh", "-c", script];
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_outlast")]);
    command.args(arguments).env("XDG_RUNTIME_DIR", folder.path()).env("OUTLAST_LOG", "info");
    command.stderr(std::process::Stdio::piped());
    outlast_lab::require!("processes of its own");
    let mut outlast = Outlast::from(command);
    outlast.wait_for("ready");
    let deadline = Instant::now() + crate::common::PATIENCE;
    let zombies = || {
        let listed = std::process::Command::new("ps").args(["-eo", "stat,comm"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout)
            .lines()
            .filter(|line| line.contains("Z") && line.contains("sleep"))
            .count()
    };
    std::thread::sleep(Duration::from_millis(200));
    while zombies() > 0 {
        assert!(Instant::now() < deadline, "zombies stay");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a container's engine does to it.
#[test]
fn the_first_process_of_a_container_can_be_stopped() {
    outlast_lab::require!("processes of its own");
    let folder = folder();
    let mut command = std::process::Command::new("unshare");
    command.args([
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        env!("CARGO_BIN_EXE_outlast"),
        "run",
        "--",
    ]);
    command.args([
        "sh",
        "-c",
        "trap 'echo told >&2; exit 3' TERM; echo begun >&2; while :; do sleep 0.01; done",
    ]);
    command.env("XDG_RUNTIME_DIR", folder.path()).stderr(std::process::Stdio::piped());
    let mut unshare = Outlast::from(command);
    unshare.wait_for("begun");
    let listed =
        std::process::Command::new("pgrep").args(["-P", &unshare.pid().to_string()]).output().unwrap();
    let first = String::from_utf8(listed.stdout).unwrap().trim().to_owned();
    assert!(std::process::Command::new("kill").args(["-TERM", &first]).status().unwrap().success());
    unshare.wait_for("told");
    assert_eq!(unshare.ended().code(), Some(3));
}

#[test]
fn which_ends_are_followed_by_another_start_is_said_by_the_flags() {
    let folder = folder();
    for (flags, script, code, starts) in [
        (&["--restart", "never"][..], "exit 7", 7, 1),
        (&["--restart", "never"], "kill -SEGV $$", 139, 1),
        (&["--restart", "always", "--intensity", "2"], "exit 0", 1, 3),
        (&["--success-codes", "0,7"], "exit 7", 0, 1),
        (&["--success-codes", "143"], "kill -TERM $$", 0, 1),
        (&["--success-codes", "TERM"], "kill -TERM $$", 0, 1),
        (&["--success-codes", "7", "--intensity", "1"], "exit 0", 1, 2),
    ] {
        let arguments = [&["--log", "info", "run"], flags, &["--", "sh", "-c", script]].concat();
        let ran = output(folder.path(), &arguments);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{flags:?} {script}: {said}");
        assert_eq!(said.matches("sh is started pid").count(), starts, "{flags:?} {script}: {said}");
    }
    let ran = output(folder.path(), &["run", "--backoff-min", "2s", "--backoff-max", "1s", "--", "true"]);
    assert_eq!(ran.status.code(), Some(2));
}

#[test]
fn who_does_not_end_when_told_is_killed_with_all_below() {
    let folder = folder();
    let script = "trap '' TERM; (trap '' TERM; echo below $$ >&2; while :; do sleep 0.05; done) & \
                  trap 'echo asked >&2' USR1; echo ready >&2; while :; do sleep 0.05; done";
    let flags = ["run", "--stop-signal", "USR1", "--stop-timeout", "300ms", "--", "sh", "-c", script];
    let mut outlast = Outlast::start(folder.path(), &flags);
    outlast.wait_for("ready");
    let listed =
        std::process::Command::new("pgrep").args(["-P", &outlast.pid().to_string()]).output().unwrap();
    let shell = String::from_utf8(listed.stdout).unwrap().trim().to_owned();
    let listed = std::process::Command::new("pgrep").args(["-P", &shell]).output().unwrap();
    let below = String::from_utf8(listed.stdout).unwrap();
    outlast.signal("TERM");
    outlast.wait_for("asked");
    outlast.wait_for("has not ended in time (--stop-timeout): it is killed");
    assert_eq!(outlast.ended().code(), Some(137));
    for pid in below.lines() {
        crate::common::restarts::ends(pid.parse().unwrap());
    }
}

/// What happens in front of a terminal, where a signal goes to everybody.
#[test]
fn interrupts_and_sleep_from_a_terminal_are_heard_once_by_everybody() {
    let folder = folder();
    let script = r#"
import os, pty, signal, sys, time
program = "import signal, time, sys\ncount = 0\ndef heard(*_):\n global count\n count += 1\nsignal.signal(signal.SIGINT, heard)\nprint('ready', flush=True)\nwhile not count: time.sleep(0.01)\ntime.sleep(0.3)\nsys.exit(count + 10)"
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "run", "--restart", "never", "--", sys.executable, "-c", program])
told = b""
while b"ready" not in told:
    told += os.read(terminal, 1000)
os.write(terminal, b"\x1a")
assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
os.killpg(pid, signal.SIGCONT)
os.write(terminal, b"\x03")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let ran = std::process::Command::new("python3")
        .args(["-c", script, env!("CARGO_BIN_EXE_outlast")])
        .env("XDG_RUNTIME_DIR", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "11", "{said}");
}

/// Some libraries panic there.
#[test]
fn a_limit_of_open_files_that_is_too_low_is_said() {
    let folder = folder();
    for limit in [7, 12] {
        let ran = std::process::Command::new("sh")
            .args([
                "-c",
                &format!("ulimit -n {limit}; exec \"$0\" run -- true"),
                env!("CARGO_BIN_EXE_outlast"),
            ])
            .env("XDG_RUNTIME_DIR", folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(7), "{said}");
        let parts =
            ["cannot open as many files as it needs".to_owned(), format!("the limit is {limit}, raise it")];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// `outlast run ... 2>&1 | head` must not end the program.
#[test]
fn nobody_has_to_read_what_it_says() {
    let folder = folder();
    let count = folder.path().join("count");
    let script = format!("echo x >> {0}; [ $(wc -l < {0}) -gt 3 ] || kill -SEGV $$", count.display());
    let mut command =
        crate::common::command(folder.path(), &["--log", "debug", "run", "--", "sh", "-c", &script]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut outlast = command.stderr(writer).spawn().unwrap();
    assert_eq!(crate::common::ended(&mut outlast).code(), Some(0));
    assert_eq!(std::fs::read_to_string(count).unwrap().lines().count(), 4);
}

#[test]
fn nothing_is_left_behind() {
    let folder = folder();
    for script in ["exit 0", "exit 3", "/no/such"] {
        let arguments = match script {
            "/no/such" => vec!["run", "--", script],
            script => vec!["run", "--notify", "--restart", "never", "--", "sh", "-c", script],
        };
        output(folder.path(), &arguments);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{script}: files are left behind");
    }
}

#[test]
fn what_cannot_be_run_is_said_with_the_documented_code() {
    let folder = folder();
    let ran = output(folder.path(), &["run", "--", "/no/such/program"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("cannot run /no/such/program: there is no such program"), "{said}");
    let ran = output(folder.path(), &["run", "--", folder.path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), said.contains("permission denied")), (Some(7), true), "{said}");
    let file = folder.path().join("program");
    std::fs::write(&file, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ran = output(folder.path(), &["run", "--", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("what its first line or its header names to run it is not there"), "{said}");
    for (flags, part) in [
        (&[][..], "no program to run: give it behind --"),
        (&["--watchdog", "1s", "--", "true"], "--notify"),
        (
            &["--preload", "always", "--preload-library", "/no/such.so", "--", "true"],
            "no preload library /no/such.so",
        ),
        (&["--working-directory", "/no/such", "--", "true"], "no folder /no/such to run in"),
        (&["--intensity", "21", "--", "true"], "21 crashes are more than servers remember: give 1 to 20"),
        (&["--intensity", "0", "--", "true"], "\"0\" is no number of crashes: give 1 to 20"),
        (&["--drain-timeout", "1s", "--", "true"], "--drain-timeout means nothing to run"),
        (&["--limit", "files=1", "--", "true"], "no limit of \"files\""),
        (&["--stop-signal", "STOPP", "--", "true"], "no signal"),
        (&["--metrics", "nowhere", "--", "true"], "\"nowhere\" is no address with a port"),
        (&["--window", "0s", "--", "true"], "it takes more time than none"),
        (&["--name", "", "--", "true"], "a name has at least one letter"),
        (&["--preload-library", "/etc/passwd", "--", "true"], "/etc/passwd is no shared library"),
    ] {
        let ran = output(folder.path(), &[&["run"], flags].concat());
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!((ran.status.code(), said.lines().count()), (Some(2), 1), "{flags:?}: {said}");
        assert!(said.contains(part), "{flags:?}: {said}");
    }
}

/// As in a sandbox that leaves it out.
#[test]
fn without_proc_it_is_said_that_this_is_why_a_program_is_not_protected() {
    outlast_lab::require!("processes of its own");
    let folder = folder();
    let script = "mount -t tmpfs none /proc && exec \"$0\" run --restart never -- true";
    let ran = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_outlast")])
        .env("XDG_RUNTIME_DIR", folder.path())
        .env_remove("OUTLAST_PRELOAD_LIBRARY")
        .env("OUTLAST_LOG", "info")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        said.contains("its listening sockets and connections are closed then: /proc is not mounted"),
        "{said}"
    );
    assert_eq!(ran.status.code(), Some(0), "{said}");
}

#[test]
fn the_first_file_that_a_program_opens_has_the_number_that_it_has_without_us() {
    let folder = folder();
    let opens = ["/usr/bin/perl", "-e", "open(F, '<', '/dev/null'); print fileno(F)"];
    let alone = std::process::Command::new(opens[0]).args(&opens[1..]).output().unwrap();
    let below = output(folder.path(), &[&["run", "--"][..], &opens].concat());
    assert_eq!(String::from_utf8_lossy(&below.stdout), String::from_utf8_lossy(&alone.stdout));
}
