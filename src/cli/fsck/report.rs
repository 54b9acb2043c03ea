//! Result of a check, as text and JSON.

use super::check::{Findings, State};
use super::disk::Disk;
use super::error::FsckError;
use kvtide_daemon::output;
use serde::Serialize;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// State of a disk after the check, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Clean,
    Repaired,
    Damaged,
    Refused,
}

/// Result of all disks.
#[derive(Serialize)]
pub(super) struct All<'a> {
    pub verdict: Verdict,
    pub disks: &'a [Report],
}

/// Result of one disk.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    path: String,
    pub verdict: Verdict,
    /// Error of the check or repair.
    error: Option<String>,
    store: Option<Store>,
    log: Option<LogFound>,
    blocks: Option<BlocksFound>,
    slabs: Vec<SlabFound>,
    /// The first bad pages.
    bad_pages: Vec<BadPageFound>,
    /// Blocks erased.
    erased: u64,
}

#[derive(Debug, Serialize)]
struct Store {
    id: String,
    format: u32,
    starts: u32,
    region_bytes: u64,
    regions: u32,
    /// Errors of the copies of the superblock.
    superblock: Vec<String>,
    /// The file is shorter than its superblock requires.
    short: bool,
    /// The master key was given.
    key: bool,
}

#[derive(Debug, Serialize)]
struct LogFound {
    bytes: u64,
    batches: u64,
    records: u64,
    torn: u64,
    stale: u64,
    corrupt: u64,
    lost_unflushed: u64,
    unreadable: u64,
    mended: bool,
    partial: bool,
}

#[derive(Debug, Serialize)]
struct BlocksFound {
    recorded: u64,
    good: u64,
    corrupt: u64,
    lost_unflushed: u64,
    unreachable: u64,
    /// Blocks with records that cannot be decrypted.
    sealed: u64,
    /// Blocks with pages that cannot be checked.
    unchecked: u64,
    pages_checked: u64,
    pages_bad: u64,
}

#[derive(Debug, Serialize)]
struct SlabFound {
    region: u32,
    grant: u64,
    /// Key of the space, in hexadecimal.
    space: String,
    domain: String,
    slot_bytes: u64,
    planes: u16,
    shards: u16,
    codec: u8,
    encrypted: bool,
    blocks: u64,
    bad: u64,
    unreachable: u64,
    sealed: u32,
    wrong: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct BadPageFound {
    region: u32,
    slot: u32,
    plane: u16,
    why: &'static str,
}

impl Report {
    /// Create the report of a disk that could not be checked.
    pub fn refused(path: &Path, error: &FsckError) -> Report {
        Report {
            path: path.display().to_string(),
            verdict: Verdict::Refused,
            error: Some(error.to_string()),
            store: None,
            log: None,
            blocks: None,
            slabs: Vec::new(),
            bad_pages: Vec::new(),
            erased: 0,
        }
    }

    pub fn new(disk: &Disk, findings: &Findings, key: bool) -> Report {
        let block = &disk.superblock;
        let counts = &findings.recovered.counts;
        let sealed = findings.recovered.slabs.iter().map(|slab| u64::from(slab.sealed)).sum();
        let wrong = |state| matches!(state, State::Corrupt | State::LostUnflushed);
        let slabs = findings.recovered.slabs.iter().zip(&findings.slabs).map(|(slab, found)| SlabFound {
            region: slab.header.region,
            grant: slab.header.grant,
            space: hex(&slab.header.key.0),
            domain: slab.header.domain.clone(),
            slot_bytes: slab.header.slot_bytes,
            planes: slab.header.planes(),
            shards: slab.header.shards,
            codec: slab.header.codec,
            encrypted: slab.header.encrypted,
            blocks: slab.blocks.len() as u64 + u64::from(slab.sealed),
            bad: found.states.iter().filter(|state| wrong(**state)).count() as u64,
            unreachable: found.unreachable,
            sealed: slab.sealed,
            wrong: found.wrong,
        });
        let copies = disk.copies.iter().enumerate();
        let copies = copies.filter_map(|(at, wrong)| wrong.as_ref().map(|wrong| format!("copy {at}: {wrong}")));
        Report {
            path: disk.path.display().to_string(),
            verdict: if findings.needs_repair() { Verdict::Damaged } else { Verdict::Clean },
            error: None,
            store: Some(Store {
                id: format!("{:032x}", block.store),
                format: 1,
                starts: block.starts,
                region_bytes: block.region_bytes,
                regions: block.regions,
                superblock: copies.collect(),
                short: disk.bytes < block.file_bytes(),
                key,
            }),
            log: Some(LogFound {
                bytes: block.log_bytes,
                batches: counts.batches,
                records: counts.records,
                torn: counts.torn,
                stale: counts.stale,
                corrupt: counts.corrupt,
                lost_unflushed: counts.lost_unflushed,
                unreadable: counts.unreadable,
                mended: counts.mended,
                partial: counts.partial,
            }),
            blocks: Some(BlocksFound {
                recorded: counts.blocks,
                good: findings.count(State::Good),
                corrupt: findings.count(State::Corrupt),
                lost_unflushed: findings.count(State::LostUnflushed),
                unreachable: findings.slabs.iter().map(|slab| slab.unreachable).sum(),
                sealed,
                unchecked: findings.count(State::Unchecked),
                pages_checked: findings.pages_checked,
                pages_bad: findings.pages_bad,
            }),
            slabs: slabs.collect(),
            bad_pages: findings
                .bad
                .iter()
                .map(|bad| BadPageFound { region: bad.region, slot: bad.slot, plane: bad.plane, why: bad.why })
                .collect(),
            erased: 0,
        }
    }

