use super::*;
use Verdict::{Answered, Busy, Switched, Unclear};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn numbers(exchange: Exchange) -> (([u64; 2], Asked), ([u64; 2], u8)) {
    (exchange.asked_numbers(), exchange.answer_numbers())
}

/// As it is found in shared memory.
fn restored(exchange: Exchange) -> Exchange {
    let (([request, request_rest], asked), ([answer, answer_rest], answered)) = numbers(exchange);
    Exchange::from_numbers([request, request_rest, answer, answer_rest], asked, answered)
}

/// What is understood. The last ones are not complete.
const REQUESTS: [&str; 16] = [
    "VERSION-CONTROL / HTTP/1.1\r\n\r\nHEADS / HTTP/1.1\r\n\r\nABCDEFGHIJKLMNOPQRST / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD /a%20b HTTP/1.0\r\n\r\n",
    "\r\n\r\nGET / HTTP/1.1\r\nCookie: a=b\r\nConnection: close\r\nTE: x\r\nContent: 7\r\nt: \r\n\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length:4\r\nCONNECTION:keep-alive\r\n\r\nabcd",
    "PUT / HTTP/1.1\r\ncontent-length: \t 4\t \r\n\r\nabcdGET / HTTP/1.1\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding:  Chunked \r\n\r\n4\r\nabcd\r\nA;x=\"y\"\r\n0123456789\r\n00\r\n\r\n",
    "PROPFIND / HTTP/1.1\r\nTRANSFER-ENCODING:chunked\r\n\r\n0 \r\nMore: later\rx\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "GET /1 HTTP/1.1\r\n\r\nHEAD /2 HTTP/1.1\r\nA: b\r\n\r\n\r\nDELETE /3 HTTP/1.1 HTTP/1.1\r\n\r\n",
    "GET /1 HTTP/1.1\r\n\r\nHEAD /2 HTTP/1.1\r\nA: b\r\n\r",
    "OPTIONS * HTTP/1.1\r\nA:\r\n\r\n\r",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabc",
    "POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n012345678",
    "POST / HTTP/1.1\r\nContent-Length: 0\r\nContent-Typ",
    "GET / HTTP/1.0\r\nConnection:\r\nConnection: ,TE ,\tkeep-alive\t, close,,Keep-Aliv, x-y-z-and-more\r\n\r\n",
    "REPORT /HTTP/1.1 HTTP/1. HTTP/1.1\r\nX-Connection: x\r\nConnections: y\r\n:\r\n\r\n",
];

/// What is never understood.
const ODD_REQUESTS: [&str; 43] = [
    "CONNECT a:1 HTTP/1.1\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "+PING\r\n\r\n",
    "GET key\r\n\r\n",
    " / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.2\r\n\r\n",
    "GET / HTTP/2\r\n\r\n",
    "GET / HTTP/1.1 \r\n\r\n",
    "GET / HTTP/1.1\n\n",
    "GET / HTTP/1.1\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\r\n\r\n",
    "get / HTTP/1.1\r\n\r\n",
    "GET\t/ HTTP/1.1\r\n\r\n",
    "\nGET / HTTP/1.1\r\n\r\n",
    "\r\r\nGET / HTTP/1.1\r\n\r\n",
    "ABCDEFGHIJKLMNOPQRSTU / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\n\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\n",
    "GET / HTTP/1.1\r\n\rHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 4\r\n\t0\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nContent-Length : 4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nContent-Length\u{b}: 4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nContent-Length\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: +4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nContent-Length: 4, 4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nContent-Length: 0x4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nContent-Length: 4 4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nContent-Length: 4\r\nX: y\r\nContent-Length: 5\r\n\r\nabcde",
    "POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\nwhat is this",
    "GET / HTTP/1.1\r\nConnection: keep-alive close\r\n\r\n",
    "GET / HTTP/1.1\r\nConnection: close\n\r\n",
    "GET / HTTP/1.1\r\nConnection: keep-alive\rclose\r\n\r\n",
    "GET / HTTP/1.1\r\nConnection: close\0\r\n\r\n",
];

