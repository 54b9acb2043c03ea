//! Published content leaves the index: dropped from the last tier, or lost.

use super::Core;
use crate::api::NONE;

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
