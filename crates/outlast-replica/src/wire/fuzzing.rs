//! What must hold for all bytes that another node may send: the body of the fuzz target `order` in `fuzz/`.

use super::{encode, parse, snapshot as copies};
use alloc::vec::Vec;

/// A snapshot comes back as the same bytes, and none has more or less behind it.
pub fn snapshot(bytes: &[u8]) {
    if let Ok(snapshot) = copies::parse(bytes) {
        let mut again = Vec::new();
        copies::encode(&snapshot, &mut again);
        assert_eq!(again, bytes);
        assert!(copies::parse(&bytes[..bytes.len() - 1]).is_err());
        again.push(0);
        assert!(copies::parse(&again).is_err());
    }
}

/// A message comes back as the same bytes, and a part of it is none yet. What is no message is none with more behind it, either.
#[allow(clippy::panic, reason = "that is how a finding is told")]
pub fn order(bytes: &[u8]) {
    match parse(bytes) {
        Ok(Some((message, length))) => {
            let mut again = Vec::new();
            encode(&message, &mut again);
            assert_eq!(again, bytes[..length]);
            for part in 0..length {
                assert_eq!(parse(&bytes[..part]), Ok(None), "{part} of {length}");
            }
        }
        Ok(None) => {}
        Err(error) => {
            let more = [bytes, &[0; 64]].concat();
            assert_eq!(parse(&more), Err(error));
        }
    }
}
