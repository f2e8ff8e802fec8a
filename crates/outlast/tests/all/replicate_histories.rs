//! What clients of a group hear while machines die, are cut off and stand still is what one server would have told them.

use crate::histories::{ACCOUNTS, Asking, Client, Request, faults};
use crate::replicate::{Machines, Node, PATIENCE, take};
use crate::replicate_join::{switch_to, wait_for_member};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// One of them begins.
const CLIENTS: usize = 7;
/// Somebody has seen that something is wrong by then.
const CUT_OFF: Duration = Duration::from_millis(1_200);

/// A client of redis.
struct Redis {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Redis {
    fn new(machines: &Machines) -> Self {
        let connecting = || TcpStream::connect_timeout(&machines.portal, PATIENCE);
        let stream = machines.client.enter(connecting).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let answers = BufReader::new(stream.try_clone().unwrap());
        Self { stream, answers }
    }

    fn ask(&mut self, words: &[&str]) -> String {
        let mut all = format!("*{}\r\n", words.len());
        for word in words {
            all.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.write_all(all.as_bytes()).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let line = line.trim_end();
        match line.split_at(1) {
            ("+" | ":", said) => said.to_owned(),
            ("$", "-1") => "nothing".to_owned(),
            ("$", _) => {
                let mut text = String::new();
                self.answers.read_line(&mut text).unwrap();
                text.trim_end().to_owned()
            }
            ("*", "0") => "nothing".to_owned(),
            ("*", count) => {
                let parts: Vec<String> = (0..count.parse().unwrap()).map(|_| self.answer()).collect();
                parts.join(" ")
            }
            _ => panic!("{line}"),
        }
    }
}

impl Client for Redis {
    fn answer_to(&mut self, request: &Request) -> Option<String> {
        const TRANSFER: &str = "local from, n = tonumber(redis.call('get', KEYS[1])), tonumber(ARGV[1]) \
             if from < n then return 'no' end redis.call('decrby', KEYS[1], n) redis.call('incrby', KEYS[2], n) return 'yes'";
        let key = request.key.as_str();
        let arguments: Vec<&str> = request.arguments.iter().map(String::as_str).collect();
        let account = |number: &dyn ToString| format!("account{}", number.to_string());
        Some(match (request.op, arguments.as_slice()) {
            ("set", [value]) => self.ask(&["set", key, value]),
            ("push", [value]) => self.ask(&["rpush", key, value]),
            ("all", _) => self.ask(&["lrange", key, "0", "-1"]),
            ("open", balances) => {
                let named = balances.iter().enumerate();
                let pairs: Vec<String> =
                    named.flat_map(|(number, balance)| [account(&number), (*balance).to_owned()]).collect();
                let words: Vec<&str> =
                    std::iter::once("mset").chain(pairs.iter().map(String::as_str)).collect();
                self.ask(&words)
            }
            ("transfer", [from, to, n]) => {
                self.ask(&["eval", TRANSFER, "2", &account(from), &account(to), n])
            }
            ("balances", _) => {
                let accounts: Vec<String> = (0..ACCOUNTS).map(|number| account(&number)).collect();
                let words: Vec<&str> =
                    std::iter::once("mget").chain(accounts.iter().map(String::as_str)).collect();
                self.ask(&words)
            }
            (op, _) => self.ask(&[op, key]),
        })
    }
}

#[test]
fn clients_of_redis_hear_what_one_server_would_have_said() {
    let Some(machines) = Machines::new("histories", 3, 1) else { return };
    judged(&machines);
}

/// Clients ask the servers of three machines, whatever becomes of those.
pub fn judged(machines: &Machines) {
    let mut nodes: Vec<Node> = machines.start_all(&["--join"]);
    let names = ["a", "b", "c"];
    let asking = Asking::start((0..CLIENTS).map(|_| Redis::new(machines)).collect());
    for fault in 0..faults() {
        asking.go_on();
        let primary = machines.primary(&names);
        let next = names.into_iter().find(|name| *name != primary).unwrap();
        eprintln!("fault {fault}: {primary} leads");
        match fault % 5 {
            0 => {
                drop(take(&mut nodes, &primary));
                asking.go_on();
                nodes.push(machines.start(&primary, &["--join"]));
            }
            1 => {
                machines.cut_off(&primary, true);
                std::thread::sleep(CUT_OFF);
                machines.cut_off(&primary, false);
            }
            2 => {
                let node = take(&mut nodes, &primary);
                node.outlast.freeze();
                std::thread::sleep(CUT_OFF);
                node.outlast.signal("CONT");
                nodes.push(node);
            }
            3 => switch_to(machines, next),
            _ => {
                machines.cut_off(next, true);
                asking.go_on();
                machines.cut_off(next, false);
            }
        }
        asking.go_on();
        for name in names {
            wait_for_member(machines, name);
        }
    }
    let history = asking.end();
    assert!(history.count() > 1_000, "{}", history.count());
    eprint!("{}", history.judge().unwrap());
}
