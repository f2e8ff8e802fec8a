//! What a program that is kept running is started with, and where its output goes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, command, ended, eventually, folder, output};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn printed(flags: &[&str], script: &str) -> String {
    let folder = folder();
    let arguments = [&["run"], flags, &["--", "sh", "-c", script]].concat();
    let ran = output(folder.path(), &arguments);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}

#[test]
fn limits_folder_environment_and_priority_are_those_that_were_asked_for() {
    assert_eq!(printed(&["--limit", "nofile=99:199"], "ulimit -Sn; ulimit -Hn"), "99\n199");
    assert_eq!(
        printed(&["--limit", "as=1G", "--limit", "stack=4M"], "ulimit -v; ulimit -s"),
        "1048576\n4096"
    );
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let core =
        printed(&["--limit", "core=0"], "cat /proc/self/limits | grep core | tr -s ' ' | cut -d' ' -f5");
    assert_eq!(core, if pattern.starts_with('|') { "1" } else { "0" });
    let flags =
        ["--environment", "A=b c", "--environment", "D=", "--working-directory", "/usr", "--nice", "7"];
    assert_eq!(printed(&flags, "echo $A,${D-none}; pwd; nice"), "b c,\n/usr\n7");
    assert_eq!(printed(&["--oom-score-adjust", "321"], "cat /proc/self/oom_score_adj"), "321");
}

#[test]
fn a_library_is_loaded_in_front_of_those_that_the_user_has_there() {
    let folder = folder();
    // Any library will do: this one is loaded anyway.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let library = files.find(|file| file.contains("libc.so")).unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/bin/sh\necho $LD_PRELOAD\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = |flags: &[&str], theirs: &str| {
        let arguments = [&["run"], flags, &["--", script.to_str().unwrap()]].concat();
        let ran = command(folder.path(), &arguments).env("LD_PRELOAD", theirs).output().unwrap();
        (ran.status.code(), String::from_utf8(ran.stdout).unwrap().trim().to_owned())
    };
    let flags = ["--preload-library", library];
    assert_eq!(run(&flags, ""), (Some(0), library.to_owned()));
    assert_eq!(run(&flags, library), (Some(0), format!("{library}:{library}")));
    let flags = ["--preload-library", library, "--preload", "never"];
    assert_eq!(run(&flags, library), (Some(0), library.to_owned()));
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    assert_eq!(run(&["--preload-library", library, "--preload", "always"], "").0, Some(2));
}

#[test]
fn what_the_system_refuses_is_said_with_the_flag() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: becoming somebody else needs root");
        return;
    }
    let folder = folder();
    let place = folder.path().join("outlast");
    std::fs::copy(env!("CARGO_BIN_EXE_outlast"), &place).unwrap();
    for path in [folder.path(), &place] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    // The log says so, as there is no folder for the admin socket; that is no reason not to run.
    let run = |flags: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]);
        command.arg(&place).arg("run").args(flags).args(["--", "sh", "-c", "id -u"]);
        command.env("XDG_RUNTIME_DIR", "/no/such/folder").output().unwrap()
    };
    let plain = run(&[]);
    assert_eq!(String::from_utf8_lossy(&plain.stdout), "65534\n");
    assert!(String::from_utf8_lossy(&plain.stderr).contains("status and upgrade will not work"));
    for (runtime, why) in
        [("/no/such", "there is no folder to make it in"), ("/proc", "no folder can be made")]
    {
        let ran = output(std::path::Path::new(runtime), &["run", "--", "true"]);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(
            said.contains(why) && said.contains("XDG_RUNTIME_DIR") && said.contains("--admin-socket"),
            "{said}"
        );
    }
    for (flags, part) in [
        (
            ["--limit", "nofile=64:9999999"],
            "it cannot set its limit of nofile (--limit): operation not permitted",
        ),
        (["--nice", "-20"], "it cannot be nice as told (--nice): permission denied"),
        (["--oom-score-adjust", "-900"], "(--oom-score-adjust): permission denied"),
    ] {
        let ran = run(&flags);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(7), "{said}");
        assert!(said.contains("cannot run sh: ") && said.contains(part), "{said}");
    }
}

