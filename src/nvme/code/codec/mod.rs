//! Codecs: store a page in fewer sectors, or unchanged.
//!
//! A coded page starts at the page's fixed offset in its slot and takes whole sectors, fewer than the page: a codec saves bytes
//! written and read, not space. The index record has the number of sectors; 0 means that the page is stored unchanged, because
//! coding would not save a sector. All lengths that a decoder reads come from the disk and are checked.
//!
//! ```text
//! both          u32 CRC-32C of what follows, to the end of the last sector │ the codec's own │ zeros to the end of the sector
//! lz4           u32 bytes of the block │ LZ4 block
//! planes-zstd   u8 stride, 3 zero bytes │ u32 bytes of each plane (stride of them) │ the planes
//! ```
//! The checksum at the start detects damage before decoding, including damage that decodes to the same page. The page's own
//! checksum or tag shows whether it is the right page.
//!
//! A *byte plane* holds every stride-th byte of the page: sign and exponent of floating-point numbers compress, mantissas do not.
//! The stride is the width of the numbers, estimated from the page. A plane is a zstd frame, or stored unchanged if the frame is
//! not shorter.

mod lz4;
mod planes;

use crc_fast::{CrcAlgorithm, checksum};
use kvtide_format::SECTOR;
pub use kvtide_types::Codec;
use lz4::Lz4;
use planes::Planes;

const UNIT: usize = SECTOR as usize;
/// Bytes of a length field.
const LENGTH: usize = 4;

/// Return the bytes of the slot that a page's stored form takes: `sectors` of a coded page, or the whole page.
pub fn stored_bytes(page_bytes: u32, sectors: u16) -> u32 {
    if sectors == 0 { page_bytes } else { u32::from(sectors) * SECTOR }
}

/// Return true if a page of this size can be stored in `sectors`: coded pages are at least one sector shorter.
pub fn is_possible(codec: Codec, page_bytes: u32, sectors: u16) -> bool {
    sectors == 0 || codec != Codec::None && u32::from(sectors) < page_bytes.div_ceil(SECTOR)
}

/// Stored bytes that no codec writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid encoding of a stored page: {what}")]
pub struct Garbled {
    what: &'static str,
}

const fn garbled(what: &'static str) -> Garbled {
    Garbled { what }
}

/// Tables and buffers of one thread for all codecs; buffers grow to the largest page.
pub struct Coder {
    lz4: Lz4,
    planes: Planes,
}

impl Coder {
    /// # Errors
    /// There is not enough memory for zstd's tables.
    pub fn new() -> std::io::Result<Coder> {
        Ok(Coder { lz4: Lz4::new(), planes: Planes::new()? })
    }

    /// Encode a page into the start of `into`, which has at least the page's size. Return the number of sectors; 0: coding saves no
    /// sector, and `into` has no useful content.
    pub fn encode(&mut self, codec: Codec, page: &[u8], into: &mut [u8]) -> u16 {
        // The largest size that saves a sector and has a sector count of 16 bits.
        let most = page.len().div_ceil(UNIT).saturating_sub(1).min(usize::from(u16::MAX)) * UNIT;
        if most == 0 {
            return 0;
        }
        let (crc, into) = into[..most].split_at_mut(LENGTH);
        let bytes = match codec {
            Codec::None => None,
            Codec::Lz4 => self.lz4.encode(page, into),
            Codec::PlanesZstd => self.planes.encode(page, into),
        };
        let Some(bytes) = bytes else { return 0 };
        let sectors = (LENGTH + bytes).div_ceil(UNIT);
        let rest = sectors * UNIT - LENGTH;
        into[bytes..rest].fill(0);
        crc.copy_from_slice(&crc32c(&into[..rest]).to_le_bytes());
        sectors as u16
    }

    /// Decode the output of [`Coder::encode`] into `page`, which must have the size of the encoded page. Only `page` is written,
    /// whatever `stored` holds.
    ///
    /// # Errors
    /// `stored` was not made by this codec from a page of this size.
    pub fn decode(&mut self, codec: Codec, stored: &[u8], page: &mut [u8]) -> Result<(), Garbled> {
        let (crc, rest) = length(stored)?;
        if crc != crc32c(rest) as usize {
            return Err(garbled("checksum mismatch"));
        }
        match codec {
            Codec::None => Err(garbled("the slab has no codec")),
            Codec::Lz4 => lz4::decode(rest, page),
            Codec::PlanesZstd => self.planes.decode(rest, page),
        }
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Split a length or checksum off the start of `bytes`; return it and the rest.
fn length(bytes: &[u8]) -> Result<(usize, &[u8]), Garbled> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH>().ok_or(garbled("the header is truncated"))?;
    Ok((u32::from_le_bytes(*length) as usize, rest))
}

#[cfg(test)]
mod tests;
