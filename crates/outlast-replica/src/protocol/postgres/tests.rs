//! Conversations, by the bytes of PostgreSQL's documentation of its protocol.

use super::login::{OK, QUESTION, SASL, SASL_GOES_ON};
use super::message::message;
use super::*;
use crate::entry::Again;
use crate::protocol::database::Database as _;
use std::string::String;
use std::vec;

const USER: &[u8] = b"user\0app\0database\0shop\0\0";
const SALT: [u8; 4] = *b"salt";

fn startup(code: u32, said: &[u8]) -> Vec<u8> {
    let length = u32::try_from(8 + said.len()).unwrap();
    [&length.to_be_bytes()[..], &code.to_be_bytes(), said].concat()
}

fn question(kind: u32, said: &[u8]) -> Vec<u8> {
    message(QUESTION, &[&kind.to_be_bytes()[..], said].concat())
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

fn welcome(number: u32) -> Vec<u8> {
    let key = message(b'K', &[&number.to_be_bytes()[..], b"keys"].concat());
    [question(OK, b""), message(b'S', b"TimeZone\0UTC\0"), key, ready(IDLE)].concat()
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

fn done(tag: &str) -> Vec<u8> {
    message(b'C', &[tag.as_bytes(), b"\0"].concat())
}

fn row(value: &str) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap();
    message(b'D', &[&[0, 1][..], &length.to_be_bytes(), value.as_bytes()].concat())
}

fn result(rows: &[&str]) -> Vec<u8> {
    let columns = message(b'T', b"\0\x01a\0\0\0\x40\x05\0\x01\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
    let rows: Vec<u8> = rows.iter().flat_map(|value| row(value)).collect();
    [columns, rows, done("SELECT"), ready(IDLE)].concat()
}

fn failure(state: &str) -> Vec<u8> {
    message(b'E', &[&b"SERROR\0C"[..], state.as_bytes(), b"\0Mof this server\0\0"].concat())
}

/// Seeds for the fuzz target: how much of it is the client's, and both.
pub(crate) fn conversations() -> Vec<(&'static str, Vec<u8>)> {
    let seed = |requests: &[u8], replies: &[u8]| {
        let client = [&startup(196_608, USER), requests].concat();
        [&[u8::try_from(client.len()).unwrap()], &client[..], &welcome(7), replies].concat()
    };
    let prepared = [
        message(b'P', b"s\0select $1\0\0\0"),
        message(b'B', b"\0s\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ];
    let answers = [message(b'1', b""), message(b'2', b""), row("1"), done("SELECT 1"), ready(IDLE)];
    let copies = [query("copy t from stdin"), message(b'd', b"1\n"), message(b'c', b"")].concat();
    let copied = [message(b'G', b"\0\0\0"), done("COPY 1"), ready(IDLE)].concat();
    let salted = [startup(80_877_103, b""), startup(196_608, USER), message(b'p', &[b'm'; 36])].concat();
    let asked = [&b"N"[..], &question(login::MD5, &SALT), &welcome(7)].concat();
    vec![
        ("result", seed(&query("select a from t"), &result(&["1", "2"]))),
        ("refused", seed(&query("listen a"), &[failure("0A000"), ready(IDLE)].concat())),
        ("prepared", seed(&prepared.concat(), &answers.concat())),
        ("copied", seed(&copies, &copied)),
        ("salted", [&[u8::try_from(salted.len()).unwrap()], &salted[..], &asked].concat()),
    ]
}

/// What has come of a server: what every server says, replies of its own, and digests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    bytes: Vec<u8>,
    own: Vec<Vec<u8>>,
    digests: Vec<u64>,
}

fn hear(of: &mut OfPostgres, bytes: &[u8], piece_bytes: usize) -> Heard {
    let mut heard = Heard::default();
    for piece in bytes.chunks(piece_bytes) {
        of.answer(piece, &mut |piece| match piece {
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

fn given(of: &mut OfPostgres) -> Vec<u8> {
    let bytes = |given| match given {
        Given::Bytes(bytes) => bytes,
        Given::LogIn(login) => login.for_server(&[]),
    };
    of.given().into_iter().flat_map(bytes).collect()
}

fn text_given(of: &mut OfPostgres) -> String {
    String::from_utf8_lossy(&given(of)).into_owned()
}

/// One whose client has logged in without a password.
fn logged_in() -> OfPostgres {
    let mut of = OfPostgres::default();
    of.ask(&startup(196_608, USER));
    assert_eq!(given(&mut of), startup(196_608, USER));
    let heard = hear(&mut of, &welcome(7), 1);
    assert_eq!((heard.own, of.server_number()), (vec![welcome(7)], Some(7)));
    assert!(of.are_answered() && !of.may_hold_locks(true));
    of
}

fn digest_of(sql: &str, reply: &[u8]) -> u64 {
    let digests = [1, 7, usize::MAX].map(|piece_bytes| {
        let mut of = logged_in();
        query(sql).chunks(piece_bytes).for_each(|piece| of.ask(piece));
        assert!(!of.are_answered());
        let heard = hear(&mut of, reply, piece_bytes);
        assert!(of.are_answered() && heard.digests.len() == 1, "{heard:?}");
        heard.digests[0]
    });
    assert_eq!(digests, [digests[0]; 3]);
    digests[0]
}

#[test]
fn results_are_compared_in_any_order_and_those_that_may_differ_by_their_form() {
    let (one, other) = (result(&["1", "2"]), result(&["2", "1"]));
    let sql = "select a from t";
    assert_eq!(digest_of(sql, &one), digest_of(sql, &other));
    assert_ne!(digest_of(sql, &one), digest_of(sql, &result(&["1", "3"])));
    assert_ne!(digest_of(sql, &one), digest_of(sql, &result(&["1"])));
    assert_eq!(digest_of("select now()", &one), digest_of("select now()", &result(&["5"])));
    // Of an error what it is; texts may name a server.
    let failed = |state: &str| [failure(state), ready(IDLE)].concat();
    assert_ne!(digest_of(sql, &failed("42P01")), digest_of(sql, &failed("22012")));
    assert_ne!(digest_of(sql, &failed("42P01")), digest_of(sql, &one));
    let updated = |count: u32| [done(&std::format!("UPDATE {count}")), ready(IDLE)].concat();
    assert_ne!(digest_of("update t set a = 1", &updated(1)), digest_of("update t set a = 1", &updated(2)));
}

#[test]
fn successes_are_the_same_at_all_servers_and_results_are_the_primarys() {
    let mut of = logged_in();
    of.ask(&query("begin"));
    let begun = [done("BEGIN"), ready(IN_TRANSACTION)].concat();
    let heard = hear(&mut of, &begun, 3);
    assert_eq!((heard.bytes, heard.own.len()), (begun, 0));
    assert!(of.may_hold_locks(false));
    of.ask(&query("select a from t"));
    assert_eq!(hear(&mut of, &result(&["1"]), 3).own, [result(&["1"])]);
}

#[test]
fn what_a_server_says_by_itself_is_for_nobody_unless_it_ends_the_connection() {
    let mut of = logged_in();
    let asides = [message(b'S', b"a\0b\0"), message(b'N', b"SNOTICE\0\0")].concat();
    assert_eq!(hear(&mut of, &asides, 1), Heard::default());
    let heard = hear(&mut of, &failure("57P01"), 1);
    assert_eq!((heard.own, of.are_answered()), (vec![failure("57P01")], true));
}

#[test]
fn a_server_gets_one_request_at_a_time_and_each_as_a_whole() {
    let parse = message(b'P', b"s\0select 1\0\0\0");
    let bind = message(b'B', b"\0s\0\0\0\0\0\0\0");
    let execute = message(b'E', b"\0\0\0\0\0");
    let sync = message(b'S', b"");
    let first = [&parse[..], &bind, &execute, &sync].concat();
    let second = [&bind[..], &execute, &sync].concat();
    let mut of = logged_in();
    of.ask(&[&first[..5], &[]].concat());
    assert!(given(&mut of).is_empty() && of.are_answered());
    of.ask(&[&first[5..], &second[..]].concat());
    assert_eq!((given(&mut of), of.are_answered()), (first, false));
    assert_eq!(of.rest(), second);
    let reply = [message(b'1', b""), message(b'2', b""), row("1"), done("SELECT 1"), ready(IDLE)].concat();
    assert_eq!(hear(&mut of, &reply, 4).own, [reply]);
    // Those that are flushed have so many answers, and an error is the last one.
    let flush = message(b'H', b"");
    of.ask(&[&bind[..], &execute, &flush].concat());
    assert!(!of.are_answered());
    hear(&mut of, &message(b'2', b""), 1);
    assert!(!of.are_answered());
    hear(&mut of, &failure("22012"), 1);
    assert!(of.are_answered());
    given(&mut of);
    of.ask(&[&bind[..], &flush].concat());
    assert!(of.are_answered());
    // The server passes over all up to Sync, also over what is answered by itself otherwise.
    of.ask(&query("select 1"));
    assert!(of.are_answered());
    of.ask(&sync);
    assert_eq!((given(&mut of), of.are_answered()), (sync, false));
    hear(&mut of, &ready(IDLE), 1);
    assert!(of.are_answered());
}

#[test]
fn what_is_copied_to_the_server_comes_to_it_as_a_whole() {
    let mut of = logged_in();
    of.ask(&query("copy t from stdin"));
    let copies = message(b'G', b"\0\0\0");
    assert_eq!(hear(&mut of, &copies, 2).own, std::slice::from_ref(&copies));
    assert!(of.are_answered());
    given(&mut of);
    let (data, end) = (message(b'd', b"1\n"), message(b'c', b""));
    of.ask(&data);
    assert!(given(&mut of).is_empty() && of.are_answered());
    of.ask(&end);
    assert_eq!((given(&mut of), of.are_answered()), ([data.clone(), end.clone()].concat(), false));
    hear(&mut of, &[done("COPY 1"), ready(IDLE)].concat(), 1);
    assert!(of.are_answered());
    // The server takes no more: what the client says until it has heard that is for nobody.
    of.ask(&query("copy t from stdin"));
    hear(&mut of, &copies, 2);
    given(&mut of);
    assert_eq!(hear(&mut of, &[failure("22P02"), ready(IDLE)].concat(), 1).own.len(), 1);
    of.ask(&[data, end.clone()].concat());
    assert!(given(&mut of).is_empty() && of.are_answered());
    // One that was begun by Execute has failed at once, and the client's last words have come before that was heard here: Sync has an answer of its own.
    let (execute, sync) = (message(b'E', b"\0\0\0\0\0"), message(b'S', b""));
    of.ask(&[execute, sync.clone()].concat());
    hear(&mut of, &copies, 2);
    of.ask(&[end, sync].concat());
    let ends = [failure("0A000"), ready(IDLE), ready(IDLE)].concat();
    assert_eq!(hear(&mut of, &ends, 1).own.len(), 2);
    assert!(of.are_answered() && !of.is_broken());
    // An error that ends the connection is the last word.
    of.ask(&query("select 1"));
    let fatal = message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mends\0\0");
    assert_eq!(hear(&mut of, &fatal, 1).own, [fatal]);
}

#[test]
fn what_every_server_would_do_otherwise_is_an_error_at_all_of_them() {
    let mut of = logged_in();
    of.ask(&query("insert into t values (random())"));
    let given_instead = text_given(&mut of);
    assert!(given_instead.contains("RAISE EXCEPTION") && given_instead.contains("0A000"), "{given_instead}");
    assert!(of.refused().is_some() && !of.are_answered());
    hear(&mut of, &[failure("0A000"), ready(IDLE)].concat(), 1);
    of.ask(&[message(b'P', b"s\0listen c\0\0\0"), message(b'S', b"")].concat());
    let given_instead = text_given(&mut of);
    assert!(given_instead.starts_with('P') && given_instead.contains("::int"), "{given_instead}");
}

#[test]
fn one_that_waits_beside_another_is_said_again_outside_of_a_transaction_and_fails_within() {
    let canceled = |status| [failure("57014"), ready(status)].concat();
    let mut of = logged_in();
    let update = query("update t set a = 1");
    of.ask(&update);
    given(&mut of);
    of.interrupt(true);
    assert_eq!(hear(&mut of, &canceled(IDLE), 3), Heard::default());
    assert!(of.is_kept() && of.are_answered());
    of.give_again(Again::Given);
    assert_eq!((given(&mut of), of.are_answered(), of.is_kept()), (update, false, false));
    of.interrupt(true);
    hear(&mut of, &canceled(IDLE), 3);
    of.give_again(Again::Deadlock);
    assert!(text_given(&mut of).contains("40P01"));
    hear(&mut of, &[failure("40P01"), ready(IDLE)].concat(), 3);
    assert!(of.are_answered());
    of.ask(&query("begin"));
    hear(&mut of, &[done("BEGIN"), ready(IN_TRANSACTION)].concat(), 3);
    of.ask(&query("update t set a = 1"));
    of.interrupt(true);
    let heard = hear(&mut of, &canceled(b'E'), 3);
    let said = String::from_utf8_lossy(&heard.own[0]).into_owned();
    assert!(said.contains("C40001") && said.contains("Try the transaction again"), "{said}");
    assert!(!of.is_kept() && of.are_answered() && heard.digests == [0]);
}

#[test]
fn nobody_encrypts_cancels_or_replicates() {
    let mut of = OfPostgres::default();
    of.ask(&startup(80_877_104, b""));
    assert_eq!(given(&mut of), startup(80_877_103, b""));
    assert_eq!(hear(&mut of, b"N", 1).bytes, b"N");
    of.ask(&startup(196_608, b"user\0a\0replication\0database\0\0"));
    assert!(of.is_refused() && of.refused().is_some() && given(&mut of).is_empty());
    let mut of = OfPostgres::default();
    of.ask(&startup(80_877_102, b"\0\0\0\x07keys"));
    assert_eq!((given(&mut of), of.quits()), (startup(80_877_102, &[0; 8]), true));
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 8, 0, 0, 0, 0], &[0, 0, 0, 1, 0]] {
        let mut of = OfPostgres::default();
        of.ask(nonsense);
        assert!(of.is_refused() && given(&mut of).is_empty());
    }
}

#[test]
fn a_server_that_is_late_knows_what_the_primary_has_asked() {
    let mut of = OfPostgres::default();
    // Clients hear the primary's questions, and this server has not come to the login yet.
    let said = question(login::MD5, b"SALT");
    of.note_canonical(0, &said);
    of.ask(&startup(196_608, USER));
    given(&mut of);
    hear(&mut of, &question(login::MD5, &SALT), 1);
    of.ask(&message(b'p', &[b"md5", &[b'0'; 32][..], b"\0"].concat()));
    let login = of.given();
    assert!(matches!(&login[..], [Given::LogIn(login)] if login.user() == b"app"), "{login:?}");
    // In clear all servers get the same.
    let mut of = OfPostgres::default();
    of.ask(&startup(196_608, USER));
    hear(&mut of, &question(login::CLEAR, b""), 1);
    given(&mut of);
    of.ask(&message(b'p', b"secret\0"));
    assert_eq!(given(&mut of), message(b'p', b"secret\0"));
    // SCRAM has two steps, and the first is alike.
    let mut of = OfPostgres::default();
    of.ask(&startup(196_608, USER));
    hear(&mut of, &question(SASL, b"SCRAM-SHA-256\0\0"), 1);
    given(&mut of);
    let first = message(b'p', b"SCRAM-SHA-256\0\0\0\0\x09n,,n=,r=me");
    of.ask(&first);
    assert_eq!((given(&mut of), &of.identity.first[..]), (first, &b"n=,r=me"[..]));
    let asked =
        |nonce: &str| question(SASL_GOES_ON, std::format!("r=me{nonce},s=c2FsdA==,i=4096").as_bytes());
    hear(&mut of, &asked("HERE"), 1);
    of.note_canonical(1, &asked("THERE"));
    of.ask(&message(b'p', b"c=biws,r=meTHERE,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="));
    let login = text_given(&mut of);
    assert!(login.contains("r=meHERE,p="), "{login}");
}
