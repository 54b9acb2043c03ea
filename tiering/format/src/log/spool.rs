//! Buffers the writes of a checkpoint in memory while its destination is still being read.

use super::error::LogError;
use super::storage::Storage;
use std::io;

/// Bytes of one write.
const POUR: usize = 1 << 20;

/// Storage that passes reads through and buffers writes, which must be contiguous from `offset` on.
pub(super) struct Spool<'a> {
    under: &'a mut dyn Storage,
    offset: u64,
    bytes: Vec<u8>,
}

impl<'a> Spool<'a> {
    pub fn new(under: &'a mut dyn Storage, offset: u64) -> Spool<'a> {
        Spool { under, offset, bytes: Vec::new() }
    }

    /// Write the buffered bytes.
    pub fn pour(self) -> Result<(), LogError> {
        for (index, bytes) in self.bytes.chunks(POUR).enumerate() {
            let offset = self.offset + (index * POUR) as u64;
            let failed = |source| LogError::Io { tried: "write", offset, bytes: bytes.len() as u64, source };
            self.under.write(offset, bytes).map_err(failed)?;
        }
        Ok(())
    }
}

impl Storage for Spool<'_> {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.under.read(offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(offset, self.offset + self.bytes.len() as u64, "the writes of a checkpoint are contiguous");
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.under.flush()
    }

    fn reserve(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.under.reserve(offset, bytes)
    }
}
