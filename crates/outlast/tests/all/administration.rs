//! Status, kill, metrics, signals, the configuration file, manual pages and completions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{
    Outlast, PATIENCE, Pair, admin_socket, check_echo, curl, echo, eventually, folder, output, pattern,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A stream through the pair that has carried a byte each way.
fn open(pair: &Pair) -> TcpStream {
    let mut stream = TcpStream::connect(pair.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

fn sessions(runtime: &Path) -> Vec<(u64, String)> {
    let status = output(runtime, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let mut sessions = Vec::new();
    for instance in status.as_array().unwrap() {
        for session in instance["sessions"].as_array().unwrap() {
            sessions.push((instance["pid"].as_u64().unwrap(), session["id"].as_str().unwrap().to_owned()));
        }
    }
    sessions
}

#[test]
fn status_shows_all_instances_and_their_sessions() {
    let folder = folder();
    let runtime = folder.path();
    let nothing = output(runtime, &["status"]);
    assert!(nothing.status.success());
    assert!(String::from_utf8_lossy(&nothing.stdout).starts_with("no outlast instance"));
    assert_eq!(output(runtime, &["status", "--json"]).stdout, b"[]\n");

    let pair = Pair::start(runtime, &echo().to_string(), &[], &[]);
    let _streams = [open(&pair), open(&pair)];
    let found = sessions(runtime);
    for process in [pair.server.pid(), pair.client.pid()] {
        assert_eq!(found.iter().filter(|(pid, _)| *pid == u64::from(process)).count(), 2, "{found:?}");
    }
    let page = String::from_utf8(output(runtime, &["status"]).stdout).unwrap();
    assert!(page.contains("SESSION") && page.contains("server") && page.contains("client"), "{page}");
    assert!(page.contains(&pair.server_address.to_string()), "{page}");
    assert!(!page.contains(&found[0].1), "the page shows a whole secret name:\n{page}");
}

#[test]
fn the_admin_socket_is_ours_alone_and_leaves_with_us() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", "127.0.0.1:1"]);
    server.address();
    let own = folder.path().join("outlast");
    let socket = admin_socket(folder.path(), server.pid());
    assert_eq!(own.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    server.signal("TERM");
    assert!(server.ended().success());
    assert!(!socket.exists() && !own.exists(), "something stays behind");
    assert!(output(folder.path(), &["status"]).status.success());
    assert!(!own.exists(), "asking leaves a folder behind");
}

#[test]
fn a_stopped_instance_is_named_and_the_others_are_shown() {
    let folder = folder();
    let listen = ["listen", "127.0.0.1:0", "--to", "127.0.0.1:1"];
    let mut servers = [(); 3].map(|()| Outlast::start(folder.path(), &listen));
    let addresses = servers.each_mut().map(|server| server.address().to_string());
    for server in &servers[..2] {
        server.freeze();
    }
    let status = output(folder.path(), &["status"]);
    assert_eq!(status.status.code(), Some(7), "{status:?}");
    let (page, said) = (String::from_utf8(status.stdout).unwrap(), String::from_utf8(status.stderr).unwrap());
    assert!(page.contains(&addresses[2]) && !page.contains(&addresses[0]), "{page}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for server in &servers[..2] {
        assert!(
            said.contains(&format!("process {}", server.pid())) && said.contains("does not answer"),
            "{said}"
        );
    }
    let json = output(folder.path(), &["status", "--json"]);
    assert_eq!(json.status.code(), Some(7));
    let answers: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(answers.as_array().map(Vec::len), Some(1));
    let one = output(folder.path(), &["status", &servers[2].pid().to_string()]);
    assert!(one.status.success() && one.stderr.is_empty(), "one that answers is asked for: {one:?}");
    let kill = output(folder.path(), &["kill", "0123"]);
    assert_eq!(kill.status.code(), Some(7), "the session may be where nobody answers: {kill:?}");
    for server in &servers[..2] {
        server.signal("CONT");
    }
    assert!(output(folder.path(), &["status"]).status.success());
}

/// Whoever may not look does not know that there is nothing.
#[test]
fn a_folder_that_cannot_be_read_is_an_error() {
    let folder = folder();
    let own = folder.path().join("outlast");
    std::fs::create_dir(&own).unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let check = |runtime: &Path, why: &str| {
        for arguments in
            [&["status"][..], &["status", "--json"], &["status", "x"], &["kill", "00"], &["upgrade", "x"]]
        {
            let asked = output(runtime, arguments);
            let said = String::from_utf8(asked.stderr).unwrap();
            assert_eq!((asked.status.code(), asked.stdout.len()), (Some(7), 0), "{arguments:?}: {said}");
            assert!(said.contains("cannot look for instances in") && said.contains(why), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    };
    check(folder.path(), "chmod 700 it");
    std::fs::remove_dir(&own).unwrap();
    std::fs::write(&own, "").unwrap();
    check(folder.path(), "it is no folder");
    check(&own, "not a directory");
    assert_eq!(output(&folder.path().join("none"), &["status"]).status.code(), Some(0));
    let none = output(&folder.path().join("none"), &["status", "nobody"]);
    assert_eq!((none.status.code(), none.stdout.len()), (Some(2), 0));
}

#[test]
fn a_socket_of_a_killed_process_is_cleared_away() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", "127.0.0.1:1"]);
    server.address();
    let socket = admin_socket(folder.path(), server.pid());
    server.signal("KILL");
    server.ended();
    assert!(socket.exists());
    assert!(output(folder.path(), &["status"]).status.success());
    assert!(!socket.exists());
}

#[test]
fn the_admin_socket_refuses_what_is_no_request() {
    let folder = folder();
    let path = folder.path().join("admin");
    let at = path.to_str().unwrap();
    let mut server = Outlast::start(
        folder.path(),
        &["listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--admin-socket", at],
    );
    server.address();
    for request in
        [&b"hello\n"[..], b"{\"do\":\"status\",\"x\":1}\n", b"{\"do\":\"explode\"}\n", &[b'x'; 32 << 10]]
    {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(request).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
        let mut answer = String::new();
        // The oversized one may be reset: what it has not read makes that of a close.
        stream.read_to_string(&mut answer).ok();
        assert!(answer.is_empty() || answer.contains("\"error\""), "{answer}");
    }
    assert!(output(folder.path(), &["status", "--admin-socket", at]).status.success());
}

#[test]
fn kill_takes_a_unique_beginning_and_resets_both_ends() {
    let folder = folder();
    let runtime = folder.path();
    let pair = Pair::start(runtime, &echo().to_string(), &[], &[]);
    let mut stream = open(&pair);
    let mut other = open(&pair);
    let id = sessions(runtime).remove(0).1;
    // At least one of the two ends here.
    let killed = output(runtime, &["kill", &id[..12]]);
    assert!(killed.status.success(), "{killed:?}");
    assert_eq!(String::from_utf8_lossy(&killed.stdout), format!("killed {id}\n"));
    let still =
        |stream: &mut TcpStream| stream.write_all(b"y").is_ok() && stream.read_exact(&mut [0]).is_ok();
    let alive = [still(&mut stream), still(&mut other)];
    assert_eq!(alive.iter().filter(|alive| **alive).count(), 1);

    let unknown = output(runtime, &["kill", "0000000000000000000000000000000f"]);
    assert_eq!(unknown.status.code(), Some(2));
    let nonsense = output(runtime, &["kill", "xyz"]);
    assert_eq!(nonsense.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nonsense.stderr).starts_with("outlast: \"xyz\" is no session"));
}

/// Descriptors are for sessions.
#[test]
fn who_asks_for_metrics_gets_few_connections() {
    let folder = folder();
    let mut pair = Pair::start(folder.path(), &echo().to_string(), &["--metrics", "127.0.0.1:0"], &[]);
    let line = pair.server.wait_for("metrics at");
    let address: SocketAddr =
        line.split("http://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap();
    let open = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let before = open(pair.server.pid());
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    eventually("none is taken", || (open(pair.server.pid()) > before + 20).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    let taken = open(pair.server.pid()) - before;
    assert!(taken <= 40, "{taken} of 100 connections");
    drop(silent);
    let mut scrape = TcpStream::connect(address).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("outlast_sessions"), "{answer}");
}

#[test]
fn metrics_are_served_in_the_format_of_prometheus() {
    let folder = folder();
    let mut pair = Pair::start(folder.path(), &echo().to_string(), &["--metrics", "127.0.0.1:0"], &[]);
    let line = pair.server.wait_for("metrics at");
    let url = line.split("metrics at ").nth(1).unwrap().to_owned();
    check_echo(pair.address, 1_000);
    let _stream = open(&pair);
    let page = String::from_utf8(curl(&[&url]).stdout).unwrap();
    for metric in [
        "outlast_build_info{version=",
        "outlast_sessions{",
        "outlast_sessions_opened_total 2",
        "outlast_outages_total 0",
        "outlast_pause_now_seconds 0.0",
        "outlast_pause_seconds_total 0.0",
        "outlast_written_bytes_total ",
        "# UNIT outlast_memory_bytes bytes",
        "# EOF",
    ] {
        assert!(page.contains(metric), "no {metric} in\n{page}");
    }

    // A destination that refuses, and one that has no address.
    let mut server = Outlast::start(
        folder.path(),
        &["listen", "127.0.0.1:0", "--to-any", "--allow-to", "127.0.0.1", "--metrics", "127.0.0.1:0"],
    );
    let via = server.address().to_string();
    let arguments = ["connect", "--socks5", "127.0.0.1:0", "--via", &via, "--metrics", "127.0.0.1:0"];
    let mut client = Outlast::start(folder.path(), &arguments);
    let front = client.address().to_string();
    let asked = [crate::common::nobody().to_string(), "nowhere.invalid".to_owned()];
    for destination in &asked {
        let refused = curl(&["--socks5-hostname", &front, &format!("http://{destination}/")]);
        assert!(!refused.status.success(), "{refused:?}");
    }
    for process in [&mut client, &mut server] {
        let line = process.wait_for("metrics at");
        let url = line.split("metrics at ").nth(1).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = String::from_utf8(curl(&[url]).stdout).unwrap();
            assert!(page.contains("outlast_sessions_opened_total 2"), "{page}");
            if page.contains("outlast_sessions_failed_total 2") {
                break;
            }
            assert!(Instant::now() < deadline, "{line}\n{page}");
        }
    }
}

/// Whoever ends a session first, and how: that is no outage.
#[test]
fn ordinary_ends_are_no_outages() {
    for (server_flags, client_flags) in [(&[][..], &[][..]), (&["--ack", "inband"], &["--ack", "inband"])] {
        let folder = folder();
        let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = service.local_addr().unwrap().to_string();
        let metrics = ["--metrics", "127.0.0.1:0"];
        let mut pair = Pair::start(
            folder.path(),
            &to,
            &[server_flags, &metrics[..]].concat(),
            &[client_flags, &metrics[..]].concat(),
        );
        for round in 0..20 {
            let (mut program, mut served) = crate::common::restarts::both_ends(pair.address, &service);
            let reset = |stream: &std::net::TcpStream| {
                socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
            };
            let ended = match round % 4 {
                0 => {
                    drop(program);
                    served.read(&mut [0])
                }
                1 => {
                    drop(served);
                    program.read(&mut [0])
                }
                2 => {
                    reset(&program);
                    drop(program);
                    served.read(&mut [0])
                }
                _ => {
                    reset(&served);
                    drop(served);
                    program.read(&mut [0])
                }
            };
            assert!(!matches!(ended, Ok(count) if count > 0));
        }
        for process in [&mut pair.client, &mut pair.server] {
            let line = process.wait_for("metrics at");
            let url = line.split("metrics at ").nth(1).unwrap();
            let deadline = Instant::now() + PATIENCE;
            loop {
                let page = String::from_utf8(curl(&[url]).stdout).unwrap();
                assert!(page.contains("outlast_outages_total 0"), "{page}");
                if !page.contains("outlast_sessions{") {
                    // Each has ended in one way or another, whichever side has ended it.
                    let count = |kind: &str| {
                        let name = format!("outlast_sessions_{kind}_total ");
                        let value = page.lines().find_map(|line| line.strip_prefix(&name));
                        value.and_then(|value| value.parse::<u64>().ok()).unwrap()
                    };
                    assert_eq!(count("opened"), 20, "{page}");
                    assert_eq!(count("completed") + count("failed"), 20, "{page}");
                    assert!(count("failed") >= 10, "{page}");
                    break;
                }
                assert!(Instant::now() < deadline, "{page}");
            }
        }
    }
}

#[test]
fn sigterm_lets_sessions_end_and_takes_no_new_ones() {
    let folder = folder();
    let mut pair =
        Pair::start(folder.path(), &echo().to_string(), &["--drain-timeout", "1h"], &["--patience", "1s"]);
    let mut stream = open(&pair);
    pair.server.signal("TERM");
    pair.server.wait_for("draining");
    stream.write_all(b"still carried").unwrap();
    let mut answer = [0; 13];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"still carried");
    let mut late = TcpStream::connect(pair.address).unwrap();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    late.write_all(b"x").ok();
    assert!(late.read_exact(&mut [0]).is_err(), "a new session was taken while draining");
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    assert!(pair.server.ended().success());
}

#[test]
fn who_comes_while_a_listener_drains_waits_for_the_next_one() {
    let folder = folder();
    let (address, service) = (crate::common::nobody().to_string(), echo().to_string());
    let flags = ["listen", &address, "--to", &service, "--drain-timeout", "1h"];
    let mut server = Outlast::start(folder.path(), &flags);
    server.address();
    let mut client = Outlast::start(folder.path(), &["connect", "127.0.0.1:0", "--via", &address]);
    let front = client.address();
    let come = |words: &[u8]| {
        let mut program = TcpStream::connect(front).unwrap();
        program.set_read_timeout(Some(PATIENCE)).unwrap();
        program.write_all(words).unwrap();
        program
    };
    let hear = |program: &mut TcpStream, words: &[u8]| {
        let mut answer = vec![0; words.len()];
        program.read_exact(&mut answer).unwrap();
        assert_eq!(answer, words);
    };
    let mut early = come(b"early");
    hear(&mut early, b"early");
    server.signal("TERM");
    server.wait_for("draining");
    let mut late = come(b"late");
    late.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    let error = late.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "it neither gets in nor is sent away");
    drop(early);
    assert!(server.ended().success());
    let mut next = Outlast::start(folder.path(), &flags);
    next.address();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    hear(&mut late, b"late");
}

#[test]
fn what_was_accepted_is_delivered_when_the_drain_times_out() {
    let folder = folder();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = listener.local_addr().unwrap().to_string();
    let mut pair =
        Pair::start(folder.path(), &service, &["--drain-timeout", "100ms", "--hand-over-timeout", "0s"], &[]);
    let mut program = TcpStream::connect(pair.address).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"x").unwrap();
    let (mut service, _) = listener.accept().unwrap();
    service.read_exact(&mut [0]).unwrap();
    // Enough to be under way everywhere, not so much that somebody has to read for it to be accepted.
    let sent = pattern(100_000);
    service.write_all(&sent).unwrap();
    pair.server.signal("TERM");
    pair.server.wait_for("1 session was still open");
    assert!(pair.server.ended().success());
    let mut received = vec![0; sent.len()];
    program.read_exact(&mut received).unwrap();
    assert!(received == sent);
    let error = program.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "a truncated stream ends with a reset");
}

