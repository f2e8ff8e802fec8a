//! Servers that go on by themselves, and crash too often, or are ended as a whole: what is said of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::restarts::{ends, is_running};
use crate::common::{Outlast, PATIENCE, command, eventually, folder, nobody, output};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One of the examples of the library.
fn example(name: &str) -> Option<String> {
    let this = std::env::current_exe().unwrap();
    let example = this.parent().unwrap().parent().unwrap().join("examples").join(name);
    if example.exists() {
        return Some(example.to_str().unwrap().to_owned());
    }
    let why = "there is no server with the library: cargo build -p outlast-restart --examples";
    assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "{why}");
    eprintln!("SKIPPED: {why}");
    None
}

fn signal(pid: u64, name: &str) {
    assert!(pid > 1, "{pid} is no process of ours");
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// Told to end when dropped: servers with the library would outlive its being killed.
struct Running(Outlast);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.child().try_wait().is_ok_and(|ended| ended.is_none()) {
            self.0.signal("TERM");
            self.0.ended();
        }
    }
}

/// Once it can be asked.
fn start(runtime: &Path, arguments: &[&str]) -> Running {
    let mut command = command(runtime, arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).env("OUTLAST_LOG", "info");
    let mut outlast = Outlast::from(command);
    outlast.wait_for("is started");
    Running(outlast)
}

/// What `outlast status` says of the one instance.
fn status(runtime: &Path, which: &[&str]) -> Value {
    let said = output(runtime, &[&["status", "--json"], which].concat());
    assert!(said.status.success(), "{said:?}");
    let all: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    all[0].clone()
}

/// The generation with this number, once it serves.
fn serving(runtime: &Path, number: u64) -> u64 {
    eventually("no such generation", || {
        let last = status(runtime, &[])["generations"].as_array().unwrap().last().cloned()?;
        (last["number"].as_u64() == Some(number) && last["ended_ms"].is_null())
            .then(|| last["pid"].as_u64().unwrap())
    })
}

#[test]
fn each_step_of_a_server_that_crashes_too_often_is_told_in_order() {
    let Some(lines) = example("lines") else { return };
    let folder = folder();
    let run = [
        "run",
        "--name",
        "crashing",
        "--intensity",
        "2",
        "--backoff-min",
        "1ms",
        "--",
        &lines,
        "127.0.0.1:0",
    ];
    let mut outlast = start(folder.path(), &run);
    // Two crashes on each of three rungs and one more, in each of three starts.
    for start in 0..3 {
        for generation in 1..=7 {
            let number = 7 * start + generation;
            let pid = serving(folder.path(), number);
            // Of two that begin between two looks of the supervisor the second may be told before what follows on the first.
            let told = format!("crashing: generation {number} serves");
            eventually("a generation is not told", || outlast.0.said_so_far().contains(&told).then_some(()));
            signal(pid, "ABRT");
        }
    }
    assert_eq!(outlast.0.ended().code(), Some(134));
    let said = outlast.0.said();
    let steps = [
        "crashing: generation 1 serves",
        "crashing crashes more than 2 times within 30.0 s: dropping shared state that cannot be verified; after 2 more \
         connections are closed",
        "crashing crashes more than 2 times within 30.0 s, again: its connections are closed, and only its listening \
         sockets are kept; after 2 more it ends, and is restarted from scratch",
        "crashing: generation 7 serves",
        "crashing has been killed by SIGABRT: it is started again (restart 1 of 2 within 30.0 s); its connections and state \
         are lost",
        "crashing: generation 8 serves",
        "dropping shared state that cannot be verified",
        "only its listening sockets are kept; after 2 more",
        "crashing: generation 14 serves",
        "crashing has been killed by SIGABRT: it is started again in 1 ms (restart 2 of 2 within 30.0 s); its connections \
         and state are lost",
        "crashing: generation 21 serves",
        "crashing has been killed by SIGABRT, after 2 other crashes within 30.0 s: it is not started again",
    ];
    let mut rest = said.as_str();
    for step in steps {
        let (_, after) =
            rest.split_once(step).unwrap_or_else(|| panic!("no {step:?} in its place in:\n{said}"));
        rest = after;
    }
    assert!(!rest.contains("serves"), "{said}");
}

