//! Programs that say where they want to go, by real clients.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{Outlast, PATIENCE, curl, echo, folder, http, nobody, output, secret_file, speaking};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// Loopback, where the services of these tests are, has to be named.
const TO_LOOPBACK: [&str; 4] = ["--allow-to", "127.0.0.0/8", "--allow-to", "::1"];

/// A server to any destination and a client with one kind of front.
fn start(runtime: &Path, server_flags: &[&str], client_flags: &[&str]) -> (Outlast, Outlast, String) {
    let mut server =
        Outlast::start(runtime, &[&["listen", "127.0.0.1:0", "--to-any"], server_flags].concat());
    let via = server.address().to_string();
    let mut client = Outlast::start(runtime, &[&["connect", "--via", &via], client_flags].concat());
    let front = client.address().to_string();
    (server, client, front)
}

#[test]
fn curl_fetches_by_socks5() {
    let folder = folder();
    let (_server, _client, front) = start(folder.path(), &TO_LOOPBACK, &["--socks5", "127.0.0.1:0"]);
    let site = http("by socks");
    let url = format!("http://{site}/");
    let named = format!("http://localhost:{}/", site.port());
    for (proxy, url) in [("--socks5", &url), ("--socks5-hostname", &url), ("--socks5-hostname", &named)] {
        let output = curl(&[proxy, &front, url]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "by socks", "{output:?}");
    }
}

#[test]
fn curl_fetches_by_http_connect() {
    let folder = folder();
    let (_server, _client, front) = start(folder.path(), &TO_LOOPBACK, &["--http-connect", "127.0.0.1:0"]);
    let site = http("by connect");
    let url = format!("http://{site}/");
    let output = curl(&["--proxytunnel", "--proxy", &front, &url]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "by connect", "{output:?}");
    // Without a tunnel curl asks the proxy to GET.
    let output = curl(&["--write-out", "%{http_code}", "--proxy", &front, &url]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "only CONNECT is supported\n405");
}

#[test]
fn programs_have_to_give_the_password() {
    let folder = folder();
    let file = secret_file(folder.path(), "auth", "ann:secret\n");
    let flags = ["--socks5", "127.0.0.1:0", "--http-connect", "127.0.0.1:0", "--proxy-auth-file", &file];
    let (_server, mut client, socks) = start(folder.path(), &TO_LOOPBACK, &flags);
    let connect = client.address().to_string();
    let url = format!("http://{}/", http("let in"));
    let cases = [
        (vec!["--socks5", &socks, "--proxy-user", "ann:secret"], true),
        (vec!["--socks5", &socks, "--proxy-user", "ann:Secret"], false),
        (vec!["--socks5", &socks], false),
        (vec!["--proxytunnel", "--proxy", &connect, "--proxy-user", "ann:secret"], true),
        (vec!["--proxytunnel", "--proxy", &connect, "--proxy-user", "bob:secret"], false),
        (vec!["--proxytunnel", "--proxy", &connect], false),
    ];
    for (mut arguments, expected) in cases {
        arguments.push(&url);
        assert_eq!(curl(&arguments).stdout == b"let in", expected, "{arguments:?}");
    }
}

#[test]
fn refusals_reach_the_program_with_their_reason() {
    let folder = folder();
    let flags = ["--socks5", "127.0.0.1:0", "--http-connect", "127.0.0.1:0"];
    let (_server, mut client, socks) = start(folder.path(), &["--allow-to", "127.0.0.0/8"], &flags);
    let connect = client.address().to_string();

    let refused = format!("http://{}/", nobody());
    let output = curl(&["--proxytunnel", "--proxy", &connect, "--write-out", "%{http_connect}", &refused]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "502", "{output:?}");
    let output =
        curl(&["--proxytunnel", "--proxy", &connect, "--write-out", "%{http_connect}", "http://192.0.2.1/"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "403", "{output:?}");
    let output = curl(&["--socks5-hostname", &socks, &refused]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("(5)"), "{output:?}");
    let output = curl(&["--socks5-hostname", &socks, "http://192.0.2.1/"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("(2)"), "{output:?}");
    let output = curl(&["--socks5-hostname", &socks, "http://nowhere.invalid/"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("(4)"), "{output:?}");
}

#[test]
fn a_program_that_has_said_all_along_with_its_request_is_served() {
    let folder = folder();
    let (_server, _client, front) = start(folder.path(), &TO_LOOPBACK, &["--http-connect", "127.0.0.1:0"]);
    for _ in 0..10 {
        let mut program = TcpStream::connect(&front).unwrap();
        program.set_read_timeout(Some(PATIENCE)).unwrap();
        program.write_all(format!("CONNECT {} HTTP/1.1\r\n\r\nhello", echo()).as_bytes()).unwrap();
        program.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = String::new();
        program.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("hello"), "{said}");
    }
}

#[test]
fn no_front_keeps_a_place_that_nobody_uses_from_another_one() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &echo().to_string()]);
    let via = server.address().to_string();
    let path = folder.path().join("front");
    let unix = format!("unix:{}", path.display());
    let arguments = ["connect", &unix, "--socks5", "127.0.0.1:0", "--http-connect", "127.0.0.1:0"];
    let limits = ["--max-sessions", "1", "--via", &via];
    let mut client = Outlast::start(folder.path(), &[&arguments[..], &limits].concat());
    client.wait_for("HTTP CONNECT");
    crate::common::eventually("no front", || path.exists().then_some(()));
    for _ in 0..5 {
        let mut program = std::os::unix::net::UnixStream::connect(&path).unwrap();
        program.set_read_timeout(Some(PATIENCE)).unwrap();
        program.write_all(b"hello").unwrap();
        program.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = String::new();
        program.read_to_string(&mut said).unwrap();
        assert_eq!(said, "hello");
    }
}

