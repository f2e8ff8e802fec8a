//! `outlast replicate recover`: groups that cannot go on by themselves.

use crate::common::eventually;
use crate::replicate::{
    Counters, Machines, Node, PATIENCE, SERVER_PORT, are_equal, has_all, one_answer, take,
};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// Writes to disk before it answers.
fn start(machines: &Machines, name: &str, flags: &[&str]) -> Node {
    let (port, folder) = (SERVER_PORT.to_string(), machines.folder(name).to_str().unwrap().to_owned());
    let redis = ["redis-server", "--port", &port, "--save", "", "--dir", &folder];
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    machines.start_with(name, flags, &[&redis[..], &keeps].concat())
}

fn serves(machines: &Machines, name: &str) {
    eventually("it does not serve", || (machines.role(name) == "primary, serves clients").then_some(()));
}

#[test]
fn a_group_that_was_down_as_a_whole_goes_on_with_the_data_of_its_last_view() {
    let Some(machines) = Machines::new("replicate-recover", 2, 1) else { return };
    let mut nodes: Vec<Node> = ["a", "b"].map(|name| start(&machines, name, &[])).into();
    nodes.push(machines.start("w", &[]));
    let first = machines.primary(&["a", "b"]);
    let counters = Counters::start(&machines, 2);
    counters.go_on();
    let (done, why) = machines.ask("w", &["recover", "--yes"]);
    assert!(!done && why.contains("the group works"), "{why}");
    // One is out before the others go: its data are older.
    drop(take(&mut nodes, &first));
    let last = if first == "a" { "b" } else { "a" };
    serves(&machines, last);
    counters.go_on();
    let counts = counters.end();
    drop(nodes);

    let mut nodes = vec![start(&machines, &first, &[]), machines.start("w", &[])];
    for node in &mut nodes {
        node.outlast.wait_for(&format!("waits for {last}"));
    }
    // That the other one may have more is said.
    let plan =
        || Some(machines.ask("w", &["recover"])).filter(|(_, plan)| plan.contains("would begin again"));
    let (done, plan) = eventually("there is no plan", plan);
    for expected in [
        &format!("with the nodes {first}, w and the data of {first}, which was a member until view 1"),
        "does not answer",
        &format!("only nodes were members that cannot be asked ({last})"),
        &format!("whether clients are served by {last} still"),
        "Make sure that they are off",
        "nothing was done: nobody can be asked here, so say --yes",
    ] {
        assert!(!done && plan.contains(expected), "{expected} is not in\n{plan}");
    }
    nodes.push(start(&machines, last, &[]));
    eventually("it is not heard", || {
        machines.ask("w", &["recover"]).1.contains("until view 2").then_some(())
    });
    // Any node can be asked.
    let (done, said) = machines.ask("w", &["recover", "--yes"]);
    assert!(done && said.contains(&format!("the group db goes on with the data of {last}")), "{said}");
    serves(&machines, last);
    has_all(&machines, last, &counts);
    let (_, why) = machines.ask(last, &["why"]);
    assert!(
        why.contains(&format!("recover was asked for: the group begins again, with the data of {last}")),
        "{why}"
    );
    // The other one is asked for nothing before it has a copy.
    let role = machines.role(&first);
    assert!(role.starts_with("no member, its server has no data of the group"), "{role}");
    let (done, said) = machines.ask(&first, &["join"]);
    assert!(done, "{said}");
    has_all(&machines, &first, &counts);
    // As any group.
    let killed = take(&mut nodes, last);
    killed.outlast.signal("KILL");
    serves(&machines, &first);
    has_all(&machines, &first, &counts);
}

