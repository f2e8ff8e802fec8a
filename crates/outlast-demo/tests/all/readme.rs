//! The shell examples of the README, run as they stand on two hosts of a lab, with a real sshd and a real nginx.
//!
//! `outlast listen` goes on the host `server`, everything else on the host `client`. What listens goes on; everything
//! else has to end well. While a shell is open through a session, the connection below it is reset.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is the message"
)]

use crate::common::Field;
use outlast_lab::{Fault, Process, Target, Told};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const README: &str = include_str!("../../../../README.md");

/// The blocks in a language.
fn blocks(language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut rest = README;
    while let Some((_, after)) = rest.split_once("```") {
        let (body, after) = after.split_once("```").expect("a block without an end");
        let (tag, body) = body.split_once('\n').unwrap();
        if tag == language {
            blocks.push(body.to_owned());
        }
        rest = after;
    }
    blocks
}

#[test]
fn shell_examples_work_as_they_stand() {
    outlast_lab::require!();
    let field = Field::build("readme");
    std::fs::create_dir_all(field.path("run")).unwrap();
    let mut run = Run { field: &field, listening: HashMap::new(), shells: 0, ran: 0 };
    let blocks = blocks("sh");
    let lines = blocks.iter().flat_map(|block| block.lines());
    for line in lines.filter(|line| !line.starts_with("make ") && !line.is_empty()) {
        run.line(line);
    }
    assert_eq!(run.shells, 2, "the README has two ways to open a shell");
    assert!(run.ran > 12, "the README has lost its examples");
}

#[test]
fn the_configuration_file_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = blocks("toml");
    assert!(!blocks.is_empty());
    for block in blocks {
        let file = folder.path().join("outlast.toml");
        std::fs::write(&file, block).unwrap();
        // The program that it runs.
        std::os::unix::fs::symlink("/bin/true", folder.path().join("server")).unwrap();
        let checked = std::process::Command::new(crate::common::outlast())
            .args(["config", "check"])
            .arg(&file)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn the_exit_codes_are_those_of_the_program() {
    let help = std::process::Command::new(crate::common::outlast()).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, codes) = help.split_once("Exit codes:").unwrap();
    for line in codes.lines().filter(|line| line.trim().starts_with(|first: char| first.is_ascii_digit())) {
        let (code, meaning) = line.trim().split_once(' ').unwrap();
        let row = format!("| {code} | {} |", meaning.trim());
        assert!(README.contains(&row), "the README lacks {row:?}");
    }
}

/// What is running, and what comes next.
struct Run<'a> {
    field: &'a Field,
    /// By host and address: an example that uses an address again replaces the one before.
    listening: HashMap<(String, String), Process>,
    shells: usize,
    ran: usize,
}

impl Run<'_> {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.ran += 1;
        match words.as_slice() {
            ["outlast", "listen", address, ..] => self.start("server", address, line),
            ["outlast", "connect", address, ..] if !address.starts_with('-') => {
                self.start("client", address, line)
            }
            ["outlast", "connect", _, address, ..] => self.start("client", address, line),
            ["outlast", "run", .., port] => self.start("server", &format!("0.0.0.0:{port}"), line),
            ["outlast", "hold", path] => self.start("server", &format!("unix:{path}"), line),
            ["ssh", ..] => self.shell(line),
            _ => self.until_it_ends(line),
        }
    }

    /// Starts what listens, and waits until it does.
    fn start(&mut self, host: &str, address: &str, line: &str) {
        let key = (host.to_owned(), address.to_owned());
        if let Some(before) = self.listening.remove(&key) {
            before.kill();
        }
        let host = if host == "server" { &self.field.server } else { &self.field.client };
        let mut command = self.field.shell(host, &format!("exec {line}"));
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        match address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()) {
            Some(port) => {
                let listens = host.wait_for_listener(Some(port), Duration::from_secs(20)).unwrap();
                assert!(listens, "nobody listens after: {line}");
            }
            None => {
                let path = self.field.path(address.strip_prefix("unix:").unwrap());
                assert!(crate::common::wait_until(|| path.exists()), "no socket after: {line}");
            }
        }
        assert!(process.try_wait().unwrap().is_none(), "it has ended: {line}");
        self.listening.insert(key, process);
    }

    /// Opens a shell, breaks the link below it, and goes on typing.
    fn shell(&mut self, line: &str) {
        self.shells += 1;
        let field = self.field;
        let mut command = field.shell(&field.client, &format!("exec {line}"));
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut typing = process.take_stdin().unwrap();
        let mut lines = BufReader::new(process.take_stdout().unwrap()).lines();
        let mut ask = |word: &str| {
            writeln!(typing, "echo {word}").unwrap();
            let answer = lines.find(|line| line.as_ref().is_ok_and(|line| line == word));
            assert!(answer.is_some(), "the shell has ended before {word}: {line}");
        };
        ask("before");
        let target = Target::new(&field.link).with_port(7000);
        for told in [Told::Both, Told::Only(outlast_lab::Side::Server), Told::Only(outlast_lab::Side::Client)]
        {
            Fault::Reset(told).inject(&target).unwrap().heal().unwrap();
            ask("after");
        }
        drop(typing);
        assert!(process.wait().unwrap().success(), "{line}");
    }

    fn until_it_ends(&self, line: &str) {
        let field = self.field;
        let output = field.shell(&field.client, line).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        if line.starts_with("curl") {
            assert!(!output.stdout.is_empty(), "no answer: {line}: {said}");
        }
    }
}

/// For the blocks that name files.
#[test]
fn files_that_the_readme_names_exist() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for (_, after) in README.match_indices("](").map(|(at, _)| README.split_at(at + 2)) {
        let (name, _) = after.split_once(')').unwrap();
        assert!(name.contains("://") || root.join(name).exists(), "{name}");
    }
}