#[test]
fn patterns_choose_the_server() {
    let folder = folder();
    let to_any = [&["listen", "127.0.0.1:0", "--to-any"][..], &TO_LOOPBACK].concat();
    let mut first = Outlast::start(folder.path(), &to_any);
    let mut second = Outlast::start(folder.path(), &to_any);
    let site = http("routed");
    let by_name = format!("localhost:{}={}", site.port(), second.address());
    let by_default = first.address().to_string();
    let arguments = ["connect", "--socks5", "127.0.0.1:0", "--via", &by_default, "--via", &by_name];
    let mut client = Outlast::start(folder.path(), &arguments);
    let front = client.address().to_string();
    curl(&["--socks5-hostname", &front, &format!("http://{site}/")]);
    first.wait_for("destination=127.0.0.1:");
    curl(&["--socks5-hostname", &front, &format!("http://localhost:{}/", site.port())]);
    second.wait_for("destination=localhost:");
}

#[test]
fn a_server_with_a_fixed_target_takes_no_destinations_and_both_sides_say_so() {
    // One service answers what it does not understand, one says nothing to it.
    for service in [http("fixed"), speaking(b"")] {
        let folder = folder();
        let to = service.to_string();
        let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to", &to]);
        let via = server.address().to_string();
        let flags = ["connect", "--http-connect", "127.0.0.1:0", "--socks5", "127.0.0.1:0", "--via", &via];
        let mut client = Outlast::start(folder.path(), &flags);
        let socks = client.address().to_string();
        let connect = client.address().to_string();
        let output = curl(&["--socks5-hostname", &socks, "http://192.0.2.1/"]);
        assert!(String::from_utf8_lossy(&output.stderr).contains("(1)"), "{output:?}");
        let said = client.wait_for("destination=192.0.2.1:80");
        assert!(said.contains("WARN") && said.contains(&via) && said.contains("it needs --to-any"), "{said}");
        let code = ["--proxytunnel", "--proxy", &connect, "--write-out", "%{http_connect}"];
        let output = curl(&[&code[..], &["http://192.0.2.1/"]].concat());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "503", "{output:?}");
        let said = server.wait_for("asks for");
        assert!(
            said.contains("WARN") && said.contains("asks for 192.0.2.1:80") && said.contains(&to),
            "{said}"
        );
    }
}

#[test]
fn a_server_that_says_nothing_at_all_is_remarked_on() {
    let folder = folder();
    let (server, mut client, front) = start(folder.path(), &TO_LOOPBACK, &["--socks5", "127.0.0.1:0"]);
    server.freeze();
    let mut program = TcpStream::connect(&front).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    let nobody = nobody();
    let asked = [b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01", &nobody.port().to_be_bytes()[..]].concat();
    program.write_all(&asked).unwrap();
    let said = client.wait_for(&format!("no answer about {nobody}"));
    assert!(said.contains("WARN") && said.contains("--to-any"), "{said}");
    // It was only slow.
    server.signal("CONT");
    let mut answer = [0; 4];
    program.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"\x05\x00\x05\x05");
}

