//! A `connect` that is killed: what it leaves is ended at its server, by a process that outlives it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::restarts::{both_ends, ends, is_running, listen};
use crate::common::{Outlast, PATIENCE, command, eventually, folder, nobody, output};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// It takes a few milliseconds. `--keep` is a day, and `--detect` 10 s.
const SOON: Duration = Duration::from_secs(8);

/// A service, and how a client gets there.
struct Scene {
    _server: Outlast,
    server: SocketAddr,
    service: TcpListener,
}

impl Scene {
    fn new(runtime: &Path, flags: &[&str]) -> Self {
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = service.local_addr().unwrap().to_string();
        let address = nobody();
        let _server = listen(runtime, address, &to, flags);
        Self { _server, server: address, service }
    }

    /// `connect`, in a process group of its own.
    fn connect(&self, runtime: &Path, flags: &[&str]) -> (Outlast, SocketAddr) {
        let via = self.server.to_string();
        let arguments = [&["connect", "127.0.0.1:0", "--via", &via], flags].concat();
        let mut command = command(runtime, &arguments);
        command.env("OUTLAST_LOG", "info").stderr(Stdio::piped()).process_group(0);
        let mut client = Outlast::from(command);
        let front = client.address();
        (client, front)
    }
}

/// The watcher of a relay, as it shows itself in `ps`.
fn watcher_of(relay: u32) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line == format!("outlast\0watch-relay\0{relay}\0").as_bytes() && is_running(*pid)
    })
}

/// When it has been started, and has nothing open that is not its own.
pub fn settled_watcher_of(relay: u32) -> u32 {
    eventually("no watcher", || {
        let watcher = watcher_of(relay)?;
        let group = std::fs::read_to_string(format!("/proc/{watcher}/stat")).ok()?;
        let session: u32 = group.rsplit_once(')')?.1.split_whitespace().nth(3)?.parse().ok()?;
        (session == watcher && waits(watcher)).then_some(watcher)
    })
}

/// Whether it sleeps in epoll_wait, which is how it waits.
fn waits(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|files| {
        files.flatten().any(|file| {
            std::fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().contains("eventpoll"))
        })
    })
}

fn kill(signal: &str, target: &str) {
    assert!(Command::new("kill").args([signal, "--", target]).status().unwrap().success());
}

/// Waits for the reset that a service gets when its session has failed.
fn is_reset(stream: &mut TcpStream) -> Duration {
    let started = Instant::now();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    started.elapsed()
}

/// The watcher has its orders before the relay takes its first connection.
#[test]
fn a_client_that_is_killed_as_soon_as_it_has_a_session_leaves_none() {
    let folder = folder();
    let runtime = folder.path();
    let scene = Scene::new(runtime, &[]);
    for round in 0..30 {
        let (client, front) = scene.connect(runtime, &[]);
        let (ended, mut served) = both_ends(front, &scene.service);
        kill("-KILL", &format!("-{}", client.pid()));
        let waited = is_reset(&mut served);
        assert!(waited < SOON, "round {round}: {waited:?}");
        drop(ended);
    }
}

#[test]
fn a_server_hears_at_once_that_its_client_was_killed() {
    let folder = folder();
    let runtime = folder.path();
    let key = runtime.join("key");
    std::fs::write(&key, "8e1fb6d03c52a7794410dfa9ee3c65b2").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let with_key = ["--psk-file", key.to_str().unwrap()];
    let in_band = ["--psk-file", key.to_str().unwrap(), "--ack", "inband"];
    for flags in [&[][..], &with_key, &in_band] {
        let scene = Scene::new(runtime, flags);
        let (mut client, front) = scene.connect(runtime, flags);
        let relay = client.pid();
        let watcher = settled_watcher_of(relay);
        let (ended, ended_served) = both_ends(front, &scene.service);
        drop((ended, ended_served));
        let mut pairs: Vec<_> = (0..3).map(|_| both_ends(front, &scene.service)).collect();
        // The whole group: a terminal's, or a script's.
        kill("-KILL", &format!("-{relay}"));
        for (_, served) in &mut pairs {
            let waited = is_reset(served);
            println!("{flags:?}: {waited:?}");
            assert!(waited < SOON, "{flags:?}: {waited:?}");
        }
        ends(watcher);
        client.ended();
        let said = format!("the relay at the client (process {relay}) was killed, or has crashed");
        // A service hears of it a moment before it is noted.
        let instances = eventually("not all of them are in the status", || {
            let json = output(runtime, &["status", "--json"]);
            let instances: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
            (instances[0]["failures"].as_array()?.len() == 3).then_some(instances)
        });
        let failures = instances[0]["failures"].as_array().unwrap();
        assert!(
            failures.iter().all(|failed| failed["why"].as_str().unwrap().contains(&said)),
            "{failures:?}"
        );
        assert_eq!(instances[0]["sessions"].as_array().unwrap().len(), 0);
        let page = String::from_utf8(output(runtime, &["status"]).stdout).unwrap();
        assert!(page.contains(&said) && page.contains("  ended "), "{page}");
    }
}

