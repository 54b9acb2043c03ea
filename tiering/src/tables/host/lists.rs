//! Lists of frames in order of eviction, and frames in transfers.

use super::{Host, HostClass};
use crate::api::{IoKind, NONE};
use crate::lists::{Linked, List};
use serde::{Deserialize, Serialize};

/// List that a host frame is in, besides the free and quarantine lists. Without an NVMe tier: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostOn {
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
    /// Free, quarantined, used by a copy in or out, or holding a page that must stay.
    #[default]
    Nothing,
    /// In the list of the transfer that reads or writes it.
    Moving,
}

impl HostClass {
    /// Return the number of frames that hold a page and can be evicted at once.
    pub(super) fn evictable(&self) -> u64 {
        self.listed() - u64::from(self.lists[HostOn::Dirty as usize].len)
    }

    fn listed(&self) -> u64 {
        self.lists.iter().map(|list| u64::from(list.len)).sum()
    }
}

impl Host {
    /// Return the list that a frame is in.
    pub fn list_of(&self, at: u32) -> HostOn {
        self.recs[at as usize].on
    }

    /// Return the first frame of a list of a class, `NONE` if it is empty.
    pub fn first(&self, class: u8, on: HostOn) -> u32 {
        self.of(class).lists[on as usize].head
    }

    /// Return the clean frame and the read-ahead frame of a class that are needed last, without those whose pages are `awaited`.
    pub fn last_needed(&self, class: u8, awaited: impl Fn(u32) -> bool) -> [u32; 2] {
        [HostOn::Clean, HostOn::ReadAhead].map(|on| {
            let mut at = self.of(class).lists[on as usize].tail;
            while at != NONE && awaited(self.page_of(at)) {
                at = self.recs[at as usize].links().prev;
            }
            at
        })
    }

    /// Return the pages of frames that were not admitted to disk, least recently used first.
    pub fn not_admitted(&self, class: u8) -> impl Iterator<Item = u32> {
        self.of(class).lists[HostOn::NotAdmitted as usize].iter(&self.recs).map(|at| self.page_of(at))
    }

    /// Return the slabs of the first frames, `most` of each list of each class, in about the order in which they become free.
    pub fn slabs_by_eviction(&self, most: usize) -> impl Iterator<Item = u32> {
        use HostOn::{AlsoInTier0, Clean, Dirty, NotAdmitted, ReadAhead};
        let order = [NotAdmitted, AlsoInTier0, Clean, ReadAhead, Dirty];
        let lists = self.classes.iter().flat_map(move |c| order.map(|on| &c.lists[on as usize]));
        lists.flat_map(move |list| list.iter(&self.recs).take(most)).map(|at| self.slab_of(at))
    }

    /// Return the number of dirty frames of a class.
    pub fn dirty(&self, class: u8) -> u32 {
        self.of(class).lists[HostOn::Dirty as usize].len
    }

    /// Return whether no frame of the class is free or evictable, and no memory was requested.
    pub fn is_full(&self, class: u8) -> bool {
        let c = self.of(class);
        self.free_frames(class) == 0 && c.evictable() == 0 && !c.asked
    }

    /// Return whether some frame of the class is in no list. A transfer, a load, or a block that is leaving or not yet full holds
    /// it. It becomes free without further action.
    pub fn is_busy(&self, class: u8) -> bool {
        self.of(class).used > self.of(class).listed()
    }

    /// Return the next page of the class, where the last search ended.
    pub fn search_next(&mut self, class: u8) -> Option<(u32, u32)> {
        let len = self.len();
        let search = &mut self.of_mut(class).search;
        *search = (*search + 1) % len;
        let at = *search;
        self.page_in(at, class).map(|page| (at, page))
    }

    /// Append a page's frame to a list. A frame that is in that list already keeps its position.
    pub fn enlist(&mut self, at: u32, on: HostOn, clock: u32) {
        if self.recs[at as usize].on == on {
            return;
        }
        self.unlist(at);
        self.recs[at as usize].on = on;
        if on == HostOn::NotAdmitted {
            self.touch(at, clock);
        }
        let class = usize::from(self.class_of(at));
        if let Some(list) = self.classes[class].lists.get_mut(on as usize) {
            list.push_back(&mut self.recs, at);
        }
    }

    /// Remove a page's frame from its list. A moving frame has already been removed from its transfer's list by the transfer.
    pub(super) fn unlist(&mut self, at: u32) {
        let on = std::mem::replace(&mut self.recs[at as usize].on, HostOn::Nothing);
        let class = usize::from(self.class_of(at));
        if let Some(list) = self.classes[class].lists.get_mut(on as usize) {
            list.remove(&mut self.recs, at);
        }
    }

    /// Move a dirty frame that cannot be written now behind the others.
    pub fn pass_over(&mut self, at: u32) {
        if self.recs[at as usize].on == HostOn::Dirty {
            let class = usize::from(self.class_of(at));
            self.classes[class].lists[HostOn::Dirty as usize].move_back(&mut self.recs, at);
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

    /// Move a page's frame into the list of a transfer.
    pub fn begin_transfer(&mut self, frames: &mut List, at: u32, kind: IoKind) {
        self.unlist(at);
        self.recs[at as usize].on = HostOn::Moving;
        if kind == IoKind::Write {
            let class = self.class_of(at);
            self.of_mut(class).writing += 1;
        }
        frames.push_back(&mut self.recs, at);
    }

    /// Take the next frame, and its page, out of the list of a transfer that has ended.
    pub fn end_transfer(&mut self, frames: &mut List, kind: IoKind) -> Option<(u32, u32)> {
        let at = frames.pop_front(&mut self.recs)?;
        self.recs[at as usize].on = HostOn::Nothing;
        if kind == IoKind::Write {
            let class = self.class_of(at);
            self.of_mut(class).writing -= 1;
        }
        Some((at, self.page_of(at)))
    }

    /// Return the frames and pages of a transfer.
    pub fn in_transfer(&self, frames: &List) -> impl Iterator<Item = (u32, u32)> {
        frames.iter(&self.recs).map(|at| (at, self.page_of(at)))
    }
}
