//! Host memory of a space: the frames of its slabs, what they hold, and who waits for one.
//!
//! Slabs are granted by the node, each of one size class. With an NVMe tier, every frame that can be reused now or after a write
//! is in a list of its class. All fields are private to this folder, which knows pages by number only, and no block, session or
//! disk: who uses a frame, and what may be evicted, is decided by the callers.
//!
//! - `slabs`: slabs, from the grant to the return
//! - `lists`: lists of frames in order of eviction, and frames in transfers
//! - `demand`: what callers lack, and what the node was asked for
//! - `drain`: the slab that is being emptied for another space
//! - `check`: consistency of the tables

mod check;
mod demand;
mod drain;
mod lists;
mod slabs;

pub(crate) use drain::Drained;
pub(crate) use lists::HostOn;
pub(crate) use slabs::{SLABS_MAX, Spare};

use crate::api::NONE;
use crate::config::Class;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// `page` of a frame that a lost session or a late job may still write or read.
const QUARANTINED: u32 = NONE - 1;

/// One host frame: free (in its slab's list), quarantined (in a session's list), or assigned to a page.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct HostRec {
    links: Links,
    /// Page that it holds or receives.
    page: u32,
    /// The space's step clock when the page was last needed.
    stamp: u32,
    slab: u16,
    on: HostOn,
    /// Mapped frames that show it, are about to, or may still show it.
    mappings: u16,
    /// Read ahead and not used yet.
    read_ahead: bool,
    /// Late copies that may still write or read it.
    late: u16,
}

linked!(HostRec.links);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Slab {
    links: Links,
    live: bool,
    class: u8,
    base: u32,
    frames: u32,
    free: List,
    /// To be returned to the node: its frames are not allocated, and it is not in `open`.
    draining: bool,
}

linked!(Slab.links);

/// Host frames of one size class.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct HostClass {
    /// Frames granted.
    granted: u64,
    /// Frames that hold or receive a page.
    used: u64,
    /// Unallocated frames that a lost session or a late copy may still write or read.
    quarantined: u64,
    /// Frames of the slab being drained.
    draining: u64,
    /// Frames of that slab that hold no page.
    drained: u64,
    /// Frames that admitted pages may need at once.
    committed: u64,
    /// A NeedSlab was sent and not answered yet.
    asked: bool,
    /// The node refused, and no memory has been freed anywhere since.
    refused: bool,
    /// Earliest time of the next request after a refusal, in microseconds.
    ask_again_us: u64,
    /// Refusals since the last grant.
    refusals: u32,
    /// A caller must store a page and finds no frame. Pages that are only in host move back to tier 0 if their session has room
    /// for them there.
    reclaiming: bool,
    /// Until this time, in microseconds, stores leave free frames to demand reads; 0: no demand read lacks a frame.
    reader_waits_until: u64,
    /// Position where the search for such pages continues.
    search: u32,
    /// By [`HostOn`], from `Dirty` to `NotAdmitted`.
    lists: [List; 5],
    /// Frames read ahead, or being read, and not used yet: in `ReadAhead`, moving, or being loaded.
    read_ahead_frames: u32,
    /// Copies in flight of live sessions: loads, and blocks of their own that they copy to host.
    copying: u32,
    /// Frames being written to NVMe.
    writing: u32,
    /// Frames shown by mapped frames.
    mapped: u32,
    /// Mapped frames to be unmapped because a caller found no frame.
    to_unmap: u32,
    /// No page is mapped before the space's step clock reaches this value.
    no_mapping_until: u32,
    /// Allocations that found no frame since the class was last cleaned for them.
    shortage: u32,
    /// A scan evicts pages that will be needed again. Dirty pages that are also in tier 0 could be evicted instead if they were
    /// written.
    short: bool,
    /// Write-back continues until the high watermark.
    cleaning: bool,
    /// Slabs with a free frame.
    open: List,
}

/// All host memory of the space.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    classes: Vec<HostClass>,
    recs: Vec<HostRec>,
    /// Size of the largest grant so far, in bytes.
    slab_bytes: u64,
    slabs: Vec<Slab>,
    /// Record ranges of returned slabs: base, frames.
    holes: Vec<(u32, u32)>,
    /// The slab that is being emptied for another space.
    drain: Option<drain::Drain>,
    /// A caller waits for a frame.
    wanted: bool,
}

impl Host {
    pub fn new(classes: usize) -> Host {
        Host { classes: vec![HostClass::default(); classes], ..Host::default() }
    }

    fn of(&self, class: u8) -> &HostClass {
        &self.classes[usize::from(class)]
    }

