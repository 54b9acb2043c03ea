//! Host frames: slabs that the node granted, each of one size class, and who uses which frame.
//!
//! With an NVMe tier every frame whose page could give it up now or after a write stands in a list of its class.

use crate::api::{HostFrame, NONE};
use crate::error::Error;
use crate::lists::{Linked, Links, List};
use serde::{Deserialize, Serialize};

/// `page` of a frame that a lost session, or a job that is late, may still write or read.
pub(crate) const QUARANTINED: u32 = NONE - 1;
/// Slab ids are below this.
pub(crate) const SLABS_MAX: u32 = 1 << 16;

/// Which list a host frame stands in, beside the free and quarantine lists. Without an NVMe tier: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostOn {
    /// Free, quarantined, or in use: by a load or a store, or of a page that must stay.
    Nothing,
    /// Not on disk: must be written before it can be evicted. Oldest first.
    Dirty,
    /// Evictable at once. In the order in which the pages were read last.
    Clean,
    /// Evictable at once, and its page is in tier 0 to stay.
    Double,
    /// Evictable at once, but read ahead and not consumed yet. Soonest use first.
    Ahead,
    /// Not on disk, and refused there: its content goes with it. Least recently used first.
    Spare,
    /// In the list of the transfer that reads or writes it.
    Moving,
}

/// One host frame: free (in its slab's list), quarantined (in a session's list), or of a page.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HostRec {
    links: Links,
    /// Whose content is in it or is being stored into it.
    pub page: u32,
    /// The space's step clock when its page was needed last.
    pub stamp: u32,
    slab: u16,
    pub on: HostOn,
    /// Window frames that show it, or are about to, or may still.
    windows: u16,
    /// Read ahead of use, and not consumed yet.
    ahead: bool,
    /// Late copies that may still write or read it.
    late: u16,
}

impl Linked for HostRec {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Slab {
    links: Links,
    live: bool,
    class: u8,
    base: u32,
    frames: u32,
    free: List,
    /// It is to go back to the node: none of its frames is handed out, and it is not in `open`.
    draining: bool,
}

impl Linked for Slab {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Host frames of one size class.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HostClass {
    /// Frames granted.
    pub granted: u64,
    /// Frames that hold or receive a page.
    pub used: u64,
    /// Unallocated frames that a lost session or a late copy may still write or read.
    pub quarantined: u64,
    /// Frames of the slab that is drained.
    pub draining: u64,
    /// Those of them that hold no page.
    pub drained: u64,
    /// Frames that admitted pages may need at once.
    pub demand: u64,
    /// A NeedSlab was sent and not answered.
    pub asked: bool,
    /// The node refused since memory was last freed anywhere.
    pub refused: bool,
    /// It is not asked again before.
    pub ask_again_us: u64,
    /// Somebody must store a page and finds no frame: pages that are only in host, though their session has room for them in
    /// tier 0, go back there.
    pub squeezed: bool,
    /// Stores leave free frames to demand reads until this time, in microseconds; 0: no demand read lacks a frame.
    pub reader_waits_until: u64,
    /// Where the search for such pages goes on.
    pub search: u32,
    pub dirty: List,
    pub clean: List,
    pub double: List,
    pub ahead: List,
    pub spare: List,
    /// Frames that were read ahead, or are being so, and are not consumed: in `ahead`, moving, or read by a load.
    pub unconsumed: u32,
    /// Loads in flight of live sessions.
    pub loading: u32,
    /// Frames that live sessions copy blocks of their own into.
    pub gathering: u32,
    /// Frames that are being written to NVMe.
    pub writing: u32,
    /// Frames that windows show.
    pub windowed: u32,
    /// Windows that are to give way, since somebody found no frame.
    pub shed: u32,
    /// No page is shown in a window before the space's step clock says so.
    pub no_windows_until: u32,
    /// Work that found no frame since frames were last cleaned for it.
    pub starved: u32,
    /// A scan takes frames from pages that will be needed: what is dirty may be in tier 0 too, and would give way if it were
    /// written.
    pub short: bool,
    /// Writing down goes on until the high watermark.
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
            HostOn::Double => Some(&mut self.double),
            HostOn::Ahead => Some(&mut self.ahead),
            HostOn::Spare => Some(&mut self.spare),
        }
    }

    /// Frames that hold a page and can be had at once.
    pub fn evictable(&self) -> u64 {
        [self.clean, self.double, self.ahead, self.spare].iter().map(|list| u64::from(list.len)).sum()
    }

    /// Frames that are there to be used.
    pub fn usable(&self) -> u64 {
        self.granted.saturating_sub(self.quarantined + self.draining)
    }
}

/// All host memory of the space.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    pub classes: Vec<HostClass>,
    pub recs: Vec<HostRec>,
    /// Bytes of the largest grant so far.
    pub slab_bytes: u64,
    slabs: Vec<Slab>,
    /// Record ranges of returned slabs: base, frames.
    holes: Vec<(u32, u32)>,
}

impl Host {
    pub fn new(classes: usize) -> Host {
        Host { classes: vec![HostClass::default(); classes], ..Host::default() }
    }

