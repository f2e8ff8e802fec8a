//! Reading and writing the fields of a message body.

use super::{MAGIC, OFFSET_MAX, PREFIX_BYTES, WireError};
use alloc::string::String;
use alloc::vec::Vec;

/// A text in a tagged field: its length is one byte.
pub(crate) const REASON_BYTES_MAX: usize = u8::MAX as usize;

/// What is left of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) const fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A position in a stream.
    pub(crate) fn offset(&mut self, name: &'static str) -> Result<u64, WireError> {
        checked_offset(name, self.u64()?)
    }

    /// The next `count` bytes, of which there may be fewer.
    pub(crate) fn bytes(&mut self, count: u64) -> Result<&'a [u8], WireError> {
        let count = usize::try_from(count).map_err(|_| WireError::Truncated)?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Hands every tagged field, up to the end of the body, to `each`.
    ///
    /// Tags that `each` does not know are its to ignore; a tag that comes twice is an error here.
    pub(crate) fn tags(
        &mut self,
        mut each: impl FnMut(u8, Tagged<'a>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let mut seen = [0u64; 4];
        while !self.0.is_empty() {
            let [tag, length] = self.array()?;
            let (value, rest) = self.0.split_at_checked(usize::from(length)).ok_or(WireError::Truncated)?;
            self.0 = rest;
            // PROTOCOL 1.4: a tag comes once.
            let (word, bit) = (usize::from(tag >> 6), 1 << (tag & 63));
            if seen[word] & bit != 0 {
                return Err(WireError::Duplicate(tag));
            }
            seen[word] |= bit;
            each(tag, Tagged { tag, value, is_last: rest.is_empty() })?;
        }
        Ok(())
    }
}

/// The value of one tagged field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged<'a> {
    tag: u8,
    value: &'a [u8],
    pub(crate) is_last: bool,
}

impl<'a> Tagged<'a> {
    pub(crate) const fn value(self) -> &'a [u8] {
        self.value
    }

    /// The value, if it has the length that the tag calls for.
    pub(crate) fn array<const N: usize>(self) -> Result<[u8; N], WireError> {
        self.value.try_into().map_err(|_| WireError::FieldLength { tag: self.tag, bytes: self.value.len() })
    }

    pub(crate) fn offset(self, name: &'static str) -> Result<u64, WireError> {
        checked_offset(name, u64::from_be_bytes(self.array()?))
    }
}

pub(crate) fn checked_offset(name: &'static str, offset: u64) -> Result<u64, WireError> {
    if offset < OFFSET_MAX { Ok(offset) } else { Err(WireError::Value(name)) }
}

/// Appends one message to a vector; the length is filled in at the end.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    begin: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, version: u8, kind: u8) -> Self {
        let begin = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[version, kind, 0, 0]);
        Self { out, begin }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.out.push(byte);
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    /// A tagged field, if there is a value.
    pub(crate) fn tag<const N: usize>(&mut self, tag: u8, value: Option<[u8; N]>) {
        if let Some(value) = value {
            // All these values have 32 bytes at the most.
            let length = u8::try_from(N).unwrap_or(u8::MAX);
            self.bytes(&[tag, length]);
            self.bytes(&value);
        }
    }

    /// A tagged text, if there is one; what does not fit is cut off.
    pub(crate) fn text(&mut self, tag: u8, text: Option<&str>) {
        if let Some(text) = text {
            let text = truncated(text, REASON_BYTES_MAX).as_bytes();
            self.bytes(&[tag, u8::try_from(text.len()).unwrap_or(u8::MAX)]);
            self.bytes(text);
        }
    }

    pub(crate) fn finish(self) {
        let body_bytes = self.out.len() - self.begin - PREFIX_BYTES;
        // The longest message written here has 471 bytes.
        let length = u16::try_from(body_bytes).unwrap_or(u16::MAX).to_be_bytes();
        if let Some(field) = self.out.get_mut(self.begin + PREFIX_BYTES - 2..self.begin + PREFIX_BYTES) {
            field.copy_from_slice(&length);
        }
    }
}

/// The longest start of `text` that has at most `bytes_max` bytes.
pub(crate) fn truncated(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// A peer's text as it may be shown to people: what is no text, or would control a terminal, is replaced. Never has
/// more bytes than it came with.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.extend(chunk.valid().chars().map(|c| if c.is_control() { '?' } else { c }));
        text.extend(chunk.invalid().first().map(|_| '?'));
    }
    text
}
