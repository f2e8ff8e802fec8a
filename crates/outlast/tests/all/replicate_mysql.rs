//! `outlast replicate` with MariaDB: its clients, who have passwords, keep their sessions and transactions.

use crate::common::{eventually, eventually_or, folder};
use crate::replicate::{Machines, Node, PATIENCE, SERVER_PORT, take};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};

const PASSWORD: &str = "right";
/// The server takes one in each line.
const ACCOUNTS: &str = "FLUSH PRIVILEGES;
CREATE USER outlast@localhost IDENTIFIED BY 'of nodes';
GRANT SELECT ON mysql.* TO outlast@localhost;
GRANT PROCESS, CONNECTION ADMIN ON *.* TO outlast@localhost;
CREATE USER app@'%' IDENTIFIED BY 'right';
CREATE DATABASE shop;
GRANT ALL ON shop.* TO app@'%';
";

/// The data of a server that nobody has used, with accounts.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<tempfile::TempDir> = OnceLock::new();
    TEMPLATE
        .get_or_init(|| {
            let folder = folder();
            let data = format!("--datadir={}", folder.path().join("data").display());
            let all = ["--no-defaults", "--user=root", "--innodb-log-file-size=4M"];
            let install = Command::new("mariadb-install-db")
                .args(all)
                .args([&data, "--auth-root-authentication-method=normal", "--skip-test-db"])
                .output()
                .unwrap();
            assert!(install.status.success(), "{install:?}");
            let mut bootstrap = Command::new("mariadbd")
                .args(all)
                .args([&data, "--bootstrap"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            bootstrap.stdin.take().unwrap().write_all(ACCOUNTS.as_bytes()).unwrap();
            assert!(bootstrap.wait().unwrap().success());
            folder
        })
        .path()
}

/// Machines whose servers are MariaDB.
pub struct Databases(Machines);

impl Databases {
    pub fn new(name: &str) -> Option<Self> {
        Self::with(name, "")
    }

    /// With more lines in the list of nodes.
    fn with(name: &str, lines: &str) -> Option<Self> {
        let machines = Machines::new(name, 3, 0)?;
        let list = std::fs::read_to_string(&machines.file).unwrap();
        let protocol = format!("protocol = \"mysql\"\nclock = \"order\"\n{lines}");
        let list = list.replace("protocol = \"redis\"", &protocol);
        std::fs::write(&machines.file, list).unwrap();
        for name in ["a", "b", "c"] {
            let folder = machines.folder(name);
            let copied =
                Command::new("cp").arg("-a").arg(template().join("data")).arg(folder).status().unwrap();
            assert!(copied.success());
            std::fs::write(folder.join("password"), "of nodes\n").unwrap();
        }
        Some(Self(machines))
    }

    fn start(&self, name: &str) -> Node {
        let folder = self.0.folder(name).display().to_string();
        let library = std::env::current_exe().unwrap().with_file_name("liboutlast_clock.so");
        let (password, port) = (format!("{folder}/password"), format!("--port={SERVER_PORT}"));
        // A server that starts takes files away that look like temporary ones of its own, from all that share the folder.
        let temporary = format!("--tmpdir={folder}");
        let (data, socket) = (format!("--datadir={folder}/data"), format!("--socket={folder}/socket"));
        let program = [
            "mariadbd",
            "--no-defaults",
            "--user=root",
            "--bind-address=127.0.0.1",
            "--innodb-log-file-size=4M",
            "--innodb-lock-wait-timeout=100000000",
            "--innodb-flush-log-at-trx-commit=0",
            &port,
            &data,
            &socket,
            &temporary,
        ];
        let flags = ["--server-password-file", &password, "--clock-library", library.to_str().unwrap()];
        self.0.start_with(name, &flags, &program)
    }

    pub fn start_all(&self) -> Vec<Node> {
        let mut nodes = ["a", "b", "c"].map(|name| self.start(name));
        for node in &mut nodes {
            node.outlast.wait_for("view 1: ");
        }
        nodes.into()
    }

    fn command(&self, password: &str) -> Command {
        let (address, port) = (self.0.portal.ip().to_string(), self.0.portal.port().to_string());
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            self.0.client.namespace(),
            "mariadb",
            "--no-defaults",
            "-h",
            &address,
            "-P",
            &port,
        ]);
        command.args([
            "-u",
            "app",
            &format!("-p{password}"),
            "--skip-column-names",
            "--batch",
            "--unbuffered",
            "--force",
            "shop",
        ]);
        command
    }

    pub fn machines(&self) -> &Machines {
        &self.0
    }

    pub fn client(&self) -> Client {
        Client::new(self.command(PASSWORD))
    }

    /// What the server of this machine has, asked past the portal.
    fn has(&self, name: &str, sql: &str) -> String {
        let socket = self.0.folder(name).join("socket");
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "-u", "root", "--skip-column-names", "--batch", "shop", "-e", sql]);
        let output = command.arg(format!("--socket={}", socket.display())).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().replace('\n', " ")
    }
}

