//! `outlast replicate` with PostgreSQL: its clients, who have passwords, keep their sessions and transactions.

use crate::common::{eventually, eventually_or, folder};
use crate::replicate::{Machines, Node, SERVER_PORT, take};
use crate::replicate_mysql::Client;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where Debian has its programs.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
/// It refuses to run as root. What it starts has to end with its node.
const AS_POSTGRES: [&str; 6] =
    ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "keep"];
/// One in each line.
const ACCOUNTS: &str = "CREATE ROLE outlast SUPERUSER LOGIN PASSWORD 'of nodes'
CREATE ROLE app LOGIN PASSWORD 'right'
SET password_encryption = 'md5'; CREATE ROLE old LOGIN PASSWORD 'older'
CREATE DATABASE shop OWNER app
";
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
ssl = off
fsync = off
deadlock_timeout = '1d'
max_parallel_workers_per_gather = 0
";
const WHO_MAY: &str = "local all all trust\nhost all old all md5\nhost all all all scram-sha-256\n";

fn as_postgres(program: &str) -> Command {
    let mut command = Command::new(AS_POSTGRES[0]);
    command.args(&AS_POSTGRES[1..]).arg(format!("{PROGRAMS}/{program}")).current_dir("/");
    command
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// A folder that the server may come to.
fn open_folder() -> tempfile::TempDir {
    let folder = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("chown").arg("postgres").arg(folder.path()).status().unwrap().success());
    folder
}

/// The data of a server that nobody has used, with accounts.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<tempfile::TempDir> = OnceLock::new();
    TEMPLATE
        .get_or_init(|| {
            let folder = open_folder();
            let data = folder.path().join("data");
            let mut install = as_postgres("initdb");
            install.args(["--no-sync", "--encoding=UTF8", "--locale=C", "-D"]).arg(&data);
            let install = install.output().unwrap();
            assert!(install.status.success(), "{install:?}");
            std::fs::write(data.join("pg_hba.conf"), WHO_MAY).unwrap();
            let mut settings =
                std::fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
            settings.write_all(SETTINGS.as_bytes()).unwrap();
            let mut single = as_postgres("postgres");
            single.args(["--single", "-D"]).arg(&data).arg("postgres");
            let mut single =
                single.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            single.stdin.take().unwrap().write_all(ACCOUNTS.as_bytes()).unwrap();
            assert!(single.wait().unwrap().success());
            folder
        })
        .path()
}

/// Machines whose servers are PostgreSQL.
struct Databases {
    machines: Machines,
    data: tempfile::TempDir,
}

impl Databases {
    fn new(name: &str) -> Option<Self> {
        let machines = Machines::new(name, 3, 0)?;
        let list = std::fs::read_to_string(&machines.file).unwrap();
        let list = list.replace("protocol = \"redis\"", "protocol = \"postgres\"\nclock = \"order\"");
        std::fs::write(&machines.file, list).unwrap();
        let data = open_folder();
        // The server's user need not come to where this test is.
        let library = std::env::current_exe().unwrap().with_file_name("liboutlast_clock.so");
        std::fs::copy(library, data.path().join("liboutlast_clock.so")).unwrap();
        let databases = Self { machines, data };
        for name in ["a", "b", "c"] {
            copy(&template().join("data"), &databases.data(name));
            std::fs::write(databases.machines.folder(name).join("password"), "of nodes\n").unwrap();
        }
        Some(databases)
    }

