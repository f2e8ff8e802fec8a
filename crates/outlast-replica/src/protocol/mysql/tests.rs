//! Conversations, by the bytes of MariaDB's documentation of its protocol.

use super::kept::{ROLL_BACK, SAY_DEADLOCK, SAY_WAITED};
use super::login::{PROOF_BYTES, prove};
use super::*;
use crate::entry::Again;
use sha1::{Digest as _, Sha1};
use std::vec;

const SALT: Hash = *b"abcdefghijklmnopqrst";
const OTHER_SALT: Hash = *b"ABCDEFGHIJKLMNOPQRST";
const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];
const END: &[u8] = &[0xfe, 0, 0, 2, 0];

/// As a server keeps it.
fn kept_as(hash: &Hash) -> String {
    let digits: String = hash.iter().map(|byte| format!("{byte:02X}")).collect();
    format!("*{digits}")
}

fn greeting(salt: &Hash, number: u32) -> Vec<u8> {
    let mut payload = b"\x0a10.11.19-MariaDB\0".to_vec();
    payload.extend(number.to_le_bytes());
    payload.extend(&salt[..8]);
    payload.extend([0, 0xfe, 0xff, 33, 2, 0, 0xff, 0xff, 21]);
    payload.extend([0; 6]);
    payload.extend([0xff; 4]);
    payload.extend(&salt[8..]);
    payload.extend(b"\0mysql_native_password\0");
    packet(0, &payload)
}

fn response(user: &str, proof: &[u8], plugin: &str) -> Vec<u8> {
    let capabilities = 1_u32 << 9 | 1 << 15 | 1 << 19 | 1 << 21;
    let mut payload = capabilities.to_le_bytes().to_vec();
    payload.extend([0; 4 + 1 + 23]);
    payload.extend(user.as_bytes());
    payload.extend([0, u8::try_from(proof.len()).unwrap()]);
    payload.extend(proof);
    payload.extend(plugin.as_bytes());
    payload.push(0);
    packet(1, &payload)
}

fn statement(sql: &str) -> Vec<u8> {
    packet(0, &[&[QUERY], sql.as_bytes()].concat())
}

/// A result of one column, with these rows.
fn result(rows: &[&str]) -> Vec<u8> {
    let mut bytes = packet(1, &[1]);
    bytes.extend(packet(2, b"\x03def\0\0\0\x01a\0\x0c\x3f\0\x01\0\0\0\x03\x81\0\0\0\0"));
    bytes.extend(packet(3, END));
    for row in rows {
        bytes.extend(packet(4, &[&[u8::try_from(row.len()).unwrap()], row.as_bytes()].concat()));
    }
    bytes.extend(packet(5, END));
    bytes
}

/// Seeds for the fuzz target: how much of it is the server's, and both.
pub(crate) fn conversations() -> Vec<(&'static str, Vec<u8>)> {
    let hello = greeting(&SALT, 7);
    let login = response("app", &prove(b"secret", &SALT), "mysql_native_password");
    let seed = |replies: &[u8], requests: &[u8]| {
        let server = [&hello, replies].concat();
        [&[u8::try_from(server.len()).unwrap()], &server[..], &login, requests].concat()
    };
    let result = [packet(2, OK), result(&["1", "2"])].concat();
    vec![
        ("greeting", seed(b"", b"")),
        ("result", seed(&result, &statement("select a from t"))),
        ("refused", seed(&packet(2, OK), &[statement("kill 7"), packet(0, &[QUIT])].concat())),
        ("again", seed(&packet(2, &[&b"\xfemysql_native_password\0"[..], &OTHER_SALT, b"\0"].concat()), b"")),
    ]
}

/// What has come of a server: what every server says, replies of its own, and digests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    bytes: Vec<u8>,
    own: Vec<Vec<u8>>,
    digests: Vec<u64>,
}

fn hear(of: &mut OfMysql, bytes: &[u8], piece_bytes: usize) -> Heard {
    let mut heard = Heard::default();
    for piece in bytes.chunks(piece_bytes) {
        of.answer(piece, |piece| match piece {
            Piece::Bytes(bytes) => heard.bytes.extend(bytes),
            Piece::Part(part) => heard.digests.push(part.digest),
            Piece::Own(bytes, part) => {
                heard.own.push(bytes.to_vec());
                heard.digests.push(part.digest);
            }
        });
    }
    heard
}

/// One that has greeted a client, which has logged in without a password.
fn logged_in() -> OfMysql {
    let mut of = OfMysql::default();
    let said = hear(&mut of, &greeting(&OTHER_SALT, 7), 1);
    of.note_canonical(0, &said.own[0]);
    of.ask(&response("app", b"", "mysql_native_password"));
    of.given();
    hear(&mut of, &packet(2, OK), usize::MAX);
    answer_ping(&mut of);
    of
}

