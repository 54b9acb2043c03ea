//! Data of each NVMe page that reads are verified with: a few bytes per plane and slot, allocated with the slab.

use crate::space::messages::Region;
use kvtide_format::log::Blocks;
use kvtide_nvme::{LogRequest, Part, SlabCode, Transfer};
use std::sync::Arc;

/// A region of a disk and the data of the pages written there. Columns are ordered by slot, then by plane; columns that the slab
/// does not need are empty.
#[derive(Debug)]
pub(super) struct DiskSlab {
    /// Index of the disk.
    pub disk: usize,
    /// Its region on the disk.
    pub region: u32,
    /// Its disk is out of service: no new transfers start, and the slab is returned when none is in flight.
    pub gone: bool,
    /// Coding of its pages; None: stored unchanged.
    code: Option<Arc<SlabCode>>,
    slots: u32,
    planes: usize,
    /// Checksum of each page; in an encrypted slab the write number.
    crcs: Box<[u32]>,
    /// Coded slab: sectors of each page.
    sectors: Box<[u16]>,
    /// Encrypted: tag of each page.
    tags: Box<[[u8; 16]]>,
    /// Encrypted slab, by slot: salt of its pages, and their generation.
    salts: Box<[(u32, u32)]>,
    /// One bit per slot, set if an earlier run recorded it without a known flush: a power cut may have lost its data.
    doubtful: Box<[u32]>,
}

impl DiskSlab {
    /// Create the table; an adopted region's records are copied into it.
    pub fn new(of: &Region, planes: usize) -> DiskSlab {
        let (grant, slots) = (of.grant, of.grant.slots as usize);
        let coded = of.code.as_ref().is_some_and(|code| code.is_coded());
        let encrypted = of.code.as_ref().is_some_and(|code| code.is_encrypted());
        let pages = |wanted: bool| if wanted { slots * planes } else { 0 };
        let mut slab = DiskSlab {
            disk: grant.disk as usize,
            region: grant.region,
            gone: false,
            code: of.code.clone(),
            slots: grant.slots,
            planes,
            crcs: vec![0; slots * planes].into(),
            sectors: vec![0; pages(coded)].into(),
            tags: vec![[0; 16]; pages(encrypted)].into(),
            salts: vec![(0, 0); if encrypted { slots } else { 0 }].into(),
            doubtful: vec![0; if of.blocks.is_some() { slots.div_ceil(32) } else { 0 }].into(),
        };
        if let Some(blocks) = &of.blocks {
            slab.recall(blocks);
        }
        slab
    }

    /// Return an empty list for its recorded blocks.
    pub fn no_blocks(&self, page_bytes: &[u32]) -> Blocks {
        let (coded, encrypted) = (!self.sectors.is_empty(), !self.tags.is_empty());
        Blocks::empty(self.region, page_bytes.len(), coded, encrypted)
    }

    /// Copy the fields of records into the columns.
    fn recall(&mut self, blocks: &Blocks) {
        for (row, put) in blocks.iter().enumerate().filter(|(_, put)| put.slot < self.slots) {
            let (slot, first) = (put.slot as usize, self.place(put.slot, 0));
            write(&mut self.crcs, first, put.crcs);
            write(&mut self.sectors, first, put.sectors);
            write(&mut self.tags, first, put.tags);
            write(&mut self.salts, slot, &[(put.salt, put.generation)]);
            if !blocks.flushed(row) {
                self.doubtful[slot / 32] |= 1 << (slot % 32);
            }
        }
    }

    /// Return true if the slot exists.
    pub fn has(&self, slot: u32) -> bool {
        slot < self.slots
    }

    /// Return true if a power cut may have lost the data that an earlier run wrote to a slot.
    pub fn is_doubtful(&self, slot: u32) -> bool {
        self.doubtful.get(slot as usize / 32).is_some_and(|word| word >> (slot % 32) & 1 == 1)
    }

    /// Set a transfer's fields for the slot and for its listed pages.
    pub fn fill(&self, transfer: &mut Transfer) {
        let slot = transfer.key.slot;
        transfer.code.clone_from(&self.code);
        transfer.salt = self.salt(slot, transfer.key.generation);
        for part in &mut transfer.parts {
            let place = self.place(slot, part.plane);
            part.crc = self.crcs[place];
            part.sectors = self.sectors.get(place).copied().unwrap_or(0);
            part.tag = self.tags.get(place).copied().unwrap_or_default();
        }
    }

    /// Return the salt of pages of this generation; 0: there are none, or the slab is not encrypted.
    fn salt(&self, slot: u32, generation: u32) -> u32 {
        self.salts.get(slot as usize).filter(|(_, of)| *of == generation).map_or(0, |(salt, _)| *salt)
    }

    /// Record written pages.
    pub fn wrote(&mut self, transfer: &Transfer) {
        let slot = transfer.key.slot;
        for Part { plane, crc, sectors, tag, .. } in &transfer.parts {
            let place = self.place(slot, *plane);
            write(&mut self.crcs, place, &[*crc]);
            write(&mut self.sectors, place, &[*sectors]);
            write(&mut self.tags, place, &[*tag]);
        }
        write(&mut self.salts, slot as usize, &[(transfer.salt, transfer.key.generation)]);
        if let Some(word) = self.doubtful.get_mut(slot as usize / 32) {
            *word &= !(1 << (slot % 32));
        }
    }

    /// Set a log request's fields for the pages of its slot, by plane.
    pub fn describe(&self, request: &mut LogRequest) {
        let first = self.place(request.key.slot, 0);
        let pages = first..first + self.planes;
        request.crcs.extend_from_slice(&self.crcs[pages.clone()]);
        request.sectors.extend_from_slice(self.sectors.get(pages.clone()).unwrap_or_default());
        request.tags.extend_from_slice(self.tags.get(pages).unwrap_or_default());
        request.salt = self.salt(request.key.slot, request.key.generation);
    }

    fn place(&self, slot: u32, plane: u16) -> usize {
        slot as usize * self.planes + usize::from(plane)
    }
}

/// Copy entries into a column, if the slab has it.
fn write<T: Copy>(column: &mut [T], at: usize, entries: &[T]) {
    if let Some(places) = column.get_mut(at..at + entries.len()) {
        places.copy_from_slice(entries);
    }
}
