//! Host frames, slots on NVMe, and what moves between them.

use super::{Core, Seen, ensure};
use crate::api::{IoKind, NONE};
use crate::pages::{BlockState, HostOn, Place, QUARANTINED};
use std::collections::BTreeMap;

impl Core {
    pub(super) fn check_transfers(&self, seen: &mut Seen) -> Result<(), String> {
        let mut writes = 0;
        for (i, t) in self.transfers.recs.iter().enumerate().filter(|(_, t)| t.live) {
            *seen.holds.entry(t.block).or_default() += 1;
            ensure!(self.blocks[t.block].slot != NONE, "transfer {i} is of block {}, which has no slot", t.block);
            ensure!(!t.frames.is_empty(), "transfer {i} moves nothing");
            let mut before = None;
            for at in t.frames.iter(&self.host.recs) {
                let rec = &self.host.recs[at as usize];
                ensure!(rec.on == HostOn::Moving, "host frame {at} moves unawares: {rec:?}");
                ensure!(
                    self.geo.block_of(rec.page) == t.block,
                    "transfer {i} moves page {} of another block",
                    rec.page
                );
                ensure!(before < Some(rec.page), "transfer {i} is out of order");
                before = Some(rec.page);
                let pages = if t.kind == IoKind::Read { &mut seen.reading } else { &mut seen.writing };
                ensure!(pages.insert(at, rec.page).is_none(), "host frame {at} moves twice");
            }
            writes += u32::from(t.kind == IoKind::Write);
        }
        ensure!(writes == self.transfers.writes, "{} writes kept, {writes} are", self.transfers.writes);
        Ok(())
    }