/// What is wrong between chunks, of requests and of answers.
const ODD_CHUNKS: [&str; 11] = [
    "\r\n",
    ";x\r\n",
    "-1\r\n",
    "0x4\r\nabcd\r\n",
    "4x\r\nabcd\r\n",
    "4\nabcd\r\n",
    "4\r\rabcd\r\n",
    "4\r\nabcde\r\n",
    "4\r\nabcd\n\n",
    "0\r\nA: b\n\r\n",
    "1000000000000000\r\n",
];

/// What a server sends as the answer to one request, and what follows from it.
const ANSWERS: [(&str, Verdict); 27] = [
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Answered),
    ("HTTP/1.1 200\r\ncontent-length:0\r\n\r\n", Answered),
    ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Answered),
    ("HTTP/1.1 204 No Content\r\nConnection:  Keep-Alive \r\n\r\n", Answered),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
        Answered,
    ),
    ("HTTP/1.1 200 OK\r\ntransfer-encoding:CHUNKED\r\n\r\n0\r\nMore: later\r\n\r\n", Answered),
    (
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
        Answered,
    ),
    ("HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello", Answered),
    ("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", Switched),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", Busy),
    ("HTTP/1.1 200 OK\r\nContent-Le", Busy),
    ("HTTP/1.1 100 Continue\r\n\r\n", Busy),
    ("HTTP/1.1 200 OK\r\n\r\nuntil the end", Unclear),
    ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    ("HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    ("HTTP/1.1 099 OK\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    ("HTTP/1.1 +20 OK\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    ("HTTP/1.1 20\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    ("HTTP/1.1 200 OK\r\nConnection: keep-alive,Close\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nconnection: keep-alive, \t keep-alive\r\n\r\nhello", Answered),
    ("HTTP/1.1 200 OK\r\nConnection:\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    ("HTTP/1.1 200 OK\r\nConnection: keep-alive, Upgrade\r\nContent-Length: 5\r\n\r\nhello", Unclear),
    (
        "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: keep-alive\rx\r\nContent-Length: 5\r\n\r\nhello",
        Unclear,
    ),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more", Unclear),
    ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Unclear),
    ("\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Unclear),
];

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

/// The state and the verdict behind these calls, each of which may have several parts; the process forgets all but the
/// numbers between them.
fn behind<'a>(
    mut exchange: Exchange,
    way: Way,
    calls: impl IntoIterator<Item = &'a [&'a [u8]]>,
) -> (Exchange, Verdict) {
    let mut verdict = Busy;
    for parts in calls {
        let parts = parts.iter().copied().filter(|part| !part.is_empty());
        verdict = match way {
            Way::Read => exchange.on_read(parts),
            Way::Write => exchange.on_write(parts),
        };
        if matches!(verdict, Unclear | Switched) {
            break;
        }
        let before = exchange;
        exchange = restored(exchange);
        assert_eq!((numbers(exchange), exchange), (numbers(before), before));
    }
    (exchange, verdict)
}

fn asked(request: &[u8]) -> Exchange {
    let (exchange, verdict) = behind(Exchange::default(), Way::Read, [&[request][..]]);
    assert_eq!(verdict, Busy, "{}", String::from_utf8_lossy(request));
    exchange
}

/// The verdict, which is the same for each two cuts: in one call, in two and in three, and byte by byte.
fn however_cut(exchange: Exchange, way: Way, bytes: &[u8]) -> Verdict {
    let text = String::from_utf8_lossy(bytes);
    let whole = behind(exchange, way, [&[bytes][..]]);
    let same = |(state, verdict): (Exchange, Verdict), cuts: &str| {
        assert_eq!(verdict, whole.1, "{cuts}: {text:?}");
        if matches!(verdict, Busy | Answered) {
            assert_eq!(state, whole.0, "{cuts}: {text:?}");
        }
    };
    for second in 0..=bytes.len() {
        for first in 0..=second {
            let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
            let [one, two, three] = &parts;
            let cuts = format!("{first} {second}");
            same(behind(exchange, way, [&parts[..]]), &cuts);
            let mut calls =
                vec![std::slice::from_ref(one), std::slice::from_ref(two), std::slice::from_ref(three)];
            calls.retain(|call| !call[0].is_empty());
            same(behind(exchange, way, calls), &cuts);
        }
    }
    let bytes: Vec<&[u8]> = bytes.chunks(1).collect();
    same(behind(exchange, way, bytes.iter().map(std::slice::from_ref)), "all");
    whole.1
}