    fn of_mut(&mut self, class: u8) -> &mut HostClass {
        &mut self.classes[usize::from(class)]
    }

    /// Return the number of frames, of slabs here and returned. Ids are below it.
    pub fn len(&self) -> u32 {
        self.recs.len() as u32
    }

    /// Assign a free frame to a page, if there is one.
    pub fn alloc(&mut self, class: u8, page: u32) -> Option<u32> {
        let c = &mut self.classes[usize::from(class)];
        let slab = c.open.head;
        if slab == NONE {
            return None;
        }
        let s = &mut self.slabs[slab as usize];
        let at = s.free.pop_front(&mut self.recs)?;
        if s.free.is_empty() {
            c.open.remove(&mut self.slabs, slab);
        }
        c.used += 1;
        self.recs[at as usize].page = page;
        Some(at)
    }

    /// Count one more, or one fewer, mapped frame that shows the frame.
    pub fn count_mapping(&mut self, at: u32, more: bool) {
        let rec = &mut self.recs[at as usize];
        let before = rec.mappings;
        rec.mappings = if more { before + 1 } else { before - 1 };
        let class = self.class_of(at);
        let mapped = &mut self.of_mut(class).mapped;
        match (before, more) {
            (0, _) => *mapped += 1,
            (1, false) => *mapped -= 1,
            _ => {}
        }
    }

    /// Return the number of mapped frames that show the frame, are about to, or may still show it.
    pub fn mappings(&self, at: u32) -> u16 {
        self.recs[at as usize].mappings
    }

    /// Free the frame of a page. A frame that late copies may still access is quarantined until they end.
    pub fn free(&mut self, at: u32) {
        self.unlist(at);
        self.set_read_ahead(at, false);
        if self.recs[at as usize].late > 0 {
            return self.confine(at);
        }
        let class = self.class_of(at);
        self.of_mut(class).used -= 1;
        self.put_back(at);
    }

    fn confine(&mut self, at: u32) {
        let class = self.class_of(at);
        let c = self.of_mut(class);
        (c.used, c.quarantined) = (c.used - 1, c.quarantined + 1);
        self.recs[at as usize].page = QUARANTINED;
    }

    fn release(&mut self, at: u32) {
        let class = self.class_of(at);
        self.of_mut(class).quarantined -= 1;
        self.put_back(at);
    }

    /// Count a late copy that may still write or read the frame.
    pub fn begin_late(&mut self, at: u32) {
        self.recs[at as usize].late += 1;
    }

    /// Remove a late copy of the frame: the copy has ended, or its process has exited.
    pub fn end_late(&mut self, at: u32) {
        let rec = &mut self.recs[at as usize];
        rec.late -= 1;
        if rec.late == 0 && rec.page == QUARANTINED {
            self.release(at);
        }
    }

    /// Return the number of late copies that may still write or read the frame.
    pub fn late(&self, at: u32) -> u16 {
        self.recs[at as usize].late
    }

    /// Move a page's frame to the quarantine `list` until every process that may write it has exited.
    pub fn quarantine(&mut self, list: &mut List, at: u32) {
        self.confine(at);
        list.push_back(&mut self.recs, at);
    }

    /// Free one frame of a quarantine list. Return false if the list is empty.
    pub fn unquarantine(&mut self, list: &mut List) -> bool {
        let at = list.pop_front(&mut self.recs);
        at.into_iter().for_each(|at| self.release(at));
        at.is_some()
    }

    /// Return whether frames of the class are in quarantine.
    pub fn has_quarantined(&self, class: u8) -> bool {
        self.of(class).quarantined > 0
    }

    /// Return the number of frames in quarantine.
    pub fn quarantined(&self) -> u64 {
        self.classes.iter().map(|class| class.quarantined).sum()
    }

    /// Return the size class of a frame.
    pub fn class_of(&self, at: u32) -> u8 {
        self.slabs[usize::from(self.recs[at as usize].slab)].class
    }

    /// Return the page that a frame of that class holds or receives.
    pub fn page_in(&self, at: u32, class: u8) -> Option<u32> {
        let rec = &self.recs[at as usize];
        let slab = &self.slabs[usize::from(rec.slab)];
        (slab.live && slab.class == class && rec.page < QUARANTINED).then_some(rec.page)
    }

    /// Return the page that a frame holds or receives. It must have one.
    pub fn page_of(&self, at: u32) -> u32 {
        self.recs[at as usize].page
    }

    pub fn is_free(&self, at: u32) -> bool {
        self.recs[at as usize].page == NONE
    }

