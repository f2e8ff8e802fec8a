//! Servers of `outlast replicate` that have the time of day from the order do the same, whenever they do it.

use crate::common::{eventually, eventually_or};
use crate::replicate::{ANSWERS, BREAK, Counters, Machines, Node, PATIENCE, are_equal, has_all, take};
use crate::replicate_join::{Client, switch_to, wait_for_member};
use std::process::Command;
use std::time::{Duration, Instant};

const CLOCK: &str = "clock = \"order\"";
/// Of a key. It is read before that.
const EXPIRES_MS: u64 = 2_000;

/// With this line in the group file.
fn machines(machines: Option<Machines>, clock: &str) -> Option<Machines> {
    let machines = machines?;
    let list = std::fs::read_to_string(&machines.file).unwrap();
    std::fs::write(&machines.file, list.replace(ANSWERS, &format!("{ANSWERS}\n{clock}"))).unwrap();
    Some(machines)
}

/// What each node is started with.
fn flags() -> [String; 2] {
    let library = std::env::current_exe().unwrap().with_file_name("liboutlast_clock.so");
    ["--clock-library".to_owned(), library.to_str().unwrap().to_owned()]
}

fn start_all(machines: &Machines) -> Vec<Node> {
    machines.start_all(&flags().each_ref().map(String::as_str))
}

fn signal(process: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

/// A server of two is late: it gets to a read of a key when that has expired, by its machine. Whether its node is a member still, when that was
/// compared; or, if it is to be `found`, when it is none any more.
fn late_server_answers_the_same(name: &str, clock: &str, found: bool) -> Option<bool> {
    let machines = machines(Machines::undying(name, 2, 1), clock)?;
    let nodes = start_all(&machines);
    let primary = machines.primary(&["a", "b"]);
    let backup = if primary == "a" { "b" } else { "a" };
    let server = nodes.iter().find(|node| node.name == backup).unwrap().server();
    let mut client = Client::new(&machines);
    assert_eq!(client.ask("set other 1\r\n", 1), "+OK");
    eventually("it is not there", || (machines.redis(backup, "get other") == "1").then_some(()));
    signal(server, "-STOP");
    assert_eq!(client.ask(&format!("set key value px {EXPIRES_MS}\r\n"), 1), "+OK");
    assert_eq!(client.ask("get key\r\n", 2), "$5 value");
    std::thread::sleep(Duration::from_millis(EXPIRES_MS + 500));
    assert_eq!(client.ask("get key\r\n", 1), "$-1");
    signal(server, "-CONT");
    // What comes next is compared behind that.
    assert_eq!(client.ask("get other\r\n", 2), "$1 1");
    let index = |name: &str, which: &str| {
        let (_, status) = machines.ask(name, &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status[0][which].as_u64().unwrap()
    };
    let until = index(&primary, "last_index");
    let is_member = || machines.role(backup) == "backup";
    let is_compared = || index(backup, "compared_index") >= until;
    eventually("its answers are not compared", || (!is_member() || is_compared() && !found).then_some(()));
    Some(is_member())
}

#[test]
fn a_key_that_expires_is_read_alike_by_servers_that_read_it_at_other_times() {
    let Some(is_member) = late_server_answers_the_same("clock-late", CLOCK, false) else { return };
    assert!(is_member);
    // Without that, it is found.
    assert_eq!(late_server_answers_the_same("clock-own", "", true), Some(false));
}

#[test]
fn keys_expire_at_all_servers_at_once_over_a_switchover_and_a_node_that_comes_back() {
    let Some(machines) = machines(Machines::new("clock", 3, 0), CLOCK) else { return };
    let mut nodes = start_all(&machines);
    let names = ["a", "b", "c"];
    let first = machines.primary(&names);
    let counters = Counters::start(&machines, 2);
    let mut client = Client::new(&machines);
    let mut reads = 0_u64;
    let mut read_for = |client: &mut Client, time: Duration| {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::thread::sleep(BREAK);
            reads += 1;
            let key = reads % 40;
            match reads % 7 {
                0 => assert_eq!(client.ask(&format!("set key{key} v px {}\r\n", 5 + reads % 60), 1), "+OK"),
                // None, or a length.
                _ => {
                    let said = client.ask(&format!("get key{key}\r\n"), 1);
                    if said != "$-1" {
                        assert_eq!((said.as_str(), client.ask("", 1).as_str()), ("$1", "v"));
                    }
                }
            }
        }
    };
    read_for(&mut client, Duration::from_secs(1));
    // A client that waits for what does not come has its answer when its time is over.
    let begun = Instant::now();
    assert_eq!(client.ask("blpop nothing 0.3\r\n", 1), "*-1");
    assert!((Duration::from_millis(250)..PATIENCE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let next = *names.iter().find(|name| **name != first).unwrap();
    switch_to(&machines, next);
    read_for(&mut client, Duration::from_secs(1));

    // With a copy it has the time of the copy.
    drop(take(&mut nodes, &first));
    assert_eq!(client.ask("set stays v px 600000\r\nset goes v px 1500\r\n", 2), "+OK +OK");
    let flags = flags();
    nodes.push(machines.start(&first, &[&flags[0], &flags[1], "--join"]));
    wait_for_member(&machines, &first);
    switch_to(&machines, &first);
    read_for(&mut client, Duration::from_millis(500));
    assert_eq!(client.ask("get stays\r\n", 2), "$1 v");
    eventually("it does not expire", || (client.ask("exists goes\r\n", 1) == ":0").then_some(()));
    let counts = counters.end();
    for name in names {
        assert!(["backup", "primary, serves clients"].contains(&machines.role(name).as_str()), "{name}");
        has_all(&machines, name, &counts);
    }
    are_equal(&machines, &names);
    let (_, why) = machines.ask(&first, &["why"]);
    assert!(!why.contains("answers otherwise"), "{why}");
}

#[test]
fn a_server_that_does_not_take_its_time_from_the_order_is_not_replicated() {
    let Some(machines) = machines(Machines::undying("clock-ignored", 2, 1), CLOCK) else { return };
    let [flag, library] = flags();
    let without = || {
        let mut node = machines.start_with(
            "a",
            &[&flag, &library],
            &["env", "-u", "LD_PRELOAD", "redis-server", "--port", "6380", "--save", ""],
        );
        let code = node.outlast.ended().code();
        (code, node.outlast.said())
    };
    let (code, said) = without();
    assert!(code == Some(7) && said.contains("does not take the time from the order"), "{code:?} {said}");
    for (program, what) in [
        (&[][..], "it has to start its server by itself, so give its command line behind --"),
        (&["/sbin/ldconfig", "-p"], "is linked statically"),
    ] {
        let mut node = machines.start_with("a", &[&flag, &library], program);
        assert_eq!(node.outlast.ended().code(), Some(2));
        let said = node.outlast.said();
        assert!(said.contains("clock = \"order\"") && said.contains(what), "{said}");
    }
    let mut node = machines.start_with("a", &[&flag, "/nowhere.so"], &["redis-server"]);
    assert_eq!(node.outlast.ended().code(), Some(2));
    eventually_or(
        || node.outlast.said().contains("there is no library /nowhere.so").then_some(()),
        String::new,
    );
}
