//! Torn ends, damaged middles, unusable halves, unreadable sectors, failing devices.

use crate::ram::{Ram, again, blocks, layout, open, put, slab};
use kvtide_format::Superblock;
use kvtide_format::log::{Log, LogError, Recovered, Storage, inspect};
use std::io;

const SECTOR: usize = 4096;

/// Return a log with a slab and eight blocks, one batch each, flushed before the last two, and the offset of each batch.
fn eight() -> (Ram, Superblock, Vec<usize>) {
    let superblock = layout(8);
    let (mut log, _) = open(Ram::new(&superblock), &superblock);
    log.grant(&slab(0, 1, 4)).unwrap();
    log.write().unwrap();
    let mut places = Vec::new();
    for slot in 0..8 {
        places.push((superblock.log_offset + log.status().used_bytes) as usize);
        log.put(&put(0, slot, 1 + slot, &[15], &[slot; 4])).unwrap();
        log.write().unwrap();
        if slot == 5 {
            log.flush().unwrap();
        }
    }
    (log.storage().clone(), superblock, places)
}

fn look(ram: &Ram, superblock: &Superblock) -> Recovered {
    inspect(&mut ram.clone(), superblock, None, &mut |_| {}).unwrap()
}

fn slots(recovered: &Recovered) -> Vec<u32> {
    blocks(recovered).iter().map(|block| block.1).collect()
}

