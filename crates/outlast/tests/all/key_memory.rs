//! What a core dump of a relay would tell: not the key that it was given.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is the message of a test")]

use crate::common::{KEY, Pair, echo, folder, secret_file};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;

/// The mappings of a process that hold one of these, and whether they are left out of core dumps.
fn mappings_with(pid: u32, secrets: &[Vec<u8>]) -> Vec<(String, bool)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let (mut found, mut last) = (Vec::new(), None);
    for line in maps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let Some((name, content)) = last.take() else { continue };
            let content: Vec<u8> = content;
            if secrets
                .iter()
                .any(|secret| content.windows(secret.len()).any(|window| window == secret.as_slice()))
            {
                found.push((name, flags.split_whitespace().any(|flag| flag == "dd")));
            }
            continue;
        }
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((from, to)) = range else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else {
            continue;
        };
        // What cannot be written holds the program, and nothing that it was told. What was never touched reads as zeroes.
        if line.split(' ').nth(1).is_none_or(|access| !access.starts_with("rw")) || to - from > 64 << 20 {
            continue;
        }
        let mut content = vec![0; usize::try_from(to - from).unwrap()];
        if memory.read_exact_at(&mut content, from).is_ok() {
            last = Some((line.to_owned(), content));
        }
    }
    found
}

#[test]
fn a_key_is_nowhere_in_what_a_core_dump_has() {
    let folder = folder();
    let key = secret_file(folder.path(), "key", KEY);
    let flags = ["--psk-file", key.as_str()];
    let pair = Pair::start(folder.path(), &echo().to_string(), &flags, &flags);
    let mut stream = TcpStream::connect(pair.address).unwrap();
    stream.write_all(b"opened").unwrap();
    stream.read_exact(&mut [0; 6]).unwrap();
    let bytes: Vec<u8> =
        (0..KEY.len() / 2).map(|at| u8::from_str_radix(&KEY[2 * at..2 * at + 2], 16).unwrap()).collect();
    // Half of it is too much, as bytes or as the text of the file.
    let text = [&KEY.as_bytes()[..32], &KEY.as_bytes()[32..]].map(<[u8]>::to_vec);
    // As what HMAC makes of it, too: RFC 2104, section 2.
    let masked = [0, 0x36, 0x5c].map(|mask| bytes.iter().map(|byte| byte ^ mask).collect::<Vec<u8>>());
    let halves = masked.iter().flat_map(|bytes| bytes.chunks(16).map(<[u8]>::to_vec));
    let secrets: Vec<Vec<u8>> = halves.chain(text).collect();
    for pid in [pair.server.pid(), pair.client.pid()] {
        let found = mappings_with(pid, &secrets);
        assert!(!found.is_empty(), "the key is not found at all: what was searched?");
        assert!(found.iter().all(|(_, left_out)| *left_out), "{found:#?}");
    }
}
