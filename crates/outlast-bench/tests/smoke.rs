//! Every experiment runs and ends with one line of JSON. Timings are not judged here.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests a failed expectation is the message")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

struct Folder(PathBuf);

impl Folder {
    /// A folder of its own for every call: tests of the same experiment run at the same time.
    fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("outlast-bench-test-{}-{number}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outlast-bench")).args(arguments).output().unwrap()
}

fn run(experiment: &str, more: &[&str]) -> Value {
    let folder = Folder::new(experiment);
    let out = folder.0.to_str().unwrap();
    let output = bench(&[&[experiment, "--smoke", "--out", out], more].concat());
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{experiment}: {}\n{stderr}\n{stdout}", output.status);
    let last = stdout.lines().last().unwrap();
    let value: Value =
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{experiment}: {error}: {last}"));
    assert_eq!(value["experiment"], experiment);
    let claims = value["claims"].as_array().unwrap();
    assert!(!claims.is_empty(), "{experiment} claims nothing");
    for claim in claims {
        assert!(
            claim["name"].is_string() && claim["median"].is_f64() && claim["repeats"].is_u64(),
            "{claim}"
        );
    }
    for kind in ["csv", "svg"] {
        let size = std::fs::metadata(folder.0.join(format!("{experiment}.{kind}"))).unwrap().len();
        assert!(size > 100, "{experiment}.{kind} is empty");
    }
    assert!(stderr.is_empty(), "{experiment} is not quiet in a pipe: {stderr}");
    value
}

#[test]
fn session_rr() {
    let value = run("session-rr", &[]);
    let names: Vec<&str> =
        value["claims"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
    for name in ["rr/blocking/kernel", "rr/blocking/inband", "rr/tokio/kernel", "rr/tokio/inband"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
}

#[test]
fn session_rr_in_every_mode() {
    run("session-rr", &["--mode", "auto,kernel,window,udp,inband", "--path", "veth", "--repeats", "1"]);
}

#[test]
fn session_stream() {
    run("session-stream", &[]);
}

#[test]
fn session_stream_in_every_mode() {
    run("session-stream", &["--mode", "window,udp,inband", "--placement", "cross", "--repeats", "1"]);
}

#[test]
fn session_crr() {
    run("session-crr", &["--mode", "kernel,inband"]);
}

#[test]
fn session_resume() {
    run("session-resume", &[]);
}

#[test]
fn session_idle() {
    run("session-idle", &[]);
}

#[test]
fn session_clients() {
    run("session-clients", &[]);
}

#[test]
fn session_peers() {
    run("session-peers", &[]);
}

#[test]
fn replica_latency() {
    run("replica-latency", &[]);
}

#[test]
fn replica_bulk() {
    run("replica-bulk", &[]);
}

#[test]
fn replica_failover() {
    run("replica-failover", &[]);
}

#[test]
fn replica_db() {
    run("replica-db", &[]);
}

fn claimed(value: &Value, name: &str) -> Vec<f64> {
    let claims = value["claims"].as_array().unwrap();
    claims
        .iter()
        .filter(|claim| claim["name"] == name)
        .map(|claim| claim["median"].as_f64().unwrap())
        .collect()
}

#[test]
fn restart_overhead() {
    let value = run("restart-overhead", &[]);
    assert!(!claimed(&value, "restart/overhead/memory").is_empty());
}

#[test]
fn restart_faults_loses_nothing() {
    let value = run("restart-faults", &[]);
    for name in ["restart/faults/failed", "restart/faults/wrong"] {
        let counts = claimed(&value, name);
        assert!(!counts.is_empty() && counts.iter().all(|count| *count == 0.0), "{name}: {counts:?}");
    }
}

#[test]
fn restart_latency() {
    let value = run("restart-latency", &[]);
    let times = claimed(&value, "restart/latency/other-answer-p50");
    assert!(!times.is_empty() && times.iter().all(|time| *time > 0.0), "{times:?}");
}

#[test]
fn restart_peers_of_which_only_one_loses_nothing() {
    let value = run("restart-peers", &[]);
    assert_eq!(claimed(&value, "restart/peers/failed"), [0.0, 0.0]);
    // Whatever is lost is lost at the crashes: somebody has seen them.
    assert!(claimed(&value, "restart/peers/others-failed").iter().any(|count| *count > 0.0));
}

#[test]
fn unknown_options_are_refused_in_one_line() {
    for arguments in [["session-rr", "--mode", "telepathy"], ["session-rr", "--repeats", "0"]] {
        let output = bench(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error:"));
    }
}

#[test]
fn an_unusable_folder_is_an_error() {
    let output = bench(&["session-crr", "--smoke", "--face", "blocking", "--out", "/proc/no/such/folder"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/proc/no/such/folder"));
}
