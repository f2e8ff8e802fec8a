//! Commands of Redis that would leave servers with different data, whatever a node does (PROTOCOL 12.13): SPOP takes members out that each server chooses for itself.
//!
//! Such a command is not let through. Its name loses its last letter, at the same place on all nodes, so that every server refuses it, by an error that
//! the client gets: `ERR unknown command 'SPO!'`. No byte comes or goes. A script may do the same (EVAL): that is found when answers are compared.

use super::redis::is_blank;

/// Of a request, the part in which its command ends.
const HEAD_BYTES: usize = 128;
const REFUSED: &[u8] = b"SPOP";
/// What people are told.
pub(super) const WHY: &str = "SPOP: every server would take another member";
/// What no command has.
const INSTEAD: u8 = b'!';

/// Where these bytes of a request have to be altered, if they have to; `before` are those of the same request that came before.
pub(super) fn altered(before: &[u8], bytes: &[u8]) -> Option<(usize, u8)> {
    let at = begin(before, bytes);
    if at + HEAD_BYTES <= before.len() {
        return None;
    }
    let mut head = [0; HEAD_BYTES];
    let rest = bytes.get(at.saturating_sub(before.len())..)?;
    let all = before.get(at..).unwrap_or_default().iter().chain(rest);
    let count = head.iter_mut().zip(all).map(|(place, byte)| *place = *byte).count();
    let end = at + end_of_name(head.get(..count)?)?;
    end.checked_sub(before.len()).map(|end| (end, INSTEAD))
}

/// Where the request begins, behind blank lines and arrays of nothing: Redis passes both over.
pub(super) fn begin(before: &[u8], bytes: &[u8]) -> usize {
    let byte = |at: usize| before.get(at).or_else(|| bytes.get(at - before.len())).copied();
    let mut at = 0;
    loop {
        while byte(at).is_some_and(is_blank) {
            at += 1;
        }
        if byte(at) != Some(b'*') || !matches!(byte(at + 1), Some(b'0' | b'-')) {
            return at;
        }
        let Some(length) = (0..HEAD_BYTES).find(|length| byte(at + length) == Some(b'\n')) else { return at };
        at += length + 1;
    }
}

/// The byte with which the command's name is known to be one that is refused.
fn end_of_name(request: &[u8]) -> Option<usize> {
    if request.first()? != &b'*' {
        return end_of_word(request);
    }
    let from = line(request, 0)?.len();
    let line = line(request, from)?;
    let length = core::str::from_utf8(line.strip_prefix(b"$")?.trim_ascii()).ok()?.parse::<usize>().ok()?;
    let from = from + line.len();
    let name = request.get(from..from.checked_add(length)?)?;
    name.eq_ignore_ascii_case(REFUSED).then_some(from + length - 1)
}

/// The same of a line of words. No other command begins so; and one that is written in an odd way is refused as well, as it could be any.
fn end_of_word(line: &[u8]) -> Option<usize> {
    let quote = line.first().copied().filter(|byte| matches!(byte, b'"' | b'\''));
    let from = usize::from(quote.is_some());
    let word = line.get(from..)?;
    if word.get(..REFUSED.len()).is_some_and(|name| name.eq_ignore_ascii_case(REFUSED)) {
        return Some(from + REFUSED.len() - 1);
    }
    let end = word.iter().position(|byte| is_blank(*byte) || Some(*byte) == quote).unwrap_or(word.len());
    let is_odd = |byte: &u8| *byte == b'\\' || quote.is_none() && matches!(byte, b'"' | b'\'');
    word.get(..end)?.iter().position(is_odd).map(|odd| from + odd)
}

fn line(request: &[u8], at: usize) -> Option<&[u8]> {
    request.get(at..)?.split_inclusive(|byte| *byte == b'\n').next().filter(|line| line.ends_with(b"\n"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::*;
    use crate::protocol::redis::Requests;
    use crate::protocol::session::Session;
    use alloc::vec::Vec;

    /// What the server gets of a request that comes in two pieces.
    fn given(request: &[u8], cut: usize) -> Vec<u8> {
        let (first, second) = request.split_at(cut);
        let mut all = Vec::new();
        for (before, piece) in [(&b""[..], first), (first, second)] {
            let mut piece = piece.to_vec();
            if let Some((at, byte)) = altered(before, &piece) {
                piece[at] = byte;
            }
            all.extend(piece);
        }
        all
    }

    #[test]
    fn a_command_that_is_refused_is_one_that_no_server_knows_however_it_is_cut() {
        for (request, refused) in [
            (&b"*2\r\n$4\r\nSPOP\r\n$3\r\nset\r\n"[..], true),
            (b"*0\r\n*-1\r\n*2\r\n$4\r\nsPoP\r\n$3\r\nset\r\n", true),
            (b"spop set\r\n", true),
            (b" 'spop' set\r\n", true),
            (b"\"SPOP\" set 3\n", true),
            (b"*2\r\n$5\r\nSPOPS\r\n$3\r\nset\r\n", false),
            (b"*2\r\n$3\r\nGET\r\n$4\r\nSPOP\r\n", false),
            (b"*3\r\n$3\r\nSET\r\n$4\r\nSPOP\r\n$4\r\nSPOP\r\n", false),
            (b"spop\n", true),
            (b"\"\\x53POP\" set\r\n", true),
            (b"SP\"OP\" set\r\n", true),
            (b"S\\POP set\r\n", true),
            (b"\x0bspop set\r\n", true),
            (b"'get' spop\r\n", false),
            (b"set a \"b\\x20c\"\r\n", false),
            (b"get spop\r\n", false),
            (b"\r\n", false),
        ] {
            for cut in 0..=request.len() {
                let given = given(request, cut);
                assert_eq!(given != request, refused, "{:?} at {cut}", core::str::from_utf8(request));
                let known = given.to_ascii_uppercase();
                let has = known.windows(5).any(|five| {
                    five[..4] == *REFUSED && !five[4].is_ascii_alphabetic() && five[4] != INSTEAD
                });
                assert!(!refused || !has, "{:?} at {cut}", core::str::from_utf8(&given));
                assert_eq!(given.len(), request.len());
            }
        }
    }

    #[test]
    fn pieces_of_what_redis_passes_over_do_not_pile_up() {
        let (mut requests, mut session) = (Requests::default(), Session::default());
        for number in 0..100_000 {
            let piece = if number == 0 { &b"*0\r\n*"[..] } else { b"0\r\n*0\r\n*" };
            let mut rest = piece;
            while !rest.is_empty() {
                let before = rest;
                let ends = requests.take(&mut rest).unwrap();
                session.take(&before[..before.len() - rest.len()], ends);
            }
            assert!(session.partial().len() < 1_000);
        }
        let last = b"2\r\n$4\r\nSPOP\r\n";
        assert_eq!(altered(session.partial(), last), Some((last.len() - 3, INSTEAD)));
    }

    #[test]
    fn what_redis_passes_over_hides_nothing() {
        for nothing in ["\r\n", " ", "*0\r\n", "*-1\r\n \n"] {
            let request = [nothing.repeat(300).as_bytes(), b"*2\r\n$4\r\nSPOP\r\n$1\r\ns\r\n"].concat();
            let name = request.len() - b"SPOP\r\n$1\r\ns\r\n".len();
            for cut in [0, 1, 200, name - 9, name, name + 2, name + 3] {
                let given = given(&request, cut);
                assert_eq!(given.get(name..name + 4), Some(&b"SPO!"[..]), "{nothing:?} at {cut}");
            }
        }
    }
}