/// All that was written, the oldest first.
fn written(file: &Path) -> String {
    let old = (1..).map_while(|number| std::fs::read_to_string(format!("{}.{number}", file.display())).ok());
    let mut parts: Vec<String> = old.collect();
    parts.reverse();
    parts.push(std::fs::read_to_string(file).unwrap_or_default());
    parts.concat()
}

#[test]
fn output_goes_to_a_file_that_is_rotated_and_no_line_is_lost_over_crashes() {
    let folder = folder();
    let log = folder.path().join("log");
    let count = folder.path().join("count");
    let script = format!(
        "echo x >> {0}; n=$(wc -l < {0}); for i in $(seq 1000); do echo run $n line $i; done; echo error >&2; \
         [ $n -ge 3 ] || kill -SEGV $$",
        count.display()
    );
    let arguments = ["run", "--log-to", log.to_str().unwrap(), "--log-size", "4K", "--log-keep", "1000"];
    let ran = output(folder.path(), &[&arguments[..], &["--", "sh", "-c", &script]].concat());
    assert!(ran.status.success() && ran.stdout.is_empty());
    let mut expected = String::new();
    for run in 1..=3 {
        (1..=1000).for_each(|line| expected.push_str(&format!("run {run} line {line}\n")));
        expected.push_str("error\n");
    }
    assert!(written(&log) == expected, "lines are lost");
    assert!(folder.path().join("log.9").exists(), "it was not rotated");
}

