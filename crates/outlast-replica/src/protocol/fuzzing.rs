//! What must hold for all bytes that clients and servers may say.

use super::database::Database as _;
use super::database::Given;
use super::mysql::OfMysql;
use super::postgres::OfPostgres;
use super::redis::{Replies, Requests};
use super::{Protocol, Questions};
use crate::connection::Piece;
use alloc::vec::Vec;

/// Counts the same, in whatever pieces bytes come.
pub fn redis(bytes: &[u8]) {
    let Some((at, bytes)) = bytes.split_first() else { return };
    let (front, back) = bytes.split_at(usize::from(*at).min(bytes.len()));
    let mut parts = Requests::default();
    let counted = parts.count(front).and_then(|count| Some(count + parts.count(back)?));
    assert_eq!(counted, Requests::default().count(bytes));
    let mut questions = Questions::new(Protocol::Redis);
    for piece in [front, back] {
        questions.ask(piece);
        let instead = questions.instead_of(piece);
        let is_altered = |given: &[Given]| matches!(given, [Given::Bytes(instead)] if instead.len() == piece.len() && instead != piece);
        assert!(instead.is_none_or(|instead| is_altered(&instead)));
    }
    let mut parts = Replies::default();
    let counted = parts.count(front).and_then(|count| Some(count + parts.count(back)?));
    assert_eq!(counted, Replies::default().count(bytes));
}

/// What a server of MySQL gets and what clients get of it are the same, in whatever pieces bytes come. The first byte says how the others are divided
/// between server and client, and where they are cut.
pub fn mysql(bytes: &[u8]) {
    let Some((at, bytes)) = bytes.split_first() else { return };
    let (server, client) = bytes.split_at(usize::from(*at).min(bytes.len()));
    let told = |piece_bytes: usize| {
        let (mut of, mut said, mut given) = (OfMysql::default(), Vec::new(), Vec::new());
        let greeting = server.get(..GREETING_BYTES).unwrap_or(server);
        let rest = server.get(GREETING_BYTES..).unwrap_or_default();
        let mut hear = |of: &mut OfMysql, bytes: &[u8]| {
            for piece in bytes.chunks(piece_bytes) {
                of.answer(piece, |piece| match piece {
                    Piece::Bytes(bytes) => said.extend_from_slice(bytes),
                    Piece::Own(bytes, _) => {
                        said.extend_from_slice(bytes);
                    }
                    Piece::Part(_) => {}
                });
            }
        };
        hear(&mut of, greeting);
        of.note_canonical(0, greeting);
        let mut pieces: Vec<Vec<u8>> = client.chunks(piece_bytes).rev().map(<[u8]>::to_vec).collect();
        while let Some(piece) = pieces.pop() {
            of.ask(&piece);
            let rest = of.rest();
            if !rest.is_empty() {
                pieces.push(rest);
            }
            for given_now in of.given() {
                match given_now {
                    Given::Bytes(bytes) => given.extend(bytes),
                    Given::LogIn(login) => given.extend(login.for_server(&[])),
                }
            }
        }
        hear(&mut of, rest);
        (said, given, of.are_answered(), of.is_broken())
    };
    let (one, other) = (told(1), told(bytes.len().max(1)));
    assert_eq!(one, other);
}