    fn data(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    fn start(&self, name: &str, flags: &[&str]) -> Node {
        let data = self.data(name).display().to_string();
        let password = self.machines.folder(name).join("password").display().to_string();
        let library = self.data.path().join("liboutlast_clock.so").display().to_string();
        let (port, server) = (SERVER_PORT.to_string(), format!("{PROGRAMS}/postgres"));
        let program = [&AS_POSTGRES[..], &[&server, "-D", &data, "-p", &port, "-k", &data]].concat();
        let own = ["--server-password-file", &password, "--clock-library", &library];
        self.machines.start_with(name, &[&own[..], flags].concat(), &program)
    }

    fn start_all(&self) -> Vec<Node> {
        let mut nodes = ["a", "b", "c"].map(|name| self.start(name, &[]));
        for node in &mut nodes {
            node.outlast.wait_for("view 1: ");
        }
        nodes.into()
    }

    /// A program of a client, which comes by the portal.
    fn command(&self, program: &str, (user, password): (&str, &str)) -> Command {
        let (address, port) =
            (self.machines.portal.ip().to_string(), self.machines.portal.port().to_string());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.machines.client.namespace()]);
        command.arg(format!("{PROGRAMS}/{program}"));
        command.args(["-h", &address, "-p", &port, "-U", user]).env("PGPASSWORD", password);
        command
    }

    fn client(&self) -> Client {
        let mut command = self.command("psql", ("app", "right"));
        command.args(["-X", "-q", "-A", "-t", "shop"]);
        Client::new(command)
    }

    /// What the server of this machine has, asked past the portal.
    fn has(&self, name: &str, sql: &str) -> String {
        let mut command = Command::new(format!("{PROGRAMS}/psql"));
        command.arg("-h").arg(self.data(name)).args(["-p", &SERVER_PORT.to_string(), "-U", "postgres"]);
        let output = command.args(["-X", "-q", "-A", "-t", "-c", sql, "shop"]).output().unwrap();
        // Where a server is late a table may not be there yet.
        let said = if output.status.success() { output.stdout } else { output.stderr };
        String::from_utf8(said).unwrap().trim_end().replace('\n', " ")
    }

    /// To the byte, in whatever order.
    fn has_all(&self, name: &str, tables: &[&str]) -> String {
        let sum = |table: &&str| {
            self.has(
                name,
                &format!("SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM {table} t"),
            )
        };
        tables.iter().map(sum).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn clients_keep_their_sessions_and_transactions_when_the_primary_dies() {
    let Some(databases) = Databases::new("postgres") else { return };
    let machines = &databases.machines;
    let mut nodes = databases.start_all();
    let wrong =
        databases.command("psql", ("app", "wrong")).args(["-c", "SELECT 1", "shop"]).output().unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("password authentication failed for user \"app\""), "{said}");
    let old =
        databases.command("psql", ("old", "older")).args(["-At", "-c", "SELECT 5", "shop"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&old.stdout), "5\n", "{old:?}");
    let mut client = databases.client();
    client.ask("CREATE TABLE notes (id serial PRIMARY KEY, text text, at timestamptz)");
    client.ask("CREATE TABLE hot (id int PRIMARY KEY, n int); INSERT INTO hot VALUES (1, 0), (2, 0)");
    let mut bench = databases.command("pgbench", ("app", "right"));
    let initialized = bench.args(["-i", "-q", "shop"]).output().unwrap();
    assert!(initialized.status.success(), "{initialized:?}");
    // What a session has: a transaction, a setting, a table of its own, a prepared statement.
    client
        .ask("SET application_name = 'kept'; CREATE TEMPORARY TABLE own (a int); INSERT INTO own VALUES (7)");
    client.ask("PREPARE add_note AS INSERT INTO notes (text, at) VALUES ($1, now())");
    client.ask(
        "BEGIN; INSERT INTO notes (text, at) VALUES ('before', now()); UPDATE hot SET n = 1 WHERE id = 1",
    );
    // Another client waits for a row that the first one has. A third one that would, too, fails within a transaction, and comes later outside of one.
    let [mut other, mut third, mut fourth] = [databases.client(), databases.client(), databases.client()];
    other.say("UPDATE hot SET n = n + 10 WHERE id = 1");
    std::thread::sleep(std::time::Duration::from_millis(300));
    fourth.say("UPDATE hot SET n = n + 100 WHERE id = 1");
    let said = third.ask("BEGIN; UPDATE hot SET n = n + 1000 WHERE id = 1; ROLLBACK");
    assert!(said.contains("another statement waits for a lock already"), "{said}");
    // Others go on all the while: those that update the same rows, one transaction after another.
    let mut bench = databases.command("pgbench", ("app", "right"));
    bench.args(["-n", "-c", "4", "-T", "5", "-M", "prepared", "--max-tries=100", "shop"]);
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let primary = machines.primary(&["a", "b", "c"]);
    drop(take(&mut nodes, &primary));
    assert_eq!(
        client.ask("EXECUTE add_note('after'); SELECT a FROM own; SHOW application_name; COMMIT"),
        "7 kept"
    );
    assert_eq!((other.hear(), fourth.hear()), (String::new(), String::new()));
    assert_eq!(client.ask("SELECT n FROM hot WHERE id = 1"), "111");
    assert_eq!(client.ask("SELECT text FROM notes ORDER BY id"), "before after");
    for sql in ["INSERT INTO notes (text) VALUES (gen_random_uuid()::text)", "LISTEN something"] {
        let said = client.ask(sql);
        assert!(said.contains("outlast refuses"), "{said}");
    }
    let bench = bench.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&bench.stdout).into_owned();
    assert!(bench.status.success(), "{bench:?}");
    let done = said.lines().find_map(|line| line.strip_prefix("number of transactions actually processed: "));
    let done: u64 = done.and_then(|count| count.split('/').next()?.trim().parse().ok()).unwrap();
    assert!(done > 20, "{said}");
    // Each counts once, and nothing is half done.
    assert_eq!(client.ask("SELECT count(*) FROM pgbench_history"), done.to_string());
    let sums = "SELECT count(DISTINCT s) FROM (SELECT sum(abalance) AS s FROM pgbench_accounts UNION ALL SELECT sum(tbalance) FROM pgbench_tellers \
                UNION ALL SELECT sum(bbalance) FROM pgbench_branches UNION ALL SELECT sum(delta) FROM pgbench_history) AS all_sums";
    assert_eq!(client.ask(sums), "1");
    let members: Vec<&str> = ["a", "b", "c"].into_iter().filter(|name| *name != primary).collect();
    let tables =
        ["notes", "hot", "pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history"];
    eventually_or(
        || (databases.has_all(members[0], &tables) == databases.has_all(members[1], &tables)).then_some(()),
        || {
            format!(
                "{} and {}",
                databases.has_all(members[0], &tables),
                databases.has_all(members[1], &tables)
            )
        },
    );
    let (_, why) = machines.ask(members[0], &["why"]);
    assert!(!why.contains("otherwise"), "{why}");
}

