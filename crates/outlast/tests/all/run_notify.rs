//! What a program that is kept running says of itself, and what a service manager hears.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, command, folder, output};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;

/// As programs say something of themselves.
const NOTIFY: &str = "notify() { printf \"$1\" | socat -u - UNIX-SENDTO:$NOTIFY_SOCKET; }";

/// A service manager, as far as a service sees of it.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
    /// The only process that is heard.
    only: Option<u32>,
}

impl Manager {
    fn listen(folder: &Path) -> Self {
        let socket = UnixDatagram::bind(folder.join("manager")).unwrap();
        socket.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        Self { socket, heard: Vec::new(), only: None }
    }

    fn start(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Outlast {
        let mut command = command(folder, arguments);
        command.env("NOTIFY_SOCKET", folder.join("manager")).envs(variables.iter().copied());
        command.env("OUTLAST_LOG", "info").stderr(Stdio::piped());
        Outlast::from(command)
    }

    fn wait_for(&mut self, wanted: &str) {
        let mut message = [0; 4096];
        while !self.heard.iter().any(|line| line.contains(wanted)) {
            let (count, sender) = outlast_restart::credentials::receive(self.socket.as_fd(), &mut message)
                .unwrap_or_else(|_| panic!("no {wanted}: {:?}", self.heard));
            let by = sender.and_then(|sender| sender.pid).map(i32::cast_unsigned);
            assert!(self.only.is_none() || self.only == by, "said by {by:?}");
            self.heard.extend(String::from_utf8_lossy(&message[..count]).lines().map(str::to_owned));
        }
    }

    fn has_heard(&self, what: &str) -> bool {
        self.heard.iter().any(|line| line == what)
    }
}

#[test]
fn a_service_manager_hears_when_a_program_is_ready_how_it_is_and_that_it_stops() {
    let folder = folder();
    let mut manager = Manager::listen(folder.path());
    let go = folder.path().join("go");
    let script = format!(
        "trap 'exit 0' TERM; {NOTIFY}; notify 'STATUS=warming up'; while [ ! -e {} ]; do sleep 0.01; done; \
         notify READY=1; while :; do sleep 0.01; done",
        go.display()
    );
    let mut outlast = Manager::start(folder.path(), &["run", "--notify", "--", "sh", "-c", &script], &[]);
    manager.wait_for("STATUS=warming up");
    assert!(!manager.has_heard("READY=1"), "ready before it said so");
    std::fs::write(&go, "").unwrap();
    manager.wait_for("READY=1");
    outlast.signal("TERM");
    manager.wait_for("STOPPING=1");
    assert_eq!(outlast.ended().code(), Some(0));
    let left: Vec<_> = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten().collect();
    let socket = format!("outlast-notify-{}-", outlast.pid());
    assert!(
        !left.iter().any(|file| file.file_name().to_string_lossy().starts_with(&socket)),
        "its socket is left"
    );
}

#[test]
fn a_plain_program_is_ready_when_it_was_started_and_a_watchdog_is_kept_quiet() {
    let folder = folder();
    let mut manager = Manager::listen(folder.path());
    let arguments = [
        "run",
        "--preload",
        "never",
        "--",
        "sh",
        "-c",
        "env | grep -c -e NOTIFY_ -e WATCHDOG_ >&2; exec sleep 60",
    ];
    let mut outlast = Manager::start(folder.path(), &arguments, &[("WATCHDOG_USEC", "100000")]);
    manager.wait_for("READY=1");
    for _ in 0..3 {
        manager.heard.clear();
        manager.wait_for("WATCHDOG=1");
    }
    // What is meant for the supervisor is not passed on.
    outlast.wait_for("0");
}

#[test]
fn a_program_that_goes_silent_is_taken_for_a_hang_and_started_again() {
    let folder = folder();
    let mark = folder.path().join("mark");
    let script = format!(
        "{NOTIFY}; [ $WATCHDOG_USEC = 4000000 ] || exit 9; notify READY=1; [ -e {0} ] && exit 0; touch {0}; \
         for i in 1 2 3 4 5 6 7; do sleep 0.7; notify WATCHDOG=1; done; echo silent >&2; exec sleep 600",
        mark.display()
    );
    // Where the machine is busy a second or two pass between two words of it.
    let arguments = ["run", "--notify", "--watchdog", "4s", "--", "sh", "-c", &script];
    let mut outlast = Outlast::start(folder.path(), &arguments);
    outlast.wait_for("silent");
    outlast.wait_for("has sent no WATCHDOG=1 for 4");
    outlast.wait_for("killed by SIGKILL: it is started again");
    assert_eq!(outlast.ended().code(), Some(0));
}

#[test]
fn a_program_that_is_never_ready_is_ended_with_the_documented_code() {
    let folder = folder();
    for flags in [&["--notify"][..], &[]] {
        let arguments =
            [&["run", "--start-timeout", "200ms"], flags, &["--", "sh", "-c", "sleep 600 & wait"]];
        let ran = output(folder.path(), &arguments.concat());
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(8), "{said}");
        assert!(
            said.contains("outlast: sh was not ready within 200 ms (--start-timeout), and is ended"),
            "{said}"
        );
    }
}