/// The node asks whether the server is done with the login, and clients do not hear that.
fn answer_ping(of: &mut OfMysql) {
    assert_eq!((of.of_node(), of.are_answered()), (packet(0, &[PING]), false));
    assert_eq!(hear(of, &packet(1, OK), 2), Heard::default());
    assert!(of.are_answered() && of.of_node().is_empty());
}

fn digest_of(sql: &str, reply: &[u8]) -> u64 {
    let digests = [1, 7, usize::MAX].map(|piece_bytes| {
        let mut of = logged_in();
        of.ask(&statement(sql));
        assert!(!of.are_answered());
        let heard = hear(&mut of, reply, piece_bytes);
        assert!(of.are_answered() && heard.digests.len() == 1, "{heard:?}");
        heard.digests[0]
    });
    assert_eq!(digests, [digests[0]; 3]);
    digests[0]
}

#[test]
fn a_password_is_right_for_every_server_and_a_wrong_one_for_none() {
    let once: Hash = Sha1::digest(b"secret").into();
    let kept: Hash = Sha1::digest(once).into();
    for (password, is_right) in [("secret", true), ("wrong", false)] {
        let mut of = OfMysql::default();
        assert!(!of.is_greeted() && !of.are_answered());
        let said = hear(&mut of, &greeting(&OTHER_SALT, 7), 3);
        assert!(of.is_greeted() && of.are_answered());
        assert_eq!(of.server_number(), Some(7));
        // The client hears the greeting of another server, without what it is not to ask for.
        let mut heard = greeting(&SALT, 5);
        login::hide_capabilities(&mut heard).unwrap();
        assert_eq!(said.own[0].len(), heard.len());
        of.note_canonical(0, &heard);
        let proof = prove(password.as_bytes(), &SALT);
        let request = response("app", &proof, "mysql_native_password");
        let (first, rest) = request.split_at(50);
        of.ask(first);
        assert_eq!(of.given(), []);
        assert!(of.are_answered());
        of.ask(rest);
        let given = of.given();
        let [Given::LogIn(login)] = given.as_slice() else { panic!("{given:?}") };
        assert_eq!((login.user(), login.length()), (&b"app"[..], request.len()));
        let server = login.for_server(&[kept_as(&Hash::default()), kept_as(&kept)]);
        let right = response("app", &prove(password.as_bytes(), &OTHER_SALT), "mysql_native_password");
        let zeros = response("app", &[0; PROOF_BYTES], "mysql_native_password");
        assert_eq!(server, if is_right { right } else { zeros });
        assert!(!of.are_answered());
        let heard = hear(&mut of, &packet(2, OK), 2);
        assert_eq!((heard.bytes, heard.own), (packet(2, OK), vec![]));
        answer_ping(&mut of);
    }
}

#[test]
fn a_proof_is_asked_for_again_and_one_that_is_not_understood_is_right_nowhere() {
    for (plugin, is_understood) in [("mysql_native_password", true), ("client_ed25519", false)] {
        let mut of = OfMysql::default();
        let said = hear(&mut of, &greeting(&OTHER_SALT, 7), usize::MAX);
        of.note_canonical(0, &said.own[0]);
        let request = response("app", &[9; 32], "caching_sha2_password");
        of.ask(&request);
        assert_eq!(of.given(), [Given::Bytes(response("app", &[0; 32], "caching_sha2_password"))]);
        let again = |salt: &Hash| packet(2, &[&[0xfe], plugin.as_bytes(), &[0], &salt[..], &[0]].concat());
        let heard = hear(&mut of, &again(&OTHER_SALT), 4);
        assert_eq!(heard.own, [again(&OTHER_SALT)]);
        of.note_canonical(1, &again(&SALT));
        let proof = packet(3, &prove(b"secret", &SALT));
        of.ask(&proof);
        let given = of.given();
        if is_understood {
            let [Given::LogIn(login)] = given.as_slice() else { panic!("{given:?}") };
            let once: Hash = Sha1::digest(b"secret").into();
            let server = login.for_server(&[kept_as(&Sha1::digest(once).into())]);
            assert_eq!(server, packet(3, &prove(b"secret", &OTHER_SALT)));
        } else {
            assert_eq!(given, [Given::Bytes(packet(3, &[0; PROOF_BYTES]))]);
        }
    }
}

