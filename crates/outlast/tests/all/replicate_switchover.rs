//! The primary of `outlast replicate` is switched again and again under load, and ends, while all are well.

use crate::common::eventually;
use crate::replicate::{BREAK, Counters, Machines, PATIENCE, are_equal, has_all, take};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const SWITCHOVERS: usize = 12;
/// Many packets, which the kernel makes fewer ones of.
const VALUE_BYTES: usize = 300_000;

/// A client that moves much in both directions, until it is to end: how many times it has done so.
pub fn moves_much(machines: &Machines, ends: &Arc<AtomicBool>) -> JoinHandle<usize> {
    let (host, portal, ends) = (machines.client.clone(), machines.portal, ends.clone());
    std::thread::spawn(move || {
        let _guard = host.enter_guard().unwrap();
        let mut stream = TcpStream::connect_timeout(&portal, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut count = 0;
        while !ends.load(Ordering::Relaxed) {
            let value: Vec<u8> =
                (0..VALUE_BYTES).map(|at| b'a' + ((at + count) * 7 % 23 + at / 1000 % 3) as u8).collect();
            stream
                .write_all(format!("*3\r\n$3\r\nset\r\n$4\r\nmuch\r\n${VALUE_BYTES}\r\n").as_bytes())
                .unwrap();
            stream.write_all(&value).unwrap();
            stream.write_all(b"\r\nget much\r\n").unwrap();
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            answers.read_line(&mut line).unwrap();
            assert_eq!(line, format!("+OK\r\n${VALUE_BYTES}\r\n"));
            let mut got = vec![0; VALUE_BYTES + 2];
            answers.read_exact(&mut got).unwrap();
            assert!(got.starts_with(&value), "other bytes");
            count += 1;
            std::thread::sleep(BREAK);
        }
        count
    })
}

#[test]
fn clients_go_on_while_the_primary_is_switched_again_and_again() {
    let Some(machines) = Machines::new("switchover", 3, 0) else { return };
    let mut nodes = machines.start_all(&["--metrics", "127.0.0.1:9100"]);
    let names = ["a", "b", "c"];
    let mut primary = machines.primary(&names);
    let (counters, ends) = (Counters::start(&machines, 4), Arc::new(AtomicBool::new(false)));
    let much = moves_much(&machines, &ends);
    counters.go_on();
    for number in 0..SWITCHOVERS {
        let others: Vec<&str> = names.into_iter().filter(|name| *name != primary).collect();
        let (asked, next) = (names[number % 3], others[number % 2]);
        let said = machines.ask(asked, &["switchover", next]);
        assert_eq!(said, (true, format!("{next} is the primary\n")), "from {primary}, {number}");
        // Others may come before it serves.
        std::thread::sleep(Duration::from_millis(number as u64 % 4 * 20));
        primary = next.to_owned();
        counters.go_on();
    }
    // What came to an earlier primary was not lost.
    let total = |name: &str| -> u64 {
        let of_node = |node: &&str| {
            let metrics = machines.machine(node).host.enter(|| {
                let mut stream = TcpStream::connect("127.0.0.1:9100").unwrap();
                stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
                let mut all = String::new();
                stream.read_to_string(&mut all).unwrap();
                all
            });
            let begin = format!("outlast_replica_{name}_packets_total{{");
            let metrics = metrics.unwrap();
            let line = metrics.lines().find(|line| line.starts_with(&begin)).unwrap();
            line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        names.iter().map(of_node).sum()
    };
    let (forwarded, injected) = (total("forwarded"), total("injected"));
    assert!(forwarded > 0 && injected > 0, "{forwarded} packets were forwarded, {injected} were taken");
    eprintln!("{forwarded} packets were forwarded, {injected} were taken");

    // One that does not lead any more ends like any other.
    let node = take(&mut nodes, &primary);
    let (done, said) = machines.ask(&primary, &["drain"]);
    assert!(done && said.contains("leaves the group"), "{said}");
    counters.go_on();
    let left: Vec<&str> = names.into_iter().filter(|name| *name != primary).collect();
    eventually("it is a member still", || {
        let (_, status) = machines.ask(left[0], &["status"]);
        status.contains(" out").then_some(())
    });
    drop(node);
    counters.go_on();
    ends.store(true, Ordering::Relaxed);
    let much = much.join().unwrap();
    assert!(much > 3, "{much}");
    let counts = counters.end();
    for name in &left {
        has_all(&machines, name, &counts);
    }
    are_equal(&machines, &left);
}