#[test]
fn a_program_goes_on_writing_when_its_supervisor_or_whoever_writes_dies() {
    let folder = folder();
    let log = folder.path().join("log");
    // Otherwise it would end with its supervisor.
    let script = "trap '' TERM; echo $$; i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; sleep 0.01; done; echo end";
    let arguments = ["run", "--log-to", log.to_str().unwrap(), "--", "sh", "-c", script];
    let mut outlast = Outlast::start(folder.path(), &arguments);
    let wait = |part: &str| {
        let deadline = Instant::now() + crate::common::PATIENCE;
        while !written(&log).contains(part) {
            assert!(Instant::now() < deadline, "no {part:?} in {}", written(&log));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait("line 20\n");
    let keeper = || {
        let listed = Command::new("pgrep").args(["-f", &format!("keep-log {}", log.display())]).output();
        String::from_utf8(listed.unwrap().stdout).unwrap().trim().to_owned()
    };
    let first = keeper();
    assert!(Command::new("kill").args(["-KILL", &first]).status().unwrap().success());
    outlast.wait_for("another one does");
    assert_ne!(keeper(), first);
    wait("line 100\n");
    outlast.child().kill().unwrap();
    wait("end\n");
    let text = written(&log);
    // Whoever writes and is killed may take with it what it had just read, and nothing else.
    let missing = (1..=300).filter(|i| !text.contains(&format!("line {i}\n"))).count();
    assert!(missing <= 1, "{missing} lines are missing");
}

/// Each rotation fails, and that cannot be said either.
#[test]
fn output_is_written_where_the_file_cannot_be_rotated_and_nobody_hears_of_that() {
    let folder = folder();
    let log = folder.path().join("log");
    std::fs::create_dir(folder.path().join("log.1")).unwrap();
    std::fs::write(folder.path().join("log.1/full"), "").unwrap();
    let script = "for i in $(seq 20000); do echo line $i; done";
    let arguments = [
        "run",
        "--log-to",
        log.to_str().unwrap(),
        "--log-size",
        "4K",
        "--log-keep",
        "1",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut command = command(folder.path(), &arguments);
    command.stderr(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    assert!(command.status().unwrap().success());
    let text = std::fs::read_to_string(&log).unwrap();
    let expected: String = (1..=20_000).map(|line| format!("line {line}\n")).collect();
    assert!(text == expected, "{} of {} bytes", text.len(), expected.len());
}

#[test]
fn a_log_that_cannot_be_written_is_said_at_once() {
    let folder = folder();
    let ran = output(folder.path(), &["run", "--log-to", "/no/such/folder/log", "--", "true"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), said.lines().count()), (Some(7), 1), "{said}");
    assert!(said.contains("cannot write the program's output to /no/such/folder/log: "), "{said}");
}

#[test]
fn standard_input_and_output_are_the_programs_own() {
    let folder = folder();
    let mut command = command(folder.path(), &["run", "--", "cat"]);
    let mut outlast = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut outlast.stdin.take().unwrap(), b"through a pipe").unwrap();
    let mut told = String::new();
    outlast.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!((told.as_str(), ended(&mut outlast).code()), ("through a pipe", Some(0)));
}

#[test]
fn a_program_whose_output_nobody_can_write_for_a_while_goes_on_then() {
    let folder = folder();
    let log = folder.path().join("log");
    let script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done";
    let arguments = ["run", "--log-to", log.to_str().unwrap(), "--", "sh", "-c", script];
    let mut outlast = Outlast::start(folder.path(), &arguments);
    eventually("nothing is written", || written(&log).contains("line 9\n").then_some(()));
    let limit = |descriptors: &str| {
        let (pid, limit) = (outlast.pid().to_string(), format!("--nofile={descriptors}"));
        assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success());
    };
    let listed = Command::new("pgrep").args(["-P", &outlast.pid().to_string(), "-f", "keep-log"]).output();
    let keeper = String::from_utf8(listed.unwrap().stdout).unwrap();
    limit("3:4096");
    assert!(Command::new("kill").args(["-KILL", keeper.trim()]).status().unwrap().success());
    let before = written(&log).len();
    let said = |outlast: &mut Outlast, what: &str| {
        eventually(what, || outlast.said_so_far().contains(what).then_some(()))
    };
    said(&mut outlast, "at present");
    let pid = outlast.pid().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--nofile=4096:4096"]).status().unwrap().success());
    said(&mut outlast, "another one does");
    eventually("it does not go on", || (written(&log).len() > before + 100).then_some(()));
    outlast.signal("TERM");
    outlast.ended();
}

#[test]
fn a_program_that_ends_in_order_is_not_waited_for_with_a_log_either() {
    let folder = folder();
    let log = folder.path().join("log");
    let library = crate::run_preload::library();
    let preload = ["--preload", "always", "--preload-library", library.to_str().unwrap()];
    let took = || {
        let begin = Instant::now();
        let arguments =
            [&["run", "--log-to", log.to_str().unwrap()], &preload[..], &["--", "sh", "-c", "echo a"]];
        let ran = output(folder.path(), &arguments.concat());
        assert!(ran.status.success());
        begin.elapsed()
    };
    // One of several on a busy machine; it took a second longer, each time.
    let shortest = (0..5).map(|_| took()).min().unwrap();
    assert!(shortest < Duration::from_secs(1), "{shortest:?}");
}

/// It is a child, too, and stays until the last word is written.
#[test]
fn what_writes_the_log_is_not_waited_for_as_something_left_behind() {
    let folder = folder();
    let log = folder.path().join("l.log");
    // Without a limit: whatever is waited for is waited for for ever.
    let flags = ["run", "--restart", "never", "--stop-timeout", "0s", "--log-to", log.to_str().unwrap()];
    for (script, code) in [("echo last; exit 3", 3), ("echo ready; echo last; kill -KILL $$", 137)] {
        let mut outlast = Outlast::start(folder.path(), &[&flags[..], &["--", "sh", "-c", script]].concat());
        assert_eq!(outlast.ended().code(), Some(code), "{script}");
        let said = outlast.said();
        assert!(!said.contains("told to end"), "{script}: {said}");
        assert!(std::fs::read_to_string(&log).unwrap().ends_with("last\n"), "{script}");
        std::fs::remove_file(&log).unwrap();
    }
    // Also the one that follows it, and where the program was told to end.
    let script = "echo begun >&2; while :; do echo again; sleep 0.02; done";
    let mut outlast = Outlast::start(folder.path(), &[&flags[..], &["--", "sh", "-c", script]].concat());
    eventually("nothing is written", || {
        std::fs::read_to_string(&log).ok().filter(|said| said.contains("again"))
    });
    let listed = Command::new("pgrep").args(["-P", &outlast.pid().to_string(), "-f", "keep-log"]).output();
    let keeper = String::from_utf8(listed.unwrap().stdout).unwrap();
    assert!(Command::new("kill").args(["-KILL", keeper.trim()]).status().unwrap().success());
    outlast.wait_for("has ended: another one does");
    outlast.signal("TERM");
    assert_eq!(outlast.ended().code(), Some(143));
    // The shell may have left its own `sleep`.
    let said = outlast.said();
    assert!(!said.contains("(exe)") && !said.contains("(outlast)"), "{said}");
}