/// A database's own client, which goes on for long.
pub struct Client {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    asked: u32,
}

impl Client {
    pub fn new(mut command: Command) -> Self {
        // Errors come in one pipe with what is behind them.
        let (output, both) = std::io::pipe().unwrap();
        command.stdin(Stdio::piped()).stdout(both.try_clone().unwrap()).stderr(both);
        let mut process = command.spawn().unwrap();
        drop(command);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let input = process.stdin.take().unwrap();
        Self { process, input, lines, asked: 0 }
    }

    /// Says this, and hears nothing yet.
    pub fn say(&mut self, sql: &str) {
        self.asked += 1;
        writeln!(self.input, "{sql}; SELECT 'end of {}';", self.asked).unwrap();
    }

    /// All that is answered to that.
    pub fn hear(&mut self) -> String {
        let end = format!("end of {}", self.asked);
        let mut said = Vec::new();
        loop {
            let line =
                self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{error} after {said:?}"));
            if line == end {
                return said.join(" ");
            }
            said.push(line);
        }
    }

    pub fn ask(&mut self, sql: &str) -> String {
        self.say(sql);
        self.hear()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Each counts in a row of its own, and looks at each answer.
struct Counting {
    ends: Arc<AtomicBool>,
    total: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<u64>>,
}

impl Counting {
    fn start(databases: &Databases, count: u32) -> Self {
        let (ends, total) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..count).map(|number| {
            let (mut client, ends, total) = (databases.client(), ends.clone(), total.clone());
            std::thread::spawn(move || {
                client.ask(&format!("INSERT INTO counters VALUES ({number}, 0)"));
                let mut at = 0;
                while !ends.load(Ordering::Relaxed) {
                    at += 1;
                    let update = format!("UPDATE counters SET n = n + 1 WHERE id = {number}");
                    let said = client.ask(&format!("{update}; SELECT n FROM counters WHERE id = {number}"));
                    // Neither lost nor done twice.
                    assert_eq!(said, at.to_string());
                    total.fetch_add(1, Ordering::Relaxed);
                }
                at
            })
        });
        Self { threads: threads.collect(), ends, total }
    }

    fn go_on(&self) {
        let before = self.total.load(Ordering::Relaxed);
        eventually("nothing goes on", || (self.total.load(Ordering::Relaxed) > before + 50).then_some(()));
    }

    fn end(self) -> Vec<u64> {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

#[test]
fn clients_with_passwords_keep_their_sessions_and_transactions_when_the_primary_dies() {
    let Some(databases) = Databases::new("mysql") else { return };
    let machines = &databases.0;
    let mut nodes = databases.start_all();
    let wrong = databases.command("wrong").arg("-e").arg("SELECT 1").output().unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("Access denied for user 'app'"), "{wrong:?}");
    let mut client = databases.client();
    assert_eq!(client.ask("CREATE TABLE counters (id INT PRIMARY KEY, n INT)"), "");
    client.ask("CREATE TABLE notes (id INT AUTO_INCREMENT PRIMARY KEY, text VARCHAR(100), at DATETIME(6))");
    let counting = Counting::start(&databases, 2);
    counting.go_on();
    // What a session has: a transaction, a variable, a table of its own, a prepared statement.
    client.ask("SET @kept = 'kept'; CREATE TEMPORARY TABLE own (a INT); INSERT INTO own VALUES (7)");
    client.ask("PREPARE add_note FROM 'INSERT INTO notes (text, at) VALUES (?, NOW(6))'");
    client.ask("BEGIN; INSERT INTO notes (text, at) VALUES ('before', NOW(6))");
    // Another client waits for a row that the first one has: all others go on, and it is answered later.
    client.ask("INSERT INTO counters VALUES (99, 0)");
    let mut other = databases.client();
    other.say("UPDATE counters SET n = n + 1 WHERE id = 99; SELECT 'done', n FROM counters WHERE id = 99");
    counting.go_on();
    let primary = machines.primary(&["a", "b", "c"]);
    drop(take(&mut nodes, &primary));
    counting.go_on();
    assert_eq!(client.ask("EXECUTE add_note USING @kept; SELECT a FROM own; COMMIT"), "7");
    assert_eq!(other.hear(), "done\t1");
    assert_eq!(client.ask("SELECT text FROM notes ORDER BY id"), "before kept");
    assert_eq!(client.ask("SELECT COUNT(*) FROM notes"), "2");
    let said = client.ask("INSERT INTO notes (text) VALUES (UUID())");
    assert!(said.contains("outlast refuses"), "{said}");
    let said = client.ask("KILL 5");
    assert!(said.contains("outlast refuses"), "{said}");
    counting.go_on();
    let counts = counting.end();
    let members: Vec<&str> = ["a", "b", "c"]
        .into_iter()
        .filter(|name| ["backup", "primary, serves clients"].contains(&machines.role(name).as_str()))
        .collect();
    assert_eq!(members.len(), 2, "{members:?}");
    for name in &members {
        for (number, count) in counts.iter().enumerate() {
            let sql = format!("SELECT n FROM counters WHERE id = {number}");
            eventually_or(
                || (databases.has(name, &sql) == count.to_string()).then_some(()),
                || format!("{name} has {}, not {count}", databases.has(name, &sql)),
            );
        }
    }
    // To the byte, times of the day included.
    let all = "CHECKSUM TABLE counters, notes; SELECT * FROM notes";
    assert_eq!(databases.has(members[0], all), databases.has(members[1], all));
    let (_, why) = machines.ask(members[0], &["why"]);
    assert!(!why.contains("otherwise"), "{why}");
}

#[test]
fn a_database_whose_data_were_changed_by_hand_is_found_at_the_first_answer_that_differs() {
    let Some(databases) = Databases::with("mysql-differs", "lock_wait_timeout = \"1s\"\n") else { return };
    let machines = &databases.0;
    let _nodes = databases.start_all();
    let mut client = databases.client();
    client.ask(
        "CREATE TABLE names (id INT PRIMARY KEY, name VARCHAR(20)); INSERT INTO names VALUES (1, 'right')",
    );
    // One waits for a row at the servers, another one at the nodes: both for a second.
    client.ask("CREATE TABLE hot (id INT PRIMARY KEY, n INT); INSERT INTO hot VALUES (1, 0)");
    client.ask("BEGIN; UPDATE hot SET n = 1");
    let mut others = [databases.client(), databases.client()];
    others.iter_mut().for_each(|other| other.say("UPDATE hot SET n = n + 1"));
    for other in &mut others {
        let said = other.hear();
        assert!(said.contains("ERROR 1205 (HY000)") && said.contains("try restarting transaction"), "{said}");
    }
    others.iter_mut().for_each(|other| other.say("UPDATE hot SET n = n + 1"));
    client.ask("COMMIT");
    for other in &mut others {
        assert_eq!(other.hear(), "");
    }
    assert_eq!(client.ask("SELECT n FROM hot"), "3");
    let primary = machines.primary(&["a", "b", "c"]);
    let backup = ["a", "b", "c"].into_iter().find(|name| *name != primary).unwrap();
    eventually("it is not there", || {
        (databases.has(backup, "SELECT name FROM names") == "right").then_some(())
    });
    databases.has(backup, "UPDATE names SET name = 'wrong'");
    assert_eq!(client.ask("SELECT name FROM names"), "right");
    eventually("it is not found", || machines.role(backup).starts_with("out of the group").then_some(()));
    let (_, why) = machines.ask(&primary, &["why"]);
    assert!(why.contains(&format!("the server of {backup} has answered otherwise")), "{why}");
    assert_eq!(client.ask("SELECT name FROM names"), "right");
    // More than nodes keep: the client's connection is reset, and no other one.
    let mut long = databases.command(PASSWORD);
    let said =
        long.args(["--quick", "-e", "SELECT REPEAT('z', 1000) FROM seq_1_to_150000"]).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains("Lost connection"), "{}", said.stdout.len());
    assert_eq!(client.ask("SELECT name FROM names"), "right");
    assert_eq!(machines.role(&primary), "primary, serves clients");
}

#[test]
fn clients_that_wait_for_each_other_leave_all_servers_with_the_same_data() {
    let Some(databases) = Databases::new("mysql-waits") else { return };
    let machines = &databases.0;
    let _nodes = databases.start_all();
    let mut first = databases.client();
    first.ask("CREATE TABLE hot (id INT PRIMARY KEY, n BIGINT)");
    first.ask("CREATE TABLE logged (id BIGINT AUTO_INCREMENT PRIMARY KEY, who INT, n BIGINT)");
    first.ask("INSERT INTO hot VALUES (0, 0), (1, 0), (2, 0)");
    // Whoever waits is let go by any of the others: a commit, a rollback, or an end in the middle of it.
    let works = |number: u64| {
        let mut client = databases.client();
        std::thread::spawn(move || {
            for round in 0..60_u64 {
                let row = (number * 7 + round * round) % 3;
                let other = (row + 1 + round % 2) % 3;
                let update = format!("UPDATE hot SET n = (n * 3 + {number}) % 1000003 WHERE id = {row}");
                let log =
                    format!("INSERT INTO logged (who, n) SELECT {number}, n FROM hot WHERE id = {other}");
                let end = if round % 5 == 4 { "ROLLBACK" } else { "COMMIT" };
                let said = client.ask(&format!("BEGIN; {update}; {log}; {end}"));
                // As without replicas: a deadlock is the only error.
                let is_right = said.is_empty() || said.contains("ERROR 1213") && !said.contains("1205");
                assert!(is_right && !said.contains("1317"), "{said}");
            }
            // The last one is not ended.
            client.ask(&format!("BEGIN; UPDATE hot SET n = n + {number} WHERE id = {}", number % 3));
        })
    };
    let threads: Vec<_> = (1..=4).map(works).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // One that works for long keeps others waiting: they would come in another order at each server.
    let mut late = databases.client();
    late.say("UPDATE hot SET n = n * 2 + SLEEP(1.5) WHERE id = 0");
    std::thread::sleep(std::time::Duration::from_millis(100));
    first.ask("UPDATE hot SET n = n + 1 WHERE id = 0");
    late.hear();
    // A table that is to be changed, while one client reads it, and another one wants to.
    first.ask("BEGIN; SELECT * FROM hot");
    late.say("ALTER TABLE hot ADD more INT");
    let mut other = databases.client();
    other.say("SELECT COUNT(*) FROM hot");
    std::thread::sleep(std::time::Duration::from_millis(100));
    first.ask("COMMIT");
    assert_eq!(late.hear(), "");
    assert_eq!(other.hear(), "3");
    let all = "CHECKSUM TABLE hot, logged; SELECT * FROM hot";
    let has = ["a", "b", "c"].map(|name| {
        assert!(!machines.role(name).starts_with("out"), "{name}: {}", machines.role(name));
        name
    });
    for name in has {
        eventually_or(
            || (databases.has(name, all) == databases.has(has[0], all)).then_some(()),
            || format!("{} and {name}: {}, {}", has[0], databases.has(has[0], all), databases.has(name, all)),
        );
    }
    let logged = databases.has(has[0], "SELECT COUNT(*) FROM logged").parse::<u64>().unwrap();
    assert!(logged > 50, "{logged}");
}
