//! A server that is short of something says so where its operator reads it: which session it has ended for that, once, and
//! which limit keeps newcomers out.
#![allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, PATIENCE, folder};
use crate::strangers::{open, service};
use std::time::{Duration, Instant};

#[test]
fn a_session_that_makes_room_is_one_warning_and_a_newcomer_that_waits_names_the_limit() {
    let folder = folder();
    let service = service().to_string();
    let at_once = ["--drain-timeout", "0s", "--hand-over-timeout", "0s"];
    let listen = ["listen", "127.0.0.1:0", "--to", &service, "--memory", "16M"];
    let mut server = Outlast::start(folder.path(), &[&listen[..], &at_once].concat());
    let address = server.address();
    // Downloads that nobody reads, until there is no memory for another one; then their clients leave.
    let mut standing = Vec::new();
    let mut number = 0;
    loop {
        let (stream, welcomed) = open(1, address, b"d", number);
        number += 1;
        if !welcomed {
            break;
        }
        standing.push(stream);
        assert!(number < 2_000, "{}", server.said_so_far());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(standing);
    let began = Instant::now();
    let line = loop {
        // Only for newcomers somebody has to go.
        open(1, address, b"d", number);
        number += 1;
        let said = server.said_so_far();
        if let Some(line) = said.lines().find(|line| line.contains("session ended to free memory")) {
            break line.to_owned();
        }
        assert!(began.elapsed() < PATIENCE, "{said}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(line.contains("WARN") && line.contains("--memory") && line.contains("peer=\"127.9."), "{line}");
    let session = line.split("session=").nth(1).unwrap().split(' ').next().unwrap();
    server.signal("TERM");
    server.ended();
    let said = server.said();
    let of_session: Vec<&str> = said.lines().filter(|line| line.contains(session)).collect();
    let warnings = of_session.iter().filter(|line| line.contains("WARN")).count();
    assert_eq!(warnings, 1, "{of_session:#?}");
    let turned_away = said.lines().find(|line| line.contains("WARN") && line.contains("no new session"));
    assert!(turned_away.is_some_and(|line| line.contains("--memory")), "{turned_away:?} in {said}");
}