#[test]
fn standard_streams_and_tls_have_a_last_word_as_well() {
    let folder = folder();
    let runtime = folder.path();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (certificate, key) = (runtime.join("cert.pem"), runtime.join("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let listening = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let scene = Scene::new(runtime, &listening);
    let via = format!("localhost:{}", scene.server.port());
    // Where the files are is known to the relay only.
    let mut command =
        command(runtime, &["connect", "--stdio", "--via", &via, "--tls", "--tls-ca", "cert.pem"]);
    command.current_dir(runtime).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Outlast::from(command);
    let relay = client.pid();
    let mut typed = client.child().stdin.take().unwrap();
    let mut shown = client.child().stdout.take().unwrap();
    typed.write_all(b"x").unwrap();
    let (mut served, _) = scene.service.accept().unwrap();
    served.read_exact(&mut [0]).unwrap();
    let watcher = settled_watcher_of(relay);
    let links = std::fs::read_dir(format!("/proc/{watcher}/fd")).unwrap().flatten();
    let open: Vec<_> = links.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    assert!(!open.iter().any(|to| to.to_string_lossy().contains("pipe")), "it holds a pipe: {open:?}");
    kill("-KILL", &relay.to_string());
    client.ended();
    // The relay's reader is not held up by who outlives it.
    assert_eq!(shown.read(&mut [0]).unwrap(), 0);
    assert!(is_reset(&mut served) < SOON);
    ends(watcher);
}

#[test]
fn a_watcher_costs_nothing_ends_with_its_relay_and_is_replaced() {
    let folder = folder();
    let runtime = folder.path();
    let scene = Scene::new(runtime, &[]);
    let (mut client, front) = scene.connect(runtime, &[]);
    let relay = client.pid();
    let watcher = settled_watcher_of(relay);
    let switches = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let count = |name: &str| -> u64 {
            status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
        };
        count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:")
    };
    let asleep = eventually("it is busy", || {
        let before = switches(watcher);
        std::thread::sleep(Duration::from_millis(50));
        (switches(watcher) == before).then_some(before)
    });
    for _ in 0..20 {
        drop(both_ends(front, &scene.service));
    }
    // What service managers tell all processes of a service does not concern it.
    assert_eq!(switches(watcher), asleep, "it was woken");
    kill("-TERM", &watcher.to_string());
    eventually("not woken", || (switches(watcher) > asleep).then_some(()));
    assert!(is_running(watcher));
    kill("-KILL", &watcher.to_string());
    let line = client.wait_for("which watches this one, has ended");
    assert!(line.contains("WARN") && line.contains("starting another"), "{line}");
    let next = settled_watcher_of(relay);
    assert_ne!(next, watcher);
    let (_program, mut served) = both_ends(front, &scene.service);
    kill("-KILL", &relay.to_string());
    assert!(is_reset(&mut served) < SOON);
    ends(next);

    // An orderly end leaves nothing to say, and nobody to say it.
    let (mut client, front) = scene.connect(runtime, &[]);
    let watcher = settled_watcher_of(client.pid());
    let (_program, mut served) = both_ends(front, &scene.service);
    client.signal("INT");
    assert_eq!(client.ended().code(), Some(130));
    is_reset(&mut served);
    ends(watcher);
}

/// A service manager tells all processes of a service at once, also one that has just been started.
#[test]
fn what_ends_a_service_never_ends_a_watcher() {
    let folder = folder();
    let scene = Scene::new(folder.path(), &[]);
    let via = scene.server.to_string();
    for _ in 0..5 {
        let mut command = command(folder.path(), &["connect", "127.0.0.1:0", "--via", &via]);
        command.stderr(Stdio::piped());
        let client = Outlast::from(command);
        let name = format!("outlast\0watch-relay\0{}\0", client.pid());
        // From its first moment until it waits.
        eventually("no watcher", || {
            let watcher = children_of(client.pid()).into_iter().find(|pid| {
                std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == name.as_bytes())
            })?;
            let status = std::fs::read_to_string(format!("/proc/{watcher}/status")).unwrap();
            let set = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                u64::from_str_radix(line.trim(), 16).unwrap()
            };
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                let heeded = (set("SigIgn:") | set("SigCgt:")) & (1 << (signal - 1));
                assert_ne!(heeded, 0, "signal {signal} would end it: {status}");
            }
            waits(watcher).then_some(())
        });
    }
}

/// Of all threads.
fn children_of(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

/// A supervisor ends what a dead relay has left before it starts the next one: the last word comes first.
#[test]
fn a_relay_below_a_supervisor_has_a_last_word_too() {
    let folder = folder();
    let runtime = folder.path();
    let scene = Scene::new(runtime, &[]);
    let (via, front) = (scene.server.to_string(), nobody());
    let arguments =
        ["run", "--", env!("CARGO_BIN_EXE_outlast"), "connect", &front.to_string(), "--via", &via];
    let mut supervisor = Outlast::start(runtime, &arguments);
    let relay = || {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", supervisor.pid()));
        children.ok()?.split_whitespace().find_map(|pid| pid.parse().ok())
    };
    let first: u32 = eventually("no relay", relay);
    eventually("nobody listens", || TcpStream::connect(front).ok().map(drop));
    settled_watcher_of(first);
    let (_program, mut served) = both_ends_of_the_last(front, &scene.service);
    kill("-KILL", &first.to_string());
    assert!(is_reset(&mut served) < SOON);
    eventually("not started again", || relay().filter(|pid| *pid != first));
    eventually("nobody listens", || TcpStream::connect(front).ok().map(drop));
    let (_program, _served) = both_ends_of_the_last(front, &scene.service);
    supervisor.signal("TERM");
    supervisor.ended();
}

/// As [`both_ends`], where others may have been accepted before.
pub fn both_ends_of_the_last(front: SocketAddr, service: &TcpListener) -> (TcpStream, TcpStream) {
    let mut program = TcpStream::connect(front).unwrap();
    program.write_all(b"x").unwrap();
    loop {
        let (mut served, _) = service.accept().unwrap();
        served.set_read_timeout(Some(PATIENCE)).unwrap();
        if served.read(&mut [0]).is_ok_and(|count| count == 1) {
            return (program, served);
        }
    }
}
