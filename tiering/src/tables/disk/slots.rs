//! NVMe slots: the slabs granted by the node, the entry of each slot, and what its disk's index log records about it. A slot
//! holds all pages of one block.
//!
//! A slot takes ten bytes of memory here. Most slots belong to index-only entries, which have nothing else in memory but their
//! index record.

use super::Disk;
use crate::api::{DiskSlot, NONE};
use crate::config::IDS_MAX;
use crate::error::Error;
use crate::lists::{Links, List, linked};
use crate::tables::host::SLABS_MAX;
use crate::tables::index::{Link, ShardCopy};
use serde::{Deserialize, Serialize};

/// Use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    Free,
    /// A block owns it.
    Block,
    /// A cache entry without a block owns it.
    IndexOnly,
    /// Awaiting erasure: it has no owner, but its log may still hold its record.
    AwaitingErasure,
    /// Failed too often; never used again.
    Bad,
    /// Its disk is out of service.
    Gone,
}

/// State of a slot's record in the index log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Logged {
    /// No record.
    No,
    /// A record is in flight.
    Recording,
    /// A record is in flight, but is already stale.
    RecordingStale,
    /// The record is valid: it describes the slot, and all ancestors are recorded too.
    Recorded,
    /// A stale record may exist.
    Stale,
    /// An erasure is in flight.
    Erasing,
}

/// When slots run out, one in [`BATCH_PART`] of them is freed at once, at most [`BATCH_MAX`].
const BATCH_PART: u32 = 64;
const BATCH_MAX: u32 = 16;
const PLACES: [Place; 6] =
    [Place::Free, Place::Block, Place::IndexOnly, Place::AwaitingErasure, Place::Bad, Place::Gone];
const LOGGED: [Logged; 6] =
    [Logged::No, Logged::Recording, Logged::RecordingStale, Logged::Recorded, Logged::Stale, Logged::Erasing];
/// Bits of a slot's state: the shard, then place and log state with three bits each.
const SHARD_BITS: u32 = 10;
const SHARD_MASK: u16 = (1 << SHARD_BITS) - 1;

/// FIFO queue of slots, linked through `owners`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { head: NONE, tail: NONE }
    }
}

impl Queue {
    fn push(&mut self, owners: &mut [u32], at: u32) {
        owners[at as usize] = NONE;
        match self.tail {
            NONE => self.head = at,
            tail => owners[tail as usize] = at,
        }
        self.tail = at;
    }

    fn pop(&mut self, owners: &[u32]) -> Option<u32> {
        let head = self.head;
        if head == NONE {
            return None;
        }
        self.head = owners[head as usize];
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(head)
    }

    fn count(&self, owners: &[u32]) -> u32 {
        let (mut at, mut count) = (self.head, 0);
        while at != NONE {
            (at, count) = (owners[at as usize], count + 1);
        }
        count
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Slab {
    links: Links,
    live: bool,
    disk: u16,
    base: u32,
    slots: u32,
    /// Lower bound of generations: a slot's next generation is above it.
    floor: u32,
    /// Free slots.
    unused: u32,
    /// Index of the first slot not allocated since the grant. Slots from here on are in no queue.
    fresh: u32,
    /// Free slots before `fresh`.
    free: Queue,
}

/// Space granted on one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Disk index.
    pub disk: u16,
    /// Slots granted there.
    pub granted: u32,
    /// Free slots among them.
    pub free: u32,
    /// The node has no more space there, as far as is known.
    pub full: bool,
}

/// Slots and slabs of the space on one disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Group {
    disk: u16,
    /// Slots granted there.
    granted: u32,
    /// Free slots among them.
    free: u32,
    /// Slabs with a free slot.
    open: List,
    /// The node was asked for more space there and had none.
    full: bool,
}

linked!(Slab.links);

impl Disk {
    /// Ask the node for space, preferably on a given disk, unless it was asked or cannot help now. Return whether to send the
    /// question. `bytes_max`: the space's NVMe limit.
    pub fn ask(&mut self, disk: Option<u16>, bytes_max: u64) -> bool {
        if self.asked || !self.may_grow(bytes_max) {
            return false;
        }
        (self.asked, self.asked_for) = (true, disk);
        true
    }

