//! Bulk passes the relays without being copied, and is as exact as everything else when links break under it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed expectation is the message of a test; what is skipped is said"
)]

use crate::common::{PATIENCE, Pair, echo, folder, output, pattern};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Set for the run within a network namespace.
const INSIDE: &str = "OUTLAST_SPLICE_TEST_INSIDE";
/// Sent and echoed again and again, until the links have been cut so often.
const BLOCK_BYTES: usize = 8 << 20;
const CUTS: u64 = 40;

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// The largest value of a counter among the sessions that `outlast status` shows.
fn counter(status: &str, name: &str) -> u64 {
    let digits = |rest: &str| rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    status.split(&format!("\"{name}\":")).skip(1).filter_map(digits).max().unwrap_or(0)
}

/// Cuts the links to `port`: a reset of both ends, or of one end whose reset the other never hears of.
fn cut(port: u16, number: u64) {
    let (from, to) = (format!("sport = :{port}"), format!("dport = :{port}"));
    let drop_resets = |add: &str| {
        let port = port.to_string();
        for side in ["--sport", "--dport"] {
            let rule = [add, "OUTPUT", "-p", "tcp", side, &port, "--tcp-flags", "RST", "RST", "-j", "DROP"];
            assert!(succeeds("iptables-legacy", &rule), "{rule:?}");
        }
    };
    match number % 4 {
        0 => assert!(succeeds("ss", &["-K", "-tn", "state", "established", &from])),
        1 => assert!(succeeds("ss", &["-K", "-tn", "state", "established", &to])),
        _ => {
            drop_resets("-I");
            let end = if number % 4 == 2 { &from } else { &to };
            // The client's end goes too, or nobody makes a new link before the time-out.
            assert!(succeeds("ss", &["-K", "-tn", "state", "established", end]));
            assert!(succeeds("ss", &["-K", "-tn", "state", "established", &to]));
            drop_resets("-D");
        }
    }
}

/// The test proper, where it can do to the network what it likes.
#[test]
fn inside() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    assert!(succeeds("ip", &["link", "set", "lo", "up"]));
    let folder = folder();
    let pair = Pair::start(folder.path(), &echo().to_string(), &[], &[]);
    let stream = TcpStream::connect(pair.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (sent, last) = (pattern(BLOCK_BYTES), AtomicBool::new(false));
    // Known before the last block is written, hence before it can have been read.
    let blocks = AtomicU64::new(u64::MAX);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for written in 1.. {
                if last.load(Ordering::Acquire) {
                    blocks.store(written, Ordering::Release);
                }
                (&stream).write_all(&sent).unwrap();
                if blocks.load(Ordering::Relaxed) == written {
                    break;
                }
            }
        });
        scope.spawn(|| {
            let (mut received, mut read) = (vec![0; BLOCK_BYTES], 0);
            while read < blocks.load(Ordering::Acquire) {
                (&stream).read_exact(&mut received).unwrap();
                assert!(received == sent, "block {read} differs");
                read += 1;
            }
        });
        for number in 0..CUTS {
            std::thread::sleep(Duration::from_millis(20 + 37 * (number % 5)));
            cut(pair.server_address.port(), number);
        }
        last.store(true, Ordering::Release);
    });
    let status = String::from_utf8(output(folder.path(), &["status", "--json"]).stdout).unwrap();
    let (spliced_bytes, outages) = (counter(&status, "spliced_bytes"), counter(&status, "outages"));
    eprintln!("{spliced_bytes} bytes spliced, {outages} outages");
    assert!(spliced_bytes > 16 << 20, "{status}");
    assert!(outages >= CUTS / 2, "{status}");
}

#[test]
fn bulk_is_exact_when_links_break_under_it() {
    for (program, arguments) in
        [("unshare", &["--net", "true"][..]), ("iptables-legacy", &["--version"]), ("ss", &["--version"])]
    {
        if !succeeds(program, arguments) {
            assert!(std::env::var_os("CI").is_none(), "{program} does not work here");
            eprintln!("skipped: {program} does not work here (root and the tools of the lab are needed)");
            return;
        }
    }
    let output = Command::new("unshare")
        .args(["--net", "timeout", "150"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "splice::inside", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    eprintln!("{said}");
}
