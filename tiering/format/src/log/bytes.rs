//! Little-endian numbers in byte slices, and sector-aligned buffers for direct I/O.

use crate::SECTOR;

/// Read a number at an offset that the caller has checked.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// As [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// As [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// As [`u16_at`].
pub(super) fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from(u64_at(bytes, at)) | u128::from(u64_at(bytes, at + 8)) << 64
}

/// Buffer of fixed capacity that starts at a sector-aligned address, so that reads and writes of a file opened with `O_DIRECT` need
/// no copy.
#[derive(Debug)]
pub(super) struct Buffer {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Buffer {
    pub fn new(capacity: usize) -> Buffer {
        let memory = vec![0; capacity + SECTOR as usize];
        // `align_offset` may fail on some targets. The buffer is then unaligned, and the storage copies.
        let begin = memory.as_ptr().align_offset(SECTOR as usize).min(SECTOR as usize);
        Buffer { memory, begin, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn room(&self) -> usize {
        self.memory.len() - SECTOR as usize - self.len
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Append `bytes` zero bytes and return them for the caller to fill in. The caller has checked [`room`](Buffer::room).
    pub fn grow(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.room(), "cannot append {bytes} bytes to a buffer of {} bytes", self.memory.len());
        let at = self.begin + self.len;
        self.len += bytes;
        let grown = &mut self.memory[at..at + bytes];
        grown.fill(0);
        grown
    }

    /// Remove all bytes from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.len]
    }
}