    /// Return whether an answer of the node is pending.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Return whether the node may have more space.
    pub(super) fn may_grow(&self, bytes_max: u64) -> bool {
        !self.refused && (u64::from(self.granted) + 1) * self.slot_bytes <= bytes_max
    }

    /// Return whether slots will become free without further action: an answer of the node or erasures are pending.
    pub fn slots_to_come(&self) -> bool {
        self.asked || self.awaiting_erasure > 0 && !self.is_log_stuck()
    }

    /// Return the number of slots that the space can have. `bytes_max`: its NVMe limit.
    pub fn slots_max(&self, bytes_max: u64) -> u64 {
        if self.refused { u64::from(self.usable()) } else { bytes_max / self.slot_bytes }
    }

    /// Add the slab that the node was asked for.
    ///
    /// # Errors
    /// [`Error::Slab`] if it was not asked, or as for [`Disk::grant`].
    pub fn grant_asked(&mut self, slab: u32, slots: u32, disk: u16, generation: u32) -> Result<(), Error> {
        if !self.asked {
            return Err(Error::Slab { slab, why: "grant was not requested" });
        }
        self.grant(slab, slots, disk, generation)?;
        self.wake();
        self.asked = false;
        if let Some(wanted) = self.asked_for.take() {
            let full = self.groups.iter_mut().filter(|group| wanted != disk && group.disk == wanted);
            full.for_each(|group| group.full = true);
        }
        Ok(())
    }