#[test]
fn requests_are_the_same_however_they_are_cut() {
    for request in REQUESTS {
        assert_eq!(however_cut(Exchange::default(), Way::Read, request.as_bytes()), Busy, "{request:?}");
        // Behind another one.
        assert_eq!(however_cut(asked(GET), Way::Read, request.as_bytes()), Busy, "{request:?}");
    }
    for request in ODD_REQUESTS {
        assert_eq!(however_cut(Exchange::default(), Way::Read, request.as_bytes()), Unclear, "{request:?}");
    }
    for chunks in ODD_CHUNKS {
        let request = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        assert_eq!(however_cut(Exchange::default(), Way::Read, request.as_bytes()), Unclear, "{request:?}");
        let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        assert_eq!(however_cut(asked(GET), Way::Write, answer.as_bytes()), Unclear, "{answer:?}");
    }
}

#[test]
fn answers_are_the_same_however_they_are_cut() {
    for (answer, verdict) in ANSWERS {
        assert_eq!(however_cut(asked(GET), Way::Write, answer.as_bytes()), verdict, "{answer:?}");
    }
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(however_cut(asked(b"HEAD / HTTP/1.1\r\n\r\n"), Way::Write, answer), Answered);
}

/// The fields of a request, and whether the connection ends with its answer: of HTTP/1.0, and of HTTP/1.1.
const LAST: [(&str, bool, bool); 12] = [
    ("", true, false),
    ("Host: a\r\n", true, false),
    ("Connection: close\r\n", true, true),
    ("CONNECTION:\tTE,CLOSE \r\nTE: trailers\r\n", true, true),
    ("Connection: close\r\nConnection: keep-alive\r\n", true, true),
    ("Connection: keep-alive\r\nConnection: x, close\r\n", true, true),
    ("Connection: keep-alive\r\n", false, false),
    ("Connection: Upgrade ,Keep-Alive\r\n", false, false),
    ("Connection:\r\n", true, false),
    ("Connection: Upgrade, HTTP2-Settings\r\n", true, false),
    ("Connection: closed, clos, unclose\r\n", true, false),
    ("X-Connection: close\r\nConnections: keep-alive\r\nClose: close\r\n", true, false),
];

#[test]
fn behind_the_answer_to_the_last_request_there_is_nothing_to_keep() {
    for (fields, old, new) in LAST {
        for (version, is_last) in [(0, old), (1, new)] {
            let request = format!("GET / HTTP/1.{version}\r\n{fields}\r\n");
            assert_eq!(however_cut(Exchange::default(), Way::Read, request.as_bytes()), Busy);
            let verdict = if is_last { Unclear } else { Answered };
            assert_eq!(however_cut(asked(request.as_bytes()), Way::Write, OK), verdict, "{request:?}");
            // Until then its answer is under way.
            let mut exchange = asked(request.as_bytes());
            assert_eq!(exchange.on_write([&OK[..OK.len() - 1]].into_iter()), Busy, "{request:?}");
            // Behind others, and before one.
            for requests in [[GET, request.as_bytes()], [request.as_bytes(), GET]] {
                let mut exchange = asked(&requests.concat());
                assert_eq!(exchange.on_write([OK].into_iter()), Busy);
                assert_eq!(exchange.on_write([OK].into_iter()), verdict, "{request:?}");
            }
        }
    }
}