    /// Record a successful repair.
    pub fn repaired(&mut self, erased: u64) {
        self.verdict = Verdict::Repaired;
        self.erased = erased;
    }

    /// Record a failed repair.
    pub fn failed(&mut self, error: &FsckError) {
        self.error = Some(error.to_string());
    }

    /// Print the report as text.
    pub fn print(&self) -> io::Result<()> {
        let written = output::write(&self.text());
        if let Some(error) = &self.error {
            output::say(format_args!("kvtide: {}", output::about(&self.path, error)));
        }
        written
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let verdict = match self.verdict {
            Verdict::Clean => "clean",
            Verdict::Repaired => "repaired",
            Verdict::Damaged => "damaged",
            Verdict::Refused => "not checked",
        };
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{}: {verdict}", self.path);
        if let Some(store) = &self.store {
            let Store { id, format, starts, region_bytes, regions, .. } = store;
            let _ = writeln!(
                out,
                "  store   {id}, format {format}, {starts} starts, {regions} regions of {region_bytes} bytes"
            );
            for copy in &store.superblock {
                let _ = writeln!(out, "          superblock, {copy}");
            }
            if store.short {
                let _ = writeln!(out, "          file shorter than its superblock requires");
            }
        }
        if let Some(log) = &self.log {
            let LogFound { batches, records, torn, stale, corrupt, lost_unflushed, unreadable, .. } = log;
            let _ = writeln!(
                out,
                "  index   {records} records in {batches} batches; {torn} torn, {stale} stale, {corrupt} corrupt, \
                {lost_unflushed} lost unflushed, {unreadable} unreadable sectors"
            );
            if log.mended {
                let _ = writeln!(out, "          newer half damaged, recovered from the older half");
            }
            if log.partial {
                let _ = writeln!(out, "          both halves damaged, index incomplete");
            }
        }
        if let Some(blocks) = &self.blocks {
            let BlocksFound { recorded, good, corrupt, lost_unflushed, unreachable, sealed, unchecked, .. } = blocks;
            let _ = writeln!(
                out,
                "  blocks  {recorded}: {good} good, {corrupt} corrupt, {lost_unflushed} lost unflushed; \
                {unreachable} good but unreachable"
            );
            if sealed + unchecked > 0 {
                let why = if self.store.as_ref().is_some_and(|store| store.key) {
                    "different key, or unknown codec"
                } else {
                    "no --key"
                };
                let _ = writeln!(out, "          {} not checked: {why}", sealed + unchecked);
            }
            let _ = writeln!(out, "  pages   {} checked, {} bad", blocks.pages_checked, blocks.pages_bad);
        }
        for slab in &self.slabs {
            let SlabFound { region, grant, domain, slot_bytes, planes, blocks, bad, .. } = slab;
            let how = match (slab.codec, slab.encrypted) {
                (0, false) => "",
                (0, true) => ", encrypted",
                (_, false) => ", coded",
                (_, true) => ", coded, encrypted",
            };
            let _ = writeln!(
                out,
                "  slab    region {region}, grant {grant}, domain {domain:?}, space {}…, {slot_bytes}-byte slots, \
                {planes} planes{how}: {blocks} blocks, {bad} bad",
                &slab.space[..16]
            );
            if let Some(wrong) = slab.wrong {
                let _ = writeln!(out, "          {wrong}");
            }
        }
        for bad in &self.bad_pages {
            let _ =
                writeln!(out, "  bad     region {}, slot {}, plane {}: {}", bad.region, bad.slot, bad.plane, bad.why);
        }
        if self.verdict == Verdict::Repaired {
            let _ = writeln!(out, "  erased  {} blocks; index rewritten", self.erased);
        }
        out
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
