//! Comparing what arrives with what was sent, as it arrives: what is missing, what came twice.

use anyhow::Result;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Most bytes compared at once.
const CHUNK_BYTES: usize = 256 << 10;
/// So many equal bytes say where in the original a piece belongs.
const ANCHOR_BYTES: usize = 512;
/// How far from its place a piece is looked for.
const SEARCH_BYTES: u64 = 32 << 20;

/// What was found wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Bytes that never came.
    pub lost: u64,
    /// Bytes that came again.
    pub duplicated: u64,
    /// Bytes that are others than were sent.
    pub changed: u64,
}

impl Damage {
    /// What was found since `earlier`.
    pub fn since(self, earlier: Damage) -> Damage {
        Damage {
            lost: self.lost - earlier.lost,
            duplicated: self.duplicated - earlier.duplicated,
            changed: self.changed - earlier.changed,
        }
    }

    /// Both together.
    pub fn and(self, other: Damage) -> Damage {
        Damage {
            lost: self.lost + other.lost,
            duplicated: self.duplicated + other.duplicated,
            changed: self.changed + other.changed,
        }
    }

    /// Whether nothing is wrong.
    pub fn is_none(self) -> bool {
        self == Damage::default()
    }
}

/// A comparison in progress.
#[derive(Debug)]
pub struct Comparison {
    original: File,
    received: File,
    original_offset: u64,
    received_offset: u64,
    damage: Damage,
    chunks: [Vec<u8>; 2],
}

impl Comparison {
    /// Compares from the beginning.
    pub fn new(original: File, received: File) -> Self {
        let chunks = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
        Self { original, received, original_offset: 0, received_offset: 0, damage: Damage::default(), chunks }
    }

    /// Bytes received and looked at so far.
    pub fn received(&self) -> u64 {
        self.received_offset
    }

    /// What was found so far.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Looks at what has arrived meanwhile. False if there was nothing new.
    pub fn advance(&mut self) -> Result<bool> {
        let before = self.received_offset;
        loop {
            let [theirs, ours] = &mut self.chunks;
            let count = self.received.read_at(theirs, self.received_offset)?;
            if count == 0 {
                return Ok(self.received_offset > before);
            }
            let have = read_fully(&self.original, &mut ours[..count], self.original_offset)?;
            let (theirs, ours) = (&theirs[..count], &ours[..have]);
            let equal = if theirs == ours {
                count
            } else {
                theirs.iter().zip(ours).take_while(|(a, b)| a == b).count()
            };
            self.received_offset += equal as u64;
            self.original_offset += equal as u64;
            if equal < count && !self.explain(count - equal)? {
                return Ok(self.received_offset > before);
            }
        }
    }

    /// After the end: what is missing there.
    pub fn finish(&mut self) -> Result<Damage> {
        while self.advance()? {}
        let (received, original) = (self.received.metadata()?.len(), self.original.metadata()?.len());
        // A difference too short to be explained counts as changed.
        let unexplained = received - self.received_offset;
        let rest = original.saturating_sub(self.original_offset);
        self.damage.changed += unexplained.min(rest);
        self.damage.lost += rest.saturating_sub(unexplained);
        self.damage.duplicated += unexplained.saturating_sub(rest);
        (self.received_offset, self.original_offset) = (received, original);
        Ok(self.damage)
    }

    /// The next byte is not the one that was due: finds out which it is. False if more has to arrive first.
    fn explain(&mut self, available: usize) -> Result<bool> {
        if available < ANCHOR_BYTES {
            return Ok(false);
        }
        let mut anchor = [0; ANCHOR_BYTES];
        read_fully(&self.received, &mut anchor, self.received_offset)?;
        let start = self.original_offset.saturating_sub(SEARCH_BYTES);
        let mut window = vec![0; usize::try_from(2 * SEARCH_BYTES)?];
        let length = read_fully(&self.original, &mut window, start)?;
        let found = window[..length]
            .windows(ANCHOR_BYTES)
            .enumerate()
            .filter(|(_, piece)| *piece == anchor)
            .map(|(at, _)| start + at as u64)
            .min_by_key(|at| at.abs_diff(self.original_offset));
        match found {
            Some(at) if at > self.original_offset => self.damage.lost += at - self.original_offset,
            Some(at) => self.damage.duplicated += self.original_offset - at,
            None => {
                self.damage.changed += ANCHOR_BYTES as u64;
                self.received_offset += ANCHOR_BYTES as u64;
                self.original_offset += ANCHOR_BYTES as u64;
                return Ok(true);
            }
        }
        self.original_offset = found.unwrap_or(self.original_offset);
        Ok(true)
    }
}

fn read_fully(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn original() -> Vec<u8> {
        let mut random = outlast_lab::Random::new(5);
        (0..3 << 20).map(|_| random.next_u64().to_le_bytes()[0]).collect()
    }

    fn damage(received: &[u8]) -> Damage {
        let mut comparison = Comparison::new(file(&original()), file(received));
        comparison.finish().unwrap()
    }

    #[test]
    fn equal_files_have_no_damage() {
        assert_eq!(damage(&original()), Damage::default());
    }

    #[test]
    fn a_gap_is_lost_bytes() {
        let mut received = original();
        received.drain(700_001..700_778);
        assert_eq!(damage(&received), Damage { lost: 777, ..Damage::default() });
        assert_eq!(damage(&original()[..1_000_000]).lost, (3 << 20) - 1_000_000);
    }

    #[test]
    fn a_repetition_is_duplicated_bytes() {
        let mut received = original();
        let again = received[500_000..600_000].to_vec();
        received.splice(600_000..600_000, again);
        assert_eq!(damage(&received), Damage { duplicated: 100_000, ..Damage::default() });
        let mut longer = original();
        longer.extend([0; 5]);
        assert_eq!(damage(&longer).duplicated, 5);
    }

    #[test]
    fn other_bytes_are_changed_bytes() {
        let mut received = original();
        received[2_000_000] ^= 1;
        let found = damage(&received);
        assert!(found.changed > 0 && found.lost == 0 && found.duplicated == 0, "{found:?}");
    }
}
