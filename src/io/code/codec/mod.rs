//! Codecs: a page as fewer sectors, or as it is.
//!
//! A coded page stands at the begin of the page's fixed place in its slot and takes whole sectors, fewer than the page: a codec
//! saves bytes that are written and read, not room. How many is kept in the index record; 0 says that the page stands there as
//! it is, because it would not have saved a sector. All lengths that a decoder reads come from the disk and are checked.
//!
//! ```text
//! both          u32 CRC-32C of what follows, to the end of the last sector │ the codec's own │ zeros to the end of the sector
//! lz4           u32 bytes of the block │ LZ4 block
//! planes-zstd   u8 stride, 3 zero bytes │ u32 bytes of each plane (stride of them) │ the planes
//! ```
//! The checksum at the begin tells of damage before anything is decoded, also of such as decodes to the same page; whose page it is
//! tells the page's own checksum or tag.
//!
//! A *byte plane* holds every stride-th byte of the page: sign and exponent of a number compress, its mantissa does not. The stride
//! is the width of the numbers, found out by looking at the page. A plane is a zstd frame, or as it is where that is not longer.

mod planes;

use crc_fast::{CrcAlgorithm, checksum};
use kvtide_tiering::format::SECTOR;
use planes::Planes;

const UNIT: usize = SECTOR as usize;
/// Bytes of a length.
const LENGTH: usize = 4;

/// How pages of a slab are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Codec {
    /// As they are.
    #[default]
    None,
    /// LZ4 blocks: cheap, and of no use for raw floating-point numbers.
    Lz4,
    /// Byte planes, each compressed by zstd at its first level.
    PlanesZstd,
}

impl Codec {
    /// All of them.
    pub const ALL: [Codec; 3] = [Codec::None, Codec::Lz4, Codec::PlanesZstd];

    /// As it stands in a slab's header.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// From a slab's header.
    pub fn from_id(id: u8) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| codec.id() == id)
    }

    /// As it stands in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Lz4 => "lz4",
            Codec::PlanesZstd => "planes-zstd",
        }
    }
}

/// Bytes of the slot that a page's stored form takes: `sectors` of a coded page, or the page as it is.
pub(crate) fn stored_bytes(page_bytes: u32, sectors: u16) -> u32 {
    if sectors == 0 { page_bytes } else { u32::from(sectors) * SECTOR }
}

/// Whether a page of so many bytes can be stored in so many sectors: coded pages are at least a sector shorter.
pub(crate) fn is_possible(codec: Codec, page_bytes: u32, sectors: u16) -> bool {
    sectors == 0 || codec != Codec::None && u32::from(sectors) < page_bytes.div_ceil(SECTOR)
}

/// What stands on the disk is not what a codec writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored page is not what its codec writes: {what}")]
pub(crate) struct Garbled {
    what: &'static str,
}

const fn garbled(what: &'static str) -> Garbled {
    Garbled { what }
}

/// A thread's tables and memory for all codecs; it grows to the largest page that it has seen and is used again.
pub(crate) struct Coder {
    lz4: lz4_flex::block::CompressTable,
    block: Vec<u8>,
    planes: Planes,
}

impl Coder {
    /// # Errors
    /// There is no memory for zstd's tables.
    pub fn new() -> std::io::Result<Coder> {
        Ok(Coder { lz4: lz4_flex::block::CompressTable::large(), block: Vec::new(), planes: Planes::new()? })
    }

    /// Encodes a page into the begin of `into`, which has at least the page's bytes, and says how many sectors it takes;
    /// 0: it does not shrink by one, and `into` holds nothing of use.
    pub fn encode(&mut self, codec: Codec, page: &[u8], into: &mut [u8]) -> u16 {
        // The most that still saves a sector, and that can be numbered.
        let most = page.len().div_ceil(UNIT).saturating_sub(1).min(usize::from(u16::MAX)) * UNIT;
        if most == 0 {
            return 0;
        }
        let (crc, into) = into[..most].split_at_mut(LENGTH);
        let bytes = match codec {
            Codec::None => None,
            Codec::Lz4 => self.encode_lz4(page, into),
            Codec::PlanesZstd => self.planes.encode(page, into),
        };
        let Some(bytes) = bytes else { return 0 };
        let sectors = (LENGTH + bytes).div_ceil(UNIT);
        let rest = sectors * UNIT - LENGTH;
        into[bytes..rest].fill(0);
        crc.copy_from_slice(&crc32c(&into[..rest]).to_le_bytes());
        sectors as u16
    }

    /// Decodes what [`Coder::encode`] made of a page of `page`'s bytes. Whatever `stored` holds, nothing but `page` is written.
    ///
    /// # Errors
    /// It was not made by this codec from a page of so many bytes.
    pub fn decode(&mut self, codec: Codec, stored: &[u8], page: &mut [u8]) -> Result<(), Garbled> {
        let (crc, rest) = length(stored)?;
        if crc != crc32c(rest) as usize {
            return Err(garbled("its checksum is wrong"));
        }
        match codec {
            Codec::None => Err(garbled("its slab has no codec")),
            Codec::Lz4 => decode_lz4(rest, page),
            Codec::PlanesZstd => self.planes.decode(rest, page),
        }
    }

    fn encode_lz4(&mut self, page: &[u8], into: &mut [u8]) -> Option<usize> {
        // The library wants room for the worst case.
        self.block.resize(lz4_flex::block::get_maximum_output_size(page.len()), 0);
        let bytes = lz4_flex::block::compress_into_with_table(page, &mut self.block, &mut self.lz4).ok()?;
        let (length, rest) = into.split_at_mut(LENGTH);
        rest.get_mut(..bytes)?.copy_from_slice(&self.block[..bytes]);
        length.copy_from_slice(&u32::try_from(bytes).ok()?.to_le_bytes());
        Some(LENGTH + bytes)
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn decode_lz4(stored: &[u8], page: &mut [u8]) -> Result<(), Garbled> {
    let (bytes, rest) = length(stored)?;
    let block = rest.get(..bytes).ok_or(garbled("its block is longer than its sectors"))?;
    match lz4_flex::block::decompress_into(block, page) {
        Ok(bytes) if bytes == page.len() => Ok(()),
        Ok(_) => Err(garbled("its block is of a shorter page")),
        Err(_) => Err(garbled("its block is damaged")),
    }
}

/// A length, or a checksum, at the begin of bytes, and what follows it.
fn length(bytes: &[u8]) -> Result<(usize, &[u8]), Garbled> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH>().ok_or(garbled("it ends before its lengths do"))?;
    Ok((u32::from_le_bytes(*length) as usize, rest))
}

#[cfg(test)]
mod tests;
