//! What must hold for every packet: the body of the fuzz target `holder` in `fuzz/`.

use super::protocol::{Answer, MESSAGE_BYTES_MAX, Request};

/// Bytes are a request, an answer or neither, never both; what is one comes back as the same bytes, and has a size that fits
/// into a packet; what is none is explained.
#[allow(clippy::panic, reason = "that is how a finding is told")]
pub fn packet(bytes: &[u8]) {
    let (request, answer) = (Request::parse(bytes), Answer::parse(bytes));
    assert!(request.is_err() || answer.is_err(), "a request and an answer");
    match (&request, &answer) {
        (Ok(request), _) => assert_eq!(request.encode(), bytes),
        // A refusal may have another version, and bytes that are no text.
        (_, Ok(Answer::Refused(refusal, text))) => {
            let again = Answer::Refused(*refusal, text).encode();
            assert_eq!(Answer::parse(&again), Ok(Answer::Refused(*refusal, text)));
            assert_eq!(refusal.number(), super::Refusal::from_number(refusal.number()).number());
        }
        (_, Ok(answer)) => assert_eq!(answer.encode(), bytes),
        (Err(one), Err(other)) => assert!(!one.to_string().is_empty() && !other.to_string().is_empty()),
    }
    assert!(bytes.len() <= MESSAGE_BYTES_MAX || (request.is_err() && answer.is_err()));
}

#[cfg(test)]
mod tests {
    use super::super::Refusal;
    use super::*;
    use crate::corpus::Corpus;

    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let name = "n".repeat(200);
        let mut other_version = Answer::Refused(Refusal::Version, "1").encode();
        other_version[2] = 2;
        vec![
            ("hello", Request::Hello("echo").encode()),
            ("keep", Request::Keep("c1", b"state").encode()),
            ("keep_longest", Request::Keep(&name, &[7; 4096]).encode()),
            ("update", Request::Update("c1", b"").encode()),
            ("release", Request::Release("c1").encode()),
            ("recover", Request::Recover.encode()),
            ("welcome", Answer::Welcome(3).encode()),
            ("done", Answer::Done(1).encode()),
            ("kept", Answer::Kept("c1", b"state").encode()),
            ("end", Answer::End(70_000).encode()),
            ("refused", Answer::Refused(Refusal::Bytes, "no room").encode()),
            ("refused_other_version", other_version),
            ("empty", Vec::new()),
            ("http", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ]
    }

    #[test]
    fn the_corpus_has_all_seeds() {
        Corpus::new("holder", seeds()).has_all_seeds();
    }

    #[test]
    fn the_corpus_and_random_changes_to_it_pass() {
        Corpus::new("holder", seeds()).changed_at_random(
            |bytes, random| {
                for _ in 0..=random.size(3) {
                    match random.below(4) {
                        0 => bytes.truncate(random.size(bytes.len() + 1)),
                        1 => bytes.extend(vec![b'x'; random.size(9)]),
                        _ if bytes.is_empty() => {}
                        _ => {
                            // The header more often than the rest.
                            let within = [bytes.len().min(16), bytes.len()][random.size(2)];
                            let at = random.size(within);
                            bytes[at] = [0, 1, 2, 5, 65, 69, 0xff, b':'][random.size(8)];
                        }
                    }
                }
            },
            |bytes| {
                packet(bytes);
                Request::parse(bytes).is_ok() || Answer::parse(bytes).is_ok()
            },
        );
    }
}
