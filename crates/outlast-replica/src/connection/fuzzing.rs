//! What must hold for every packet: the body of the fuzz target `packet` in `fuzz/`.

use super::{Direction, Segment};

/// A packet of either direction is the same but for its ends; what is cut off behind its headers changes nothing; it carries no more than
/// a packet can.
#[allow(clippy::panic, reason = "that is how a finding is told")]
pub fn packet(bytes: &[u8]) {
    let (inward, outward) = (Segment::parse(bytes, Direction::In), Segment::parse(bytes, Direction::Out));
    match (inward, outward) {
        (Ok(inward), Ok(outward)) => {
            assert_eq!((inward.ends.portal, inward.ends.client), (outward.ends.client, outward.ends.portal));
            assert_eq!(Segment { ends: inward.ends, ..outward }, inward);
            assert!(inward.payload_bytes <= u32::from(u16::MAX), "{inward:?}");
            assert!(inward.flags.syn || inward.options == super::SynOptions::default(), "{inward:?}");
            let headers_bytes = bytes.len().saturating_sub(inward.payload_bytes as usize);
            for cut in headers_bytes..bytes.len() {
                if let Ok(segment) = Segment::parse(&bytes[..cut], Direction::In) {
                    assert_eq!(segment, inward, "{cut} of {}", bytes.len());
                }
            }
        }
        (inward, outward) => assert_eq!(inward.err(), outward.err()),
    }
}
