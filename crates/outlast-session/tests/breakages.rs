//! Real kernels, real breakages: two hosts, three sessions at a time, links broken in every way at random instants.
//!
//! `OUTLAST_BREAKAGES` sets how many breakages there are for each combination (default 12), `OUTLAST_SEED` the seed,
//! `OUTLAST_ONLY` a filter on names such as `threads/kernel/reset`.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout
)]

#[path = "breakages/child.rs"]
mod child;
#[path = "breakages/pattern.rs"]
mod pattern;
#[path = "breakages/relays.rs"]
mod relays;

use outlast_lab::{Direction, Fault, Host, Lab, Link, Process, Side, Target, Told, WireSpec};
use outlast_stream::SplitMix64;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
/// A run that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test: the program of either host, started by the tests below.
#[test]
fn child_program() {
    let Ok(role) = std::env::var("OUTLAST_CHILD") else { return };
    let address = std::env::var("OUTLAST_ADDRESS").unwrap();
    let ack = std::env::var("OUTLAST_ACK").unwrap();
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    // A panic in any thread has to end the program: the parent waits for it.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(101);
    }));
    match role.as_str() {
        "threads-server" => child::threads::server(&address, &ack),
        "threads-client" => child::threads::client(&address, &ack),
        "tasks-server" => child::tasks::server(&address, &ack),
        "tasks-client" => child::tasks::client(&address, &ack),
        other => panic!("no role {other}"),
    }
}

struct Child {
    process: Process,
    lines: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
    stdin: Option<std::process::ChildStdin>,
}

impl Child {
    fn start(host: &Host, role: &str, address: &str, ack: &str) -> Self {
        let mut command = host.command(std::env::current_exe().unwrap());
        command
            .args(["child_program", "--exact", "--nocapture", "--test-threads=1"])
            .env("OUTLAST_CHILD", role)
            .env("OUTLAST_ADDRESS", address)
            .env("OUTLAST_ACK", ack)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let process = host.spawn(&mut command).unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = process.take_stdout().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let (sender, stderr) = mpsc::channel();
        let mut pipe = process.take_stderr().unwrap();
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = pipe.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        let stdin = process.take_stdin();
        Self { process, lines, stderr, stdin }
    }

    fn wait_for(&self, word: &str, what: &str) -> Vec<String> {
        let mut seen = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(word) => return seen,
                Ok(line) => seen.push(line),
                Err(error) => {
                    let _ = self.process.signal(9);
                    let stderr = self.stderr.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
                    panic!("{what}: no {word} ({error}); said {seen:?}\n{stderr}");
                }
            }
        }
    }

    fn stop(&mut self) {
        // A client that has died says so in a moment.
        let _ = self.stdin.take().unwrap().write_all(b"stop\n");
    }
}

struct Scene {
    _lab: Lab,
    client: Host,
    server: Host,
    link: Link,
}

impl Scene {
    fn new() -> Self {
        let lab = Lab::new("breakages").unwrap();
        let client = lab.host("client").unwrap();
        let server = lab.host("server").unwrap();
        let spec =
            WireSpec { delay: Duration::from_micros(300), ..WireSpec::default() }.with_rate(40_000_000);
        let link = lab.wire(&client, &server, spec).unwrap();
        Self { _lab: lab, client, server, link }
    }
}

fn faults() -> Vec<(&'static str, Fault, (u64, u64))> {
    vec![
        ("reset both", Fault::Reset(Told::Both), (0, 0)),
        ("reset client", Fault::Reset(Told::Only(Side::Client)), (0, 0)),
        ("reset server", Fault::Reset(Told::Only(Side::Server)), (0, 0)),
        ("drop both", Fault::Drop(None), (100, 1300)),
        ("drop up", Fault::Drop(Some(Direction::ToServer)), (100, 1300)),
        ("drop down", Fault::Drop(Some(Direction::ToClient)), (100, 1300)),
        ("link down", Fault::LinkDown(Side::Client), (100, 900)),
        ("address", Fault::AddressChange(Side::Client), (0, 0)),
        ("port reset", Fault::PortReset(PORT), (50, 200)),
        ("port closed", Fault::PortClosed(PORT, outlast_lab::Closed::Refuse), (50, 200)),
    ]
}

fn run(shell: &str, ack: &str) -> u64 {
    let count: u64 = std::env::var("OUTLAST_BREAKAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let seed: u64 = std::env::var("OUTLAST_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let only = std::env::var("OUTLAST_ONLY").unwrap_or_default();
    let mut breakages = 0;
    for (index, (name, fault, lasts_ms)) in faults().into_iter().enumerate() {
        let what = format!("{shell}/{ack}/{name} seed {seed}");
        if !what.contains(&only) {
            continue;
        }
        let mut random = SplitMix64::new(seed ^ (index as u64) << 32);
        let scene = Scene::new();
        let address = scene.server.socket_addr(PORT).to_string();
        let server = Child::start(&scene.server, &format!("{shell}-server"), &address, "auto");
        server.wait_for("READY", &what);
        let mut client = Child::start(&scene.client, &format!("{shell}-client"), &address, ack);
        client.wait_for("READY", &what);
        let target = Target::between(&scene.client, &scene.server, &scene.link).with_port(PORT);
        // Faults that take a time-out to be noticed are slow; the others come often.
        let count = if lasts_ms.1 >= 900 { count / 3 + 1 } else { count };
        for _ in 0..count {
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            let injected = fault.inject(&target).unwrap_or_else(|error| panic!("{what}: {error}"));
            std::thread::sleep(Duration::from_millis(lasts_ms.0 + random.below(lasts_ms.1 - lasts_ms.0 + 1)));
            injected.heal().unwrap();
            breakages += 1;
        }
        client.stop();
        let said = client.wait_for("DONE", &what);
        let reports: Vec<&str> = said.iter().filter_map(|line| line.split("REPORT ").nth(1)).collect();
        println!("{what}: {count} breakages; {}", reports.join("; "));
        assert_eq!(reports.len(), 3, "{what}: {said:?}");
    }
    breakages
}

macro_rules! matrix {
    ($($test:ident: $shell:literal, $ack:literal;)*) => {
        $(
            #[test]
            fn $test() {
                outlast_lab::require!();
                let began = Instant::now();
                let breakages = run($shell, $ack);
                println!("{breakages} breakages in {:.1?}", began.elapsed());
            }
        )*
    };
}

matrix! {
    threads_kernel: "threads", "kernel";
    threads_window: "threads", "window";
    threads_udp: "threads", "udp";
    threads_inband: "threads", "inband";
    tasks_auto: "tasks", "auto";
    tasks_kernel: "tasks", "kernel";
    tasks_window: "tasks", "window";
    tasks_udp: "tasks", "udp";
    tasks_inband: "tasks", "inband";
}
