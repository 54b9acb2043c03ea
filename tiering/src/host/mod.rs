//! Host frames: slabs granted by the node, each of one size class, and the users of their frames.
//!
//! With an NVMe tier, every frame that can be reused now or after a write is in a list of its class.

use crate::api::{HostFrame, NONE};
use crate::error::Error;
use crate::lists::{Links, List, linked};
use serde::{Deserialize, Serialize};

/// `page` of a frame that a lost session or a late job may still write or read.
pub(crate) const QUARANTINED: u32 = NONE - 1;
/// Slab ids are below this.
pub(crate) const SLABS_MAX: u32 = 1 << 16;

/// List that a host frame is in, besides the free and quarantine lists. Without an NVMe tier: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostOn {
    /// Free, quarantined, used by a copy in or out, or holding a page that must stay.
    Nothing,
    /// Not on disk: must be written before it can be evicted. Oldest first.
    Dirty,
    /// Evictable at once. In order of last read.
    Clean,
    /// Evictable at once; its page stays in tier 0.
    AlsoInTier0,
    /// Evictable at once, but read ahead and not used yet. Soonest use first.
    ReadAhead,
    /// Not on disk because it was not admitted there: eviction removes its cache entry. Least recently used first.
    NotAdmitted,
    /// In the list of the transfer that reads or writes it.
    Moving,
}

/// One host frame: free (in its slab's list), quarantined (in a session's list), or assigned to a page.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HostRec {
    links: Links,
    /// Page that it holds or receives.
    pub page: u32,
    /// The space's step clock when the page was last needed.
    pub stamp: u32,
    slab: u16,
    pub on: HostOn,
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
pub(crate) struct HostClass {
    /// Frames granted.
    pub granted: u64,
    /// Frames that hold or receive a page.
    pub used: u64,
    /// Unallocated frames that a lost session or a late copy may still write or read.
    pub quarantined: u64,
    /// Frames of the slab being drained.
    pub draining: u64,
    /// Frames of that slab that hold no page.
    pub drained: u64,
    /// Frames that admitted pages may need at once.
    pub committed: u64,
    /// A NeedSlab was sent and not answered yet.
    pub asked: bool,
    /// The node refused, and no memory has been freed anywhere since.
    pub refused: bool,
    /// Earliest time of the next request after a refusal, in microseconds.
    pub ask_again_us: u64,
    /// Refusals since the last grant.
    pub refusals: u32,
    /// A caller must store a page and finds no frame. Pages that are only in host move back to tier 0 if their session has room
    /// for them there.
    pub reclaiming: bool,
    /// Until this time, in microseconds, stores leave free frames to demand reads; 0: no demand read lacks a frame.
    pub reader_waits_until: u64,
    /// Position where the search for such pages continues.
    pub search: u32,
    pub dirty: List,
    pub clean: List,
    pub also_in_tier0: List,
    pub read_ahead: List,
    pub not_admitted: List,
    /// Frames read ahead, or being read, and not used yet: in `read_ahead`, moving, or being loaded.
    pub read_ahead_frames: u32,
    /// Loads in flight of live sessions.
    pub loading: u32,
    /// Frames into which live sessions copy blocks of their own.
    pub gathering: u32,
    /// Frames being written to NVMe.
    pub writing: u32,
    /// Frames shown by mapped frames.
    pub mapped: u32,
    /// Mapped frames to be unmapped because a caller found no frame.
    pub to_unmap: u32,
    /// No page is mapped before the space's step clock reaches this value.
    pub no_mapping_until: u32,
    /// Allocations that found no frame since the class was last cleaned for them.
    pub shortage: u32,
    /// A scan evicts pages that will be needed again. Dirty pages that are also in tier 0 could be evicted instead if they were
    /// written.
    pub short: bool,
    /// Write-back continues until the high watermark.
    pub cleaning: bool,
    /// Slabs with a free frame.
    open: List,
}

