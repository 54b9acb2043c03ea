//! Reads the index and checks every page in it.

use super::disk::Disk;
use super::error::FsckError;
use kvtide_daemon::output;
use kvtide_format::log::{Blocks, Cipher, Put, Recovered, SlabHeader, inspect};
use kvtide_format::{PageKey, SlotLayout};
use kvtide_nvme::{Checker, Encryption, Keyring, SlabCode, stored_bytes};
use kvtide_tiering::api::{Plane, PlaneKind};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of bad pages that are listed one by one; further ones are only counted.
const NAMED_MAX: usize = 1000;
/// Interval of progress messages.
const REPORT: Duration = Duration::from_secs(1);

/// Result of checking a block's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Good,
    /// A page does not match its checksum.
    Corrupt,
    /// A page does not match its checksum, and no device flush is known to have covered the block: a power cut may have lost it.
    LostUnflushed,
    /// Not checkable: the slab is encrypted and its key is missing, or its codec is unknown.
    Unchecked,
}

/// A page that cannot be read or does not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadPage {
    pub region: u32,
    pub slot: u32,
    pub plane: u16,
    pub why: &'static str,
}

/// Findings of one slab.
#[derive(Clone, Debug, Default)]
pub(super) struct SlabFindings {
    /// By row of its blocks.
    pub states: Vec<State>,
    pub unreachable: u64,
    /// Error of the slab itself.
    pub wrong: Option<&'static str>,
}

/// Findings of one disk.
#[derive(Debug)]
pub(super) struct Findings {
    pub recovered: Recovered,
    /// In the order of the slabs.
    pub slabs: Vec<SlabFindings>,
    pub pages_checked: u64,
    pub pages_bad: u64,
    pub bad: Vec<BadPage>,
    /// A copy of the superblock is damaged.
    pub superblock: bool,
}

impl Findings {
    /// Iterate over blocks with pages that are good or not checkable.
    pub fn good(&self) -> impl Iterator<Item = (&SlabHeader, Put<'_>)> {
        self.recovered.slabs.iter().zip(&self.slabs).flat_map(|(slab, findings)| {
            let good = |state| matches!(state, State::Good | State::Unchecked);
            let rows = findings.states.iter().enumerate().filter(move |(_, state)| good(**state));
            rows.map(move |(row, _)| (&slab.header, slab.blocks.get(row)))
        })
    }

    /// Iterate over blocks with bad pages.
    pub fn bad_blocks(&self) -> impl Iterator<Item = Put<'_>> {
        self.recovered.slabs.iter().zip(&self.slabs).flat_map(|(slab, findings)| {
            let bad = |state| matches!(state, State::Corrupt | State::LostUnflushed);
            let rows = findings.states.iter().enumerate().filter(move |(_, state)| bad(**state));
            rows.map(move |(row, _)| slab.blocks.get(row))
        })
    }

    pub fn count(&self, state: State) -> u64 {
        self.slabs.iter().map(|slab| slab.states.iter().filter(|found| **found == state).count() as u64).sum()
    }

    /// Count one more unreachable block in the region's slab.
    pub fn unreachable(&mut self, region: u32) {
        let at = self.recovered.slabs.iter().position(|slab| slab.header.region == region);
        if let Some(slab) = at.and_then(|at| self.slabs.get_mut(at)) {
            slab.unreachable += 1;
        }
    }

    /// Return true if a page, the superblock or the index is damaged.
    pub fn needs_repair(&self) -> bool {
        let counts = &self.recovered.counts;
        self.pages_bad > 0 || self.superblock || counts.corrupt > 0 || counts.unreadable > 0 || counts.partial
    }
}

/// Check a disk.
pub(super) fn check(disk: &mut Disk, keyring: Option<&Arc<Keyring>>, talk: bool) -> Result<Findings, FsckError> {
    let superblock = disk.superblock;
    let mut cipher: Option<Box<dyn Cipher>> = keyring.map(|keyring| keyring.cipher());
    let cipher = cipher.as_mut().map(|cipher| &mut **cipher as &mut dyn Cipher);
    let recovered = inspect(disk, &superblock, cipher, &mut |_| {})?;
    let codes = match keyring {
        Some(keyring) => Arc::clone(keyring),
        // Without a key, enough to decode compressed slabs.
        None => Arc::new(Keyring::open(superblock.store, &Encryption::default(), None, &[])?),
    };
    let mut checker = Checker::new().map_err(|source| FsckError::Os {
        tried: "allocate memory to check",
        path: disk.path.clone(),
        source,
    })?;
    let mut progress = Progress::new(talk, recovered.counts.blocks);
    let mut findings = Findings {
        slabs: Vec::new(),
        pages_checked: 0,
        pages_bad: 0,
        bad: Vec::new(),
        superblock: disk.copies.iter().any(Option::is_some),
        recovered,
    };
    for at in 0..findings.recovered.slabs.len() {
        let slab = &findings.recovered.slabs[at];
        let mut pages = Pages {
            disk,
            header: &slab.header,
            blocks: &slab.blocks,
            checker: &mut checker,
            checked: 0,
            bad: Vec::new(),
            bad_count: 0,
        };
        let found = pages.slab(&codes, &mut progress);
        let Pages { checked, bad, bad_count, .. } = pages;
        findings.pages_checked += checked;
        findings.pages_bad += bad_count;
        findings.bad.extend(bad.into_iter().take(NAMED_MAX - findings.bad.len()));
        findings.slabs.push(found);
    }
    progress.end();
    Ok(findings)
}