#[test]
fn replies_end_where_they_end_and_rows_are_the_same_in_any_order() {
    let rows = |rows: &[&str]| digest_of("select a from t", &result(rows));
    assert_eq!(rows(&["1", "2"]), rows(&["2", "1"]));
    assert_ne!(rows(&["1", "2"]), rows(&["1", "3"]));
    assert_ne!(rows(&["1", "2"]), rows(&["1"]));
    let ok = |payload: &[u8]| digest_of("insert into t values (1)", &packet(1, payload));
    assert_eq!(ok(OK), ok(&[0, 0, 0, 0x22, 0, 0, 0]));
    assert_ne!(ok(OK), ok(&[0, 1, 0, 2, 0, 0, 0]));
    assert_ne!(ok(OK), ok(b"\xff\x26\x04#23000Duplicate entry"));
    let not_compared = |rows: &[&str]| digest_of("select now()", &result(rows));
    assert_eq!(not_compared(&["1"]), not_compared(&["2", "3"]));
    assert_ne!(not_compared(&["1"]), digest_of("select now()", &packet(1, b"\xff\x26\x04#23000No")));
    // Two results of one request.
    let mut two = result(&["1"]);
    let more = two.len() - 2;
    two[more] = 8;
    two.extend(packet(6, OK));
    digest_of("call p()", &two);
}

#[test]
fn a_statement_is_prepared_executed_and_closed() {
    let mut of = logged_in();
    of.ask(&packet(0, &[&[PREPARE], &b"select a from t where a = ?"[..]].concat()));
    let mut reply = packet(1, &[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]);
    for (number, payload) in [(2, &b"\x03def"[..]), (3, END), (4, b"\x03def"), (5, END)] {
        assert!(!of.are_answered());
        reply.extend(packet(number, payload));
    }
    assert_eq!(hear(&mut of, &reply, 5).digests.len(), 1);
    assert!(of.are_answered());
    of.ask(&packet(0, &[EXECUTE, 1, 0, 0, 0, 0]));
    hear(&mut of, &result(&["1"]), 9);
    assert!(of.are_answered());
    // It has no reply, so it goes with the next one that has.
    let close = packet(0, &[CLOSE_STATEMENT, 1, 0, 0, 0]);
    of.given();
    of.ask(&close);
    assert!(of.are_answered());
    assert_eq!(of.given(), []);
    of.ask(&statement("select 1"));
    assert_eq!(of.given(), [Given::Bytes([close, statement("select 1")].concat())]);
    of.pass();
    assert!(of.are_answered() && of.owes());
    hear(&mut of, &result(&["1"]), usize::MAX);
    assert!(!of.owes());
}

#[test]
fn long_data_without_end_is_given_and_asked_about() {
    let mut of = logged_in();
    let part = packet(0, &[&[LONG_DATA, 1, 0, 0, 0, 0, 0][..], &[b'x'; 40_000]].concat());
    of.ask(&part);
    assert_eq!(of.given(), []);
    of.ask(&part);
    let ping = packet(0, &[PING]);
    assert_eq!(of.given(), [Given::Bytes([&part[..], &part, &ping].concat())]);
    assert!(!of.are_answered());
    assert_eq!(hear(&mut of, &packet(1, OK), 2), Heard::default());
    assert!(of.are_answered());
}

#[test]
fn what_every_server_would_do_otherwise_does_not_come_to_it() {
    let mut of = logged_in();
    for request in [statement("insert into t values (uuid())"), packet(0, &[KILL_PROCESS, 7, 0, 0, 0])] {
        for piece in request.chunks(3) {
            of.ask(piece);
        }
        let given = of.given();
        let [Given::Bytes(bytes)] = given.as_slice() else { panic!("{given:?}") };
        assert!(bytes.windows(7).any(|window| window == b"SIGNAL "), "{}", bytes.escape_ascii());
        assert!(of.refused().is_some());
        hear(&mut of, &packet(1, b"\xff\x6c\x06#45000outlast refuses"), 5);
        assert!(of.are_answered());
    }
}

#[test]
fn a_long_request_is_given_as_it_comes() {
    let mut of = logged_in();
    let mut request = vec![0xff, 0xff, 0xff, 0, QUERY];
    request.resize(HEADER_BYTES + packet::PART_BYTES_MAX, b'a');
    request.extend(packet(1, b"and the rest"));
    let mut given = Vec::new();
    for piece in request.chunks(70_000) {
        assert!(of.are_answered());
        of.ask(piece);
        for piece in of.given() {
            let Given::Bytes(bytes) = piece else { panic!("{piece:?}") };
            given.extend(bytes);
        }
    }
    assert!(given == request && !of.are_answered());
}

