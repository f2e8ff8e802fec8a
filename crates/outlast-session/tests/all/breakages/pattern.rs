//! Bytes that tell where they belong: every offset of every stream has its own.

/// The byte at `offset` of stream `stream`.
fn byte_at(stream: u8, offset: u64) -> u8 {
    let word = (offset / 8).wrapping_add(u64::from(stream) << 56).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((word ^ word >> 29) >> (offset % 8 * 8)) as u8
}

/// Fills `buffer` with what stands at `offset`.
pub fn fill(stream: u8, offset: u64, buffer: &mut [u8]) {
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = byte_at(stream, offset + index as u64);
    }
}

/// Panics at the first byte that does not belong.
pub fn check(what: &str, stream: u8, offset: u64, buffer: &[u8]) {
    for (index, byte) in buffer.iter().enumerate() {
        let at = offset + index as u64;
        assert!(
            *byte == byte_at(stream, at),
            "{what}: wrong byte at offset {at} (of {} read there)",
            buffer.len()
        );
    }
}
