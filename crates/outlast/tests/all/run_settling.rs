//! `outlast run`: when a server that was not changed counts as serving, and which of its processes that is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use crate::common::supervised::{pid, until};
use crate::common::{Outlast, command, folder, output};
use crate::run_preload::{free_port, library};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

const NGINX: &str = "/usr/sbin/nginx";

/// nginx at these ports below `outlast run`, with these options. None where there is none.
fn nginx(folder: &Path, options: &[&str], ports: &[u16], daemon: &str, before: &str) -> Option<Outlast> {
    if !Path::new(NGINX).exists() {
        assert!(std::env::var_os("OUTLAST_REQUIRE_LAB").is_none(), "there is no nginx");
        eprintln!("SKIPPED: nginx is not installed; tools/deps.sh installs it");
        return None;
    }
    let (path, file, script) = (folder.display(), folder.join("nginx.conf"), folder.join("start"));
    let servers: String = ports
        .iter()
        .map(|port| format!("server {{ listen 127.0.0.1:{port}; return 200 here; }}\n"))
        .collect();
    let settings = format!(
        "daemon {daemon}; worker_processes 1; pid {path}/pid; error_log {path}/log;
        events {{ }}
        http {{ access_log off;\n{servers}}}"
    );
    std::fs::write(&file, settings).unwrap();
    let text = format!("#!/bin/sh\n{before}\nexec {NGINX} -e {path}/log -c {}\n", file.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let library = library();
    let run = ["run", "--name", "web", "--preload", "always", "--preload-library", library.to_str().unwrap()];
    let arguments = [&run[..], options, &["--", script.to_str().unwrap()]].concat();
    let mut command = command(folder, &arguments);
    command.env("OUTLAST_LOG", "info").stdout(Stdio::null()).stderr(Stdio::piped());
    Some(Outlast::from(command))
}

fn end(mut outlast: Outlast) {
    outlast.signal("TERM");
    assert!(outlast.ended().code().is_some());
}

/// nginx listens at the first, tries the other one for seconds, and ends.
#[test]
fn a_server_with_one_of_its_addresses_in_use_is_not_ready() {
    let (folder, port) = (folder(), free_port());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [port, taken.local_addr().unwrap().port()];
    let options = ["--intensity", "1"];
    let Some(mut outlast) = nginx(folder.path(), &options, &ports, "off", "") else { return };
    // Started once more, it gets the first one without a bind.
    assert_eq!(outlast.ended().code(), Some(1));
    let said = outlast.said();
    assert!(said.contains("restart 1 of 1") && said.contains("it is not started again"), "{said}");
    assert!(!said.contains("serves") && !said.contains("is ready"), "{said}");
}

/// As soon as the other one is free nginx has it, and serves.
#[test]
fn a_server_that_waits_for_an_address_is_ready_when_it_has_it() {
    let (folder, port) = (folder(), free_port());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [port, taken.local_addr().unwrap().port()];
    let Some(mut outlast) = nginx(folder.path(), &[], &ports, "off", "") else { return };
    let log = folder.path().join("log");
    crate::common::eventually("it does not try", || {
        std::fs::read_to_string(&log).unwrap_or_default().contains("in use").then_some(())
    });
    assert!(!outlast.said_so_far().contains("is ready"));
    drop(taken);
    outlast.wait_for("web: generation 1 serves");
    outlast.wait_for("web is ready");
    for port in ports {
        crate::run_preload::Client::connect(port);
    }
    end(outlast);
}

#[test]
fn a_server_that_goes_into_the_background_serves_in_the_process_there() {
    let (folder, port) = (folder(), free_port());
    let Some(mut outlast) = nginx(folder.path(), &[], &[port], "on", "") else { return };
    for generation in 1..=3u32 {
        outlast.wait_for("web has gone into the background");
        let now =
            until(folder.path(), "serving", |now| now["ready"] == true && now["generation"] == generation);
        let last = now["generations"].as_array().unwrap().last().unwrap();
        assert_eq!((pid(last, "pid"), last["ended_ms"].is_null()), (pid(&now, "main_pid"), true), "{now:#}");
        if generation == 3 {
            break;
        }
        let done = output(folder.path(), &["upgrade"]);
        let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        let main = until(folder.path(), "there", |now| now["ready"] == true);
        let part = format!(
            "generation {} (process {}) serves after {generation}",
            generation + 1,
            pid(&main, "main_pid")
        );
        assert!(told.contains(&part), "not {part}: {told}");
        let past = &main["generations"][generation as usize - 1];
        assert_eq!(past["cause"], "upgrade", "{main:#}");
    }
    end(outlast);
}

/// By sd_notify, before it listens: the generation of before is not the one that serves.
#[test]
fn an_upgrade_to_what_says_too_early_that_it_serves_names_no_old_generation() {
    let (folder, port) = (folder(), free_port());
    let notify = "printf READY=1 | socat -u - UNIX-SENDTO:$NOTIFY_SOCKET; [ ! -e \"$0.waits\" ] || sleep 1";
    let Some(mut outlast) = nginx(folder.path(), &["--notify"], &[port], "off", notify) else { return };
    outlast.wait_for("web: generation 1 serves");
    let old = pid(&until(folder.path(), "ready", |now| now["ready"] == true), "main_pid");
    std::fs::write(folder.path().join("start.waits"), "").unwrap();
    let done = output(folder.path(), &["upgrade"]);
    let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(!told.contains("generation 1"), "{told}");
    assert!(told.contains(&format!("serves after {old}")), "{told}");
    outlast.wait_for("web: generation 2 serves");
    end(outlast);
}

/// Has a helper, which is waited for before the next start. From its second start on it listens when it may.
const WITH_HELPER: &str = r#"
import os, socket, subprocess, sys, time
folder, port = sys.argv[1], int(sys.argv[2])
start = len([name for name in os.listdir(folder) if name.startswith("start")])
open(folder + "/start%d" % start, "w").close()
subprocess.Popen(["/bin/sleep", "600"])
while start and not os.path.exists(folder + "/go%d" % start): time.sleep(0.01)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", port)); s.listen(9)
while True: s.accept()[0].close()
"#;

/// Listens at some ports at once. Accepts nobody, and listens at one port more, when it may.
const SLOW: &str = r#"
import os, socket, sys, threading, time
folder, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
start = len([name for name in os.listdir(folder) if name.startswith("start")])
def listen(port):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port)); s.listen(9)
    return s