    /// Note that the page of a frame is needed now.
    pub fn touch(&mut self, at: u32, clock: u32) {
        self.recs[at as usize].stamp = clock;
    }

    /// Return the step clock when the page of a frame was last needed, `u32::MAX` for `NONE`.
    pub fn stamp(&self, at: u32) -> u32 {
        self.recs.get(at as usize).map_or(u32::MAX, |rec| rec.stamp)
    }

    /// Return the number of free frames of a class.
    pub fn free_frames(&self, class: u8) -> u64 {
        let c = self.of(class);
        c.granted - c.used - c.quarantined - c.drained
    }

    /// Return the number of frames of a class that can be used.
    pub fn usable(&self, class: u8) -> u64 {
        let c = self.of(class);
        c.granted.saturating_sub(c.quarantined + c.draining)
    }

    /// Return the frames of a class that are clean, dirty, busy, quarantined and free.
    pub fn states(&self, class: u8) -> [u64; 5] {
        let c = self.of(class);
        let (clean, dirty) = (c.evictable(), u64::from(c.lists[HostOn::Dirty as usize].len));
        let free = c.granted.saturating_sub(c.used + c.quarantined);
        [clean, dirty, c.used.saturating_sub(clean + dirty), c.quarantined, free]
    }

    /// Return the bytes of all frames.
    fn granted_bytes(&self, classes: &[Class]) -> u64 {
        self.classes.iter().zip(classes).map(|(c, geo)| c.granted * u64::from(geo.stride)).sum()
    }

    /// Return the bytes of the frames that are not free.
    pub fn taken_bytes(&self, classes: &[Class]) -> u64 {
        self.classes.iter().zip(classes).map(|(c, geo)| (c.used + c.quarantined) * u64::from(geo.stride)).sum()
    }

    /// Commit `now` frames of a class to pages that had `before`.
    pub fn commit(&mut self, class: u8, before: u64, now: u64) {
        let committed = &mut self.of_mut(class).committed;
        *committed = *committed + now - before;
    }

    /// Return whether the usable frames suffice for `more` pages beside the admitted ones.
    pub fn fits(&self, class: u8, more: u64) -> bool {
        self.of(class).committed + more <= self.usable(class)
    }

    /// Count one more, or one fewer, load, or copy of an engine's block to host, that callers without a frame may wait for: then
    /// the frame can be evicted, or written back.
    pub fn count_copying(&mut self, class: u8, more: bool) {
        let copying = &mut self.of_mut(class).copying;
        *copying = if more { *copying + 1 } else { *copying - 1 };
    }

    /// Return the bytes of all vectors.
    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<HostRec>()
            + self.slabs.capacity() * size_of::<Slab>()
            + self.holes.capacity() * size_of::<(u32, u32)>()
            + self.classes.capacity() * size_of::<HostClass>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn frames_are_handed_out_once(ops in prop::collection::vec((0u8..5, 0u32..64), 1..300)) {
            let mut host = Host::new(2);
            let (mut live, mut jail, mut slabs) = (BTreeSet::new(), List::default(), BTreeSet::new());
            for (op, n) in ops {
                match op {
                    0 => {
                        let (class, slab, frames) = ((n % 2) as u8, n % 8, 1 + n % 5);
                        prop_assert_eq!(host.grant(class, slab, frames).is_ok(), slabs.insert(slab));
                    }
                    1 => if let Some(at) = host.alloc((n % 2) as u8, n) {
                        prop_assert_eq!(host.class_of(at), (n % 2) as u8);
                        prop_assert!(live.insert(at));
                    },
                    2 => if let Some(&at) = live.iter().nth(n as usize % live.len().max(1)) {
                        live.remove(&at);
                        if n % 3 == 0 { host.quarantine(&mut jail, at) } else { host.free(at) }
                    },
                    3 => { host.unquarantine(&mut jail); }
                    _ => if let Some(slab) = host.return_idle((n % 2) as u8, Spare::None, 0) {
                        prop_assert!(slabs.remove(&slab));
                    },
                }
                let used: u64 = host.classes.iter().map(|c| c.used).sum();
                let jailed: u64 = host.classes.iter().map(|c| c.quarantined).sum();
                prop_assert_eq!(used, live.len() as u64);
                prop_assert_eq!(jailed, u64::from(jail.len));
                prop_assert_eq!(host.check(), Ok(()));
                let places: BTreeSet<_> = live.iter().map(|&at| { let h = host.location(at); (h.slab, h.slot) }).collect();
                prop_assert_eq!(places.len(), live.len());
            }
        }
    }
}
