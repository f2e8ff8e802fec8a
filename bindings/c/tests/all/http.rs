//! The example server speaks HTTP, built with Outlast and without it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{BIG_BYTES, Client, Httpd, PATIENCE, Random, big, count_in, get, run, signal};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

fn each_build(name: &str, test: impl Fn(&Httpd)) {
    for build in ["httpd", "httpd-outlast"] {
        test(&Httpd::start(build, &format!("{name}-{build}")));
    }
}

/// What there is as soon as there is something.
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing comes");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn files() {
    each_build("files", |server| {
        let mut client = Client::of(server.address);
        let mut ask = |target: &str, headers: &str| client.ask(get(target, headers));
        let hello = ask("/hello.txt", "");
        assert_eq!((hello.status, hello.text()), (200, "hello, world\n"));
        assert_eq!(hello.headers["content-type"], "text/plain; charset=utf-8");
        assert_eq!(hello.headers["connection"], "keep-alive");
        assert_eq!(ask("/big", "").body, big());
        assert_eq!(ask("/empty.html", "").body, b"");
        assert_eq!(ask("/%68ello%2etxt?query", "").text(), "hello, world\n");
        assert_eq!(ask("http://somebody/inside", "").text(), "hello, world\n");
        assert_eq!(ask("/sub%20dir/", "").text(), "<p>index");
        assert_eq!(ask("/sub%20dir", "").headers["location"], "/sub%20dir/");
        assert_eq!(ask("/sub%20dir/../hello.txt", "").status, 200);
        for outside in [
            "/../secret",
            "/%2e%2e/secret",
            "/outside",
            "/above/secret",
            "//etc/passwd",
            "/nothing",
            "/",
            "/hello.txt/",
        ] {
            assert_eq!(ask(outside, "").status, 404, "{outside}");
        }
        let unmodified = format!("If-Modified-Since: {}\r\n", hello.headers["last-modified"]);
        assert_eq!(ask("/hello.txt", &unmodified).status, 304);
        assert_eq!(ask("/hello.txt", "If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT\r\n").status, 200);
        assert_eq!(
            ask("/hello.txt", &format!("If-None-Match: \"x\", {}\r\n", hello.headers["etag"])).status,
            304
        );
        assert_eq!(ask("/hello.txt", &format!("If-None-Match: \"x\"\r\n{unmodified}")).status, 200);
        let head = client.ask("HEAD /big HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(
            (head.status, head.headers["content-length"].as_str()),
            (200, BIG_BYTES.to_string().as_str())
        );
        let post = client.ask("POST /hello.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab");
        assert_eq!((post.status, post.headers["allow"].as_str()), (405, "GET, HEAD"));
    });
}

#[test]
fn ranges() {
    each_build("ranges", |server| {
        let mut client = Client::of(server.address);
        let mut part = |range: &str| {
            let answer = client.ask(get("/hello.txt", &format!("Range: {range}\r\n")));
            let place = answer.headers.get("content-range").cloned().unwrap_or_default();
            (answer.status, place, answer.text().to_owned())
        };
        let is = |status, place: &str, text: &str| (status, place.to_owned(), text.to_owned());
        assert_eq!(part("bytes=0-0"), is(206, "bytes 0-0/13", "h"));
        assert_eq!(part("bytes=7-"), is(206, "bytes 7-12/13", "world\n"));
        assert_eq!(part("bytes=-3"), is(206, "bytes 10-12/13", "ld\n"));
        assert_eq!(part("bytes=-99"), is(206, "bytes 0-12/13", "hello, world\n"));
        assert_eq!(part("bytes=1-99"), is(206, "bytes 1-12/13", "ello, world\n"));
        for unsatisfiable in ["bytes=13-", "bytes=99-100", "bytes=-0"] {
            let (status, place, _) = part(unsatisfiable);
            assert_eq!((status, place.as_str()), (416, "bytes */13"), "{unsatisfiable}");
        }
        for ignored in
            ["bytes=2-1", "bytes=0-1,3-4", "bytes=-", "bytes=x-1", "lines=1-2", "bytes=1--2", "bytes=--2"]
        {
            assert_eq!(part(ignored), is(200, "", "hello, world\n"), "{ignored}");
        }
        let tag = client.ask(get("/hello.txt", "")).headers["etag"].clone();
        let mut if_range = |tag: &str| {
            client.ask(get("/hello.txt", &format!("Range: bytes=1-2\r\nIf-Range: {tag}\r\n"))).status
        };
        assert_eq!((if_range(&tag), if_range("\"other\"")), (206, 200));
    });
}

