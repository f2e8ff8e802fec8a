//! Programs in a configuration file.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, check_echo, echo, folder, output, restarts::ends};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Ends everything below `outlast`, also when a test fails.
struct Ending(u32);

impl Drop for Ending {
    fn drop(&mut self) {
        let told = std::process::Command::new("kill").args(["-TERM", &self.0.to_string()]).status();
        if told.is_ok_and(|told| told.success()) {
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

#[test]
fn programs_and_relays_run_beside_each_other_in_processes_of_their_own() {
    let folder = folder();
    let file = folder.path().join("outlast.toml");
    let said = folder.path().join("said");
    let text = format!(
        "log = 'info'\n[[listen]]\naddress = '127.0.0.1:0'\nto = '{}'\n\
         [[run]]\nname = 'one'\nprogram = ['sh', '-c', 'echo $A > $F; exec sleep 600']\nenvironment = ['A=first one', 'F={}']\n\
         [[run]]\nname = 'two'\nprogram = ['sleep', '600']\n",
        echo(),
        said.display()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let checked = output(folder.path(), &["config", "check", file]);
    assert!(String::from_utf8_lossy(&checked.stdout).contains("ok, 1 listen, 0 connect, 2 run"));
    let mut outlast = Outlast::start(folder.path(), &["--config", file]);
    let ending = Ending(outlast.pid());
    let server = outlast.address();
    let deadline = Instant::now() + crate::common::PATIENCE;
    let status = || -> Vec<Value> {
        let told = output(folder.path(), &["status", "--json"]);
        serde_json::from_slice(&told.stdout).unwrap()
    };
    let told = || std::fs::read_to_string(&said).unwrap_or_default();
    while status().iter().filter(|one| one["ready"] == true).count() < 2 || told() != "first one\n" {
        assert!(Instant::now() < deadline, "{:#?}", status());
        std::thread::sleep(Duration::from_millis(10));
    }
    let all = status();
    assert_eq!(all.len(), 3, "{all:#?}");
    let named = |name: &str| all.iter().find(|one| one["runs"] == name).unwrap().clone();
    let main = u32::try_from(named("two")["main_pid"].as_u64().unwrap()).unwrap();
    let mut client = Outlast::start(folder.path(), &["connect", "127.0.0.1:0", "--via", &server.to_string()]);
    let address = client.address();
    check_echo(address, 100_000);
    // One that ends does not take the others with it.
    let supervisor = named("one")["pid"].to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &supervisor]).status().unwrap().success());
    assert!(outlast.wait_for("exited with code 143; the others go on").contains("--name=one"));
    check_echo(address, 1_000);
    drop(ending);
    assert_eq!(outlast.ended().code(), Some(143));
    ends(main);
}

#[test]
fn a_file_with_one_program_is_that_program() {
    let folder = folder();
    let file = folder.path().join("outlast.toml");
    std::fs::write(&file, "[[run]]\nprogram = ['sh', '-c', 'exit 7']\nrestart = 'never'\n").unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(output(folder.path(), &["--config", file]).status.code(), Some(7));
    let ran = output(folder.path(), &["run", "--config", file, "--", "sh", "-c", "exit 5"]);
    assert_eq!(ran.status.code(), Some(5), "the command line takes precedence over the file");
    std::fs::write(file, "[[run]]\nlimit = 'nofile=few'\nprogram = 'true'\n").unwrap();
    let ran = output(folder.path(), &["--config", file]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("outlast.toml:2: ") && said.contains("\"few\" is no limit"), "{said}");
}

fn configured(folder: &std::path::Path, text: &str) -> String {
    let file = folder.join("outlast.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn two_programs_of_one_name_are_refused() {
    let folder = folder();
    for text in [
        "[[run]]\nname = 'one'\nprogram = 'true'\n[[run]]\nname = 'one'\nprogram = 'false'\n",
        "[[run]]\nprogram = ['sleep', '1']\n[[run]]\nprogram = ['sleep', '2']\n",
        "[[run]]\nname = 'sleep'\nprogram = 'true'\n[[run]]\nprogram = ['/bin/sleep', '2']\n",
    ] {
        let file = configured(folder.path(), text);
        for arguments in [&["--config", &file][..], &["config", "check", &file]] {
            let ran = output(folder.path(), arguments);
            let said = String::from_utf8_lossy(&ran.stderr);
            assert_eq!((ran.status.code(), said.lines().count()), (Some(2), 1), "{said}");
            assert!(said.contains("two sections run something called"), "{said}");
        }
    }
    let file = configured(
        folder.path(),
        "[[run]]\nprogram = ['sleep', '1']\n[[run]]\nname = 'other'\nprogram = ['sleep', '2']\n",
    );
    assert_eq!(output(folder.path(), &["config", "check", &file]).status.code(), Some(0));
}

#[test]
fn what_could_not_run_is_found_without_running_it() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("plain"), "#!/bin/sh\n").unwrap();
    std::fs::write(at("orphan"), "#!/there/is/no/such/shell\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(at("orphan"), executable).unwrap();
    let missing = format!("{}/out", at("missing"));
    let cases = [
        (
            "program = ['./missing']".to_owned(),
            "program",
            2,
            "cannot run ./missing: there is no such program",
        ),
        ("program = ['outlast-missing']".to_owned(), "program", 2, "there is no such program"),
        ("program = 'sleep 7'".to_owned(), "program", 2, "program = [\"sleep\", \"7\"]"),
        (format!("program = ['{}']", at("plain")), "program", 7, "permission denied"),
        (format!("program = ['{}']", at("")), "program", 7, "permission denied"),
        (format!("program = ['{}']", at("orphan")), "program", 2, "what its first line"),
        (
            "program = ['true']\nenvironment = 'PATH=/outlast-missing'".to_owned(),
            "program",
            2,
            "no such program",
        ),
        (format!("program = 'true'\nlog-to = '{missing}'"), "log-to", 7, "no such file or directory"),
        (format!("program = 'true'\nlog-to = '{}'", at("")), "log-to", 7, "is a directory"),
    ];
    for (text, key, code, why) in cases {
        let file = configured(folder.path(), &format!("[[run]]\npreload = 'never'\n{text}\n"));
        let [checked, ran] = [&["config", "check", &file][..], &["--config", &file]].map(|arguments| {
            let ran = output(folder.path(), arguments);
            (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
        });
        let line = 3 + text.lines().position(|line| line.starts_with(key)).unwrap();
        let place = format!("{file}:{line}: {key}: ");
        assert_eq!((checked.0, checked.1.lines().count()), (Some(code), 1), "{text}: {checked:?}");
        let (_, same) = checked.1.split_once(&place).unwrap_or_else(|| panic!("{text}: {checked:?}"));
        assert!(same.contains(why), "{text}: {same}");
        assert_eq!(ran.0, Some(code), "{text}: {ran:?}");
        assert!(ran.1.contains(same.trim_end()), "{text}: {same:?} is not what is said then: {ran:?}");
    }
    // Relative to the folder that it runs in, and nothing is made.
    let text = format!(
        "[[run]]\nprogram = ['./orphan']\nworking-directory = '{}'\n[[run]]\nprogram = ['true']\nlog-to = '{}'\n",
        at(""),
        at("log")
    );
    std::fs::write(at("orphan"), "#!/bin/sh\n").unwrap();
    let file = configured(folder.path(), &text);
    let checked = output(folder.path(), &["config", "check", &file]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    assert!(!std::path::Path::new(&at("log")).exists());
}

/// A program for each of two sections, and their supervisors: the process, and what it keeps running.
fn two(folder: &std::path::Path, log: &str) -> (Outlast, [u32; 2]) {
    let section =
        |name: &str| format!("[[run]]\nname = '{name}'\nprogram = ['sleep', '600']\npreload = 'never'\n");
    let text = section("one") + &section("two");
    let file = configured(folder, &format!("log = '{log}'\n{text}"));
    let mut command = crate::common::command(folder, &["--config", &file]);
    command.stderr(std::process::Stdio::piped());
    let outlast = Outlast::from(command);
    let deadline = Instant::now() + crate::common::PATIENCE;
    loop {
        let told = output(folder, &["status", "--json"]);
        let all: Vec<Value> = serde_json::from_slice(&told.stdout).unwrap_or_default();
        let pids: Vec<u32> = all
            .iter()
            .filter(|one| one["ready"] == true)
            .filter_map(|one| u32::try_from(one["main_pid"].as_u64()?).ok())
            .collect();
        if let [one, two] = pids.as_slice() {
            return (outlast, [*one, *two]);
        }
        assert!(Instant::now() < deadline, "{all:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn programs_that_are_told_to_end_are_no_errors() {
    let folder = folder();
    for signal in ["TERM", "INT"] {
        let (mut outlast, programs) = two(folder.path(), "warn");
        outlast.signal(signal);
        programs.into_iter().for_each(ends);
        outlast.ended();
        assert_eq!(outlast.said(), "", "SIG{signal}");
    }
}

#[test]
fn who_could_be_meant_is_named() {
    let folder = folder();
    let (_outlast, _) = two(folder.path(), "warn");
    let upgraded = output(folder.path(), &["upgrade", "--force"]);
    let said = String::from_utf8_lossy(&upgraded.stderr);
    assert_eq!(upgraded.status.code(), Some(2), "{said}");
    let all = ["several programs match; name one of ", "one (process ", "two (process "];
    assert!(all.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn programs_end_when_the_process_that_has_started_all_is_killed() {
    let folder = folder();
    let (outlast, programs) = two(folder.path(), "warn");
    outlast.signal("KILL");
    programs.into_iter().for_each(ends);
}

#[test]
fn a_setting_that_would_undo_another_one_is_refused() {
    let folder = folder();
    for (text, why) in [("window = '0s'", "more time than none"), ("name = ''", "at least one letter")] {
        let file = configured(folder.path(), &format!("[[run]]\nprogram = 'true'\n{text}\n"));
        let ran = output(folder.path(), &["config", "check", &file]);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!((ran.status.code(), said.lines().count()), (Some(2), 1), "{text}: {said}");
        assert!(said.contains(&format!("{file}:3: ")) && said.contains(why), "{text}: {said}");
    }
}
