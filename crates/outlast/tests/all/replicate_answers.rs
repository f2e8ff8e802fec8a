//! Servers of `outlast replicate` that do not answer as the others do are found, and replies that differ for good reasons mislead nobody.

use crate::common::{eventually, eventually_or};
use crate::replicate::{ANSWERS, Counters, Machines, are_equal, has_all};
use crate::replicate_join::{Client, wait_for_member};

/// What this node says of itself has that. Else all that it says.
fn wait_for_status(machines: &Machines, name: &str, what: &str) {
    let status = || machines.ask(name, &["status"]).1;
    eventually_or(|| status().contains(what).then_some(()), status);
}

#[test]
fn a_backup_whose_data_were_changed_is_taken_out_at_the_first_answer_that_differs() {
    let Some(machines) = Machines::undying("answers-backup", 2, 1) else { return };
    let _nodes = machines.start_all(&[]);
    let primary = machines.primary(&["a", "b"]);
    let backup = if primary == "a" { "b" } else { "a" };
    let counters = Counters::start(&machines, 2);
    let mut client = Client::new(&machines);
    assert_eq!(client.ask("set name right\r\nget name\r\n", 3), "+OK $5 right");
    eventually("it is not there", || (machines.redis(backup, "get name") == "right").then_some(()));
    assert_eq!(machines.redis(backup, "set name wrong"), "+OK");
    // Nobody has asked for it yet.
    counters.go_on();
    assert_eq!(machines.role(backup), "backup");
    assert_eq!(client.ask("get name\r\n", 2), "$5 right");
    wait_for_status(&machines, backup, "out of the group");
    let (_, why) = machines.ask(&primary, &["why"]);
    let shown = "to GET with \"wrong\\r\\n\" at byte 20, not \"right\\r\\n\"";
    assert!(why.contains(shown), "{why}");
    let view = format!("the server of {backup} has answered otherwise than those of the others");
    assert!(why.contains(&view), "{why}");
    wait_for_status(&machines, &primary, "differences found: 1");
    counters.go_on();

    // With the data of the primary it is one like the others.
    let (joins, said) = machines.ask(backup, &["join"]);
    assert!(joins, "{said}");
    wait_for_member(&machines, backup);
    assert_eq!(client.ask("get name\r\n", 2), "$5 right");
    counters.go_on();
    let counts = counters.end();
    has_all(&machines, backup, &counts);
    are_equal(&machines, &[&primary, backup]);
    assert_eq!(machines.role(backup), "backup");
}

#[test]
fn a_difference_is_told_of_by_default_and_nobody_is_taken_out() {
    let Some(machines) = Machines::undying("answers-told", 2, 1) else { return };
    let list = std::fs::read_to_string(&machines.file).unwrap();
    assert!(list.contains(ANSWERS));
    // By default.
    std::fs::write(&machines.file, list.replace(ANSWERS, "")).unwrap();
    let _nodes = machines.start_all(&[]);
    let primary = machines.primary(&["a", "b"]);
    let backup = if primary == "a" { "b" } else { "a" };
    let mut client = Client::new(&machines);
    assert_eq!(client.ask("set name right\r\n", 1), "+OK");
    eventually("it is not there", || (machines.redis(backup, "get name") == "right").then_some(()));
    assert_eq!(machines.redis(backup, "set name wrong"), "+OK");
    for _ in 0..100 {
        assert_eq!(client.ask("get name\r\n", 2), "$5 right");
    }
    wait_for_status(&machines, &primary, "differences found: 1");
    let (_, why) = machines.ask(&primary, &["why"]);
    assert!(why.contains(&format!("the server of {backup} answers otherwise")), "{why}");
    assert_eq!(machines.role(backup), "backup");
    // A second later the next one is told of.
    eventually("no other one is found", || {
        client.ask("get name\r\n", 2);
        machines.ask(&primary, &["status"]).1.contains("differences found: 2").then_some(())
    });
    assert!(machines.ask(&primary, &["status"]).1.contains("view 1,"));
}

#[test]
fn a_primary_that_answers_otherwise_than_two_others_is_taken_out() {
    let Some(machines) = Machines::new("answers-primary", 3, 0) else { return };
    let _nodes = machines.start_all(&[]);
    let first = machines.primary(&["a", "b", "c"]);
    let counters = Counters::start(&machines, 2);
    let mut client = Client::new(&machines);
    assert_eq!(client.ask("set name right\r\n", 1), "+OK");
    assert_eq!(machines.redis(&first, "set name wrong"), "+OK");
    // It answers at once; nobody knows better before the others have answered.
    assert_eq!(client.ask("get name\r\n", 2), "$5 wrong");
    eventually("it is not taken out", || machines.role(&first).starts_with("out of the group").then_some(()));
    assert_eq!(client.ask("get name\r\n", 2), "$5 right");
    counters.go_on();
    let (_, why) = machines.ask(&first, &["why"]);
    assert!(why.contains(&format!("the server of {first} answers otherwise")), "{why}");
    let counts = counters.end();
    let left: Vec<&str> = ["a", "b", "c"].into_iter().filter(|name| *name != first).collect();
    for name in &left {
        has_all(&machines, name, &counts);
    }
    are_equal(&machines, &left);
}

