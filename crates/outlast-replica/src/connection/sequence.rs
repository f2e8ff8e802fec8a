//! Sequence numbers of TCP, and the positions in a stream that they stand for.

/// Where a stream of TCP begins: its initial sequence number (RFC 9293, section 3.4). The byte at position 0 has the number after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialSequence(pub u32);

impl InitialSequence {
    /// The number of the byte at this position.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "numbers go round after 4 GiB")]
    pub fn number(self, offset: u64) -> u32 {
        self.0.wrapping_add(1).wrapping_add(offset as u32)
    }

    /// The position that this number stands for: of all that have it, the one that is nearest to `near`. None is below 0: the
    /// number of the SYN itself, and what came before it, stand for none.
    #[must_use]
    pub fn offset(self, number: u32, near: u64) -> Option<u64> {
        let distance = number.wrapping_sub(self.number(near)).cast_signed();
        near.checked_add_signed(i64::from(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_the_position_that_is_nearest() {
        for initial in [0, 1, 77, u32::MAX - 1, u32::MAX] {
            let stream = InitialSequence(initial);
            for near in [0_u64, 1, 1 << 20, (1 << 32) - 1, 1 << 32, (7 << 32) + 5] {
                for distance in [0_i32, 1, -1, 65_535, -65_535, i32::MAX, -i32::MAX] {
                    let offset = near.checked_add_signed(i64::from(distance));
                    let number = stream.number(near).wrapping_add_signed(distance);
                    assert_eq!(stream.offset(number, near), offset, "{initial} {near} {distance}");
                }
            }
        }
    }

    #[test]
    fn the_number_of_the_syn_stands_for_no_byte() {
        let stream = InitialSequence(u32::MAX);
        assert_eq!((stream.number(0), stream.offset(0, 0)), (0, Some(0)));
        assert_eq!(stream.offset(u32::MAX, 0), None);
    }
}
