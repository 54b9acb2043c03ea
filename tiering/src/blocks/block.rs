//! Blocks: lifetime, references, and free ids.

use super::NO_SESSION;
use crate::api::NONE;
use crate::lists::{Links, List, linked};
use crate::tables::index::Link;
use serde::{Deserialize, Serialize};

/// Length of the free list below which a new id is created instead of reusing one. Late reuse lets the core detect a stale
/// reference to the former block. Reuse keeps the number of records near the number of live blocks.
const REUSED_AFTER: u32 = 4096;

/// Life cycle of a block id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BlockState {
    Free,
    /// Being filled: its pages are in tier 0, or parked in host.
    Unsealed,
    /// Complete: its data never changes again.
    Sealed,
    /// Unreferenced; waits for the jobs in flight that name it.
    Dying,
    /// Its Drop jobs are queued or in flight.
    Dropping,
}

/// Persistence state of a published block: its progress to NVMe and into the index log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PersistState {
    /// Persisted already, or not to be persisted.
    No,
    /// Waits for a store, a transfer, a log request, or the record of its parent.
    Waits,
    /// In the list of blocks to write: all its pages are in host or on NVMe.
    Write,
    /// In the list of blocks to record: all its pages are on NVMe.
    Record,
    /// No longer published, and in the list of blocks with a record to erase.
    Erase,
}

/// One block of one shard.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Block {
    /// Links in the free list, a request's chain, or a list of blocks to be written: it is in at most one.
    pub links: Links,
    /// References by sequences and requests of the session `home`.
    pub refs_home: u32,
    /// References by all other sessions.
    pub refs_other: u32,
    /// In-flight count: jobs that name it, requests that still copy it, and Drop jobs to come.
    pub in_flight: u32,
    /// Published cache entry, or none.
    pub entry: u32,
    /// Next shard copy of the same cache entry.
    pub next_copy: Link,
    /// Sequence of session `home` that touched it last.
    pub seq: u32,
    /// Its slot on NVMe, or none.
    pub slot: u32,
    pub shard: u16,
    pub home: u16,
    pub state: BlockState,
    /// Partial: some of its pages are out of window.
    pub partial: bool,
    /// Unsealed, and its sequence is parked: its pages may leave tier 0.
    pub parked: bool,
    /// Consecutive failed writes to its slot.
    pub write_fails: u8,
    /// Its persistence state.
    pub persist: PersistState,
    /// A publish waits for its record.
    pub waited: bool,
    /// Consecutive failed attempts to record it.
    pub record_fails: u8,
    /// Admitted to NVMe and not written yet: its bytes are reserved in the write budget.
    pub committed: bool,
    /// Not admitted at the last decision.
    pub not_admitted: bool,
    /// Not admitted only because the daily write budget was used up.
    pub over_budget: bool,
    /// Written before blocks that are not preferred: used again, shared, or expensive to recompute.
    pub preferred: bool,
    /// Number of blocks before it in its prefix, once it is published.
    pub depth: u32,
    /// Leases of it, of all sessions.
    pub leases: u32,
}

impl Default for Block {
    fn default() -> Self {
        Block {
            links: Links::default(),
            refs_home: 0,
            refs_other: 0,
            in_flight: 0,
            entry: NONE,
            next_copy: Link::default(),
            seq: NONE,
            slot: NONE,
            shard: 0,
            home: NO_SESSION,
            state: BlockState::Free,
            partial: false,
            parked: false,
            write_fails: 0,
            persist: PersistState::No,
            waited: false,
            record_fails: 0,
            committed: false,
            not_admitted: false,
            over_budget: false,
            preferred: false,
            depth: 0,
            leases: 0,
        }
    }
}

impl Block {
    pub fn refs(&self) -> u64 {
        u64::from(self.refs_home) + u64::from(self.refs_other)
    }

    pub fn live(&self) -> bool {
        matches!(self.state, BlockState::Unsealed | BlockState::Sealed)
    }

    /// Return whether its pages may leave tier 0 and be written to NVMe: no process writes them.
    pub fn may_leave(&self) -> bool {
        match self.state {
            BlockState::Sealed => true,
            BlockState::Unsealed => self.parked,
            _ => false,
        }
    }
}

linked!(Block.links);

/// All blocks of the space.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Blocks {
    /// Records of all ids ever used. A record is created with the first use of its id, so unused ids take no memory.
    pub recs: Vec<Block>,
    pub free: List,
    /// Ids are below this.
    pub max: u32,
    /// Blocks that wait for jobs before their id is free again.
    pub dying: u32,
    /// Blocks that are referenced.
    pub referred: u32,
    /// Blocks that sessions may have by their guarantees in addition to those that they have.
    pub promised: u32,
    /// Blocks that are [`PersistState::Write`] and [`Block::preferred`].
    to_write_first: List,
    /// The other blocks that are [`PersistState::Write`].
    to_write: List,
    /// Blocks that are [`PersistState::Record`].
    pub to_record: List,
    /// Blocks that are [`PersistState::Erase`].
    pub to_erase: List,
    /// Number of blocks that are [`Block::committed`].
    pub committed: u32,
    /// Number of blocks that are [`Block::over_budget`].
    pub over_budget: u32,
    /// Bytes of the pages of leased blocks, without those out of window.
    pub leased_bytes: u64,
}

impl Blocks {
    pub fn new(count: u32) -> Blocks {
        Blocks {
            recs: Vec::with_capacity(count as usize),
            free: List::default(),
            max: count,
            dying: 0,
            referred: 0,
            promised: 0,
            to_write_first: List::default(),
            to_write: List::default(),
            to_record: List::default(),
            to_erase: List::default(),
            committed: 0,
            over_budget: 0,
            leased_bytes: 0,
        }
    }

