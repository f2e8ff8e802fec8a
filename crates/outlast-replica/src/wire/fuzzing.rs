//! What must hold for all bytes that another node may send: the body of the fuzz target `order` in `fuzz/`.

use super::{encode, parse};
use alloc::vec::Vec;

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