#[test]
fn a_torn_end_is_cut_and_counted() {
    let (mut ram, superblock, places) = eight();
    // The record's last bytes were not written.
    ram.bytes[places[7] + 100..places[7] + SECTOR].fill(0);
    let found = look(&ram, &superblock);
    assert_eq!(slots(&found), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((found.counts.torn, found.counts.corrupt, found.counts.lost_unflushed), (1, 0, 0));
    assert!((0..8).all(|row| row >= found.slabs[0].blocks.len() || found.slabs[0].blocks.flushed(row) == (row < 6)));
    // The next start continues without the record, and finds nothing torn.
    let mut next = superblock;
    again(&mut next);
    let (mut log, _) = open(ram, &next);
    log.put(&put(0, 7, 99, &[15], &[9; 4])).unwrap();
    log.write().unwrap();
    let found = look(log.storage(), &next);
    assert_eq!((slots(&found), found.counts.torn), ((0..8).collect(), 0));
    let unsure: Vec<bool> = (0..8).map(|row| found.slabs[0].blocks.flushed(row)).collect();
    assert_eq!(
        unsure.iter().filter(|flushed| **flushed).count(),
        6,
        "the flush of a start proves nothing of what came before"
    );
}

#[test]
fn a_damaged_middle_costs_what_is_in_it() {
    for (batch, corrupt, lost) in [(0, 1, 0), (5, 1, 0), (6, 0, 1)] {
        let (mut ram, superblock, places) = eight();
        ram.bytes[places[batch] + 80] ^= 4;
        let found = look(&ram, &superblock);
        let left: Vec<u32> = (0..8).filter(|slot| *slot as usize != batch).collect();
        assert_eq!(slots(&found), left);
        let counts = found.counts;
        // A power cut may lose batches that were never flushed: batch 6 was flushed.
        assert_eq!((counts.torn, counts.corrupt, counts.lost_unflushed), (0, corrupt, lost), "batch {batch}");
    }
}

#[test]
fn headers_that_are_gone_count_too() {
    let (mut ram, superblock, places) = eight();
    ram.bytes[places[2]..places[4]].fill(0xFF);
    let found = look(&ram, &superblock);
    assert_eq!((slots(&found), found.counts.corrupt), (vec![0, 1, 4, 5, 6, 7], 2));
}

#[test]
fn records_that_stand_in_a_damaged_batch_are_used() {
    let superblock = layout(8);
    let (mut log, _) = open(Ram::new(&superblock), &superblock);
    log.grant(&slab(0, 1, 4)).unwrap();
    log.write().unwrap();
    let at = (superblock.log_offset + log.status().used_bytes) as usize;
    for slot in 0..8 {
        log.put(&put(0, slot, 1, &[15], &[slot; 4])).unwrap();
    }
    log.write().unwrap();
    log.put(&put(0, 8, 1, &[15], &[8; 4])).unwrap();
    log.flush().unwrap();
    let mut ram = log.storage().clone();
    // The hash of the third record.
    ram.bytes[at + 64 + 2 * 88 + 40] ^= 1;
    let found = look(&ram, &superblock);
    assert_eq!(slots(&found), [0, 1, 3, 4, 5, 6, 7, 8]);
    assert_eq!(found.counts.lost_unflushed + found.counts.corrupt, 1, "a batch");
}

#[test]
fn a_half_without_its_begin_or_its_mark_loses_nothing_that_was_in_the_other() {
    let (ram, mut superblock, _) = eight();
    again(&mut superblock);
    let (mut log, first) = open(ram, &superblock);
    let clean = log.storage().clone();
    let half = log.status().half_bytes as usize;
    let begin = superblock.log_offset as usize + half;
    for sector in 0..3 {
        let mut ram = clean.clone();
        ram.bytes[begin + sector * SECTOR..][..SECTOR].fill(0);
        let found = look(&ram, &superblock);
        assert_eq!(blocks(&found), blocks(&first), "sector {sector} of the newer half");
        let mut next = superblock;
        again(&mut next);
        let (mut log, _) = open(ram, &next);
        let found = look(log.storage(), &next);
        assert_eq!(blocks(&found), blocks(&first), "and it was written down again");
        assert_eq!((found.counts.corrupt, found.counts.mended), (0, false));
    }
    // The same with a record appended behind the mark, which proves that the checkpoint was complete.
    log.put(&put(0, 9, 99, &[15], &[9; 4])).unwrap();
    log.write().unwrap();
    let mut ram = log.storage().clone();
    let mark = (0..half / SECTOR).map(|sector| begin + sector * SECTOR).find(|at| ram.bytes[at + 60] == 1).unwrap();
    ram.bytes[mark + 60] = 0;
    let found = look(&ram, &superblock);
    assert_eq!(slots(&found), [0, 1, 2, 3, 4, 5, 6, 7, 9]);
}

#[test]
fn where_neither_half_is_complete_a_part_is_better_than_nothing() {
    let (mut ram, superblock, places) = eight();
    // The other half was never written. First the mark is lost, then every batch is marked as a part of a checkpoint.
    let first = superblock.log_offset as usize;
    ram.bytes[first..first + SECTOR].fill(0);
    let found = look(&ram, &superblock);
    assert_eq!(
        (slots(&found), found.counts.partial),
        ((0..8).collect::<Vec<_>>(), false),
        "later batches prove it too"
    );
    for place in &places {
        // Mark each batch as a part of the checkpoint.
        ram.bytes[*place + 60] = 0;
        let crc = crc_of(&ram.bytes[*place + 8..*place + 64]);
        ram.bytes[*place + 4..*place + 8].copy_from_slice(&crc.to_le_bytes());
    }
    let slab = first + SECTOR;
    ram.bytes[slab + 60] = 0;
    let crc = crc_of(&ram.bytes[slab + 8..slab + 64]);
    ram.bytes[slab + 4..slab + 8].copy_from_slice(&crc.to_le_bytes());
    let found = look(&ram, &superblock);
    assert_eq!((slots(&found), found.counts.partial), ((0..8).collect(), true));
}

#[test]
fn blocks_of_a_slab_whose_record_is_gone_are_nobodys() {
    let superblock = layout(8);
    let (mut log, _) = open(Ram::new(&superblock), &superblock);
    log.grant(&slab(0, 1, 4)).unwrap();
    log.put(&put(0, 0, 1, &[15], &[1; 4])).unwrap();
    log.write().unwrap();
    let at = (superblock.log_offset + log.status().used_bytes) as usize;
    // The region is granted to another space.
    log.grant(&slab(0, 2, 4)).unwrap();
    log.write().unwrap();
    log.put(&put(0, 1, 2, &[15], &[2; 4])).unwrap();
    log.write().unwrap();
    let mut ram = log.storage().clone();
    ram.bytes[at..at + SECTOR].fill(0);
    let found = look(&ram, &superblock);
    assert_eq!((found.slabs[0].header.grant, slots(&found)), (1, vec![0]), "a block of grant 2 is none of grant 1");
    assert_eq!(found.counts.stale, 1);
}

#[test]
fn a_batch_that_stands_elsewhere_is_none() {
    let (mut ram, superblock, places) = eight();
    // A misdirected write: the last batch again, behind itself.
    let last = ram.bytes[places[7]..places[7] + SECTOR].to_vec();
    ram.bytes[places[7]..places[7] + SECTOR].fill(0);
    ram.bytes[places[7] + SECTOR..places[7] + 2 * SECTOR].copy_from_slice(&last);
    assert_eq!(slots(&look(&ram, &superblock)), [0, 1, 2, 3, 4, 5, 6]);
}

/// CRC-32C, computed bit by bit.
fn crc_of(bytes: &[u8]) -> u32 {
    let fold = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 })
    };
    !bytes.iter().fold(!0, fold)
}

