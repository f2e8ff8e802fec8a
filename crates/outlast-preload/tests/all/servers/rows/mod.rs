//! The servers: how they are started in the foreground, and what they are asked.

mod databases;
mod frameworks;
mod others;
mod runtimes;
mod web;

use super::row::Row;
use std::path::Path;
use std::process::Command;
pub use web::{haproxy_master, nginx};

/// All of them; neighbours are of one kind, so that each third has some of each.
pub fn all() -> Vec<Row> {
    [web::ROWS, frameworks::ROWS, runtimes::ROWS, databases::ROWS, others::ROWS].concat()
}

/// By an interpreter, with a program in a file.
fn script(interpreter: &str, folder: &Path, text: &str) -> Command {
    let file = folder.join("program");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(interpreter);
    command.arg(file);
    command
}

/// A folder with a page.
fn www(folder: &Path) -> std::path::PathBuf {
    let www = folder.join("www");
    std::fs::create_dir_all(&www).unwrap();
    std::fs::write(www.join("index.html"), "hello\n").unwrap();
    www
}

/// A configuration file.
fn config(folder: &Path, text: &str) -> std::path::PathBuf {
    let file = folder.join("config");
    std::fs::write(&file, text).unwrap();
    file
}

/// Has something made before the server begins.
fn made(command: &mut Command) {
    let made = command.output().unwrap();
    assert!(made.status.success(), "{command:?}: {}", String::from_utf8_lossy(&made.stderr));
}

/// A key and a certificate, in one file.
fn certificate(folder: &Path) -> std::path::PathBuf {
    let (key, both) = (folder.join("key.pem"), folder.join("both.pem"));
    let mut openssl = Command::new("openssl");
    openssl
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=a", "-keyout"]);
    made(openssl.arg(&key).arg("-out").arg(&both));
    let both_pem = [std::fs::read(&key).unwrap(), std::fs::read(&both).unwrap()].concat();
    std::fs::write(&both, both_pem).unwrap();
    both
}
