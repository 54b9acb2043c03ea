//! Any bytes as an index log: unchanged, or as records and batches with corrected checksums, so that the code behind the
//! checksum tests is also reached. A recovery must end within bounds, and the next start must find the same blocks.
//!
//! Headers and checksums are encoded here a second time, from `docs/design/format.md`, so that the library is not checked with
//! its own code.
#![no_main]

use kvtide_format::Superblock;
use kvtide_format::log::{Log, LogError, Recovered, Storage, inspect};
use libfuzzer_sys::fuzz_target;
use std::io;

const STORE: u128 = 0x0123_4567_89AB_CDEF;
const HALF: usize = 64 << 10;
const SECTOR: usize = 4096;

/// A file that consists only of the log area.
struct Area(Vec<u8>);

impl Storage for Area {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0[offset as usize - SECTOR..][..into.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0[offset as usize - SECTOR..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compute CRC-32C bit by bit (reflected Castagnoli polynomial).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 })
    })
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (here, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        here
    }
}

/// Write consecutive batches of records into a half. Each has a correct checksum unless the input selects a wrong one.
fn build(input: &mut Input<'_>, half: &mut [u8]) {
    let mut at = 0;
    let epoch = u64::from(input.byte() % 8) << 32 | u64::from(input.byte() % 4);
    let mut sequence = u64::from(input.byte() % 2);
    while !input.0.is_empty() && at + SECTOR <= half.len() {
        let flags = input.byte();
        let mut records = Vec::new();
        let count = input.byte() % 16;
        for _ in 0..count {
            let (kind, bits) = (input.byte() % 7, input.byte());
            let count = usize::from(input.byte());
            let body = input.bytes(count);
            let mut record = vec![0; 8];
            record.extend_from_slice(body);
            record.resize(record.len().next_multiple_of(8), 0);
            let bytes = record.len() as u16 + u16::from(bits & 0x40);
            record[4..6].copy_from_slice(&bytes.to_le_bytes());
            (record[6], record[7]) = (kind, bits & 3);
            let mut seed = STORE.to_le_bytes().to_vec();
            seed.extend(epoch.to_le_bytes());
            let crc = crc32c(&record[4..]) ^ crc32c(&seed) ^ u32::from(bits & 0x80);
            record[..4].copy_from_slice(&crc.to_le_bytes());
            records.extend(record);
        }
        let mut header = b"kvlb\0\0\0\0".to_vec();
        header.extend(STORE.to_le_bytes());
        header.extend((epoch + u64::from(flags >> 7)).to_le_bytes());
        header.extend(sequence.to_le_bytes());
        header.extend((if flags & 2 == 2 { sequence } else { 0 }).to_le_bytes());
        header.extend((((at / SECTOR) as u32) + u32::from(flags >> 6 & 1)).to_le_bytes());
        header.extend((records.len() as u32).to_le_bytes());
        header.extend(u32::from(count).to_le_bytes());
        header.extend(u32::from(flags & 1).to_le_bytes());
        let crc = crc32c(&header[8..]) ^ u32::from(flags & 0x20);
        header[4..8].copy_from_slice(&crc.to_le_bytes());
        header.extend(records);
        let room = half.len() - at;
        let bytes = header.len().min(room);
        half[at..at + bytes].copy_from_slice(&header[..bytes]);
        at += header.len().next_multiple_of(SECTOR);
        sequence += 1 + u64::from(flags >> 4 & 1);
    }
}

/// Return all blocks in a fixed order.
fn blocks(recovered: &Recovered) -> Vec<String> {
    let all = recovered.slabs.iter().flat_map(|slab| slab.blocks.iter().map(move |block| (slab.header.grant, block)));
    let mut all: Vec<String> = all.map(|(grant, block)| format!("{grant} {block:?}")).collect();
    all.sort_unstable();
    all
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let mut area = vec![0; 2 * HALF];
    let how = input.byte();
    if how & 1 == 0 {
        let (first, second) = area.split_at_mut(HALF);
        let share = usize::from(input.byte()) * 16;
        build(&mut Input(input.bytes(share)), first);
        build(&mut input, second);
    } else {
        let count = input.0.len().min(area.len());
        area[..count].copy_from_slice(&input.0[..count]);
    }
    let Ok(block) = Superblock::new(STORE, 4 << 20, 1 << 20) else { return };
    let (log_offset, log_bytes) = (SECTOR as u64, 2 * HALF as u64);
    let block = Superblock { log_offset, log_bytes, regions_offset: log_offset + log_bytes, starts: 2, ..block };

    let mut area = Area(area);
    let before = area.0.clone();
    let looked = inspect(&mut area, &block, None, &mut |_| {});
    assert!(area.0 == before, "read-only recovery changed the log");
    let opened = Log::open(&mut area, &block, None, &mut |_| {});
    match (looked, opened) {
        (Ok(looked), Ok((log, recovered))) => {
            assert_eq!(looked, recovered);
            let status = log.status();
            assert_eq!(status.blocks, recovered.counts.blocks);
            assert!(status.used_bytes <= status.half_bytes && recovered.run >= block.starts);
            let found: usize = recovered.slabs.iter().map(|slab| slab.blocks.len() + slab.sealed as usize).sum();
            assert_eq!(found as u64, recovered.counts.blocks);
            let next = Superblock { starts: recovered.run, ..block };
            drop(log);
            // After the last start number, a start is an error.
            if let Ok((mut log, again)) = Log::open(&mut area, &next, None, &mut |_| {}) {
                assert_eq!(blocks(&again), blocks(&recovered));
                let counts = again.counts;
                // Stale records are possible: a block recorded twice under one generation is copied twice.
                assert_eq!(counts.torn + counts.corrupt + counts.lost_unflushed, 0);
                assert!(log.flush().is_ok());
            }
        }
        (Err(error), Err(other)) => assert_eq!(error.to_string(), other.to_string()),
        // Batches in halves this small are shorter than the input's batches can be, so the live records may not fit.
        (Ok(_), Err(error)) => assert!(matches!(error, LogError::Full { .. }), "{error}"),
        (Err(error), Ok(_)) => panic!("{error}"),
    }
});