#[test]
fn how_generations_end_is_written_down_also_after_all_of_them_were_killed() {
    let Some(lines) = example("lines") else { return };
    let folder = folder();
    let run = ["run", "--name", "all at once", "--", &lines, "127.0.0.1:0", ""];
    let _outlast = start(folder.path(), &run);
    let first = serving(folder.path(), 1);
    signal(first, "ABRT");
    let second = serving(folder.path(), 2);
    let zygote = status(folder.path(), &["all at once"])["main_pid"].as_u64().unwrap();
    // As the kernel does where a group of processes is killed as a whole.
    let below = Command::new("pgrep").args(["-P", &zygote.to_string()]).output().unwrap();
    let below = String::from_utf8(below.stdout).unwrap();
    let all: Vec<u64> = below.lines().map(|pid| pid.parse().unwrap()).chain([zygote]).collect();
    // Nobody has the time to succeed.
    all.iter().for_each(|pid| signal(*pid, "STOP"));
    all.iter().for_each(|pid| signal(*pid, "KILL"));
    let third = serving(folder.path(), 3);
    assert_eq!(status(folder.path(), &[&third.to_string()])["generation"], 3);
    signal(third, "ABRT");
    serving(folder.path(), 4);
    // It is known soon after the next one serves.
    let past = eventually("its end is not known", || {
        let all = status(folder.path(), &[])["generations"].as_array().unwrap().clone();
        let past = all.iter().map(|one| {
            let text = |name: &str| one[name].as_str().unwrap_or("?").to_owned();
            (one["pid"].as_u64().unwrap(), text("how"), text("cause"))
        });
        let past: Vec<_> = past.collect();
        (past[2].1 != "?").then_some(past)
    });
    assert_eq!(past[0], (first, "SIGABRT".into(), "crash".into()));
    assert_eq!((past[1].0, past[1].2.as_str()), (second, "killed"));
    assert_eq!(past[2], (third, "SIGABRT".into(), "crash".into()));
    let page = output(folder.path(), &["status", "all at once"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains(&format!("{lines} 127.0.0.1:0 ''\n")), "{page}");
    let other = output(folder.path(), &["status", "all"]);
    assert_eq!((other.status.code(), other.stdout.len()), (Some(2), 0));
    assert!(String::from_utf8(other.stderr).unwrap().contains("is called \"all\""));
}

#[test]
fn an_end_in_order_that_is_followed_by_another_start_is_no_crash() {
    let folder = folder();
    let run = ["--log", "info", "run", "--restart", "always", "--intensity", "2", "--", "sh", "-c", "exit 0"];
    let ran = output(folder.path(), &run);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(said.matches(" INFO sh has exited with code 0: it is started again").count(), 2, "{said}");
    assert!(said.contains("sh has exited with code 0, after 2 other ends within"), "{said}");
    assert!(!said.contains("crash"), "{said}");
    let Some(echo) = example("echo") else { return };
    let said = folder.path().join("said");
    let run = ["run", "--name", "echo", "--restart", "always", "--log-to", said.to_str().unwrap()];
    let mut outlast = start(folder.path(), &[&run[..], &["--", &echo, "127.0.0.1:0", "patient"]].concat());
    let address = eventually("no address", || {
        let said = std::fs::read_to_string(&said).unwrap_or_default();
        said.lines().find_map(|line| line.strip_prefix("listening on ").map(str::to_owned))
    });
    let mut client = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut client, b"!exit 0\n").unwrap();
    serving(folder.path(), 2);
    let past = status(folder.path(), &[])["generations"][0].clone();
    assert_eq!((past["how"].as_str(), past["cause"].as_str()), (Some("exit 0"), Some("ended")), "{past}");
    outlast.0.wait_for("INFO echo has exited with code 0: it is started again");
}

/// Nothing is known of it but that it has ended.
#[test]
fn a_program_without_the_library_has_its_crashes_in_the_table() {
    let folder = folder();
    let runtime = folder.path();
    let _running = start(runtime, &["run", "--preload", "never", "--", "sleep", "1000"]);
    let mut last = 0;
    for count in 1..=2 {
        // The log may say that it is started before the status does.
        last = eventually("it does not run", || {
            status(runtime, &[])["main_pid"].as_u64().filter(|pid| *pid > 1 && *pid != last)
        });
        signal(last, "KILL");
        let crashes = eventually("its crash is not in the table", || {
            Some(status(runtime, &[])["crashes"].clone()).filter(|crashes| crashes["count"] == count)
        });
        assert_eq!(crashes["kept"][0]["how"], "SIGKILL", "{crashes}");
    }
    let page = String::from_utf8(output(runtime, &["status"]).stdout).unwrap();
    assert!(page.contains("CRASH") && page.contains("SIGKILL"), "{page}");
}

