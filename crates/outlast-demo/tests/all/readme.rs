//! The shell examples of the README and of the guide, run as they stand on two hosts of a lab, with a real sshd and a
//! real nginx.
//!
//! `outlast listen` runs on the host `server`, everything else on the host `client`. Listeners keep running until their
//! page ends; every other command has to succeed. While a shell is open through a session, the connection below it is
//! reset.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is the message"
)]

use crate::common::Field;
use outlast_lab::{Fault, Process, Target, Told};
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

/// Readers stop: what matters has to come before.
const README_LINES_MAX: usize = 150;
const PARAGRAPH_LINES_MAX: usize = 5;

/// A file of the documentation.
struct Page {
    /// Relative to the root of the repository.
    name: PathBuf,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> Page {
    let text = std::fs::read_to_string(root().join(name)).unwrap();
    Page { name: name.into(), text }
}

/// The README, then the guide.
fn pages() -> Vec<Page> {
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    let mut names: Vec<String> =
        docs.map(|file| format!("docs/{}", file.unwrap().file_name().to_str().unwrap())).collect();
    names.sort();
    names.insert(0, "README.md".to_owned());
    names.iter().map(|name| page(name)).collect()
}

/// The blocks of a page in a language.
fn blocks(page: &Page, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut rest = page.text.as_str();
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
    let (mut shells, mut ran) = (0, 0);
    for page in pages() {
        // A page does not need the listeners of another one.
        let mut run = Run { field: &field, listening: HashMap::new(), shells: 0, ran: 0 };
        for block in blocks(&page, "sh") {
            block
                .lines()
                .filter(|line| !line.starts_with("make ") && !line.is_empty())
                .for_each(|line| run.line(line));
        }
        for unit in blocks(&page, "ini") {
            let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/"));
            run.line(&start.expect("a unit starts something").replace("/etc/outlast.key", "outlast.key"));
        }
        (shells, ran) = (shells + run.shells, ran + run.ran);
    }
    assert_eq!(shells, 3, "two ways to open a shell in the README, and one in the guide");
    assert!(ran > 30, "the documentation has lost its examples");
}

/// What stands before a line of the lab: when it happened.
fn without_time(line: &str) -> &str {
    line.strip_prefix('[').and_then(|rest| rest.split_once("s] ")).map_or(line, |(_, what)| what)
}

#[test]
fn the_transcript_is_what_happens() {
    outlast_lab::require!();
    let field = Field::build("transcript");
    std::fs::create_dir_all(field.path("run")).unwrap();
    let transcript = blocks(&page("README.md"), "console").concat();
    let runs: Vec<(&str, Vec<&str>)> = transcript
        .split("$ ")
        .skip(1)
        .map(|run| {
            let mut lines = run.lines();
            // What ssh says of a connection that was reset depends on how it notices.
            let own = |line: &&str| line.starts_with('[') || line.parse::<u32>().is_ok();
            (lines.next().unwrap(), lines.filter(own).map(without_time).collect())
        })
        .collect();
    assert_eq!(runs.len(), 2, "without Outlast, and with it");
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let field = &field;
        let running: Vec<_> = runs
            .iter()
            .map(|(line, _)| scope.spawn(move || field.on_this_machine(line).output().unwrap()))
            .collect();
        running.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for ((line, told), output) in runs.iter().zip(outputs) {
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let happened: BTreeSet<&str> = said.lines().map(without_time).collect();
        for step in told {
            assert!(happened.contains(step), "{step:?} did not happen after: {line}\n{said}");
        }
    }
}

#[test]
fn the_configuration_file_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let blocks: Vec<String> = pages().iter().flat_map(|page| blocks(page, "toml")).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let file = folder.path().join("outlast.toml");
        std::fs::write(&file, block).unwrap();
        // The program that it runs.
        let server = folder.path().join("server");
        if !server.exists() {
            std::os::unix::fs::symlink("/bin/true", server).unwrap();
        }
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
    let operations = page("docs/operations.md").text;
    for line in codes.lines().filter(|line| line.trim().starts_with(|first: char| first.is_ascii_digit())) {
        let (code, meaning) = line.trim().split_once(' ').unwrap();
        let row = format!("| {code} | {} |", meaning.trim());
        assert!(operations.contains(&row), "docs/operations.md lacks {row:?}");
    }
}

#[test]
fn the_readme_is_short_and_so_are_paragraphs() {
    let lines = page("README.md").text.lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines in README.md");
    for page in pages() {
        let (mut in_block, mut length) = (false, 0);
        for (number, line) in page.text.lines().enumerate() {
            in_block ^= line.starts_with("```");
            let begins = |mark: &&str| line.trim_start().starts_with(*mark);
            let is_text = !in_block && !line.is_empty() && !["|", "#", "```"].iter().any(begins);
            let begins_item = ["* ", "- "].iter().any(begins);
            length = if is_text { if begins_item { 1 } else { length + 1 } } else { 0 };
            let limit =
                if page.name.ends_with("relay-preamble.md") { usize::MAX } else { PARAGRAPH_LINES_MAX };
            assert!(length <= limit, "{}:{}: a long paragraph", page.name.display(), number + 1);
        }
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

/// The name by which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let folder = root().join(page.name.parent().unwrap());
        for (at, _) in page.text.match_indices("](") {
            let (link, _) = page.text[at + 2..].split_once(')').unwrap();
            if link.contains("://") {
                continue;
            }
            let (file, part) = link.split_once('#').map_or((link, None), |(file, part)| (file, Some(part)));
            let target = if file.is_empty() { root().join(&page.name) } else { folder.join(file) };
            assert!(target.exists(), "{}: {link}", page.name.display());
            if let Some(part) = part {
                let text = std::fs::read_to_string(target).unwrap();
                let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                let found =
                    headings.map(|line| anchor(line.trim_start_matches('#').trim())).any(|name| name == part);
                assert!(found, "{}: no heading for {link}", page.name.display());
            }
        }
    }
}
