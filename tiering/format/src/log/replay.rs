//! Replay: applies records in log order to compute the live blocks.

use super::blocks::{Blocks, Counts, Recovered, RecoveredSlab};
use super::cipher::{Cipher, CipherError, NONCE_BYTES, TAG_BYTES, lend};
use super::error::LogError;
use super::live::Live;
use super::record::{PutRecord, Record};
use super::scan::{Found, Half, Scan};
use super::storage::Storage;
use super::types::SlabHeader;
use crate::Superblock;

/// Progress of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the log read.
    pub read_bytes: u64,
    /// Maximum bytes to read: the size of a half.
    pub half_bytes: u64,
    /// Records read so far.
    pub records: u64,
    /// Live blocks so far.
    pub blocks: u64,
}

/// Blocks of a slab, and the row of each slot.
#[derive(Debug)]
struct Rows {
    blocks: Blocks,
    /// For each row, the sequence of the record's batch + 1; 0 if a flush covered it, [`UNSURE`] if no flush is known to have.
    sequences: Vec<u64>,
    /// For each slot, the row of its block + 1; 0 if it has none, or one that cannot be decrypted.
    rows: Vec<u32>,
    sealed: u32,
}

/// Marks a record that no flush is known to have covered.
const UNSURE: u64 = u64::MAX;

/// Records between two progress reports.
const REPORT: u64 = 8192;

/// State of a replay.
pub(super) struct Replay {
    pub live: Live,
    slabs: Vec<Option<Box<Rows>>>,
    pub counts: Counts,
    scratch: Vec<u8>,
}

/// Result of applying a record.
enum Sense {
    Counts,
    Stale,
    None,
}

impl Replay {
    pub fn new(superblock: &Superblock) -> Replay {
        Replay {
            live: Live::new(superblock.regions, superblock.region_bytes),
            slabs: Vec::new(),
            counts: Counts::default(),
            scratch: Vec::new(),
        }
    }