/// What a server that speaks HTTP says on this connection.
fn head(stream: &mut TcpStream) -> String {
    stream.write_all(b"HEAD / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    String::from_utf8(answer).unwrap()
}

/// It has no socket of its own, so the library in it has nothing to say.
#[test]
fn the_crash_of_a_main_process_that_only_starts_the_server_is_in_the_table_with_its_connections() {
    let (folder, address) = (folder(), nobody());
    let runtime = folder.path();
    let server = format!(
        "/usr/bin/python3 -m http.server --protocol HTTP/1.1 --bind 127.0.0.1 {} 2>/dev/null; exit 5",
        address.port()
    );
    let library = crate::run_preload::library();
    let run = ["run", "--preload", "always", "--preload-library", library.to_str().unwrap(), "--"];
    let _running = start(runtime, &[&run[..], &["sh", "-c", &server]].concat());
    let mut client = eventually("it does not listen", || TcpStream::connect(address).ok());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 200"));
    let mut last = 0;
    for count in 1..=2 {
        last = eventually("it does not run", || {
            status(runtime, &[])["main_pid"].as_u64().filter(|pid| *pid > 1 && *pid != last)
        });
        // One that has just been used may have no copy yet.
        eventually("there is no copy", || (status(runtime, &[])["connections"] == 1).then_some(()));
        signal(last, "KILL");
        let crashes = eventually("its crash and its connection are not in the table", || {
            let crashes = status(runtime, &[])["crashes"].clone();
            Some(crashes).filter(|crashes| crashes["count"] == count && crashes["connections_kept"] == count)
        });
        assert_eq!(crashes["connections_closed"], 0, "{crashes}");
        // The next server's, which has it when it crashes.
        assert!(head(&mut client).starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn processes_that_are_stopped_for_another_binary_have_not_crashed() {
    let Some(roles) = example("roles") else { return };
    let folder = folder();
    let _outlast = start(folder.path(), &["run", "--name", "roles", "--", &roles, "127.0.0.1:0"]);
    let generations = || status(folder.path(), &[])["generations"].as_array().unwrap().clone();
    eventually("it is not ready", || Some(()).filter(|()| generations().len() >= 4));
    let before = generations().len();
    let upgraded = output(folder.path(), &["upgrade", "--force"]);
    assert!(upgraded.status.success(), "{upgraded:?}");
    for past in generations().iter().take(before) {
        // The example's processes write to nowhere by themselves now and then; nobody stops them by that signal.
        let by_itself = past["cause"] == "crash" && past["how"] == "SIGSEGV";
        assert!(past["cause"] == "upgrade" || by_itself, "{past}");
    }
}

#[test]
fn channels_between_processes_are_no_connections() {
    let Some(roles) = example("roles") else { return };
    let folder = folder();
    let _outlast = start(folder.path(), &["run", "--name", "roles", "--", &roles, "127.0.0.1:0"]);
    let deadline = Instant::now() + Duration::from_secs(3);
    eventually("it is not ready", || {
        status(folder.path(), &[])["generation"].as_u64().filter(|count| *count >= 4)
    });
    // They are counted every second.
    while Instant::now() < deadline {
        assert_eq!(status(folder.path(), &[])["connections"], 0);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn whatever_a_program_has_started_ends_with_it() {
    let folder = folder();
    for (number, flags, below, named) in [
        (0, &[][..], "sleep 1000", "told to end (SIGTERM)"),
        (
            1,
            &["--stop-timeout", "300ms"],
            "trap '' TERM INT; sleep 1000",
            "not ended in time (--stop-timeout), killed",
        ),
    ] {
        // Below a shell of its own session, too, whose parent has ended.
        let file = folder.path().join(format!("pids-{number}"));
        let write = format!(
            "(echo $$ >> {file}; {below}; :) & setsid sh -c 'setsid sh -c \"echo \\$\\$ >> {file}; sleep 1000\" & :'",
            file = file.display()
        );
        let script = format!(
            "{write}; while [ $(wc -l < {file}) -lt 2 ]; do sleep 0.01; done; echo ready >&2; sleep 1000",
            file = file.display()
        );
        let arguments = [&["run", "--name", "script"], flags, &["--", "sh", "-c", &script]].concat();
        let mut outlast = Outlast::start(folder.path(), &arguments);
        outlast.wait_for("ready");
        let below = Command::new("pgrep").args(["-P", &outlast.pid().to_string()]).output().unwrap();
        let below: Vec<u32> =
            String::from_utf8(below.stdout).unwrap().lines().map(|pid| pid.parse().unwrap()).collect();
        assert!(below.len() >= 2, "the orphan is ours: {below:?}");
        outlast.signal("TERM");
        assert!(outlast.ended().code().is_some_and(|code| code > 128));
        for pid in below {
            assert!(!is_running(pid), "process {pid} goes on");
            ends(pid);
        }
        let said = outlast.said();
        assert!(said.contains("script has ended, but not process") && said.contains(named), "{said}");
    }
}

/// They may have been given up, but what they have started is still there: each time.
#[test]
fn whatever_a_program_has_started_ends_when_it_is_given_up() {
    let folder = folder();
    let file = folder.path().join("pids");
    let sleep = format!("sleep 1000 2>&- & echo $! >> {}", file.display());
    let script = format!("{sleep}; {sleep}; exit 3");
    let mut outlast = Outlast::start(folder.path(), &["run", "--intensity", "1", "--", "sh", "-c", &script]);
    assert_eq!(outlast.ended().code(), Some(3));
    let pids = std::fs::read_to_string(file).unwrap();
    assert_eq!(pids.lines().count(), 4);
    for pid in pids.lines() {
        assert!(!is_running(pid.parse().unwrap()), "process {pid} goes on");
    }
    assert_eq!(outlast.said().matches("and another one: told to end").count(), 2);
}
