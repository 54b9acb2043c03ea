//! Checks of host frames, NVMe slots, and the transfers between them.

use crate::api::{IoKind, NONE};
use crate::blocks::BlockState;
use crate::error::ensure;
use crate::requests::Requests;
use crate::requests::check::Seen;
use crate::sessions::{Task, Work};
use crate::tables::disk::Place;
use crate::tables::host::HostOn;
use std::collections::BTreeMap;

impl Requests {
    pub(crate) fn check_transfers(&self, seen: &mut Seen) -> Result<(), String> {
        for (i, t) in self.disk.transfers().enumerate() {
            *seen.in_flight.entry(t.block).or_default() += 1;
            ensure!(self.block(t.block).slot != NONE, "transfer {i}: block {} has no slot", t.block);
            ensure!(!t.frames.is_empty(), "transfer {i} has no frames");
            let mut before = None;
            for (at, page) in self.host.in_transfer(&t.frames) {
                let on = self.host.list_of(at);
                ensure!(on == HostOn::Moving, "host frame {at} is in a transfer but not marked as moving: {on:?}");
                ensure!(self.geo().block_of(page) == t.block, "transfer {i} has page {page} of another block");
                ensure!(before < Some(page), "transfer {i}: pages are out of order");
                before = Some(page);
                let pages = if t.kind == IoKind::Read { &mut seen.reading } else { &mut seen.writing };
                ensure!(pages.insert(at, page).is_none(), "host frame {at} is in two transfers");
            }
        }
        Ok(())
    }

    pub(crate) fn check_host(&self, seen: &Seen) -> Result<(), String> {
        let mut used = vec![0u64; self.geo().classes.len()];
        let mut mapped = vec![0u64; self.geo().classes.len()];
        let mut owners: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut reading, mut writing) = (0, 0);
        for (p, page) in self.pages().iter().enumerate() {
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
            mapped[usize::from(self.host.class_of(page.host))] += u64::from(mappings > 0);
        }
        for &page in seen.mappings.keys() {
            ensure!(self.page(page).host != NONE, "page {page} is mapped and not in host");
        }
        ensure!(reading == seen.reading.len(), "{reading} pages are being read, into {} frames", seen.reading.len());
        ensure!(writing == seen.writing.len(), "{writing} pages are being written, from {} frames", seen.writing.len());
        for (&at, &page) in &seen.writing {
            ensure!(self.page(page).writing(), "page {page} is in a write but not marked as writing");
            // Given up while it is written.
            if !owners.contains_key(&at) {
                used[usize::from(self.host.class_of(at))] += 1;
            }
        }
        for (&at, &page) in &seen.reading {
            ensure!(self.page(page).reading(), "page {page} is in a read but not marked as reading");
            used[usize::from(self.host.class_of(at))] += 1;
        }
        for (&at, &stores) in &seen.host_targets {
            ensure!(stores == 1, "host frame {at} is the target of {stores} copies");
            used[usize::from(self.host.class_of(at))] += 1;
        }
        let mut quarantined: u64 = self.lost().iter().map(|lost| u64::from(lost.quarantine.len)).sum();
        for at in 0..self.host.len() {
            let late = seen.late.get(&at).copied().unwrap_or(0);
            ensure!(self.host.late(at) == late, "host frame {at}: {} late copies, counted {late}", self.host.late(at));
            quarantined += u64::from(late > 0 && self.host.page_in(at, self.host.class_of(at)).is_none());
        }
        ensure!(quarantined == self.host.quarantined(), "quarantined host frames differ, counted {quarantined}");
        for class in 0..self.geo().classes.len() as u8 {
            let copies = |j: &&crate::sessions::JobRec| {
                let page = match j.task {
                    Task::CopyIn | Task::Scatter | Task::Gather => j.page,
                    Task::CopyInAs => j.source,
                    _ => return false,
                };
                j.live && !j.late && self.geo().class_of_page(page) == class
            };
            let copying = self.sessions().iter().flat_map(|s| &s.jobs.recs).filter(copies).count() as u64;
            let moving = seen.writing.keys().filter(|&&at| self.host.class_of(at) == class).count() as u64;
            let counted = [used[usize::from(class)], mapped[usize::from(class)], moving, copying];
            let [counts @ .., _] = self.host.counts(class);
            ensure!(
                counts == counted,
                "host class {class}: used, mapped, writing, copying {counts:?}, not {counted:?}"
            );
        }
        Ok(())
    }

    /// Check that each host frame is in the right list, and that frames in evictable lists may be evicted.
    pub(crate) fn check_host_lists(&self) -> Result<(), String> {
        self.host.check()?;
        for at in 0..self.host.len() {
            let (page_of, on) = (self.host.page_of(at), self.host.list_of(at));
            let page = self.pages().get(page_of as usize).filter(|p| p.host == at);
            let idle = matches!(on, HostOn::Nothing | HostOn::Moving);
            ensure!(page.is_some() || idle, "host frame {at} is in list {on:?} without a page");
            if let Some(page) = page.filter(|p| self.disk.exists() && !p.writing()) {
                let want = self.host_list_of(page_of, at);
                ensure!(on == want, "host frame {at} is in list {on:?}, not {want:?}: {page:?}");
                let evictable = matches!(on, HostOn::Clean | HostOn::AlsoInTier0 | HostOn::ReadAhead);
                let may = page.on_disk() && page.loads == 0;
                ensure!(!evictable || may, "host frame {at} must not be evictable: {page:?}");
            }
        }
        Ok(())
    }

    /// Check that each slot has one block, and that each block with pages on disk has a slot.
    pub(crate) fn check_disk(&self) -> Result<(), String> {
        let mut used = 0;
        for (b, block) in (0u32..).zip(&self.blocks().recs) {
            let on_disk = self.pages_of(b).any(|p| self.page(p).on_disk());
            if block.slot == NONE {
                ensure!(!on_disk, "block {b} has pages on disk without a slot");
                continue;
            }
            let place = self.disk.place(block.slot);
            used += u32::from(place == Place::Block);
            ensure!(matches!(place, Place::Block | Place::Gone), "slot {} of block {b} is {place:?}", block.slot);
            let moves = self.disk.moves_block(b);
            ensure!(place == Place::Block || moves || !block.live(), "block {b} has a slot on a lost disk");
            ensure!(self.disk.owner(block.slot) == b, "slot {} is not owned by block {b}", block.slot);
            let keeps = !matches!(block.state, BlockState::Free | BlockState::Dropping);
            ensure!(keeps, "block {b} in state {:?} has a slot", block.state);
            let stale = block.state == BlockState::Unsealed && !block.parked && on_disk;
            ensure!(!stale || self.resuming(b), "block {b} is being filled and has pages on disk");
        }
        let [_, all, index_only, ..] = self.disk.counts();
        let of_blocks = all - index_only;
        ensure!(used == of_blocks, "slots of blocks: {of_blocks}, counted {used}");
        Ok(())
    }

    /// Return whether the block's resume is in progress. Such a block keeps its lower copies until all of it is in tier 0.
    fn resuming(&self, b: u32) -> bool {
        let session = self.sessions().get(self.block(b).home);
        session.is_some_and(|s| s.ops.recs.iter().any(|o| matches!(o.work, Work::Resume(resume) if resume.started)))
    }
}
