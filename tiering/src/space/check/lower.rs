//! Checks of host frames, NVMe slots, and the transfers between them.

use super::{Core, Seen, ensure};
use crate::api::{IoKind, NONE};
use crate::host::{HostOn, QUARANTINED};
use crate::pages::{BlockState, Place};
use std::collections::BTreeMap;

impl Core {
    pub(super) fn check_transfers(&self, seen: &mut Seen) -> Result<(), String> {
        let mut writes = 0;
        for (i, t) in self.transfers.recs.iter().enumerate().filter(|(_, t)| t.live) {
            *seen.in_flight.entry(t.block).or_default() += 1;
            ensure!(self.blocks[t.block].slot != NONE, "transfer {i}: block {} has no slot", t.block);
            ensure!(!t.frames.is_empty(), "transfer {i} has no frames");
            let mut before = None;
            for at in t.frames.iter(&self.host.recs) {
                let rec = &self.host.recs[at as usize];
                ensure!(rec.on == HostOn::Moving, "host frame {at} is in a transfer but not marked as moving: {rec:?}");
                ensure!(self.geo.block_of(rec.page) == t.block, "transfer {i} has page {} of another block", rec.page);
                ensure!(before < Some(rec.page), "transfer {i}: pages are out of order");
                before = Some(rec.page);
                let pages = if t.kind == IoKind::Read { &mut seen.reading } else { &mut seen.writing };
                ensure!(pages.insert(at, rec.page).is_none(), "host frame {at} is in two transfers");
            }
            writes += u32::from(t.kind == IoKind::Write);
        }
        ensure!(writes == self.transfers.writes, "writes in flight: {}, counted {writes}", self.transfers.writes);
        Ok(())
    }

