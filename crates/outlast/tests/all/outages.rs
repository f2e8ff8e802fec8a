//! What a client that nobody watches says about a path that is gone for a while.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, PATIENCE, curl, echo, folder, output};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The coarsest clock that has a part in it.
const TICK: Duration = Duration::from_millis(50);

/// A path to a server that can be cut, and mended.
struct Path {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: bool,
    streams: Vec<TcpStream>,
}

impl Path {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let mut state = shared.lock().unwrap();
                if state.cut {
                    continue;
                }
                let far = TcpStream::connect(server).unwrap();
                for (mut from, mut to) in [(&near, &far), (&far, &near)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                state.streams.extend([near, far]);
            }
        });
        Self { address, state }
    }

    fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut = true;
        for stream in state.streams.drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn mend(&self) {
        self.state.lock().unwrap().cut = false;
    }
}

/// How long the stream's one session was in a pause, as `status` shows it.
fn paused(runtime: &std::path::Path, role: &str) -> Duration {
    let status: Value = serde_json::from_slice(&output(runtime, &["status", "--json"]).stdout).unwrap();
    let sessions = status.as_array().unwrap().iter().flat_map(|at| at["sessions"].as_array().unwrap());
    let session = sessions.into_iter().find(|session| session["role"] == role).unwrap();
    assert_eq!(session["outages"], 1, "{session:#}");
    Duration::from_millis(session["pause_longest_ms"].as_u64().unwrap())
}

/// And as all sessions of a process have it for Prometheus.
fn paused_for_prometheus(url: &str) -> Duration {
    let page = String::from_utf8(curl(&[url]).stdout).unwrap();
    let sums = page.lines().filter_map(|line| line.strip_prefix("outlast_pause_seconds_total "));
    Duration::from_secs_f64(sums.map(|sum| sum.parse::<f64>().unwrap()).sum())
}

#[test]
fn a_long_outage_is_warned_of_and_so_is_its_end() {
    let folder = folder();
    let metrics = ["--metrics", "127.0.0.1:0"];
    let listen = ["listen", "127.0.0.1:0", "--to", &echo().to_string()];
    let mut server = Outlast::start(folder.path(), &[&listen[..], &metrics].concat());
    let path = Path::to(server.address());
    let via = path.address.to_string();
    let connect = ["connect", "127.0.0.1:0", "--via", &via];
    let mut client = Outlast::start(folder.path(), &[&connect[..], &metrics].concat());
    let mut program = TcpStream::connect(client.address()).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    let urls = [&mut client, &mut server].map(|process| {
        let line = process.wait_for("metrics at");
        line.split("metrics at ").nth(1).unwrap().to_owned()
    });
    let mut answer = [0];
    program.write_all(b"a").unwrap();
    program.read_exact(&mut answer).unwrap();
    let cut_at = Instant::now();
    path.cut();
    let line = client.wait_for("no link for 10");
    assert!(line.contains("WARN session ") && line.contains(&format!(" to {via}: ")), "{line}");
    assert!(line.ends_with("; retrying, nothing is lost"), "{line}");
    let least = cut_at.elapsed();
    path.mend();
    let line = client.wait_for("linked again after 1");
    assert!(line.contains("WARN session ") && line.ends_with(", nothing was lost"), "{line}");
    program.write_all(b"b").unwrap();
    program.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"b");
    let most = cut_at.elapsed();
    // Both ends tell the whole of it, wherever they are asked: from the last byte that has passed.
    for (url, role) in urls.iter().zip(["client", "server"]) {
        for paused in [paused(folder.path(), role), paused_for_prometheus(url)] {
            assert!(
                paused + TICK >= least && paused <= most + TICK,
                "{role}: {paused:?}, not {least:?} to {most:?}"
            );
        }
    }
}