first = listen(ports[0])
open(folder + "/start%d" % start, "w").close()
while start and not os.path.exists(folder + "/go%d" % start): time.sleep(0.01)
others = [listen(port) for port in ports[1:]]
while True:
    c = first.accept()[0]
    c.recv(999); c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); c.close()
"#;

fn slow(folder: &Path, ports: &[u16]) -> Outlast {
    let (program, path, library) = (folder.join("program.py"), folder.to_str().unwrap(), library());
    std::fs::write(&program, SLOW).unwrap();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let run = ["run", "--name", "web", "--preload", "always", "--preload-library", library.to_str().unwrap()];
    let python = ["--", "/usr/bin/python3", program.to_str().unwrap(), path];
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    let mut outlast = Outlast::start(folder, &[&run[..], &python, &ports].concat());
    outlast.wait_for("web is ready");
    outlast
}

/// Kills it, and waits until its next start listens at the first port.
fn next_start(folder: &Path, start: u32) {
    let main = pid(&until(folder, "ready", |now| now["ready"] == true), "main_pid");
    crate::run_preload::signal(&main.to_string(), "KILL");
    let file = folder.join(format!("start{start}"));
    crate::common::eventually("it is not started again", || file.exists().then_some(()));
}

/// Tomcat listens first, and then loads its applications for seconds.
#[test]
fn a_server_that_listens_and_accepts_nobody_is_not_ready_while_clients_wait() {
    let (folder, port) = (folder(), free_port());
    let mut outlast = slow(folder.path(), &[port]);
    let main = pid(&until(folder.path(), "ready", |now| now["ready"] == true), "main_pid");
    outlast_lab::process::freeze(main).unwrap();
    // It comes before the kill, and is in the queue.
    let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    (&client).write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    next_start(folder.path(), 1);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let now = crate::common::supervised::status(folder.path());
    assert_eq!((now["ready"].as_bool(), now["generation"].as_u64()), (Some(false), Some(1)), "{now:#}");
    std::fs::write(folder.path().join("go1"), "").unwrap();
    let mut answer = String::new();
    (&client).read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("ok"), "{answer}");
    let line = outlast.wait_for("web: generation 2 serves");
    assert!(line.contains("serves, ") && line.ends_with("after the last one's end (killed)"), "{line}");
    // Where nobody waits, nobody knows how soon a client would be served.
    next_start(folder.path(), 2);
    let line = outlast.wait_for("web: generation 3 serves");
    assert!(line.contains("serves: it has listened again since "), "{line}");
    end(outlast);
}