#[test]
fn the_only_node_that_is_left_goes_on_and_others_come_in_again() {
    let Some(machines) = Machines::new("replicate-left", 2, 1) else { return };
    let mut nodes = machines.start_all(&["--join"]);
    let first = machines.primary(&["a", "b"]);
    let left = if first == "a" { "b" } else { "a" };
    let counters = Counters::start(&machines, 2);
    counters.go_on();
    let counts = counters.end();
    let connecting = || TcpStream::connect_timeout(&machines.portal, PATIENCE);
    let mut idle = machines.client.enter(connecting).unwrap().unwrap();
    idle.set_read_timeout(Some(PATIENCE)).unwrap();
    idle.write_all(b"ping\r\n").unwrap();
    let mut pong = [0; 7];
    idle.read_exact(&mut pong).unwrap();

    // One is cut off, and one is dead. What was cut off does not work for longer than it takes others to be sure of that.
    machines.cut_off(&first, true);
    drop(take(&mut nodes, "w"));
    let server = nodes.iter().find(|node| node.name == left).unwrap().server();
    eventually("it serves still", || (machines.role(left) != "primary, serves clients").then_some(()));
    eventually("it is not alone", || {
        machines.ask(left, &["recover"]).1.contains("would begin again").then_some(())
    });
    let (done, said) = machines.ask(left, &["recover", "--yes"]);
    assert!(done && said.contains(&format!("goes on with the data of {left}")), "{said}");
    serves(&machines, left);
    // Its server is the same, with all that it had in memory.
    assert_eq!(nodes.iter().find(|node| node.name == left).unwrap().server(), server);
    has_all(&machines, left, &counts);
    // Clients of before hear that their connection is gone as soon as they say something.
    idle.write_all(b"ping\r\n").unwrap();
    assert_eq!(idle.read(&mut pong).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let (_, why) = machines.ask(left, &["why"]);
    for expected in ["the group begins: all nodes of the list are there", "recover was asked for"] {
        assert!(why.contains(expected), "{expected} is not in\n{why}");
    }

    // The others come in as new voters, and one of them as a replica: it sees that the group was founded again without it.
    machines.cut_off(&first, false);
    nodes.push(machines.start("w", &[]));
    eventually("they are not in", || {
        let (_, status) = machines.ask(left, &["status"]);
        let all = status.matches(" yes ").count() >= 3 && machines.role(&first) == "backup";
        all.then_some(())
    });
    let flush = || one_answer(machines.portal, "flushall");
    assert_eq!(machines.client.enter(flush).unwrap(), "+OK");
    let counters = Counters::start(&machines, 2);
    counters.go_on();
    drop(take(&mut nodes, left));
    serves(&machines, &first);
    counters.go_on();
    let counts = counters.end();
    has_all(&machines, &first, &counts);
    are_equal(&machines, &[&first]);
}

#[test]
fn nodes_that_went_on_without_the_group_that_was_founded_again_end_when_they_hear_of_it() {
    went_on_beside("replicate-two", false);
}

#[test]
fn a_node_that_went_on_so_and_was_started_again_keeps_its_data_as_well() {
    went_on_beside("replicate-two-again", true);
}

fn went_on_beside(prefix: &str, is_started_again: bool) {
    let Some(machines) = Machines::new(prefix, 2, 1) else { return };
    let mut nodes: Vec<Node> = ["a", "b"].map(|name| start(&machines, name, &["--join"])).into();
    nodes.push(machines.start("w", &[]));
    let first = machines.primary(&["a", "b"]);
    let left = if first == "a" { "b" } else { "a" };
    let set = || one_answer(machines.portal, "set before 1");
    assert_eq!(machines.client.enter(set).unwrap(), "+OK");
    // Each is alone, and people are wrong: two of them are not off.
    machines.cut_off(&first, true);
    machines.cut_off("w", true);
    let plan = || machines.ask(left, &["recover"]).1.contains("would begin again").then_some(());
    eventually("it is not alone", plan);
    let (done, said) = machines.ask(left, &["recover", "--yes"]);
    assert!(done, "{said}");
    machines.cut_off(left, true);
    machines.cut_off(&first, false);
    machines.cut_off("w", false);
    serves(&machines, &first);
    let set = || one_answer(machines.portal, "set between 1");
    assert_eq!(machines.client.enter(set).unwrap(), "+OK");
    if is_started_again {
        drop(take(&mut nodes, &first));
        nodes.push(start(&machines, &first, &["--join"]));
    }
    machines.cut_off(left, false);
    let older = nodes.iter_mut().find(|node| node.name == first).unwrap();
    older.outlast.wait_for("clients may have been served by both");
    older.outlast.wait_for("has a vote in the group db, and no data of it");
    serves(&machines, left);
    // What it has is kept until people have looked at it.
    let (_, status) = machines.ask(&first, &["status"]);
    assert!(status.contains("its server has data that the group does not have"), "{status}");
    assert_eq!(machines.redis(&first, "get between"), "1");
    let (done, said) = machines.ask(&first, &["join"]);
    assert!(done, "{said}");
    assert_eq!(machines.redis(&first, "get between"), "nothing");
    assert_eq!(machines.redis(&first, "get before"), "1");
    assert_eq!(machines.role(&first), "backup");
}