    pub(super) fn check_host(&self, seen: &Seen) -> Result<(), String> {
        let mut used = vec![0u64; self.geo.classes.len()];
        let mut windowed = vec![0u32; self.geo.classes.len()];
        let mut owners: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut reading, mut writing) = (0, 0);
        for (p, page) in self.pages.iter().enumerate() {
            let p = p as u32;
            (reading, writing) = (reading + usize::from(page.reading()), writing + usize::from(page.writing()));
            ensure!(!page.reading() || page.host == NONE, "page {p} is read although it is in host");
            ensure!(!page.writing() || !page.on_disk(), "page {p} is written although it is on disk");
            if page.host == NONE {
                continue;
            }
            ensure!(owners.insert(page.host, p).is_none(), "host frame {} has two pages", page.host);
            let target = seen.host_targets.contains_key(&page.host) || seen.reading.contains_key(&page.host);
            ensure!(!target, "host frame {} is being filled and valid", page.host);
            used[usize::from(self.host.class_of(page.host))] += 1;
            let windows = seen.windows.get(&p).copied().unwrap_or(0);
            let counted = self.host.windows(page.host);
            ensure!(counted == windows, "host frame {}: {counted} windows, counted {windows}", page.host);
            windowed[usize::from(self.host.class_of(page.host))] += u32::from(windows > 0);
        }
        for &page in seen.windows.keys() {
            ensure!(self.pages[page as usize].host != NONE, "page {page} is in a window and not in host");
        }
        ensure!(reading == seen.reading.len(), "{reading} pages are read, {} frames", seen.reading.len());
        ensure!(writing == seen.writing.len(), "{writing} pages are written, {} frames", seen.writing.len());
        for (&at, &page) in &seen.writing {
            ensure!(self.pages[page as usize].writing(), "page {page} is written unawares");
            // Given up while it is written.
            if !owners.contains_key(&at) {
                used[usize::from(self.host.class_of(at))] += 1;
            }
        }
        for (&at, &page) in &seen.reading {
            ensure!(self.pages[page as usize].reading(), "page {page} is read unawares");
            used[usize::from(self.host.class_of(at))] += 1;
        }
        for (&at, &stores) in &seen.host_targets {
            ensure!(stores == 1, "host frame {at} is the target of {stores} stores");
            used[usize::from(self.host.class_of(at))] += 1;
        }
        let mut quarantined: u64 = self.sessions.iter().map(|s| u64::from(s.quarantine.len)).sum();
        for at in 0..self.host.recs.len() as u32 {
            let late = seen.late.get(&at).copied().unwrap_or(0);
            ensure!(self.host.late(at) == late, "host frame {at}: {} late copies, counted {late}", self.host.late(at));
            quarantined += u64::from(late > 0 && self.host.recs[at as usize].page == QUARANTINED);
        }
        ensure!(quarantined == self.host.quarantined(), "quarantine holds {quarantined}");
        for (class, c) in self.host.classes.iter().enumerate() {
            ensure!(c.used == used[class], "host class {class}: used {}, counted {}", c.used, used[class]);
            let free = self.host.count_free(class as u8);
            ensure!(free == self.host.free_frames(class as u8), "host class {class}: {free} free");
            ensure!(c.windowed == windowed[class], "host class {class}: {} watched", c.windowed);
            let loading = |j: &&crate::sessions::JobRec| {
                let page = match j.task {
                    crate::sessions::Task::Load | crate::sessions::Task::Scatter => j.page,
                    crate::sessions::Task::LoadCopy => j.source,
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
            ensure!(c.gathering as usize == gathers, "host class {class}: {} gathered, counted {gathers}", c.gathering);
            let moving = seen.writing.keys().filter(|&&at| usize::from(self.host.class_of(at)) == class).count();
            ensure!(c.writing as usize == moving, "host class {class}: {} written, counted {moving}", c.writing);
        }
        Ok(())
    }

    /// Each host frame stands in the list where it belongs: what can be taken may go.
    pub(super) fn check_host_lists(&self) -> Result<(), String> {
        let mut listed: BTreeMap<u32, HostOn> = BTreeMap::new();
        for c in &self.host.classes {
            for (list, on) in [
                (&c.dirty, HostOn::Dirty),
                (&c.clean, HostOn::Clean),
                (&c.double, HostOn::Double),
                (&c.ahead, HostOn::Ahead),
                (&c.spare, HostOn::Spare),
            ] {
                for at in list.iter(&self.host.recs) {
                    ensure!(self.host.recs[at as usize].on == on, "host frame {at} is on {on:?} unawares");
                    ensure!(listed.insert(at, on).is_none(), "host frame {at} is in two lists");
                }
            }
        }
        let mut ahead = vec![0; self.geo.classes.len()];
        for (at, rec) in (0u32..).zip(&self.host.recs) {
            let is = listed.get(&at).copied().unwrap_or(HostOn::Nothing);
            ensure!(rec.on == HostOn::Moving || rec.on == is, "host frame {at} says {:?}, lists say {is:?}", rec.on);
            ahead[usize::from(self.host.class_of(at))] += u32::from(self.host.is_ahead(at));
            let page = self.pages.get(rec.page as usize).filter(|p| p.host == at);
            ensure!(page.is_some() || is == HostOn::Nothing, "host frame {at} is on {is:?} and of no page");
            if let Some(page) = page.filter(|p| self.has_nvme() && !p.writing()) {
                let want = self.host_list_of(rec.page, at);
                ensure!(rec.on == want, "host frame {at} is on {:?}, not {want:?}: {page:?}", rec.on);
                let evictable = matches!(rec.on, HostOn::Clean | HostOn::Double | HostOn::Ahead);
                let may = page.on_disk() && page.loads == 0;
                ensure!(!evictable || may, "host frame {at} may be taken: {page:?}");
            }
        }
        for (class, c) in self.host.classes.iter().enumerate() {
            ensure!(
                c.unconsumed == ahead[class],
                "host class {class}: {} unconsumed, not {}",
                c.unconsumed,
                ahead[class]
            );
        }
        Ok(())
    }

    /// Slots have one block each, and what is on disk has a slot.
    pub(super) fn check_disk(&self) -> Result<(), String> {
        let mut used = 0;
        for (b, block) in (0u32..).zip(&self.blocks.recs) {
            let on_disk = self.pages_of(b).any(|p| self.pages[p as usize].on_disk());
            if block.slot == NONE {
                ensure!(!on_disk, "block {b} is on disk without a slot");
                continue;
            }
            let place = self.disk.place(block.slot);
            used += u32::from(place == Place::Hot);
            ensure!(matches!(place, Place::Hot | Place::Gone), "slot {} of block {b} is {place:?}", block.slot);
            let moves = self.transfers.recs.iter().any(|t| t.live && t.block == b);
            ensure!(place == Place::Hot || moves || !block.live(), "block {b} has a slot that is gone");
            ensure!(self.disk.owner(block.slot) == b, "slot {} is not block {b}'s", block.slot);
            let keeps = !matches!(block.state, BlockState::Free | BlockState::Dropping);
            ensure!(keeps, "block {b} is {:?} and has a slot", block.state);
            let stale = block.state == BlockState::Unsealed && !block.parked && on_disk;
            ensure!(!stale || self.resuming(b), "block {b} is being filled and on disk");
        }
        let (hot, kept) = (self.disk.used - self.disk.cold, self.disk.kept());
        ensure!(used == hot, "{hot} slots of blocks, counted {used}");
        let counted = self.disk.count().0;
        ensure!(counted == kept, "slots free, used, cold, in limbo, bad: {kept:?}, counted {counted:?}");
        Ok(())
    }

    /// A block whose resume is under way keeps its copies until all of it is back.
    fn resuming(&self, b: u32) -> bool {
        let session = self.sessions.get(usize::from(self.blocks[b].home));
        session.is_some_and(|s| s.ops.recs.iter().any(|o| o.started))
    }
}