    /// Return the number of ids that can be taken now.
    pub fn free_ids(&self) -> u32 {
        self.free.len + (self.max - self.recs.len() as u32)
    }

    /// Take a free id. The block is unsealed and unreferenced.
    pub fn alloc(&mut self, shard: u16) -> Option<u32> {
        let is_new = self.free.len < REUSED_AFTER && (self.recs.len() as u32) < self.max;
        let b = if is_new {
            self.recs.push(Block::default());
            self.recs.len() as u32 - 1
        } else {
            self.free.pop_front(&mut self.recs)?
        };
        self.recs[b as usize] = Block { shard, state: BlockState::Unsealed, ..Block::default() };
        Some(b)
    }

    /// Change the persistence state of a block. A block that is in the matching list already keeps its position.
    pub fn set_persist(&mut self, b: u32, persist: PersistState) {
        let before = self.recs[b as usize].persist;
        if before == persist {
            return;
        }
        if matches!(persist, PersistState::No | PersistState::Erase) {
            self.set_committed(b, false);
        }
        for (at, add) in [(before, false), (persist, true)] {
            let list = match at {
                PersistState::No | PersistState::Waits => continue,
                PersistState::Write if self.recs[b as usize].preferred => &mut self.to_write_first,
                PersistState::Write => &mut self.to_write,
                PersistState::Record => &mut self.to_record,
                PersistState::Erase => &mut self.to_erase,
            };
            match add {
                true => list.push_back(&mut self.recs, b),
                false => list.remove(&mut self.recs, b),
            }
        }
        self.recs[b as usize].persist = persist;
    }

    /// Move a block that cannot be written now behind the others.
    pub fn pass_over(&mut self, b: u32) {
        if self.recs[b as usize].persist == PersistState::Write {
            let preferred = self.recs[b as usize].preferred;
            let list = if preferred { &mut self.to_write_first } else { &mut self.to_write };
            list.move_back(&mut self.recs, b);
        }
    }

    /// Mark a block as preferred. Return false if it was already.
    pub fn prefer(&mut self, b: u32) -> bool {
        if self.recs[b as usize].preferred {
            return false;
        }
        if self.recs[b as usize].persist == PersistState::Write {
            self.to_write.remove(&mut self.recs, b);
            self.to_write_first.push_back(&mut self.recs, b);
        }
        self.recs[b as usize].preferred = true;
        true
    }

    /// Return the next block to write of those that are [`PersistState::Write`], or `NONE`.
    pub fn next_to_write(&self) -> u32 {
        if self.to_write_first.is_empty() { self.to_write.head } else { self.to_write_first.head }
    }

    /// Return the next preferred block to write, or `NONE`.
    pub fn next_preferred(&self) -> u32 {
        self.to_write_first.head
    }

    /// Return the number of blocks that are [`PersistState::Write`].
    pub fn to_write_count(&self) -> u32 {
        self.to_write_first.len + self.to_write.len
    }

    /// Return all blocks that are [`PersistState::Write`].
    pub fn all_to_write(&self) -> impl Iterator<Item = u32> + '_ {
        self.to_write_first.iter(&self.recs).chain(self.to_write.iter(&self.recs))
    }

    /// Reserve the write budget of a block that is to be written, or release it.
    pub fn set_committed(&mut self, b: u32, committed: bool) {
        let was = std::mem::replace(&mut self.recs[b as usize].committed, committed);
        match (was, committed) {
            (false, true) => self.committed += 1,
            (true, false) => self.committed -= 1,
            _ => {}
        }
    }

    /// Record whether a block is not admitted only because the write budget was used up.
    pub fn set_over_budget(&mut self, b: u32, over_budget: bool) {
        let was = std::mem::replace(&mut self.recs[b as usize].over_budget, over_budget);
        match (was, over_budget) {
            (false, true) => self.over_budget += 1,
            (true, false) => self.over_budget -= 1,
            _ => {}
        }
    }

    pub fn release(&mut self, b: u32) {
        self.recs[b as usize] = Block::default();
        self.free.push_back(&mut self.recs, b);
    }
}

impl std::ops::Index<u32> for Blocks {
    type Output = Block;
    fn index(&self, b: u32) -> &Block {
        &self.recs[b as usize]
    }
}

impl std::ops::IndexMut<u32> for Blocks {
    fn index_mut(&mut self, b: u32) -> &mut Block {
        &mut self.recs[b as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_used_again_after_so_many_others_and_records_follow_what_exists_at_once() {
        let mut blocks = Blocks::new(1 << 20);
        let first = blocks.alloc(0).unwrap();
        blocks.release(first);
        for _ in 1..REUSED_AFTER {
            let other = blocks.alloc(0).unwrap();
            assert_ne!(other, first);
            blocks.release(other);
        }
        for _ in 0..10 * REUSED_AFTER {
            let again = blocks.alloc(0).unwrap();
            blocks.release(again);
        }
        assert_eq!(blocks.recs.len() as u32, REUSED_AFTER);
    }

    #[test]
    fn all_ids_can_be_in_use_at_once() {
        let mut blocks = Blocks::new(3);
        let mut ids: Vec<u32> = std::iter::from_fn(|| blocks.alloc(0)).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2]);
        blocks.release(1);
        assert_eq!((blocks.alloc(0), blocks.alloc(0)), (Some(1), None));
    }
}