/// Random pieces of requests and answers in random cuts: the verdict is that of the whole.
#[test]
fn whatever_is_said_the_cut_does_not_matter() {
    const PIECES: [&str; 45] = [
        "GET ",
        "HEAD ",
        "POST ",
        "/",
        "*",
        " HTTP/1.1",
        " HTTP/1.0",
        "HTTP/1.1 200",
        "HTTP/1.1 100",
        "HTTP/1.1 204",
        "HTTP/1.1 101",
        " OK",
        "\r\n",
        "\r\n",
        "\r\n\r\n",
        "\r\n\r\n",
        "\r",
        "\n",
        "Content-Length: 3",
        "Content-Length:",
        "content-length",
        "Transfer-Encoding: chunked",
        "transfer-encoding:",
        "chunked",
        "Connection: keep-alive",
        "Connection: close",
        "Connection: keep-alive, clos",
        "close",
        ",",
        "connection:",
        ":",
        " ",
        "\t",
        "3",
        "0",
        "abc",
        "3\r\nabc\r\n",
        "0\r\n\r\n",
        "X: y\r\n",
        "GET / HTTP/1.1\r\n",
        "HTTP/1.1 200 OK\r\n",
        "c",
        "\u{e9}",
        "HTTP/1.1 204 No\r\n\r\n",
        "HTTP/1.1 101 \r\n\r\n",
    ];
    let first = std::env::var("OUTLAST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1_u64);
    let mut seed = first.wrapping_mul(2).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 33).unwrap() % below
    };
    let requests = ["", "GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\n"];
    let answers = ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 204 No\r\n"];
    let mut seen = [0; 4];
    for round in 0..30_000 {
        let (way, begins) = if round % 2 == 0 { (Way::Read, requests) } else { (Way::Write, answers) };
        let mut text = begins[random(3)].to_owned();
        (0..random(9)).for_each(|_| text.push_str(PIECES[random(PIECES.len())]));
        let (bytes, exchange) = (text.as_bytes(), asked(&GET.repeat(random(2) + 1)));
        let whole = behind(exchange, way, [&[bytes][..]]);
        let mut cuts = [random(bytes.len() + 1), random(bytes.len() + 1), random(bytes.len() + 1)];
        cuts.sort_unstable();
        let [one, two, three] = cuts;
        let parts = [&bytes[..one], &bytes[one..two], &bytes[two..three], &bytes[three..]];
        let cut = behind(exchange, way, [&parts[..2], &parts[2..]]);
        assert_eq!(cut.1, whole.1, "OUTLAST_SEED={first} {cuts:?}: {text:?}");
        seen[cut.1 as usize] += 1;
        if matches!(cut.1, Busy | Answered) {
            assert_eq!(cut.0, whole.0, "OUTLAST_SEED={first} {cuts:?}: {text:?}");
        }
    }
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}

/// The memory is shared: whatever is in it is no more than not understood.
#[test]
fn no_numbers_mislead_it() {
    let mut seed = 7_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed >> (seed >> 58)
    };
    for _ in 0..200_000 {
        let mut exchange = Exchange::from_numbers(
            std::array::from_fn(|_| random()),
            Asked(u32::try_from(random() & u64::from(u32::MAX)).unwrap()),
            u8::try_from(random() & 0xff).unwrap(),
        );
        for part in [&b"a\r\n"[..], GET, b"3\r\n", OK, b"\r\n\r\n"] {
            exchange.on_read([part].into_iter());
            exchange.on_write([part].into_iter());
            exchange.on_write_unseen(random());
            exchange = restored(exchange);
        }
    }
}

#[test]
fn connections_begin_with_a_request_or_not() {
    for head in [
        "GET / HTT",
        "GET ",
        "GET",
        "P",
        "\r\n",
        "\r\nGET / HTTP/1.1\r\n\r\n",
        "MKCALENDAR / HTTP/1.1\r\nA",
        "LOCK / HTTP/1.0\n",
    ] {
        assert!(is_request(head.as_bytes()), "{head:?}");
    }
    for head in
        ["", "S", "GEX", "GET key\r\n", "MKCALENDAR / HTT", "CONNECT a:1 HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n"]
    {
        assert!(!is_request(head.as_bytes()), "{head:?}");
    }
}

#[test]
fn what_begins_like_a_request_may_be_none() {
    for (said, has_begun) in [("GET / HTTP/1.1\r\n\r\n", true), ("GARBAGE\r\n", false), ("HELO a\r\n", false)]
    {
        let mut exchange = Exchange::default();
        let verdicts: Vec<Verdict> =
            said.as_bytes().chunks(1).map(|byte| exchange.on_read([byte].into_iter())).collect();
        assert_eq!(
            (restored(exchange).has_begun(), verdicts.contains(&Unclear)),
            (has_begun, !has_begun),
            "{said:?}"
        );
    }
}

