//! Mapped frames as reasons for a host frame to stay: counts, lists, and the end of a mapping.

use crate::api::{BlockId, NONE};
use crate::blocks::{BlockTable, NO_LANE, On};
use crate::mutants::{self, Mutant};

impl BlockTable {
    /// Count, or stop counting, this frame as a reason for the page's host frame to stay. Do nothing if the frame is no window
    /// frame.
    pub(crate) fn count_mapped(&mut self, s: u16, f: u32, page: u32, add: bool) {
        if !self.tier0[s].is_mapped_frame(f) {
            return;
        }
        let at = self.pages[page as usize].host;
        if at == NONE {
            debug_assert!(mutants::on(Mutant::EvictHostWhileMapped), "a mapped page {page} is not in host");
            return;
        }
        self.host.count_mapping(at, add);
        if self.host.mappings(at) == 0 && self.pages[page as usize].out_of_window() {
            return self.drop_host_copy(page);
        }
        self.settle_host(page);
        if !add && self.host.mappings(at) == 0 {
            self.host_freed();
            if self.disk.exists() {
                self.disk.wake();
            }
        }
    }

    /// Return whether a mapped frame shows the page's host frame, is about to, or may still.
    pub(crate) fn is_mapped(&self, page: u32) -> bool {
        let at = self.pages[page as usize].host;
        at != NONE && self.host.mappings(at) > 0 && !mutants::on(Mutant::EvictHostWhileMapped)
    }

    pub(crate) fn count_mapped_invalidating(&mut self, s: u16, f: u32, more: bool) {
        let session = &mut self.tier0[s];
        let class = usize::from(session.class_of_frame(f));
        let c = &mut session.classes[class];
        if c.is_mapped_frame(f) {
            c.mapped_invalidating = if more { c.mapped_invalidating + 1 } else { c.mapped_invalidating - 1 };
        }
    }

    /// Put a mapped frame into its list. One that is in it keeps its position.
    pub(crate) fn settle_mapped(&mut self, s: u16, f: u32) {
        let frame = *self.frame(s, f);
        let want = if frame.job == NONE { On::Mapped } else { On::Nothing };
        if frame.on != want {
            self.unlist(s, f);
            self.enlist(s, f, want, NO_LANE);
        }
        self.settle_host(frame.page);
    }

    /// Unmap the page in a frame if that is a mapped frame, unless a lane was just given it.
    pub(crate) fn unmap_frame(&mut self, s: u16, f: u32) {
        if self.frame(s, f).on == On::Mapped && !self.is_fault_frame(s, f) {
            self.evict(s, f);
        }
    }

    /// Unmap all mapped frames that show pages of the block. Return whether there were any.
    pub(crate) fn unmap_block(&mut self, b: BlockId) -> bool {
        let mut any = false;
        for page in self.pages_of(b) {
            any |= self.unmap_page(page);
        }
        any
    }

    /// Unmap all mapped frames that show a page. Return whether there were any.
    pub(crate) fn unmap_page(&mut self, page: u32) -> bool {
        let at = self.pages[page as usize].host;
        if at == NONE || self.host.mappings(at) == 0 {
            return false;
        }
        let mut any = false;
        let (mut s, mut f) = (self.pages[page as usize].session, self.pages[page as usize].frame);
        while f != NONE {
            let frame = *self.frame(s, f);
            if frame.on == On::Mapped {
                self.evict(s, f);
                any = true;
            }
            (s, f) = (frame.copy_session, frame.copy_frame);
        }
        any
    }

    /// Return whether the session shows the page in a mapped frame.
    pub(crate) fn in_mapped_frame(&self, s: u16, f: u32) -> bool {
        self.tier0[s].is_mapped_frame(f)
    }
}
