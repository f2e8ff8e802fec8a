//! curl downloads from a server that is killed all the time, and notices nothing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]
#![allow(clippy::print_stdout, clippy::cast_possible_truncation, reason = "a test")]

use crate::common::{Random, Server, number};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const FILES: u64 = 6;
const FILE_BYTES_MAX: u64 = 60 << 20;
const CURLS: usize = 3;

/// All files over one connection.
fn curl(server: &Server, into: &Path) -> Child {
    let mut curl = Command::new("curl");
    // No retries: what fails fails.
    curl.args(["--silent", "--show-error", "--fail", "--no-progress-meter", "--max-time", "120"]);
    curl.args(["--limit-rate", "40M"]);
    for number in 0..FILES {
        curl.arg(format!("http://{}/{number}", server.address));
        curl.arg("--output").arg(into.join(number.to_string()));
    }
    curl.stderr(Stdio::inherit()).spawn().unwrap()
}

#[test]
fn files_arrive_whole_whatever_dies_meanwhile() {
    let folder = std::env::temp_dir().join(format!("outlast-downloads-{}", std::process::id()));
    let files = folder.join("files");
    std::fs::create_dir_all(&files).unwrap();
    let seed = number("OUTLAST_SEED", 1);
    let mut random = Random(seed);
    for number in 0..FILES {
        let length = if number == 0 { FILE_BYTES_MAX } else { random.below(FILE_BYTES_MAX >> (4 * number)) };
        let word = random.below(u64::MAX);
        let content: Vec<u8> =
            (0..length).map(|at| (word.rotate_left((at % 61) as u32) as u8) ^ (at >> 8) as u8).collect();
        std::fs::write(files.join(number.to_string()), content).unwrap();
    }
    let server = Server::start("files", &["127.0.0.1:0", files.to_str().unwrap()]);
    let received: Vec<_> = (0..CURLS).map(|number| folder.join(format!("curl-{number}"))).collect();
    let mut curls: Vec<Child> = received
        .iter()
        .map(|into| {
            std::fs::create_dir(into).unwrap();
            curl(&server, into)
        })
        .collect();
    let crashes =
        server.crash(1000, seed, || curls.iter_mut().all(|curl| curl.try_wait().unwrap().is_some()));
    for (curl, into) in curls.iter_mut().zip(&received) {
        assert!(curl.wait().unwrap().success(), "seed {seed}, {crashes} crashes");
        for number in 0..FILES {
            let name = number.to_string();
            let same = std::fs::read(files.join(&name)).unwrap() == std::fs::read(into.join(&name)).unwrap();
            assert!(same, "seed {seed}: file {name} is another one");
        }
    }
    println!("{crashes} crashes while {CURLS} programs downloaded {FILES} files each");
    assert!(crashes > 20, "too little happens: {crashes} crashes");
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}