impl HostClass {
    fn list(&mut self, on: HostOn) -> Option<&mut List> {
        match on {
            HostOn::Nothing | HostOn::Moving => None,
            HostOn::Dirty => Some(&mut self.dirty),
            HostOn::Clean => Some(&mut self.clean),
            HostOn::AlsoInTier0 => Some(&mut self.also_in_tier0),
            HostOn::ReadAhead => Some(&mut self.read_ahead),
            HostOn::NotAdmitted => Some(&mut self.not_admitted),
        }
    }

    /// Return the number of frames that hold a page and can be evicted at once.
    pub fn evictable(&self) -> u64 {
        [self.clean, self.also_in_tier0, self.read_ahead, self.not_admitted]
            .iter()
            .map(|list| u64::from(list.len))
            .sum()
    }

    /// Return the number of frames that can be used.
    pub fn usable(&self) -> u64 {
        self.granted.saturating_sub(self.quarantined + self.draining)
    }

    /// Return true if the node has refused one request and is asked again at `ask_again_us`.
    pub fn is_refused_once(&self) -> bool {
        self.refused && self.refusals == 1
    }
}

/// All host memory of the space.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    pub classes: Vec<HostClass>,
    pub recs: Vec<HostRec>,
    /// Size of the largest grant so far, in bytes.
    pub slab_bytes: u64,
    slabs: Vec<Slab>,
    /// Record ranges of returned slabs: base, frames.
    holes: Vec<(u32, u32)>,
}

impl Host {
    pub fn new(classes: usize) -> Host {
        Host { classes: vec![HostClass::default(); classes], ..Host::default() }
    }

    /// Add a granted slab. Allocates memory; grants are rare.
    pub fn grant(&mut self, class: u8, slab: u32, frames: u32) -> Result<(), Error> {
        let refuse = |why| Err(Error::Slab { slab, why });
        if slab >= SLABS_MAX {
            return refuse("id must be below 65,536");
        }
        if frames == 0 || u64::from(frames) + self.recs.len() as u64 >= u64::from(QUARANTINED) {
            return refuse("frame count is 0 or exceeds the range of frame ids");
        }
        if usize::from(class) >= self.classes.len() {
            return refuse("no such size class");
        }
        if self.slabs.get(slab as usize).is_some_and(|s| s.live) {
            return refuse("id is in use");
        }
        if self.slabs.len() <= slab as usize {
            self.slabs.resize(slab as usize + 1, Slab::default());
        }
        let rec = HostRec {
            links: Links::default(),
            page: NONE,
            stamp: 0,
            slab: slab as u16,
            on: HostOn::Nothing,
            mappings: 0,
            read_ahead: false,
            late: 0,
        };
        let base = match self.holes.iter().position(|&(_, n)| n == frames) {
            Some(hole) => {
                let (base, n) = self.holes.swap_remove(hole);
                self.recs[base as usize..(base + n) as usize].fill(rec);
                base
            }
            None => {
                let base = self.recs.len() as u32;
                self.recs.resize((base + frames) as usize, rec);
                base
            }
        };
        let mut free = List::default();
        for at in base..base + frames {
            free.push_back(&mut self.recs, at);
        }
        self.slabs[slab as usize] =
            Slab { links: Links::default(), live: true, class, base, frames, free, draining: false };
        let c = &mut self.classes[usize::from(class)];
        c.open.push_back(&mut self.slabs, slab);
        c.granted += u64::from(frames);
        Ok(())
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

    /// Append a page's frame to a list. A frame that is in that list already keeps its position.
    pub fn enlist(&mut self, at: u32, on: HostOn) {
        if self.recs[at as usize].on == on {
            return;
        }
        self.unlist(at);
        self.recs[at as usize].on = on;
        let class = usize::from(self.class_of(at));
        if let Some(list) = self.classes[class].list(on) {
            list.push_back(&mut self.recs, at);
        }
    }

    /// Remove a page's frame from its list. A moving frame has already been removed from its transfer's list by the transfer.
    pub fn unlist(&mut self, at: u32) {
        let on = std::mem::replace(&mut self.recs[at as usize].on, HostOn::Nothing);
        let class = usize::from(self.class_of(at));
        if let Some(list) = self.classes[class].list(on) {
            list.remove(&mut self.recs, at);
        }
    }

    /// Move a dirty frame that cannot be written now behind the others.
    pub fn pass_over(&mut self, at: u32) {
        if self.recs[at as usize].on == HostOn::Dirty {
            let class = usize::from(self.class_of(at));
            self.classes[class].dirty.move_back(&mut self.recs, at);
        }
    }

    /// Mark the frame as read ahead, or its page as used. Return whether that changed anything.
    pub fn set_read_ahead(&mut self, at: u32, read_ahead: bool) -> bool {
        let before = std::mem::replace(&mut self.recs[at as usize].read_ahead, read_ahead);
        let class = usize::from(self.class_of(at));
        let count = &mut self.classes[class].read_ahead_frames;
        *count = *count + u32::from(read_ahead) - u32::from(before);
        before != read_ahead
    }

    pub fn is_read_ahead(&self, at: u32) -> bool {
        self.recs[at as usize].read_ahead
    }

    /// Count one more, or one fewer, mapped frame that shows the frame.
    pub fn count_mapping(&mut self, at: u32, more: bool) {
        let rec = &mut self.recs[at as usize];
        let before = rec.mappings;
        rec.mappings = if more { before + 1 } else { before - 1 };
        let class = usize::from(self.class_of(at));
        let mapped = &mut self.classes[class].mapped;
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
        let slab = u32::from(self.recs[at as usize].slab);
        let class = usize::from(self.slabs[slab as usize].class);
        self.classes[class].used -= 1;
        if self.recs[at as usize].late > 0 {
            self.classes[class].quarantined += 1;
            self.recs[at as usize].page = QUARANTINED;
            return;
        }
        self.put_back(at, slab);
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
            let slab = u32::from(rec.slab);
            let class = usize::from(self.slabs[slab as usize].class);
            self.classes[class].quarantined -= 1;
            self.put_back(at, slab);
        }
    }