#[test]
fn a_head_may_be_long_and_not_endless() {
    let longest = usize::try_from(head::HEAD_BYTES).unwrap();
    for (length, verdict) in [(longest, Busy), (longest + 1, Unclear)] {
        let mut request = b"GET / HTTP/1.1\r\nCookie: ".to_vec();
        request.resize(length - 4, b'x');
        request.extend_from_slice(b"\r\n\r\n");
        for size in [1, 24, 1024, length] {
            let mut exchange = Exchange::default();
            let mut verdicts = request.chunks(size).map(|part| exchange.on_read([part].into_iter()));
            let last = verdicts.find(|verdict| *verdict != Busy);
            assert_eq!(last.unwrap_or(Busy), verdict, "{length} by {size}");
        }
    }
}

#[test]
fn several_requests_are_answered_in_turn() {
    let mut exchange = asked(b"GET /1 HTTP/1.1\r\n\r\nHEAD /2 HTTP/1.1\r\n\r\nGET /3 HTT");
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(exchange.on_write([OK].into_iter()), Busy);
    // The third one is not complete.
    assert_eq!(exchange.on_write([&head[..]].into_iter()), Busy);
    assert_eq!(exchange.on_read([&b"P/1.1\r\n\r\n"[..]].into_iter()), Busy);
    assert_eq!(exchange.on_write([&head[..]].into_iter()), Busy);
    assert_eq!(exchange.on_write([&b"hello"[..]].into_iter()), Answered);
    // An empty line asks for nothing.
    assert_eq!(exchange.on_read([&b"\r"[..]].into_iter()), Busy);
    assert_eq!(exchange.on_read([&b"\n"[..]].into_iter()), Answered);
    assert_eq!(exchange.on_write([OK].into_iter()), Unclear);
    // All answers in one call, and one too many.
    assert_eq!(asked(&GET.repeat(15)).on_write([&OK.repeat(14)[..]].into_iter()), Busy);
    assert_eq!(asked(&GET.repeat(15)).on_write([&OK.repeat(15)[..]].into_iter()), Answered);
    assert_eq!(asked(GET).on_write([&OK.repeat(2)[..]].into_iter()), Unclear);
    assert_eq!(Exchange::default().on_read([&GET.repeat(16)[..]].into_iter()), Unclear);
}

#[test]
fn a_body_comes_in_parts_and_files_go_unseen() {
    let mut exchange = asked(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab");
    assert_eq!(exchange.on_write([&b"HTTP/1.1 100 Continue\r\n\r\n"[..]].into_iter()), Busy);
    assert_eq!(exchange.on_read([&b"cd"[..]].into_iter()), Busy);
    assert_eq!(
        exchange.on_write([&b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"[..]].into_iter()),
        Busy
    );
    assert_eq!(exchange.on_write_unseen(600), Busy);
    assert_eq!(exchange.on_write_unseen(400), Answered);
    assert_eq!(exchange.on_write_unseen(0), Answered);
    assert_eq!(exchange.on_write_unseen(1), Unclear);
    let mut chunked = asked(GET);
    let begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n";
    assert_eq!(chunked.on_write([&begin[..]].into_iter()), Busy);
    assert_eq!(chunked.on_write_unseen(1000), Busy);
    assert_eq!(chunked.on_write([&b"\r\n0\r\n\r\n"[..]].into_iter()), Answered);
    // An answer to half of a request: it is idle when the rest is read, and not if that is answered, too.
    let answer = &b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n"[..];
    let mut early = asked(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab");
    assert_eq!(early.on_write([answer].into_iter()), Busy);
    assert_eq!({ early }.on_write([answer].into_iter()), Unclear);
    assert_eq!(early.on_read([&b"c"[..]].into_iter()), Busy);
    assert_eq!(early.on_read([&b"d"[..]].into_iter()), Answered);
    // To half of a head.
    assert_eq!(asked(b"GET / HTTP/1.1\r\n").on_write([answer].into_iter()), Unclear);
}