#[test]
fn programs() {
    each_build("programs", |server| {
        let mut client = Client::of(server.address);
        let echo = client.ask(get("/cgi-bin/echo/in%20fo?a=b&c", "X-Word: w\r\n"));
        assert_eq!(echo.text(), "GET /cgi-bin/echo /in fo a=b&c  w\n");
        let first = echo.headers["x-id"].clone();
        assert_eq!((first.len(), first == "0".repeat(32)), (32, false));
        let post = "POST /cgi-bin/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nposted";
        let echo = client.ask(post);
        assert_eq!(echo.text(), "POST /cgi-bin/echo   6 \nposted");
        assert_ne!(echo.headers["x-id"], first, "each request has its own");
        let chunks = "5;ext=1\r\nin pi\r\n0003\r\nece\r\n1\r\ns\r\n0\r\nTrailer: x\r\n\r\n";
        let chunked = "POST /cgi-bin/echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        let echo = client.ask(format!("{chunked}{chunks}"));
        assert_eq!(echo.text(), "POST /cgi-bin/echo   9 \nin pieces");
        let head = client.ask("HEAD /cgi-bin/echo HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!((head.status, head.headers["content-length"].as_str()), (200, "23"));
        let status = client.ask(get("/cgi-bin/status", ""));
        assert_eq!(
            (status.status, status.headers["x-a"].as_str(), status.text()),
            (418, "b", "short and stout")
        );
        assert_eq!(client.ask(get("/cgi-bin/moved", "")).status, 302);
        for (program, status) in
            [("fails", 502), ("says-nothing", 502), ("nothing", 404), ("", 404), ("../hello.txt", 404)]
        {
            assert_eq!(client.ask(get(&format!("/cgi-bin/{program}"), "")).status, status, "{program}");
        }
        // Slow to send its body, and asking first.
        client.say(
            "POST /cgi-bin/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        );
        assert_eq!(client.hear(true).status, 100);
        assert_eq!(client.ask("ab").text(), "POST /cgi-bin/echo   2 \nab");
    });
}

/// A client gets so many steps at a time: a program may start with the last one of them, and is waited for all the same.
#[test]
fn a_program_is_waited_for_behind_any_number_of_requests() {
    each_build("behind", |server| {
        for before in 0..20 {
            let mut client = Client::of(server.address);
            client.say(format!("{}{}", get("/nothing", "").repeat(before), get("/cgi-bin/status", "")));
            for _ in 0..before {
                assert_eq!(client.hear(false).status, 404);
            }
            assert_eq!(client.hear(false).status, 418, "behind {before} requests");
        }
    });
}

/// Events are given several at a time: what was told of a number is not about who has got that number since.
#[test]
fn who_comes_while_somebody_goes_is_not_taken_for_him() {
    let server = Httpd::start("httpd", "numbers");
    let programs = server.files.join("cgi-bin");
    let script = "#!/bin/sh\necho $$ > its-id\nuntil [ -e go ]; do sleep 0.01; done\n";
    std::fs::write(programs.join("waits"), script).unwrap();
    std::fs::set_permissions(programs.join("waits"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let goes = Client::of(server.address);
    goes.0.get_ref().write_all((get("/nothing", "") + &get("/cgi-bin/waits", "")).as_bytes()).unwrap();
    let program = eventually(|| {
        std::fs::read_to_string(programs.join("its-id")).ok()?.strip_suffix('\n').map(str::to_owned)
    });
    let is_now = |process: &str, state: &str| {
        let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        status.rsplit_once(") ").unwrap().1.starts_with(state).then_some(())
    };
    signal(server.pid(), "STOP");
    eventually(|| is_now(&server.pid().to_string(), "T"));
    // With something unread, that is a reset: its event is the first one, and frees the number of its program's.
    drop(goes);
    let early = Client::of(server.address);
    let mut comes = Client::of(server.address);
    comes.say(get("/cgi-bin/status", ""));
    std::fs::write(programs.join("go"), "").unwrap();
    eventually(|| is_now(&program, "Z"));
    signal(server.pid(), "CONT");
    assert_eq!(comes.hear(false).status, 418);
    drop(early);
}

#[test]
fn sessions_count_each_request_once_however_their_program_crashes() {
    each_build("sessions", |server| {
        let mut client = Client::of(server.address);
        let first = client.ask(get("/cgi-bin/session", ""));
        assert_eq!(count_in(&first, b""), 1);
        let cookie = first.headers["set-cookie"].split(';').next().unwrap().to_owned();
        for count in 2..60 {
            let crash = ["", "before", "during", "after", "random"][count % 5];
            let headers = format!("Cookie: {cookie}\r\n");
            let answer = client.ask(get(&format!("/cgi-bin/session?crash={crash}"), &headers));
            assert_eq!(count_in(&answer, b""), count as u64, "{crash}");
        }
        // None is left behind, dead or alive.
        let mut ps = Command::new("ps");
        let children = ps.args(["-o", "comm=", "--ppid", &server.pid().to_string()]).output().unwrap();
        assert!(!String::from_utf8(children.stdout).unwrap().contains("session"));
    });
}

#[test]
fn connections() {
    each_build("connections", |server| {
        let mut client = Client::of(server.address);
        // Many at once, and an empty line, which some send.
        let many: String = (0..50).map(|n| get(["/hello.txt", "/nothing", "/inside"][n % 3], "")).collect();
        client.say(format!("\r\n{many}"));
        let statuses: Vec<u32> = (0..50).map(|_| client.hear(false).status).collect();
        assert!((0..50).all(|n| statuses[n] == [200, 404, 200][n % 3]), "{statuses:?}");
        // Byte by byte.
        for byte in get("/hello.txt", "").bytes() {
            client.say([byte]);
        }
        assert_eq!(client.hear(false).text(), "hello, world\n");
        // Who has said everything is answered all the same.
        client.say(get("/hello.txt", ""));
        client.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.hear(false).status, 200);
        assert!(client.is_over());
        for (request, closes) in [
            ("GET /hello.txt HTTP/1.0\r\n\r\n", true),
            ("GET /hello.txt HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", false),
            ("GET /hello.txt HTTP/1.1\r\nHost: h\r\nConnection: x, close\r\n\r\n", true),
        ] {
            let mut client = Client::of(server.address);
            let answer = client.ask(request);
            assert_eq!((answer.status, answer.headers["connection"] == "close"), (200, closes), "{request}");
            assert!(!closes || client.is_over());
        }
    });
}

#[test]
fn who_finds_no_descriptor_waits_for_one() {
    for build in ["httpd", "httpd-outlast"] {
        let server = Httpd::start_with_descriptors(150, build, &format!("full-{build}"));
        let mut clients: Vec<_> = (0..120).map(|_| Client::of(server.address)).collect();
        clients.iter_mut().for_each(|client| client.say(get("/hello.txt", "")));
        clients.reverse();
        while let Some(mut client) = clients.pop() {
            assert_eq!(client.hear(false).text(), "hello, world\n", "{build}, {} left", clients.len());
            // Programs have room beside those that wait.
            if clients.len() % 40 == 0 {
                assert_eq!(client.ask(get("/cgi-bin/status", "")).status, 418);
            }
            // Its end makes room for another one.
        }
    }
}

#[test]
fn what_is_doubtful_is_refused() {
    each_build("doubtful", |server| {
        let long = "a".repeat(9000);
        for (request, status) in [
            ("GET /\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", 400),
            ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
            ("BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
            ("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n", 413),
            (&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431),
            (&format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", &long[..3000]), 414),
            (&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(100)), 431),
        ] {
            let mut client = Client::of(server.address);
            let answer = client.ask(request);
            assert_eq!(
                (answer.status, answer.headers["connection"].as_str()),
                (status, "close"),
                "{request}"
            );
            // What comes after it is not taken for a request.
            client.say(get("/hello.txt", ""));
            assert!(client.is_over(), "{request}");
        }
    });
}

#[test]
fn long_bodies_up_to_the_limit() {
    each_build("bodies", |server| {
        let mut random = Random(3);
        let mut client = Client::of(server.address);
        for length in [0, 1, 1000, 50_000, 61_000] {
            let body: Vec<u8> = (0..length).map(|_| b'a' + u8::try_from(random.below(26)).unwrap()).collect();
            let head =
                format!("POST /cgi-bin/session HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
            assert_eq!(count_in(&client.ask([head.as_bytes(), &body].concat()), &body), 1);
            let mut chunked =
                b"POST /cgi-bin/session HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for chunk in body.chunks(3000) {
                chunked.extend(format!("{:x}\r\n", chunk.len()).bytes());
                chunked.extend([chunk, b"\r\n"].concat());
            }
            chunked.extend(b"0\r\n\r\n");
            assert_eq!(count_in(&client.ask(chunked), &body), 1);
        }
        let answer = client.ask("POST /cgi-bin/session HTTP/1.1\r\nHost: h\r\nContent-Length: 61441\r\n\r\n");
        assert_eq!(answer.status, 413);
    });
}

#[test]
fn curl_agrees() {
    each_build("curl", |server| {
        let out = server.files.join("../received");
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "--max-time", "60", "-o"]).arg(&out).arg(server.url("/big"));
        run(&mut curl);
        assert!(std::fs::read(&out).unwrap() == big());
        // Goes on where it was broken off.
        std::fs::write(&out, &big()[..12_345_678]).unwrap();
        run(curl.args(["--continue-at", "-"]));
        assert!(std::fs::read(&out).unwrap() == big());
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "-T-", "-X", "POST"]).arg(server.url("/cgi-bin/echo"));
        let output =
            curl.stdin(std::fs::File::open(server.files.join("hello.txt")).unwrap()).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "POST /cgi-bin/echo   13 \nhello, world\n");
    });
}