/// What a server of PostgreSQL gets and what clients get of it are the same, in whatever pieces bytes come. The first byte says how the others are divided
/// between client and server, which answers each request before it gets the next one.
pub fn postgres(bytes: &[u8]) {
    let Some((at, bytes)) = bytes.split_first() else { return };
    let (client, server) = bytes.split_at(usize::from(*at).min(bytes.len()));
    // So many bytes each reply has, if they come one by one.
    let mut lengths: Vec<usize> = Vec::new();
    let mut told = |piece_bytes: usize| {
        let (mut of, mut said, mut given) = (OfPostgres::default(), Vec::new(), Vec::new());
        let mut pieces: Vec<Vec<u8>> = client.chunks(piece_bytes).rev().map(<[u8]>::to_vec).collect();
        let (mut server, mut replies, mut number) = (server, 0, 0);
        while let Some(piece) = pieces.pop() {
            of.ask(&piece);
            let rest = of.rest();
            if !rest.is_empty() {
                pieces.push(rest);
            }
            for given_now in of.given() {
                match given_now {
                    Given::Bytes(bytes) => given.extend(bytes),
                    Given::LogIn(login) => {
                        let for_server = login.for_server(&[]);
                        assert_eq!(for_server.len(), login.length());
                        given.extend(for_server);
                    }
                }
            }
            let mut hear = |of: &mut OfPostgres, bytes: &[u8]| {
                let mut own = Vec::new();
                of.answer(bytes, &mut |piece| match piece {
                    Piece::Bytes(bytes) => said.extend_from_slice(bytes),
                    Piece::Own(bytes, _) => own.push(bytes.to_vec()),
                    Piece::Part(_) => {}
                });
                for reply in own {
                    of.note_canonical(number, &reply);
                    number += 1;
                    said.extend_from_slice(&reply);
                }
            };
            if piece_bytes == 1 {
                let before = server.len();
                while !of.are_answered()
                    && let Some((byte, rest)) = server.split_first()
                {
                    hear(&mut of, &[*byte]);
                    server = rest;
                }
                if before > server.len() {
                    lengths.push(before - server.len());
                }
            } else if !of.are_answered()
                && let Some((reply, rest)) =
                    lengths.get(replies).and_then(|length| server.split_at_checked(*length))
            {
                hear(&mut of, reply);
                (server, replies) = (rest, replies + 1);
            }
            // From then on any bytes answer all, and who says how many is chance.
            if of.is_broken() {
                break;
            }
        }
        (said, given, of.are_answered(), of.is_broken(), of.quits())
    };
    let one = told(1);
    let other = told(bytes.len().max(2));
    assert_eq!(one, other);
}

/// Of a server, in the input of [`mysql`].
const GREETING_BYTES: usize = 80;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is the message of a test")]
mod tests {
    use super::{mysql, postgres, redis};
    use crate::protocol::{mysql::tests::conversations, postgres::tests::conversations as of_postgres};
    use std::vec::Vec;

    const SEEDS: [(&str, &[u8]); 5] = [
        ("refused", b"\x06*2\r\n$4\r\nSPOP\r\n$1\r\nx\r\nspop 'x'\r\n"),
        ("requests", b"\x05*2\r\n$3\r\nGET\r\n$1\r\nx\r\nping\r\n"),
        ("replies", b"\x09+OK\r\n$2\r\nab\r\n*2\r\n:1\r\n$-1\r\n"),
        ("resp3", b"\x03%1\r\n+a\r\n#t\r\n>1\r\n+m\r\n|1\r\n+b\r\n,1\r\n_\r\n"),
        ("nested", b"\x02*1\r\n*1\r\n*2\r\n~1\r\n(5\r\n=5\r\ntxt:a\r\n"),
    ];

    #[test]
    fn the_corpus_has_all_seeds_and_changes_to_them_mislead_nobody() {
        let seeds = SEEDS.map(|(name, bytes)| (name, bytes.to_vec()));
        check("redis", seeds.into(), redis);
        check("mysql", conversations(), mysql);
        check("postgres", of_postgres(), postgres);
    }

    fn check(target: &str, seeds: Vec<(&str, Vec<u8>)>, run: fn(&[u8])) {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        for (name, bytes) in seeds {
            let path = folder.join(name);
            if std::env::var_os("OUTLAST_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &bytes).unwrap();
            }
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "run with OUTLAST_WRITE_CORPUS=1");
        }
        for entry in std::fs::read_dir(&folder).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    run(&changed);
                }
            }
        }
    }
}
