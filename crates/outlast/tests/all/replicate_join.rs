//! Nodes of `outlast replicate` that were out come back with a copy of another one's data, while clients go on.

use crate::common::{eventually, eventually_or};
use crate::replicate::{Counters, Machines, Node, PATIENCE, are_equal, has_all, take};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::process::Command;

/// Nodes that die one after the other. `OUTLAST_DEATHS` says another number.
const DEATHS: usize = 7;

const IDLE: usize = 700;

/// A client of redis by hand.
pub struct Client {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Client {
    pub fn new(machines: &Machines) -> Self {
        let stream = machines
            .client
            .enter(|| TcpStream::connect_timeout(&machines.portal, PATIENCE))
            .unwrap()
            .unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let answers = BufReader::new(stream.try_clone().unwrap());
        Self { stream, answers }
    }

    /// So many lines of what the server says to this.
    pub fn ask(&mut self, words: &str, lines: usize) -> String {
        self.stream.write_all(words.as_bytes()).unwrap();
        let mut all = String::new();
        for _ in 0..lines {
            self.answers.read_line(&mut all).unwrap();
        }
        all.replace("\r\n", " ").trim_end().to_owned()
    }
}

pub fn wait_for_member(machines: &Machines, name: &str) {
    let is_member = || ["backup", "primary, serves clients"].contains(&machines.role(name).as_str());
    eventually_or(|| is_member().then_some(()), || format!("{name} is {}", machines.role(name)));
}

/// Has this member serve clients, whoever does.
pub fn switch_to(machines: &Machines, name: &str) {
    eventually("it does not lead", || {
        machines.ask(name, &["switchover", name]);
        (machines.role(name) == "primary, serves clients").then_some(())
    });
}

#[test]
fn a_node_comes_back_and_serves_connections_that_are_older_than_its_data() {
    let Some(machines) = Machines::new("join", 2, 1) else { return };
    let mut nodes = machines.start_all(&[]);
    let first = machines.primary(&["a", "b"]);
    let counters = Counters::start(&machines, 3);
    let (mut queues, mut hears, mut chooses) =
        (Client::new(&machines), Client::new(&machines), Client::new(&machines));
    assert_eq!(queues.ask("multi\r\nincr queued\r\n", 2), "+OK +QUEUED");
    assert_eq!(hears.ask("subscribe news\r\n", 6), "*3 $9 subscribe $4 news :1");
    assert_eq!(chooses.ask("select 3\r\nset here yes\r\n", 2), "+OK +OK");
    // More than the server of the node that comes back takes at a time.
    let mut idle: Vec<Client> = (0..IDLE).map(|_| Client::new(&machines)).collect();
    for (number, client) in idle.iter_mut().enumerate() {
        let number = number % 16;
        assert_eq!(client.ask(&format!("select {number}\r\nclient setname idle{number}\r\n"), 2), "+OK +OK");
    }
    // Copies lack scripts: they are forgotten everywhere.
    let load = "script load \"return redis.call('incr', 'scripted')\"\r\n";
    let mut scripts = Client::new(&machines);
    let hash = scripts.ask(load, 2).strip_prefix("$40 ").unwrap().to_owned();
    let runs = format!("evalsha {hash} 0\r\n");
    assert_eq!(scripts.ask(&runs, 1), ":1");
    // The beginning of a request.
    chooses.stream.write_all(b"*2\r\n$3\r\nge").unwrap();
    let (done, why) = machines.ask(&first, &["join"]);
    assert!(!done && why.contains("this node is a member already"), "{why}");

    drop(take(&mut nodes, &first));
    counters.go_on();
    let mut back = machines.start(&first, &[]);
    back.outlast.wait_for("has a vote in the group db, and no data of it");
    let (done, said) = machines.ask(&first, &["join"]);
    assert!(done && said == format!("{first} is a member of the group\n"), "{said}");
    counters.go_on();
    let answer = scripts.ask(&runs, 1);
    assert!(answer.starts_with("-NOSCRIPT"), "{answer}");
    scripts.ask(load, 2);
    assert_eq!(scripts.ask(&runs, 1), ":2");
    switch_to(&machines, &first);
    assert_eq!(scripts.ask(&runs, 1), ":3");
    counters.go_on();

    for (number, client) in idle.iter_mut().enumerate() {
        let number = number % 16;
        let (key, length) = (format!("idle{number}"), format!("idle{number}").len());
        assert_eq!(client.ask("client getname\r\n", 2), format!("${length} {key}"));
        assert_eq!(client.ask(&format!("set here {number}\r\n"), 1), "+OK");
    }
    assert_eq!(chooses.ask("t\r\n$4\r\nhere\r\n", 2), "$1 3");
    assert_eq!(machines.redis(&first, "get here"), "0");
    assert_eq!(queues.ask("exec\r\n", 2), "*1 :1");
    assert_eq!(queues.ask("publish news today\r\n", 1), ":1");
    assert_eq!(hears.ask("", 7), "*3 $7 message $4 news $5 today");
    let counts = counters.end();
    for name in ["a", "b"] {
        has_all(&machines, name, &counts);
    }
    are_equal(&machines, &["a", "b"]);

    // The witness is missed by the one that leads the vote.
    let lines = |name: &str| machines.ask(name, &["status"]).1;
    let is_equal = |status: &String| {
        let index = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(&format!(" {name} ")));
            line.and_then(|line| line.split_whitespace().last().map(str::to_owned))
        };
        index("a").is_some_and(|index| index.replace(',', "").parse::<u64>().is_ok())
            && index("a") == index("b")
    };
    eventually_or(|| is_equal(&lines(&first)).then_some(()), || lines(&first));
    drop(take(&mut nodes, "w"));
    let misses =
        |name: &&str| lines(name).lines().any(|line| line.starts_with(" w ") && line.contains(" no"));
    eventually("nobody misses the witness", || ["a", "b"].iter().find(|name| misses(name)).map(|_| ()));
}