#[test]
fn a_server_to_any_destination_resets_clients_that_name_none() {
    let folder = folder();
    let mut server = Outlast::start(folder.path(), &["listen", "127.0.0.1:0", "--to-any"]);
    let via = server.address().to_string();
    let mut client = Outlast::start(folder.path(), &["connect", "127.0.0.1:0", "--via", &via]);
    let mut program = TcpStream::connect(client.address()).unwrap();
    program.set_read_timeout(Some(PATIENCE)).unwrap();
    program.write_all(b"SSH-2.0-test\r\n").unwrap();
    assert!(program.read(&mut [0]).is_err());
    server.wait_for("the client names no destination");
    // Nor is one that says nothing at all told in a language that it does not speak.
    let silent = output(folder.path(), &["connect", "--stdio", "--via", &via]);
    let said = String::from_utf8_lossy(&silent.stderr);
    assert!(silent.stdout.is_empty() && said.contains("the client names no destination"), "{silent:?}");
    assert_eq!(silent.status.code(), Some(3));
}

#[test]
fn garbage_at_the_front_is_refused_and_the_front_stays() {
    let folder = folder();
    let flags = ["--socks5", "127.0.0.1:0", "--http-connect", "127.0.0.1:0"];
    let (_server, mut client, socks) = start(folder.path(), &TO_LOOPBACK, &flags);
    let connect = client.address().to_string();
    for garbage in [
        &b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00"[..],
        b"\x16\x03\x01\x02\x00",
        b"SSH-2.0-x\r\n",
        &[0xFF; 20_000],
    ] {
        for front in [&socks, &connect] {
            let mut program = TcpStream::connect(front).unwrap();
            program.set_read_timeout(Some(PATIENCE)).unwrap();
            program.write_all(garbage).ok();
            program.shutdown(std::net::Shutdown::Write).ok();
            let mut answer = Vec::new();
            // An answer or a reset, but an end.
            program.read_to_end(&mut answer).ok();
        }
    }
    let url = format!("http://{}/", http("still there"));
    assert_eq!(curl(&["--socks5-hostname", &socks, &url]).stdout, b"still there");
    assert_eq!(curl(&["--proxytunnel", "--proxy", &connect, &url]).stdout, b"still there");
}

#[test]
fn a_server_to_any_network_is_no_way_to_what_trusts_its_own_machine() {
    let folder = folder();
    let site = http("for this machine only");
    let (port, flags) = (site.port(), ["--socks5", "127.0.0.1:0"]);
    let hosts = ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"];
    for rules in [&["--allow-to", "any"][..], &[], &["--allow-to", "0.0.0.0/0", "--allow-to", "::/0"]] {
        let (mut server, _client, front) = start(folder.path(), rules, &flags);
        for host in hosts {
            let output = curl(&["--socks5-hostname", &front, &format!("http://{host}:{port}/")]);
            assert!(String::from_utf8_lossy(&output.stderr).contains("(2)"), "{host}: {output:?}");
            server.wait_for("which this server reaches only if --allow-to names it");
        }
    }
    // Named, it is reached; and what is denied is not, whatever else is said.
    let named = format!("127.0.0.1:{port}");
    let (_server, _client, front) = start(folder.path(), &["--allow-to", &named], &flags);
    let url = format!("http://localhost:{port}/");
    assert_eq!(curl(&["--socks5-hostname", &front, &url]).stdout, b"for this machine only");
    let denied = ["--allow-to", &named, "--deny-to", "127.0.0.0/8"];
    let (mut server, _client, front) = start(folder.path(), &denied, &flags);
    assert!(!curl(&["--socks5-hostname", &front, &url]).status.success());
    server.wait_for("is denied by this server's --deny-to");
}

/// Somebody who tries doors is seen at the server without any flag for the log, and does not fill it.
#[test]
fn refused_destinations_are_warned_of_and_do_not_fill_the_log() {
    let folder = folder();
    let mut command = crate::common::command(
        folder.path(),
        &["listen", "127.0.0.1:0", "--to-any", "--allow-to", "192.0.2.1:80"],
    );
    command.stderr(std::process::Stdio::piped());
    let mut server = Outlast::from(command);
    let via = server.address().to_string();
    let mut client =
        Outlast::start(folder.path(), &["connect", "--via", &via, "--http-connect", "127.0.0.1:0"]);
    let front = client.address().to_string();
    for number in 0..30 {
        let mut program = TcpStream::connect(&front).unwrap();
        program.set_read_timeout(Some(PATIENCE)).unwrap();
        program
            .write_all(format!("CONNECT 192.0.2.7:{} HTTP/1.1\r\n\r\n", 8000 + number).as_bytes())
            .unwrap();
        let mut answer = String::new();
        program.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 403 "), "{answer}");
    }
    server.signal("INT");
    server.ended();
    let said = server.said();
    let told: Vec<&str> = said.lines().filter(|line| line.contains("refused 192.0.2.7:")).collect();
    assert!(told[0].contains("WARN") && told[0].contains("refused 192.0.2.7:8000 to 127.0.0.1:"), "{said}");
    // Ten, and one in ten seconds.
    assert!((10..20).contains(&told.len()), "{said}");
}