/// Reader of the pages of one slab.
struct Pages<'a> {
    disk: &'a Disk,
    header: &'a SlabHeader,
    blocks: &'a Blocks,
    checker: &'a mut Checker,
    checked: u64,
    bad: Vec<BadPage>,
    bad_count: u64,
}

impl Pages<'_> {
    fn slab(&mut self, codes: &Keyring, progress: &mut Progress) -> SlabFindings {
        let planes: Vec<Plane> =
            self.header.page_bytes.iter().map(|&page_bytes| Plane { page_bytes, kind: PlaneKind::Full }).collect();
        let layout = SlotLayout::new(&planes);
        let mut found = SlabFindings { states: vec![State::Unchecked; self.blocks.len()], ..SlabFindings::default() };
        if layout.bytes() != self.header.slot_bytes {
            found.wrong = Some("slot size does not match the page sizes");
            return found;
        }
        let code = codes.code(self.header);
        // In the order of the region's slots.
        let mut rows: Vec<usize> = (0..self.blocks.len()).collect();
        rows.sort_unstable_by_key(|&row| self.blocks.get(row).slot);
        let code = match code {
            Ok(code) => code,
            Err(_) => {
                // Its blocks are counted as not checked.
                found.wrong = Some("unknown codec, or the key of its domain is missing");
                return found;
            }
        };
        let mut slot = vec![0; usize::try_from(self.header.slot_bytes).unwrap_or(0)];
        for row in rows {
            found.states[row] = self.block(row, &layout, code.as_deref(), &mut slot);
            progress.step();
        }
        found
    }

    /// Return true if the stored bytes of a page match its checksum and tag. Overwrites `stored`.
    fn is_good(
        &mut self,
        key: &PageKey,
        block: &Put<'_>,
        code: Option<&SlabCode>,
        page_bytes: u32,
        stored: &mut [u8],
    ) -> bool {
        let plane = usize::from(key.plane);
        let crc = block.crcs[plane];
        let Some(code) = code else { return key.checksum(stored) == crc };
        let sectors = block.sectors.get(plane).copied().unwrap_or(0);
        let tag = block.tags.get(plane).copied().unwrap_or_default();
        self.checker.is_good(code, key, (block.salt, crc, sectors, &tag), page_bytes, stored)
    }

    fn block(&mut self, row: usize, layout: &SlotLayout, code: Option<&SlabCode>, slot: &mut [u8]) -> State {
        let block = self.blocks.get(row);
        let at = u64::from(block.slot) * self.header.slot_bytes;
        let read = self.disk.read_slot(self.header.region, at, slot);
        let mut good = true;
        for plane in 0..self.header.planes() {
            if block.present[usize::from(plane) / 32] >> (plane % 32) & 1 == 0 {
                continue;
            }
            self.checked += 1;
            let begin = layout.offset(plane).unwrap_or(0) as usize;
            let bytes = self.header.page_bytes[usize::from(plane)];
            let key = PageKey {
                store: self.disk.superblock.store,
                region: block.region,
                slot: block.slot,
                generation: block.generation,
                plane,
            };
            let sectors = block.sectors.get(usize::from(plane)).copied().unwrap_or(0);
            let end = begin.saturating_add(stored_bytes(bytes, sectors) as usize);
            let why = match (&read, slot.get_mut(begin..end)) {
                (Err(_), _) => Some("read error"),
                (Ok(()), Some(stored)) => {
                    let good = self.is_good(&key, &block, code, bytes, stored);
                    (!good).then_some("checksum mismatch")
                }
                (Ok(()), None) => Some("recorded length exceeds its slot"),
            };
            if let Some(why) = why {
                good = false;
                self.bad_count += 1;
                if self.bad.len() < NAMED_MAX {
                    self.bad.push(BadPage { region: block.region, slot: block.slot, plane, why });
                }
            }
        }
        match good {
            true => State::Good,
            false if self.blocks.flushed(row) => State::Corrupt,
            false => State::LostUnflushed,
        }
    }
}

/// Progress display on a terminal.
struct Progress {
    talk: bool,
    done: u64,
    all: u64,
    said: Instant,
}

impl Progress {
    fn new(talk: bool, all: u64) -> Progress {
        Progress { talk: talk && std::io::stderr().is_terminal(), done: 0, all, said: Instant::now() }
    }

    fn step(&mut self) {
        self.done += 1;
        if self.talk && self.said.elapsed() >= REPORT {
            self.said = Instant::now();
            output::say_over(format_args!("{} of {} blocks", self.done, self.all));
        }
    }

    fn end(&self) {
        if self.talk {
            output::say_over(format_args!("{:40}", ""));
            output::say_over("");
        }
    }
}