#[test]
fn clients_go_on_while_node_after_node_dies_and_comes_back() {
    let Some(machines) = Machines::new("join-deaths", 3, 0) else { return };
    let deaths = std::env::var("OUTLAST_DEATHS").map_or(DEATHS, |count| count.parse().unwrap());
    let mut nodes = machines.start_all(&["--join"]);
    let names = ["a", "b", "c"];
    let counters = Counters::start(&machines, 3);
    let mut queues = Client::new(&machines);
    assert_eq!(queues.ask("multi\r\nincr queued\r\n", 2), "+OK +QUEUED");
    for death in 0..deaths {
        let primary = machines.primary(&names);
        let backup = names.into_iter().find(|name| *name != primary).unwrap();
        let name = if death % 3 == 2 { backup } else { &primary };
        let mut dies = take(&mut nodes, name);
        eprintln!("death {death}: {name}, {primary} leads");
        let is_left = || {
            let others: Vec<&str> = names.into_iter().filter(|other| *other != name).collect();
            let (_, status) = machines.ask(others[0], &["status"]);
            (status.matches(" out").count() == 1).then_some(())
        };
        if death % 4 == 3 {
            // It goes on in the same process, and has nothing to tell.
            // Of its last return.
            dies.outlast.said_so_far();
            dies.outlast.freeze();
            eventually("nobody has noticed", is_left);
            dies.outlast.signal("CONT");
            dies.outlast.wait_for("its server gets a copy");
            nodes.push(dies);
        } else {
            if death % 4 == 1 {
                let server = dies.server().to_string();
                assert!(Command::new("kill").args(["-9", &server]).status().unwrap().success());
                assert_eq!(dies.outlast.ended().code(), Some(7));
                dies.outlast.said();
            }
            drop(dies);
            counters.go_on();
            nodes.push(machines.start(name, &["--join"]));
        }
        wait_for_member(&machines, name);
        counters.go_on();
    }
    assert_eq!(queues.ask("exec\r\n", 2), "*1 :1");
    let counts = counters.end();
    for name in names {
        has_all(&machines, name, &counts);
    }
    are_equal(&machines, &names);
}

#[test]
fn what_cannot_be_told_to_another_server_is_reset_before_a_node_comes_back() {
    let Some(machines) = Machines::new("join-untold", 3, 0) else { return };
    let mut nodes = machines.start_all(&[]);
    let first = machines.primary(&["a", "b", "c"]);
    drop(take(&mut nodes, &first));
    machines.primary(&["a", "b", "c"].into_iter().filter(|name| *name != first).collect::<Vec<_>>());
    let (mut watches, mut waits) = (Client::new(&machines), Client::new(&machines));
    assert_eq!(watches.ask("set key 1\r\nwatch key\r\n", 2), "+OK +OK");
    assert_eq!(waits.ask("ping\r\nblpop queue 0\r\n", 1), "+PONG");
    let mut back = machines.start(&first, &[]);
    back.outlast.wait_for("has a vote in the group db, and no data of it");
    let (done, said) = machines.ask(&first, &["join"]);
    assert!(done, "{said}");
    for client in [&mut watches, &mut waits] {
        let mut line = String::new();
        assert_eq!(
            client.answers.read_line(&mut line).map_err(|error| error.kind()),
            Err(ErrorKind::ConnectionReset)
        );
    }
    let mut again = Client::new(&machines);
    assert_eq!(again.ask("get key\r\n", 2), "$1 1");
    assert_eq!(machines.redis(&first, "get key"), "1");
}

#[test]
fn a_copy_that_fails_leaves_a_node_out_and_everybody_else_as_they_were() {
    let Some(machines) = Machines::new("join-fails", 3, 0) else { return };
    let mut nodes = machines.start_all(&[]);
    let first = machines.primary(&["a", "b", "c"]);
    let counters = Counters::start(&machines, 2);
    counters.go_on();
    let others: Vec<&str> = ["a", "b", "c"].into_iter().filter(|name| *name != first).collect();
    let name = others[0];
    let with = |flags: &[&str]| -> Node {
        let mut node = machines.start(name, flags);
        node.outlast.wait_for("has a vote in the group db, and no data of it");
        node
    };
    drop(take(&mut nodes, name));
    let node = with(&["--snapshot", "redis", "--restore", "head -c 10 >/dev/null; exit 3"]);
    let (done, why) = machines.ask(name, &["join"]);
    assert!(!done && why.contains("exit 3\" has failed (exit status: 3)"), "{why}");
    let (_, status) = machines.ask(name, &["status"]);
    assert!(status.contains("cannot join: the server has not got the data of"), "{status}");
    counters.go_on();
    drop(node);

    // One that is killed while it gets the data.
    let mut node = with(&["--snapshot", "redis", "--restore", "sleep 60", "--join"]);
    node.outlast.wait_for("its server gets a copy");
    drop(node);
    counters.go_on();

    let _node = with(&[]);
    let (done, said) = machines.ask(name, &["join"]);
    assert!(done, "{said}");
    counters.go_on();
    let counts = counters.end();
    has_all(&machines, name, &counts);
    are_equal(&machines, &[name, &first]);
}
