//! Real kernels, real breakages: two hosts, three sessions at a time (streaming both ways, ping-pong, mostly idle), links
//! broken in every way at random instants. Every byte is checked; nothing hangs; no descriptor, thread or memory is
//! left behind.
//!
//! `OUTLAST_BREAKAGES` is the number of breakages of the whole matrix (default 350), `OUTLAST_SEED` the seed,
//! `OUTLAST_ONLY` a filter on names such as `threads/kernel/reset both`. With `RUST_LOG` the programs say what they do.
// A failed expectation is the message.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod certificates;
mod child;
mod leaks;
mod pattern;
mod program;
mod relays;
mod scene;

use outlast_stream::SplitMix64;
use program::Program;
use scene::{Between, Scene, Step, Way};
use std::time::Instant;

const PORT: u16 = 7000;
/// Breakages of the whole matrix unless told otherwise.
const BREAKAGES: usize = 350;
/// One in so many is made behind a NAT.
const NAT_PART: usize = 5;

/// Not a test: the program of either host, started by the tests below.
#[test]
fn child_program() {
    let Ok(role) = std::env::var("OUTLAST_CHILD") else { return };
    let address = std::env::var("OUTLAST_ADDRESS").unwrap();
    let settings = std::env::var("OUTLAST_SETTINGS").unwrap();
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init().ok();
    }
    // A panic in any thread has to end the program: the parent waits for it.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        std::process::exit(101);
    }));
    match role.as_str() {
        "threads-server" => child::threads::server(&address, &settings),
        "threads-client" => child::threads::client(&address, &settings),
        "tasks-server" => child::tasks::server(&address, &settings),
        "tasks-client" => child::tasks::client(&address, &settings),
        other => panic!("no role {other}"),
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// One cell of the matrix: a shell, an acknowledgement mode and a security.
struct Cell {
    name: String,
    shell: &'static str,
    server: String,
    client: String,
}

impl Cell {
    /// The three sessions, while what is between the hosts breaks `count` times.
    fn run(&self, between: Between, count: usize, seed: u64) -> usize {
        let only = std::env::var("OUTLAST_ONLY").unwrap_or_default();
        let wanted = |way: &&Way| format!("{}/{}", self.name, way.name).contains(&only);
        let ways: Vec<Way> = between.ways().iter().filter(wanted).copied().collect();
        let steps = scene::plan(&ways, count, &mut SplitMix64::new(seed));
        if steps.is_empty() {
            return 0;
        }
        let what = format!("{}/{between:?} seed {seed}", self.name);
        let scene = Scene::new(between);
        let address = scene.server.socket_addr(PORT).to_string();
        let mut server =
            Program::start(&scene.server, &format!("{}-server", self.shell), &address, &self.server);
        server.wait_for("READY", &what);
        let mut client =
            Program::start(&scene.client, &format!("{}-client", self.shell), &address, &self.client);
        client.wait_for("READY", &what);
        let target = scene.target(&client.process, &server.process);
        for Step { after, way, lasts } in &steps {
            std::thread::sleep(*after);
            if std::env::var_os("RUST_LOG").is_some() {
                eprintln!("BREAK {} for {lasts:?}", way.name);
            }
            let injected =
                way.fault.inject(&target).unwrap_or_else(|error| panic!("{what}: {}: {error}", way.name));
            std::thread::sleep(*lasts);
            injected.heal().unwrap_or_else(|error| panic!("{what}: {}: {error}", way.name));
        }
        client.stop();
        let said = client.wait_for("DONE", &what);
        server.stop();
        let held = server.wait_for("DONE", &what);
        let reports: Vec<&str> = said.iter().filter_map(|line| line.split("REPORT ").nth(1)).collect();
        assert_eq!(reports.len(), 3, "{what}: {said:?}");
        let held = said.iter().chain(&held).filter_map(|line| line.split("HELD ").nth(1));
        println!(
            "{what}: {} breakages; {}; {}",
            steps.len(),
            reports.join("; "),
            held.collect::<Vec<_>>().join("; ")
        );
        steps.len()
    }
}

/// All of a cell; both places at the same time.
fn run(shell: &'static str, ack: &str, security: &str) {
    let total = from_environment("OUTLAST_BREAKAGES").map_or(BREAKAGES, |count| count as usize);
    let seed = from_environment("OUTLAST_SEED").unwrap_or(1);
    let count = total.div_ceil(CELLS);
    let behind_nat = count / NAT_PART;
    let folder = certificates::Folder::new(&format!("{shell}-{ack}-{security}"));
    let suffix = match security {
        "open" => String::new(),
        "tls" => format!(" tls {}", folder.path().display()),
        other => format!(" {other}"),
    };
    let name =
        if security == "open" { format!("{shell}/{ack}") } else { format!("{shell}/{ack}-{security}") };
    let cell = Cell { name, shell, server: format!("auto{suffix}"), client: format!("{ack}{suffix}") };
    let began = Instant::now();
    let breakages = std::thread::scope(|scope| {
        let nat = scope.spawn(|| cell.run(Between::Nat, behind_nat, seed));
        cell.run(Between::Router, count - behind_nat, seed) + nat.join().unwrap()
    });
    println!("{}: {breakages} breakages in {:.1?}", cell.name, began.elapsed());
}

macro_rules! matrix {
    ($($test:ident: $shell:literal, $ack:literal, $security:literal;)*) => {
        const CELLS: usize = [$($ack),*].len();
        $(
            #[test]
            fn $test() {
                outlast_lab::require!();
                run($shell, $ack, $security);
            }
        )*
    };
}

matrix! {
    threads_kernel: "threads", "kernel", "open";
    threads_window: "threads", "window", "open";
    threads_udp: "threads", "udp", "open";
    threads_inband: "threads", "inband", "open";
    threads_auto_psk: "threads", "auto", "psk";
    threads_tls: "threads", "auto", "tls";
    tasks_auto: "tasks", "auto", "open";
    tasks_kernel: "tasks", "kernel", "open";
    tasks_window: "tasks", "window", "open";
    tasks_udp: "tasks", "udp", "open";
    tasks_inband: "tasks", "inband", "open";
    tasks_udp_psk: "tasks", "udp", "psk";
    tasks_auto_psk: "tasks", "auto", "psk";
    tasks_tls: "tasks", "auto", "tls";
}
