//! MariaDB on every machine, and its own client in a session that is always in a transaction.

use super::report::Tally;
use crate::count::{Going, Pauses};
use anyhow::{Context, Result, bail, ensure};
use outlast_lab::Process;
use outlast_lab::replicas::mariadb::CLIENT_FLAGS;
use outlast_lab::replicas::{Group, Machine, PATIENCE};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Of the portal.
pub const PORT: u16 = 3306;
/// In one transaction.
const ROWS: u64 = 8;
/// What the session remembers, and another one would not.
const SESSION: &str = "SET @basket = 'of this session'";
/// Between two statements.
const BREAK: Duration = Duration::from_millis(15);

/// MariaDB's own client, whose session goes on for long.
pub struct Session {
    process: Process,
    input: ChildStdin,
    lines: Receiver<String>,
    asked: u64,
}

impl Session {
    pub fn open(group: &Group) -> Result<Self> {
        let (address, port) = (group.portal.ip().to_string(), group.portal.port().to_string());
        let (output, both) = std::io::pipe()?;
        let mut command = group.client.command("mariadb");
        command.args(CLIENT_FLAGS).args(["-h", &address, "-P", &port]);
        command.args(["--skip-column-names", "--batch", "--unbuffered", "shop"]);
        command.stdin(Stdio::piped()).stdout(both.try_clone()?).stderr(both);
        let process = command.spawn()?;
        // The ends of this process, or the last line would never come.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let input = process.take_stdin().context("the client reads nothing")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { process, input, lines, asked: 0 })
    }

    /// What is answered to this.
    fn ask(&mut self, sql: &str) -> Result<String> {
        self.asked += 1;
        let end = format!("end of {}", self.asked);
        writeln!(self.input, "{sql}; SELECT '{end}';").context("the client has ended")?;
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line == end => return Ok(said.join(" ")),
                Ok(line) => said.push(line),
                Err(_) => bail!("no answer to {sql:?}: {}", said.join(" ")),
            }
        }
    }

    /// One transaction after the other, until it is over: rows that nobody has, and a sum that goes up with each of them. How many rows there
    /// are to be. `transaction` is the number of the one that has changed something and is not at its end, or 0.
    pub fn work(mut self, tally: &Tally, transaction: &AtomicU64, going: &Going<'_>) -> Result<u64> {
        self.ask("CREATE TABLE orders (n BIGINT NOT NULL); CREATE TABLE total (orders BIGINT NOT NULL)")?;
        self.ask("INSERT INTO total VALUES (0)")?;
        self.ask(SESSION)?;
        let mut rows = 0;
        let mut pauses = Pauses::of(&tally.count);
        while going.on() {
            let done = self.transaction(rows, &mut pauses, tally, transaction);
            if let Err(error) = done {
                tally.count.failed(1);
                return Err(error);
            }
            rows += ROWS;
        }
        // The same session as at the beginning.
        let remembered = self.ask("SELECT @basket")?;
        if remembered != "of this session" {
            tally.count.failed(1);
        }
        writeln!(self.input, "quit")?;
        self.process.wait()?;
        Ok(rows)
    }

    fn transaction(
        &mut self,
        before: u64,
        pauses: &mut Pauses<'_>,
        tally: &Tally,
        transaction: &AtomicU64,
    ) -> Result<()> {
        let mut say = |sql: &str| {
            let answer = self.ask(sql)?;
            pauses.over();
            tally.count.answered();
            std::thread::sleep(BREAK);
            Ok::<_, anyhow::Error>(answer)
        };
        say("START TRANSACTION")?;
        for number in before + 1..=before + ROWS {
            say(&format!("INSERT INTO orders VALUES ({number}); UPDATE total SET orders = orders + 1"))?;
            transaction.store(before / ROWS + 1, Ordering::Relaxed);
            let answer = say("SELECT COUNT(*) FROM orders; SELECT orders FROM total")?;
            let counts: Vec<u64> = answer.split(' ').flat_map(str::parse).collect();
            ensure!(counts.len() == 2, "the answer was {answer:?}");
            counts.into_iter().for_each(|count| tally.compare(number, count));
        }
        transaction.store(0, Ordering::Relaxed);
        say("COMMIT")?;
        Ok(())
    }
}

/// What the server of a machine has: how many rows, how many of them are different, the sum, and a digest of all.
pub fn data(machine: &Machine) -> Result<[String; 2]> {
    let ask = |sql: &str| {
        let socket = format!("--socket={}", machine.folder.join("socket").display());
        let output = Command::new("mariadb")
            .args([
                "--no-defaults",
                "-u",
                "root",
                "--skip-column-names",
                "--batch",
                &socket,
                "shop",
                "-e",
                sql,
            ])
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" "))
    };
    Ok([
        ask("SELECT COUNT(*), COUNT(DISTINCT n), (SELECT orders FROM total) FROM orders")?,
        ask("CHECKSUM TABLE orders, total")?,
    ])
}