/// Others see the socket in /proc/net/unix. What drops its rights may speak, as long as it is below.
/// It hears the process that it has started alone.
#[test]
fn a_service_manager_hears_of_all_sections_of_a_configuration_by_their_parent() {
    let folder = folder();
    let mut manager = Manager::listen(folder.path());
    rustix::net::sockopt::set_socket_passcred(&manager.socket, true).unwrap();
    let (file, go) = (folder.path().join("outlast.toml"), folder.path().join("go"));
    let section = |name: &str, before: &str| {
        let script = format!("{NOTIFY}; {before} notify READY=1; exec sleep 600").replace('\\', "\\\\");
        format!("[[run]]\nname = '{name}'\nnotify = true\nprogram = ['sh', '-c', \"\"\"{script}\"\"\"]\n")
    };
    let waits = format!("while [ ! -e {} ]; do sleep 0.01; done;", go.display());
    let (one, two) = (section("one", &waits), section("two", ""));
    let text = format!("[[listen]]\naddress = '127.0.0.1:0'\nto = '127.0.0.1:9'\n{one}{two}");
    std::fs::write(&file, text).unwrap();
    let variables = [("WATCHDOG_USEC", "400000")];
    let mut outlast = Manager::start(folder.path(), &["--config", file.to_str().unwrap()], &variables);
    manager.only = Some(outlast.pid());
    manager.wait_for("WATCHDOG=1");
    assert!(!manager.has_heard("READY=1"), "{:?}", manager.heard);
    std::fs::write(go, "").unwrap();
    manager.wait_for("READY=1");
    manager.heard.clear();
    manager.wait_for("WATCHDOG=1");
    assert!(!manager.has_heard("READY=1") && !manager.has_heard("STOPPING=1"), "{:?}", manager.heard);
    outlast.signal("TERM");
    manager.wait_for("STOPPING=1");
    assert!(outlast.ended().code().is_some());
    let left = std::fs::read_dir(std::env::temp_dir())
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert_eq!(
        left.filter(|name| name.starts_with(&format!("outlast-notify-{}-", outlast.pid()))).count(),
        0
    );
}

#[test]
fn strangers_are_not_believed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: becoming somebody else needs root");
        return;
    }
    let folder = folder();
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    // It stays until it was looked at.
    let say = format!("(printf READY=1; sleep 0.5) | {nobody} socat -u - UNIX-SENDTO:");
    let script = format!(
        "echo at $NOTIFY_SOCKET >&2; while [ ! -e {}/go ]; do sleep 0.01; done; {say}$NOTIFY_SOCKET; \
         exec sleep 600",
        folder.path().display()
    );
    let mut outlast = Outlast::start(folder.path(), &["run", "--notify", "--", "sh", "-c", &script]);
    let line = outlast.wait_for("at /");
    let socket = line.trim_start_matches("at ").trim();
    let said = std::process::Command::new("sh").args(["-c", &format!("{say}{socket}")]).status().unwrap();
    assert!(said.success());
    outlast.wait_for("that is not believed");
    assert!(!outlast.said_so_far().contains("is ready"));
    // As often as they like: it is said some times.
    let flood = "import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\nfor i in range(3000): s.sendto(b'x', sys.argv[1])";
    let flooded = std::process::Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            flood,
            socket,
        ])
        .status();
    assert!(flooded.unwrap().success());
    std::fs::write(folder.path().join("go"), "").unwrap();
    outlast.wait_for("is ready");
    let said = outlast.said_so_far();
    assert!(said.matches("that is not believed").count() <= 12, "{}", said.lines().count());
    outlast.signal("TERM");
    outlast.ended();
}
