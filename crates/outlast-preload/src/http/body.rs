//! Where a body ends, of requests as of answers: after so many bytes, or behind its last chunk (RFC 9112, 6 and 7).

/// What of a body comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    /// Nothing: all of it was there.
    #[default]
    Done = 0,
    /// So many bytes.
    Bytes = 1,
    /// The first digit of a chunk's size.
    Size = 2,
    /// More digits: the size so far.
    Digits = 3,
    /// The rest of that line.
    Extension = 4,
    /// The line feed of that line.
    SizeEnd = 5,
    /// So many bytes of a chunk, with the end of its line.
    Chunk = 6,
    /// A line behind the last chunk: a field, or the empty one.
    Line = 7,
    /// The rest of a field.
    Field = 8,
    /// The line feed of a field.
    FieldEnd = 9,
    /// The line feed of the empty line.
    LastEnd = 10,
}

impl Step {
    const ALL: [Self; 11] = [
        Self::Done,
        Self::Bytes,
        Self::Size,
        Self::Digits,
        Self::Extension,
        Self::SizeEnd,
        Self::Chunk,
        Self::Line,
        Self::Field,
        Self::FieldEnd,
        Self::LastEnd,
    ];
}

/// The rest of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Body {
    step: Step,
    rest: u64,
}

impl Body {
    /// One of so many bytes.
    pub fn of_length(length: u64) -> Self {
        Self { step: if length == 0 { Step::Done } else { Step::Bytes }, rest: length }
    }

    /// One that tells the size of each chunk.
    pub fn chunked() -> Self {
        Self { step: Step::Size, rest: 0 }
    }

    /// Whether all of it was there.
    pub fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// As two numbers, the first less than 2^32.
    pub fn to_numbers(self) -> [u64; 2] {
        [self.step as u64, self.rest]
    }

    /// From [`to_numbers`](Self::to_numbers).
    pub fn from_numbers([step, rest]: [u64; 2]) -> Self {
        let step = Step::ALL.into_iter().find(|known| *known as u64 == step).unwrap_or_default();
        Self { step, rest }
    }

    /// How many of these bytes belong to it. None: it is not understood.
    pub fn take(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut rest = bytes;
        while let Some((&first, others)) = rest.split_first() {
            let data = match self.step {
                Step::Done => break,
                Step::Bytes => self.rest,
                // The end of its line is looked at.
                Step::Chunk => self.rest.saturating_sub(2),
                _ => 0,
            };
            rest = if data > 0 {
                let taken = usize::try_from(data).unwrap_or(usize::MAX).min(rest.len());
                self.pass(taken as u64);
                rest.get(taken..)?
            } else {
                self.framing(first)?;
                others
            };
        }
        Some(bytes.len() - rest.len())
    }

    /// So many bytes that cannot be looked at. None: not all of them can be of its data.
    pub fn take_unseen(&mut self, bytes: u64) -> Option<()> {
        let is_data = matches!(self.step, Step::Bytes | Step::Chunk) && bytes <= self.rest;
        is_data.then(|| self.pass(bytes))
    }

    /// Bytes of data.
    fn pass(&mut self, bytes: u64) {
        self.rest = self.rest.saturating_sub(bytes);
        if self.rest == 0 {
            self.step = if self.step == Step::Bytes { Step::Done } else { Step::Size };
        }
    }

    /// A byte between the data. None: it cannot be there.
    fn framing(&mut self, byte: u8) -> Option<()> {
        self.step = match (self.step, byte) {
            (Step::Size | Step::Digits, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = (byte as char).to_digit(16)?;
                self.rest = Some(self.rest).filter(|size| *size < 1 << 56)? << 4 | u64::from(digit);
                Step::Digits
            }
            (Step::Digits | Step::Extension, b'\r') => Step::SizeEnd,
            (Step::Digits, b';' | b' ' | b'\t') => Step::Extension,
            (Step::Extension, other) if other != b'\n' => Step::Extension,
            (Step::SizeEnd, b'\n') if self.rest == 0 => Step::Line,
            (Step::SizeEnd, b'\n') => {
                // The end of its line belongs to it.
                self.rest = self.rest.checked_add(2)?;
                Step::Chunk
            }
            (Step::Chunk, b'\r') if self.rest == 2 => {
                self.rest = 1;
                Step::Chunk
            }
            (Step::Chunk, b'\n') if self.rest == 1 => {
                self.rest = 0;
                Step::Size
            }
            (Step::Line, b'\r') => Step::LastEnd,
            (Step::LastEnd, b'\n') => Step::Done,
            (Step::Field | Step::FieldEnd, b'\r') => Step::FieldEnd,
            (Step::FieldEnd, b'\n') => Step::Line,
            (Step::Line | Step::Field | Step::FieldEnd, other) if other != b'\n' => Step::Field,
            _ => return None,
        };
        Some(())
    }
}
