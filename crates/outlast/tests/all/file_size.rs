//! `outlast listen` whose log may not become larger.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{echo, eventually, folder};
use crate::run_preload::free_port;
use std::net::TcpStream;
use std::process::Command;

#[test]
fn a_log_that_may_not_become_larger_ends_nobody() {
    let (folder, address) = (folder(), format!("127.0.0.1:{}", free_port()));
    let script = r#"ulimit -f 0; exec "$0" "$@" 2>"$XDG_RUNTIME_DIR/log""#;
    let mut listen = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_outlast"), "listen", &address, "--to", &echo().to_string()])
        .env("XDG_RUNTIME_DIR", folder.path())
        .env("OUTLAST_LOG", "debug")
        .spawn()
        .unwrap();
    eventually("it does not listen", || TcpStream::connect(&address).ok());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(listen.try_wait().unwrap(), None);
    listen.kill().unwrap();
    listen.wait().unwrap();
}
