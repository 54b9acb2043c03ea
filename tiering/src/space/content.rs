//! Published content leaves the index: dropped from the last tier, or lost.

use super::Core;
use crate::api::NONE;

/// Frames that one look for a part to drop passes over.
const PARTS_MAX: usize = 256;

impl Core {
    /// Drops the least recently used content that nobody refers to, leaf first. False when there is none.
    pub(crate) fn drop_idle_content(&mut self) -> bool {
        let c = self.index.idle.head;
        if c == NONE {
            return false;
        }
        let leaf = self.index.leaf_of(c);
        self.counters.cache_drops += 1;
        self.unpublish(leaf);
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

    /// The content and its descendants are not findable any more; blocks that nobody refers to die.
    pub(crate) fn unpublish(&mut self, c: u32) {
        loop {
            let leaf = self.index.leaf_of(c);
            let active = self.index.recs[leaf as usize].active > 0;
            let mut b = self.index.recs[leaf as usize].block;
            self.index.remove(leaf);
            while b != NONE {
                let next = self.blocks[b].next_part;
                (self.blocks[b].content, self.blocks[b].next_part) = (NONE, NONE);
                if self.blocks[b].refs() == 0 {
                    self.die(b);
                }
                b = next;
            }
            let _ = active;
            if leaf == c {
                return;
            }
        }
    }
}
