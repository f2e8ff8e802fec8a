//! Fields of a message, one after the other.

use super::NoMessage;

#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// So many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], NoMessage> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(NoMessage::Length)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], NoMessage> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(NoMessage::Length)?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, NoMessage> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, NoMessage> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, NoMessage> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// A position, or a count: others are added to it.
    pub(super) fn position(&mut self) -> Result<u64, NoMessage> {
        let position = self.u64()?;
        if position > u64::MAX / 2 { Err(NoMessage::Value) } else { Ok(position) }
    }

    pub(super) fn u64(&mut self) -> Result<u64, NoMessage> {
        Ok(u64::from_be_bytes(self.array()?))
    }
}