#[test]
fn a_node_comes_back_with_a_dump_and_one_that_was_changed_by_hand_is_out() {
    let Some(databases) = Databases::new("postgres-join") else { return };
    let machines = &databases.machines;
    let by_socket =
        |name: &str| format!("-h {} -p {SERVER_PORT} -U postgres", databases.data(name).display());
    let snapshot = |name: &str| {
        format!(
            "f=$(mktemp) && {PROGRAMS}/pg_dumpall {} --clean --if-exists >$f && cat $f; rm -f $f",
            by_socket(name)
        )
    };
    let restore =
        |name: &str| format!("{PROGRAMS}/psql -X -q {} -d postgres >/dev/null 2>&1", by_socket(name));
    let start = |name: &str, joins: &[&str]| {
        databases
            .start(name, &[&["--snapshot", &snapshot(name), "--restore", &restore(name)], joins].concat())
    };
    let mut nodes: Vec<Node> = ["a", "b", "c"].map(|name| start(name, &[])).into();
    for node in &mut nodes {
        node.outlast.wait_for("view 1: ");
    }
    let mut client = databases.client();
    client.ask("CREATE TABLE names (id int PRIMARY KEY, name text); INSERT INTO names VALUES (1, 'right')");
    let primary = machines.primary(&["a", "b", "c"]);
    let backup = ["a", "b", "c"].into_iter().find(|name| *name != primary).unwrap();
    eventually("it is not there", || {
        (databases.has(backup, "SELECT name FROM names") == "right").then_some(())
    });
    assert_eq!(databases.has(backup, "UPDATE names SET name = 'wrong'"), "");
    assert_eq!(client.ask("SELECT name FROM names"), "right");
    eventually("it is not found", || machines.role(backup).starts_with("out of the group").then_some(()));
    let (_, why) = machines.ask(&primary, &["why"]);
    assert!(why.contains(&format!("the server of {backup} has answered otherwise")), "{why}");
    client.ask("INSERT INTO names VALUES (2, 'later')");
    let (joined, said) = machines.ask(backup, &["join"]);
    assert!(joined, "{said}");
    eventually("it does not come back", || (machines.role(backup) == "backup").then_some(()));
    // Sessions are not transferred: clients connect again.
    let mut client = databases.client();
    assert_eq!(client.ask("SELECT name FROM names ORDER BY id"), "right later");
    client.ask("INSERT INTO names VALUES (3, 'last')");
    for name in ["a", "b", "c"] {
        eventually_or(
            || {
                (databases.has(name, "SELECT name FROM names ORDER BY id") == "right later last")
                    .then_some(())
            },
            || format!("{name}: {}", databases.has(name, "SELECT name FROM names ORDER BY id")),
        );
    }
}