#[test]
fn replies_that_are_about_a_server_are_not_taken_for_other_data() {
    let Some(machines) = Machines::undying("answers-own", 3, 0) else { return };
    let _nodes = machines.start_all(&[]);
    let primary = machines.primary(&["a", "b", "c"]);
    let mut client = Client::new(&machines);
    let members: String = (0..100).map(|number| format!(" member{number}")).collect();
    client.ask(&format!("sadd set{members}\r\n"), 1);
    client.ask(&format!("hset hash{}\r\n", members.replace("er", "er 1 ").trim_end()), 1);
    // Each of them has its own order, and its own random numbers.
    for (words, lines) in [
        ("smembers set", 201),
        ("sunion set set", 201),
        ("srandmember set", 2),
        ("time", 5),
        ("lastsave", 1),
        ("ttl set", 1),
        ("client id", 1),
        ("object encoding set", 2),
        ("dbsize", 1),
        ("debug sleep 0", 1),
    ] {
        for _ in 0..3 {
            client.ask(&format!("{words}\r\n"), lines);
        }
    }
    // A transaction has them, too.
    client.ask("multi\r\nsmembers set\r\ntime\r\nincr number\r\nexec\r\n", 4 + 1 + 201 + 5 + 1);
    assert_eq!(client.ask("incr number\r\n", 1), ":2");
    // What is compared has come to its end everywhere.
    let index = || {
        let (_, status) = machines.ask(&primary, &["status"]);
        let (_, rest) = status.split_once("log index ")?;
        let last = rest.split_once(',')?.0.to_owned();
        let rows = status.lines().filter(|line| line.contains(":7400"));
        let compared = rows.filter(|line| line.trim_end().ends_with(&format!(" {last}"))).count();
        (compared == 3).then_some(())
    };
    eventually_or(index, || machines.ask(&primary, &["status"]).1);
    let (_, why) = machines.ask(&primary, &["why"]);
    assert!(!why.contains("otherwise"), "{why}");
    assert!(machines.ask(&primary, &["status"]).1.contains("view 1,"));
}

#[test]
fn replies_that_every_server_gives_in_its_own_way_go_on_from_another_server() {
    const MEMBERS: usize = 60_000;
    let Some(machines) = Machines::undying("answers-own-go-on", 3, 0) else { return };
    let _nodes = machines.start_all(&[]);
    let first = machines.primary(&["a", "b", "c"]);
    let next = if first == "a" { "b" } else { "a" };
    // Its numbers of connections get longer than those of the others.
    for _ in 0..120 {
        assert_eq!(machines.redis(next, "ping"), "+PONG");
    }
    let mut client = Client::new(&machines);
    for part in 0..60 {
        let members: String =
            (0..MEMBERS / 60).map(|number| format!(" member{}", part * MEMBERS / 60 + number)).collect();
        client.ask(&format!("sadd set{members}\r\n"), 1);
    }
    let id = client.ask("client id\r\n", 1);
    assert!(id.starts_with(':') && id.len() < 4, "{id}");
    assert_eq!(client.ask("incr number\r\n", 1), ":1");
    // Most of that stays where it is while nobody reads it.
    let mut reads = Client::new(&machines);
    reads.ask("client id\r\nsmembers set\r\nincr number\r\n", 2);
    let (done, said) = machines.ask(next, &["switchover", next]);
    assert!(done, "{said}");
    // Nothing of the replies before is said again, and nothing is missing.
    assert_eq!(client.ask("incr number\r\n", 1), ":3");
    let lines = reads.ask("", 2 * MEMBERS);
    let mut members: Vec<&str> = lines.split(' ').filter(|word| word.starts_with('m')).collect();
    members.sort_unstable();
    members.dedup();
    assert_eq!(members.len(), MEMBERS);
    assert_eq!(reads.ask("incr number\r\n", 2), ":2 :4");
    let (_, why) = machines.ask(next, &["why"]);
    assert!(!why.contains("otherwise"), "{why}");
}

#[test]
fn a_command_that_would_leave_servers_with_different_data_is_refused_at_all_of_them() {
    let Some(machines) = Machines::undying("answers-refused", 2, 1) else { return };
    let mut nodes = machines.start_all(&[]);
    let primary = machines.primary(&["a", "b"]);
    let leading = nodes.iter_mut().find(|node| node.name == primary).unwrap();
    eventually("it does not say how it deals with redis", || {
        leading.outlast.said_so_far().contains("SPOP is refused").then_some(())
    });
    let mut client = Client::new(&machines);
    assert_eq!(client.ask("sadd set a b c d e f g h\r\n", 1), ":8");
    let refused = "-ERR unknown command";
    for words in ["spop set\r\n", "*2\r\n$4\r\nSPOP\r\n$3\r\nset\r\n", "sPoP set 3\r\n"] {
        let said = client.ask(words, 1);
        assert!(said.starts_with(refused), "{said}");
    }
    // In pieces, and in a transaction.
    client.ask("*2\r\n$4\r\nSP", 0);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(client.ask("OP\r\n$3\r\nset\r\n", 1).starts_with(refused));
    assert_eq!(client.ask("multi\r\n", 1), "+OK");
    assert!(client.ask("spop set\r\n", 1).starts_with(refused));
    assert!(client.ask("exec\r\n", 1).starts_with("-EXECABORT"));
    leading.outlast.wait_for("is refused at all servers, as each would do something else: SPOP");
    // What looks like it is none.
    assert_eq!(client.ask("set spop spop\r\nget spop\r\n", 3), "+OK $4 spop");
    assert_eq!(client.ask("scard set\r\n", 1), ":8");
    let backup = if primary == "a" { "b" } else { "a" };
    eventually("it is not there", || (machines.redis(backup, "get spop") == "spop").then_some(()));
    assert_eq!(machines.redis(backup, "scard set"), ":8");
    assert_eq!(machines.role(backup), "backup");
}
