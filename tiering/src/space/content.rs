//! Published content: its parts, and how it leaves the index: dropped from the last tier, or lost.

use super::Core;
use crate::api::{BlockId, NONE, Status};
use crate::pages::{Keep, Link, Logged, Part};

/// Frames that one look for a part to drop passes over.
const PARTS_MAX: usize = 256;
/// Contents that one look for one to drop passes over.
pub(crate) const NEAR: usize = 256;

impl Core {
    /// The parts of a content.
    pub(crate) fn parts(&self, c: u32) -> impl Iterator<Item = Part> {
        let mut part = self.index.recs[c as usize].head();
        std::iter::from_fn(move || {
            let here = part;
            part = self.part_after(here);
            (here != Part::End).then_some(here)
        })
    }

    pub(crate) fn part_after(&self, part: Part) -> Part {
        match part {
            Part::End => Part::End,
            Part::Hot(b) => self.blocks[b].next_part.get(),
            Part::Cold(at) => self.disk.next_part(at),
        }
    }

    /// The part of a content that belongs to a shard.
    pub(crate) fn part_of(&self, c: u32, shard: u16) -> Option<Part> {
        self.parts(c).find(|&part| match part {
            Part::End => false,
            Part::Hot(b) => self.blocks[b].shard == shard,
            Part::Cold(at) => self.disk.shard(at) == shard,
        })
    }

    /// Puts `new`, which is chained to what `old` is chained to, in the place of `old`.
    pub(crate) fn replace_part(&mut self, c: u32, old: Part, new: Part) {
        let before = self.parts(c).find(|&part| self.part_after(part) == old);
        match before {
            None | Some(Part::End) => self.index.recs[c as usize].set_head(new),
            Some(Part::Hot(b)) => self.blocks[b].next_part = Link::to(new),
            Some(Part::Cold(at)) => self.disk.set_next_part(at, new),
        }
    }

    /// Drops the least recently used content that nobody refers to, leaf first. False when there is none.
    pub(crate) fn drop_idle_content(&mut self) -> bool {
        match self.least_used_leaf() {
            Some(leaf) => self.drop_leaf(leaf),
            None => return false,
        }
        true
    }

    /// The leaf of the least recently used content that nobody refers to.
    pub(crate) fn least_used_leaf(&mut self) -> Option<u32> {
        let c = if self.index.cold.is_empty() { self.index.idle.head } else { self.index.cold.head };
        (c != NONE).then(|| self.index.next_leaf(c))
    }

    /// Drops a content that nothing stands on.
    pub(crate) fn drop_leaf(&mut self, leaf: u32) {
        self.counters.cache_drops += 1;
        self.unpublish(leaf);
    }

    /// The same, of those that have blocks: it makes a block's id and its host frames free.
    pub(crate) fn drop_hot_content(&mut self) -> bool {
        // What is below others may be on NVMe alone: a leaf is rather what is looked for.
        let leaf = {
            let mut near = self.index.idle.iter(&self.index.recs).take(NEAR);
            near.find(|&c| self.index.recs[c as usize].child == NONE)
        };
        let c = leaf.unwrap_or(self.index.idle.head);
        self.drop_below(c)
    }

    /// The same, of those that have slots on NVMe.
    pub(crate) fn drop_stored_content(&mut self) -> bool {
        if !self.index.cold.is_empty() {
            return self.drop_below(self.index.cold.head);
        }
        let stored = |&c: &u32| self.parts(c).any(|part| part.block().is_none_or(|b| self.blocks[b].slot != NONE));
        let found = self.index.idle.iter(&self.index.recs).take(NEAR).find(stored);
        self.drop_below(found.unwrap_or(NONE))
    }

    /// Drops a content, or what stands on it first. False when there is none.
    pub(crate) fn drop_below(&mut self, c: u32) -> bool {
        if c == NONE {
            return false;
        }
        let leaf = self.index.next_leaf(c);
        self.drop_leaf(leaf);
        true
    }

    /// Drops a content of which the session's tier 0 has a part that nobody refers to and that is nowhere else; another shard's
    /// part of it may be in use, so that it does not count as idle. False when there is none near.
    pub(crate) fn drop_part_in_tier0(&mut self, s: u16, class: u8) -> bool {
        let session = &self.sessions[usize::from(s)];
        let Some(c) = session.classes.get(usize::from(class)) else { return false };
        let unused = |&f: &u32| {
            let block = &self.blocks[self.geo.block_of(session.frames[f as usize].page)];
            block.refs() == 0 && block.content != NONE
        };
        let Some(f) = c.early.iter(&session.frames).take(PARTS_MAX).find(unused) else { return false };
        let content = self.blocks[self.geo.block_of(session.frames[f as usize].page)].content;
        self.counters.cache_drops += 1;
        self.unpublish(content);
        true
    }

    /// The content and its descendants are not findable any more; blocks that nobody refers to die, and what the logs say of
    /// them is erased.
    pub(crate) fn unpublish(&mut self, c: u32) {
        loop {
            let leaf = self.index.leaf_of(c);
            let mut part = self.index.recs[leaf as usize].head();
            self.index.remove(leaf);
            while part != Part::End {
                let next = self.part_after(part);
                match part {
                    Part::Hot(b) => self.unpublish_block(b, leaf),
                    Part::Cold(at) => self.release_slot(at),
                    Part::End => {}
                }
                part = next;
            }
            if leaf == c {
                return;
            }
        }
    }

    fn unpublish_block(&mut self, b: BlockId, c: u32) {
        let block = &mut self.blocks[b];
        (block.content, block.next_part) = (NONE, Link::default());
        let (slot, refs, waited) = (block.slot, block.refs(), std::mem::take(&mut block.waited));
        self.blocks.set_keep(b, Keep::No);
        if waited {
            self.end_publishes(c, self.blocks[b].shard, Status::NotAdmitted);
        }
        if slot != NONE {
            match self.disk.logged(slot) {
                Logged::Recording => self.disk.set_logged(slot, Logged::Outdated),
                Logged::Recorded | Logged::Maybe => {
                    self.disk.set_logged(slot, Logged::Maybe);
                    self.blocks.set_keep(b, Keep::Erase);
                    self.wake_disk();
                }
                Logged::No | Logged::Outdated | Logged::Erasing => {}
            }
        }
        if refs == 0 {
            self.die(b);
        }
    }
}