/// Storage that fails in given ranges.
struct Failing {
    ram: Ram,
    unreadable: Vec<std::ops::Range<u64>>,
    writes: bool,
    flushes: bool,
}

impl Failing {
    fn new(ram: Ram) -> Failing {
        Failing { ram, unreadable: Vec::new(), writes: false, flushes: false }
    }
}

impl Storage for Failing {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset + into.len() as u64;
        if self.unreadable.iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.ram.read(offset, into)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.writes {
            // Half of the write succeeds.
            let half = bytes.len() / 2 / SECTOR * SECTOR;
            self.ram.write(offset, &bytes[..half])?;
            return Err(io::Error::from_raw_os_error(5));
        }
        self.ram.write(offset, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.flushes { Err(io::Error::from_raw_os_error(5)) } else { self.ram.flush() }
    }

    fn reserve(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.ram.reserve(offset, bytes)
    }
}

#[test]
fn a_sector_that_cannot_be_read_costs_its_batch() {
    let (ram, mut superblock, places) = eight();
    let mut disk = Failing::new(ram);
    disk.unreadable.push(places[3] as u64..places[3] as u64 + 1);
    again(&mut superblock);
    let (mut log, found) = Log::open(&mut disk, &superblock, None, &mut |_| {}).unwrap();
    assert_eq!((slots(&found), found.counts.unreadable), (vec![0, 1, 2, 4, 5, 6, 7], 1));
    log.flush().unwrap();
    // A device that cannot be read at all is not an empty log.
    disk.unreadable.push(0..u64::MAX);
    assert!(matches!(
        Log::open(&mut disk, &superblock, None, &mut |_| {}).map(|_| ()),
        Err(LogError::Io { tried: "read", .. })
    ));
}

#[test]
fn what_failed_to_be_written_is_written_again() {
    let superblock = layout(8);
    let mut disk = Failing::new(Ram::new(&superblock));
    let (mut log, _) = Log::open(&mut disk, &superblock, None, &mut |_| {}).unwrap();
    log.grant(&slab(0, 1, 4)).unwrap();
    for slot in 0..16 {
        log.put(&put(0, slot, 1, &[15], &[slot; 4])).unwrap();
    }
    log.storage().writes = true;
    assert!(matches!(log.write(), Err(LogError::Io { tried: "write", .. })));
    log.erase(0, 3, 1).unwrap();
    assert!(log.flush().is_err());
    log.storage().writes = false;
    log.put(&put(0, 3, 2, &[15], &[33; 4])).unwrap();
    log.write().unwrap();
    assert_eq!(log.pending(), 0);
    let found = look(&log.storage().ram, &superblock);
    assert_eq!(slots(&found), (0..16).collect::<Vec<_>>());
    assert_eq!(found.counts.torn + found.counts.corrupt + found.counts.lost_unflushed, 0);
    assert!(found.slabs[0].blocks.iter().any(|block| (block.slot, block.generation) == (3, 2)));
}

#[test]
fn after_a_failed_flush_nothing_is_promised_any_more() {
    let superblock = layout(8);
    let mut disk = Failing::new(Ram::new(&superblock));
    let (mut log, _) = Log::open(&mut disk, &superblock, None, &mut |_| {}).unwrap();
    log.grant(&slab(0, 1, 4)).unwrap();
    log.storage().flushes = true;
    assert!(matches!(log.flush(), Err(LogError::Io { tried: "flush", .. })));
    log.storage().flushes = false;
    assert!(matches!(log.flush(), Err(LogError::Failed)), "a later flush does not restore lost writes");
    assert!(matches!(log.put(&put(0, 0, 1, &[15], &[0; 4])), Err(LogError::Failed)));
    assert!(log.status().failed);
}