/// How long it takes is said when it is known.
#[test]
fn a_server_that_counts_as_serving_before_it_has_all_addresses_says_when_it_has() {
    let (folder, ports) = (folder(), [free_port(), free_port()]);
    let mut outlast = slow(folder.path(), &ports);
    next_start(folder.path(), 1);
    let line = outlast.wait_for("web: generation 2 serves");
    assert!(line.ends_with("generation 2 serves"), "{line}");
    std::fs::write(folder.path().join("go1"), "").unwrap();
    outlast.wait_for("web: generation 2 listens at all of its addresses again, ");
    let now = until(folder.path(), "known", |now| now["generations"][1]["pause_ns"].as_u64() > Some(0));
    assert_eq!(now["generations"][1]["pause_until"], "listens", "{now:#}");
    end(outlast);
}

/// What the last start has said of itself is not said of the next one, however long that has to wait for the end of others.
#[test]
fn a_server_whose_helper_ends_late_is_not_ready_before_it_listens() {
    let (folder, port, library) = (folder(), free_port().to_string(), library());
    let (program, path) = (folder.path().join("program.py"), folder.path().to_str().unwrap());
    std::fs::write(&program, WITH_HELPER).unwrap();
    let run = ["run", "--name", "web", "--preload", "always", "--preload-library", library.to_str().unwrap()];
    let python = ["--", "/usr/bin/python3", program.to_str().unwrap(), path, &port];
    let mut outlast = Outlast::start(folder.path(), &[&run[..], &python].concat());
    outlast.wait_for("web is ready");
    let main = pid(&until(folder.path(), "ready", |now| now["ready"] == true), "main_pid");
    crate::run_preload::signal(&main.to_string(), "KILL");
    let begun = |start: u32| {
        let file = folder.path().join(format!("start{start}"));
        crate::common::eventually("it is not started again", || file.exists().then_some(()));
        std::thread::sleep(std::time::Duration::from_millis(300));
    };
    let go = |start: u32| std::fs::write(folder.path().join(format!("go{start}")), "").unwrap();
    begun(1);
    let now = crate::common::supervised::status(folder.path());
    assert_eq!((now["ready"].as_bool(), now["generation"].as_u64()), (Some(false), Some(1)), "{now:#}");
    go(1);
    outlast.wait_for("web: generation 2 serves");
    until(folder.path(), "ready", |now| now["ready"] == true);
    let done = std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| output(folder.path(), &["upgrade"]));
        begun(2);
        assert!(!upgrade.is_finished(), "{:?}", upgrade.join());
        go(2);
        upgrade.join().unwrap()
    });
    let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(told.contains("web is upgraded: generation 3 (process "), "{told}");
    assert_eq!(outlast.said_so_far().matches("web is ready").count(), 3, "{}", outlast.said_so_far());
    end(outlast);
}
