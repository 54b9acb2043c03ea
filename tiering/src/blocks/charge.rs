//! Committed capacity: what live pages may need at once, and guarantees of sessions.

use crate::api::BlockId;
use crate::blocks::BlockTable;
use crate::mutants::{self, Mutant};

impl BlockTable {
    /// Count one more lease of a block, or one less. A block counts once, however many leases it has.
    pub(crate) fn count_lease(&mut self, b: BlockId, more: bool) {
        let leases = &mut self.blocks[b].leases;
        *leases = if more { *leases + 1 } else { *leases - 1 };
        match (more, *leases) {
            (true, 1) => self.blocks.leased_bytes += self.bytes_of_block(b),
            (false, 0) => self.blocks.leased_bytes -= self.bytes_of_block(b),
            _ => {}
        }
    }

    /// Add the block's pages that are not out of window to the pages charged to `session`, or remove them. `None`: shared pages,
    /// charged to host.
    pub(crate) fn charge(&mut self, session: Option<u16>, block: u32, add: bool) {
        if let Some(s) = session {
            let before = self.unclaimed(s);
            let own = &mut self.tier0[s].own_blocks;
            *own = if add { *own + 1 } else { *own - 1 };
            self.blocks.promised = self.blocks.promised + self.unclaimed(s) - before;
        }
        if self.blocks[block].partial {
            for plane in 0..self.geo().planes.len() as u16 {
                if !self.pages[self.geo().page(block, plane) as usize].out_of_window() {
                    self.charge_pages(session, self.geo().class_of(plane), 1, add);
                }
            }
        } else {
            for class in 0..self.geo().classes.len() {
                self.charge_pages(session, class as u8, u64::from(self.geo().classes[class].planes), add);
            }
        }
    }

    fn charge_pages(&mut self, session: Option<u16>, class: u8, pages: u64, add: bool) {
        let (before, now) = match session {
            None if add => (0, pages),
            None => (pages, 0),
            Some(s) => {
                let c = &mut self.tier0[s].classes[usize::from(class)];
                let before = c.committed_in_host();
                c.committed = if add { c.committed + pages } else { c.committed - pages };
                (before, c.committed_in_host())
            }
        };
        self.host.commit(class, before, now);
    }

    /// Return the bytes of a block's pages that are not out of window.
    pub(crate) fn bytes_of_block(&self, block: u32) -> u64 {
        if !self.blocks[block].partial {
            return self.geo().classes.iter().map(|class| u64::from(class.planes) * u64::from(class.stride)).sum();
        }
        let in_window = |plane: &u16| !self.pages[self.geo().page(block, *plane) as usize].out_of_window();
        let planes = (0..self.geo().planes.len() as u16).filter(in_window);
        planes.map(|plane| u64::from(self.geo().classes[usize::from(self.geo().class_of(plane))].stride)).sum()
    }

    /// Remove the charge of a page that is out of window.
    pub(crate) fn uncharge_page(&mut self, block: u32, class: u8) {
        if self.blocks[block].leases > 0 {
            self.blocks.leased_bytes -= u64::from(self.geo().classes[usize::from(class)].stride);
        }
        let b = &self.blocks[block];
        match (b.refs_home, b.refs_other) {
            (0, 0) => {}
            _ if mutants::on(Mutant::WindowStaysCharged) => {}
            (_, 0) => self.charge_pages(Some(b.home), class, 1, false),
            _ => self.charge_pages(None, class, 1, false),
        }
    }

    /// Return the number of blocks that the session has yet to take of its guarantee.
    pub(crate) fn unclaimed(&self, s: u16) -> u32 {
        let session = &self.tier0[s];
        session.guaranteed_blocks.saturating_sub(session.own_blocks)
    }

    /// Return whether `more` block ids are neither referenced nor promised.
    pub(crate) fn ids_suffice(&self, more: u32) -> bool {
        let taken = u64::from(self.blocks.referred) + u64::from(self.blocks.promised);
        taken + u64::from(more) <= u64::from(self.blocks.max)
    }

    /// Set a guarantee, which was admitted or is smaller than the last one.
    pub(crate) fn set_guarantee(&mut self, s: u16, blocks: u32) {
        self.blocks.promised = self.blocks.promised + self.unclaimed_of(s, blocks) - self.unclaimed(s);
        let tier0 = &mut self.tier0[s];
        tier0.guaranteed_blocks = blocks;
        for (class, c) in (0..).zip(&mut tier0.classes) {
            let before = c.committed_in_host();
            c.guaranteed = u64::from(blocks) * u64::from(self.below.geo().classes[usize::from(class)].planes);
            self.host.commit(class, before, c.committed_in_host());
        }
    }

    pub(crate) fn unclaimed_of(&self, s: u16, blocks: u32) -> u32 {
        blocks.saturating_sub(self.tier0[s].own_blocks)
    }

    /// Return how many block ids are missing for `ids` to be free, now or soon.
    pub(crate) fn ids_short(&self, ids: u32) -> u32 {
        ids.saturating_sub(self.blocks.free_ids() + self.blocks.dying)
    }
}