    /// Takes a grant in. Allocates: grants are rare.
    pub fn grant(&mut self, class: u8, slab: u32, frames: u32) -> Result<(), Error> {
        let refuse = |why| Err(Error::Slab { slab, why });
        if slab >= SLABS_MAX {
            return refuse("id is not below 65,536");
        }
        if frames == 0 || u64::from(frames) + self.recs.len() as u64 >= u64::from(QUARANTINED) {
            return refuse("frames are none or more than can be counted");
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
            windows: 0,
            ahead: false,
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

    /// Gives a page a frame, if one is free.
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

    /// Puts a page's frame at the end of a list; one that stands there keeps its place.
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

    /// Takes a page's frame out of the list it stands in. A moving one's transfer has taken it out of its own.
    pub fn unlist(&mut self, at: u32) {
        let on = std::mem::replace(&mut self.recs[at as usize].on, HostOn::Nothing);
        let class = usize::from(self.class_of(at));
        if let Some(list) = self.classes[class].list(on) {
            list.remove(&mut self.recs, at);
        }
    }

    /// A dirty frame that cannot be written now goes behind the others.
    pub fn pass_over(&mut self, at: u32) {
        if self.recs[at as usize].on == HostOn::Dirty {
            let class = usize::from(self.class_of(at));
            self.classes[class].dirty.move_back(&mut self.recs, at);
        }
    }

    /// The frame was read ahead of use, or its page has been consumed. Says whether that changed anything.
    pub fn set_ahead(&mut self, at: u32, ahead: bool) -> bool {
        let before = std::mem::replace(&mut self.recs[at as usize].ahead, ahead);
        let class = usize::from(self.class_of(at));
        let count = &mut self.classes[class].unconsumed;
        *count = *count + u32::from(ahead) - u32::from(before);
        before != ahead
    }

    pub fn is_ahead(&self, at: u32) -> bool {
        self.recs[at as usize].ahead
    }

    /// One more window shows the frame, or one less.
    pub fn count_window(&mut self, at: u32, more: bool) {
        let rec = &mut self.recs[at as usize];
        let before = rec.windows;
        rec.windows = if more { before + 1 } else { before - 1 };
        let class = usize::from(self.class_of(at));
        let windowed = &mut self.classes[class].windowed;
        match (before, more) {
            (0, _) => *windowed += 1,
            (1, false) => *windowed -= 1,
            _ => {}
        }
    }

    /// Windows that show the frame, are about to, or may still.
    pub fn windows(&self, at: u32) -> u16 {
        self.recs[at as usize].windows
    }

    /// Frees the frame of a page; one that late copies may still touch is quarantined until they have ended.
    pub fn free(&mut self, at: u32) {
        self.unlist(at);
        self.set_ahead(at, false);
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

    /// A copy that may still write or read the frame is late.
    pub fn begin_late(&mut self, at: u32) {
        self.recs[at as usize].late += 1;
    }

    /// A late copy of the frame has ended, or its process has exited.
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

    /// Late copies that may still write or read the frame.
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

    /// Sets a page's frame aside in `list` until whoever may write it is gone.
    pub fn quarantine(&mut self, list: &mut List, at: u32) {
        let class = usize::from(self.class_of(at));
        self.classes[class].used -= 1;
        self.classes[class].quarantined += 1;
        self.recs[at as usize].page = QUARANTINED;
        list.push_back(&mut self.recs, at);
    }

    /// Frees one frame of a quarantine list.
    pub fn unquarantine(&mut self, list: &mut List) -> bool {
        let Some(at) = list.pop_front(&mut self.recs) else { return false };
        let slab = u32::from(self.recs[at as usize].slab);
        let class = usize::from(self.slabs[slab as usize].class);
        self.classes[class].quarantined -= 1;
        self.put_back(at, slab);
        true
    }

    /// Frames in quarantine.
    pub fn quarantined(&self) -> u64 {
        self.classes.iter().map(|class| class.quarantined).sum()
    }

    /// Size class of a frame.
    pub fn class_of(&self, at: u32) -> u8 {
        self.slabs[usize::from(self.recs[at as usize].slab)].class
    }

    /// The page that a frame of that class holds or receives.
    pub fn page_in(&self, at: u32, class: u8) -> Option<u32> {
        let rec = &self.recs[at as usize];
        let slab = &self.slabs[usize::from(rec.slab)];
        (slab.live && slab.class == class && rec.page < QUARANTINED).then_some(rec.page)
    }

    /// Where a frame is, as jobs name it.
    pub fn location(&self, at: u32) -> HostFrame {
        let slab = self.recs[at as usize].slab;
        HostFrame { slab: u32::from(slab), slot: at - self.slabs[usize::from(slab)].base }
    }

    /// Free frames of a class.
    pub fn free_frames(&self, class: u8) -> u64 {
        let c = &self.classes[usize::from(class)];
        c.granted - c.used - c.quarantined - c.drained
    }

    /// From now on no frame of the slab is handed out.
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

    /// The slab stays after all.
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

    /// Slab of a frame.
    pub fn slab_of(&self, at: u32) -> u32 {
        self.recs[at as usize].slab.into()
    }

    /// Records of a slab's frames.
    pub fn frames_of(&self, slab: u32) -> std::ops::Range<u32> {
        let s = &self.slabs[slab as usize];
        s.base..s.base + s.frames
    }

    /// Free frames of a slab.
    pub fn free_in(&self, slab: u32) -> u32 {
        self.slabs[slab as usize].free.len
    }

    /// A wholly free slab of the class that can go while at least `keep` free frames stay.
    pub fn idle_slab(&self, class: u8, keep: u64) -> Option<u32> {
        let c = &self.classes[usize::from(class)];
        let free = self.free_frames(class);
        c.open.iter(&self.slabs).find(|&s| {
            let slab = &self.slabs[s as usize];
            slab.free.len == slab.frames && free - u64::from(slab.frames) >= keep
        })
    }

    /// Takes a wholly free slab out.
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

    /// Bytes of all vectors.
    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<HostRec>()
            + self.slabs.capacity() * size_of::<Slab>()
            + self.holes.capacity() * size_of::<(u32, u32)>()
            + self.classes.capacity() * size_of::<HostClass>()
    }

    /// Frames of a class that stand in free lists, counted the slow way.
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
