//! What clients of MariaDB hear while machines die, are cut off and stand still is what one server would have told them, transactions included.

use crate::histories::{ACCOUNTS, Asking, Client, Request, faults};
use crate::replicate::take;
use crate::replicate_agreeing::answering;
use crate::replicate_join::switch_to;
use crate::replicate_mysql::{self as mysql, Databases};
use std::time::Duration;

/// One of them begins.
const CLIENTS: usize = 6;
const CUT_OFF: Duration = Duration::from_millis(1_200);

struct MariaDb(mysql::Client);

impl MariaDb {
    /// One that was chosen to be rolled back, as it waited for others that waited for it, has done nothing.
    fn ask(&mut self, sql: &str) -> Option<String> {
        let said = self.0.ask(sql);
        assert!(!said.contains("ERROR") || said.contains("ERROR 1213"), "{sql}: {said}");
        (!said.contains("ERROR")).then_some(said)
    }

    /// The client decides in the middle of its transaction.
    fn transfer(&mut self, from: &str, to: &str, n: u64) -> Option<String> {
        let accounts = format!("SELECT id, n FROM accounts WHERE id IN ({from}, {to}) FOR UPDATE");
        let locked = self.ask(&format!("BEGIN; {accounts}"))?;
        let has = locked.split(' ').find_map(|row| row.strip_prefix(from)?.strip_prefix('\t'));
        if has.unwrap().parse::<u64>().unwrap() < n {
            self.ask("ROLLBACK")?;
            return Some("no".to_owned());
        }
        let take = format!("UPDATE accounts SET n = n - {n} WHERE id = {from}");
        self.ask(&format!("{take}; UPDATE accounts SET n = n + {n} WHERE id = {to}; COMMIT"))?;
        Some("yes".to_owned())
    }
}

impl Client for MariaDb {
    fn answer_to(&mut self, request: &Request) -> Option<String> {
        let key = request.key.as_str();
        let arguments: Vec<&str> = request.arguments.iter().map(String::as_str).collect();
        let nothing = |said: String| if said.is_empty() { "nothing".to_owned() } else { said };
        match (request.op, arguments.as_slice()) {
            ("set", [value]) => {
                self.ask(&format!("REPLACE INTO registers VALUES ('{key}', '{value}')"))?;
                Some("OK".to_owned())
            }
            ("get", _) => self.ask(&format!("SELECT v FROM registers WHERE k = '{key}'")).map(nothing),
            ("incr", _) => {
                let add =
                    format!("INSERT INTO registers VALUES ('{key}', 1) ON DUPLICATE KEY UPDATE v = v + 1");
                self.ask(&format!("BEGIN; {add}; SELECT v FROM registers WHERE k = '{key}'; COMMIT"))
            }
            ("push", [value]) => {
                let add = format!("INSERT INTO lists (k, v) VALUES ('{key}', '{value}')");
                let lock = format!("SELECT v FROM registers WHERE k = '{key}' FOR UPDATE");
                self.ask(&format!("INSERT IGNORE INTO registers VALUES ('{key}', ''); BEGIN; {lock}"))?;
                self.ask(&format!("{add}; SELECT COUNT(*) FROM lists WHERE k = '{key}'; COMMIT"))
            }
            ("all", _) => {
                self.ask(&format!("SELECT v FROM lists WHERE k = '{key}' ORDER BY id")).map(nothing)
            }
            ("open", balances) => {
                let rows: Vec<String> =
                    balances.iter().enumerate().map(|(id, balance)| format!("({id}, {balance})")).collect();
                self.ask(&format!("INSERT INTO accounts VALUES {}", rows.join(", ")))?;
                Some("OK".to_owned())
            }
            ("transfer", [from, to, n]) => self.transfer(from, to, n.parse().unwrap()),
            _ => self.ask(&format!("SELECT n FROM accounts WHERE id < {ACCOUNTS} ORDER BY id")),
        }
    }
}

#[test]
fn clients_of_mariadb_hear_what_one_server_would_have_said() {
    if let Some(databases) = Databases::new("mysql-histories") {
        judged(&databases);
    }
}

#[test]
fn clients_of_mariadb_that_wait_for_all_servers_do_as_well() {
    if let Some(databases) = Databases::new("mysql-agreeing") {
        answering(databases.machines(), "all");
        judged(&databases);
    }
}

fn judged(databases: &Databases) {
    let machines = databases.machines();
    let mut nodes = databases.start_all();
    let mut first = databases.client();
    first.ask("CREATE TABLE registers (k VARCHAR(20) PRIMARY KEY, v VARCHAR(20))");
    first.ask("CREATE TABLE lists (id BIGINT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(20), v VARCHAR(20))");
    first.ask("CREATE TABLE accounts (id INT PRIMARY KEY, n BIGINT)");
    let asking = Asking::start((0..CLIENTS).map(|_| MariaDb(databases.client())).collect());
    let mut living = vec!["a", "b", "c"];
    let mut next = "a";
    for number in 0..faults().div_ceil(2) {
        asking.go_on();
        let primary = machines.primary(&living);
        let others: Vec<&str> = living.iter().copied().filter(|name| *name != primary).collect();
        next = others[number % 2];
        switch_to(machines, next);
    }
    asking.go_on();

    // Cut off, and back.
    machines.cut_off(next, true);
    std::thread::sleep(CUT_OFF);
    machines.cut_off(next, false);
    living.retain(|name| *name != next);
    asking.go_on();

    // It stands still, and goes on when another one serves.
    let primary = machines.primary(&living);
    let node = take(&mut nodes, &primary);
    node.outlast.freeze();
    std::thread::sleep(CUT_OFF);
    node.outlast.signal("CONT");
    asking.go_on();
    let history = asking.end();
    eprint!("{}", history.judge().unwrap());
}