    /// The node has no more space.
    ///
    /// # Errors
    /// [`Error::Slab`] if it was not asked.
    pub fn refuse(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.asked) {
            return Err(Error::Slab { slab: NONE, why: "refusal of a grant that was not requested" });
        }
        (self.asked_for, self.refused) = (None, true);
        self.wake();
        Ok(())
    }

    /// Forget that the node, or one of its disks, had no more space.
    pub fn forget_refusals(&mut self) {
        self.refused = false;
        self.groups.iter_mut().for_each(|group| group.full = false);
    }

    /// Add a granted slab; all its slots are free. Allocates memory; grants are rare.
    ///
    /// # Errors
    /// [`Error::Slab`] if the id or the slot count is out of range, or the id is in use.
    pub fn grant(&mut self, slab: u32, slots: u32, disk: u16, generation: u32) -> Result<(), Error> {
        let refuse = |why| Err(Error::Slab { slab, why });
        if slab >= SLABS_MAX {
            return refuse("id must be below 65,536");
        }
        if slots == 0 || u64::from(slots) + self.owners.len() as u64 >= u64::from(IDS_MAX) {
            return refuse("slot count is 0 or exceeds the range of slot ids");
        }
        if self.is_live(slab) {
            return refuse("id is in use");
        }
        if self.slabs.len() <= slab as usize {
            self.slabs.resize(slab as usize + 1, Slab::default());
        }
        let base = match self.holes.iter().position(|&(_, n)| n == slots) {
            Some(hole) => self.holes.swap_remove(hole).0,
            None => self.owners.len() as u32,
        };
        let end = (base + slots) as usize;
        if end > self.owners.len() {
            self.owners.resize(end, NONE);
            self.generations.resize(end, 0);
            self.states.resize(end, 0);
            self.next_copies.resize(if self.several { end } else { 0 }, Link::default());
            self.present.resize(end * self.present_words, 0);
        }
        let floor = self.floor.max(generation);
        self.owners[base as usize..end].fill(NONE);
        self.generations[base as usize..end].fill(floor);
        self.states[base as usize..end].fill(0);
        let slab_rec = Slab { live: true, disk, base, slots, floor, unused: slots, ..Slab::default() };
        self.slabs[slab as usize] = slab_rec;
        let group = match self.groups.iter().position(|g| g.disk == disk) {
            Some(at) => at,
            None => {
                self.groups.push(Group { disk, granted: 0, free: 0, open: List::default(), full: false });
                self.groups.len() - 1
            }
        };
        let group = &mut self.groups[group];
        (group.granted, group.free, group.full) = (group.granted + slots, group.free + slots, false);
        group.open.push_back(&mut self.slabs, slab);
        let at = self.ranges.partition_point(|r| r.0 < base);
        self.ranges.insert(at, (base, slab));
        self.granted += slots;
        Ok(())
    }

    fn is_live(&self, slab: u32) -> bool {
        self.slabs.get(slab as usize).is_some_and(|s| s.live)
    }

    fn slab_of(&self, at: u32) -> u32 {
        let after = self.ranges.partition_point(|r| r.0 <= at);
        self.ranges.get(after.wrapping_sub(1)).map_or(NONE, |r| r.1)
    }

    pub fn place(&self, at: u32) -> Place {
        PLACES[usize::from(self.states[at as usize] >> SHARD_BITS & 7)]
    }

    fn set_place(&mut self, at: u32, place: Place) {
        let state = &mut self.states[at as usize];
        *state = *state & !(7 << SHARD_BITS) | (place as u16) << SHARD_BITS;
    }

    /// Return the state of the slot's record in the log.
    pub fn logged(&self, at: u32) -> Logged {
        LOGGED[usize::from(self.states[at as usize] >> (SHARD_BITS + 3) & 7)]
    }

    pub(super) fn set_logged(&mut self, at: u32, logged: Logged) {
        let state = &mut self.states[at as usize];
        *state = *state & !(7 << (SHARD_BITS + 3)) | (logged as u16) << (SHARD_BITS + 3);
    }

    /// Return the shard of the copy in an index-only slot.
    pub fn shard(&self, at: u32) -> u16 {
        self.states[at as usize] & SHARD_MASK
    }

    /// Return the space granted on each disk.
    pub(super) fn standings(&self) -> impl Iterator<Item = Standing> + Clone {
        let granted = self.groups.iter().filter(|g| g.granted > 0);
        granted.map(|&Group { disk, granted, free, full, .. }| Standing { disk, granted, free, full })
    }

    /// Count one more free slot of a slab, or one fewer.
    fn change_free(&mut self, slab: u32, add: bool) {
        let s = &mut self.slabs[slab as usize];
        let Some(group) = self.groups.iter_mut().find(|g| g.disk == s.disk) else { return };
        let was_open = s.unused > 0;
        (s.unused, group.free) = match add {
            true => (s.unused + 1, group.free + 1),
            false => (s.unused - 1, group.free - 1),
        };
        match (was_open, s.unused > 0) {
            (false, true) => group.open.push_back(&mut self.slabs, slab),
            (true, false) => group.open.remove(&mut self.slabs, slab),
            _ => {}
        }
    }

    /// Allocate a free slot on a disk for a block, with a new generation.
    pub fn take(&mut self, disk: u16, block: u32) -> Option<u32> {
        let slab = self.groups.iter().find(|g| g.disk == disk)?.open.head;
        let s = self.slabs.get_mut(slab as usize)?;
        let mut fresh = None;
        while fresh.is_none() && s.fresh < s.slots {
            let at = s.base + s.fresh;
            s.fresh += 1;
            // Skip slots that hold records restored from before the start.
            fresh = Some(at).filter(|&at| self.states[at as usize] >> SHARD_BITS & 7 == Place::Free as u16);
        }
        let at = match fresh {
            Some(at) => at,
            None => s.free.pop(&self.owners)?,
        };
        self.change_free(slab, false);
        self.used += 1;
        let floor = self.slabs[slab as usize].floor;
        let generation = &mut self.generations[at as usize];
        *generation = (*generation).max(floor).wrapping_add(1);
        self.owners[at as usize] = block;
        self.states[at as usize] = (Place::Block as u16) << SHARD_BITS;
        Some(at)
    }

    /// Return the slot at a location if it is free and was not allocated since the grant.
    ///
    /// # Errors
    /// [`Error::Slab`] if the slab is not granted, or the slot does not exist or is in use.
    pub fn restorable(&self, at: DiskSlot) -> Result<u32, Error> {
        let refuse = |why| Err(Error::Slab { slab: at.slab, why });
        let Some(s) = self.slabs.get(at.slab as usize).filter(|s| s.live) else { return refuse("is not granted") };
        if at.slot >= s.slots {
            return refuse("has no slot with the restored index");
        }
        if at.slot < s.fresh || self.place(s.base + at.slot) != Place::Free {
            return refuse("restored slot is in use");
        }
        Ok(s.base + at.slot)
    }

    /// Mark a free slot as holding a record from before the start. It has no owner yet: the caller sets one, or calls
    /// [`Disk::release`].
    pub fn restore(&mut self, at: u32, generation: u32, shard: u16) {
        self.change_free(self.slab_of(at), false);
        self.used += 1;
        self.generations[at as usize] = generation;
        self.states[at as usize] = shard & SHARD_MASK | (Place::Block as u16) << SHARD_BITS;
        self.set_logged(at, Logged::Recorded);
    }

    /// Transfer a slot from a block to its cache entry. `next`: the entry's next shard copy.
    pub fn drop_block(&mut self, at: u32, entry: u32, shard: u16, next: ShardCopy) {
        self.owners[at as usize] = entry;
        self.states[at as usize] = self.states[at as usize] & !SHARD_MASK | shard;
        self.set_place(at, Place::IndexOnly);
        self.set_next_copy(at, next);
        self.index_only += 1;
    }

    /// Transfer a slot from a cache entry to a block.
    pub fn give_block(&mut self, at: u32, block: u32) {
        self.owners[at as usize] = block;
        self.set_place(at, Place::Block);
        self.index_only -= 1;
    }

    pub fn next_copy(&self, at: u32) -> ShardCopy {
        self.next_copies.get(at as usize).map_or(ShardCopy::End, |link| link.get())
    }

    pub fn set_next_copy(&mut self, at: u32, next: ShardCopy) {
        if let Some(link) = self.next_copies.get_mut(at as usize) {
            *link = Link::to(next);
        }
    }

    /// Return whether an index-only slot holds the page of the `i`th windowed plane.
    pub fn has_windowed(&self, at: u32, i: usize) -> bool {
        self.present[at as usize * self.present_words + i / 32] >> (i % 32) & 1 == 1
    }

    pub fn set_windowed(&mut self, at: u32, i: usize, there: bool) {
        let word = &mut self.present[at as usize * self.present_words + i / 32];
        *word = *word & !(1 << (i % 32)) | u32::from(there) << (i % 32);
    }

    /// Release a slot that has no owner any more and that no transfer names. It becomes free at once, or when its log record is
    /// erased.
    pub fn release(&mut self, at: u32) {
        self.wake();
        match self.place(at) {
            Place::IndexOnly => self.index_only -= 1,
            // Its owner released it after the disk had gone.
            Place::Gone => return,
            _ => {}
        }
        self.used -= 1;
        self.awaiting_erasure += 1;
        self.set_place(at, Place::AwaitingErasure);
        self.owners[at as usize] = NONE;
        match self.logged(at) {
            Logged::No => self.unlog(at),
            _ if self.disown_record(at) => self.ask_erase(at),
            _ => {}
        }
    }

    /// Stop using a block's slot for good.
    pub fn retire(&mut self, at: u32) {
        if self.place(at) == Place::Gone {
            return;
        }
        self.used -= 1;
        self.bad += 1;
        self.set_place(at, Place::Bad);
        self.owners[at as usize] = NONE;
        if self.disown_record(at) {
            self.ask_erase(at);
        }
    }

    /// Take note that the block of a slot's record is not cached any more. Return whether the record is to be erased now.
    pub fn disown_record(&mut self, at: u32) -> bool {
        match self.logged(at) {
            Logged::Recorded | Logged::Stale => self.set_logged(at, Logged::Stale),
            Logged::Recording => self.set_logged(at, Logged::RecordingStale),
            Logged::No | Logged::RecordingStale | Logged::Erasing => {}
        }
        self.logged(at) == Logged::Stale
    }

    /// Invalidate a slot's record, or the one in flight. Return whether there was one.
    pub fn invalidate_record(&mut self, at: u32) -> bool {
        let counts = matches!(self.logged(at), Logged::Recorded | Logged::Recording);
        if counts {
            self.disown_record(at);
        }
        counts
    }

    /// Return whether a slot has a valid record.
    pub fn is_recorded(&self, at: u32) -> bool {
        self.logged(at) == Logged::Recorded && self.place(at) != Place::Gone
    }

    /// A slot's record is valid: it is in the log, and all ancestors are recorded too.
    pub fn validate_record(&mut self, at: u32) {
        self.set_logged(at, Logged::Recorded);
    }

    /// Queue the erasure of a slot's log record; the slot has no owner.
    pub fn ask_erase(&mut self, at: u32) {
        debug_assert!(matches!(self.place(at), Place::AwaitingErasure | Place::Bad));
        self.set_logged(at, Logged::Stale);
        self.erase.push(&mut self.owners, at);
    }

    /// Take the next slot to erase.
    pub fn next_to_erase(&mut self) -> Option<u32> {
        loop {
            let at = self.erase.pop(&self.owners)?;
            if self.place(at) != Place::Gone {
                return Some(at);
            }
        }
    }

    pub(super) fn has_to_erase(&self) -> bool {
        self.erase.head != NONE
    }

    /// Mark the slot's log record as absent. A slot without an owner becomes free.
    pub fn unlog(&mut self, at: u32) {
        self.set_logged(at, Logged::No);
        if self.place(at) != Place::AwaitingErasure {
            return;
        }
        self.awaiting_erasure -= 1;
        self.set_place(at, Place::Free);
        let slab = self.slab_of(at);
        self.change_free(slab, true);
        let s = &mut self.slabs[slab as usize];
        if at - s.base < s.fresh {
            // Reuse the slot that was free longest first, so that blocks of one time are stored close together.
            s.free.push(&mut self.owners, at);
        }
    }

    /// Return the block or cache entry that owns the slot.
    pub fn owner(&self, at: u32) -> u32 {
        self.owners[at as usize]
    }

    /// Return the location of a slot as transfers and log requests name it.
    pub fn location(&self, at: u32) -> DiskSlot {
        let slab = self.slab_of(at);
        let base = self.slabs.get(slab as usize).map_or(0, |s| s.base);
        DiskSlot { slab, slot: at - base, generation: self.generations[at as usize] }
    }

    /// Return the disk of a slot.
    pub fn disk_of(&self, at: u32) -> u16 {
        self.slabs.get(self.slab_of(at) as usize).map_or(u16::MAX, |s| s.disk)
    }

    /// Return the number of slots that blocks and cache entries own or may get.
    pub fn usable(&self) -> u32 {
        self.granted - self.bad
    }

    /// Return the number of slots that can be allocated now.
    pub fn free_slots(&self) -> u32 {
        self.granted - self.bad - self.used - self.awaiting_erasure
    }

    /// Return the number of slots that blocks and cache entries own.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Return whether too few slots are free, or will be after erasures. A part of all is freed at once, because the erasure of
    /// log records takes time.
    pub fn lacks_slots(&self) -> bool {
        self.free_slots() + self.awaiting_erasure < (self.usable() / BATCH_PART).clamp(1, BATCH_MAX)
    }

    /// Return whether a block without a slot may get one: slots are free or to come, or may be taken from others.
    pub fn may_have_slots(&self) -> bool {
        self.free_slots() > 0 || self.slots_to_come() || !self.exhausted
    }

    /// Take note that no block can get a slot, and no dirty page has one. Return whether that is new.
    pub fn exhaust(&mut self) -> bool {
        !std::mem::replace(&mut self.exhausted, true)
    }

    /// Remove one slab with all slots free, if enough slots remain without it: `needed` free ones, and a tenth of the granted ones.
    pub fn return_slab(&mut self, needed: u32) -> Option<u32> {
        let slab = self.idle_slab(needed.max(self.granted / 10))?;
        self.remove(slab);
        Some(slab)
    }

    /// Return a slab with all slots free, if at least `keep` free slots remain without it.
    fn idle_slab(&self, keep: u32) -> Option<u32> {
        let free = self.free_slots();
        self.groups.iter().flat_map(|group| group.open.iter(&self.slabs)).find(|&s| {
            let slab = &self.slabs[s as usize];
            slab.unused == slab.slots && free - slab.slots >= keep
        })
    }

    /// Remove a slab with all slots free.
    fn remove(&mut self, slab: u32) {
        let s = self.leave_group(slab);
        let range = s.base as usize..(s.base + s.slots) as usize;
        self.floor = self.generations[range].iter().copied().fold(self.floor.max(s.floor), u32::max);
        self.ranges.retain(|r| r.0 != s.base);
        self.holes.push((s.base, s.slots));
    }

    /// Take the slab's record out of the table and out of its disk's group.
    fn leave_group(&mut self, slab: u32) -> Slab {
        if let Some(group) = self.groups.iter_mut().find(|g| g.disk == self.slabs[slab as usize].disk) {
            if self.slabs[slab as usize].unused > 0 {
                group.open.remove(&mut self.slabs, slab);
            }
            group.granted -= self.slabs[slab as usize].slots;
            group.free -= self.slabs[slab as usize].unused;
        }
        let s = std::mem::take(&mut self.slabs[slab as usize]);
        self.granted -= s.slots;
        s
    }

    /// Return the highest generation of a slab's slots.
    pub fn generation_of(&self, slab: u32) -> u32 {
        let slots = self.range(slab).map_or(&[][..], |(first, end)| &self.generations[first as usize..end as usize]);
        slots.iter().copied().max().unwrap_or(0)
    }

    /// Return the slots of a slab: the first one, and one past the last.
    pub fn range(&self, slab: u32) -> Option<(u32, u32)> {
        self.slabs.get(slab as usize).filter(|s| s.live).map(|s| (s.base, s.base + s.slots))
    }

    /// Mark everything in the slab as lost; its id can be granted again. The records of its slots stay, because blocks with
    /// transfers in flight and log requests name them. Disks do not return within a run, so memory is bounded by their slots.
    pub fn lose(&mut self, slab: u32) {
        self.health.forgive();
        let s = self.leave_group(slab);
        for at in s.base..s.base + s.slots {
            match self.place(at) {
                Place::Block => self.used -= 1,
                Place::IndexOnly => (self.used, self.index_only) = (self.used - 1, self.index_only - 1),
                Place::AwaitingErasure => self.awaiting_erasure -= 1,
                Place::Bad => self.bad -= 1,
                Place::Free | Place::Gone => {}
            }
            self.set_place(at, Place::Gone);
        }
        if let Some(range) = self.ranges.iter_mut().find(|r| r.0 == s.base) {
            range.1 = NONE;
        }
    }

    pub(super) fn slot_table_bytes(&self) -> usize {
        self.owners.capacity() * size_of::<u32>()
            + self.generations.capacity() * size_of::<u32>()
            + self.states.capacity() * size_of::<u16>()
            + self.next_copies.capacity() * size_of::<Link>()
            + self.present.capacity() * size_of::<u32>()
            + self.slabs.capacity() * size_of::<Slab>()
            + self.groups.capacity() * size_of::<Group>()
            + (self.holes.capacity() + self.ranges.capacity()) * size_of::<(u32, u32)>()
    }

    /// Count slots by walking them: free, used, index-only, awaiting erasure, bad; and the length of the erase queue. For checks.
    pub(super) fn count(&self) -> ([u32; 5], u32) {
        let mut counts = [0; 5];
        for slab in self.slabs.iter().filter(|s| s.live) {
            let fresh = (slab.base + slab.fresh..slab.base + slab.slots).filter(|&at| self.place(at) == Place::Free);
            counts[0] += fresh.count() as u32 + slab.free.count(&self.owners);
            for at in slab.base..slab.base + slab.slots {
                match self.place(at) {
                    Place::Block => counts[1] += 1,
                    Place::IndexOnly => (counts[1], counts[2]) = (counts[1] + 1, counts[2] + 1),
                    Place::AwaitingErasure => counts[3] += 1,
                    Place::Bad => counts[4] += 1,
                    Place::Free | Place::Gone => {}
                }
            }
        }
        (counts, self.erase.count(&self.owners))
    }

    /// Return the numbers of slots: free, used, index-only, awaiting erasure, bad.
    pub fn counts(&self) -> [u32; 5] {
        [self.free_slots(), self.used, self.index_only, self.awaiting_erasure, self.bad]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Limits, Plane, Policy, SpaceConfig};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Two shards, and no limit that reserves memory.
    fn config() -> SpaceConfig {
        let limits = Limits {
            sessions_max: 1,
            blocks_max: 1,
            seqs_max: 1,
            seq_blocks_max: 1,
            lanes_max: 1,
            jobs_max: 1,
            requests_max: 1,
            host_bytes_max: 0,
            nvme_bytes_max: 0,
            ios_max: 0,
            entries_max: 1,
            log_requests_max: 0,
        };
        SpaceConfig { page_tokens: 16, planes: vec![Plane::full(1)], shards: 2, limits, policy: Policy::plain() }
    }

    proptest! {
        #[test]
        fn slots_are_handed_out_once_and_never_under_an_old_generation(
            ops in prop::collection::vec((0u8..9, 0u32..64), 1..300)
        ) {
            let mut disk = Disk::new(&config(), 3);
            let (mut live, mut slabs, mut erasing) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
            let mut newest: BTreeMap<(u32, u32), u32> = BTreeMap::new();
            for (op, n) in ops {
                match op {
                    0 => {
                        let (slab, slots) = (n % 8, 1 + n % 5);
                        prop_assert_eq!(disk.grant(slab, slots, slab as u16 % 3, 0).is_ok(), slabs.insert(slab));
                    }
                    1..=2 if disk.standings().any(|d| d.free > 0) => {
                        let free = |d: &Standing| d.free > 0;
                        let on = disk.standings().filter(free).nth(n as usize % 2).or(disk.standings().find(free)).unwrap();
                        let at = disk.take(on.disk, n).unwrap();
                        prop_assert_eq!(disk.disk_of(at), on.disk);
                        prop_assert!(live.insert(at));
                        prop_assert_eq!(disk.owner(at), n);
                        let DiskSlot { slab, slot, generation } = disk.location(at);
                        let before = newest.insert((slab, slot), generation);
                        prop_assert!(before.is_none_or(|b| b < generation));
                        if n % 2 == 0 { disk.set_logged(at, Logged::Recorded) }
                    },
                    3 => if let Some(&at) = live.iter().nth(n as usize % live.len().max(1)) {
                        live.remove(&at);
                        if n % 9 == 0 && disk.place(at) == Place::Block { disk.retire(at) } else { disk.release(at) }
                    },
                    4 => if let Some(at) = disk.next_to_erase() {
                        disk.set_logged(at, Logged::Erasing);
                        erasing.push(at);
                    },
                    5 => if let Some(at) = erasing.pop() {
                        disk.unlog(at);
                    },
                    6 if !slabs.is_empty() => {
                        let at = DiskSlot { slab: n % 8, slot: n % 5, generation: 0 };
                        if let Ok(at) = disk.restorable(at) {
                            disk.restore(at, 0, 1);
                            disk.drop_block(at, n, 1, ShardCopy::End);
                            disk.set_windowed(at, 2, true);
                            prop_assert!(live.insert(at) && disk.shard(at) == 1 && disk.has_windowed(at, 2));
                        }
                    }
                    7 if n < 8 && slabs.remove(&n) => {
                        let range = disk.range(n).unwrap();
                        disk.lose(n);
                        live.retain(|at| !(range.0..range.1).contains(at));
                        erasing.retain(|at| !(range.0..range.1).contains(at));
                        newest.retain(|key, _| key.0 != n);
                    }
                    _ => if let Some(slab) = disk.idle_slab(n % 3) {
                        disk.remove(slab);
                        prop_assert!(slabs.remove(&slab));
                    },
                }
                prop_assert_eq!(disk.count().0, disk.counts());
                prop_assert_eq!(disk.standings().map(|d| d.free).sum::<u32>(), disk.free_slots());
                prop_assert_eq!(disk.standings().map(|d| d.granted).sum::<u32>(), disk.granted);
                prop_assert_eq!(disk.used as usize, live.len());
            }
        }
    }
}