    /// Apply all records of a half.
    pub fn read(
        &mut self,
        scan: &mut Scan,
        half: Half,
        storage: &mut dyn Storage,
        mut cipher: Option<&mut dyn Cipher>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(), LogError> {
        let mut reported = 0;
        while let Some(found) = scan.next(storage)? {
            self.batch(scan, &found, lend(&mut cipher));
            if self.counts.records - reported >= REPORT {
                reported = self.counts.records;
                let (records, blocks) = (reported, self.live.blocks);
                progress(&Progress { read_bytes: scan.read_bytes, half_bytes: half.bytes, records, blocks });
            }
        }
        // Sequences belong to one half: resolve them before the next half is read.
        for rows in self.slabs.iter_mut().flatten() {
            for sequence in &mut rows.sequences {
                *sequence = if *sequence <= scan.flushed { 0 } else { UNSURE };
            }
        }
        self.counts.read_bytes += scan.read_bytes;
        let (corrupt, lost_unflushed) = scan.lost();
        self.counts.corrupt += corrupt;
        self.counts.lost_unflushed += lost_unflushed;
        self.counts.torn += scan.torn;
        self.counts.unreadable += scan.unreadable;
        self.counts.blocks = self.live.blocks;
        let (records, blocks) = (self.counts.records, self.live.blocks);
        progress(&Progress { read_bytes: scan.read_bytes, half_bytes: half.bytes, records, blocks });
        Ok(())
    }

    fn batch(&mut self, scan: &Scan, found: &Found, mut cipher: Option<&mut dyn Cipher>) {
        self.counts.batches += u64::from(!found.damaged);
        for record in scan.records() {
            // Use the intact records of a damaged batch; the scan has counted the damage.
            let Ok((_, record)) = record else { continue };
            self.counts.records += 1;
            match self.record(record, found.header.sequence, lend(&mut cipher)) {
                Sense::Counts => {}
                Sense::Stale => self.counts.stale += 1,
                Sense::None => self.counts.corrupt += 1,
            }
        }
    }

    fn record(&mut self, record: Record<'_>, sequence: u64, cipher: Option<&mut dyn Cipher>) -> Sense {
        match record {
            Record::Slab(header) => self.grant(header),
            Record::Freed { region } => {
                self.counts.stale += self.live.free(region);
                self.drop_rows(region);
                Sense::Counts
            }
            Record::Put(put) => self.put(put, sequence, cipher),
            Record::Erased { region, slot, generation } => {
                if self.live.erase(region, slot, generation) {
                    self.counts.stale += 1;
                    self.drop_row(region, slot);
                }
                Sense::Counts
            }
            Record::Salt(salt) => {
                if let Some(cipher) = cipher {
                    cipher.learn(&salt);
                }
                self.live.salt(salt);
                Sense::Counts
            }
        }
    }

    fn grant(&mut self, header: SlabHeader) -> Sense {
        if self.live.check(&header).is_err() {
            return Sense::None;
        }
        let index = header.region as usize;
        if self.slabs.len() <= index {
            self.slabs.resize_with(index + 1, || None);
        }
        let blocks = Blocks::new(&header);
        self.counts.stale += self.live.grant(header);
        let slots = self.live.slab(index as u32).map_or(0, |slab| slab.slots.len());
        self.slabs[index] = Some(Box::new(Rows { blocks, sequences: Vec::new(), rows: vec![0; slots], sealed: 0 }));
        Sense::Counts
    }

    fn put(&mut self, put: PutRecord<'_>, sequence: u64, cipher: Option<&mut dyn Cipher>) -> Sense {
        let (region, slot) = (put.region(), put.slot());
        let Some(slab) = self.live.slab(region) else { return Sense::None };
        if slab.header.grant != put.grant() {
            return Sense::Stale;
        }
        let shape = slab.shape;
        if !put.fits(shape) || slot as usize >= slab.slots.len() || put.generation() == 0 {
            return Sense::None;
        }
        let body = put.body(shape);
        let opened = if slab.header.encrypted {
            self.scratch.clear();
            self.scratch.extend_from_slice(body);
            open(&slab.header, &put, &mut self.scratch, cipher)
        } else {
            Ok(())
        };
        if self.live.put(region, slot, put.generation()) {
            self.counts.stale += 1;
            self.drop_row(region, slot);
        }
        let Some(rows) = self.slabs[region as usize].as_mut() else { return Sense::None };
        let unsure = put.unsure();
        match opened {
            Ok(()) => {
                let body = if shape.tags > 0 { &self.scratch } else { body };
                rows.blocks.push(&put, body);
                rows.sequences.push(if unsure { UNSURE } else { sequence + 1 });
                rows.rows[slot as usize] = rows.blocks.len() as u32;
                Sense::Counts
            }
            Err(CipherError::NoKey) => {
                rows.sealed += 1;
                Sense::Counts
            }
            Err(CipherError::Forged) => {
                self.live.erase(region, slot, put.generation());
                Sense::None
            }
        }
    }

    fn drop_rows(&mut self, region: u32) {
        if let Some(rows) = self.slabs.get_mut(region as usize) {
            *rows = None;
        }
    }

    fn drop_row(&mut self, region: u32, slot: u32) {
        let Some(Some(slab)) = self.slabs.get_mut(region as usize) else { return };
        let row = std::mem::take(&mut slab.rows[slot as usize]);
        let Some(row) = row.checked_sub(1) else {
            slab.sealed -= 1;
            return;
        };
        slab.blocks.swap_remove(row as usize);
        slab.sequences.swap_remove(row as usize);
        if let Some(&moved) = slab.blocks.slots.get(row as usize) {
            slab.rows[moved as usize] = row + 1;
        }
    }

    /// Return the result.
    pub fn end(mut self) -> (Live, Recovered) {
        let mut named: Vec<u32> = Vec::new();
        let mut recovered = Recovered { counts: self.counts, ..Recovered::default() };
        for (region, rows) in self.slabs.into_iter().enumerate() {
            let (Some(mut rows), Some(slab)) = (rows, self.live.slab(region as u32)) else { continue };
            rows.blocks.flushed = rows.sequences.iter().map(|&sequence| sequence == 0).collect();
            named.extend(&rows.blocks.salts);
            recovered.slabs.push(RecoveredSlab {
                header: slab.header.clone(),
                blocks: rows.blocks,
                sealed: rows.sealed,
            });
        }
        named.sort_unstable();
        named.dedup();
        // While some blocks cannot be decrypted it is unknown which salts they use, so keep all salts.
        if recovered.slabs.iter().all(|slab| slab.sealed == 0) {
            self.live.keep_salts(&named);
        }
        recovered.salts.clone_from(&self.live.salts);
        (self.live, recovered)
    }
}

/// Decrypt the body of a put record.
fn open(
    slab: &SlabHeader,
    put: &PutRecord<'_>,
    body: &mut [u8],
    cipher: Option<&mut dyn Cipher>,
) -> Result<(), CipherError> {
    let cipher = cipher.ok_or(CipherError::NoKey)?;
    let (mut nonce, mut tag) = ([0; NONCE_BYTES], [0; TAG_BYTES]);
    nonce.copy_from_slice(put.nonce());
    tag.copy_from_slice(put.tag());
    cipher.open(slab, put.salt(), &nonce, put.associated(), body, &tag)
}