#[test]
fn what_is_no_such_protocol_goes_through() {
    let mut of = OfMysql::default();
    let heard =
        hear(&mut of, b"SSH-2.0-OpenSSH_9.2\r\n and so on for as long as a packet would be said to be", 5);
    assert!(heard.own.is_empty());
    let mut of = logged_in();
    of.ask(&statement("select 1"));
    assert!(hear(&mut of, &packet(1, &[0xfb]), 1).bytes == packet(1, &[0xfb]) && of.is_broken());
    of.ask(b"anything");
    assert_eq!(of.given(), [Given::Bytes([statement("select 1"), b"anything".to_vec()].concat())]);
}

fn error(number: u16) -> Vec<u8> {
    packet(1, &[&[0xff], &number.to_le_bytes()[..], b"#HY000said"].concat())
}

#[test]
fn a_request_that_was_interrupted_is_kept_and_given_again() {
    let update = statement("update t set a = 1");
    for (how, given, replies, hears) in [
        (Again::Given, update.clone(), packet(1, OK), packet(1, OK)),
        (Again::TimedOut, packet(0, SAY_WAITED), error(1205), Vec::new()),
        (
            Again::Deadlock,
            [packet(0, ROLL_BACK), packet(0, SAY_DEADLOCK)].concat(),
            [packet(1, OK), error(1213)].concat(),
            Vec::new(),
        ),
    ] {
        let mut of = logged_in();
        of.ask(&update);
        of.given();
        of.interrupt(true);
        assert_eq!(hear(&mut of, &error(INTERRUPTED), 3), Heard::default());
        assert!(of.is_kept() && of.are_answered() && of.times_out());
        of.give_again(how);
        assert_eq!(of.given(), [Given::Bytes(given)]);
        assert!(!of.is_kept() && !of.are_answered());
        let heard = hear(&mut of, &replies, 3);
        assert_eq!((heard.bytes, heard.digests.len()), (hears, 1), "{how:?}");
        assert!(of.are_answered() && !of.may_hold_locks(false));
    }
    // The columns of rows that are waited for may have come before.
    let mut of = logged_in();
    of.ask(&statement("select a from t where a > 1 for update"));
    of.given();
    of.interrupt(true);
    let columns = result(&["1"]);
    let columns = &columns[..columns.len() - packet(5, END).len()];
    assert_eq!(hear(&mut of, &[columns, &error(INTERRUPTED)].concat(), 3), Heard::default());
    assert!(of.is_kept());
    // What may have had an effect, or is ended for its client, is heard of.
    for (sql, keeps, number) in
        [("call p()", true, 1317), ("update t set a = 1", false, 1205), ("select @a := 1", true, 1317)]
    {
        let mut of = logged_in();
        of.ask(&statement(sql));
        of.interrupt(keeps);
        let heard = hear(&mut of, &error(INTERRUPTED), 3);
        assert_eq!((&heard.own[0][5..7], of.is_kept()), (&u16::to_le_bytes(number)[..], false), "{sql}");
    }
}

#[test]
fn long_data_are_for_the_next_execution_of_their_statement_which_is_not_kept() {
    let mut of = logged_in();
    let execute = |number: u8| packet(0, &[EXECUTE, number, 0, 0, 0, 0]);
    of.ask(&packet(0, &[LONG_DATA, 1, 0, 0, 0, 0, 0, b'x']));
    for (number, is_kept) in [(2, true), (1, false), (1, true)] {
        of.ask(&execute(number));
        of.interrupt(true);
        hear(&mut of, &error(INTERRUPTED), 3);
        assert_eq!(of.is_kept(), is_kept, "{number}");
        of.forget_kept();
    }
}

#[test]
fn a_transaction_that_only_reads_locks_nothing() {
    let in_transaction = packet(1, &[0, 0, 0, 3, 0, 0, 0]);
    for (sql, holds) in [
        ("begin", false),
        ("start transaction", false),
        ("update t set a = 1", true),
        ("select * from t where a = 1 for update", true),
        ("select * from t lock in share mode", true),
        ("insert into t values (1)", true),
        ("select count(*) from t", false),
        ("select get_lock('a', 1)", true),
    ] {
        let mut of = logged_in();
        of.ask(&statement(sql));
        hear(&mut of, &in_transaction, 3);
        assert_eq!(of.may_hold_locks(false), holds, "{sql}");
        of.ask(&statement("select 1"));
        hear(&mut of, &in_transaction, 3);
        assert_eq!(of.may_hold_locks(false), holds, "{sql}");
        of.ask(&statement("commit"));
        hear(&mut of, &packet(1, OK), 3);
        assert_eq!(of.may_hold_locks(false), sql.contains("get_lock"), "{sql}");
    }
}
