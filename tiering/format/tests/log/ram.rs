//! A disk in memory.

use kvtide_format::log::{Log, Put, Recovered, SlabHeader, Storage};
use kvtide_format::{SECTOR, Superblock};
use std::io;

/// Bytes of which only reserved ones may be written.
#[derive(Clone)]
pub struct Ram {
    pub bytes: Vec<u8>,
    pub writes: u64,
    /// By sector.
    pub reserved: Vec<bool>,
    /// Bytes that can still be reserved.
    pub room: u64,
    /// Calls of `reserve`.
    pub asked: u64,
}

impl Ram {
    /// Create a disk for this layout.
    pub fn new(superblock: &Superblock) -> Ram {
        let bytes = superblock.regions_offset as usize;
        Ram {
            bytes: vec![0; bytes],
            writes: 0,
            reserved: vec![false; bytes / SECTOR as usize],
            room: u64::MAX,
            asked: 0,
        }
    }
}

impl Storage for Ram {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        whole(offset, into.len());
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        whole(offset, bytes.len());
        self.writes += 1;
        assert!(self.reserved[sectors(offset, bytes.len() as u64)].iter().all(|&reserved| reserved), "{offset}");
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.asked += 1;
        let sectors = &mut self.reserved[sectors(offset, bytes)];
        let more = sectors.iter().filter(|&&reserved| !reserved).count() as u64 * u64::from(SECTOR);
        self.room = self.room.checked_sub(more).ok_or(io::ErrorKind::StorageFull)?;
        sectors.fill(true);
        Ok(())
    }
}

fn sectors(offset: u64, bytes: u64) -> std::ops::Range<usize> {
    let sector = |at: u64| (at / u64::from(SECTOR)) as usize;
    sector(offset)..sector(offset + bytes)
}

/// Check that the log accesses whole sectors.
pub fn whole(offset: u64, bytes: usize) {
    assert!(offset.is_multiple_of(SECTOR.into()) && bytes.is_multiple_of(SECTOR as usize), "{bytes} at {offset}");
}

/// Return a layout with regions of 1 MiB, `regions` of them.
pub fn layout(regions: u64) -> Superblock {
    let block = Superblock::new(0x5EED, regions << 20, 1 << 20).unwrap();
    Superblock { starts: 1, ..block }
}

/// Advance to the next start of the same disk.
pub fn again(superblock: &mut Superblock) {
    superblock.starts += 1;
}

/// Return a slab of 64 KiB slots.
pub fn slab(region: u32, grant: u64, planes: usize) -> SlabHeader {
    let page_bytes = vec![(64 << 10) / planes as u32; planes];
    SlabHeader { shards: 2, ..SlabHeader::new(region, grant, [region as u8; 32], "default", 64 << 10, page_bytes) }
}

/// Return a block with a hash and checksums derived from its location.
pub fn put<'a>(region: u32, slot: u32, generation: u32, present: &'a [u32], crcs: &'a [u32]) -> Put<'a> {
    let hash = u128::from(region) << 64 | u128::from(slot) << 32 | u128::from(generation);
    Put {
        region,
        slot,
        generation,
        shard: (slot % 2) as u16,
        salt: 0,
        hash,
        parent: hash >> 1,
        present,
        crcs,
        sectors: &[],
        tags: &[],
    }
}

/// Open the log without a cipher and without observing progress.
pub fn open(ram: Ram, superblock: &Superblock) -> (Log<Ram>, Recovered) {
    Log::open(ram, superblock, None, &mut |_| {}).unwrap()
}

/// Return region, slot and generation of the recovered blocks, sorted.
pub fn blocks(recovered: &Recovered) -> Vec<(u32, u32, u32)> {
    let all = recovered.slabs.iter().flat_map(|slab| slab.blocks.iter().map(|b| (b.region, b.slot, b.generation)));
    let mut all: Vec<_> = all.collect();
    all.sort_unstable();
    all
}