    /// Return the number of late copies that may still write or read the frame.
    pub fn late(&self, at: u32) -> u16 {
        self.recs[at as usize].late
    }

    fn put_back(&mut self, at: u32, slab: u32) {
        self.recs[at as usize].page = NONE;
        let s = &mut self.slabs[slab as usize];
        s.free.push_front(&mut self.recs, at);
        let class = usize::from(s.class);
        if s.draining {
            self.classes[class].drained += 1;
        } else if s.free.len == 1 {
            self.classes[class].open.push_back(&mut self.slabs, slab);
        }
    }

    /// Move a page's frame to the quarantine `list` until every process that may write it has exited.
    pub fn quarantine(&mut self, list: &mut List, at: u32) {
        let class = usize::from(self.class_of(at));
        self.classes[class].used -= 1;
        self.classes[class].quarantined += 1;
        self.recs[at as usize].page = QUARANTINED;
        list.push_back(&mut self.recs, at);
    }

    /// Free one frame of a quarantine list. Return false if the list is empty.
    pub fn unquarantine(&mut self, list: &mut List) -> bool {
        let Some(at) = list.pop_front(&mut self.recs) else { return false };
        let slab = u32::from(self.recs[at as usize].slab);
        let class = usize::from(self.slabs[slab as usize].class);
        self.classes[class].quarantined -= 1;
        self.put_back(at, slab);
        true
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

    /// Return the location of a frame as jobs name it.
    pub fn location(&self, at: u32) -> HostFrame {
        let slab = self.recs[at as usize].slab;
        HostFrame { slab: u32::from(slab), slot: at - self.slabs[usize::from(slab)].base }
    }

    /// Return the number of free frames of a class.
    pub fn free_frames(&self, class: u8) -> u64 {
        let c = &self.classes[usize::from(class)];
        c.granted - c.used - c.quarantined - c.drained
    }

    /// Stop allocating frames of the slab.
    pub fn drain(&mut self, slab: u32) {
        let s = &mut self.slabs[slab as usize];
        s.draining = true;
        let (class, frames, free) = (usize::from(s.class), s.frames, s.free.len);
        let c = &mut self.classes[class];
        (c.draining, c.drained) = (frames.into(), free.into());
        if free > 0 {
            c.open.remove(&mut self.slabs, slab);
        }
    }

    /// Cancel draining: the slab stays.
    pub fn stop_draining(&mut self, slab: u32) {
        let s = &mut self.slabs[slab as usize];
        s.draining = false;
        let (class, free) = (usize::from(s.class), s.free.len);
        let c = &mut self.classes[class];
        (c.draining, c.drained) = (0, 0);
        if free > 0 {
            c.open.push_back(&mut self.slabs, slab);
        }
    }

    /// Return the slab of a frame.
    pub fn slab_of(&self, at: u32) -> u32 {
        self.recs[at as usize].slab.into()
    }

    /// Return the record range of a slab's frames.
    pub fn frames_of(&self, slab: u32) -> std::ops::Range<u32> {
        let s = &self.slabs[slab as usize];
        s.base..s.base + s.frames
    }

    /// Return the number of free frames of a slab.
    pub fn free_in(&self, slab: u32) -> u32 {
        self.slabs[slab as usize].free.len
    }

    /// Return a slab of the class with all frames free, if at least `keep` free frames remain without it.
    pub fn idle_slab(&self, class: u8, keep: u64) -> Option<u32> {
        let c = &self.classes[usize::from(class)];
        let free = self.free_frames(class);
        c.open.iter(&self.slabs).find(|&s| {
            let slab = &self.slabs[s as usize];
            slab.free.len == slab.frames && free - u64::from(slab.frames) >= keep
        })
    }

    /// Remove a slab with all frames free.
    pub fn remove(&mut self, slab: u32) {
        let s = std::mem::take(&mut self.slabs[slab as usize]);
        self.slabs[slab as usize].links = s.links;
        let c = &mut self.classes[usize::from(s.class)];
        if s.draining {
            (c.draining, c.drained) = (0, 0);
        } else {
            c.open.remove(&mut self.slabs, slab);
        }
        c.granted -= u64::from(s.frames);
        self.holes.push((s.base, s.frames));
    }

    /// Return the bytes of all vectors.
    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<HostRec>()
            + self.slabs.capacity() * size_of::<Slab>()
            + self.holes.capacity() * size_of::<(u32, u32)>()
            + self.classes.capacity() * size_of::<HostClass>()
    }

    /// Count the frames of a class in free lists by walking them; for checks.
    pub fn count_free(&self, class: u8) -> u64 {
        self.slabs
            .iter()
            .filter(|s| s.live && !s.draining && s.class == class)
            .map(|s| s.free.iter(&self.recs).count() as u64)
            .sum()
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
                    _ => if let Some(slab) = host.idle_slab((n % 2) as u8, 0) {
                        host.remove(slab);
                        prop_assert!(slabs.remove(&slab));
                    },
                }
                let used: u64 = host.classes.iter().map(|c| c.used).sum();
                let jailed: u64 = host.classes.iter().map(|c| c.quarantined).sum();
                prop_assert_eq!(used, live.len() as u64);
                prop_assert_eq!(jailed, u64::from(jail.len));
                for class in 0..2 {
                    prop_assert_eq!(host.count_free(class), host.free_frames(class));
                }
                let places: BTreeSet<_> = live.iter().map(|&at| { let h = host.location(at); (h.slab, h.slot) }).collect();
                prop_assert_eq!(places.len(), live.len());
            }
        }
    }
}
