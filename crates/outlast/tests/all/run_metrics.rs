//! What Prometheus is told of a program that is kept running.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::supervised::{pid, until};
use crate::common::{Outlast, command, eventually, folder};
use std::process::{Command, Stdio};

fn scrape(url: &str) -> String {
    let got = Command::new("curl").args(["--silent", "--fail", "--max-time", "10", url]).output().unwrap();
    assert!(got.status.success(), "{got:?}");
    String::from_utf8(got.stdout).unwrap()
}

#[test]
fn starts_and_crashes_of_a_program_are_counted() {
    let folder = folder();
    let arguments = ["run", "--name", "sleeper", "--metrics", "127.0.0.1:0", "--", "sleep", "1000"];
    let mut command = command(folder.path(), &arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).env("OUTLAST_LOG", "info");
    let mut outlast = Outlast::from(command);
    let line = outlast.wait_for("metrics at");
    let url = line.split("metrics at ").nth(1).unwrap().trim().to_owned();
    let has = |page: &str, all: &[&str]| all.iter().all(|metric| page.contains(metric));

    eventually("the program is not up", || {
        let up = [
            "outlast_program_up{program=\"sleeper\"} 1",
            "outlast_program_starts_total{program=\"sleeper\"} 1",
        ];
        has(&scrape(&url), &up).then_some(())
    });
    let first = until(folder.path(), "running", |status| status["main_pid"].as_u64() > Some(1));
    let first = pid(&first, "main_pid");
    assert!(Command::new("kill").args(["-KILL", &first.to_string()]).status().unwrap().success());
    until(folder.path(), "started again", |status| {
        status["main_pid"].as_u64().is_some_and(|pid| pid > 1 && pid != u64::from(first))
    });
    let page = scrape(&url);
    for metric in [
        "outlast_build_info{version=",
        "outlast_program_up{program=\"sleeper\"} 1",
        "outlast_program_starts_total{program=\"sleeper\"} 2",
        "outlast_program_crashes_total{program=\"sleeper\"} 1",
        "outlast_program_held_bytes{program=\"sleeper\"} 0",
        "outlast_program_pause_last_seconds{program=\"sleeper\"} 0.0",
        "# EOF",
    ] {
        assert!(page.contains(metric), "no {metric} in\n{page}");
    }
    outlast.signal("TERM");
    outlast.ended();
}

/// Metrics do not need the admin socket; a port in use is an error before the program is started.
#[test]
fn metrics_of_a_program_need_a_free_port_and_no_admin_socket() {
    let folder = folder();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = crate::common::output(folder.path(), &["run", "--metrics", &address, "--", "touch", "started"]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!((ran.status.code(), said.lines().count()), (Some(7), 1), "{said}");
    assert!(said.contains(&format!("cannot serve metrics at {address}: address already in use")), "{said}");
    drop(taken);

    let arguments = ["run", "--admin-socket", "none", "--metrics", "127.0.0.1:0", "--", "sleep", "1000"];
    let mut command = command(folder.path(), &arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).env("OUTLAST_LOG", "info");
    let mut outlast = Outlast::from(command);
    let line = outlast.wait_for("metrics at");
    let url = line.split("metrics at ").nth(1).unwrap().trim().to_owned();
    eventually("the program is not up", || {
        scrape(&url).contains("outlast_program_up{program=\"sleep\"} 1").then_some(())
    });
    outlast.signal("TERM");
    outlast.ended();
}

/// The program of a file, where it is the only one.
#[test]
fn metrics_at_the_top_of_a_file_are_those_of_its_only_program() {
    let folder = folder();
    let file = folder.path().join("f.toml");
    let one = "[[run]]\nname = 'NAME'\nprogram = ['sleep', '1000']\n";
    let top = "log = 'info'\nmetrics = '127.0.0.1:0'\n";
    std::fs::write(&file, top.to_owned() + &one.replace("NAME", "one")).unwrap();
    let mut alone = command(folder.path(), &["--config", file.to_str().unwrap()]);
    alone.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut outlast = Outlast::from(alone);
    let line = outlast.wait_for("metrics at");
    let url = line.split("metrics at ").nth(1).unwrap().trim().to_owned();
    eventually("the program is not up", || {
        scrape(&url).contains("outlast_program_up{program=\"one\"} 1").then_some(())
    });
    outlast.signal("TERM");
    outlast.ended();

    let several = top.to_owned() + &one.replace("NAME", "one") + &one.replace("NAME", "two");
    std::fs::write(&file, several).unwrap();
    for arguments in [&["--config"][..], &["config", "check"]] {
        let ran = crate::common::output(folder.path(), &[arguments, &[file.to_str().unwrap()]].concat());
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!((ran.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(
            said.contains("f.toml:2: metrics are for [[listen]] and [[connect]], or for a single [[run]]"),
            "{said}"
        );
    }
}
