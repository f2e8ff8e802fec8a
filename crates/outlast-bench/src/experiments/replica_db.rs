//! What replication costs a database: MariaDB alone, and on two machines, with one client that waits for each answer (TCP-ABC 2005, Figure 5).
//!
//! Each server writes its log to disk at each commit, as by default. All of them share the disk of this machine.

use super::{Setting, claim_each, in_turns};
use crate::options::{Options, PathKind, Placement};
use crate::replica::Machines;
use crate::series::{Bench, Lane, RATE};
use anyhow::{Context, Result, ensure};
use outlast_lab::replicas::mariadb::CLIENT_FLAGS;
use outlast_lab::{Host, LabCommand};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Instant;

/// Rows that are updated, in a table that every server has.
const ROWS: usize = 1_000;

/// What the client says: so many statements, of which the rate is measured.
struct Work {
    what: &'static str,
    name: &'static str,
    statements: String,
    count: usize,
}

fn works(options: &Options) -> Vec<Work> {
    let scale = options.pick(100, 10, 1);
    let (tables, rows, updates) = (1_000 / scale, 10_000 / scale, 1_000 / scale.min(2));
    let mut create = String::new();
    for number in 0..tables {
        let _ = writeln!(create, "CREATE TABLE t{number} (a INT PRIMARY KEY, b CHAR(20));");
    }
    for number in 0..tables {
        let _ = writeln!(create, "DROP TABLE t{number};");
    }
    let mut insert = String::new();
    for number in 0..rows {
        let _ = writeln!(insert, "INSERT INTO inserted VALUES ({number}, 'row {number}');");
    }
    for number in 0..rows {
        let _ = writeln!(insert, "DELETE FROM inserted WHERE a = {number};");
    }
    let mut update = String::new();
    for number in 0..updates {
        // Each of another row, in an order that looks like none.
        let row = number * 617 % ROWS;
        let _ = writeln!(update, "UPDATE updated SET b = b + 1 WHERE a = {row};");
    }
    vec![
        Work { what: "updates", name: "update", statements: update, count: updates },
        Work { what: "rows inserted and deleted", name: "insert", statements: insert, count: 2 * rows },
        Work { what: "tables created and dropped", name: "create", statements: create, count: 2 * tables },
    ]
}

pub fn run(name: &'static str, options: &Options) -> Result<Value> {
    let begun = Instant::now();
    let (setting, report) = Setting::new(name, options, PathKind::Lo, Placement::Cross)?;
    let ground = &setting.ground;
    let mut machines = Machines::new(options, ground.scratch(), ground.home())?;
    let (alone, group) = machines.mariadb(2)?;
    let servers = [alone.address, alone.address, group.address];
    let mut tables = "CREATE TABLE inserted (a INT PRIMARY KEY, b CHAR(20));\nCREATE TABLE updated (a INT PRIMARY KEY, b INT);\n".to_owned();
    for row in 0..ROWS {
        let _ = writeln!(tables, "INSERT INTO updated VALUES ({row}, 0);");
    }
    for server in &servers[1..] {
        say(&machines.client, *server, &tables)?;
    }
    let works = works(options);
    let mut bench = Bench::new(options, report, works.len(), &[]);
    bench.count_family();
    bench.spend(begun.elapsed());
    for work in works {
        let lanes = vec![Lane::raw("alone"), Lane::again("alone again", 0), Lane::against("2 nodes", 0)];
        let outcome = bench.series(&format!("{} {}", work.count, work.what), lanes, &[RATE], |order| {
            in_turns(order, |lane| {
                let begun = Instant::now();
                say(&machines.client, servers[lane], &work.statements)?;
                Ok(vec![work.count as f64 / begun.elapsed().as_secs_f64()])
            })
        })?;
        claim_each(&mut bench, &outcome, 0, |_| format!("replica/db/{}", work.name));
    }
    bench.finish()
}

/// MariaDB's own client says all that, one statement after the other.
fn say(client: &Host, server: SocketAddr, statements: &str) -> Result<()> {
    let (address, port) = (server.ip().to_string(), server.port().to_string());
    let mut command: LabCommand = client.command("mariadb");
    command.args(CLIENT_FLAGS).args(["-h", &address, "-P", &port, "shop"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let process = command.spawn()?;
    let mut input = process.take_stdin().context("the client reads nothing")?;
    input.write_all(statements.as_bytes())?;
    drop(input);
    ensure!(process.wait()?.success(), "the client has failed");
    Ok(())
}
