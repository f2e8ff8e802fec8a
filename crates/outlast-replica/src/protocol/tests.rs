//! What is open on a connection, by protocol.

use super::*;

#[test]
fn replies_that_the_client_has_had_end_where_the_next_one_begins() {
    let resume = Resume {
        setup: b"hello 3\r\nsubscribe a b\r\n".to_vec(),
        queued: b"multi\r\nget a\r\n".to_vec(),
        queued_count: 2,
        partial: b"ge".to_vec(),
        is_not_compared: false,
    };
    let replies = b"%1\r\n+proto\r\n:3\r\n>3\r\n+subscribe\r\n+a\r\n:1\r\n>3\r\n+subscribe\r\n+b\r\n:2\r\n+OK\r\n+QUEUED\r\n";
    let mut resumes = Resumes::new(Protocol::Redis, &resume);
    assert_eq!(resumes.take(&[&replies[..], b"+more\r\n"].concat()), replies.len());
    assert!(resumes.are_over());
    assert!(Resumes::new(Protocol::Redis, &Resume::default()).are_over());
}

#[test]
fn what_may_be_under_way_still_is_not_told() {
    let mut questions = Questions::new(Protocol::Redis);
    questions.ask(b"blpop q 0\r\n");
    questions.pass();
    assert_eq!(questions.resume(), None);
    questions.ask(b"blpop r 0\r\n");
    questions.answer_all(b"*2\r\n+q\r\n+x\r\n");
    questions.pass();
    assert_eq!(questions.resume(), None);
    let mut questions = Questions::new(Protocol::Redis);
    questions.answer_all(b"*3\r\n+message\r\n+a\r\n$9\r\nhal");
    assert_eq!(questions.resume(), None);
    questions.answer_all(b"f of it\r\n");
    assert_eq!(questions.resume(), None);
    questions.answer_all(b"\r\n");
    let mut questions = Questions::new(Protocol::Redis);
    questions.answer_all(b"+all\r\n");
    assert!(questions.resume().is_some());
}

#[test]
fn any_bytes_answer_what_is_not_understood() {
    let mut questions = Questions::new(Protocol::Raw);
    assert!(questions.are_answered());
    questions.ask(b"half of a");
    assert!(!questions.are_answered());
    questions.answer_all(b"?");
    assert!(questions.are_answered());
}

#[test]
fn requests_of_redis_are_counted_and_what_is_none_falls_back() {
    let mut questions = Questions::new(Protocol::Redis);
    questions.ask(b"*1\r\n$4\r\nPI");
    assert!(questions.are_answered());
    questions.ask(b"NG\r\nping\r\n");
    questions.answer_all(b"+PONG\r\n+PO");
    assert!(!questions.are_answered());
    questions.answer_all(b"NG\r\n");
    assert!(questions.are_answered());
    questions.ask(b"blpop q 0\r\n");
    questions.pass();
    assert!(questions.are_answered());
    questions.ask(b"ping\r\n");
    questions.answer_all(b"*2\r\n+q\r\n+x\r\n");
    assert!(!questions.are_answered());
    questions.answer_all(b"+PONG\r\n");
    assert!(questions.are_answered());
    // Nothing ever answers that: it delays no more than the next one.
    questions.ask(b"client reply off\r\n");
    questions.pass();
    questions.ask(b"ping\r\n");
    questions.answer_all(b">3\r\n+message\r\n+x\r\n:1\r\n+PONG\r\n");
    assert!(!questions.are_answered());
    questions.pass();
    questions.ask(b"ping\r\n");
    questions.answer_all(b"+PONG\r\n");
    assert!(questions.are_answered());
    questions.ask(b"*x\r\n");
    assert!(!questions.are_answered());
    questions.answer_all(b"-ERR");
    assert!(questions.are_answered());
}
