//! A program of `child.rs` on a host, as the test sees it.

use outlast_lab::{Host, Process};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A program that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Program {
    role: String,
    pub process: Process,
    lines: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
    stdin: ChildStdin,
}

impl Program {
    /// `settings` as `child::config` reads them.
    pub fn start(host: &Host, role: &str, address: &str, settings: &str) -> Self {
        let mut command = host.command(std::env::current_exe().unwrap());
        command
            .args(["breakages::child_program", "--exact", "--nocapture", "--test-threads=1"])
            .env("OUTLAST_CHILD", role)
            .env("OUTLAST_ADDRESS", address)
            .env("OUTLAST_SETTINGS", settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A log is read as it grows.
            .stderr(if std::env::var_os("RUST_LOG").is_some() { Stdio::inherit() } else { Stdio::piped() });
        let process = host.spawn(&mut command).unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = process.take_stdout().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let (sender, stderr) = mpsc::channel();
        if let Some(mut pipe) = process.take_stderr() {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = pipe.read_to_string(&mut text);
                let _ = sender.send(text);
            });
        }
        let stdin = process.take_stdin().unwrap();
        Self { role: role.to_owned(), process, lines, stderr, stdin }
    }

    /// Waits until it says `word`; returns what it said before.
    pub fn wait_for(&self, word: &str, what: &str) -> Vec<String> {
        let mut seen = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(word) => return seen,
                Ok(line) => seen.push(line),
                Err(error) => {
                    let (role, doing) = (&self.role, self.doing());
                    panic!(
                        "{what}: no {word} of {role} ({error}); said {seen:?}\n{doing}\n{}",
                        self.last_words()
                    )
                }
            }
        }
    }

    /// What its threads wait for, and the connections of its host, as far as the kernel says that.
    fn doing(&self) -> String {
        let process = format!("/proc/{}", self.process.id());
        let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
        let tasks = std::fs::read_dir(format!("{process}/task")).into_iter().flatten().flatten();
        let threads = tasks.map(|task| {
            let of = |name: &str| read(task.path().join(name).display().to_string()).trim().to_owned();
            format!("{} {} {}", of("comm"), of("wchan"), of("syscall"))
        });
        let threads: Vec<String> = threads.collect();
        format!(
            "{}\n{}{}",
            threads.join("\n"),
            read(format!("{process}/net/tcp")),
            read(format!("{process}/net/udp"))
        )
    }

    /// Ends it, and gives its standard error.
    pub fn last_words(&self) -> String {
        let _ = self.process.signal(9);
        self.stderr.recv_timeout(Duration::from_secs(2)).unwrap_or_default()
    }

    /// The sessions are to end now (client), or have ended (server): the program says DONE when nothing of them is left.
    pub fn stop(&mut self) {
        // A program that has died says so in a moment.
        let _ = self.stdin.write_all(b"stop\n");
    }
}
