//! The LZ4 codec: the length of the block, then the block.

use super::{Garbled, LENGTH, garbled, length};
use lz4_flex::block;

/// The encoder's hash table, and a buffer for the worst case that the library demands.
pub(super) struct Lz4 {
    table: block::CompressTable,
    block: Vec<u8>,
}

impl Lz4 {
    pub(super) fn new() -> Lz4 {
        Lz4 { table: block::CompressTable::large(), block: Vec::new() }
    }

    /// Encode a page into `into` and return the bytes written; `None`: they do not fit.
    pub(super) fn encode(&mut self, page: &[u8], into: &mut [u8]) -> Option<usize> {
        self.block.resize(block::get_maximum_output_size(page.len()), 0);
        let bytes = block::compress_into_with_table(page, &mut self.block, &mut self.table).ok()?;
        let (length, rest) = into.split_at_mut(LENGTH);
        rest.get_mut(..bytes)?.copy_from_slice(&self.block[..bytes]);
        length.copy_from_slice(&u32::try_from(bytes).ok()?.to_le_bytes());
        Some(LENGTH + bytes)
    }
}

pub(super) fn decode(stored: &[u8], page: &mut [u8]) -> Result<(), Garbled> {
    let (bytes, rest) = length(stored)?;
    let block = rest.get(..bytes).ok_or(garbled("the LZ4 block is longer than its sectors"))?;
    match block::decompress_into(block, page) {
        Ok(bytes) if bytes == page.len() => Ok(()),
        Ok(_) => Err(garbled("the LZ4 block is of a shorter page")),
        Err(_) => Err(garbled("the LZ4 block is damaged")),
    }
}