    pub(super) fn check_host(&self, seen: &Seen) -> Result<(), String> {
        let mut used = vec![0u64; self.geo.classes.len()];
        let mut mapped = vec![0u32; self.geo.classes.len()];
        let mut owners: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut reading, mut writing) = (0, 0);
        for (p, page) in self.pages.iter().enumerate() {
            let p = p as u32;
            (reading, writing) = (reading + usize::from(page.reading()), writing + usize::from(page.writing()));
            ensure!(!page.reading() || page.host == NONE, "page {p} is being read and already in host");
            ensure!(!page.writing() || !page.on_disk(), "page {p} is being written and already on disk");
            if page.host == NONE {
                continue;
            }
            ensure!(owners.insert(page.host, p).is_none(), "host frame {} has two pages", page.host);
            let target = seen.host_targets.contains_key(&page.host) || seen.reading.contains_key(&page.host);
            ensure!(!target, "host frame {} is both the target of a copy and valid", page.host);
            used[usize::from(self.host.class_of(page.host))] += 1;
            let mappings = seen.mappings.get(&p).copied().unwrap_or(0);
            let counted = self.host.mappings(page.host);
            ensure!(counted == mappings, "host frame {}: {counted} mapped frames, counted {mappings}", page.host);
            mapped[usize::from(self.host.class_of(page.host))] += u32::from(mappings > 0);
        }
        for &page in seen.mappings.keys() {
            ensure!(self.pages[page as usize].host != NONE, "page {page} is mapped and not in host");
        }
        ensure!(reading == seen.reading.len(), "{reading} pages are being read, into {} frames", seen.reading.len());
        ensure!(writing == seen.writing.len(), "{writing} pages are being written, from {} frames", seen.writing.len());
        for (&at, &page) in &seen.writing {
            ensure!(self.pages[page as usize].writing(), "page {page} is in a write but not marked as writing");
            // Given up while it is written.
            if !owners.contains_key(&at) {
                used[usize::from(self.host.class_of(at))] += 1;
            }
        }
        for (&at, &page) in &seen.reading {
            ensure!(self.pages[page as usize].reading(), "page {page} is in a read but not marked as reading");
            used[usize::from(self.host.class_of(at))] += 1;
        }
        for (&at, &stores) in &seen.host_targets {
            ensure!(stores == 1, "host frame {at} is the target of {stores} copies");
            used[usize::from(self.host.class_of(at))] += 1;
        }
        let mut quarantined: u64 = self.sessions.iter().map(|s| u64::from(s.quarantine.len)).sum();
        for at in 0..self.host.recs.len() as u32 {
            let late = seen.late.get(&at).copied().unwrap_or(0);
            ensure!(self.host.late(at) == late, "host frame {at}: {} late copies, counted {late}", self.host.late(at));
            quarantined += u64::from(late > 0 && self.host.recs[at as usize].page == QUARANTINED);
        }
        ensure!(quarantined == self.host.quarantined(), "quarantined host frames differ, counted {quarantined}");
        for (class, c) in self.host.classes.iter().enumerate() {
            ensure!(c.used == used[class], "host class {class}: used {}, counted {}", c.used, used[class]);
            let free = self.host.count_free(class as u8);
            ensure!(free == self.host.free_frames(class as u8), "host class {class}: counted {free} free frames");
            ensure!(c.mapped == mapped[class], "host class {class}: {} frames shown by mapped frames", c.mapped);
            let loading = |j: &&crate::sessions::JobRec| {
                let page = match j.task {
                    crate::sessions::Task::CopyIn | crate::sessions::Task::Scatter => j.page,
                    crate::sessions::Task::CopyInAs => j.source,
                    _ => return false,
                };
                j.live && !j.late && usize::from(self.geo.class_of_page(page)) == class
            };
            let loads = self.sessions.iter().flat_map(|s| &s.jobs.recs).filter(loading).count();
            ensure!(c.loading as usize == loads, "host class {class}: {} loading, counted {loads}", c.loading);
            let gathering = |j: &&crate::sessions::JobRec| {
                let of_class = usize::from(self.geo.class_of_page(j.page)) == class;
                j.live && !j.late && j.task == crate::sessions::Task::Gather && of_class
            };
            let gathers = self.sessions.iter().flat_map(|s| &s.jobs.recs).filter(gathering).count();
            ensure!(
                c.gathering as usize == gathers,
                "host class {class}: {} gathering, counted {gathers}",
                c.gathering
            );
            let moving = seen.writing.keys().filter(|&&at| usize::from(self.host.class_of(at)) == class).count();
            ensure!(c.writing as usize == moving, "host class {class}: {} writing, counted {moving}", c.writing);
        }
        Ok(())
    }

    /// Check that each host frame is in the right list, and that frames in evictable lists may be evicted.
    pub(super) fn check_host_lists(&self) -> Result<(), String> {
        let mut listed: BTreeMap<u32, HostOn> = BTreeMap::new();
        for c in &self.host.classes {
            for (list, on) in [
                (&c.dirty, HostOn::Dirty),
                (&c.clean, HostOn::Clean),
                (&c.also_in_tier0, HostOn::AlsoInTier0),
                (&c.read_ahead, HostOn::ReadAhead),
                (&c.not_admitted, HostOn::NotAdmitted),
            ] {
                for at in list.iter(&self.host.recs) {
                    ensure!(
                        self.host.recs[at as usize].on == on,
                        "host frame {at} is in list {on:?} but not marked so"
                    );
                    ensure!(listed.insert(at, on).is_none(), "host frame {at} is in two lists");
                }
            }
        }
        let mut ahead = vec![0; self.geo.classes.len()];
        for (at, rec) in (0u32..).zip(&self.host.recs) {
            let is = listed.get(&at).copied().unwrap_or(HostOn::Nothing);
            ensure!(
                rec.on == HostOn::Moving || rec.on == is,
                "host frame {at} is marked {:?}, but is in list {is:?}",
                rec.on
            );
            ahead[usize::from(self.host.class_of(at))] += u32::from(self.host.is_read_ahead(at));
            let page = self.pages.get(rec.page as usize).filter(|p| p.host == at);
            ensure!(page.is_some() || is == HostOn::Nothing, "host frame {at} is in list {is:?} without a page");
            if let Some(page) = page.filter(|p| self.has_nvme() && !p.writing()) {
                let want = self.host_list_of(rec.page, at);
                ensure!(rec.on == want, "host frame {at} is in list {:?}, not {want:?}: {page:?}", rec.on);
                let evictable = matches!(rec.on, HostOn::Clean | HostOn::AlsoInTier0 | HostOn::ReadAhead);
                let may = page.on_disk() && page.loads == 0;
                ensure!(!evictable || may, "host frame {at} must not be evictable: {page:?}");
            }
        }
        for (class, c) in self.host.classes.iter().enumerate() {
            ensure!(
                c.read_ahead_frames == ahead[class],
                "host class {class}: {} frames read ahead, counted {}",
                c.read_ahead_frames,
                ahead[class]
            );
        }
        Ok(())
    }

    /// Check that each slot has one block, and that each block with pages on disk has a slot.
    pub(super) fn check_disk(&self) -> Result<(), String> {
        let mut used = 0;
        for (b, block) in (0u32..).zip(&self.blocks.recs) {
            let on_disk = self.pages_of(b).any(|p| self.pages[p as usize].on_disk());
            if block.slot == NONE {
                ensure!(!on_disk, "block {b} has pages on disk without a slot");
                continue;
            }
            let place = self.disk.place(block.slot);
            used += u32::from(place == Place::Block);
            ensure!(matches!(place, Place::Block | Place::Gone), "slot {} of block {b} is {place:?}", block.slot);
            let moves = self.transfers.recs.iter().any(|t| t.live && t.block == b);
            ensure!(place == Place::Block || moves || !block.live(), "block {b} has a slot on a lost disk");
            ensure!(self.disk.owner(block.slot) == b, "slot {} is not owned by block {b}", block.slot);
            let keeps = !matches!(block.state, BlockState::Free | BlockState::Dropping);
            ensure!(keeps, "block {b} in state {:?} has a slot", block.state);
            let stale = block.state == BlockState::Unsealed && !block.parked && on_disk;
            ensure!(!stale || self.resuming(b), "block {b} is being filled and has pages on disk");
        }
        let (of_blocks, kept) = (self.disk.used - self.disk.index_only, self.disk.kept());
        ensure!(used == of_blocks, "slots of blocks: {of_blocks}, counted {used}");
        let counted = self.disk.count().0;
        ensure!(counted == kept, "slots free, used, index-only, awaiting erasure, bad: {kept:?}, counted {counted:?}");
        Ok(())
    }

    /// Return whether the block's resume is in progress. Such a block keeps its lower copies until all of it is in tier 0.
    fn resuming(&self, b: u32) -> bool {
        let session = self.sessions.get(usize::from(self.blocks[b].home));
        session.is_some_and(|s| s.ops.recs.iter().any(|o| o.started))
    }
}
