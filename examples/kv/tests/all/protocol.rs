//! HTTP, as clients of all kinds speak it. Also for the service without Outlast.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Client, Random, Server, request};
use std::process::Command;

/// Requests in one piece, and the beginning of each answer.
const CONVERSATIONS: &[(&str, &str)] = &[
    ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "),
    ("GET /kv/a HTTP/1.1\r\nHost: kv\r\n\r\n", "HTTP/1.1 404 "),
    ("GET /kv/%zz HTTP/1.1\r\nHost: kv\r\n\r\n", "HTTP/1.1 400 "),
    (
        "GET http://kv:80/counter/a HTTP/1.1\r\nHost: kv\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n0\n",
    ),
    ("PATCH /kv/a HTTP/1.1\r\nHost: kv\r\n\r\n", "HTTP/1.1 501 "),
    ("PUT /counter/a HTTP/1.1\r\nHost: kv\r\n\r\n", "HTTP/1.1 405 "),
    ("rubbish\r\n\r\n", "HTTP/1.1 400 "),
    (
        "GET /counter/a HTTP/1.0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n0\n",
    ),
    // What could be taken for two different requests is taken for none.
    (
        "PUT /kv/a HTTP/1.1\r\nHost: kv\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 400 ",
    ),
    ("PUT /kv/a HTTP/1.1\r\nHost: kv\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "HTTP/1.1 400 "),
    ("PUT /kv/a HTTP/1.1\r\nHost: kv\r\nContent-Length: +1\r\n\r\n", "HTTP/1.1 400 "),
    ("PUT /kv/a HTTP/1.1\r\nHost: kv\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "HTTP/1.1 501 "),
    ("PUT /kv/a HTTP/1.1\r\nHost: kv\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "HTTP/1.1 400 "),
    ("PUT /kv/a HTTP/1.1\r\nHost: kv\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", "HTTP/1.1 400 "),
    ("POST /counter/a HTTP/1.1\r\nHost: kv\r\nContent-Length: 10\r\n\r\n", "HTTP/1.1 400 "),
];

#[test]
fn every_request_has_its_answer() {
    let server = Server::start(&[]);
    for (question, beginning) in CONVERSATIONS {
        for pieces in [question.len(), 7] {
            let mut client = Client::new(server.addresses[0]);
            for piece in question.as_bytes().chunks(pieces) {
                client.say(piece);
            }
            client.finish();
            let answer = String::from_utf8(client.rest()).unwrap();
            assert!(answer.starts_with(beginning), "{question:?}: {answer:?}");
        }
    }
    let long = format!("GET /kv/a HTTP/1.1\r\nHost: kv\r\nLong: {}", "a".repeat(40_000));
    let mut client = Client::new(server.addresses[0]);
    client.say(long.as_bytes());
    assert_eq!(client.hear().status, 431);
    client.ends();
}

#[test]
fn whoever_waits_for_it_is_told_to_continue() {
    let server = Server::start(&[]);
    let mut client = Client::new(server.addresses[0]);
    client.say(b"PUT /kv/a HTTP/1.1\r\nHost: kv\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.hear_head(), (100, None));
    client.say(b"value");
    assert_eq!(client.hear().status, 201);
    client.say(b"HEAD /kv/a HTTP/1.1\r\nHost: kv\r\n\r\n");
    assert_eq!(client.hear_head(), (200, Some(5)));
    assert_eq!(client.ask("GET", "/kv/a", b"").content, b"value");
}

#[test]
fn keys_are_listed_in_order_and_in_parts() {
    let server = Server::start(&[]);
    let mut client = Client::new(server.addresses[0]);
    let mut names: Vec<String> =
        (0..3000).map(|number| format!("list/{number}%20{}", "x".repeat(30))).collect();
    for name in ["lis", "lisu", "a%00b"].into_iter().chain(names.iter().map(String::as_str)) {
        assert_eq!(client.ask("PUT", &format!("/kv/{name}"), b"").status, 201, "{name}");
    }
    names.sort_unstable();
    let (mut heard, mut parts) = (Vec::<String>::new(), 0);
    loop {
        let after = heard.last().cloned().unwrap_or_default();
        let answer = client.ask("GET", &format!("/kv?prefix=list&after={after}"), b"");
        let part = String::from_utf8(answer.content).unwrap();
        if part.is_empty() {
            break;
        }
        heard.extend(part.lines().map(str::to_owned));
        parts += 1;
    }
    assert!(heard == names && parts > 1, "{} names in {parts} parts", heard.len());
    assert_eq!(client.ask("GET", "/kv?prefix=a", b"").content, b"a%00b\n");
    assert_eq!(client.ask("DELETE", "/kv/a%00b", b"").status, 204);
    assert_eq!(client.ask("GET", "/kv?prefix=a", b"").content, b"");
}

#[test]
fn many_requests_at_once_are_answered_in_order() {
    let server = Server::start(&[]);
    let mut random = Random(7);
    let mut client = Client::new(server.addresses[1]);
    let mut all = Vec::new();
    for number in 1..=500u64 {
        all.extend(request("PUT", "/kv/pipelined", number.to_string().as_bytes()));
        all.extend(request("GET", "/kv/pipelined", b""));
    }
    for piece in all.chunks(1 + random.size(3000)) {
        client.say(piece);
    }
    for number in 1..=500u64 {
        assert_eq!(client.hear().status, if number == 1 { 201 } else { 204 });
        assert_eq!(client.hear().content, number.to_string().as_bytes());
    }
}

#[test]
#[cfg(feature = "outlast")]
fn what_there_is_no_room_for_is_refused_and_given_back() {
    let server = Server::start(&["--memory-mib", "16"]);
    let mut random = Random(1);
    let content = random.bytes(5 << 20);
    for round in 0..20 {
        let mut client = Client::new(server.addresses[0]);
        client.ask("DELETE", "/kv/large", b"");
        assert_eq!(client.ask("PUT", "/kv/large", &content).status, 201, "round {round}");
        client.say(b"PUT /kv/huge HTTP/1.1\r\nHost: kv\r\nContent-Length: 20000000\r\n\r\n");
        let (mut said, refused) = (0, &[0; 10_000]);
        // It may be refused before all is said.
        while said < 20_000_000 && client.try_say(refused) {
            said += refused.len();
        }
        assert_eq!(client.hear().status, 507, "round {round}");
    }
    let mut client = Client::new(server.addresses[0]);
    assert!(client.ask("GET", "/kv/large", b"").content == content);
    assert_eq!(client.ask("GET", "/kv?prefix=", b"").content, b"large\n");
}

#[test]
fn curl_is_served() {
    let server = Server::start(&[]);
    let run = |arguments: &[&str], path: &str| {
        let url = format!("http://{}{path}", server.addresses[1]);
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--fail"])
            .args(arguments)
            .arg(url)
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["--request", "PUT", "--data", "a value"], "/kv/key");
    assert_eq!(run(&[], "/kv/key"), "a value");
    assert_eq!(run(&["--data", " and more"], "/kv/key"), "16\n");
    assert_eq!(run(&[], "/kv/key"), "a value and more");
    assert!(run(&["--head"], "/kv/key").contains("Content-Length: 16"));
    assert_eq!(run(&["--request", "POST"], "/counter/visits"), "1\n");
    assert_eq!(run(&[], "/counter/visits"), "1\n");
}