#[test]
fn ctrl_c_ends_connect_at_once_and_a_second_sigterm_ends_the_drain() {
    let folder = folder();
    let mut pair = Pair::start(folder.path(), &echo().to_string(), &[], &["--drain-timeout", "1h"]);
    let _stream = open(&pair);
    pair.client.signal("INT");
    assert_eq!(pair.client.ended().code(), Some(130));

    let mut pair = Pair::start(folder.path(), &echo().to_string(), &[], &["--drain-timeout", "1h"]);
    let _stream = open(&pair);
    pair.client.signal("TERM");
    pair.client.wait_for("draining");
    pair.client.signal("TERM");
    pair.client.wait_for("1 session was still open");
    assert!(pair.client.ended().success());
}

#[test]
fn one_file_runs_both_ends() {
    let folder = folder();
    let front = folder.path().join("front.sock");
    let file = folder.path().join("outlast.toml");
    let server = crate::common::nobody();
    let text = format!(
        "log = 'info'\n\n[[listen]]\naddress = '{server}'\nto = '{}'\nkeep = '1h'\n\n[[connect]]\naddress = '127.0.0.1:0'\nvia = ['{server}']\n\n[[connect]]\naddress = 'unix:{}'\nvia = ['{server}']\n",
        echo(),
        front.display()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let checked = output(folder.path(), &["config", "check", file]);
    assert_eq!(String::from_utf8_lossy(&checked.stdout), format!("{file}: ok, 1 listen, 2 connect\n"));
    let mut both = Outlast::start(folder.path(), &["--config", file]);
    assert_eq!(both.address(), server);
    let address = both.address();
    both.wait_for("front.sock");
    check_echo(address, 100_000);
    assert!(std::os::unix::net::UnixStream::connect(front).is_ok());
}

#[test]
fn flags_override_the_file() {
    let folder = folder();
    let file = folder.path().join("outlast.toml");
    std::fs::write(&file, format!("[[listen]]\naddress = '127.0.0.1:1'\nto = '{}'\n", echo())).unwrap();
    let arguments = ["listen", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let mut server = Outlast::start(folder.path(), &arguments);
    let via = server.address();
    assert_ne!(via.port(), 1);
    let mut client = Outlast::start(folder.path(), &["connect", "127.0.0.1:0", "--via", &via.to_string()]);
    check_echo(client.address(), 1_000);
}

#[test]
fn manual_pages_and_completions_are_written() {
    let folder = folder();
    let pages = folder.path().join("man");
    assert!(output(folder.path(), &["man", pages.to_str().unwrap()]).status.success());
    for page in [
        "outlast.1",
        "outlast-listen.1",
        "outlast-connect.1",
        "outlast-status.1",
        "outlast-kill.1",
        "outlast-run.1",
        "outlast-upgrade.1",
    ] {
        let text =
            std::fs::read_to_string(pages.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".TH"), "{page}");
        let (_, codes) = text.split_once(".SH \"EXIT STATUS\"").unwrap_or_else(|| panic!("{page}"));
        assert!(codes.contains(".TP\n\\fB130\\fR\ninterrupted\n"), "{page}: {codes}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = output(folder.path(), &["completions", shell]);
        assert!(
            script.status.success() && String::from_utf8_lossy(&script.stdout).contains("outlast"),
            "{shell}"
        );
    }
}
