//! Containers that share the folder of the admin sockets: in each one the same process has the same number.
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::{Outlast, admin_socket, echo, eventually, folder, output};
use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "root is needed");
        eprintln!("SKIPPED: only root can make a namespace");
    }
    is_root
}

/// `outlast` as the second process of a container. All that is in there ends with the first, which is the guard's child's child.
fn contained(runtime: &Path, arguments: &[&str]) -> Outlast {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", "\"$@\" & wait", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_outlast")).args(arguments);
    command.env("XDG_RUNTIME_DIR", runtime).env("OUTLAST_LOG", "info");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Outlast::from(command)
}

fn status(runtime: &Path) -> Vec<serde_json::Value> {
    let asked = output(runtime, &["status", "--json"]);
    assert!(asked.status.success(), "{asked:?}");
    serde_json::from_slice(&asked.stdout).unwrap()
}

fn run(name: &str) -> [&str; 8] {
    ["run", "--name", name, "--preload", "never", "--", "sleep", "600"]
}

fn said(output: std::process::Output) -> (Option<i32>, String) {
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn instances_with_the_same_process_number_are_all_found_and_upgraded() {
    if !is_root() {
        return;
    }
    let folder = folder();
    let runtime = folder.path();
    let service = echo().to_string();
    let mut all: Vec<Outlast> = ["one", "two"].iter().map(|name| contained(runtime, &run(name))).collect();
    let mut listener = contained(runtime, &["listen", "127.0.0.1:0", "--to", &service]);
    let server = listener.address().to_string();
    let mut connector = contained(runtime, &["connect", "127.0.0.1:0", "--via", &server]);
    connector.address();
    let found = eventually("not all are found", || {
        let found = status(runtime);
        (found.len() == 4 && found.iter().all(|answer| answer["main_pid"] != 0)).then_some(found)
    });
    let numbers: BTreeSet<u64> = found.iter().map(|answer| answer["pid"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), 1, "the containers do not have the same numbers: {found:?}");
    let page = said(output(runtime, &["status"])).1;
    for answer in &found {
        let socket = answer["admin_socket"].as_str().unwrap();
        assert!(page.contains(&format!("--admin-socket {socket}\n")), "{page}");
        let (code, said) = said(output(runtime, &["status", "--admin-socket", socket]));
        assert!(
            code == Some(0) && said.starts_with("process ") && !said.contains("--admin-socket"),
            "{said}"
        );
    }
    for name in ["one", "two"] {
        let (code, said) = said(output(runtime, &["upgrade", name, "--force"]));
        assert!(code == Some(0) && said.starts_with(&format!("{name} was stopped and started")), "{said}");
    }
    let (code, several) = said(output(runtime, &["upgrade", "--force"]));
    assert_eq!(code, Some(2), "{several}");
    for (_, socket) in
        several.match_indices("--admin-socket ").map(|(at, flag)| several.split_at(at + flag.len()))
    {
        let socket = socket.split([',', '\n']).next().unwrap();
        let (code, said) = said(output(runtime, &["upgrade", "--force", "--admin-socket", socket]));
        assert!(code == Some(0) && said.contains("was stopped and started"), "{said}");
    }
    assert_eq!(several.matches("--admin-socket ").count(), 2, "{several}");
    // One that is killed leaves its socket behind, which goes; those of the others stay.
    drop(all.remove(0));
    eventually("what the killed one has left stays", || {
        let answers = status(runtime).len();
        let sockets = std::fs::read_dir(runtime.join("outlast")).unwrap().count();
        assert!(answers >= 3 && sockets >= 3, "{answers} answers from {sockets} sockets");
        (sockets == 3).then_some(())
    });
    for process in [&mut all[0], &mut listener, &mut connector] {
        assert!(!process.said_so_far().contains("admin socket"), "{}", process.said_so_far());
    }
}

#[test]
fn a_container_that_is_killed_again_and_again_leaves_one_socket() {
    if !is_root() {
        return;
    }
    let folder = folder();
    for _ in 0..3 {
        let mut listener = contained(folder.path(), &["listen", "127.0.0.1:0", "--to", "127.0.0.1:1"]);
        listener.address();
        let socket = admin_socket(folder.path(), 2);
        listener.signal("KILL");
        listener.ended();
        // The container ends a moment later than the process that was killed.
        eventually("it still listens", || UnixStream::connect(&socket).is_err().then_some(()));
        let own = folder.path().join("outlast");
        assert_eq!(std::fs::read_dir(own).unwrap().count(), 1);
    }
}

/// Whoever has removed the file and listens there now keeps it.
#[test]
fn a_socket_in_the_place_of_its_own_is_left_alone() {
    let folder = folder();
    let path = folder.path().join("admin");
    let listen = ["listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--admin-socket", path.to_str().unwrap()];
    let mut first = Outlast::start(folder.path(), &listen);
    first.address();
    std::fs::remove_file(&path).unwrap();
    let mut second = Outlast::start(folder.path(), &listen);
    second.address();
    first.signal("TERM");
    assert!(first.ended().success());
    let (code, said) = said(output(folder.path(), &["status", "--admin-socket", path.to_str().unwrap()]));
    assert!(code == Some(0) && said.contains(&format!("process {}", second.pid())), "{said}");
}
