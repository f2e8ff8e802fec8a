//! Whether a direction carries bulk: then splicing pays, which takes more system calls and copies nothing.

/// Moved at once, at least so much speaks for bulk: what is copied then costs more than the calls.
const LARGE_BYTES: usize = 32 << 10;
/// And at most so much against it.
const SMALL_BYTES: usize = 8 << 10;
/// So many large moves are bulk: a response of some hundred kilobytes is over before splicing has paid for its pipes.
const LARGE_MOVES: u32 = 8;
/// Moved by copying before splicing is tried again where it was not possible.
const REFUSED_BYTES: usize = 16 << 20;

/// What the latest moves of one direction looked like.
#[derive(Debug, Default)]
pub(super) struct Bulk {
    score: u32,
    is_on: bool,
    refused_bytes_left: usize,
}

impl Bulk {
    /// Whether it is bulk.
    pub(super) fn is_on(&self) -> bool {
        self.is_on && self.refused_bytes_left == 0
    }

    /// So much was moved at once.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.refused_bytes_left = self.refused_bytes_left.saturating_sub(bytes);
        if bytes >= LARGE_BYTES {
            self.score = (self.score + 1).min(LARGE_MOVES);
        } else if bytes <= SMALL_BYTES {
            self.score = self.score.saturating_sub(1);
        }
        match self.score {
            0 => self.is_on = false,
            LARGE_MOVES => self.is_on = true,
            _ => {}
        }
    }

    /// Splicing was not possible.
    pub(super) fn refused(&mut self) {
        self.refused_bytes_left = REFUSED_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(moves: &[usize]) -> Bulk {
        let mut bulk = Bulk::default();
        moves.iter().for_each(|bytes| bulk.moved(*bytes));
        bulk
    }

    #[test]
    fn large_moves_are_bulk_and_small_ones_end_it() {
        assert!(!after(&[64 << 10; 7]).is_on());
        let mut bulk = after(&[64 << 10; 100]);
        assert!(bulk.is_on());
        (0..7).for_each(|_| bulk.moved(100));
        assert!(bulk.is_on(), "a few small moves are no reason to change");
        bulk.moved(100);
        assert!(!bulk.is_on());
    }

    #[test]
    fn small_and_middling_moves_are_never_bulk() {
        assert!(!after(&[1; 1000]).is_on());
        assert!(!after(&[16 << 10; 1000]).is_on());
    }

    #[test]
    fn what_was_refused_is_tried_again_later() {
        let mut bulk = after(&[64 << 10; 8]);
        bulk.refused();
        assert!(!bulk.is_on());
        (0..256).for_each(|_| bulk.moved(64 << 10));
        assert!(bulk.is_on());
    }
}
